"""`pulsemark topics|subscriptions|namespaces|schemas|stats ...`: what a running broker has.

    pulsemark topics create orders --partitions 4
    pulsemark subscriptions reset orders billing -15m
    pulsemark namespaces create acme/orders
    pulsemark schemas upload orders --type AVRO --file order.avsc

A tenant that does not exist is created with its first namespace.

`subscriptions list` also has the consumer groups of Kafka's clients that have committed offsets of
the topic, if the broker serves them. Their type is `kafka`, and their backlog counts messages.

`stats` shows rates, which the broker measured over its last minute, and backlogs. On a terminal,
names and headings are short, so that a row fits 80 columns, and `--interval` shows one table that
changes, until Ctrl-C. Otherwise the tables follow each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..extras import install_command
from ..metadata.partition_names import partition_of
from ..wire import InvalidTopicNameError, TopicName, check_namespace
from . import options, output
from .brokers import BROKER, DEFAULT_ADMIN_URL, admin_client
from .parsing import CliError, Command

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..client.admin import AdminClient

ERRORS = (AdminError, UnreachableError, ServiceUrlError, InvalidTopicNameError, OSError)
KAFKA_TIMEOUT_MS = 5_000
SUBSCRIPTION_COLUMNS = ("subscription", "type", "consumers", "backlog")
SCHEMA_TYPES = "AVRO,JSON,STRING,BYTES,PROTOBUF,PROTOBUF_NATIVE,KEY_VALUE"


def _topics(args: argparse.Namespace) -> int:
    admin = admin_client(args)
    if args.action == "list":
        check_namespace(args.namespace)
        partitioned = set(admin.partitioned_topics(args.namespace))
        rows = [
            {"topic": name, "partitions": admin.partitions(name) if name in partitioned else 0}
            for name in sorted({*admin.topics(args.namespace), *partitioned})
        ]
        output.print_rows(rows, ("topic", "partitions"), as_json=args.json)
        return 0
    topic = options.full_topic(args.topic)
    if args.action == "create":
        admin.create_topic(topic, partitions=args.partitions or 0)
        return _done(args, "created", topic)
    partitions = admin.partitions(topic)
    if args.action == "delete":
        admin.delete_topic(topic, force=args.force, partitioned=partitions > 0)
        return _done(args, "deleted", topic)
    _show_topic(topic, partitions, admin.stats(topic), as_json=args.json)
    return 0


def _done(args: argparse.Namespace, what: str, name: str, of: str = "") -> int:
    output.print_done(f"{what} {of}{name}", {what: name}, as_json=args.json)
    return 0


def _show_topic(topic: str, partitions: int, stats: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(output.json_line({"topic": topic, **stats}))
        return
    for name, value in (
        ("topic", topic),
        ("partitions", partitions),
        ("messages in", f"{stats['msgInCounter']:,} since the start of the broker"),
        ("stored", output.counted(stats["storageSize"], "byte")),
        ("producers", len(stats["publishers"])),
        ("subscriptions", len(stats["subscriptions"])),
    ):
        print(f"{name:<14}{value}")
    if stats["subscriptions"]:
        print()
        output.print_rows(_rows_of(stats), (*SUBSCRIPTION_COLUMNS, "unacked"), as_json=False)


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


def _subscriptions(args: argparse.Namespace) -> int:
    topic = options.full_topic(args.topic)
    time_ms = 0  # before the first message
    if args.action == "reset" and args.time not in ("earliest", "latest"):
        time_ms = options.parse_time(args.time)
    admin = admin_client(args)
    if args.action == "list":
        rows = [*_rows_of(admin.stats(topic)), *_kafka_groups(args, admin, topic)]
        shown = [{name: row[name] for name in SUBSCRIPTION_COLUMNS} for row in rows]
        output.print_rows(shown, SUBSCRIPTION_COLUMNS, as_json=args.json)
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
        place = args.time if args.time in ("earliest", "latest") else options.show_time(time_ms)
        done = f"reset {name} on {topic} to {place}"
    elif args.action == "skip":
        admin.skip_all(topic, name)
        done = f"skipped all messages of {name} on {topic}"
    else:
        admin.delete_subscription(topic, name, force=args.force)
        done = f"deleted {name} of {topic}"
    fields = {"action": args.action, "topic": topic, "subscription": name}
    output.print_done(done, fields, as_json=args.json)
    return 0


def _kafka_groups(
    args: argparse.Namespace, admin: AdminClient, topic: str
) -> list[dict[str, object]]:
    """The consumer groups with offsets of the topic. Failures are reported on stderr."""
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


def _namespaces(args: argparse.Namespace) -> int:
    admin = admin_client(args)
    if args.action == "list":
        tenants = [args.tenant] if args.tenant else admin.tenants()
        rows = [{"namespace": name} for tenant in tenants for name in admin.namespaces(tenant)]
        output.print_rows(rows, ("namespace",), as_json=args.json)
        return 0
    tenant, _ = check_namespace(args.namespace)
    if args.action == "delete":
        admin.delete_namespace(args.namespace, force=args.force)
        return _done(args, "deleted", args.namespace)
    if tenant not in admin.tenants():
        admin.create_tenant(tenant)
    admin.create_namespace(args.namespace)
    return _done(args, "created", args.namespace)


def _schemas(args: argparse.Namespace) -> int:
    topic = options.full_topic(args.topic)
    name = TopicName.parse(topic)
    path = f"schemas/{name.tenant}/{name.namespace_local}/{name.local}"
    admin = admin_client(args)
    if args.action == "list":
        found = admin.request("GET", f"{path}/schemas")["getSchemaResponses"]
        rows = [
            {"version": each["version"], "type": each["type"],
             "time": options.show_time(each["timestamp"]), "properties": each["properties"] or None}
            for each in found
        ]  # fmt: skip
        output.print_rows(rows, ("version", "type", "time", "properties"), as_json=args.json)
    elif args.action == "show":
        version = "" if args.schema_version is None else f"/{args.schema_version}"
        _show_schema(admin.request("GET", f"{path}/schema{version}"), as_json=args.json)
    elif args.action == "upload":
        body = {"type": args.type, "schema": _definition(args.file), "properties": {}}
        number = admin.request("POST", f"{path}/schema", body)["version"]["version"]
        fields = {"topic": topic, "version": number}
        output.print_done(f"{topic} has schema version {number}", fields, as_json=args.json)
    else:
        admin.request("DELETE", f"{path}/schema", force="true" if args.force else "false")
        _done(args, "deleted", topic, "the schema of ")
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
        print(output.json_line(found))
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


def _stats(args: argparse.Namespace) -> int:
    """Show the figures."""
    found = _found(args)
    console = None if args.json else output.output_console()
    if console is not None and args.interval is not None:
        _watch(console, args, found)
        return 0
    for rows in found:
        if console is not None:
            output.print_table(_for_people(rows), console)
        else:
            output.print_rows(rows, FIGURES, as_json=args.json)
        sys.stdout.flush()
    return 0


def _for_people(rows: Rows) -> output.Table:
    """The table with short headings, and without the default namespace in names."""
    shown = [
        {SHORT.get(name, name): value for name, value in row.items()}
        | {"topic": str(row["topic"]).removeprefix("persistent://public/default/")}
        for row in rows
    ]
    return output.table_of(shown, [SHORT.get(name, name) for name in FIGURES], for_people=True)


def _found(args: argparse.Namespace) -> Iterator[Rows]:
    """The statistics, as often and as long as requested."""
    admin = admin_client(args)
    wanted = [options.full_topic(name) for name in args.topics]
    check_namespace(args.namespace)
    column, shown = SORTED_BY[args.sort], 0
    while True:
        rows = _rows(admin, wanted, args.namespace)
        if column != "topic":
            rows.sort(key=lambda row: float(str(row[column])), reverse=True)
        yield rows
        shown += 1
        if args.interval is None or shown == args.count:
            return
        time.sleep(args.interval)


def _watch(console: Console, args: argparse.Namespace, found: Iterator[Rows]) -> None:
    """Show the figures on a screen of their own; the last ones stay on the terminal."""
    from rich.live import Live

    rows: Rows = []
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for rows in found:
                live.update(_screen(console, args, rows), refresh=True)
    finally:
        if rows:
            output.print_table(_for_people(rows), console)


def _screen(console: Console, args: argparse.Namespace, rows: Rows) -> RenderableType:
    """The rows that fit the terminal, with a line above and, if rows were left out, one below."""
    from rich.console import Group
    from rich.text import Text

    title = f"{time.strftime('%H:%M:%S')}  {args.url or DEFAULT_ADMIN_URL}"
    title += f"  {output.counted(len(rows), 'topic')}  every {args.interval} s, Ctrl-C ends"
    shown = len(rows)
    while True:
        table = _for_people(rows[:shown]).rendered(console.width)
        left = f"not shown: {output.counted(len(rows) - shown, 'topic')}: --sort, or name topics"
        left *= shown < len(rows)
        screen = Group(Text(title, overflow="fold"), Text(), table, Text(left))
        lines = len(console.render_lines(screen, pad=False))
        if lines <= console.height or shown == 0:
            return screen
        shown = max(0, shown - max(1, (lines - console.height) // 2))


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


_ALL = BROKER + options.JSON
_TOPICS = options.declared(f"""
{_ALL}
list: the topics of a namespace
namespace TENANT/NAMESPACE? [public/default]
create: create a topic
{options.TOPIC}--partitions N
show: its partitions, subscriptions and figures
{options.TOPIC}
delete: delete a topic with its messages
{options.TOPIC}--force  end its producers and subscriptions
""")
_ONE = f"{options.TOPIC}subscription SUBSCRIPTION\n"
_SUBSCRIPTIONS = options.declared(f"""
{_ALL}
list: the subscriptions of a topic, with their backlogs in entries
{options.TOPIC}--kafka HOST:PORT  where the broker serves Kafka's clients (default: the port of its
    settings)
