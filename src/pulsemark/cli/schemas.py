"""`pulsemark schemas ...`: the schemas of topics of a running broker.

pulsemark schemas show orders
pulsemark schemas upload orders --type AVRO --file order.avsc
pulsemark schemas delete orders
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..client.errors import AdminError, ServiceUrlError, UnreachableError
from ..wire import TopicName
from .brokers import add_broker, admin_client
from .errors import CliError
from .options import add_json, full_topic, json_line, positive
from .tables import print_done, print_rows
from .times import show_time

ERRORS = (AdminError, UnreachableError, ServiceUrlError, OSError)
TYPES = ("AVRO", "JSON", "STRING", "BYTES", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("list", "all versions of a topic's schema"),
        ("show", "the newest version, or a certain one"),
        ("upload", "add a version"),
        ("delete", "delete all versions"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("topic", metavar="TOPIC", help="short or full name")
        if name == "show":
            action.add_argument("--version", type=positive, metavar="N", dest="schema_version")
        if name == "upload":
            action.add_argument("--type", choices=TYPES, required=True)
            action.add_argument("--file", type=Path, metavar="PATH", help="the definition")
        if name == "delete":
            action.add_argument("--force", action="store_true")
        add_broker(action)
        add_json(action)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
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
        _show(admin.request("GET", f"{path}/schema{version}"), as_json=args.json)
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


def _show(found: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json_line(found))
        return
    print(f"version {found['version']}, {found['type']}")
    try:
        print(json.dumps(json.loads(str(found["data"])), indent=2))
    except ValueError:
        print(found["data"])
