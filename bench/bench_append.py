"""Durable appends through the ledger library alone, compared with raw writes to the same disk.

    python bench/bench_append.py [--folder DIR] [--entries N] [--topics N ...]

The limit of each row is measured in the same run, alternating with ours: one ``pwrite`` of the same
bytes and one ``fdatasync``. Window 1: each append waits until it is durable. Saturated: one thread
appends as fast as it can, and group commit shares the syncs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from report import Figure, higher, lower, quantile, show

from pulsemark.ledger import Appended, LocalStore, ManagedLedger
from pulsemark.metadata import StamperChain

MIB = 1 << 20
ROUNDS = 3


def topics(store: LocalStore, count: int, label: str) -> list[ManagedLedger]:
    """Open topics that stamp time and index."""
    opened = [store.open_topic(f"persistent://public/default/{label}-{n}") for n in range(count)]
    for topic in opened:
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
    return opened


def saturate(opened: list[ManagedLedger], body: bytes, entries: int) -> float:
    """Seconds until ``entries`` appends, spread over the topics in turn, are durable."""
    last: Appended | None = None
    count = len(opened)
    start = time.perf_counter()
    for number in range(entries):
        last = opened[number % count].append(body)
    for topic in opened[-min(count, entries) :]:
        del topic
    if last is not None:
        last.commit.wait()
    return time.perf_counter() - start


def window_1(topic: ManagedLedger, body: bytes, entries: int) -> list[float]:
    """Seconds of each append that waits for its own sync."""
    taken = []
    for _ in range(entries):
        start = time.perf_counter()
        topic.append(body).commit.wait()
        taken.append(time.perf_counter() - start)
    return taken


def raw_window_1(path: Path, size: int, entries: int) -> list[float]:
    """The same by pwrite and fdatasync alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    body = os.urandom(size)
    taken = []
    at = os.fstat(fd).st_size
    for number in range(entries):
        start = time.perf_counter()
        os.pwrite(fd, body, at + number * size)
        os.fdatasync(fd)
        taken.append(time.perf_counter() - start)
    os.close(fd)
    return taken


def raw_stream(path: Path, total: int, chunk: int) -> float:
    """Seconds to write ``total`` bytes with a sync after every ``chunk``.

    It appends to the file, as a ledger does. A file that is removed and made again each time would
    be written to warm memory, several times faster than any log can be.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    body = os.urandom(chunk)
    end = os.fstat(fd).st_size
    start = time.perf_counter()
    for at in range(end, end + total, chunk):
        os.pwrite(fd, body, at)
        os.fdatasync(fd)
    taken = time.perf_counter() - start
    os.close(fd)
    return taken


def measure(folder: Path, entries: int, topic_counts: list[int]) -> list[Figure]:
    """All rows."""
    figures = []
    small, large = os.urandom(100), os.urandom(128 * 1024)
    with LocalStore.open(folder / "data") as store:
        (one,) = topics(store, 1, "one")
        window_1(one, small, 200)
        ours, raw = [], []
        for _ in range(ROUNDS):
            ours += window_1(one, small, 700)
            raw += raw_window_1(folder / "raw", 160, 700)
        p50, raw_p50 = quantile(ours, 0.5) * 1e3, quantile(raw, 0.5) * 1e3
        figures.append(lower("append 100 B, window 1, p50", p50, raw_p50, "ms", "pwrite+fdatasync"))
        rates = {}
        for count in topic_counts:
            opened = topics(store, count, f"of{count}")
            best = min(saturate(opened, small, entries) for _ in range(ROUNDS))
            rates[count] = entries / best
            first = rates[topic_counts[0]]
            peer = first if count != topic_counts[0] else None
            name = f"append 100 B, saturated, {count} topics"
            figures.append(higher(name, rates[count], peer, "entries/s", "one topic"))
        count = 2048
        ours_s, raw_s = [], []
        for _ in range(2 * ROUNDS):
            ours_s.append(saturate([one], large, count))
            store.checkpoint()
            raw_s.append(raw_stream(folder / "raw2", count * len(large), MIB))
        mb = count * len(large) / 1e6
        figures.append(
            higher("append 128 KiB, saturated", mb / min(ours_s), mb / min(raw_s), "MB/s",
                   "1 MiB writes, fdatasync each")
        )  # fmt: skip
    return figures


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        figures = measure(Path(folder), args.entries, args.topics)
    show("append", figures)


if __name__ == "__main__":
    main()
