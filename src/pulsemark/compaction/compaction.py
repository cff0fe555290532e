"""Topic compaction, as in Pulsar: a view beside the log that holds the latest message per key.

The log itself stays as it is, and cleaning it never trims the view. `keys` says which entries are
kept, `view_format` has the view's bytes, `compacted_log` reads it, and `current_view` says which
view counts; docs/compaction.md explains the whole.

There are two passes, because payloads are much larger than positions. The first reads everything up
to the horizon (the last entry, or ``until``) and notes the latest position of each key. The second
copies the kept entries: prefix and index as they are, batches with holes. Both read the compacted
form of the topic: the last view, and the log after its horizon. So compacted entries are not read
again from the log, and are not lost when the log is trimmed.

docs/formats.md has the steps, and which view counts after a crash in or after each.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from ..ledger.entry import Entry
from ..ledger.errors import CompactionFailedError, CorruptEntryError
from ..ledger.position import EARLIEST, Position
from ..ledger.store import ViewSummary
from ..ledger.topic_log import FIRST_POSITION, TopicLog
from ..ledger.writer import ManagedLedger
from ..metadata import peek, read_message_metadata
from ..records import record
from .batch_rewrite import open_batch, rewrite_batch
from .compacted_log import CompactedLog
from .current_view import (
    compacting,
    current_view,
    remove_other_views,
    state_of,
    store_of,
    switch_view,
    view_name,
)
from .keys import LatestPerKey, Limits, is_batch, is_record_set, with_holes
from .view import CompactedView, CountingWriter, Key, ViewWriter

MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024
"""Batches that are larger, decompressed, are kept whole. Far above what clients send."""

DEFAULT_LIMITS = Limits(MAX_UNCOMPRESSED_BYTES)
READ_ENTRIES = 1000
_READ_BYTES = 1 << 20


@record(frozen=True)
class CompactionReport:
    """The result of a compaction."""

    topic: str
    changed: bool
    """False: the log had nothing after the old view's horizon, so the old view stays."""
    horizon: Position | None
    """The last entry that the view covers; None: the topic never had any."""
    generation: int = 0
    """The generation of the view that counts now; 0: no view does."""
    first_index: int = 0
    """The first index of the view's range; messages before it were deleted or are too old."""
    entries_kept: int = 0
    """Entries of the view that counts now. The fields below are about this compaction only."""
    entries_rewritten: int = 0
    """How many of those are batches with new holes."""
    keys: int = 0
    """Keys with a message in the view, not counting those in encrypted batches."""
    entries_read: int = 0
    messages_read: int = 0
    tombstones: int = 0
    unkeyed: int = 0
    unreadable: int = 0
    """Entries that could not be parsed, and were kept whole."""
    damaged: tuple[Position, ...] = ()
    """Entries that could not be read. For their keys, an older message counts as the latest."""
    messages_missing: int = 0
    """Messages missing from the old view, or from the log between its horizon and this one: they
    were in damaged entries, or lost with their ledger's file."""
    view_lost: bool = False
    """There was an old view, and no part of it could be opened. Keys that were only in it are lost,
    and this view begins with what the log still has."""
    bytes_read: int = 0
    """Bytes read by the first pass; the second reads only what is kept."""
    bytes_written: int = 0
    duration_s: float = 0.0


def compact(
    ledger: ManagedLedger,
    *,
    until: Position | None = None,
    limits: Limits = DEFAULT_LIMITS,
    again: bool = False,
    check: Callable[[], None] = lambda: None,
    spent: Callable[[int], None] = lambda size_bytes: None,
) -> CompactionReport:
    """Make a new compacted view of a topic, and make it current. Blocks; may take long.

    Args:
        ledger: the topic.
        until: the last entry to take in, not before the old horizon; None: the last.
        limits: what is kept.
        again: also if the log has nothing new, by new ``limits``.
        check: called between reads; an error from it ends the compaction, and the old view stays.
        spent: called with the bytes read or written since, before the next ``check``.

    Raises CompactionRunningError, CompactionFailedError (entries were removed before they were
    copied), CompressionUnavailableError, StoreClosedError, FencedError, CatalogError, OSError.
    """
    ledger.check_can_read()
    with compacting(ledger):
        old = current_view(ledger)
        remove_other_views(store_of(ledger), ledger.topic_id, state_of(ledger).generation)
        horizon = _horizon(ledger, until)
        if old is not None and (horizon is None or horizon <= old.horizon):
            horizon = old.horizon if again else None
        if horizon is None:
            return _unchanged(ledger.name, old)
        run = _Compaction(ledger, old, horizon, limits, check, spent, state_of(ledger).view_lost)
        run.read()
        generation = state_of(ledger).generation + 1
        writer = _written(ledger, run, generation)
        remove_other_views(store_of(ledger), ledger.topic_id, generation)
        return run.report(writer, generation)


