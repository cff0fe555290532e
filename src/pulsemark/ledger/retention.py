"""Cleaning by broker time and size, and the expiry of messages.

Retention, as in Pulsar: an entry may be removed once every durable subscription has acknowledged
it (or the topic has none) and compaction has read it; until then it stays, whatever its age. An
entry that may be removed is removed as soon as it is older than the retention time, or the topic is
larger than the retention size. A limit of None (Pulsar's -1) is never exceeded, one of 0 at once.

The age of an entry is that of its append time in the record header: the broker's clock when it took
the entry, with stamps or without, never decreasing within a topic. So a producer's clock can
neither delay cleaning nor hurry it. Sizes are those of the records on disk. Whole segments are
removed with their files, and the segment in which the cut falls loses its first entries (Pulsar
removes whole ledgers only).

Message expiry (TTL) does not remove entries: it says up to where a subscription may skip messages
that it has not acknowledged. It uses the same append times, with stamps and without. A producer's
publish time counts for searching, but not here: messages of a clock that is slow would expire as
they come, and those of a clock that is fast would stay too long.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from operator import attrgetter

from ..records import record
from .entry import RecordHead
from .limits import MAX_TIME_MS
from .position import EARLIEST, Position
from .run import DamagedRecordError, Run
from .store import SEEN_PROPERTY_KIND
from .topic_log import TopicLog
from .writer import ManagedLedger

_SEEN = struct.Struct("<3Q")
_AHEAD_MS = 1000
"""Append times less than this in the future need no note (`first_seen`)."""


def retention_cut(
    log: TopicLog,
    *,
    now_ms: int,
    retention_time_ms: int | None,
    retention_size_bytes: int | None,
    acked: Position | None,
    seen: Seen | None = None,
) -> Position:
    """The first entry to keep; all entries before it may be removed. ``end_position``: all.

    A limit of None keeps all, 0 nothing. ``acked`` is the slowest mark delete, None without a
    subscription. ``seen``: up to where append times are in the future, and when that was seen.
    Raises ValueError: a limit or the time is negative, or the time above 2^63-1.
    """
    _check_now(now_ms)
    if min(retention_time_ms or 0, retention_size_bytes or 0) < 0:
        raise ValueError("a retention limit must be None, 0 or more")
    first = log.first_position
    if first is None:
        return log.end_position
    cut = first
    if retention_time_ms is not None:
        cut = max(cut, cut_by_time(log, now_ms, retention_time_ms))
        if seen is not None and now_ms - seen.time_ms > retention_time_ms:
            cut = max(cut, seen.end)
    if retention_size_bytes is not None:
        cut = max(cut, size_cut(log, retention_size_bytes))
    if acked is not None:
        cut = min(cut, log.next_position(acked))
    return cut


def retention_due(
    ledger: ManagedLedger,
    *,
    now_ms: int,
    retention_time_ms: int | None,
    retention_size_bytes: int | None,
    claim: Position | None,
) -> Position | None:
    """The first entry that `apply_retention` would keep; None: it would cut nothing. Blocks."""
    _check_now(now_ms)
    cursors = tuple(ledger.cursors.values())
    marks = [cursor.mark_delete for cursor in cursors if cursor.durable]
    if claim is not None:
        marks.append(claim)
    cut = retention_cut(
        ledger,
        now_ms=now_ms,
        retention_time_ms=retention_time_ms,
        retention_size_bytes=retention_size_bytes,
        acked=min(marks, default=None),
        seen=first_seen(ledger, now_ms) if retention_time_ms else None,
    )
    first = ledger.first_position
    return cut if first is not None and cut > first else None


def apply_retention(
    ledger: ManagedLedger,
    *,
    now_ms: int,
    retention_time_ms: int | None,
    retention_size_bytes: int | None,
    claim: Position | None,
) -> int:
    """Remove the entries before `retention_cut`; returns how many. Blocks.

    Safe beside the thread that uses the cursors: the place of each cursor is read once. Entries
    acknowledged at that moment may be removed, even if a cursor is moved back or created meanwhile.
    Subscriptions that are not durable hold no entries back, as in Pulsar. ``claim`` says what
    compaction still needs, as a mark delete; the caller keeps it from changing meanwhile:
    ``with claim_kept(ledger) as claim`` (see `compaction.current_view`). Raises what
    `retention_cut` and `ManagedLedger.truncate_head` do.
    """
    cut = retention_due(
        ledger,
        now_ms=now_ms,
        retention_time_ms=retention_time_ms,
        retention_size_bytes=retention_size_bytes,
        claim=claim,
    )
    return 0 if cut is None else ledger.truncate_head(cut)


def _check_now(now_ms: int) -> None:
    if not 0 <= now_ms <= MAX_TIME_MS:
        raise ValueError(f"now_ms must be from 0 to {MAX_TIME_MS}, not {now_ms!r}")


@record(frozen=True)
class Seen:
    """The entries before `end` are at least as old as `time_ms`; their append times are in the
    future.
    """

    time_ms: int
    """When they were seen, by the broker's clock."""
    end: Position
    """One past the last entry that existed then."""


