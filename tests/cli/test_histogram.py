"""Percentiles of a histogram, compared with those of the values themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.cli.perf import PERCENTILES, Histogram

values = st.lists(st.integers(0, 10**9), min_size=1, max_size=300)


def histogram_of(numbers) -> Histogram:
    """A histogram with these values."""
    found = Histogram()
    for number in numbers:
        found.add(number)
    return found


@given(values)
def test_percentiles(numbers):
    """Each is the value at its rank, and at most 0.1 % above it."""
    found, ordered = histogram_of(numbers), sorted(numbers)
    for percent in PERCENTILES:
        rank = max(int(-(-len(ordered) * percent // 100)), 1)
        exact = ordered[rank - 1]
        assert exact <= found.percentile(percent) <= exact * 1.001 + 1
    assert ordered[-1] <= found.max <= ordered[-1] * 1.001 + 1
    mean = sum(ordered) / len(ordered)
    assert mean <= found.mean <= mean * 1.001 + 1
    assert found.count == len(ordered)


@given(values, values)
def test_merging(one, two):
    """Two merged histograms are that of all values."""
    merged = histogram_of(one)
    merged.merge(histogram_of(two))
    whole = histogram_of([*one, *two])
    assert merged.percentile(99) == whole.percentile(99)
    assert (merged.count, merged.mean, merged.max) == (whole.count, whole.mean, whole.max)
    assert list(merged.bars()) == list(whole.bars())


@given(values)
def test_bars(numbers):
    """The ranges follow each other, and hold all values."""
    bars = list(histogram_of(numbers).bars())
    assert sum(count for _, _, count in bars) == len(numbers)
    assert all(begin <= end for begin, end, _ in bars)


def test_nothing():
    """Without values all figures are 0."""
    empty = Histogram()
    assert (empty.mean, empty.percentile(50), list(empty.bars())) == (0.0, 0, [])
