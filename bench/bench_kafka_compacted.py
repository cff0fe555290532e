"""Fetching a compacted log by librdkafka, beside a log of as many messages that is not compacted.

    python bench/bench_kafka_compacted.py [--messages N] [--rounds N]

Three topics hold the same number of messages of 100 B: one as it was written, one of which
compaction removed whole sets (every key was written twice, in the same order), and one of which it
removed every second record of each set, so that all its sets were written again. The broker takes
the last two from views, after their log was freed. They are fetched in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from bench_kafka import WAIT_S, Side, ended, fetch
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from report import Figure, higher, lower, show
from rounds import add_rounds

PLAIN, WHOLE, HOLES = "as written", "whole sets removed", "sets with holes"
VALUE = bytes(range(100))


def keys_of(kind: str, count: int) -> list[bytes]:
    """The keys of a topic's messages, of which `count` are left by compaction, and the last two."""
    if kind == PLAIN:
        return [b"%d" % number for number in range(count)]
    if kind == WHOLE:
        return [b"%d" % number for number in range(count)] * 2
    # Every second record is of a key that comes again at once: a set loses half of its records.
    return [b"%d" % (number // 2) for number in range(2 * count)]


def fill(url: str, topic: str, kind: str, count: int) -> None:
    """Make a topic, and write its messages."""
    settings = {"cleanup.policy": "delete" if kind == PLAIN else "compact"}
    settings |= {"file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "1"}
    admin = AdminClient({"bootstrap.servers": url})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
        future.result(WAIT_S)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": url, "acks": "all", "linger.ms": 5, "batch.num.messages": 1000,
         "queue.buffering.max.messages": 2 * count + 1}
    )  # fmt: skip
    for number, key in enumerate(keys_of(kind, count)):
        producer.produce(topic, VALUE, key=key, partition=0)
        if not number % 1000:
            producer.poll(0)
    if producer.flush(WAIT_S):
        raise SystemExit("messages were not taken")


def clean(http_url: str, topic: str) -> None:
    """Compact a topic, and wait until it is done and its log is freed."""
    url = f"{http_url}/admin/v2/persistent/public/default/{topic}-partition-0/compaction"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=WAIT_S).close()
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            if json.load(answer)["status"] == "SUCCESS":
                return
        time.sleep(0.1)
    raise SystemExit(f"{topic} was not compacted")


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    add_rounds(parser)
    arguments = parser.parse_args()
    count = arguments.messages
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0",
                   "--http-port", "0", "--kafka-port", "0", "--data-dir",
                   str(Path(folder) / "data")]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        stack.enter_context(ended(process))
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        side = Side("pulsemark", urls["kafka_url"], process.pid)
        topics = {PLAIN: "plain", WHOLE: "whole", HOLES: "holes"}
        for kind, topic in topics.items():
            fill(side.url, topic, kind, count)
            if kind != PLAIN:
                clean(urls["http_url"], topic)
        for _ in range(arguments.rounds):
            for kind, topic in topics.items():
                cpu_s, began_s = side.cpu_s(), time.perf_counter()
                fetch(side, topic, 1, count)
                rate = count / (time.perf_counter() - began_s)
                side.note(kind, count, rate, side.cpu_s() - cpu_s)
    figures: list[Figure] = []
    for kind in (WHOLE, HOLES):
        figures.append(higher(f"fetch: {kind}", side.rates[kind], side.rates[PLAIN], "/s", PLAIN))
        cpu = side.cpu_us
        figures.append(lower(f"broker's CPU: {kind}", cpu[kind], cpu[PLAIN], "us/message", PLAIN))
    show("Fetch of a compacted log", figures)


if __name__ == "__main__":
    main()