create: create a subscription
{_ONE}--at {{earliest,latest}} [latest]
--filter TAG=VALUES  get only entries whose tags match: region=eu,us;tier=gold
reset: go to the first message at or after a time
{_ONE}time TIME  earliest, latest, unix milliseconds, ISO 8601, 14:05, or -15m
skip: acknowledge everything that is there now
{_ONE}
delete: delete a subscription
{_ONE}--force  end its consumers
""")
_NAMESPACES = options.declared(f"""
{_ALL}
list: the namespaces of a tenant, or of all tenants
tenant TENANT?
create: create a namespace
namespace TENANT/NAMESPACE
delete: delete a namespace
namespace TENANT/NAMESPACE
--force  delete its topics, too
""")
_SCHEMAS = options.declared(f"""
{_ALL}
list: all versions of a topic's schema
{options.TOPIC}
show: the newest version, or a certain one
{options.TOPIC}--version=schema_version N
upload: add a version
{options.TOPIC}--type {{{SCHEMA_TYPES}}}!
--file PATH  the definition
delete: delete all versions
{options.TOPIC}--force
""")
_STATS = options.declared(
    f"""
topics TOPIC*  short or full names (default: all topics)
--namespace TENANT/NAMESPACE [public/default]  whose topics, if none are named (default:
    public/default)
--interval SECONDS  show again after so many seconds
--count N  end after showing N times
--sort COLUMN [topic]  one of {", ".join(SORTED_BY)}; numbers from the highest (default: topic)
{_ALL}""",
    interval=options.positive,
    sort=SORTED_BY,
)
COMMANDS = {
    "topics": Command(ERRORS, _TOPICS, _topics),
    "subscriptions": Command(ERRORS, _SUBSCRIPTIONS, _subscriptions),
    "namespaces": Command(ERRORS, _NAMESPACES, _namespaces),
    "schemas": Command(ERRORS, _SCHEMAS, _schemas),
    "stats": Command(ERRORS, _STATS, _stats),
}
