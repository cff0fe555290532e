"""`pulsemark topics ...`: list, create, show and delete topics of a running broker.

pulsemark topics list public/default
pulsemark topics create orders --partitions 4
pulsemark topics show orders
pulsemark topics delete orders --force
"""

from __future__ import annotations

import argparse
from typing import Any

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..wire import InvalidTopicNameError, check_namespace
from .brokers import add_broker, admin_client
from .options import add_json, counted, full_topic, json_line, positive
from .tables import print_done, print_rows

ERRORS = (AdminError, UnreachableError, ServiceUrlError, InvalidTopicNameError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the topics of a namespace")
    listing.add_argument(
        "namespace", nargs="?", default="public/default", metavar="TENANT/NAMESPACE"
    )
    for name, text in (
        ("create", "create a topic"),
        ("show", "its partitions, subscriptions and figures"),
        ("delete", "delete a topic with its messages"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("topic", metavar="TOPIC", help="short or full name")
        if name == "create":
            action.add_argument("--partitions", type=positive, metavar="N")
        if name == "delete":
            action.add_argument(
                "--force", action="store_true", help="end its producers and subscriptions"
            )
    for action in actions.choices.values():
        add_broker(action)
        add_json(action)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    admin = admin_client(args)
    if args.action == "list":
        check_namespace(args.namespace)
        partitioned = set(admin.partitioned_topics(args.namespace))
        rows = [
            {"topic": name, "partitions": admin.partitions(name) if name in partitioned else 0}
            for name in sorted({*admin.topics(args.namespace), *partitioned})
        ]
        print_rows(rows, ("topic", "partitions"), as_json=args.json)
        return 0
    topic = full_topic(args.topic)
    if args.action == "create":
        admin.create_topic(topic, partitions=args.partitions or 0)
        print_done(f"created {topic}", {"created": topic}, as_json=args.json)
    elif args.action == "delete":
        is_partitioned = admin.partitions(topic) > 0
        admin.delete_topic(topic, force=args.force, partitioned=is_partitioned)
        print_done(f"deleted {topic}", {"deleted": topic}, as_json=args.json)
    else:
        _show(topic, admin.partitions(topic), admin.stats(topic), as_json=args.json)
    return 0


def _show(topic: str, partitions: int, stats: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json_line({"topic": topic, **stats}))
        return
    for name, value in (
        ("topic", topic),
        ("partitions", partitions),
        ("messages in", f"{stats['msgInCounter']:,} since the start of the broker"),
        ("stored", counted(stats["storageSize"], "byte")),
        ("producers", len(stats["publishers"])),
        ("subscriptions", len(stats["subscriptions"])),
    ):
        print(f"{name:<14}{value}")
    rows = [
        {
            "subscription": name,
            "type": found["type"] if found["consumers"] else None,
            "consumers": len(found["consumers"]),
            "backlog": found["msgBacklog"],
            "unacked": found["unackedMessages"],
        }
        for name, found in sorted(stats["subscriptions"].items())
    ]
    if rows:
        print()
        columns = ("subscription", "type", "consumers", "backlog", "unacked")
        print_rows(rows, columns, as_json=False)
