"""The broker's page for people, at `/`: one HTML file without data.

Its script asks the REST interface for everything it shows, with the credentials that the person
types, so the page itself needs none. The Content-Security-Policy allows exactly its own script and
style, by their hashes, and connections to this broker only. Two routes are not Pulsar's:

    GET /admin/v2/persistent/T/N/TOPIC/entries     query: time, index or position; before, after
    GET /admin/v2/persistent/T/N/TOPIC/timeline    query: points

They read in the executor, and stop when they have read `MAX_READ_BYTES`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from ...compaction.compacted_log import CompactedLog
from ...ledger import CorruptEntryError, Entry, EntryKind, Position, TopicLog
from ...metadata import (
    MessageFormatError,
    PrefixError,
    messages_of,
    peek,
    prefix_fields,
    printable,
    read_message_metadata,
)
from ...metadata.compression import CompressionUnavailableError, DecompressionError
from ..security import needs
from .messages import HttpError, Json, Request, Response
from .paths import open_topic
from .route import TOPIC, Routes, TopicPath
from .stored_messages import shown_place

routes = Routes()

PAGE_TYPE = "text/html; charset=utf-8"


@routes.get("/", needs.OPEN)
async def page(request: Request) -> Response:
    """The broker's page: topics, one topic's timeline, entries by time and by index."""
    return _response()


@cache
def _response() -> Response:
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash_of(text, 'script')}; "
        f"style-src {_hash_of(text, 'style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    )
    return Response(200, text.encode(), PAGE_TYPE, headers)


def _hash_of(text: str, element: str) -> str:
    found = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    assert found is not None, f"page.html has no <{element}>"
    digest = hashlib.sha256(found[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


#: One request reads no more than this and one entry more.
MAX_READ_BYTES = 16 * 1024 * 1024
#: A payload that is larger after decompression is not shown.
MAX_SHOWN_PAYLOAD_BYTES = 1024 * 1024
MAX_AROUND = 50
MAX_POINTS = 500
MAX_SHOWN_MESSAGES = 5
MAX_SHOWN_TEXT = 200
MAX_SHOWN_PREFIX_BYTES = 512
MAX_SHOWN_PROPERTIES = 20
MAX_NUMBER = 2**63 - 1
UNREADABLE = (MessageFormatError, DecompressionError, CompressionUnavailableError)


@routes.get(f"{TOPIC}/entries", needs.topic("PEEK_MESSAGES"))
async def entries(request: Request, path: TopicPath) -> Json:
    """The entry at a time, index or position, and those around it, with prefixes and messages."""
    wanted = [name for name in ("time", "index", "position") if name in request.query]
    if len(wanted) != 1:
        raise HttpError(400, "the query must have exactly one of time, index and position")
    before = _number(request, "before", 5, MAX_AROUND)
    after = _number(request, "after", 5, MAX_AROUND)
    (by,) = wanted
    value = _position(request) if by == "position" else _number(request, by, 0, MAX_NUMBER)
    opened = await open_topic(request, path, what=PARTITIONED)
    log = opened.read_log

    def look() -> dict[str, Any]:
        position, found = _find(log, by, value)
        return {
            "firstIndex": log.first_index,
            "nextIndex": log.next_index,
            "found": found,
            "entries": _around(log, position, before, after),
        }

    return await request.services.run_blocking(look)


@routes.get(f"{TOPIC}/timeline", needs.topic("PEEK_MESSAGES"))
async def timeline(request: Request, path: TopicPath) -> Json:
    """Index, broker time and producer's time of entries that are evenly spread over a topic."""
    points = _number(request, "points", 100, MAX_POINTS)
    opened = await open_topic(request, path, what=PARTITIONED)
    return await request.services.run_blocking(_timeline, opened.ledger, max(points, 2))


def _find(log: TopicLog | CompactedLog, by: str, value: Any) -> tuple[Position, dict[str, Any]]:
    """The place with this time, index or position. `end`: no entry is there yet.

    Raises `HttpError` 404.
    """
    # The finder is imported when it is first used, as by seeks: a broker may never need it.
    from ...finder import IndexOutOfRangeError
    from ...finder.search import finder_of

    if by == "time":
        at_time = finder_of(log).by_time(value)
        return at_time.position, {**_shown_position(at_time.position), "end": at_time.end}
    if by == "index":
        try:
            place = finder_of(log).by_index(value)
        except IndexOutOfRangeError as error:
            raise HttpError(404, str(error)) from error
        shown = {**_shown_position(place.position), "end": False}
        return place.position, {**shown, "batchIndex": place.batch_index}
    is_end = log.entry_message_count(value) is None
    return value, {**_shown_position(value), "end": is_end}


def _around(
    log: TopicLog | CompactedLog, position: Position, before: int, after: int
) -> list[dict[str, Any]]:
    first, last = log.first_position, log.last_position
    if first is None or last is None:
        return []
    start = log.count_entries(first, position)
    numbers = [*range(start, start + after + 1), *range(start - 1, max(start - before, 0) - 1, -1)]
    found = dict(_read(log, first, numbers))
    shown = {number: _shown(each) for number, each in found.items()}
    transactions = log.transactions_met(())
    if transactions is not None:
        positions = [each.position for each in found.values()]
        visible = transactions.visible(positions, log.stable_end)
        for number, each in found.items():
            if each.position not in visible:
                shown[number] = {**_shown_head(each), "uncommitted": True}
    return [shown[number] for number in sorted(shown)]


