"""The CPU cost of a published message in the broker, at a fixed rate, by part.

    python bench/bench_cost.py [--rates N ...] [--seconds N] [--rounds N] [--peer URL PID]

At a low rate each message wakes the broker separately. So the cost of a wake-up becomes visible: a
turn of the event loop, the hand-over to the committer thread and back, a sync, a write. A simple
sender sends one frame of 100 bytes at a time, unbatched, at its due time. The CPU time of each
thread comes from /proc. "Wake-ups" counts how often a thread slept and continued.

On a busy machine the sender is late and sends several frames at once, which then cost less. Check
"writes of the sender" before you compare.

The limit of each row is ``null_broker.py``, which stores nothing and has one thread. It shows the
cost of the protocol and the sockets in a Python process. ``--peer`` measures another broker on this
machine, for example Apache Pulsar, under the same load.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_produce import Sender, running_broker, send_frame
from report import Figure, lower, show

RATES = (3_000, 15_000)
WARM_UP_S = 1.0
PREPARED = 20_000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Spent:
    """The CPU time and wake-ups of one thread since it started."""

    user_s: float
    system_s: float
    total_s: float
    wake_ups: int

    def since(self, before: Spent) -> Spent:
        """The difference to ``before``."""
        return Spent(
            self.user_s - before.user_s,
            self.system_s - before.system_s,
            self.total_s - before.total_s,
            self.wake_ups - before.wake_ups,
        )


NOTHING = Spent(0.0, 0.0, 0.0, 0)


def thread_use(pid: int) -> dict[int, Spent]:
    """By thread id. User and system time are sampled by the kernel's clock, their sum is exact."""
    use = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            total_ns = int((folder / "schedstat").read_text().split()[0])
            status = (folder / "status").read_text()
        except OSError:
            continue  # it has ended
        wake_ups = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        user_s, system_s = int(fields[11]) * TICK_S, int(fields[12]) * TICK_S
        use[int(folder.name)] = Spent(user_s, system_s, total_ns / 1e9, wake_ups)
    return use


def run_sender(url: str, rate: int, seconds: float, result: object) -> None:
    """The sender's process: reports when it is warm, and at the end how many it has sent since."""
    sender = Sender(url)
    sender.open_producers([f"persistent://public/default/cost-{os.getpid()}"])
    frames = [send_frame(0, n) for n in range(PREPARED)]
    sender.publish_at_rate(frames, rate, WARM_UP_S)
    result.send(0)  # type: ignore[attr-defined]
    result.send(sender.publish_at_rate(frames, rate, seconds))  # type: ignore[attr-defined]


def measure(url: str, pid: int, rate: int, seconds: float) -> tuple[int, int, dict[int, Spent]]:
    """How many messages were answered, how many writes they came in, and what each thread used."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=run_sender, args=(url, rate, seconds, theirs))
    process.start()
    try:
        ours.recv()
        before = thread_use(pid)
        messages, writes = ours.recv()
        after = thread_use(pid)
    finally:
        process.join()
    used = {thread: spent.since(before.get(thread, NOTHING)) for thread, spent in after.items()}
    return messages, writes, used


@contextmanager
def null_broker() -> Iterator[tuple[int, str]]:
    """The process id and service URL of the broker that stores nothing."""
    command = [sys.executable, str(Path(__file__).with_name("null_broker.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds and wake-ups per message, by part."""

    total_us: float
    loop_us: float
    committer_us: float
    system_us: float
    loop_wake_ups: float
    committer_wake_ups: float
    writes: float


def cost_of(pid: int, messages: int, writes: int, used: dict[int, Spent]) -> Cost:
    """The cost by part: the main thread runs the event loop, the busiest other thread commits."""
    loop = used[pid]
    others = [spent for thread, spent in used.items() if thread != pid]
    committer = max(others, key=lambda spent: spent.total_s, default=NOTHING)
    everything = [loop, *others]
    to_us = 1e6 / messages
    return Cost(
        sum(spent.total_s for spent in everything) * to_us,
        loop.total_s * to_us,
        committer.total_s * to_us,
        sum(spent.system_s for spent in everything) * to_us,
        loop.wake_ups / messages,
        committer.wake_ups / messages,
        writes / messages,
    )


def median(costs: Sequence[Cost], part: str) -> float:
    """The median of one part over the rounds."""
    return float(statistics.median(getattr(cost, part) for cost in costs))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="messages per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", nargs=2, metavar=("URL", "PID"), help="another running broker")
    arguments = parser.parse_args()
    ours: dict[int, list[Cost]] = {}
    limits: dict[int, list[Cost]] = {}
    peers: dict[int, list[float]] = {}
    for _ in range(arguments.rounds):
        for rate in arguments.rates:
            for costs, broker in ((ours, running_broker), (limits, null_broker)):
                with broker() as (pid, url):
                    got = measure(url, pid, rate, arguments.seconds)
                costs.setdefault(rate, []).append(cost_of(pid, *got))
            if arguments.peer:
                url, pid = arguments.peer[0], int(arguments.peer[1])
                messages, _, used = measure(url, pid, rate, arguments.seconds)
                total_s = sum(spent.total_s for spent in used.values())
                peers.setdefault(rate, []).append(total_s / messages * 1e6)
    figures: list[Figure] = []
    for rate in arguments.rates:
        figures += figures_of(f"{rate:,}/s", ours[rate], limits[rate], peers.get(rate))
    show("cost of a published message", figures)


def figures_of(
    rate: str, ours: Sequence[Cost], limits: Sequence[Cost], peers: Sequence[float] | None
) -> list[Figure]:
    """The rows of one rate."""

    def row(name: str, part: str, unit: str, limit: str | None) -> Figure:
        peer = median(limits, limit) if limit else None
        return lower(f"{name}, {rate}", median(ours, part), peer, unit, "null broker" * bool(limit))

    rows = [
        row("CPU", "total_us", "us/message", "total_us"),
        row("CPU of the loop's thread", "loop_us", "us/message", "loop_us"),
        row("CPU of the committer's thread", "committer_us", "us/message", None),
        row("CPU in the kernel", "system_us", "us/message", "system_us"),
        row("wake-ups of the loop", "loop_wake_ups", "1/message", "loop_wake_ups"),
        row("wake-ups of the committer", "committer_wake_ups", "1/message", None),
        row("writes of the sender", "writes", "1/message", "writes"),
    ]
    if peers:
        total_us = median(ours, "total_us")
        rows.insert(
            1, lower(f"CPU, {rate}", total_us, statistics.median(peers), "us/message", "peer")
        )
    return rows


if __name__ == "__main__":
    main()
