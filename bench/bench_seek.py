"""Search by time inside the process, by both methods, over logs of growing size.

    python bench/bench_seek.py [--sizes N ...] [--folder DIR]

Each row is compared, in the same run, with a binary search that reads whole entries at every step,
as a broker without an outer stamp must do. ``reads`` and bytes are counted by the search itself;
the largest of all searches is shown. Cold: before each search the topic's files are dropped from
the page cache, and the store's own cache of index chunks is emptied. A figure is the p50 of all
searches of the run.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from report import Figure, lower, quantile, show

from pulsemark.finder import Finder, SearchMethod
from pulsemark.ledger import LocalStore, ManagedLedger
from pulsemark.ledger.local.io.folder import index_path
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import StamperChain, entry_time_ms, peek
from pulsemark.testing.clock import SettableClock

START_MS = 1_700_000_000_000
PER_MS = 10
SEARCHES = 2000
COLD_SEARCHES = 200


def fill(topic: ManagedLedger, clock: SettableClock, entries: int) -> None:
    """Append ``entries`` of 100 bytes, ten to the millisecond."""
    body = bytes(100)
    appended = None
    for number in range(entries):
        if number % PER_MS == 0:
            clock.advance(by_ms=1)
        appended = topic.append(body)
    if appended is not None:
        appended.commit.wait()


def whole_entries(topic: ManagedLedger, time_ms: int) -> int:
    """Binary search over positions, a whole entry read and opened at each step."""
    segments = topic.segments()
    counts = [segment.entry_count for segment in segments]
    low, high = 0, sum(counts)
    while low < high:
        middle = row = (low + high) // 2
        number = 0
        while row >= counts[number]:
            row -= counts[number]
            number += 1
        entry = segments[number].read(row, 1, 0)[0]
        if entry_time_ms(peek(entry.stored), entry.body) < time_ms:
            low = middle + 1
        else:
            high = middle
    return low


def drop_caches(store: LocalStore, topic: ManagedLedger) -> None:
    """Drop all of the topic from memory, except what a search always has in memory."""
    store.drop_read_caches()
    for segment in map(as_segment, topic.segments()):
        for path in (segment.path, index_path(segment.path)):
            if path.exists():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def cold(
    store: LocalStore, topic: ManagedLedger, clock: SettableClock, rnd: random.Random
) -> dict[str, list[float]]:
    """Seconds of searches without cached data, by method, and of searches in whole entries."""
    store.checkpoint()
    finder = Finder(topic)
    methods: dict[str, Callable[[int], object]] = {
        f"by {method.value}": partial(finder.by_time, method=method) for method in SearchMethod
    }
    methods["whole entries"] = partial(whole_entries, topic)
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(COLD_SEARCHES):
        time_ms = rnd.randint(START_MS, clock.now_ms())
        for name, search in methods.items():
            drop_caches(store, topic)
            begun = time.perf_counter()
            search(time_ms)
            taken[name].append(time.perf_counter() - begun)
    return taken


def measure(folder: Path, sizes: list[int]) -> list[Figure]:
    """Fill one topic step by step and search it at each size."""
    figures = []
    clock = SettableClock(START_MS)
    rnd = random.Random(1)
    with LocalStore.open(folder / "data", clock=clock) as store:
        topic = store.open_topic("persistent://public/default/seek")
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
        filled = 0
        for size in sizes:
            fill(topic, clock, size - filled)
            filled = size
            finder = Finder(topic)
            whole: list[float] = []
            taken: dict[SearchMethod, list[float]] = {}
            reads: dict[SearchMethod, int] = {}
            sizes_read: dict[SearchMethod, int] = {}
            for method in SearchMethod:
                finder.by_time(START_MS + 1, method=method)
                taken[method], reads[method], sizes_read[method] = [], 0, 0
            for _ in range(SEARCHES):
                time_ms = rnd.randint(START_MS, clock.now_ms())
                for method in SearchMethod:
                    begun = time.perf_counter()
                    found = finder.by_time(time_ms, method=method)
                    taken[method].append(time.perf_counter() - begun)
                    reads[method] = max(reads[method], found.reads)
                    sizes_read[method] = max(sizes_read[method], found.bytes_read)
            for _ in range(SEARCHES // 10):
                time_ms = rnd.randint(START_MS, clock.now_ms())
                begun = time.perf_counter()
                whole_entries(topic, time_ms)
                whole.append(time.perf_counter() - begun)
            for method in SearchMethod:
                name = (
                    f"by {method.value}, {size:,} entries, p50"
                    f" (<= {reads[method]} reads, {sizes_read[method]:,} bytes)"
                )
                figures.append(
                    lower(name, quantile(taken[method], 0.5) * 1e6, quantile(whole, 0.5) * 1e6,
                          "us", "whole entries")
                )  # fmt: skip
            seconds = cold(store, topic, clock, rnd)
            whole_cold = quantile(seconds.pop("whole entries"), 0.5) * 1e6
            figures += [
                lower(f"{name}, {size:,} entries, cold, p50", quantile(some, 0.5) * 1e6,
                      whole_cold, "us", "whole entries, cold")
                for name, some in seconds.items()
            ]  # fmt: skip
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures.append(lower("peak memory of the run", peak_mb, None, "MiB"))
    return figures


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        figures = measure(Path(folder), sorted(args.sizes))
    show("seek", figures)


if __name__ == "__main__":
    main()
