"""`pulsemark dump PATH|TOPIC`: print the stored records.

PATH is a data folder (all its topics) or one segment file. Any other argument, and with
`--data-dir` every argument, is a topic of the data folder; of a partitioned topic all partitions
are printed. With `--url` it is a topic of a running broker; without either option too, if a broker
runs on this machine and has the topic. The dump of a folder needs no broker and takes no lock.
While a broker uses the folder, the dump ends at the last entry that was durable when it began. A
single segment file is read without the rest of the folder, so the dump shows all whole records in
it.

With `--payload` the messages of each entry follow it: payloads are decompressed, batches are split.

With `--control` only control entries are printed: type and name, leader epoch and tags.

A damaged record is printed as damaged, and the dump continues after it. The exit code is then 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..client.errors import AdminError, UnreachableError
from ..ledger import CorruptFileError, EntryKind, FolderReader, LedgerError, Position, TopicLog
from . import options, records
from .brokers import ADMIN_URL, REQUEST
from .output import Progress, json_line, output_console, tags_text
from .parsing import CliError
from .stores import STORE, broker_rows, data_dir_of, from_broker, log_in, names_in, reader_of

if TYPE_CHECKING:
    from ..compaction.compacted_log import CompactedLog
    from ..ledger.bookkeeper.reader import BookKeeperReader

ERRORS = (LedgerError, AdminError, UnreachableError, OSError)

HEADINGS = (
    f"{'position':>12} {'index':>10} {'count':>6} {'kind':<7} {'broker time':<24} "
    f"{'append time':<24} {'publish time':<24} {'prefix':>6} {'body':>8} crc  tags"
)


def _position(text: str) -> Position:
    ledger, colon, entry = text.partition(":")
    if not (colon and ledger.isdecimal() and entry.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a position like 3:17")
    return Position(int(ledger), int(entry))


add_arguments = options.declared(
    f"""