def _written(ledger: ManagedLedger, run: _Compaction, generation: int) -> ViewWriter:
    """Write the view, and make it current."""
    store = store_of(ledger)
    log = store.open_view(view_name(ledger.topic_id, generation))
    try:
        writer = ViewWriter(log, store.options.max_entry_size_bytes)
        run.copy(writer)
        summary = run.finish(writer)
        log.close()
        # The catalog is durable at once, entries may be later: so entries come first.
        store.sync_acknowledged()
        switch_view(ledger, CompactedView(log, ledger.name, generation, summary))
    except BaseException:
        if state_of(ledger).generation != generation:
            with suppress(Exception):
                store.delete_view(log.name)
        raise
    return writer


def estimate(
    log: TopicLog, view: CompactedView | None, limits: Limits = DEFAULT_LIMITS
) -> CompactionReport:
    """Return the report that `compact` would give, and write nothing. It reads as much.

    Raises CompactionFailedError (entries were removed before they were read a second time),
    CompressionUnavailableError.
    """
    horizon = _horizon(log, None)
    if horizon is None or (view is not None and horizon <= view.horizon):
        return _unchanged(log.name, view)
    run = _Compaction(log, view, horizon, limits, lambda: None, lambda _: None, view_lost=False)
    run.read()
    writer = CountingWriter()
    run.copy(writer)
    return run.report(writer, 0)


def _unchanged(topic: str, view: CompactedView | None) -> CompactionReport:
    if view is None:
        return CompactionReport(topic, changed=False, horizon=None)
    return CompactionReport(
        topic,
        changed=False,
        horizon=view.horizon,
        generation=view.generation,
        entries_kept=view.summary.entry_count,
    )


def _horizon(log: TopicLog, until: Position | None) -> Position | None:
    """The last entry, not after ``until``, nor in or after an open transaction."""
    first, last = log.first_position, log.last_position
    if first is None or last is None:
        return None
    end = log.stable_end if until is None else min(until.following, log.stable_end)
    if end <= last:
        last = log.previous_position(end)
    return last if last >= first else None


