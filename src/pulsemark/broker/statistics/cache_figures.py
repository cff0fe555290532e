"""The tail cache's figures, with Pulsar's names.

As in Pulsar, sizes and totals are present values, and rates are of the last period (a minute).
"""

from __future__ import annotations

from ..storage import CacheFigures

__all__ = ["CacheMeter"]


class CacheMeter:
    """The tail cache's size, and its use in the last period."""

    def __init__(self, cache: CacheFigures) -> None:
        self.cache = cache
        self._before = self._totals()
        self._growth = [0] * len(self._before)
        self._elapsed_s = 1.0

    def _totals(self) -> tuple[int, ...]:
        cache = self.cache
        return (
            cache.hit_entries,
            cache.hit_bytes,
            cache.missed_entries,
            cache.missed_bytes,
            cache.evictions,
        )

    def update(self, elapsed_s: float) -> None:
        """End a period, and compute its rates."""
        totals = self._totals()
        self._growth = [now - before for now, before in zip(totals, self._before, strict=True)]
        self._before, self._elapsed_s = totals, elapsed_s

    def figures(self) -> list[tuple[str, str, float]]:
        """Name, meaning and value of each."""
        cache = self.cache
        *amounts, evictions = self._growth
        hits, hit_bytes, misses, missed_bytes = (n / self._elapsed_s for n in amounts)
        return [
            (
                "pulsar_ml_cache_used_size",
                "Bytes of the newest entries in memory, the objects around them included",
                cache.used_size_bytes,
            ),
            ("pulsar_ml_cache_entries", "Entries in memory", cache.entry_count),
            (
                "pulsar_ml_cache_inserted_entries_total",
                "Entries that came into the cache",
                cache.inserted_entries,
            ),
            (
                "pulsar_ml_cache_evicted_entries_total",
                "Entries that left it because it was full, or they were old or read by all",
                cache.evicted_entries,
            ),
            ("pulsar_ml_cache_evictions", "Evictions in the last minute", evictions),
            ("pulsar_ml_cache_hits_rate", "Entries per second read from the cache", hits),
            ("pulsar_ml_cache_hits_throughput", "Bytes per second from the cache", hit_bytes),
            ("pulsar_ml_cache_misses_rate", "Entries per second read from the disk", misses),
            ("pulsar_ml_cache_misses_throughput", "Bytes per second from the disk", missed_bytes),
            ("pulsemark_ml_cache_hits_total", "Entries read from the cache", cache.hit_entries),
            ("pulsemark_ml_cache_misses_total", "Entries read from the disk", cache.missed_entries),
            ("pulsemark_ml_cache_max_size", "What the cache may hold", cache.max_size_bytes),
        ]