def _read(
    log: TopicLog | CompactedLog, first: Position, numbers: list[int]
) -> Iterator[tuple[int, Entry | CorruptEntryError]]:
    """Entries by their number from `first`, until `MAX_READ_BYTES` are read."""
    read_bytes = 0
    for number in numbers:
        position = log.entry_after(first, number)
        if position is None:
            continue
        try:
            found = log.read(position, max_entries=1)
        except CorruptEntryError as error:
            yield number, error
            continue
        if found:
            yield number, found[0]
            read_bytes += len(found[0].stored)
        if read_bytes >= MAX_READ_BYTES:
            return


def _timeline(log: TopicLog, points: int) -> dict[str, Any]:
    first = log.first_position
    count = 0 if first is None else log.count_entries(first, log.end_position)
    spread = {round(at * (count - 1) / (points - 1)) for at in range(points)} if count else set()
    found = [] if first is None else list(_read(log, first, sorted(spread)))
    return {
        "entries": count,
        "firstIndex": log.first_index,
        "nextIndex": log.next_index,
        "isComplete": len(found) == len(spread),
        "points": [_point(entry) for _, entry in found if isinstance(entry, Entry)],
    }


def _point(entry: Entry) -> dict[str, Any]:
    point = {**_shown_position(entry.position), "index": entry.index, "time": entry.time_ms}
    if entry.kind is EntryKind.DATA:
        with suppress(MessageFormatError):
            point["publishTime"] = read_message_metadata(entry.body).publish_time
    return point


def _shown_head(entry: Entry | CorruptEntryError) -> dict[str, Any]:
    """An entry without what its producer sent."""
    if isinstance(entry, CorruptEntryError):
        return {**_shown_position(entry.position), "error": str(entry)}
    return {
        **shown_place(entry),
        "sizeBytes": len(entry.stored),
        "prefixHex": bytes(entry.prefix[:MAX_SHOWN_PREFIX_BYTES]).hex(),
    }


def _shown(entry: Entry | CorruptEntryError) -> dict[str, Any]:
    shown = _shown_head(entry)
    if isinstance(entry, CorruptEntryError):
        return shown
    try:
        fields = prefix_fields(entry.prefix)
        shown["prefix"] = {name: _field(value) for name, value in fields.items()}
        if entry.kind is EntryKind.DATA:
            shown.update(_content(entry))
    except (PrefixError, *UNREADABLE) as error:
        shown["error"] = str(error)
    return shown


def _field(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: printable(each) for name, each in value.items()}
    return printable(value)


def _content(entry: Entry) -> dict[str, Any]:
    if bytes(entry.body[:4]) == bytes(4):  # no Pulsar message begins so
        return _record_set(entry)
    metadata = read_message_metadata(entry.body)
    shown = {
        "producer": metadata.producer_name,
        "sequenceId": metadata.sequence_id,
        "publishTime": metadata.publish_time,
    }
    found = messages_of(entry.body, max_bytes=MAX_SHOWN_PAYLOAD_BYTES)
    messages = [_message(one.key, one.properties, one.value) for one in found[:MAX_SHOWN_MESSAGES]]
    return {**shown, "messages": messages}


def _record_set(entry: Entry) -> dict[str, Any]:
    """A record set of a Kafka client. Its times are those of the records."""
    from ...kafka.records import RecordSetError, magic_of, read

    prefix = peek(entry.prefix)
    magic = None if prefix is None else magic_of(prefix.source_format)
    if prefix is None or magic is None:
        raise MessageFormatError("a Kafka record set without the tag of its format", 0)
    try:
        records = read(entry.body, entry.first_index, MAX_SHOWN_PAYLOAD_BYTES)
        first = list(islice(records, MAX_SHOWN_MESSAGES))
    except RecordSetError as error:
        return {"magic": magic, "error": str(error)}
    return {
        "magic": magic,
        "producer": prefix.producer_name,
        "publishTime": max((one.time_ms for one in first if one.time_ms >= 0), default=None),
        "messages": [
            {
                "index": one.offset,
                **_message(
                    None if one.key is None else _text(one.key),
                    {_text(name): _text(value or b"") for name, value in one.headers},
                    one.value,
                ),
            }
            for one in first
        ],
    }


def _message(key: str | None, properties: Mapping[str, str], value: bytes | None) -> dict[str, Any]:
    return {
        "key": None if key is None else key[:MAX_SHOWN_TEXT],
        "properties": {
            name[:MAX_SHOWN_TEXT]: value[:MAX_SHOWN_TEXT]
            for name, value in list(properties.items())[:MAX_SHOWN_PROPERTIES]
        },
        "sizeBytes": 0 if value is None else len(value),
        "text": None if value is None else _text(value),
    }


def _text(value: bytes) -> str:
    return bytes(value[: 4 * MAX_SHOWN_TEXT]).decode("utf-8", "replace")[:MAX_SHOWN_TEXT]


def _shown_position(position: Position) -> dict[str, Any]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        raise HttpError(400, f"{name} must be a number from 0 to {maximum}, not {text[:40]!r}")
    return int(text)


def _position(request: Request) -> Position:
    text = request.query["position"]
    ledger, _, entry = text.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (ledger, entry)):
        raise HttpError(400, f"position must be LEDGER:ENTRY, not {text[:40]!r}")
    return Position(int(ledger), int(entry))


PARTITIONED = "a partitioned topic has no entries of its own: ask for one of its partitions"
