"""The cost of a publish in the broker: SEND frames from a very simple sender.

    python bench/bench_produce.py [--messages N] [--topics N ...] [--rounds N]

pulsar-perf needs more of the machine than the broker, so it shows both together. This sender
prepares its frames before it begins, keeps ``--window`` of them unanswered, and only counts the
receipts. The peer of each row is one topic in the same run. CPU is the time of all threads of the
broker's process. Shown are the median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench_startup import broker, start, stop
from raw_publisher import PublishingConnection
from report import Figure, higher, lower, show
from rounds import add_rounds, in_turns

from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

PREPARED = 20_000
BODY_BYTES = 100


@contextmanager
def running_broker(sources: Path | None = None, settings: str = "") -> Iterator[tuple[int, str]]:
    """A broker's process id and service URL.

    ``sources`` is another checkout whose broker is to be run, ``settings`` the lines of its
    configuration file.
    """
    environment = {"PYTHONPATH": str(sources / "src")} if sources is not None else {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "broker.conf"
        config.write_text(settings, encoding="ascii")
        command = broker("--data-dir", str(Path(folder) / "data"), "--config", str(config))
        process, ready, _ = start(command, environment)
        try:
            yield process.pid, ready["service_url"]
        finally:
            stop(process)


def run_first(pid: int, priority: int) -> None:
    """Let a process run before all ordinary ones, where this user may.

    On a busy machine a sender would otherwise be late and send several frames at once, and a
    broker would read several at once: then each message seems to cost less than it does.
    """
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(priority))
    except PermissionError:
        print("may not set priorities: only compare runs on a quiet machine", file=sys.stderr)


def send_frame(producer_id: int, sequence_id: int) -> bytes:
    """A SEND of one message, as unbatched clients send it."""
    body = unbatched_message(
        bytes(BODY_BYTES), publish_time_ms=0, producer_name="p", sequence_id=sequence_id
    )
    return b"".join(commands.send(producer_id, sequence_id, body))


class Sender(PublishingConnection):
    """A sender of so many frames, or of so many a second."""

    def publish(self, frames: Sequence[bytes], messages: int, window: int) -> None:
        """Send the frames in turns, ``messages`` in all, ``window`` of them unanswered."""
        step = window // 8
        blobs = [b"".join(frames[at : at + step]) for at in range(0, len(frames), step)]
        sent = received = turn = 0
        while received < messages:
            while sent < messages and sent - received <= window - step:
                self.send(blobs[turn % len(blobs)])
                sent += min(step, len(frames) - turn % len(blobs) * step)
                turn += 1
            received += self.receive()

    def publish_at_rate(
        self, frames: Sequence[bytes], rate: int, seconds: float
    ) -> tuple[int, int]:
        """Send each frame at its due time; return the frames sent and answered, and the writes.

        If this process is late, frames that are due together go out in one write.
        """
        sent = received = writes = 0
        total = int(rate * seconds)
        start = time.perf_counter()
        while sent < total:
            due = min(total, int((time.perf_counter() - start) * rate) + 1)
            if due > sent:
                self.send(b"".join(frames[n % len(frames)] for n in range(sent, due)))
                sent = due
                writes += 1
            received += self.received_already()
            time.sleep(max(0.0, start + sent / rate - time.perf_counter()))
        while received < sent:
            received += self.receive()
        return sent, writes


def run_sender(url: str, topics: int, messages: int, window: int, result: object) -> None:
    """The sender's process: reports the seconds that it took."""
    sender = Sender(url)
    names = [f"persistent://public/default/of{topics}-{n}-{os.getpid()}" for n in range(topics)]
    sender.open_producers(names)
    frames = [send_frame(n % topics, n // topics) for n in range(PREPARED)]
    sender.publish(frames, PREPARED, window)
    result.send("ready")  # type: ignore[attr-defined]
    start = time.perf_counter()
    sender.publish(frames, messages, window)
    result.send(time.perf_counter() - start)  # type: ignore[attr-defined]


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(topics: int, messages: int, window: int) -> tuple[float, float]:
    """Messages per second, and CPU of the broker per message in microseconds; a new broker."""
    with running_broker() as (pid, url):
        return rate_and_cpu(pid, messages, run_sender, url, topics, messages, window)


def rate_and_cpu(
    pid: int, messages: int, client: Callable[..., None], *arguments: object
) -> tuple[float, float]:
    """Messages per second of a client in a process of its own, and the broker's CPU for each in us.

    The client is called with the arguments and a connection, to which it sends when it is ready,
    and then the seconds that its work took.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=client, args=(*arguments, theirs))
    process.start()
    ours.recv()
    before = cpu_s(pid)
    taken = ours.recv()
    used = cpu_s(pid) - before
    process.join()
    return messages / taken, used / messages * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--window", type=int, default=8_000)
    add_rounds(parser)
    arguments = parser.parse_args()
    loads = [
        partial(measure, topics, arguments.messages, arguments.window)
        for topics in arguments.topics
    ]
    figures: list[Figure] = []
    one: list[list[float]] = []
    for topics, got in zip(arguments.topics, in_turns(arguments.rounds, *loads), strict=True):
        rates, cpus_us = [rate for rate, _ in got], [cpu_us for _, cpu_us in got]
        peer, peer_us = one or (None, None)
        one = one or [rates, cpus_us]
        name = f"publish 100 B, no batching, {topics} topics"
        figures.append(higher(name, rates, peer, "messages/s", "one topic"))
        name = f"CPU of the broker, {topics} topics"
        figures.append(lower(name, cpus_us, peer_us, "us/message", "one topic"))
    show("publishing", figures)


if __name__ == "__main__":
    main()
