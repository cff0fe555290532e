"""Reading a topic's chain of segments: positions, entries and index across ledgers.

ManagedLedger is a TopicLog that also appends; FolderReader gives read-only ones. Only durable
entries are visible. Reading takes no lock: the list of segments is replaced as a whole.

Entries may be removed while they are read. Then the reader misses bytes, which looks like damage.
So an entry is damaged only if it was not removed (`Run.is_gone`). Reading goes on after those.

**Control entries.**
Which entries of a topic are control entries: consumers' backlogs do not count them.

A log's index counts control entries as messages, and the index files do not distinguish them. So a
topic keeps their positions in memory. To have them again after a restart without reading the whole
log, the metadata store has a note for each topic with control entries: the ledgers that have some.
The note is stored before the first control entry of a ledger is appended, so that a crash cannot
lose one. It also lists the positions in ledgers that have ended; only the others are read again
when the topic is opened. Topics without control entries have no note, and cost nothing.

If the note is lost with the metadata store, backlogs count control entries until a consumer has
gone past them. Nothing else depends on it: dispatchers look at each entry's own kind.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Protocol

from ..metadata import Buffer
from ..records import record
from .entry import Entry, EntryKind
from .epochs import EpochHistory, EpochStart, LedgerExtent, epoch_starts, ledger_extents
from .errors import CorruptEntryError, WouldBlockError
from .limits import MAX_ENTRY_ID
from .position import EARLIEST, Position
from .run import DamagedRecordError, Run, run_after
from .transactions import Transactions, event_in

SLICE_ENTRIES = 32
"""The entries of one slice, while commits are pending (`commit.read_throttle`)."""
SLICE_ROWS = 1024
"""As `SLICE_ENTRIES`, for `read_stored`: one chunk of the local engine's index."""
READ_ENTRIES, READ_BYTES = 1_000, 4 << 20
UNKNOWN_COUNT = -1
"""A number of messages that is not in memory."""
FIRST_POSITION = attrgetter("first_position")


class ReadableLog(Protocol):
    """A log to be read from position to position: a topic's log, or its compacted form."""

    def read(self, start: Position, *, max_entries: int = 100) -> list[Entry]:
        """As `TopicLog.read`."""


class _RemovedError(Exception):
    """The entry was removed while it was read; reading goes on at ``next_position``."""

    def __init__(self, next_position: Position) -> None:
        self.next_position = next_position
        super().__init__(next_position)


@record(frozen=True)
class LogSnapshot:
    """A log as it was at one moment. Entries may be removed since: `TopicLog.still_has`."""

    segments: Sequence[Run]
    """The segments up to the last one with a visible entry."""
    cut_rows: int
    """How many of the first segment's entries were removed."""
    last_count: int
    """How many entries of the last segment were visible."""
    end_position: Position
    next_index: int

    @property
    def first_index(self) -> int:
        """Index of the first message that was still there. May read the index file."""
        return self.segments[0].index_before(self.cut_rows) if self.segments else self.next_index

    def entry_count(self, segment: Run) -> int:
        """How many entries of one of the segments were visible."""
        # Entries are shown in their order. So all segments but the last one were complete.
        return self.last_count if segment is self.segments[-1] else segment.entry_count


