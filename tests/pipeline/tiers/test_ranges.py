"""Ranges of indexes, compared with sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.pipeline.tiers.ranges import merged, of_indexes, size, text, without

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def members(ranges: list[tuple[int, int]]) -> list[int]:
    """All indexes, as often as they are there."""
    return [index for first, end in ranges for index in range(first, end)]


@given(RANGES)
def test_merged_is_the_union(ranges: list[tuple[int, int]]) -> None:
    """In order, apart from each other, and with the number of surplus ones."""
    found, doubled = merged(ranges)
    assert members(found) == sorted(set(members(ranges)))
    assert all(end < first for (_, end), (first, _) in pairwise(found))
    assert doubled == len(members(ranges)) - len(set(members(ranges)))


@given(RANGES, RANGES)
def test_without_is_the_difference(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    """What is in the first list only."""
    left, right = merged(one)[0], merged(other)[0]
    found = list(without(left, right))
    assert members(found) == sorted(set(members(one)) - set(members(other)))
    assert size(found) == len(members(found))


@given(st.lists(st.integers(0, 50), max_size=40))
def test_single_indexes(indexes: list[int]) -> None:
    """Any order, any number of times."""
    found, doubled = of_indexes(np.array(indexes, np.int64))
    assert members(found) == sorted(set(indexes))
    assert doubled == len(indexes) - len(set(indexes))


def test_the_text_is_short() -> None:
    """Single indexes, ranges, and an end of the list."""
    assert text([(1, 2), (5, 8)]) == "1,5-7"
    assert text([(2 * n, 2 * n + 1) for n in range(60)]).endswith(",98 and 10 more ranges")
    assert text([]) == ""
