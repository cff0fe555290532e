"""Leader epochs: who was the leader from which index on, and cutting a tail back to there.

An epoch begins a ledger, so the map from epoch to first index is what the segments' own headers
say; nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .position import Position
from .segment import Segment


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Where a leader epoch begins."""

    epoch: int
    first_index: int
    position: Position


def epoch_starts(segments: Sequence[Segment]) -> list[EpochStart]:
    """Where each leader epoch that has entries begins, oldest first."""
    starts: list[EpochStart] = []
    for segment in segments:
        epoch = segment.header.epoch
        if not starts or epoch > starts[-1].epoch:
            starts.append(EpochStart(epoch, segment.first_index, segment.first_position))
    return starts


def cut_tail(
    segments: Sequence[Segment], index: int
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Forget all messages from ``index`` on: the segments that stay, the last one shortened,
    and the others.

    Raises ValueError where ``index`` lies inside a batch: nothing is changed then.
    """
    kept = 0
    while kept < len(segments) and (
        segments[kept].first_index < index or not segments[kept].entry_count
    ):
        kept += 1
    if kept:
        last = segments[kept - 1]
        if index < last.next_index:
            row = last.find_message(index - last.first_index, last.entry_count)
            if last.index_before(row) != index:
                raise ValueError(f"index {index} lies inside a batch")
            last.truncate(row)
    return tuple(segments[:kept]), tuple(segments[kept:])