class _Compaction:
    """One run, up to a horizon after that of the old view."""

    def __init__(
        self,
        log: TopicLog,
        old: CompactedView | None,
        horizon: Position,
        limits: Limits,
        check: Callable[[], None],
        spent: Callable[[int], None],
        view_lost: bool,
    ) -> None:
        self._log = log
        self._old = old
        self._horizon = horizon
        self._check = check
        self._spent = spent
        self._view_lost = view_lost
        self._started_s = time.perf_counter()
        self._source = CompactedLog(log, lambda: old)
        self._segments = log.segments()
        self._latest = LatestPerKey(limits)
        self._max_bytes = limits.max_uncompressed_bytes
        self._keys = 0
        self._rewritten = 0
        self._damaged: list[Position] = []
        self._missing = 0 if old is None else old.summary.message_count
        self._next_index = log.first_index if old is None else old.summary.next_index

    def report(self, writer: ViewWriter | CountingWriter, generation: int) -> CompactionReport:
        """The result, after both passes."""
        return CompactionReport(
            self._log.name,
            changed=True,
            horizon=self._horizon,
            generation=generation,
            first_index=self._latest.first_index,
            entries_kept=writer.entry_count,
            entries_rewritten=self._rewritten,
            keys=self._keys,
            **asdict(self._latest.counts),
            damaged=tuple(self._damaged),
            messages_missing=self._missing,
            view_lost=self._view_lost,
            bytes_written=writer.bytes_written,
            duration_s=time.perf_counter() - self._started_s,
        )

    def read(self) -> None:
        """The first pass."""
        position = EARLIEST
        while position <= self._horizon:
            self._check()
            try:
                entries = self._source.read_stable(
                    position, max_entries=READ_ENTRIES, max_bytes=_READ_BYTES
                )
            except CorruptEntryError as error:
                if error.position > self._horizon:
                    break
                self._damaged.append(error.position)
                position = error.next_position
                continue
            if not entries:
                break
            self._spent(sum(len(entry.stored) for entry in entries))
            for entry in entries:
                if entry.position <= self._horizon:
                    self._count_missing(entry)
                    self._latest.take(entry)
            position = entries[-1].position.following
        # Counted now: chunked messages are dropped while they are copied.
        self._keys = self._latest.key_count

    def _count_missing(self, entry: Entry) -> None:
        """Count missing messages: gaps in the log, and what the old view should have."""
        if self._old is not None and entry.position <= self._old.horizon:
            self._missing -= entry.message_count
        else:
            self._missing += max(0, entry.first_index - self._next_index)
            self._next_index = entry.index + 1

    def copy(self, writer: ViewWriter | CountingWriter) -> None:
        """The second pass."""
        window = _Window(self._source, self._check, self._spent)
        for kept in self._latest.kept():
            before_bytes = writer.bytes_written
            entry = window.entry(kept.position)
            body = self._with_holes(entry, kept.places) if kept.places is not None else None
            entry_time_ms, time_max_ms = self._times(entry)
            writer.add(entry, body, entry_time_ms=entry_time_ms, time_max_ms=time_max_ms)
            self._spent(writer.bytes_written - before_bytes)

    def _with_holes(self, entry: Entry, places: list[int]) -> bytes | None:
        """A batch with holes for the members not in ``places``; None: it stays as it is."""
        if is_record_set(peek(entry.prefix)):
            body = with_holes(entry, places, self._max_bytes)
            self._rewritten += body is not None
            return body
        metadata = read_message_metadata(entry.body)
        if not is_batch(metadata):
            return None
        batch = open_batch(metadata, entry.body, self._max_bytes)
        kept = set(places)
        if all(member.hole or place in kept for place, member in enumerate(batch.members)):
            return None
        self._rewritten += 1
        return rewrite_batch(metadata, batch, kept)

    def _times(self, entry: Entry) -> tuple[int, int]:
        """An entry's own time, and the highest time in the log up to it."""
        if self._old is not None and entry.position <= self._old.horizon:
            row = self._old.find(Key.POSITION, entry.position)
            if row is None or row.position != entry.position:
                raise CompactionFailedError(self._log.name, f"{entry.position} is gone")
            return row.entry_time_ms, row.time_max_ms
        own_ms = entry.time_ms
        return own_ms, self._time_max_ms(entry.position)

    def _time_max_ms(self, position: Position) -> int:
        """The highest entry time in the log up to an entry that exists, from the time index."""
        number = bisect_right(self._segments, position, key=FIRST_POSITION) - 1
        segment = self._segments[number]
        return segment.row(position.entry_id - segment.first_entry_id).time_ms

    def finish(self, writer: ViewWriter) -> ViewSummary:
        """End the view."""
        old, horizon = self._old, self._horizon
        if old is not None and horizon == old.horizon:
            return writer.finish(horizon, old.summary.next_index, old.summary.time_max_ms)
        next_index = self._log.index_before(horizon.following)
        return writer.finish(horizon, next_index, self._time_max_ms(horizon))


class _Window:
    """Entries read in order; it reads more at a time if more are needed together."""

    def __init__(
        self, log: CompactedLog, check: Callable[[], None], spent: Callable[[int], None]
    ) -> None:
        self._log = log
        self._check = check
        self._spent = spent
        self._entries: dict[Position, Entry] = {}
        self._size = 16
        self._used = 0

    def entry(self, position: Position) -> Entry:
        """The entry at ``position``, which must still be there."""
        entry = self._entries.get(position)
        if entry is None:
            entry = self._fetch(position)
        self._used += 1
        return entry

    def _fetch(self, position: Position) -> Entry:
        self._check()
        dense = self._used * 2 >= len(self._entries)
        self._size = min(self._size * 2, READ_ENTRIES) if dense else max(self._size // 2, 1)
        try:
            entries = self._log.read(position, max_entries=self._size, max_bytes=_READ_BYTES)
        except CorruptEntryError as error:
            raise CompactionFailedError(self._log.name, str(error)) from error
        if not entries or entries[0].position != position:
            raise CompactionFailedError(self._log.name, f"{position} is gone")
        self._spent(sum(len(entry.stored) for entry in entries))
        self._entries = {entry.position: entry for entry in entries}
        self._used = 0
        return entries[0]
