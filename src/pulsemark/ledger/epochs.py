"""Leader epochs: which leader began at which index, and cutting a log's tail back to an index.

Each epoch begins a ledger, so the runs' own headers say which epoch begins at which index;
nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import StaleEpochError
from .position import Position
from .run import Run


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Where a leader epoch begins."""

    epoch: int
    first_index: int
    position: Position


def epoch_starts(runs: Sequence[Run]) -> list[EpochStart]:
    """Where each leader epoch that has entries begins, oldest first."""
    starts: list[EpochStart] = []
    for run in runs:
        epoch = run.header.epoch
        if not starts or epoch > starts[-1].epoch:
            starts.append(EpochStart(epoch, run.first_index, run.first_position))
    return starts


MAX_EPOCH = 2**32 - 1
"""A segment's header has 32 bits for it."""


def check_epoch(topic: str, epoch: int, current: int) -> None:
    """Raise StaleEpochError unless ``epoch`` is above ``current``, ValueError above 2^32-1."""
    if epoch <= current:
        raise StaleEpochError(topic, epoch, current)
    if epoch > MAX_EPOCH:
        raise ValueError(f"a leader epoch must be at most {MAX_EPOCH}, not {epoch}")


@dataclass(frozen=True, slots=True)
class TailCut:
    """Where a log will end: the runs that stay, the last of which is shortened."""

    kept: tuple[Run, ...]
    dropped: tuple[Run, ...]
    last_count: int
    """How many entries stay in the last run that is kept."""

    def make(self) -> None:
        """Shorten the last run. Raises OSError before anything has changed."""
        if self.kept and self.last_count < self.kept[-1].entry_count:
            self.kept[-1].truncate(self.last_count)


def find_cut(runs: Sequence[Run], index: int) -> TailCut:
    """Where all messages from ``index`` on are cut off; changes nothing.

    Raises ValueError where ``index`` lies inside a batch, OSError.
    """
    kept = 0
    while kept < len(runs) and _begins_before(runs[kept], index):
        kept += 1
    if not kept:
        return TailCut((), tuple(runs), 0)
    last = runs[kept - 1]
    row = last.entry_count
    if index < last.next_index:
        row = last.find_message(index - last.first_index, last.entry_count)
        if last.index_before(row) != index:
            raise ValueError(f"index {index} lies inside a batch")
        last.chunk(row)  # read now what `make` needs
    return TailCut(tuple(runs[:kept]), tuple(runs[kept:]), row)


def _begins_before(run: Run, index: int) -> bool:
    """Whether a run has entries before the message with ``index``, or no entries.

    Entries without messages at its beginning are before it, if its first message has that index.
    """
    if run.first_index < index or not run.entry_count:
        return True
    return run.first_index == index and run.find_message(0, run.entry_count) > 0
