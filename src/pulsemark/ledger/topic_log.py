"""A topic's chain of segments, read: positions, entries and index across ledgers.

ManagedLedger is one that also appends; FolderReader gives read-only ones. Only durable entries
are visible. Reading takes no lock: the list of segments is replaced as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .entry import Entry
from .errors import CorruptEntryError
from .position import Position
from .segment import DamagedRecordError, Segment


class TopicLog:
    """The durable entries of one topic, oldest first."""

    def __init__(self, name: str, segments: Sequence[Segment]) -> None:
        self.name = name
        self._segments: tuple[Segment, ...] = tuple(segments)

    # What there is

    def segments(self) -> list[Segment]:
        """The segments with visible entries, in order."""
        return [s for s in self._segments if s.entry_count > s.cut_rows]

    @property
    def first_position(self) -> Position | None:
        """Position of the first entry; None on an empty topic."""
        for segment in self._segments:
            if segment.entry_count > segment.cut_rows:
                return Position(segment.ledger_id, segment.first_entry_id + segment.cut_rows)
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

    def _last_visible(self) -> Segment | None:
        """The segment with the last durable entry; without one the first segment, if any."""
        visible = (s for s in reversed(self._segments) if s.entry_count)
        return next(visible, self._segments[0] if self._segments else None)

    @property
    def epoch(self) -> int:
        """The leader epoch of the newest segment."""
        return self._segments[-1].header.epoch if self._segments else 0

    @property
    def first_index(self) -> int:
        """Index of the first message still there; ``next_index`` on an empty topic."""
        if not self._segments:
            return 0
        first = self._segments[0]
        return first.index_before(first.cut_rows)

    @property
    def next_index(self) -> int:
        """Index the message behind the last durable entry gets."""
        last = self._last_visible()
        return last.next_index if last else 0

    # Reading

    def read(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Entries from the first one at or behind ``start``, across ledgers.

        At least one if there is any, else [], whatever ``max_bytes`` says. A damaged entry ends
        the list before it; where it would be the very first, CorruptEntryError is raised, whose
        ``next_position`` is where to go on.
        """
        entries: list[Entry] = []
        segments = self._segments
        number, row = self._locate(segments, start)
        size = 0
        while number < len(segments) and len(entries) < max_entries:
            segment = segments[number]
            if row >= segment.entry_count:
                number, row = number + 1, 0
                continue
            if entries and size >= max_bytes:
                break
            try:
                part = segment.read(row, max_entries - len(entries), max_bytes - size)
            except DamagedRecordError as damage:
                if entries:
                    break
                raise self._corrupt(segments, number, damage) from damage
            if entries and size + sum(len(e.stored) for e in part) > max_bytes:
                break
            entries += part
            row += len(part)
            size += sum(len(e.stored) for e in part)
        return entries

    def read_stored(
        self,
        start: Position,
        *,
        max_entries: int = 10_000,
        max_bytes: int = 4 << 20,
        mapped: bool = False,
    ) -> tuple[Position, list[memoryview]]:
        """The stored bytes of entries that follow one another, and the first one's position.

        The fast way through a whole log: no object per entry but a view on its bytes. All are of
        one segment, so the entry ids count up from the first. At the end: ``end_position``, [].
        ``mapped`` gives views on the mapped file: no copy, but a disk that fails under it ends
        the process instead of raising OSError.
        Raises CorruptEntryError as ``read`` does.
        """
        segments = self._segments
        number, row = self._locate(segments, start)
        while number < len(segments):
            segment = segments[number]
            if row < segment.entry_count:
                first = Position(segment.ledger_id, segment.first_entry_id + row)
                try:
                    stored = segment.read_stored(row, max_entries, max_bytes, mapped=mapped)
                    return first, stored
                except DamagedRecordError as damage:
                    raise self._corrupt(segments, number, damage) from damage
            number, row = number + 1, 0
        return self.end_position, []

    def _corrupt(
        self, segments: Sequence[Segment], number: int, damage: DamagedRecordError
    ) -> CorruptEntryError:
        segment = segments[number]
        position = Position(segment.ledger_id, segment.first_entry_id + damage.row)
        return CorruptEntryError(self.name, position, self.next_position(position), damage.reason)

    def _locate(self, segments: Sequence[Segment], position: Position) -> tuple[int, int]:
        """Segment number and row of the first entry at or behind ``position``."""
        number = bisect_right(segments, position, key=_first_position) - 1
        if number < 0:
            return 0, segments[0].cut_rows if segments else 0
        segment = segments[number]
        if segment.ledger_id != position.ledger_id:
            return number + 1, 0
        # Only the first segment can have a cut head.
        return number, max(segment.cut_rows, position.entry_id - segment.first_entry_id)

    # Moving along

    def next_position(self, position: Position) -> Position:
        """Position of the entry behind ``position``; ``end_position`` behind the last."""
        segments = self._segments
        number, row = self._locate(segments, Position(position[0], position[1] + 1))
        while number < len(segments):
            segment = segments[number]
            if row < segment.entry_count:
                return Position(segment.ledger_id, segment.first_entry_id + row)
            number, row = number + 1, 0
        return self.end_position

    def previous_position(self, position: Position) -> Position:
        """Position of the entry before ``position``; (ledger, -1) before the first."""
        segments = self._segments
        number, row = self._locate(segments, position)
        while number >= 0:
            if number < len(segments):
                segment = segments[number]
                row = min(row, segment.entry_count)
                if row > segment.cut_rows:
                    return Position(segment.ledger_id, segment.first_entry_id + row - 1)
            number -= 1
            row = segments[number].entry_count if number >= 0 else 0
        if not segments:
            return Position(0, -1)
        first = segments[0]
        return Position(first.ledger_id, first.first_entry_id + first.cut_rows - 1)

    def entry_message_count(self, position: Position) -> int | None:
        """How many messages (indexes) the durable entry at ``position`` holds; None: there is none.

        0 for an entry that took no index.
        """
        segments = self._segments
        number, row = self._locate(segments, position)
        if number >= len(segments):
            return None
        segment = segments[number]
        at = (segment.ledger_id, segment.first_entry_id + row)
        if at != position or row >= segment.entry_count:
            return None
        before = segment.row(row - 1).next_message if row else 0
        return segment.row(row).next_message - before

    def entry_behind(self, start: Position, count: int) -> Position | None:
        """Position of the entry ``count`` entries behind the first at or behind ``start``."""
        segments = self._segments
        number, row = self._locate(segments, start)
        for segment in segments[number:]:
            here = segment.entry_count - row
            if count < here:
                return Position(segment.ledger_id, segment.first_entry_id + row + count)
            count -= max(here, 0)
            row = 0
        return None

    def count_entries(self, start: Position, end: Position) -> int:
        """How many entries stand in [start, end)."""
        return max(0, self._entries_before(end) - self._entries_before(start))

    def _entries_before(self, position: Position) -> int:
        segments = self._segments
        number, row = self._locate(segments, position)
        before = sum(s.entry_count for s in segments[:number])
        return before + (min(row, segments[number].entry_count) if number < len(segments) else 0)

    def message_count(self, start: Position, end: Position) -> int:
        """How many messages (indexes) the entries in [start, end) hold."""
        return max(0, self.index_before(end) - self.index_before(start))

    def index_before(self, position: Position) -> int:
        """Index of the first message at or behind ``position``."""
        segments = self._segments
        number, row = self._locate(segments, position)
        if number >= len(segments):
            return self.next_index
        segment = segments[number]
        if row >= segment.entry_count:
            return segment.next_index
        before = segment.row(row - 1).next_message if row else 0
        return segment.first_index + before


def _first_position(segment: Segment) -> Position:
    return segment.first_position
