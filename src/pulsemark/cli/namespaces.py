"""`pulsemark namespaces ...`: list, create and delete namespaces of a running broker.

    pulsemark namespaces list
    pulsemark namespaces create acme/orders
    pulsemark namespaces delete acme/orders

A tenant that does not exist is created with its first namespace.
"""

from __future__ import annotations

import argparse

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..wire import InvalidTopicNameError, check_namespace
from .brokers import add_broker, admin_client
from .options import add_json
from .tables import print_done, print_rows

ERRORS = (AdminError, UnreachableError, ServiceUrlError, InvalidTopicNameError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the namespaces of a tenant, or of all tenants")
    listing.add_argument("tenant", nargs="?", metavar="TENANT")
    for name in ("create", "delete"):
        action = actions.add_parser(name, help=f"{name} a namespace")
        action.add_argument("namespace", metavar="TENANT/NAMESPACE")
        if name == "delete":
            action.add_argument("--force", action="store_true", help="delete its topics, too")
    for action in actions.choices.values():
        add_broker(action)
        add_json(action)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    admin = admin_client(args)
    if args.action == "list":
        tenants = [args.tenant] if args.tenant else admin.tenants()
        rows = [{"namespace": name} for tenant in tenants for name in admin.namespaces(tenant)]
        print_rows(rows, ("namespace",), as_json=args.json)
        return 0
    tenant, _ = check_namespace(args.namespace)
    if args.action == "create":
        if tenant not in admin.tenants():
            admin.create_tenant(tenant)
        admin.create_namespace(args.namespace)
        print_done(f"created {args.namespace}", {"created": args.namespace}, as_json=args.json)
    else:
        admin.delete_namespace(args.namespace, force=args.force)
        print_done(f"deleted {args.namespace}", {"deleted": args.namespace}, as_json=args.json)
    return 0
