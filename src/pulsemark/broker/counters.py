"""Counts of what a broker does, from which `metrics.stats` makes figures on request.

Counting runs for every entry, so it must be fast: plain integers in plain lists, no metric objects,
and no locks (everything runs on the event loop).

Of single producers, consumers and subscriptions only those that had traffic have a meter (`Flows`).
It is made and renewed once in a period from the counters that they have anyway, so counting costs
nothing more, and what is idle costs no memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import field
from enum import Enum

from ..records import record
from .storage import Storage

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


@record(eq=False)
class TopicCounters:
    """A topic's counts since it was opened."""

    messages_in: int = 0
    bytes_in: int = 0
    #: The messages and bytes that removed subscriptions had sent.
    removed_messages_out: int = 0
    removed_bytes_out: int = 0
    #: Damaged entries that dispatch has met.
    damaged_entries: int = 0
    #: Transactions that ended here.
    committed_transactions: int = 0
    aborted_transactions: int = 0
    #: Publishes that were appended and could not be stored (the disk failed).
    failed_entries: int = 0
    write_latency_ms: Histogram = field(default_factory=lambda: Histogram(WRITE_LATENCY_LIMITS_MS))
    entry_size_bytes: Histogram = field(default_factory=lambda: Histogram(ENTRY_SIZE_LIMITS_BYTES))
    #: Kafka's record sets, by the kind of request, its version, and whether they were converted.
    kafka_sets: dict[tuple[str, int, bool], int] = field(default_factory=dict)


@record
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


@record(frozen=True)
class Flow:
    """Rates per second, and the totals from which the next rates are computed."""

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    messages: int = 0
    size_bytes: int = 0

    def after(self, messages: int, size_bytes: int, elapsed_s: float) -> Flow:
        """The rates of the next period, with the totals at its end."""
        return Flow(
            max(messages - self.messages, 0) / elapsed_s,
            max(size_bytes - self.size_bytes, 0) / elapsed_s,
            messages,
            size_bytes,
        )


NOTHING = Flow()


class Flows:
    """The rates of a topic's producers, consumers and subscriptions."""

    __slots__ = ("_flows",)

    def __init__(self) -> None:
        self._flows: dict[object, Flow] = {}

    def of(self, one: object) -> Flow:
        """A producer's, consumer's or subscription's rates in the last period."""
        return self._flows.get(one, NOTHING)

    def update(self, totals: Iterable[tuple[object, int, int]], elapsed_s: float) -> None:
        """End a period, with messages and bytes of each. Others are forgotten."""
        self._flows = {
            one: self.of(one).after(messages, size_bytes, elapsed_s)
            for one, messages, size_bytes in totals
            if messages
        }


class CompactionStatus(Enum):
    """Pulsar's `LongRunningProcessStatus`."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@record
class CompactionFigures:
    """The counts of a topic's compactions."""

    status: CompactionStatus = CompactionStatus.NOT_RUN
    last_error: str = ""
    #: Set to stop the compaction that runs. None before the first one: each topic has figures.
    stop: threading.Event | None = None
    stop_reason: str = ""
    succeeded: int = 0
    failed: int = 0
    #: Messages that all compactions, and the last one, left out.
    removed_events: int = 0
    last_removed_events: int = 0
    last_succeeded_ms: int = 0
    last_failed_ms: int = 0
    last_duration_ms: int = 0
    read_bytes_per_s: float = 0.0
    written_bytes_per_s: float = 0.0
    view_entries: int = 0
    view_size_bytes: int = 0

    def begin(self) -> None:
        """Begin a run: its status is running, and it is not asked to stop."""
        self.status = CompactionStatus.RUNNING
        self.stop_reason = ""
        self.stop = threading.Event()

    def ask_to_stop(self, reason: str = "") -> None:
        """Ask a running compaction to stop."""
        self.stop_reason = reason
        if self.stop is not None:
            self.stop.set()


@record
class TopicCleaning:
    """Counts of a topic's entries removed by cleaning, and of its compactions."""

    entries_removed: int = 0
    messages_removed: int = 0
    bytes_removed: int = 0
    #: When entries were last removed, by the broker's clock; 0: never.
    last_removed_ms: int = 0
    compaction: CompactionFigures = field(default_factory=CompactionFigures)


class CacheMeter:
    """The size of the tail caches, and their use in the last period."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._before = self._totals()
        self._growth = [0] * len(self._before)
        self._elapsed_s = 1.0

    def _totals(self) -> tuple[int, ...]:
        names = ("hit_entries", "hit_bytes", "missed_entries", "missed_bytes", "evictions")
        return tuple(map(self._sum, names))

    def _sum(self, name: str) -> int:
        """A figure of `TailCache`, over all stores."""
        return sum(getattr(store.tail_cache, name) for store in self._storage.distinct())

    def update(self, elapsed_s: float) -> None:
        """End a period, and compute its rates."""
        totals = self._totals()
        self._growth = [now - before for now, before in zip(totals, self._before, strict=True)]
        self._before, self._elapsed_s = totals, elapsed_s

    def figures(self) -> list[tuple[str, str, float]]:
        """The name, meaning and value of each figure."""
        all_hits, all_misses = self._sum("hit_entries"), self._sum("missed_entries")
        *amounts, evictions = self._growth
        hits, hit_bytes, misses, missed_bytes = (n / self._elapsed_s for n in amounts)
        return [
            (
                "pulsar_ml_cache_used_size",
                "Bytes of the newest entries in memory, the objects around them included",
                self._sum("used_size_bytes"),
            ),
            ("pulsar_ml_cache_entries", "Entries in memory", self._sum("entry_count")),
            (
                "pulsar_ml_cache_inserted_entries_total",
                "Entries that came into the cache",
                self._sum("inserted_entries"),
            ),
            (
                "pulsar_ml_cache_evicted_entries_total",
                "Entries that left it because it was full, or they were old or read by all",
                self._sum("evicted_entries"),
            ),
            ("pulsar_ml_cache_evictions", "Evictions in the last minute", evictions),
            ("pulsar_ml_cache_hits_rate", "Entries per second read from the cache", hits),
            ("pulsar_ml_cache_hits_throughput", "Bytes per second from the cache", hit_bytes),
            ("pulsar_ml_cache_misses_rate", "Entries per second read from the disk", misses),
            ("pulsar_ml_cache_misses_throughput", "Bytes per second from the disk", missed_bytes),
            ("pulsemark_ml_cache_hits_total", "Entries read from the cache", all_hits),
            ("pulsemark_ml_cache_misses_total", "Entries read from the disk", all_misses),
            ("pulsemark_ml_cache_max_size", "What the cache may hold", self._sum("max_size_bytes")),
        ]
