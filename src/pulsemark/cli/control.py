"""`pulsemark control append|list|epochs TOPIC`: control entries and leader epochs.

`append` asks a broker's gRPC service (`--grpc HOST:PORT`), which must allow it
(`pulsemark standalone --control-token-file`), with the same token (`--token-file`). It prints where
the entry was stored, once it is durable.

`list` and `epochs` read a data folder (`--data-dir`), also while a broker uses it, or ask a seek
service (`--grpc`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain, islice

from ..finder.errors import InvalidFieldError, NotPossibleError, SeekCallError
from ..ledger import EntryKind, FolderReader, LedgerError, Position, entries_of
from ..metadata import Control, control_of
from ..metadata.control import CONTROL_TYPES
from .brokers import add_access, seek_service
from .options import (
    DEFAULT_DATA_DIR,
    add_data_dir,
    add_json,
    full_topic,
    grpc_target,
    not_negative,
    positive,
)
from .output import json_line
from .parsing import CliError
from .records import HEADINGS, control_fields, control_line, epoch_lines
from .stores import one_log

# OSError: a token or certificate file cannot be read. ValueError: protobuf refuses a value.
ERRORS = (LedgerError, SeekCallError, InvalidFieldError, NotPossibleError, OSError)

APPENDED = [name for name in CONTROL_TYPES if name != "replicated-subscription"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    append = _action(actions, "append", "add a control entry", reads=False)
    append.add_argument("type", metavar="TYPE", choices=APPENDED, help=", ".join(APPENDED))
    append.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        default="",
        help="the transaction's id, the checkpoint's mark, the user's type, or the leader",
    )
    append.add_argument(
        "--tag", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    append.add_argument(
        "--epoch",
        type=not_negative,
        metavar="N",
        help="leader-change: the epoch that begins (default: the next one); else the epoch that "
        "must be the current one",
    )
    listing = _action(actions, "list", "print the control entries of a topic", reads=True)
    listing.add_argument("--limit", type=positive, metavar="N", help="at most N entries")
    _action(actions, "epochs", "print where each leader epoch begins and ends", reads=True)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    what: str,
    *,
    reads: bool,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what.capitalize()}.")
    parser.add_argument("topic", metavar="TOPIC", help="short or full name")
    place = parser.add_mutually_exclusive_group() if reads else parser
    if reads:
        add_data_dir(place, why="folder to read")
    place.add_argument(
        "--url",
        "--grpc",
        dest="grpc",
        type=grpc_target,
        metavar="HOST:PORT",
        required=not reads,
        help="seek service to ask" if reads else "the broker's gRPC address",
    )
    add_access(parser)
    add_json(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Append, or print what is there."""
    topic = full_topic(args.topic)
    if args.action == "append":
        _append(args, topic)
    elif args.action == "list":
        _list(args, topic)
    else:
        _epochs(args, topic)
    return 0


def _append(args: argparse.Namespace, topic: str) -> None:
    tags = dict(_tag(text) for text in args.tag)
    if len(tags) < len(args.tag):
        raise CliError("--tag: each name may be given once")
    with seek_service(args, args.grpc) as client:
        stored = client.append_control(
            topic, CONTROL_TYPES[args.type], args.name, tags=tags, epoch=args.epoch
        )
    if args.json:
        position = {"ledger_id": stored.position.ledger_id, "entry_id": stored.position.entry_id}
        found = {"index": stored.index, "time_ms": stored.time_ms, "epoch": stored.epoch}
        print(json_line({"topic": topic, "type": args.type, **position, **found}))
    else:
        print(f"{args.type} at {stored.position}, index {stored.index}, epoch {stored.epoch}")


def _tag(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CliError(f"--tag {text!r} is not of the form NAME=VALUE")
    return name, value.encode(errors="surrogateescape")


Found = tuple[Position, int, int, Control | None]


def _list(args: argparse.Namespace, topic: str) -> None:
    entries = _entries(args, topic)
    first = list(islice(entries, 1))  # before the headings: the topic may not exist
    if not args.json:
        print(f"{topic}\n{HEADINGS}")
    for number, (position, index, time_ms, control) in enumerate(chain(first, entries)):
        if number == args.limit:
            return
        if args.json:
            place = {"ledger_id": position.ledger_id, "entry_id": position.entry_id}
            said = control_fields(control)
            print(json_line({"topic": topic, **place, "index": index, "control": said}))
        else:
            print(control_line(position, index, time_ms, control))


def _entries(args: argparse.Namespace, topic: str) -> Iterator[Found]:
    if args.grpc:
        with seek_service(args, args.grpc) as client:
            found = client.read_entries(
                topic, max_entries=args.limit, prefixes_only=True, control_only=True
            )
            for each in found:
                yield each.position, each.index, each.append_time_ms, control_of(each.prefix)
        return
    with FolderReader(args.data_dir or DEFAULT_DATA_DIR) as reader:
        log = one_log(reader, topic)
        for entry in entries_of(log, end=log.end_position):
            if entry.kind is EntryKind.CONTROL:
                said = control_of(entry.prefix)
                yield entry.position, entry.index, entry.append_time_ms, said


def _epochs(args: argparse.Namespace, topic: str) -> None:
    if args.grpc:
        with seek_service(args, args.grpc) as client:
            history = client.epochs(topic)
    else:
        with FolderReader(args.data_dir or DEFAULT_DATA_DIR) as reader:
            history = one_log(reader, topic).epoch_history()
    for line in epoch_lines(topic, history, as_json=args.json):
        print(line)