target PATH|TOPIC  data folder, segment file, or topic of --data-dir
either:
--data-dir PATH  folder that TOPIC is in {options.IN_DATA_DIR}
{STORE}{ADMIN_URL}
and:
{REQUEST}
either:
--from=start LEDGER:ENTRY  first entry
--from-index N  entry that holds message index N
--from-time TIME  first entry at or after TIME
and:
--limit N  at most N entries per topic
--control  only control entries, with what they say
--payload  also the messages: key, value and properties
--uncommitted  also entries of transactions that are open or were aborted
{options.JSON}""",
    start=_position,
    from_index=options.not_negative,
)


def run(args: argparse.Namespace) -> int:
    """Print the records. Returns 1 if a record was damaged."""
    if args.control and args.payload:
        raise CliError("--payload: control entries have no payload")
    printer: _Printer = _JsonPrinter(payload=args.payload)
    if not args.json:
        printer = records.ControlPrinter() if args.control else _TextPrinter(payload=args.payload)
    path = Path(args.target)
    if args.store is not None:
        with reader_of(args) as store:
            names = names_in(store, options.full_topic(args.target))
            return max(_dump_topic(store, name, args, printer) for name in names)
    if args.data_dir is None and args.url is None and path.is_file():
        if args.from_time is not None or args.from_index is not None:
            raise CliError(
                "a single segment file cannot be searched: use --from LEDGER:ENTRY, or dump its "
                "folder"
            )
        return _dump_segment(path, args, printer)
    is_folder = args.data_dir is None and args.url is None and path.is_dir()
    if not is_folder and (status := _dump_broker(args, printer)) is not None:
        return status
    folder = path if is_folder else data_dir_of(args, args.target)
    with FolderReader(folder) as reader:
        topics = reader.topics() if is_folder else names_in(reader, options.full_topic(args.target))
        statuses = [_dump_topic(reader, topic, args, printer) for topic in topics]
    for damage in records.headless_segments(folder):
        printer.damage(None, damage)
        statuses.append(1)
    return max(statuses, default=0)


def _dump_broker(args: argparse.Namespace, printer: _Printer) -> int | None:
    """Print a topic of a broker; None: it is to be read from a folder."""
    if args.payload:
        if args.url is None:
            return None
        raise CliError("--payload needs the folder; or: pulsemark consume TOPIC --peek")
    if args.url is None and ("/" in args.target and "://" not in args.target):
        return None  # it may be a path
    place = {"position": "0:0"}
    if args.start is not None:
        place = {"position": str(args.start)}
    elif args.from_index is not None:
        place = {"index": str(args.from_index)}
    elif args.from_time is not None:
        place = {"time": str(options.parse_time(args.from_time))}
    dumped = from_broker(
        args,
        options.full_topic(args.target),
        lambda admin, name: broker_rows(admin, name, place, has_all=args.uncommitted),
    )
    if dumped is None:
        return None
    return max(_print_all(name, rows, args, printer, lambda: None) for name, rows in dumped)


def _dump_topic(
    reader: FolderReader | BookKeeperReader, topic: str, args: argparse.Namespace, printer: _Printer
) -> int:
    try:
        log = log_in(reader, topic)
        start = _start(log, args)
        rows = records.log_rows(log, start, has_all=args.uncommitted)
        return _print_all(topic, rows, args, printer, lambda: _count(log, start))
    except CorruptFileError as error:
        printer.damage(topic, records.Damage(None, None, str(error)))
        return 1


def _start(log: TopicLog | CompactedLog, args: argparse.Namespace) -> Position | None:
    start: Position | None = args.start
    if args.from_time is not None or args.from_index is not None:
        from ..finder import IndexOutOfRangeError
        from ..finder.search import finder_of

        finder = finder_of(log)
        if args.from_time is not None:
            return finder.by_time(options.parse_time(args.from_time)).position
        try:
            return finder.by_index(args.from_index).position
        except IndexOutOfRangeError as error:
            raise CliError(str(error)) from error
    return start


def _dump_segment(path: Path, args: argparse.Namespace, printer: _Printer) -> int:
    topic, rows = records.segment_rows(path)
    if (start := args.start) is not None:
        rows = (row for row in rows if row.position is None or row.position >= start)
    return _print_all(topic, rows, args, printer, lambda: None)


def _count(log: TopicLog | CompactedLog, start: Position | None) -> int:
    """How many entries there are to read."""
    first = log.first_position if start is None else start
    return 0 if first is None else log.count_entries(first, log.end_position)


def _print_all(
    topic: str,
    rows: Iterator[records.Row | records.Damage],
    args: argparse.Namespace,
    printer: _Printer,
    total: Callable[[], int | None],
) -> int:
    """Print the wanted rows, with a progress bar if they go into a file or pipe."""
    read = 0

    def counted() -> Iterator[records.Row | records.Damage]:
        nonlocal read
        for row in rows:
            read += 1
            yield row

    if output_console() is not None:
        return _print_rows(topic, islice(_wanted(rows, args), args.limit), printer)
    whole = total if args.limit is None else lambda: None
    with Progress(f"reading {topic}", lambda: read, total=whole, in_bytes=False):
        return _print_rows(topic, islice(_wanted(counted(), args), args.limit), printer)


def _wanted(
    rows: Iterator[records.Row | records.Damage], args: argparse.Namespace
) -> Iterator[records.Row | records.Damage]:
    """With `--control`: control entries, and damaged ones, which may have been such."""
    if not args.control:
        return rows
    return (row for row in rows if isinstance(row, records.Damage) or row.kind is EntryKind.CONTROL)


def _print_rows(topic: str, rows: Iterator[records.Row | records.Damage], printer: _Printer) -> int:
    status = 0
    printer.topic(topic)
    for row in rows:
        if isinstance(row, records.Damage):
            printer.damage(topic, row)
            status = 1
        else:
            printer.row(topic, row)
    return status


class _TextPrinter(records.ControlPrinter):
    """A table for people."""

    def __init__(self, *, payload: bool) -> None:
        self._payload = payload

    def topic(self, topic: str) -> None:
        print(f"{topic}\n{HEADINGS}")

    def row(self, topic: str, row: records.Row) -> None:
        tags = tags_text(row.tags)
        print(
            f"{row.position!s:>12} {row.index:>10} {row.message_count:>6} "
            f"{row.kind.name.lower():<7} {_time(row.broker_timestamp_ms):<24} "
            f"{_time(row.append_time_ms):<24} {_time(row.publish_time_ms):<24} "
            f"{row.prefix_size_bytes:>6} {row.body_size_bytes:>8} {f'{row.crc:<4} {tags}'.rstrip()}"
        )
        if self._payload and row.kind is EntryKind.DATA:
            print("".join(f"{'':>12} {line}\n" for line in records.payload_lines(row)), end="")


class _JsonPrinter:
    """A JSON object per record for programs."""

    def __init__(self, *, payload: bool) -> None:
        self._payload = payload

    def topic(self, topic: str) -> None:
        """Print nothing: each row names its topic."""

    def row(self, topic: str, row: records.Row) -> None:
        shown = {each.name: getattr(row, each.name) for each in fields(row)}
        for name in ("position", "control", "body", "tags"):  # tags: `prefix` has them, too
            del shown[name]
        shown["kind"] = row.kind.name.lower()
        if self._payload and row.kind is EntryKind.DATA:
            shown["messages"] = records.payload_fields(row)
        if row.control is not None:
            shown["control"] = records.control_fields(row.control)
        print(json_line({"topic": topic, **row.position._asdict(), **shown}))

    def damage(self, topic: str | None, damage: records.Damage) -> None:
        ledger_id, entry_id = damage.position or (None, None)
        place = {"topic": topic, "ledger_id": ledger_id, "entry_id": entry_id}
        what = {"damaged": damage.reason, "goes_on_at": damage.next_position}
        print(json_line({**place, **what}))


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else options.show_time(time_ms)


_Printer = records.ControlPrinter | _JsonPrinter
