"""What a topic counts while it works; `metrics` turns it into figures when somebody asks.

Counting happens for every entry, so it is plain integers in plain lists: no locks (all of it runs
on the event loop), no metric objects.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

__all__ = [
    "ENTRY_SIZE_LIMITS_BYTES",
    "WRITE_LATENCY_LIMITS_MS",
    "Histogram",
    "RateMeter",
    "Rates",
    "TopicCounters",
]

#: Upper bounds of Pulsar's storage write latency buckets; one more bucket holds what is above.
WRITE_LATENCY_LIMITS_MS = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
#: Upper bounds of Pulsar's entry size buckets; one more bucket holds what is above.
ENTRY_SIZE_LIMITS_BYTES = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)


class Histogram:
    """Counts of values by upper bound, with their sum."""

    __slots__ = ("buckets", "limits", "total")

    def __init__(self, limits: tuple[float, ...]) -> None:
        self.limits = limits
        self.buckets = [0] * (len(limits) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, `times` over."""
        self.buckets[bisect_left(self.limits, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.buckets)


@dataclass(slots=True, eq=False)
class TopicCounters:
    """Since the topic was opened."""

    messages_in: int = 0
    bytes_in: int = 0
    #: Damaged entries met by dispatch.
    damaged_entries: int = 0
    #: Publishes refused after they had been taken in (the disk failed).
    failed_entries: int = 0
    write_latency_ms: Histogram = field(default_factory=lambda: Histogram(WRITE_LATENCY_LIMITS_MS))
    entry_size_bytes: Histogram = field(default_factory=lambda: Histogram(ENTRY_SIZE_LIMITS_BYTES))


@dataclass(slots=True)
class Rates:
    """Per second, over the last period."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0


class RateMeter:
    """Turns totals into rates, period by period."""

    __slots__ = ("_before", "rates")

    def __init__(self) -> None:
        self.rates = Rates()
        self._before = (0, 0, 0, 0)

    def update(self, totals: tuple[int, int, int, int], elapsed_s: float) -> None:
        """Take (messages in, bytes in, messages out, bytes out) at the end of a period.

        A total can shrink when a subscription goes; its rate is then 0.
        """
        growth = [max(now - before, 0) for now, before in zip(totals, self._before, strict=True)]
        self.rates = Rates(*(amount / elapsed_s for amount in growth))
        self._before = totals
