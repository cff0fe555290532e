"""Where a topic's next entry goes: everything an append goes by and changes.

An append changes it under the store's lock, in one run of assignments (see `pending`). What begins
or ends a segment puts another tail in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..limits import MAX_RUN_MESSAGES
from ..options import StoreOptions
from ..run import Run

MAX_PENDING_ENTRIES = 128 * 1024
"""Appends wait while more are not yet durable: as many a recovery may have to read again."""


@dataclass(slots=True)
class Tail:
    """The end of a topic, entries included that are not yet durable."""

    ledger_id: int
    segment: Run | None
    """Where the next entry goes; None: it begins one."""
    entry_id: int
    """Of the next entry."""
    offset: int
    """Of the next entry in the segment; 0: the segment's header comes first."""
    next_index: int
    stamp_floor_ms: int
    """The last append time: no later one is below."""
    entry_time_max_ms: int
    """The highest entry time (PIP-70) so far."""
    ledger_bytes: int
    ledger_age_ms: int
    """How far the clock went on since the ledger began; steps back do not count."""
    clock_ms: int
    """What the clock said at the last append."""
    epoch: int
    needs_ledger_id: bool = False
    """``ledger_id`` is of a ledger that has ended, and no other id could be had."""

    @property
    def assigned_count(self) -> int:
        """Entries of the segment that have got their number."""
        return self.entry_id - self.segment.first_entry_id if self.segment is not None else 0


NOTHING, SEGMENT, LEDGER = range(3)
"""What an entry is the first one of."""


def what_begins(
    tail: Tail, size_bytes: int, messages: int, age_ms: int, options: StoreOptions
) -> int:
    """Whether an entry of that size is to begin a SEGMENT or LEDGER, or NOTHING."""
    segment = tail.segment
    if segment is None:
        return LEDGER
    offset = tail.offset
    if offset == 0:  # it has just been begun for such an entry, however large that is
        return NOTHING
    if (
        tail.entry_id >= options.ledger_entries
        or tail.ledger_bytes + size_bytes > options.ledger_size_bytes
        or age_ms >= options.ledger_age_ms
    ):
        return LEDGER
    if (
        offset + size_bytes > options.segment_size_bytes
        or tail.next_index - segment.first_index + messages > MAX_RUN_MESSAGES
    ):
        return SEGMENT
    return NOTHING
