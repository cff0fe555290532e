"""Leader epochs: which leader began at which index, and cutting a log's tail back to an index.

Each epoch begins a ledger, so the runs' own headers say which epoch begins at which index. The
epoch's first entry, its mark, names the leader. Nothing else is stored.

`common_point` is the truncation rule of the proposal for enriched message metadata (KAFKA-1211): a
follower cuts its log only back to where its epochs and the leader's end to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index as as_int

from ..metadata import PrefixError, control_of
from ..records import record
from .errors import StaleEpochError
from .position import Position
from .run import DamagedRecordError, IoCount, Run


@record(frozen=True)
class EpochStart:
    """The start of a leader epoch."""

    epoch: int
    first_index: int
    position: Position
    leader: str = ""
    """The leader's name in the mark; empty without one, or if the mark is removed or damaged."""


@record(frozen=True)
class EpochHistory:
    """The epochs of a log, oldest first, and the index at which the last one ends."""

    starts: tuple[EpochStart, ...]
    next_index: int

    def end_of(self, number: int) -> int:
        """The index at which the epoch ``starts[number]`` ends."""
        following = self.starts[number + 1 : number + 2]
        return following[0].first_index if following else self.next_index


def epoch_starts(runs: Sequence[Run]) -> list[EpochStart]:
    """The start of each leader epoch that has entries, oldest first. Reads the epochs' marks."""
    return [
        EpochStart(run.header.epoch, run.first_index, run.first_position, _leader_of(run))
        for run in epoch_runs(runs)
    ]


def epoch_runs(runs: Sequence[Run]) -> list[Run]:
    """The first run of each leader epoch, oldest first. Reads nothing."""
    found: list[Run] = []
    for run in runs:
        if not found or run.header.epoch > found[-1].header.epoch:
            found.append(run)
    return found


def _leader_of(run: Run) -> str:
    """The leader that the mark in a run's first row names, or ""."""
    if not run.header.epoch or run.header.segment_no or run.cut_rows:
        return ""
    try:
        control = control_of(run.head(0, IoCount()).prefix)
    except (DamagedRecordError, FileNotFoundError, PrefixError):
        return ""
    begins = control is not None and control.leader_epoch == run.header.epoch
    return control.name if control is not None and begins else ""


def common_point(one: EpochHistory, other: EpochHistory) -> int | None:
    """The index up to which two logs are the same; None if they have no epoch in common.

    It is where the highest common epoch ends first: an epoch with the same number, first index and
    leader in both. A log whose head was removed has its first epoch from a later index on. If a
    mark was removed, leaders cannot be compared: then each number must belong to one leader only.
    Entries before the first epoch (epoch 0) are taken to have one writer.
    """
    if not one.starts or not other.starts:
        # Removed entries may have differed. Only of logs that never had an entry it is known.
        ends = {log.next_index for log in (one, other) if not log.starts}
        are_known = ends == {0} or (not one.starts and not other.starts and len(ends) == 1)
        return ends.pop() if are_known else None
    numbers = {start.epoch: number for number, start in enumerate(other.starts)}
    for mine in reversed(range(len(one.starts))):
        theirs = numbers.get(one.starts[mine].epoch)
        if theirs is not None and _are_same(one.starts, mine, other.starts, theirs):
            return min(one.end_of(mine), other.end_of(theirs))
    first = one.starts[0].first_index
    return first if first == other.starts[0].first_index else None


def _are_same(
    mine: Sequence[EpochStart], number: int, theirs: Sequence[EpochStart], their_number: int
) -> bool:
    """Whether two epochs with one number are the same epoch."""
    one, other = mine[number], theirs[their_number]
    if one.leader and other.leader and one.leader != other.leader:
        return False
    if one.first_index == other.first_index:
        return True
    return number == 0 if one.first_index > other.first_index else their_number == 0


