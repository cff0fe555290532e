"""Histograms and rates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.statistics.counters import Histogram, RateMeter, Rates


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=30))
def test_a_histogram_counts_each_value_below_its_bound(values):
    """Bounds are inclusive, and one more bucket counts larger values."""
    histogram = Histogram((5, 10, 20))
    for value, times in values:
        histogram.add(value, times)
    flat = [value for value, times in values for _ in range(times)]
    expected = [
        sum(low < value <= high for value in flat)
        for low, high in ((-1, 5), (5, 10), (10, 20), (20, 10**9))
    ]
    assert expected == histogram.buckets
    assert (len(flat), sum(flat)) == (histogram.count, histogram.total)


def test_rates_are_growth_per_second():
    """Each period by itself; a total that shrinks counts as no growth."""
    meter = RateMeter()
    meter.update((100, 1000, 50, 500, 0, 0), 10.0)
    assert Rates(10.0, 100.0, 5.0, 50.0) == meter.rates
    meter.update((100, 1000, 10, 600, 0, 0), 10.0)
    assert Rates(0.0, 0.0, 0.0, 10.0) == meter.rates