def first_seen(ledger: ManagedLedger, now_ms: int) -> Seen | None:
    """When entries were first seen whose append times are in the future; None: no entry's is.

    If the clock went a day ahead and back, new entries get tomorrow's times for a day. So the
    metadata store notes when that was first seen, and how far the log went: the entries up to there
    are at least that old. A note stays until they are removed. Blocks. Raises CatalogError.
    """
    catalog, key = ledger.store.catalog, str(ledger.topic_id)
    stored = catalog.get(SEEN_PROPERTY_KIND, key)
    first, end, segments = ledger.first_position, ledger.end_position, ledger.segments()
    if stored is not None and len(stored) == _SEEN.size and first is not None:
        time_ms, ledger_id, entry_id = _SEEN.unpack(stored)
        seen = Seen(time_ms, Position(ledger_id, entry_id))
        if first < seen.end and time_ms <= now_ms:
            return seen
    if segments and segments[-1].append_time_max_ms > now_ms + _AHEAD_MS:
        catalog.put(SEEN_PROPERTY_KIND, key, _SEEN.pack(now_ms, *end))
        return Seen(now_ms, end)
    if stored is not None:
        catalog.delete(SEEN_PROPERTY_KIND, key)
    return None


def expire_position(log: TopicLog, *, now_ms: int, ttl_ms: int) -> Position | None:
    """The last of the entries older than ``ttl_ms``; None: no entry is. Raises ValueError."""
    if ttl_ms <= 0:
        raise ValueError(f"ttl_ms must be positive, not {ttl_ms}")
    first = log.first_position
    if first is None:
        return None
    alive = cut_by_time(log, now_ms, ttl_ms)
    return log.previous_position(alive) if alive > first else None


def cut_by_time(log: TopicLog, now_ms: int, retention_time_ms: int) -> Position:
    """The first entry that is not older than the retention time."""
    end = log.end_position  # read first: entries appended meanwhile are not too old
    if retention_time_ms == 0:
        return end
    oldest_ms = now_ms - retention_time_ms
    segments = log.segments()
    first = bisect_left(segments, oldest_ms, key=attrgetter("append_time_max_ms"))
    for segment in segments[first:]:
        row = _first_row_appended(segment, oldest_ms)
        if row < segment.entry_count:
            return segment.position(row)
    return end


def size_cut(log: TopicLog, size_bytes: int) -> Position:
    """The first entry that lies wholly within the last ``size_bytes`` of the topic."""
    cut = log.end_position
    for segment in reversed(log.segments()):
        end = segment.row(segment.entry_count - 1).end_offset
        row = _first_row_at(segment, end - size_bytes)
        if row < segment.entry_count:
            cut = segment.position(row)
        if row > segment.cut_rows:
            break
        size_bytes -= end - segment.row(row).offset
    return cut


def size_bytes(log: TopicLog, start: Position = EARLIEST) -> int:
    """Bytes on disk of the topic's entries from ``start`` on."""
    total = 0
    for segment, first, end in log.stretches(start):
        total += segment.row(end - 1).end_offset - segment.row(first).offset
    return total


def _first_row_at(segment: Run, offset: int) -> int:
    """The first row whose record begins at or after ``offset``; else ``entry_count``."""
    rows = range(segment.cut_rows, segment.entry_count)
    return segment.cut_rows + bisect_left(rows, offset, key=lambda row: segment.row(row).offset)


def _first_row_appended(segment: Run, time_ms: int) -> int:
    """The first row appended at ``time_ms`` or later; a damaged one counts as the next."""
    low, high = segment.cut_rows, segment.entry_count
    while low < high:
        middle = (low + high) // 2
        row, head = _next_head(segment, middle, high)
        if head is None or head.append_time_ms >= time_ms:
            high = middle
        else:
            low = row + 1
    return low


def _next_head(segment: Run, row: int, end: int) -> tuple[int, RecordHead | None]:
    """The first row from ``row`` on whose head is readable."""
    while row < end:
        try:
            return row, segment.head(row)
        except DamagedRecordError:
            row += 1
    return row, None
