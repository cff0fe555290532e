"""`pulsemark seek TOPIC TIME`: find the first entry at or after a time; `--index N`: a message.

It asks a broker over HTTP or gRPC (`--url`), or searches a data folder (`--data-dir`; a broker may
use it at the same time, but none is needed). Without these options it asks the broker on this
machine, if one runs and has the topic, else it searches ./pulsemark-data.

The answer is the first entry whose broker time is not before TIME. If there is no such entry, it
says so and prints the position of the next entry. With `--index N` the answer is the entry that
has the message of this index, and the message's place in its batch. A partitioned topic has an
answer for each partition, but not over gRPC.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..client.errors import AdminError, UnreachableError
from ..compaction.compacted_log import CompactedLog
from ..compaction.finder import CompactedFinder
from ..finder import Finder, Found, IndexOutOfRangeError, IndexPlace, SearchMethod
from ..finder.errors import InvalidFieldError, NotPossibleError, SeekCallError
from ..ledger import LedgerError, Position, TopicLog
from .brokers import DEFAULT_ADMIN_URL, add_access, add_request_timeout, seek_service
from .options import (
    add_data_dir,
    add_json,
    full_topic,
    grpc_target,
    not_negative,
    parse_time,
    show_time,
)
from .output import json_line
from .parsing import CliError
from .stores import add_store, entries_page, from_broker, log_in, names_in, reader_of

if TYPE_CHECKING:
    from ..client.admin import AdminClient
    from ..finder import SeekClient

T = TypeVar("T")

# OSError: a token or certificate file cannot be read.
ERRORS = (
    LedgerError, SeekCallError, InvalidFieldError, NotPossibleError, AdminError, UnreachableError,
    OSError,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("topic", metavar="TOPIC", help="short or full name")
    parser.add_argument(
        "time",
        nargs="?",
        metavar="TIME",
        help="unix milliseconds, ISO 8601, a clock time of today (14:05), or relative (-5m)",
    )
    parser.add_argument(
        "--index", type=not_negative, metavar="N", help="instead of TIME: the message of this index"
    )
    place = parser.add_mutually_exclusive_group()
    add_data_dir(place, why="folder to search in")
    add_store(place)
    place.add_argument(
        "--url",
        "--grpc",
        "--admin-url",
        dest="admin_url",
        type=_address,
        metavar="URL",
        help=f"the broker to ask: {DEFAULT_ADMIN_URL}, or HOST:PORT of its gRPC service",
    )
    add_request_timeout(parser)
    add_access(parser)
    parser.add_argument(
        "--method",
        choices=[method.name.lower() for method in SearchMethod],
        default=SearchMethod.INDEX.name.lower(),
        help="search by the time index, or by the entries' prefixes alone",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Search and print what was found."""
    if (args.time is None) == (args.index is None):
        raise CliError("give either a TIME or --index N")
    topic = full_topic(args.topic)
    try:
        if args.index is not None:
            by_index = _answers(args, topic, _index_over_http, _index_in, args.index)
            show_index = _index_as_json if args.json else _index_as_text
            print("\n".join(show_index(name, args.index, found) for name, found in by_index))
        else:
            time_ms = parse_time(args.time)
            by_time = _answers(args, topic, _time_over_http, _time_in, time_ms)
            shown = _as_json if args.json else _as_text
            print("\n".join(shown(name, time_ms, found) for name, found in by_time))
    except IndexOutOfRangeError as error:
        raise CliError(f"{topic}: {error}") from error
    return 0


def _answers(
    args: argparse.Namespace,
    topic: str,
    over_http: Callable[[AdminClient, str, int], T],
    search: Callable[[Finder | CompactedFinder | SeekClient, str, int, SearchMethod], T],
    value: int,
) -> Sequence[tuple[str, T]]:
    """What is found in the topic, or in each partition of a partitioned one."""
    method = SearchMethod[args.method.upper()]
    if args.admin_url is not None and not args.admin_url.startswith("http"):
        with seek_service(args, args.admin_url) as client:
            return [(topic, search(client, topic, value, method))]
    if method is SearchMethod.INDEX:
        asked = from_broker(args, topic, lambda admin, name: over_http(admin, name, value))
        if asked is not None:
            return asked
    elif args.admin_url is not None:
        raise CliError("--method prefixes is for a folder or a gRPC service")
    reader = reader_of(args)
    try:
        return [
            (name, search(_finder(log_in(reader, name)), name, value, method))
            for name in names_in(reader, topic)
        ]
    finally:
        reader.close()


def _finder(log: TopicLog | CompactedLog) -> Finder | CompactedFinder:
    return CompactedFinder(log) if isinstance(log, CompactedLog) else Finder(log)


