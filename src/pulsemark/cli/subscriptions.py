"""`pulsemark subscriptions ...`: the subscriptions of a topic of a running broker.

pulsemark subscriptions list orders
pulsemark subscriptions create orders billing --at earliest
pulsemark subscriptions reset orders billing -15m
pulsemark subscriptions skip orders billing
pulsemark subscriptions delete orders billing
"""

from __future__ import annotations

import argparse

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from .brokers import add_broker, admin_client
from .options import add_json, full_topic
from .tables import print_done, print_rows
from .times import parse_time, show_time

ERRORS = (AdminError, UnreachableError, ServiceUrlError, OSError)
ACTIONS = {
    "list": "the subscriptions of a topic, with their backlogs in entries",
    "create": "create a subscription",
    "reset": "go to the first message at or after a time",
    "skip": "acknowledge everything that is there now",
    "delete": "delete a subscription",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in ACTIONS.items():
        action = actions.add_parser(name, help=text)
        action.add_argument("topic", metavar="TOPIC", help="short or full name")
        if name != "list":
            action.add_argument("subscription", metavar="SUBSCRIPTION")
        if name == "reset":
            action.add_argument(
                "time",
                metavar="TIME",
                help="earliest, latest, unix milliseconds, ISO 8601, 14:05, or -15m",
            )
        if name == "create":
            action.add_argument("--at", choices=("earliest", "latest"), default="latest")
        if name == "delete":
            action.add_argument("--force", action="store_true", help="end its consumers")
        add_broker(action)
        add_json(action)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    topic = full_topic(args.topic)
    time_ms = 0  # before the first message
    if args.action == "reset" and args.time not in ("earliest", "latest"):
        time_ms = parse_time(args.time)
    admin = admin_client(args)
    if args.action == "list":
        stats = admin.stats(topic)["subscriptions"]
        rows = [
            {
                "subscription": name,
                "type": found["type"] if found["consumers"] else None,
                "consumers": len(found["consumers"]),
                "backlog": found["msgBacklog"],
            }
            for name, found in sorted(stats.items())
        ]
        columns = ("subscription", "type", "consumers", "backlog")
        print_rows(rows, columns, as_json=args.json)
        return 0
    name = args.subscription
    if args.action == "create":
        admin.create_subscription(topic, name, at=args.at)
        done = f"created {name} on {topic}, at {args.at}"
    elif args.action == "reset":
        if args.time == "latest":
            admin.skip_all(topic, name)
        else:
            admin.reset_cursor(topic, name, time_ms)
        place = args.time if args.time in ("earliest", "latest") else show_time(time_ms)
        done = f"reset {name} on {topic} to {place}"
    elif args.action == "skip":
        admin.skip_all(topic, name)
        done = f"skipped all messages of {name} on {topic}"
    else:
        admin.delete_subscription(topic, name, force=args.force)
        done = f"deleted {name} of {topic}"
    fields = {"action": args.action, "topic": topic, "subscription": name}
    print_done(done, fields, as_json=args.json)
    return 0
