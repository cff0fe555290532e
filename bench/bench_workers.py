"""Publishing to one worker and to two: what a second processor core gives.

    python bench/bench_workers.py [--seconds 10] [--topics 8] [--senders 2] [--workers 2]

Senders are processes of their own, each with its share of the topics. They send prepared frames of
100 bytes, unbatched, and keep a window of them unanswered. The peer of each row is one worker (a
supervisor with one broker) in the same run, in turns. Shown are the median of the rounds, the
lowest and the highest. On a machine whose cores the senders need themselves, the figures show the
senders' share, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pulsar
from report import higher, show
from rounds import add_rounds, in_turns

WINDOW = 1_000
BODY = bytes(100)


@contextmanager
def running(workers: int) -> Iterator[dict[str, Any]]:
    """What the supervisor says of itself."""
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as folder:
        command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0"]
        command += ["--http-port", "0", "--data-dir", f"{folder}/data", "--workers", str(workers)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(60)


def send(url: str, topics: list[str], seconds: float, batching: bool, out: Connection) -> None:
    """One sender: how many messages were acknowledged in the measured time."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producers = [
        client.create_producer(
            topic,
            batching_enabled=batching,
            max_pending_messages=WINDOW,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        for topic in topics
    ]
    acknowledged = 0

    def done(result: pulsar.Result, _: object) -> None:
        nonlocal acknowledged
        acknowledged += result == pulsar.Result.Ok

    began_s = time.monotonic()
    warm_s, end_s = began_s + seconds / 4, began_s + seconds * 5 / 4
    at_warm = -1
    while time.monotonic() < end_s:
        for producer in producers:
            for _ in range(20):
                producer.send_async(BODY, done)
        if at_warm < 0 and time.monotonic() >= warm_s:
            at_warm, warm_s = acknowledged, time.monotonic()
    out.send((acknowledged - at_warm) / (time.monotonic() - warm_s))
    client.close()


def measure(workers: int, arguments: argparse.Namespace, *, batching: bool) -> float:
    """Messages per second of all senders together."""
    with running(workers) as ready:
        topics = [f"persistent://public/default/b-{n}" for n in range(arguments.topics)]
        pipes, senders = [], []
        for number in range(arguments.senders):
            ours, theirs = multiprocessing.Pipe()
            share = topics[number :: arguments.senders]
            sender = multiprocessing.get_context("spawn").Process(
                target=send, args=(ready["service_url"], share, arguments.seconds, batching, theirs)
            )
            sender.start()
            pipes.append(ours)
            senders.append(sender)
        rates = [float(pipe.recv()) for pipe in pipes]
        for sender in senders:
            sender.join()
        return sum(rates)


def main() -> None:
    """Measure one worker and several, in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--topics", type=int, default=8)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    add_rounds(parser)
    arguments = parser.parse_args()
    figures = []
    for batching in (False, True):
        many, one = in_turns(
            arguments.rounds,
            partial(measure, arguments.workers, arguments, batching=batching),
            partial(measure, 1, arguments, batching=batching),
        )
        name = f"publish 100 B, {'batched' if batching else 'unbatched'}"
        figures.append(higher(name, many, one, "messages/s", "1 worker"))
    show(f"{arguments.workers} workers beside 1", figures)


if __name__ == "__main__":
    main()
