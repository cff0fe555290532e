"""What of a topic a subscription has acknowledged: its mark delete position, and more above it.

`Cursor` changes it and keeps it; here are the questions about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from ..position import LATEST, Position
from .cursor_log import (
    CursorLog,
    count_marked,
    data_messages,
    entries_between,
    knows_messages,
    messages_between,
)
from .partial_batches import PartialBatches, words_of
from .position_ranges import BLOCK_ENTRIES, PositionRanges


class AckedPlace:
    """The mark delete position, acknowledged entries above it, partly acknowledged batches."""

    __slots__ = ("_acked", "_batches", "_log", "_tail_cuts", "mark_delete")

    def __init__(self, log: CursorLog, mark_delete: Position) -> None:
        self._log = log
        self.mark_delete = mark_delete
        """Everything up to and with this position is acknowledged."""
        # Holds no reference to this object itself, which would be a reference cycle.
        self._acked = PositionRanges(partial(messages_between, log), partial(knows_messages, log))
        self._tail_cuts = log.tail_cuts
        self._batches = PartialBatches()

    def remaining_in_batch(self, position: Position) -> list[int] | None:
        """The ack_set words of a batch that is acknowledged in part; else None."""
        bits = self._batches.get(position)
        return None if bits is None or position in self._acked else words_of(bits)

    @property
    def has_parts(self) -> bool:
        """Whether any batch is acknowledged in part."""
        return bool(self._batches.size_bytes)

    def acks_nothing_from(self, first: Position) -> bool:
        """Whether no whole entry at or after ``first`` is acknowledged; False: it is not known."""
        return first > self.mark_delete and not self._acked

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or position in self._acked

    @property
    def first_unacked(self) -> Position:
        """The first entry to deliver; the end of the log if there is none."""
        # Not always right after the mark delete position: the log's head may have been cut.
        return self.next_unacked(self.mark_delete)

    def next_unacked(self, after: Position) -> Position:
        """The first unacknowledged entry after ``after``; the end of the log if there is none."""
        position = self._log.next_position(max(after, self.mark_delete))
        while True:
            last = self._acked.end_of(position)
            if last is None:
                return position
            position = self._log.next_position(Position(position.ledger_id, last))

    def nth_unacked(self, count: int) -> Position | None:
        """The ``count``-th unacknowledged entry, from 1 on; the last entry if there are fewer.

        None on an empty topic. Control entries do not count.
        """
        passed = 0
        while True:
            found = self._nth_entry(count + passed)
            if found is None:
                return None
            end = Position(found[0], found[1] + 1)
            between = self._log.control_positions(self.mark_delete, end)
            control = sum(not self.is_acked(position) for position in between)
            if control == passed:
                return found
            passed = control

    def _nth_entry(self, count: int) -> Position | None:
        """As `nth_unacked`, with control entries. Steps over whole blocks of entries."""
        log = self._log
        start = self._settle()
        for at, bits in self._acked.blocks_after(self.mark_delete):
            before = log.count_entries(start, at) if start < at else 0
            if before >= count:
                break
            count -= before
            start = max(start, at)
            block_end = Position(at.ledger_id, at.entry_id + BLOCK_ENTRIES)
            acked = count_marked(log, start, bits >> (start.entry_id - at.entry_id))
            here = log.count_entries(start, block_end) - acked
            if here >= count:
                unacked = (p for p in entries_between(start, block_end) if p not in self._acked)
                return next(islice(unacked, count - 1, None))
            count -= here
            start = block_end
        return log.entry_after(start, count - 1) or log.last_position

    @property
    def backlog_messages(self) -> int:
        """Messages not yet acknowledged, batches counted whole; control entries do not count.

        Raises what reading the log raises: only this counts messages that are not in memory.
        """
        first = self._settle()
        return max(data_messages(self._log, first, LATEST) - self._acked.weight, 0)

    @property
    def backlog_entries(self) -> int:
        """Entries not yet acknowledged, a batch counted once; control entries do not count."""
        first = self._settle()
        open_control = sum(p not in self._acked for p in self._log.control_positions(first, LATEST))
        blocks = self._acked.blocks_after(self.mark_delete)
        acked = sum(count_marked(self._log, *block) for block in blocks)
        return max(self._log.count_entries(first, LATEST) - acked - open_control, 0)

    @property
    def acked_ranges(self) -> int:
        """Ranges of entries acknowledged after the mark delete position."""
        return len(self._acked)

    def acked_runs(self) -> Iterator[tuple[int, int, int]]:
        """Those ranges in order: the ledger, and the first and the last entry."""
        return iter(self._acked)

    def _settle(self) -> Position:
        """Stop counting entries removed from the log; returns the first entry above mark delete."""
        first = self._log.next_position(self.mark_delete)
        if self._tail_cuts != self._log.tail_cuts:
            # The log's tail may have been cut.
            self._tail_cuts = self._log.tail_cuts
            self._acked.recount()
        if self._acked:
            self._acked.remove_up_to(Position(first[0], first[1] - 1), recount=True)
        return first
