"""Durable appends through the ledger library alone, compared with raw writes to the same disk.

    python bench/bench_append.py [--folder DIR] [--entries N] [--topics N ...] [--only JOB ...]

The limit of each row is measured in the same run, alternating with ours: one ``pwrite`` of the same
bytes and one ``fdatasync``. Window 1: each append waits until it is durable; the figures of a round
are quantiles of its appends. Saturated: one thread appends as fast as it can, and group commit
shares the syncs. Shown are the median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from report import Figure, higher, lower, quantile, show
from rounds import add_rounds, in_turns

from pulsemark.ledger import Appended, LocalStore, ManagedLedger
from pulsemark.metadata import StamperChain

MIB = 1 << 20
#: So many that two of them are above the p99.99.
WAITING = 20_000
SHARES = {"p50": 0.5, "p99": 0.99, "p99.99": 0.9999}
JOBS = ("waiting", "saturated", "large")
LARGE = 2048


def topics(store: LocalStore, count: int, label: str) -> list[ManagedLedger]:
    """Open topics that stamp time and index."""
    opened = [store.open_topic(f"persistent://public/default/{label}-{n}") for n in range(count)]
    for topic in opened:
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
    return opened


def saturate(opened: list[ManagedLedger], body: bytes, entries: int) -> float:
    """Entries per second until appends, spread over the topics in turn, are durable."""
    last: Appended | None = None
    count = len(opened)
    start = time.perf_counter()
    for number in range(entries):
        last = opened[number % count].append(body)
    if last is not None:
        last.commit.wait()
    return entries / (time.perf_counter() - start)


def quantiles_ms(taken_s: list[float]) -> list[float]:
    """`SHARES` of some times."""
    return [quantile(taken_s, share) * 1e3 for share in SHARES.values()]


def window_1(topic: ManagedLedger, body: bytes, entries: int) -> list[float]:
    """Milliseconds of an append that waits for its own sync, at each of `SHARES`."""
    taken = []
    for _ in range(entries):
        start = time.perf_counter()
        topic.append(body).commit.wait()
        taken.append(time.perf_counter() - start)
    return quantiles_ms(taken)


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
    return quantiles_ms(taken)


def raw_stream(path: Path, total: int, chunk: int) -> float:
    """Bytes per second that are written with a sync after every ``chunk``.

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
    return total / taken


def waiting(store: LocalStore, folder: Path, rounds: int) -> Iterator[Figure]:
    """Appends that wait for their syncs, beside raw ones."""
    (one,) = topics(store, 1, "waiting")
    small = os.urandom(100)
    window_1(one, small, 200)
    ours, raw = in_turns(
        rounds,
        lambda: window_1(one, small, WAITING),
        lambda: raw_window_1(folder / "raw", 160, WAITING),
    )
    for name, mine, limit in zip(
        SHARES, zip(*ours, strict=True), zip(*raw, strict=True), strict=True
    ):
        yield lower(f"append 100 B, window 1, {name}", mine, limit, "ms", "pwrite+fdatasync")


def saturated(
    store: LocalStore, topic_counts: list[int], entries: int, rounds: int
) -> Iterator[Figure]:
    """Appends over some topics, as fast as one thread can."""
    opened = [topics(store, count, f"of{count}") for count in topic_counts]
    small = os.urandom(100)
    rates = in_turns(rounds, *(partial(saturate, some, small, entries) for some in opened))
    for count, mine in zip(topic_counts, rates, strict=True):
        peer = rates[0] if count != topic_counts[0] else None
        name = f"append 100 B, saturated, {count} topics"
        yield higher(name, mine, peer, "entries/s", "one topic")


def large(store: LocalStore, folder: Path, rounds: int) -> Figure:
    """The same of large entries, beside large writes."""
    opened, body = topics(store, 1, "large"), os.urandom(128 * 1024)

    def append_large() -> float:
        rate = saturate(opened, body, LARGE)
        store.checkpoint()
        return rate * len(body) / 1e6

    ours, raw = in_turns(
        2 * rounds,
        append_large,
        lambda: raw_stream(folder / "raw2", LARGE * len(body), MIB) / 1e6,
    )
    note = "1 MiB writes, fdatasync each"
    return higher("append 128 KiB, saturated", ours, raw, "MB/s", note)


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--only", nargs="+", choices=JOBS, default=JOBS)
    add_rounds(parser)
    args = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        with LocalStore.open(folder / "data") as store:
            if "waiting" in args.only:
                figures += waiting(store, folder, args.rounds)
            if "saturated" in args.only:
                figures += saturated(store, args.topics, args.entries, args.rounds)
            if "large" in args.only:
                figures.append(large(store, folder, args.rounds))
    show("append", figures)


if __name__ == "__main__":
    main()