class TopicLog:
    """The durable entries of one topic, oldest first."""

    def __init__(self, name: str, segments: Sequence[Run]) -> None:
        self.name = name
        self._segments: tuple[Run, ...] = tuple(segments)
        self.controls, self.tail_cuts = ControlPositions(), 0
        self.transactions: Transactions | None = None
        """None: it has no transactions, or they are not followed."""

    # The log's content

    def segments(self) -> list[Run]:
        """The segments with visible entries, in order."""
        return [s for s in self._segments if s.entry_count > s.cut_rows]

    def all_segments(self) -> Sequence[Run]:
        """All segments, those without visible entries included."""
        return self._segments

    def snapshot(self) -> LogSnapshot:
        """The log as it is now. It costs the same for any number of segments."""
        segments = self._segments
        count = len(segments)
        while count and not segments[count - 1].entry_count:
            count -= 1
        return LogSnapshot(
            segments[:count],
            segments[0].cut_rows if count else 0,
            segments[count - 1].entry_count if count else 0,
            self.end_position,
            self.next_index,
        )

    def still_has(self, snapshot: LogSnapshot) -> bool:
        """Whether no entry of an earlier ``snapshot`` was removed since."""
        count = len(snapshot.segments)
        segments = self._segments[:count]
        if segments != snapshot.segments:
            return False
        return not count or (
            segments[0].cut_rows == snapshot.cut_rows
            and segments[-1].entry_count >= snapshot.last_count
        )

    @property
    def first_position(self) -> Position | None:
        """Position of the first entry; None on an empty topic."""
        for segment in self._segments:
            if segment.entry_count > segment.cut_rows:
                return segment.position(segment.cut_rows)
        return None

    @property
    def last_position(self) -> Position | None:
        """Position of the last durable entry; None on an empty topic."""
        last = self._last_visible()
        if last is None or not last.entry_count:
            return None
        return Position(last.ledger_id, last.end_entry_id - 1)

    @property
    def end_position(self) -> Position:
        """One past the last durable entry."""
        last = self._last_visible()
        return Position(last.ledger_id, last.end_entry_id) if last else Position(0, 0)

    def _last_visible(self) -> Run | None:
        """The segment with the last durable entry; else the first segment, if any."""
        visible = (s for s in reversed(self._segments) if s.entry_count)
        return next(visible, self._segments[0] if self._segments else None)

    @property
    def epoch(self) -> int:
        """The leader epoch of the newest segment."""
        return self._segments[-1].header.epoch if self._segments else 0

    @property
    def epochs(self) -> list[EpochStart]:
        """The start of each leader epoch that has entries, oldest first. Reads their marks."""
        return epoch_starts(self.segments())

    def epoch_history(self) -> EpochHistory:
        """The epochs and their end, for `common_point`. Reads the epochs' marks."""
        runs = self.segments()
        end = runs[-1].next_index if runs else self.next_index
        return EpochHistory(tuple(epoch_starts(runs)), end)

    def ledger_extents(self) -> tuple[LedgerExtent, ...]:
        """The ledgers that have entries, oldest first, for `common_end`."""
        return ledger_extents(self.segments())

    @property
    def first_index(self) -> int:
        """Index of the first message that is still there; ``next_index`` on an empty topic."""
        if not self._segments:
            return 0
        first = self._segments[0]
        return first.index_before(first.cut_rows)

    @property
    def next_index(self) -> int:
        """The index of the next message after the last durable entry."""
        last = self._last_visible()
        return last.next_index if last else 0

    # Reading

    def read(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Entries from the first one at or after ``start``, across ledgers.

        At least one if there is any, whatever ``max_bytes`` says; else []. The list ends before a
        damaged entry. If the very first one is damaged, raises CorruptEntryError, whose
        ``next_position`` is where to go on.
        """
        while True:
            try:
                return self._read(start, max_entries, max_bytes)
            except _RemovedError as removed:
                start = removed.next_position

    def _read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        entries: list[Entry] = []
        segments = self._segments
        number, row = self._locate(segments, start)
        size = 0
        while number < len(segments) and len(entries) < max_entries:
            segment = segments[number]
            if row >= segment.entry_count:
                number, row = run_after(segments, number, row)
                continue
            if entries and size >= max_bytes:
                break
            limit = max_entries - len(entries)
            if self.give_way():
                limit = min(limit, SLICE_ENTRIES)
            try:
                part = segment.read(row, limit, max_bytes - size)
            except (DamagedRecordError, FileNotFoundError, WouldBlockError) as error:
                if entries:
                    break
                if isinstance(error, WouldBlockError):
                    raise
                raise self._unreadable(segment, row, error) from error
            part_size = sum(len(e.stored) for e in part)
            if entries and size + part_size > max_bytes:
                break
            entries += part
            row += len(part)
            size += part_size
        return entries

    def read_stored(
        self, start: Position, *, max_entries: int = 10_000, max_bytes: int = 4 << 20
    ) -> tuple[Position, list[memoryview]]:
        """The stored bytes of consecutive entries, and the first one's position.

        The fast way through a whole log: each entry is only a view on its bytes. All are in one
        segment, so the entry ids count up from the first. At the end: ``end_position``, [].
        Raises CorruptEntryError as ``read`` does.
        """
        while True:
            if self.give_way():
                max_entries = min(max_entries, SLICE_ROWS)
            segments = self._segments
            number, row = self._locate(segments, start)
            while number < len(segments) and row >= segments[number].entry_count:
                number, row = run_after(segments, number, row)
            if number >= len(segments):
                return self.end_position, []
            segment = segments[number]
            first = segment.position(row)
            try:
                return first, segment.read_stored(row, max_entries, max_bytes)
            except (DamagedRecordError, FileNotFoundError) as error:
                failure = self._unreadable(segment, row, error)
                if not isinstance(failure, _RemovedError):
                    raise failure from error
                start = failure.next_position

    def stretches(
        self, start: Position, end: Position | None = None
    ) -> Iterator[tuple[Run, int, int]]:
        """The entries of [start, end): for each segment, its first row, and one past its last."""
        segments = self._segments
        number, row = self._locate(segments, start)
        for segment in segments[number:]:
            first, last = max(row, segment.cut_rows), segment.entry_count
            row = 0
            if end is not None:
                if segment.ledger_id > end[0]:
                    return
                if segment.ledger_id == end[0]:
                    last = min(last, end[1] - segment.first_entry_id)
            if first < last:
                yield segment, first, last

    def _is_deleted(self, segment: Run) -> bool:
        """Whether a removed segment's topic was deleted, so that reading cannot go on."""
        return segment.removed and segment in self._segments

    def has_lost(self, snapshot: LogSnapshot) -> bool:
        """The opposite of ``still_has``; called when entries of the snapshot could not be read."""
        return not self.still_has(snapshot)

    def check_can_read(self) -> None:
        """Raise an error if the log can no longer be read. Nothing here; the store of a
        ManagedLedger may be closed (StoreClosedError), or a parent's (ForkedStoreError).
        """

    def give_way(self) -> bool:
        """Called between slices of reading: wait a little if commits are more urgent, and return
        whether they are. Nothing here; a ManagedLedger lets commits run first.
        """
        return False

    def _unreadable(self, segment: Run, row: int, error: Exception) -> Exception:
        """The error to raise if the entry of ``row`` could not be read."""
        if segment.is_gone(row) and not self._is_deleted(segment):
            rows = segment.entry_count if segment.removed else segment.cut_rows
            return _RemovedError(segment.position(rows))
        if isinstance(error, DamagedRecordError):
            position = segment.position(error.row)
            after = self.next_position(position)
            return CorruptEntryError(self.name, position, after, error.reason)
        return error

    def _locate(self, segments: Sequence[Run], position: Position) -> tuple[int, int]:
        """Segment number and row of the first entry at or after ``position``."""
        number = bisect_right(segments, position, key=FIRST_POSITION) - 1
        if number < 0:
            return 0, segments[0].cut_rows if segments else 0
        segment = segments[number]
        ledger_id, entry_id = position  # also a plain pair
        if segment.ledger_id != ledger_id:
            return number + 1, 0
        # Only the first segment can have a cut head.
        return number, max(segment.cut_rows, entry_id - segment.first_entry_id)

    # Moving along

    def next_position(self, position: Position) -> Position:
        """Position of the entry after ``position``; ``end_position`` after the last."""
        segments = self._segments
        number, row = self._locate(segments, Position(position[0], position[1] + 1))
        while number < len(segments):
            segment = segments[number]
            if row < segment.entry_count:
                return Position(segment.ledger_id, segment.first_entry_id + row)
            number, row = run_after(segments, number, row)
        return self.end_position

    def previous_position(self, position: Position) -> Position:
        """Position of the entry before ``position``; (ledger, -1) for the first."""
        segments = self._segments
        number, row = self._locate(segments, position)
        while number >= 0:
            if number < len(segments):
                segment = segments[number]
                row = min(row, segment.entry_count)
                if row > segment.cut_rows:
                    return segment.position(row - 1)
            number -= 1
            row = segments[number].entry_count if number >= 0 else 0
        return segments[0].position(segments[0].cut_rows - 1) if segments else Position(0, -1)

    def entry_message_count(self, position: Position) -> int | None:
        """The messages (indexes) of the durable entry at ``position``; None: no such entry."""
        found = self._entry_at(position)
        return None if found is None else _messages_of(*found)

    def known_message_count(self, position: Position) -> int | None:
        """As ``entry_message_count``; UNKNOWN_COUNT if that would have to wait for a network."""
        found = self._entry_at(position)
        return None if found is None else _messages_of(*found, may_wait=False)

    def has_entries(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether the entries ``first`` to ``last`` of a ledger are there, all in one segment."""
        segments = self._segments
        number, row = self._locate(segments, Position(ledger_id, first))
        if number >= len(segments):
            return False
        segment = segments[number]
        is_first = segment.ledger_id == ledger_id and segment.first_entry_id + row == first
        return is_first and last < segment.end_entry_id

    def _entry_at(self, position: Position) -> tuple[Run, int] | None:
        """Segment and row of the durable entry at ``position``; None: no such entry."""
        segments = self._segments
        number, row = self._locate(segments, position)
        if number >= len(segments):
            return None
        segment = segments[number]
        at = (segment.ledger_id, segment.first_entry_id + row)
        return (segment, row) if at == position and row < segment.entry_count else None

    def entry_after(self, start: Position, count: int) -> Position | None:
        """Position of the entry ``count`` entries after the first one at or after ``start``."""
        segments = self._segments
        number, row = self._locate(segments, start)
        for segment in segments[number:]:
            here = segment.entry_count - row
            if count < here:
                return segment.position(row + count)
            count -= max(here, 0)
            row = 0
        return None

    def count_entries(self, start: Position, end: Position) -> int:
        """How many entries are in [start, end)."""
        segments = self._segments  # one list for both counts: segments may be removed meanwhile
        return max(0, self._entries_before(segments, end) - self._entries_before(segments, start))

    def _entries_before(self, segments: Sequence[Run], position: Position) -> int:
        number, row = self._locate(segments, position)
        before = sum(s.entry_count for s in segments[:number])
        return before + (min(row, segments[number].entry_count) if number < len(segments) else 0)

    def message_count(self, start: Position, end: Position) -> int:
        """How many messages (indexes) the entries in [start, end) have."""
        return max(0, self.index_before(end) - self.index_before(start))

    @property
    def stable_end(self) -> Position:
        """The last stable position: consumers get the entries before it (`Transactions`)."""
        transactions = self.transactions
        return self.end_position if transactions is None else transactions.stable_end(self)

    @property
    def aborts(self) -> int:
        """How many transactions were aborted since the log was opened, as far as is known."""
        return 0 if self.transactions is None else self.transactions.aborts

    @property
    def stable_index(self) -> int:
        """The index of the first message at or after the last stable position."""
        transactions = self.transactions
        return self.next_index if transactions is None else transactions.stable_index(self)

    def read_stable(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """As ``read``, as consumers may see it: up to the last stable position, and entries of
        aborted transactions as control entries.
        """
        entries = self.read(start, max_entries=max_entries, max_bytes=max_bytes)
        transactions = self.transactions_met(entry.prefix for entry in entries)
        return entries if transactions is None else transactions.shown(entries, self)

    def transactions_met(self, prefixes: Iterable[Buffer]) -> Transactions | None:
        """The transactions, after entries with these stamps were read. Raises OSError.

        A log that is only read has no note, so at the first entry of a transaction it is read.
        """
        if self.transactions is None:
            if not any(event_in(prefix) for prefix in prefixes):
                return None
            self.transactions = Transactions()
        self.transactions.follow(self)
        return self.transactions

    def is_control(self, position: Position) -> bool:
        """Whether consumers skip the entry at ``position``: a control entry, or an aborted one."""
        if self.controls and position in self.controls:
            return True
        return self.transactions is not None and self.transactions.hides(position)

    def control_positions(self, start: Position, end: Position) -> list[Position]:
        """The positions of the entries in [start, end) that consumers skip, in order."""
        end = min(end, self.end_position)
        found = self.controls.within(start, end) if self.controls else []
        if self.transactions is not None:
            found = sorted(found + self.transactions.hidden_positions(start, end))
        return found

    def control_count(self, start: Position, end: Position) -> int:
        """How many messages (indexes) the entries in [start, end) have that consumers skip."""
        end = min(end, self.end_position)
        count = self.controls.count(start, end) if self.controls else 0
        if self.transactions is not None:
            count += self.transactions.hidden_messages(start, end, self)
        return count

    def index_before(self, position: Position) -> int:
        """Index of the first message at or after ``position``."""
        segments = self._segments
        number, row = self._locate(segments, position)
        if number >= len(segments):
            return self.next_index
        segment = segments[number]
        return segment.index_before(row) if row < segment.entry_count else segment.next_index

    def knows_index(self, position: Position) -> bool:
        """Whether ``index_before`` answers without waiting for a network."""
        segments = self._segments
        number, row = self._locate(segments, position)
        run = segments[number] if number < len(segments) else None
        if run is None or not run.may_wait or not 0 < row < run.entry_count:
            return True
        return run.has_row(row - 1)

    def cut_before(self, position: Position, next_index: int) -> int | None:
        """The index at which the log's tail was cut off, at or before an entry; or None.

        ``next_index`` is the index after the entry. Entries removed from the head, or lost with
        their file, are no such cut: the indexes of a cut tail are given again.
        """
        segments = self._segments
        number = bisect_right(segments, position, key=FIRST_POSITION) - 1
        if number >= 0:
            segment = segments[number]
            ledger_id, entry_id = position
            if segment.ledger_id == ledger_id and entry_id < segment.end_entry_id:
                return None
        following = next(iter(segments[number + 1 :]), None)
        if following is None or following.first_index >= next_index:
            return None
        return following.first_index


def _messages_of(segment: Run, row: int, *, may_wait: bool = True) -> int:
    if segment.may_wait and not may_wait and not all(map(segment.has_row, {max(row - 1, 0), row})):
        return UNKNOWN_COUNT
    before = segment.row(row - 1).next_message if row else 0
    return segment.row(row).next_message - before


def entries_of(
    log: ReadableLog,
    start: Position = EARLIEST,
    *,
    end: Position | None = None,
    skip_damaged: bool = False,
) -> Iterator[Entry]:
    """The durable entries of a log, in order, until its present end. Blocks while it reads.

    Entries that are removed meanwhile are left out, those appended before it comes to the end are
    included. `start` is the first entry wanted, or the first one after it; `end` the first that is
    not. `skip_damaged` leaves out damaged entries instead of raising.

    Raises CorruptEntryError (its `next_position` is where to go on), StoreClosedError,
    StoreFailedError, ForkedStoreError, OSError.
    """
    lots = read_on(log, start, (lambda _: None) if skip_damaged else None)
    for entry in chain.from_iterable(lots):
        if end is not None and entry.position >= end:
            return
        yield entry


def read_on(
    log: ReadableLog,
    start: Position,
    on_damage: Callable[[CorruptEntryError], object] | None = None,
) -> Iterator[list[Entry]]:
    """All entries from ``start`` on, up to 1,000 at a time.

    Damaged ones are told to ``on_damage``; without it the first one's CorruptEntryError is raised.
    """
    position = start
    while True:
        try:
            entries = log.read(position, max_entries=READ_ENTRIES)
        except CorruptEntryError as error:
            if on_damage is None:
                raise
            on_damage(error)
            position = error.next_position
            continue
        if not entries:
            return
        yield entries
        position = entries[-1].position.following


MAX_NOTED_ENTRIES = 10_000
"""The most control entries of a ledger that a note lists; the ledger is read again if it has more.
"""
_SHIFT = MAX_ENTRY_ID.bit_length()


Store = Callable[[bytes], None]
"""Stores a topic's note durably. Raises CatalogError."""

#: One object for all topics: most have no control entries.
_NO_LEDGERS: frozenset[int] = frozenset()


class ControlPositions:
    """The positions of a topic's control entries. Changed under the store's lock."""

    def __init__(self, store: Store | None = None) -> None:
        """``store`` None: nothing is noted, as for a log that is only read."""
        self._store = store
        self._keys: list[int] = []
        self.removed_count = 0
        """How many of these entries were removed from the log's head, by this owner."""
        self._noting = threading.Lock()
        self._noted = _NO_LEDGERS
        """The ledgers of which the stored note says that they have control entries."""
        self._doubtful = _NO_LEDGERS
        """Ledgers with control entries that failed: after a crash they may be in the log."""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, position: Position) -> bool:
        key = _key(position)
        at = bisect_left(self._keys, key)
        return self._keys[at : at + 1] == [key]

    def add(self, position: Position) -> None:
        """Add the position of a new control entry."""
        if self._store is not None:
            insort(self._keys, _key(position))

    def within(self, start: Position, end: Position) -> list[Position]:
        """The positions in [start, end), in order."""
        keys = self._keys
        found = keys[bisect_left(keys, _key(start)) : bisect_left(keys, _key(end))]
        return [Position(key >> _SHIFT, key & MAX_ENTRY_ID) for key in found]

    def count(self, start: Position, end: Position) -> int:
        """The number of control entries in [start, end)."""
        keys = self._keys
        return max(0, bisect_left(keys, _key(end)) - bisect_left(keys, _key(start)))

    def drop_before(self, position: Position) -> None:
        """Forget the positions before ``position``, whose entries were removed."""
        removed = bisect_left(self._keys, _key(position))
        self._keys = self._keys[removed:]
        self.removed_count += removed

    def cut_at(self, end: Position) -> None:
        """Forget the positions from the log's end on."""
        self._keys = self._keys[: bisect_left(self._keys, _key(end))]

    def failed_after(self, end: Position) -> None:
        """Forget positions from ``end`` on: not durable, but a crash may show them still."""
        before = self._keys
        self.cut_at(end)
        self._doubtful |= {key >> _SHIFT for key in before[len(self._keys) :]}

    # The note

    def is_noted(self, ledger_id: int) -> bool:
        """Whether control entries can be appended to a ledger."""
        return self._store is None or ledger_id in self._noted

    def note(self, ledger_id: int, open_ledger_id: int, segments: Sequence[Run]) -> None:
        """Note, before the first one, that a ledger has control entries. Raises CatalogError."""
        with self._noting:
            if not self.is_noted(ledger_id):
                first = segments[0].ledger_id if segments else -1
                kept = frozenset(each for each in self._noted if each >= first)
                self._write(kept | {ledger_id}, kept - {open_ledger_id})

    def close(self) -> None:
        """Note all positions, as no entry follows. Raises CatalogError."""
        with self._noting:
            if self._noted:
                self._write(self._noted, self._noted)

    def _write(self, ledgers: frozenset[int], ended: frozenset[int]) -> None:
        assert self._store is not None
        listed: dict[str, list[int] | None] = {str(ledger_id): None for ledger_id in ledgers}
        for ledger_id in ended - self._doubtful:
            found = self.within(Position(ledger_id, 0), Position(ledger_id + 1, 0))
            if len(found) <= MAX_NOTED_ENTRIES:
                listed[str(ledger_id)] = [position.entry_id for position in found]
        self._store(json.dumps(listed, separators=(",", ":")).encode())
        self._noted = ledgers

    def load(self, note: bytes, segments: Sequence[Run]) -> None:
        """Take the positions from a note, and read ledgers that it lacks. Raises OSError."""
        listed = _listed(note)
        there = [s for s in segments if s.ledger_id in listed]
        self._noted = frozenset(s.ledger_id for s in there)
        for segment in there:
            ids = listed[segment.ledger_id]
            first, end = segment.first_entry_id + segment.cut_rows, segment.end_entry_id
            found = _read(segment) if ids is None else [i for i in ids if first <= i < end]
            self._keys += [_key(Position(segment.ledger_id, entry_id)) for entry_id in found]
        self._keys.sort()


def _key(position: Position) -> int:
    ledger_id, entry_id = position
    return (max(ledger_id, -1) << _SHIFT) + min(max(entry_id, 0), MAX_ENTRY_ID)


def _listed(note: bytes) -> dict[int, list[int] | None]:
    try:
        listed = {int(ledger_id): ids for ledger_id, ids in json.loads(note).items()}
    except (ValueError, AttributeError):
        return {}
    are_good = (ids is None or all(type(i) is int for i in ids) for ids in listed.values())
    return listed if all(are_good) else {}


def _read(segment: Run) -> list[int]:
    """The entry ids of a run's control entries; a damaged entry counts as none."""
    found: list[int] = []
    row = segment.cut_rows
    while row < segment.entry_count:
        try:
            entries = segment.read(row, READ_ENTRIES, READ_BYTES)
        except DamagedRecordError:
            row += 1
            continue
        found += [e.position.entry_id for e in entries if e.kind is EntryKind.CONTROL]
        row += len(entries)
    return found


_DEFAULT = "persistent://public/default/"


def full_topic_name(name: str) -> str:
    """The full name of a topic: `persistent://public/default/orders` for `orders`.

    `tenant/namespace/orders` is completed, too; a name with `://` and an empty one stay as they
    are. Raises ValueError for another number of parts.
    """
    if not name or "://" in name:
        return name
    parts = name.split("/")
    if not all(parts) or len(parts) not in (1, 3):
        raise ValueError(
            f"a topic's name is of the form topic, tenant/namespace/topic or "
            f"persistent://tenant/namespace/topic, not {name!r}"
        )
    return f"{_DEFAULT}{name}" if len(parts) == 1 else f"persistent://{name}"
