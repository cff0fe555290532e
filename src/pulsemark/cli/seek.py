"""`pulsemark seek TOPIC TIME`: find the first entry at or after a time.

It searches a data folder (`--data-dir`; a broker may use it at the same time, but none is needed),
or asks a seek service (`--grpc HOST:PORT`). The answer is the first entry whose broker time is not
before TIME. If there is no such entry, it says so and prints the position of the next entry. In a
folder, a partitioned topic has an answer for each partition.
"""

from __future__ import annotations

import argparse

from ..finder import Found, SearchMethod
from ..finder.errors import InvalidFieldError, NotPossibleError, SeekCallError
from ..ledger import LedgerError
from .brokers import add_access, seek_service
from .options import (
    add_data_dir,
    add_json,
    full_topic,
    grpc_target,
    json_line,
)
from .stores import add_store, names_in, reader_of
from .times import parse_time, show_time

# OSError: a token or certificate file cannot be read.
ERRORS = (LedgerError, SeekCallError, InvalidFieldError, NotPossibleError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("topic", metavar="TOPIC", help="short or full name")
    parser.add_argument(
        "time",
        metavar="TIME",
        help="unix milliseconds, ISO 8601, a clock time of today (14:05), or relative (-5m)",
    )
    place = parser.add_mutually_exclusive_group()
    add_data_dir(place, why="folder to search in")
    add_store(place)
    place.add_argument("--grpc", type=grpc_target, metavar="HOST:PORT", help="seek service to ask")
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
    time_ms = parse_time(args.time)
    topic = full_topic(args.topic)
    method = SearchMethod[args.method.upper()]
    if args.grpc:
        answers = [(topic, _ask(args, topic, time_ms, method))]
    else:
        answers = _search(args, topic, time_ms, method)
    shown = _as_json if args.json else _as_text
    print("\n".join(shown(name, time_ms, found) for name, found in answers))
    return 0


def _ask(args: argparse.Namespace, topic: str, time_ms: int, method: SearchMethod) -> Found:
    with seek_service(args) as client:
        return client.by_time(topic, time_ms, method=method)


def _search(
    args: argparse.Namespace, topic: str, time_ms: int, method: SearchMethod
) -> list[tuple[str, Found]]:
    """What is found in the topic, or in each partition of a partitioned one."""
    from ..finder import Finder

    reader = reader_of(args)
    try:
        return [
            (name, Finder(reader.log(name)).by_time(time_ms, method=method))
            for name in names_in(reader, topic)
        ]
    finally:
        reader.close()


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