@record(frozen=True)
class LedgerExtent:
    """One ledger of a log: its entries from ``first`` on, before ``end_entry_id``."""

    first: Position
    end_entry_id: int
    first_index: int
    epoch: int


def ledger_extents(runs: Sequence[Run]) -> tuple[LedgerExtent, ...]:
    """The ledgers that have entries, oldest first. Reads nothing."""
    found: list[LedgerExtent] = []
    for run in runs:
        if found and found[-1].first.ledger_id == run.ledger_id:
            found[-1] = replace(found[-1], end_entry_id=run.end_entry_id)
            continue
        first = run.position(run.cut_rows)
        index = run.index_before(run.cut_rows)
        found.append(LedgerExtent(first, run.end_entry_id, index, run.header.epoch))
    return tuple(found)


def common_end(mine: Sequence[LedgerExtent], others: Sequence[LedgerExtent]) -> Position | None:
    """The position up to which a log and its copy are equal; None: no entry is in both.

    A ledger has one writer. So logs that keep positions are equal up to the place where their last
    common ledger ends first, even if an owner lost its log's end in a power cut and went on in the
    same epoch.
    """
    there = {each.first.ledger_id: each for each in others}
    for one in reversed(mine):
        other = there.get(one.first.ledger_id)
        if other is None or other.epoch != one.epoch:
            continue
        if one.first == other.first and one.first_index != other.first_index:
            continue
        end = min(one.end_entry_id, other.end_entry_id)
        return Position(one.first.ledger_id, end)
    return None


MAX_EPOCH = 2**32 - 1
"""A segment's header has 32 bits for it."""


def check_epoch(topic: str, epoch: int, current: int) -> None:
    """Raise StaleEpochError unless ``epoch`` is above ``current``."""
    if epoch <= current:
        raise StaleEpochError(topic, epoch, current)


def check_highest(epoch: int) -> int:
    """The epoch as an exact int. Raises ValueError above 2^32-1, TypeError for no whole number."""
    if as_int(epoch) > MAX_EPOCH:
        raise ValueError(f"a leader epoch must be at most {MAX_EPOCH}, not {epoch}")
    return int(as_int(epoch))


def check_not_before(topic: str, epoch: int, kept: Sequence[Run]) -> None:
    """Raise StaleEpochError below the last epoch of ``kept``, ValueError above 2^32-1."""
    current = kept[-1].header.epoch if kept else 0
    if epoch < current:
        raise StaleEpochError(topic, epoch, current)
    check_highest(epoch)


@record(frozen=True)
class TailCut:
    """A log's end after a cut: the runs that stay, the last of which is shortened."""

    kept: tuple[Run, ...]
    dropped: tuple[Run, ...]
    last_count: int
    """How many entries stay in the last run that is kept."""

    def make(self) -> None:
        """Shorten the last run. Raises OSError before anything has changed."""
        if self.kept and self.last_count < self.kept[-1].entry_count:
            self.kept[-1].truncate(self.last_count)


def cut_before(runs: Sequence[Run], position: Position) -> TailCut:
    """The cut that drops all entries from ``position`` on; changes nothing. Raises OSError."""
    kept = [run for run in runs if run.first_position < position]
    if not kept:
        return TailCut((), tuple(runs), 0)
    last, row = kept[-1], kept[-1].entry_count
    if last.ledger_id == position.ledger_id:
        row = min(row, position.entry_id - last.first_entry_id)
    if row < last.entry_count:
        last.chunk(row)  # read now what `make` needs
    return TailCut(tuple(kept), tuple(runs[len(kept) :]), row)


def find_cut(runs: Sequence[Run], index: int) -> TailCut:
    """The cut that drops messages from ``index`` on. Raises OSError; ValueError in a batch."""
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
    """Whether a run has no entries, or some before the message with ``index``."""
    if run.first_index < index or not run.entry_count:
        return True
    return run.first_index == index and run.find_message(0, run.entry_count) > 0
