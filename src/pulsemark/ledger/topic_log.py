"""Reading a topic's chain of segments: positions, entries and index across ledgers.

ManagedLedger is a TopicLog that also appends; FolderReader gives read-only ones. Only durable
entries are visible. Reading takes no lock: the list of segments is replaced as a whole.

Entries may be removed while they are read. Then the reader misses bytes, which looks like damage.
So an entry is damaged only if it was not removed (`Run.is_gone`). Reading goes on after those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from .control_positions import ControlPositions
from .entry import Entry
from .epochs import EpochHistory, EpochStart, epoch_starts
from .errors import BeingReadError, CorruptEntryError
from .position import Position
from .rows import DamagedRecordError
from .run import Run, run_after

SLICE_ENTRIES = 32
"""The entries of one slice, while commits are pending (`read_turns`)."""
SLICE_ROWS = 1024
"""As `SLICE_ENTRIES`, for `read_stored`: one chunk of the local engine's index."""
UNKNOWN_COUNT = -1
"""A number of messages that is not in memory."""
FIRST_POSITION = attrgetter("first_position")


class ReadableLog(Protocol):
    """What can be read from position to position: a topic's log, or its compacted form."""

    def read(self, start: Position, *, max_entries: int = 100) -> list[Entry]:
        """As `TopicLog.read`."""


class _RemovedError(Exception):
    """The entry was removed while it was read; reading goes on at ``next_position``."""

    def __init__(self, next_position: Position) -> None:
        self.next_position = next_position
        super().__init__(next_position)


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A log as it was at one moment, for an answer that takes several steps.

    Entries that were appended later are not in it. Those that were removed later may be unreadable
    by now: see `TopicLog.still_has`.
    """

    segments: Sequence[Run]
    """Up to the last one with a visible entry."""
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

    # What the log has

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
        """Where each leader epoch that has entries begins, oldest first. Reads their marks."""
        return epoch_starts(self.segments())

    def epoch_history(self) -> EpochHistory:
        """The epochs and their end, for `common_point`. Reads the epochs' marks."""
        runs = self.segments()
        end = runs[-1].next_index if runs else self.next_index
        return EpochHistory(tuple(epoch_starts(runs)), end)

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
            except (DamagedRecordError, FileNotFoundError, BeingReadError) as error:
                if entries:
                    break
                if isinstance(error, BeingReadError):
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
        """Where the entries of [start, end) are: a segment, its first row, one past its last row.

        Without those that were removed, and without a segment that has none of them. ``end`` None
        is the end of the log as it is now.
        """
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
        """Whether the topic of a removed segment was deleted, so that reading cannot go on."""
        return segment.removed and segment in self._segments

    def has_lost(self, snapshot: LogSnapshot) -> bool:
        """As not ``still_has``: asked when entries of the snapshot could not be read."""
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
        """How many messages (indexes) the durable entry at ``position`` has; None: no such entry.

        0 for an entry that took no index.
        """
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

    def is_control(self, position: Position) -> bool:
        """Whether a control entry is at ``position``."""
        return bool(self.controls) and position in self.controls

    def control_positions(self, start: Position, end: Position) -> list[Position]:
        """The positions of the control entries in [start, end)."""
        return self.controls.within(start, min(end, self.end_position)) if self.controls else []

    def control_count(self, start: Position, end: Position) -> int:
        """How many control entries are in [start, end)."""
        return self.controls.count(start, min(end, self.end_position)) if self.controls else 0

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
        """The index at which the log's tail was cut off, at or before an entry that was there.

        ``next_index`` is the index after the entry. None: there was no such cut. Entries removed
        from the head, or lost with their file, are not such a cut: indexes go on after them, while
        the indexes of a cut tail are given again.
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
