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
from . import options
from .brokers import ACCESS, seek_service
from .output import json_line, print_rows
from .parsing import CliError
from .records import HEADINGS, control_fields, control_line
from .stores import one_log

# OSError: a token or certificate file cannot be read. ValueError: protobuf refuses a value.
ERRORS = (LedgerError, SeekCallError, InvalidFieldError, NotPossibleError, OSError)

EPOCH_COLUMNS = ("epoch", "first_index", "end_index", "ledger_id", "entry_id", "leader")
APPENDED = [name for name in CONTROL_TYPES if name != "replicated-subscription"]


_READ = f"""
either:
--data-dir PATH  folder to read {options.IN_DATA_DIR}
--url, --grpc HOST:PORT  seek service to ask
and:
"""
add_arguments = options.declared(
    f"""
{ACCESS}{options.JSON}
append: add a control entry
{options.TOPIC}
--url, --grpc HOST:PORT!  the broker's gRPC address
type TYPE  {", ".join(APPENDED)}
name NAME? []  the transaction's id, the checkpoint's mark, the user's type, or the leader
--tag NAME=VALUE...  may be repeated
--epoch N  leader-change: the epoch that begins (default: the next one); else the epoch that must be
    the current one
list: print the control entries of a topic
{options.TOPIC}{_READ}
--limit N  at most N entries
epochs: print where each leader epoch begins and ends
{options.TOPIC}{_READ}""",
    type=APPENDED,
    epoch=options.not_negative,
)


def run(args: argparse.Namespace) -> int:
    """Append a control entry, or list entries or epochs."""
    topic = options.full_topic(args.topic)
    if args.action == "append":
        _append(args, topic)
    elif args.action == "list":
        _list(args, topic)
    else:
        _epochs(args, topic)
    return 0


def _append(args: argparse.Namespace, topic: str) -> None:
    given = args.tag or ()
    tags = dict(map(_tag, given))
    if len(tags) < len(given):
        raise CliError("--tag: each name may be given once")
    with seek_service(args, args.url) as client:
        stored = client.append_control(
            topic, CONTROL_TYPES[args.type], args.name, tags=tags, epoch=args.epoch
        )
    if args.json:
        facts = {"index": stored.index, "time_ms": stored.time_ms, "epoch": stored.epoch}
        place = stored.position._asdict()
        print(json_line({"topic": topic, "type": args.type, **place, **facts}))
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
            facts = {"index": index, "control": control_fields(control)}
            print(json_line({"topic": topic, **position._asdict(), **facts}))
        else:
            print(control_line(position, index, time_ms, control))


def _entries(args: argparse.Namespace, topic: str) -> Iterator[Found]:
    if args.url:
        with seek_service(args, args.url) as client:
            found = client.read_entries(
                topic, max_entries=args.limit, prefixes_only=True, control_only=True
            )
            for each in found:
                yield each.position, each.index, each.append_time_ms, control_of(each.prefix)
        return
    with FolderReader(args.data_dir or options.DEFAULT_DATA_DIR) as reader:
        log = one_log(reader, topic)
        for entry in entries_of(log, end=log.end_position):
            if entry.kind is EntryKind.CONTROL:
                said = control_of(entry.prefix)
                yield entry.position, entry.index, entry.append_time_ms, said


def _epochs(args: argparse.Namespace, topic: str) -> None:
    if args.url:
        with seek_service(args, args.url) as client:
            history = client.epochs(topic)
    else:
        with FolderReader(args.data_dir or options.DEFAULT_DATA_DIR) as reader:
            history = one_log(reader, topic).epoch_history()
    rows = [
        {
            "topic": topic, "epoch": start.epoch, "first_index": start.first_index,
            "end_index": history.end_of(number), **start.position._asdict(),
            "leader": start.leader,
        }
        for number, start in enumerate(history.starts)
    ]  # fmt: skip
    print_rows(rows, EPOCH_COLUMNS, as_json=args.json)
