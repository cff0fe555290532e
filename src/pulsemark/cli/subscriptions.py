"""`pulsemark subscriptions ...`: the subscriptions of a topic of a running broker.

pulsemark subscriptions list orders
pulsemark subscriptions create orders billing --at earliest
pulsemark subscriptions reset orders billing -15m
pulsemark subscriptions skip orders billing
pulsemark subscriptions delete orders billing

`list` also has the consumer groups of Kafka's clients that have committed offsets of the topic, if
the broker serves them. Their type is `kafka`, and their backlog counts messages.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..extras import install_command
from ..metadata.partition_names import partition_of
from ..wire import TopicName
from .brokers import add_broker, admin_client
from .errors import CliError
from .options import add_json, full_topic, grpc_target
from .tables import print_done, print_rows
from .times import parse_time, show_time

if TYPE_CHECKING:
    from ..client.admin import AdminClient

ERRORS = (AdminError, UnreachableError, ServiceUrlError, OSError)
KAFKA_TIMEOUT_MS = 5_000
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
        if name == "list":
            action.add_argument(
                "--kafka", type=grpc_target, metavar="HOST:PORT",
                help="where the broker serves Kafka's clients (default: the port of its settings)",
            )  # fmt: skip
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
        _list(args, admin, topic)
        return 0
    name = args.subscription
    if not name:
        raise CliError("SUBSCRIPTION must not be empty")
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


def _list(args: argparse.Namespace, admin: AdminClient, topic: str) -> None:
    rows: list[dict[str, object]] = [
        {
            "subscription": name,
            "type": found["type"] if found["consumers"] else None,
            "consumers": len(found["consumers"]),
            "backlog": found["msgBacklog"],
        }
        for name, found in sorted(admin.stats(topic)["subscriptions"].items())
    ]
    rows += _kafka_groups(args, admin, topic)
    columns = ("subscription", "type", "consumers", "backlog")
    print_rows(rows, columns, as_json=args.json)


def _kafka_groups(
    args: argparse.Namespace, admin: AdminClient, topic: str
) -> list[dict[str, object]]:
    """The groups with offsets of the topic. What stands in the way is said on stderr."""
    address = args.kafka
    if address is None:
        try:
            settings = admin.request("GET", "brokers/configuration/runtime")
        except AdminError:  # an ordinary user may not see the settings
            return []
        port = str(settings.get("pulsemarkKafkaPort") or "0")
        namespace = TopicName.parse(topic).namespace
        if port == "0" or namespace != settings.get("pulsemarkKafkaNamespace"):
            return []
        address = f"{urlsplit(admin.url).hostname}:{port}"
    try:
        return _asked_groups(address, TopicName.parse(partition_of(topic)[0]).local)
    except ImportError:
        reason = install_command("kafka")
    except Exception as error:  # noqa: BLE001 - of any kind: kafka-python's own, sockets', time-outs
        reason = f"{address}: {str(error) or type(error).__name__}"
    print(f"pulsemark: groups of Kafka's clients are not listed: {reason}", file=sys.stderr)
    return []


def _asked_groups(address: str, topic: str) -> list[dict[str, object]]:
    import logging

    from kafka import KafkaAdminClient
    from kafka.admin import OffsetSpec

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client: Any = KafkaAdminClient(
        bootstrap_servers=address,
        request_timeout_ms=KAFKA_TIMEOUT_MS,
        bootstrap_timeout_ms=KAFKA_TIMEOUT_MS,
    )
    try:
        names = [each["group_id"] for each in client.list_groups()]
        rows: list[dict[str, object]] = []
        for name, offsets in client.list_group_offsets(names).items() if names else ():
            mine = {place: each.offset for place, each in offsets.items() if place.topic == topic}
            if not mine:
                continue
            ends = client.list_partition_offsets(dict.fromkeys(mine, OffsetSpec.LATEST))
            backlog = sum(max(ends[place].offset - offset, 0) for place, offset in mine.items())
            members = len(client.describe_groups([name])[name]["members"])
            row = {"subscription": name, "type": "kafka", "consumers": members, "backlog": backlog}
            rows.append(row)
        return sorted(rows, key=lambda row: str(row["subscription"]))
    finally:
        client.close()
