"""Kills a process that writes to a store (kill -9), and checks the store after it.

    campaign = KillCampaign(folder)
    result = campaign.cycle(seed=1)      # start, load, kill, open again, compare

The killed process runs this module as a program. It appends to a few topics from a few threads,
rolls, trims, acknowledges, and prints a line for each entry after it is durable. All printed
entries must be in the store after the kill. `store_model` says what else must be true.

A kill does not test durability, since the page cache survives it; `simulated_disk` tests that. A
kill tests recovery, the lock, and all operations that are not atomic.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pulsemark.ledger import (
    EARLIEST,
    Appended,
    LedgerError,
    LocalStore,
    ManagedLedger,
    Position,
    StoreOptions,
)
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain, crc32c, peek

TOPICS = [f"persistent://public/default/killed-{number}" for number in range(4)]
OPTIONS = StoreOptions(
    segment_size_bytes=200_000, ledger_entries=4000, journal_size_bytes=1_000_000,
    checkpoint_interval_ms=300,
)  # fmt: skip
_THREADS = 3
_KEPT_ENTRIES = 3000


@dataclass(slots=True)
class CycleResult:
    """The result of one cycle."""

    acknowledged: int
    """Entries that were acknowledged before the kill."""
    ready_ms: float
    """Time to open the store and all topics after the kill."""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Acked:
    index: int
    time_ms: int
    crc: int


class KillCampaign:
    """Cycles on one data folder. Each kills a process, then checks the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._acked: dict[str, dict[Position, _Acked]] = {name: {} for name in TOPICS}

    def cycle(self, seed: int) -> CycleResult:
        """Start one process, kill it at a time that depends on the seed, and check the folder."""
        random = Random(seed)
        process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder), str(seed)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        wait_s, is_early = random.random() * 0.5, random.random() < 0.2
        # The time to the kill counts from the first acknowledgement, or (early) from the start.
        first_line = b"" if is_early else process.stdout.readline()
        killer = threading.Timer(wait_s, process.kill)
        killer.start()
        output = first_line + process.communicate()[0]
        killer.cancel()
        count = 0
        for line in output.split(b"\n")[:-1]:  # the last line may be cut
            number, ledger, entry, index, time_ms, crc = map(int, line.split())
            acked = self._acked[TOPICS[number]]
            acked[Position(ledger, entry)] = _Acked(index, time_ms, crc)
            count += 1
        result = CycleResult(count, 0.0)
        began = time.perf_counter()
        with LocalStore.open(self.folder, options=OPTIONS) as store:
            topics = [store.open_topic(name) for name in TOPICS]
            result.ready_ms = 1000 * (time.perf_counter() - began)
            for topic in topics:
                result.problems += self._check(topic)
        return result

    def _check(self, topic: ManagedLedger) -> Iterator[str]:
        acked = self._acked[topic.name]
        index, time_ms = topic.first_index, 0
        first = topic.first_position
        for position in [p for p in acked if first is None or p < first]:
            del acked[position]  # the process trimmed it and does not report this
        missing = set(acked)
        place = EARLIEST
        while part := topic.read(place, max_entries=1000):
            for entry in part:
                if entry.first_index != index or entry.append_time_ms < time_ms:
                    yield f"{topic.name} {entry.position}: index {entry.first_index}, not {index}"
                index, time_ms = entry.index + 1, entry.append_time_ms
                stamp = peek(entry.prefix)
                if stamp is not None and stamp.index != entry.index:
                    yield f"{topic.name} {entry.position}: stamped with index {stamp.index}"
                promised = acked.get(entry.position)
                if promised is None:
                    acked[entry.position] = _Acked(entry.index, time_ms, crc32c(entry.body))
                elif (promised.index, promised.crc) != (entry.index, crc32c(entry.body)):
                    yield f"{topic.name} {entry.position}: differs from what was acknowledged"
                missing.discard(entry.position)
            last = part[-1].position
            place = Position(last.ledger_id, last.entry_id + 1)
        if topic.next_index != index:
            yield f"{topic.name}: next index {topic.next_index}, not {index}"
        for position in sorted(missing):
            yield f"{topic.name}: acknowledged entry {position} is lost"


class _Worker(threading.Thread):
    """Appends to random topics until the process is killed."""

    def __init__(self, topics: list[ManagedLedger], seed: int) -> None:
        super().__init__(daemon=True)
        self._topics = topics
        self._random = Random(seed)

    def run(self) -> None:
        """Append, roll, trim and acknowledge without end."""
        random = self._random
        while True:
            number = random.randrange(len(self._topics))
            topic = self._topics[number]
            body = random.randbytes(random.choice([0, 10, 100, 100, 1000, 5000]))
            try:
                appended = topic.append(b"\1" + body, message_count=random.randint(0, 3))
            except LedgerError:
                continue
            self._report(number, appended, crc32c(b"\1" + body))
            chance = random.random()
            if chance < 0.2:
                appended.commit.wait()
            elif chance < 0.205:
                topic.roll()
            elif chance < 0.21:
                self._trim(topic)
            elif chance < 0.25:
                cursor = topic.open_cursor(self.name, initial=EARLIEST)
                cursor.ack_cumulative(appended.position)
                cursor.persist()

    def _report(self, number: int, appended: Appended, crc: int) -> None:
        position = appended.position
        facts = (number, *position, appended.index, appended.time_ms, crc)
        line = " ".join(map(str, facts)).encode() + b"\n"

        def done(error: BaseException | None) -> None:
            if error is None:
                os.write(1, line)

        appended.commit.add_done_callback(done)

    def _trim(self, topic: ManagedLedger) -> None:
        segments = topic.segments()
        entries = 0
        for segment in reversed(segments):
            entries += segment.entry_count
            if entries > _KEPT_ENTRIES:
                topic.trim(segment.first_position)
                return


def main() -> None:
    """Run as the process under load, with the arguments FOLDER SEED."""
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    store = LocalStore.open(folder, options=OPTIONS)
    topics = [store.open_topic(name) for name in TOPICS]
    for number, topic in enumerate(topics):
        if (number + seed) % 4:
            topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    workers = [_Worker(topics, 1000 * seed + number) for number in range(_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
