"""`pulsemark topics|subscriptions|namespaces|schemas|stats ...`: what a running broker has.

    pulsemark topics create orders --partitions 4
    pulsemark subscriptions reset orders billing -15m
    pulsemark namespaces create acme/orders
    pulsemark schemas upload orders --type AVRO --file order.avsc

A tenant that does not exist is created with its first namespace.

`stats` shows rates, which the broker measured over its last minute, and backlogs. On a terminal,
names and headings are short, so that a row fits 80 columns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..wire import InvalidTopicNameError, TopicName, check_namespace
from .brokers import BROKER, admin_client
from .options import (
    JSON,
    TOPIC,
    add_actions,
    add_options,
    full_topic,
    parse_time,
    show_time,
)
from .output import (
    Table,
    counted,
    json_line,
    output_console,
    print_done,
    print_rows,
    print_table,
    table_of,
)
from .parsing import CliError, Command

if TYPE_CHECKING:
    from ..client.admin import AdminClient

ERRORS = (AdminError, UnreachableError, ServiceUrlError, InvalidTopicNameError, OSError)
SUBSCRIPTION_COLUMNS = ("subscription", "type", "consumers", "backlog")
SCHEMA_TYPES = "AVRO,JSON,STRING,BYTES,PROTOBUF,PROTOBUF_NATIVE,KEY_VALUE"


def _add_actions(
    parser: argparse.ArgumentParser, texts: Mapping[str, str]
) -> dict[str, argparse.ArgumentParser]:
    """A parser for each action, by its name, with the broker's options."""
    actions = add_actions(parser, texts)
    for action in actions.values():
        add_options(action, BROKER + JSON)
    return actions


def _add_topics(parser: argparse.ArgumentParser) -> None:
    texts = {
        "list": "the topics of a namespace",
        "create": "create a topic",
        "show": "its partitions, subscriptions and figures",
        "delete": "delete a topic with its messages",
    }
    actions = _add_actions(parser, texts)
    add_options(actions["list"], "namespace TENANT/NAMESPACE? [public/default]")
    add_options(actions["create"], f"{TOPIC}--partitions N")
    add_options(actions["show"], TOPIC)
    add_options(actions["delete"], f"{TOPIC}--force  end its producers and subscriptions")


def _topics(args: argparse.Namespace) -> int:
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
        _show_topic(topic, admin.partitions(topic), admin.stats(topic), as_json=args.json)
    return 0


def _show_topic(topic: str, partitions: int, stats: dict[str, Any], *, as_json: bool) -> None:
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
    if stats["subscriptions"]:
        print()
        print_rows(_rows_of(stats), (*SUBSCRIPTION_COLUMNS, "unacked"), as_json=False)


def _rows_of(stats: dict[str, Any]) -> list[dict[str, object]]:
    """A topic's subscriptions."""
    return [
        {
            "subscription": name,
            "type": found["type"] if found["consumers"] else None,
            "consumers": len(found["consumers"]),
            "backlog": found["msgBacklog"],
            "unacked": found["unackedMessages"],
        }
        for name, found in sorted(stats["subscriptions"].items())
    ]


def _add_subscriptions(parser: argparse.ArgumentParser) -> None:
    texts = {
        "list": "the subscriptions of a topic, with their backlogs in entries",
        "create": "create a subscription",
        "reset": "go to the first message at or after a time",
        "skip": "acknowledge everything that is there now",
        "delete": "delete a subscription",
    }
    more = {
        "create": """
--at {earliest,latest} [latest]
--filter TAG=VALUES  get only entries whose tags match: region=eu,us;tier=gold
""",
        "reset": "time TIME  earliest, latest, unix milliseconds, ISO 8601, 14:05, or -15m",
        "delete": "--force  end its consumers",
    }
    for name, action in _add_actions(parser, texts).items():
        subscription = "" if name == "list" else "subscription SUBSCRIPTION\n"
        add_options(action, TOPIC + subscription + more.get(name, ""))


def _subscriptions(args: argparse.Namespace) -> int:
    topic = full_topic(args.topic)
    time_ms = 0  # before the first message
    if args.action == "reset" and args.time not in ("earliest", "latest"):
        time_ms = parse_time(args.time)
    admin = admin_client(args)
    if args.action == "list":
        rows = _rows_of(admin.stats(topic))
        shown = [{name: row[name] for name in SUBSCRIPTION_COLUMNS} for row in rows]
        print_rows(shown, SUBSCRIPTION_COLUMNS, as_json=args.json)
        return 0
    name = args.subscription
    if not name:
        raise CliError("SUBSCRIPTION must not be empty")
    if args.action == "create":
        given = {} if args.filter is None else {"pulsemark.filter": args.filter}
        admin.create_subscription(topic, name, at=args.at, properties=given)
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


def _add_namespaces(parser: argparse.ArgumentParser) -> None:
    texts = {
        "list": "the namespaces of a tenant, or of all tenants",
        "create": "create a namespace",
        "delete": "delete a namespace",
    }
    actions = _add_actions(parser, texts)
    namespace = "namespace TENANT/NAMESPACE\n"
    add_options(actions["list"], "tenant TENANT?")
    add_options(actions["create"], namespace)
    add_options(actions["delete"], f"{namespace}--force  delete its topics, too")


def _namespaces(args: argparse.Namespace) -> int:
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


