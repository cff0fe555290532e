"""The time to open a data folder after its owner was killed, and the cost of many topics.

    python bench/bench_recovery.py [--entries N ...] [--topics N] [--folder DIR]

A child process appends and is killed without warning. "Ready" means: the folder and the topic are
open, and the last entry was read. It is compared with one sequential read of all the topic's bytes
in the same run, the least work of a recovery without index and checkpoints. Each is measured once.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Figure, lower, show

from pulsemark.ledger import LocalStore, Position
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import StamperChain

MIB = 1 << 20
TOPIC = "persistent://public/default/recovery"


def fill_and_die(folder: Path, entries: int) -> None:
    """Append, wait for all acknowledgements, and end as with kill -9."""
    store = LocalStore.open(folder)
    topic = store.open_topic(TOPIC)
    topic.stampers = StamperChain.from_names(["broker-time", "index"])
    body = bytes(100)
    appended = None
    for _ in range(entries):
        appended = topic.append(body)
    if appended is not None:
        appended.commit.wait()
    os._exit(0)


def open_again(folder: Path, entries: int) -> tuple[float, float]:
    """Seconds until ready, and to read all bytes."""
    start = time.perf_counter()
    store = LocalStore.open(folder)
    topic = store.open_topic(TOPIC)
    last = topic.last_position
    if topic.next_index != entries or last is None or not topic.read(last):
        raise SystemExit(f"{entries} entries were acknowledged, {topic.next_index} are there")
    ready = time.perf_counter() - start
    start = time.perf_counter()
    for segment in map(as_segment, topic.segments()):
        fd = os.open(segment.path, os.O_RDONLY)
        at = 0
        while data := os.pread(fd, 4 * MIB, at):
            at += len(data)
        os.close(fd)
    read = time.perf_counter() - start
    store.close()
    return ready, read


def many_topics(folder: Path, count: int) -> list[Figure]:
    """Memory and open files of a store with ``count`` topics that have all been written to."""
    before = resident_kib()
    with LocalStore.open(folder) as store:
        empty = resident_kib()
        topics = [store.open_topic(f"persistent://public/default/t{n}") for n in range(count)]
        chain = StamperChain.from_names(["broker-time", "index"])
        for topic in topics:
            topic.stampers = chain
            commit = topic.append(bytes(100)).commit
        commit.wait()
        used = (resident_kib() - empty) / count
        files = len(list(Path("/proc/self/fd").iterdir()))
        if any(not topic.read(Position(0, 0)) for topic in topics):
            raise SystemExit("a topic lost its entry")
    return [
        lower(f"memory per topic, {count:,} topics", used, None, "KiB"),
        lower("memory of an empty store", (empty - before) / 1024, None, "MiB"),
        lower(f"open files, {count:,} topics", files, None, "files"),
    ]


def resident_kib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def measure(folder: Path, sizes: list[int], topics: int) -> list[Figure]:
    """All rows."""
    figures = []
    for entries in sizes:
        data = folder / f"of{entries}"
        command = [sys.executable, __file__, "--child", str(data), str(entries)]
        subprocess.run(command, check=True)
        ready, read = open_again(data, entries)
        name = f"ready after kill -9, {entries:,} entries"
        figures.append(lower(name, ready * 1e3, read * 1e3, "ms", "reading all bytes"))
    return figures + many_topics(folder / "topics", topics)


def main() -> None:
    """Parse arguments, measure, print."""
    if sys.argv[1:2] == ["--child"]:
        fill_and_die(Path(sys.argv[2]), int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        figures = measure(Path(folder), args.entries, args.topics)
    show("recovery", figures)


if __name__ == "__main__":
    main()
