"""Publish, consume and seek with the official client, compared with a broker that stores nothing.

    python bench/bench_client.py [--folder DIR] [--messages N] [--rounds N]

The limit of each row is measured in the same run, alternating with ours: the same client and load
with null_broker.py, which answers everything and stores nothing. The difference to 1.00x is the
cost of storing, syncing and finding. A seek has another limit: the client itself waits 100 ms
before it reconnects. Shown are the median of the rounds, the lowest and the highest; the figure of
a round of waiting sends or of seeks is their p50.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
from null_broker import LARGE_BYTES, SMALL_BYTES
from report import Figure, higher, lower, quantile, show
from rounds import add_rounds, in_turns

RECEIVE_TIMEOUT_MS = 30_000
RECONNECT_MS = 100.0
MB = 1_000_000


@contextmanager
def process(*arguments: str) -> Iterator[str]:
    """Run a program with this Python; yields the first line it prints."""
    started = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    try:
        yield started.stdout.readline().strip()
    finally:
        started.terminate()
        started.wait(30)
        started.stdout.close()


def connect(url: str) -> pulsar.Client:
    """An official client that logs only errors."""
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def publish(
    client: pulsar.Client, topic: str, count: int, size_bytes: int, **options: Any
) -> float:
    """Messages per second, from the first send to the last receipt."""
    producer = client.create_producer(
        topic,
        **{
            "block_if_queue_full": True,
            "max_pending_messages": 1_000,
            "send_timeout_millis": 120_000,
            **options,
        },
    )
    payload = bytes(size_bytes)
    left, done, failed = [count], threading.Event(), [0]

    def acknowledged(result: pulsar.Result, _: object) -> None:
        failed[0] += result != pulsar.Result.Ok
        left[0] -= 1
        if not left[0]:
            done.set()

    started = time.perf_counter()
    for _ in range(count):
        producer.send_async(payload, acknowledged)
    producer.flush()
    done.wait(120)
    seconds = time.perf_counter() - started
    producer.close()
    if failed[0] or left[0]:
        raise SystemExit(f"{topic}: {failed[0]} refused, {left[0]} never answered")
    return count / seconds


def window_1_ms(client: pulsar.Client, topic: str, count: int) -> list[float]:
    """Milliseconds of each send that waits for its receipt."""
    producer = client.create_producer(topic, batching_enabled=False)
    payload, taken = bytes(SMALL_BYTES), []
    for _ in range(count):
        started = time.perf_counter()
        producer.send(payload)
        taken.append((time.perf_counter() - started) * 1_000)
    producer.close()
    return taken[count // 10 :]


def consume(client: pulsar.Client, topic: str, count: int) -> float:
    """Messages per second of a reader that catches up from the beginning."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5_000)
    reader.read_next(RECEIVE_TIMEOUT_MS)
    started = time.perf_counter()
    for _ in range(count - 1):
        reader.read_next(RECEIVE_TIMEOUT_MS)
    seconds = time.perf_counter() - started
    reader.close()
    return (count - 1) / seconds


def seek_ms(client: pulsar.Client, topic: str, times_ms: list[int]) -> list[float]:
    """From client.seek(time) to the first message."""
    consumer = client.subscribe(
        topic, "s", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
    )
    taken = []
    for time_ms in times_ms:
        started = time.perf_counter()
        consumer.seek(time_ms)
        consumer.receive(RECEIVE_TIMEOUT_MS)
        taken.append((time.perf_counter() - started) * 1_000)
    consumer.close()
    return taken[len(times_ms) // 10 :]


def measure(url: str, null_url: str, messages: int, rounds: int) -> list[Figure]:
    """All rows; each load alternates between the two brokers."""
    ours, null = connect(url), connect(null_url)

    def both(load: Callable[[pulsar.Client], float]) -> list[list[float]]:
        return in_turns(rounds, partial(load, ours), partial(load, null))

    mine, limit = both(lambda client: quantile(window_1_ms(client, "w1", 1_000), 0.5))
    figures = [lower("durable send, window 1, 100 B, p50", mine, limit, "ms")]
    batching = {
        "max_pending_messages": 50_000,
        "batching_enabled": True,
        "batching_max_messages": 1_000,
        "batching_max_publish_delay_ms": 5,
    }
    large = max(200, messages // 100)
    for name, topic, count, size, unit_size, unit, options in (
        ("publish 100 B, no batching", "single", messages, SMALL_BYTES, 1, "msg/s", {}),
        ("publish 100 B, batching", "batched", messages * 3, SMALL_BYTES, 1, "msg/s", batching),
        ("publish 128 KiB", "large", large, LARGE_BYTES, LARGE_BYTES / MB, "MB/s", {}),
    ):
        publishing = partial(publish, topic=topic, count=count, size_bytes=size, **options)
        mine, limit = scaled(both(publishing), unit_size)
        figures.append(higher(name, mine, limit, unit))
    for name, topic, count, unit_size, unit in (
        ("catch-up read, batches of 100 B", "batched", messages * 3 * rounds, 1, "msg/s"),
        ("catch-up read, 128 KiB", "large", large * rounds, LARGE_BYTES / MB, "MB/s"),
    ):
        consuming = partial(consume, topic=topic, count=count)
        mine, limit = scaled(both(consuming), unit_size)
        figures.append(higher(name, mine, limit, unit))
    times_ms = [1_000 + n for n in range(40)]
    (taken,) = in_turns(rounds, lambda: quantile(seek_ms(ours, "single", times_ms), 0.5))
    name = "client.seek(time) to first message, p50"
    figures.append(lower(name, taken, RECONNECT_MS, "ms", "the client's own wait"))
    ours.close()
    null.close()
    return figures


def scaled(columns: list[list[float]], factor: float) -> list[list[float]]:
    """The figures of all rounds in another unit."""
    return [[value * factor for value in column] for column in columns]


def main() -> None:
    """Start both brokers, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the data folder is made")
    parser.add_argument("--messages", type=int, default=50_000)
    add_rounds(parser)
    args = parser.parse_args()
    null_program = str(Path(__file__).with_name("null_broker.py"))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        command = ["-m", "pulsemark", "standalone", "--json", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0"]
        with process(*command) as ready, process(null_program) as null_url:
            url = json.loads(ready)["service_url"]
            figures = measure(url, null_url, args.messages, args.rounds)
    show("official client, broker and client on one machine", figures)


if __name__ == "__main__":
    main()
