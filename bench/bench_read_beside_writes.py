"""Durable appends while other threads of the same process only read.

    python bench/bench_read_beside_writes.py [--folder DIR] [--seconds N]

One thread appends 100 bytes and waits until they are on the disk, again and again: first alone,
then with one and with four threads that read the same topic from its beginning, again and again.
All threads share the interpreter's lock, and readers yield to commits. The limit is the rate of the
appends alone, before and after. Each row is measured once, for some seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from report import Figure, higher, lower, quantile, show

from pulsemark.finder.stream import ReadPlan, entry_responses
from pulsemark.ledger import EARLIEST, LocalStore, ManagedLedger, Position
from pulsemark.metadata import StamperChain

ENTRIES = 100_000
BODY = bytes(100)


def read_all(topic: ManagedLedger, count: Callable[[int], object]) -> None:
    """Read the topic once, entry by entry."""
    position = EARLIEST
    while entries := topic.read(position, max_entries=1000):
        count(len(entries))
        last = entries[-1].position
        position = Position(last.ledger_id, last.entry_id + 1)


def stream_all(topic: ManagedLedger, count: Callable[[int], object]) -> None:
    """Read the topic once, as ReadEntries does."""
    for response in entry_responses(topic, ReadPlan(EARLIEST, None, None, False)):
        count(len(response.pieces))


class Readers:
    """Threads that read, and the number of entries they have read."""

    def __init__(self, topic: ManagedLedger, number: int, read: Callable[..., None]) -> None:
        self._topic, self._read = topic, read
        self._stop = threading.Event()
        self.entries = [0] * number
        self._threads = [threading.Thread(target=self._run, args=[n]) for n in range(number)]

    def _run(self, number: int) -> None:
        class StoppedError(Exception):
            pass

        def count(entries: int) -> None:
            self.entries[number] += entries
            if self._stop.is_set():
                raise StoppedError

        try:
            while True:
                self._read(self._topic, count)
        except StoppedError:
            return

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def append_for(topic: ManagedLedger, seconds: float) -> list[float]:
    """How long each durable append took, in seconds."""
    taken = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        topic.append(BODY).commit.wait()
        taken.append(time.perf_counter() - started)
    return taken


def measure(folder: Path, seconds: float) -> list[Figure]:
    """All rows."""
    figures = []
    with LocalStore.open(folder / "data") as store:
        topic = store.open_topic("persistent://public/default/beside")
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
        for _ in range(ENTRIES):
            appended = topic.append(BODY)
        appended.commit.wait()
        for read, what in ((read_all, "reading"), (stream_all, "streaming")):
            with Readers(topic, 1, read) as unhindered:
                time.sleep(seconds)
            read_alone = sum(unhindered.entries) / seconds
            for number in (1, 4):
                alone = append_for(topic, seconds / 2)
                with Readers(topic, number, read) as readers:
                    beside = append_for(topic, seconds)
                alone += append_for(topic, seconds / 2)
                name = f"durable appends beside {number} {what}"
                figures.append(
                    higher(name, len(beside) / seconds, len(alone) / seconds, "1/s", "alone")
                )
                name = f"median append beside {number} {what}"
                medians = quantile(beside, 0.5) * 1e3, quantile(alone, 0.5) * 1e3
                figures.append(lower(name, *medians, "ms", "alone"))
                rate, least = sum(readers.entries) / seconds, min(readers.entries) / seconds
                name = f"{number} {what} beside durable appends (the slowest {least:,.0f})"
                figures.append(higher(name, rate, read_alone, "1/s", "one, alone"))
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--seconds", type=float, default=4, help="for each row")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        show("durable appends beside readers", measure(Path(folder), arguments.seconds))


if __name__ == "__main__":
    main()
