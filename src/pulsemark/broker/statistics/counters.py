"""A topic's counters; `metrics` computes figures from them on request.

Counting runs for every entry, so it must be fast: plain integers in plain lists, no metric objects,
and no locks (everything runs on the event loop).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = [
    "ENTRY_SIZE_LIMITS_BYTES",
    "WRITE_LATENCY_LIMITS_MS",
    "DropMeter",
    "Histogram",
    "RateMeter",
    "Rates",
    "TopicCounters",
]

#: Upper bounds of Pulsar's storage write latency buckets; one more bucket has larger values.
WRITE_LATENCY_LIMITS_MS = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
#: Upper bounds of Pulsar's entry size buckets; one more bucket has larger values.
ENTRY_SIZE_LIMITS_BYTES = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)


class Histogram:
    """Counts of values by upper bound, with their sum."""

    __slots__ = ("buckets", "limits", "total")

    def __init__(self, limits: tuple[float, ...]) -> None:
        self.limits = limits
        self.buckets = [0] * (len(limits) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.buckets[bisect_left(self.limits, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.buckets)


@dataclass(slots=True, eq=False)
class TopicCounters:
    """A topic's counts since it was opened."""

    messages_in: int = 0
    bytes_in: int = 0
    #: What subscriptions sent that were removed.
    removed_messages_out: int = 0
    removed_bytes_out: int = 0
    #: Damaged entries that dispatch has met.
    damaged_entries: int = 0
    #: Publishes that were appended and could not be stored (the disk failed).
    failed_entries: int = 0
    write_latency_ms: Histogram = field(default_factory=lambda: Histogram(WRITE_LATENCY_LIMITS_MS))
    entry_size_bytes: Histogram = field(default_factory=lambda: Histogram(ENTRY_SIZE_LIMITS_BYTES))


@dataclass(slots=True)
class Rates:
    """Rates per second, over the last period."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    entries_in: float = 0.0
    entries_out: float = 0.0


class RateMeter:
    """Computes rates from totals, for each period."""

    __slots__ = ("_before", "rates")

    def __init__(self) -> None:
        self.rates = Rates()
        self._before: tuple[int, ...] = (0,) * 6

    def update(self, totals: tuple[int, ...], elapsed_s: float) -> None:
        """End a period, with the totals in the order of `Rates`.

        A total can decrease when a subscription is removed; its rate is then 0.
        """
        growth = [max(now - before, 0) for now, before in zip(totals, self._before, strict=True)]
        self.rates = Rates(*(amount / elapsed_s for amount in growth))
        self._before = totals


class DropMeter:
    """Computes the rate of dropped messages, for each period."""

    __slots__ = ("_before", "rate")

    def __init__(self) -> None:
        self.rate = 0.0
        self._before = 0

    def update(self, total: int, elapsed_s: float) -> None:
        """End a period, with all messages dropped until now."""
        self.rate = max(total - self._before, 0) / elapsed_s
        self._before = total
