"""What the benches of Spark's pipeline share: topics to read, processor time, rows of Markdown.

Processor time is that of this process and of all that descend from it: Spark's JVM, its Python
daemon, its workers. On a machine that does other work too, it says more than the wall clock. Each
cell of a table is the median of the rounds, in brackets the lowest and the highest.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from report import Figure, higher, lower

from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.testing.raw_messages import batched_message, unbatched_message

SHAPES = {
    "100 B": (100, 1), "100 B in batches": (100, 100), "1 KiB": (1024, 1), "50 to 150 B": (100, 1),
}  # fmt: skip
"""Bytes of a message, messages of an entry."""
_POOL_BYTES = 16 << 20
"""So many bytes of messages are made and repeated: more than compression and dictionaries see."""


def fill(path: Path, rows: int, shapes: Sequence[str] = tuple(SHAPES)) -> None:
    """A folder with one topic of each shape, unless it exists already."""
    if path.exists():
        return
    with LocalStore.open(path) as store:
        for name in shapes:
            size, batch = SHAPES[name]
            topic = store.open_topic(topic_of(name))
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            spread = size // 2 if " to " in name else 0
            bodies = itertools.cycle(_bodies(size, batch, spread))
            appended = None
            for body in itertools.islice(bodies, rows_of(name, rows) // batch):
                appended = topic.append(body, message_count=batch)
            if appended is not None:
                appended.commit.wait()


def topic_of(shape: str) -> str:
    """The topic of a shape."""
    return f"persistent://public/default/shape-{list(SHAPES).index(shape)}"


def rows_of(shape: str, rows: int) -> int:
    """The rows of a shape: fewer for large messages, so that all shapes have a similar size."""
    size, batch = SHAPES[shape]
    return (rows if size < 1000 else rows // 4) // batch * batch


def _bodies(size: int, batch: int, spread: int) -> list[bytes]:
    """Entries whose messages have so many bytes, more or less by up to ``spread``."""
    bodies, chance = [], random.Random(1)
    for at in range(max(1, _POOL_BYTES // (size * batch))):
        payloads = [os.urandom(size + chance.randint(-spread, spread)) for _ in range(batch)]
        publish_time_ms = 1_700_000_000_000 + at
        bodies.append(
            unbatched_message(payloads[0], publish_time_ms=publish_time_ms)
            if batch == 1
            else batched_message(payloads, publish_time_ms=publish_time_ms)
        )
    return bodies


@dataclass(frozen=True, slots=True)
class Cost:
    """What one round took."""

    wall_s: float
    cpu_s: float


def cost_of(run: Callable[[], object]) -> Cost:
    """What a call takes, in this process and in all that descend from it."""
    before, start = tree_cpu_s(), time.perf_counter()
    run()
    wall_s = time.perf_counter() - start
    return Cost(wall_s, tree_cpu_s() - before)


def tree_cpu_s() -> float:
    """Processor time (user and system) of this process and of all that descend from it."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for pid, parent, spent in processes():
        children.setdefault(parent, []).append(pid)
        ticks[pid] = spent
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def processes() -> Iterator[tuple[int, int, int]]:
    """Of each process: its id, its parent's, and its ticks, with those of children that ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15]))


@dataclass(frozen=True, slots=True)
class Job:
    """The rounds of one job, and perhaps those of a peer that does the same."""

    name: str
    rows: int
    ours: Sequence[Cost]
    peer: Sequence[Cost] | None = None

    def speed(self) -> Figure:
        """Millions of rows in a second."""
        ours, peer = self._each(lambda cost: self.rows / cost.wall_s / 1e6)
        return higher(self.name, ours, peer, "M rows/s")

    def cpu(self) -> Figure:
        """Microseconds of processor time for a row."""
        ours, peer = self._each(lambda cost: cost.cpu_s / self.rows * 1e6)
        return lower(self.name, ours, peer, "us a row")

    def _each(self, figure: Callable[[Cost], float]) -> tuple[list[float], list[float] | None]:
        """A figure of every round, of both sides."""
        peer = None if self.peer is None else list(map(figure, self.peer))
        return list(map(figure, self.ours)), peer


def show(title: str, jobs: Sequence[Job], peer: str) -> None:
    """Print a table in Markdown and a line of JSON."""
    print(f"| {title} | M rows/s | {peer} | ratio | CPU a row | of {peer} |")
    print("|---|---|---|---|---|---|")
    figures = []
    for job in jobs:
        speed, cpu = job.speed(), job.cpu()
        cells = [job.name, speed.ours.text(), "-", "-", cpu.ours.text(" us"), "-"]
        if speed.peer is not None and cpu.peer is not None:
            cells[2:4] = [speed.peer.text(), f"{speed.ratio:.2f}x"]
            cells[5] = cpu.peer.text(" us")
        print("| " + " | ".join(cells) + " |")
        figures += [asdict(speed), asdict(cpu)]
    print(json.dumps({"bench": title, "figures": figures}), flush=True)