def _add_schemas(parser: argparse.ArgumentParser) -> None:
    texts = {
        "list": "all versions of a topic's schema",
        "show": "the newest version, or a certain one",
        "upload": "add a version",
        "delete": "delete all versions",
    }
    more = {
        "show": "--version=schema_version N",
        "upload": f"--type {{{SCHEMA_TYPES}}}!\n--file PATH  the definition",
        "delete": "--force",
    }
    for name, action in _add_actions(parser, texts).items():
        add_options(action, TOPIC + more.get(name, ""))


def _schemas(args: argparse.Namespace) -> int:
    topic = full_topic(args.topic)
    name = TopicName.parse(topic)
    path = f"schemas/{name.tenant}/{name.namespace_local}/{name.local}"
    admin = admin_client(args)
    if args.action == "list":
        found = admin.request("GET", f"{path}/schemas")["getSchemaResponses"]
        rows = [
            {"version": each["version"], "type": each["type"],
             "time": show_time(each["timestamp"]), "properties": each["properties"] or None}
            for each in found
        ]  # fmt: skip
        print_rows(rows, ("version", "type", "time", "properties"), as_json=args.json)
    elif args.action == "show":
        version = "" if args.schema_version is None else f"/{args.schema_version}"
        _show_schema(admin.request("GET", f"{path}/schema{version}"), as_json=args.json)
    elif args.action == "upload":
        body = {"type": args.type, "schema": _definition(args.file), "properties": {}}
        number = admin.request("POST", f"{path}/schema", body)["version"]["version"]
        fields = {"topic": topic, "version": number}
        print_done(f"{topic} has schema version {number}", fields, as_json=args.json)
    else:
        admin.request("DELETE", f"{path}/schema", force="true" if args.force else "false")
        print_done(f"deleted the schema of {topic}", {"deleted": topic}, as_json=args.json)
    return 0


def _definition(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is not UTF-8 text: {error}") from error


def _show_schema(found: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json_line(found))
        return
    print(f"version {found['version']}, {found['type']}")
    try:
        print(json.dumps(json.loads(str(found["data"])), indent=2))
    except ValueError:
        print(found["data"])


# -- figures ---------------------------------------------------------------------------------------

Rows = list[dict[str, object]]
FIGURES = (
    "topic", "in/s", "out/s", "bytes in/s", "bytes out/s", "stored", "backlog", "producers",
    "consumers",
)  # fmt: skip
#: The headings on a terminal.
SHORT = {
    "bytes in/s": "B in/s", "bytes out/s": "B out/s", "producers": "prod", "consumers": "cons",
}  # fmt: skip
SORTED_BY = {
    "topic": "topic", "in": "in/s", "out": "out/s", "stored": "stored", "backlog": "backlog",
}  # fmt: skip


def _add_stats(parser: argparse.ArgumentParser) -> None:
    table = f"""
topics TOPIC*  short or full names (default: all topics)
--namespace TENANT/NAMESPACE [public/default]  whose topics, if none are named (default:
    public/default)
--sort COLUMN [topic]  one of {", ".join(SORTED_BY)}; numbers from the highest (default: topic)
{BROKER}{JSON}"""
    add_options(parser, table, sort=SORTED_BY)


def _stats(args: argparse.Namespace) -> int:
    """Show the figures."""
    admin, wanted = admin_client(args), [full_topic(name) for name in args.topics]
    check_namespace(args.namespace)
    rows, column = _rows(admin, wanted, args.namespace), SORTED_BY[args.sort]
    if column != "topic":
        rows.sort(key=lambda row: float(str(row[column])), reverse=True)
    console = None if args.json else output_console()
    if console is not None:
        print_table(_for_people(rows), console)
    else:
        print_rows(rows, FIGURES, as_json=args.json)
    return 0


def _for_people(rows: Rows) -> Table:
    """The table with short headings, and without the default namespace in names."""
    shown = [
        {SHORT.get(name, name): value for name, value in row.items()}
        | {"topic": str(row["topic"]).removeprefix("persistent://public/default/")}
        for row in rows
    ]
    return table_of(shown, [SHORT.get(name, name) for name in FIGURES], for_people=True)


def _rows(admin: AdminClient, wanted: list[str], namespace: str) -> Rows:
    rows: Rows = []
    for topic in wanted or sorted(admin.topics(namespace)):
        try:
            stats = admin.stats(topic)
        except AdminError as error:
            if error.status == 404 and not wanted:  # deleted since it was listed
                continue
            raise
        subscriptions = stats["subscriptions"].values()
        rows.append(
            {
                "topic": topic,
                "in/s": float(stats["msgRateIn"]),
                "out/s": float(stats["msgRateOut"]),
                "bytes in/s": float(stats["msgThroughputIn"]),
                "bytes out/s": float(stats["msgThroughputOut"]),
                "stored": stats["storageSize"],
                "backlog": sum(each["msgBacklog"] for each in subscriptions),
                "producers": len(stats["publishers"]),
                "consumers": sum(len(each["consumers"]) for each in subscriptions),
            }
        )
    return rows


COMMANDS = {
    "topics": Command(ERRORS, _add_topics, _topics),
    "subscriptions": Command(ERRORS, _add_subscriptions, _subscriptions),
    "namespaces": Command(ERRORS, _add_namespaces, _namespaces),
    "schemas": Command(ERRORS, _add_schemas, _schemas),
    "stats": Command(ERRORS, _add_stats, _stats),
}
