"""Sequential reads of a ledger from warm memory, compared with plain ``pread`` of the same file.

    python bench/bench_read.py [--folder DIR] [--megabytes N] [--rounds N]

``stored``: the entries' bytes as views, checksums checked. ``entries``: an object per entry with
position, index, time and prefix. The limit ignores the content. All take turns; shown are the
median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

from report import Figure, higher, show
from rounds import Sample, add_rounds, in_turns, seconds_of

from pulsemark.ledger import EARLIEST, LocalStore, ManagedLedger, Position
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import StamperChain

MIB = 1 << 20


def read_stored(topic: ManagedLedger) -> int:
    """Entries read by ``read_stored``."""
    position, count = EARLIEST, 0
    while True:
        first, entries = topic.read_stored(position)
        if not entries:
            return count
        count += len(entries)
        position = Position(first.ledger_id, first.entry_id + len(entries))


def read_entries(topic: ManagedLedger) -> int:
    """Entries read by ``read``."""
    position, count = EARLIEST, 0
    while entries := topic.read(position, max_entries=10_000, max_bytes=4 * MIB):
        count += len(entries)
        last = entries[-1].position
        position = Position(last.ledger_id, last.entry_id + 1)
    return count


def read_files(paths: list[Path]) -> int:
    """Bytes read by pread alone, 4 MiB at a time."""
    total = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        at = 0
        while data := os.pread(fd, 4 * MIB, at):
            at += len(data)
        os.close(fd)
        total += at
    return total


def measure(folder: Path, megabytes: int, rounds: int) -> list[Figure]:
    """All rows."""
    figures = []
    for size, label in ((100, "100 B"), (1024, "1 KiB"), (128 * 1024, "128 KiB")):
        with LocalStore.open(folder / label.replace(" ", "")) as store:
            topic = store.open_topic("persistent://public/default/read")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            count = min(megabytes * MIB // size, 400_000)
            body = os.urandom(size)
            appended = None
            for _ in range(count):
                appended = topic.append(body)
            if appended is not None:
                appended.commit.wait()
            store.checkpoint()
            paths = [segment.path for segment in map(as_segment, topic.segments())]
            mb = sum(path.stat().st_size for path in paths) / 1e6
            reads = {
                "pread": partial(read_files, paths),
                "stored": partial(read_stored, topic),
                "entries": partial(read_entries, topic),
            }
            taken = in_turns(rounds, *(partial(seconds_of, read) for read in reads.values()))
            limit, *ours = ([mb / taken_s for taken_s in column] for column in taken)
            for how, rates in zip(list(reads)[1:], ours, strict=True):
                entries = Sample.of([rate / mb * count / 1e6 for rate in rates])
                name = f"read {label}, {how}: {entries.text(' M entries/s')}"
                figures.append(higher(name, rates, limit, "MB/s", "pread"))
    return figures


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--megabytes", type=int, default=256, help="of payload, per size")
    add_rounds(parser, 5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        figures = measure(Path(folder), args.megabytes, args.rounds)
    show("read", figures)


if __name__ == "__main__":
    main()
