"""A histogram of latencies with a bounded relative error, as HdrHistogram's.

Values are whole microseconds. Up to 2,047 each value has a bucket of its own; above, a power of two
is divided into 1,024 buckets, so that a percentile is at most 0.1 % above the true value. Adding a
value is one step; the memory does not grow with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

__all__ = ["PERCENTILES", "Histogram"]

PERCENTILES = (50.0, 95.0, 99.0, 99.9, 99.99)
_HALF_BITS = 10
_EXACT = 2 << _HALF_BITS


class Histogram:
    """Counts of values."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.sum = 0
        self.max = 0
        self.min: int | None = None

    def add(self, value: int) -> None:
        """Count a value; a negative one (clocks that differ) counts as 0."""
        value = max(value, 0)
        self._counts[_highest_equal(value)] += 1
        self.count += 1
        self.sum += value
        self.max = max(self.max, value)
        self.min = value if self.min is None else min(self.min, value)

    def merge(self, other: Histogram) -> None:
        """Count all values of another histogram, too."""
        self._counts.update(other._counts)
        self.count += other.count
        self.sum += other.sum
        self.max = max(self.max, other.max)
        if other.min is not None:
            self.min = other.min if self.min is None else min(self.min, other.min)

    @property
    def mean(self) -> float:
        """0 without values."""
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """The value that so many percent of the values do not exceed; 0 without values."""
        left = max(-(-self.count * percent // 100), 1)
        for value in sorted(self._counts):
            left -= self._counts[value]
            if left <= 0:
                return min(value, self.max)
        return self.max

    def bars(self, rows: int = 12) -> Iterator[tuple[int, int, int]]:
        """Ranges that grow by the same factor: (from, to, count), without empty ends."""
        if self.min is None:
            return
        low, high = max(self.min, 1), max(self.max, 1)
        factor = max((high / low) ** (1 / rows), 1.0000001)
        edges = [low * factor**number for number in range(1, rows)] + [float("inf")]
        counts = [0] * rows
        place = 0
        for value in sorted(self._counts):
            while value > edges[place]:
                place += 1
            counts[place] += self._counts[value]
        begin = self.min
        for edge, count in zip(edges, counts, strict=True):
            end = self.max if edge == float("inf") else max(begin, min(int(edge), self.max))
            if end > begin or count:
                yield begin, end, count
            begin = end


def _highest_equal(value: int) -> int:
    """The highest value that has the same bucket."""
    if value < _EXACT:
        return value
    shift = value.bit_length() - 1 - _HALF_BITS
    return ((value >> shift) + 1 << shift) - 1
