"""The CPU cost of a published message in the broker, at a fixed rate, by part.

    python bench/bench_cost.py [--rates N ...] [--seconds N] [--rounds N] [--against FOLDER]
                               [--pulsar-perf HOME]

At a low rate each message wakes the broker separately. So the cost of a wake-up becomes visible: a
turn of the event loop, the hand-over to the committer thread and back, a sync, a write. A simple
sender sends one frame of 100 bytes at a time, unbatched, at its due time. The CPU time of each
thread comes from /proc. "Wake-ups" counts how often a thread slept and continued.

On a busy machine the sender would be late and send several frames at once, which then cost less.
So sender and broker run before all ordinary processes, if the user may set that. Check that
"writes of the sender" is close to 1 before you compare.

The peer of each row is ``null_broker.py``, which stores nothing and has one thread: the cost of the
protocol and the sockets in a Python process. With ``--against`` it is the broker of another
checkout of this project, under the same load in turns. ``--pulsar-perf`` takes Apache Pulsar's own
client for the sender, from an unpacked distribution; it takes a processor for itself. Shown are the
median of the rounds, the lowest and the highest. TMPDIR says on which disk the data is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench_produce import Sender, run_first, running_broker, send_frame
from report import Figure, lower, show
from rounds import add_rounds, in_turns

RATES = (3_000, 15_000)
WARM_UP_S = 1.0
PERF_WARM_UP_S = 10.0
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
    assert process.pid is not None
    run_first(pid, 1)
    run_first(process.pid, 2)
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


def perf_rate(home: Path, url: str, pid: int, rate: int, seconds: float) -> Cost:
    """The cost while pulsar-perf publishes. It reports no writes, and counts warm-up for itself."""
    options = ["-s", "100", "-db", "-r", str(rate), "-time", str(int(PERF_WARM_UP_S + seconds + 5))]
    topic = f"persistent://public/default/cost-{os.getpid()}"
    command = [str(home / "bin" / "pulsar-perf"), "produce", "-u", url, *options, topic]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(PERF_WARM_UP_S)
        before, began = thread_use(pid), time.perf_counter()
        time.sleep(seconds)
        after, taken_s = thread_use(pid), time.perf_counter() - began
    finally:
        process.wait(PERF_WARM_UP_S + seconds + 60)
    used = {thread: spent.since(before.get(thread, NOTHING)) for thread, spent in after.items()}
    return cost_of(pid, int(rate * taken_s), 0, used)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, help="messages per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    add_rounds(parser)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--pulsar-perf", type=Path, metavar="HOME", help="a distribution")
    arguments = parser.parse_args()
    against, home = arguments.against, arguments.pulsar_perf
    peer = partial(running_broker, against) if against or home else null_broker
    peer_name = str(against) if against else "null broker"

    def one_round(broker: Callable[[], AbstractContextManager[tuple[int, str]]], rate: int) -> Cost:
        with broker() as (pid, url):
            if home is not None:
                return perf_rate(home, url, pid, rate, arguments.seconds)
            return cost_of(pid, *measure(url, pid, rate, arguments.seconds))

    figures: list[Figure] = []
    for rate in arguments.rates:
        sides = (partial(one_round, broker, rate) for broker in (running_broker, peer))
        ours, peers = in_turns(arguments.rounds, *sides)
        figures += figures_of(f"{rate:,}/s", ours, peers, peer_name)
    show("cost of a published message", figures)


PARTS = {
    "CPU": ("total_us", "us/message"),
    "CPU of the loop's thread": ("loop_us", "us/message"),
    "CPU of the committer's thread": ("committer_us", "us/message"),
    "CPU in the kernel": ("system_us", "us/message"),
    "wake-ups of the loop": ("loop_wake_ups", "1/message"),
    "wake-ups of the committer": ("committer_wake_ups", "1/message"),
    "writes of the sender": ("writes", "1/message"),
}


def figures_of(
    rate: str, ours: Sequence[Cost], peers: Sequence[Cost], peer_name: str
) -> list[Figure]:
    """The rows of one rate."""
    rows = []
    for name, (part, unit) in PARTS.items():
        mine, theirs = ([getattr(cost, part) for cost in costs] for costs in (ours, peers))
        rows.append(lower(f"{name}, {rate}", mine, theirs, unit, peer_name))
    return rows


if __name__ == "__main__":
    main()
