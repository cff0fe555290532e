"""Ranges of indexes: half-open, in rising order, not overlapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Range: TypeAlias = tuple[int, int]
"""First index, and the one after the last."""

SHOWN_RANGES = 50


@dataclass(frozen=True, slots=True)
class IndexRun:
    """Messages ``[first_index, end_index)``, all in one bucket."""

    bucket_start_ms: int
    first_index: int
    end_index: int


def merged(ranges: Iterable[Range]) -> tuple[list[Range], int]:
    """The ranges in order, joined where they touch; and how many indexes were in several."""
    found: list[Range] = []
    doubled = 0
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            before_first, before_end = found[-1]
            doubled += max(0, min(end, before_end) - first)
            found[-1] = (before_first, max(before_end, end))
        else:
            found.append((first, end))
    return found, doubled


def of_indexes(indexes: NDArray[np.int64]) -> tuple[list[Range], int]:
    """The ranges of single indexes in any order; and how many of them came more than once."""
    import numpy as np

    if not len(indexes):
        return [], 0
    distinct = np.unique(indexes)
    breaks = np.flatnonzero(np.diff(distinct) != 1) + 1
    firsts = distinct[np.concatenate([[0], breaks])]
    lasts = distinct[np.concatenate([breaks - 1, [len(distinct) - 1]])]
    ranges = list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
    return ranges, len(indexes) - len(distinct)


def without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """What is in ``ranges`` and not in ``others``; both are in order."""
    at = 0
    for start, end in ranges:
        while at < len(others) and others[at][1] <= start:
            at += 1
        first, place = start, at
        while first < end:
            if place == len(others) or others[place][0] >= end:
                yield first, end
                break
            if others[place][0] > first:
                yield first, others[place][0]
            first = max(first, others[place][1])
            place += 1


def size(ranges: Iterable[Range]) -> int:
    """How many indexes there are."""
    return sum(end - first for first, end in ranges)


def text(ranges: Sequence[Range]) -> str:
    """The ranges for people: ``4-9,12``; the first of them, if there are very many."""
    shown = [
        str(first) if end == first + 1 else f"{first}-{end - 1}"
        for first, end in ranges[:SHOWN_RANGES]
    ]
    more = len(ranges) - len(shown)
    return ",".join(shown) + (f" and {more} more ranges" if more else "")