def _time_in(
    where: Finder | CompactedFinder | SeekClient, topic: str, time_ms: int, method: SearchMethod
) -> Found:
    if isinstance(where, Finder | CompactedFinder):
        return where.by_time(time_ms, method=method)
    return where.by_time(topic, time_ms, method=method)


def _index_in(
    where: Finder | CompactedFinder | SeekClient, topic: str, index: int, method: SearchMethod
) -> IndexPlace:
    if isinstance(where, Finder | CompactedFinder):
        return where.by_index(index, method=method)
    return where.by_index(topic, index, method=method)


def _address(text: str) -> str:
    if text.startswith(("http:", "https:")):
        return text
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither of the form {DEFAULT_ADMIN_URL} nor HOST:PORT of a gRPC service"
        )
    return grpc_target(text)


def _index_over_http(admin: AdminClient, topic: str, index: int) -> IndexPlace:
    """The place of a message. `reads` and `bytes_read` are not told there: 0."""
    page = entries_page(admin, topic, index=str(index), after="0")
    place, entry = page["found"], _whole(topic, page["entries"][-1])
    return IndexPlace(
        Position(place["ledgerId"], place["entryId"]), place["batchIndex"], entry["firstIndex"],
        entry["index"], entry["messageCount"], _time_of(entry), reads=0, bytes_read=0,
    )  # fmt: skip


def _time_over_http(admin: AdminClient, topic: str, time_ms: int) -> Found:
    """The answer over HTTP. `reads` and `bytes_read` are not told there: 0."""
    page = entries_page(admin, topic, time=str(time_ms), after="0")
    place = page["found"]
    position = Position(place["ledgerId"], place["entryId"])
    if place["end"]:
        after_last = page["nextIndex"]
        return Found(position, after_last, after_last, 0, 0, end=True, reads=0, bytes_read=0)
    entry = _whole(topic, page["entries"][-1])
    return Found(
        position, entry["firstIndex"], entry["index"], entry["messageCount"], _time_of(entry),
        end=False, reads=0, bytes_read=0,
    )  # fmt: skip


def _time_of(entry: dict[str, Any]) -> int:
    """An entry's time: the broker's, else the producer's."""
    stamped = entry.get("prefix", {}).get("broker_timestamp")
    return int(stamped or entry.get("publishTime") or entry["appendTime"])


def _whole(topic: str, entry: dict[str, Any]) -> dict[str, Any]:
    if "index" not in entry:
        position = f"{entry['ledgerId']}:{entry['entryId']}"
        raise CliError(f"{topic}: the entry at {position} is damaged: {entry.get('error')}")
    return entry


def _index_as_json(topic: str, index: int, found: IndexPlace) -> str:
    return json_line(
        {
            "topic": topic,
            "asked_index": index,
            "ledger_id": found.position.ledger_id,
            "entry_id": found.position.entry_id,
            "batch_index": found.batch_index,
            "first_index": found.first_index,
            "index": found.index,
            "message_count": found.message_count,
            "time_ms": found.time_ms,
            "reads": found.reads,
            "bytes_read": found.bytes_read,
        }
    )


def _index_as_text(topic: str, index: int, found: IndexPlace) -> str:
    return "\n".join(
        (
            f"{topic} index {index}",
            f"position  {found.position}",
            f"message   {found.batch_index + 1} of {found.message_count}",
            f"time      {show_time(found.time_ms)} ({found.time_ms})",
        )
    )


def _as_json(topic: str, time_ms: int, found: Found) -> str:
    return json_line(
        {
            "topic": topic,
            "asked_ms": time_ms,
            "end": found.end,
            "ledger_id": found.position.ledger_id,
            "entry_id": found.position.entry_id,
            "first_index": found.first_index,
            "index": found.index,
            "message_count": found.message_count,
            "time_ms": None if found.end else found.time_ms,
            "reads": found.reads,
            "bytes_read": found.bytes_read,
        }
    )


def _as_text(topic: str, time_ms: int, found: Found) -> str:
    lines = [f"{topic} from {show_time(time_ms)} ({time_ms})"]
    if found.end:
        lines.append("no entry is at or after this time; the next entry will get this place:")
    lines.append(f"position  {found.position}")
    if found.end or found.message_count == 1:
        lines.append(f"index     {found.index}")
    else:
        count = found.message_count
        lines.append(f"index     {found.first_index} to {found.index} ({count} messages)")
    if not found.end:
        lines.append(f"time      {show_time(found.time_ms)} ({found.time_ms})")
    return "\n".join(lines)
