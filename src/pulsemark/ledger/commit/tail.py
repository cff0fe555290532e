"""The place of a topic's next entry: everything that an append reads and changes.

An append changes it under the store's lock, in one run of assignments (see `pending`). Beginning or
ending a run replaces the tail by another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..limits import MAX_RUN_MESSAGES
from ..options import StoreOptions
from ..run import Run


@dataclass(slots=True)
class Tail:
    """The end of a topic, including entries that are not yet durable."""

    ledger_id: int
    run: Run | None
    """The run of the next entry; None: it begins a new one."""
    entry_id: int
    """The next entry's id."""
    offset: int
    """The next entry's place in the run; 0: the run's header comes first."""
    next_index: int
    stamp_floor_ms: int
    """The last append time; later ones are never lower."""
    entry_time_max_ms: int
    """The highest entry time (PIP-70) so far."""
    ledger_bytes: int
    ledger_age_ms: int
    """How far the clock advanced since the ledger began; steps back do not count."""
    clock_ms: int
    """The clock's time at the last append."""
    epoch: int
    needs_ledger_id: bool = False
    """``ledger_id`` is that of an ended ledger, because no new id could be reserved."""

    @property
    def assigned_count(self) -> int:
        """Entries of the run that have an entry id assigned."""
        return self.entry_id - self.run.first_entry_id if self.run is not None else 0


NOTHING, RUN, LEDGER = range(3)
"""What a new entry begins."""


def what_begins(
    tail: Tail, size_bytes: int, messages: int, age_ms: int, options: StoreOptions, entries: int = 1
) -> int:
    """Whether an entry of that size is to begin a RUN or LEDGER, or NOTHING.

    For several ``entries`` of that size together: whether one of them is.
    """
    run = tail.run
    if run is None:
        return LEDGER
    offset = tail.offset
    if offset == 0:  # it has just been begun for such an entry, however large that is
        return NOTHING
    if (
        tail.entry_id + entries > options.ledger_entries
        or tail.ledger_bytes + size_bytes > options.ledger_size_bytes
        or age_ms >= options.ledger_age_ms
    ):
        return LEDGER
    if (
        offset + size_bytes > options.segment_size_bytes
        or tail.next_index - run.first_index + messages > MAX_RUN_MESSAGES
    ):
        return RUN
    return NOTHING
