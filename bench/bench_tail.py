"""The cost of a delivery to consumers that keep up, with and without the tail cache.

    python bench/bench_tail.py [--subscriptions N ...] [--deliveries N] [--rounds N]

A sender publishes durable, unbatched messages of 100 bytes at a fixed rate. Every subscription has
one consumer that reads at the end of the topic and sometimes acknowledges. Each round measures a
new broker with the cache (``managedLedgerCacheSizeMB`` 32) and one without (0), alternating. CPU is
the time of all threads of the broker's process for each delivered message. With 0 subscriptions it
is for each published message; there the cache must cost nothing. The last rows measure only
reading, in this process: commits of some entries, each read once by every reader. Shown are the
median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import selectors
import socket
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from bench_produce import Sender, cpu_s, run_first, send_frame
from bench_startup import broker, start, stop
from report import Figure, lower, show
from rounds import add_rounds, in_turns

from pulsemark.ledger import LocalStore, Position, StoreOptions
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, CommandAck
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId, commands

TOPIC = "persistent://public/default/tail"
RATES = {0: 4_000, 1: 3_000, 10: 1_500, 100: 200}
"""Messages per second by subscriptions: about half of what one core can deliver."""
CONSUMERS_PER_CONNECTION = 10
ACK_EVERY = 97
"""Messages of a connection; this number has no common divisor with that of its consumers."""
TICK_S = 0.004
READ_COMMITS = 300
CACHE_MB = 32


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run used."""

    cpu_us: float
    rss_mib: float
    cache_mib: float
    """The largest size that the cache reported."""
    hit_share: float


class Consumers:
    """All consumers, in one process that only counts what it receives."""

    def __init__(self, url: str, count: int) -> None:
        address = urlsplit(url)
        self._selector = selectors.DefaultSelector()
        for first in range(0, count, CONSUMERS_PER_CONNECTION):
            connection = socket.create_connection((address.hostname, address.port), 30)
            connection.sendall(commands.connect("bench"))
            connection.recv(1 << 16)
            for number in range(first, min(count, first + CONSUMERS_PER_CONNECTION)):
                connection.sendall(commands.subscribe(TOPIC, f"s{number}", number, number))
                connection.recv(1 << 16)
                connection.sendall(commands.flow(number, 10_000_000))
            self._selector.register(connection, selectors.EVENT_READ, bytearray())
        self._received = 0

    def receive(self, wanted: int) -> None:
        """Return when a number of messages has arrived."""
        received = 0
        while received < wanted:
            for key, _ in self._selector.select():
                connection, buffer = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                data = connection.recv(1 << 18)
                if not data:
                    raise SystemExit("the broker closed a connection")
                buffer += data
                received += self._take(connection, buffer)

    def _take(self, connection: socket.socket, buffer: bytearray) -> int:
        """Messages among the whole frames that came; answers of SUBSCRIBE are small."""
        at = messages = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if len(buffer) < end:
                break
            if end - at > 100:
                messages += 1
                self._received += 1
                if self._received % ACK_EVERY == 0:
                    self._acknowledge(connection, buffer[at:end])
            at = end
        del buffer[:at]
        return messages

    def _acknowledge(self, connection: socket.socket, frame: bytearray) -> None:
        size = int.from_bytes(frame[4:8], "big")
        message = BaseCommand.FromString(bytes(frame[8 : 8 + size])).message
        place = MessageId(message.message_id.ledgerId, message.message_id.entryId)
        connection.sendall(commands.ack(message.consumer_id, [place], CommandAck.Cumulative))


def run_consumers(url: str, count: int, rounds: Sequence[int], pipe: Connection) -> None:
    """The consumers' process: reports after each round that all messages have arrived."""
    consumers = Consumers(url, count)
    pipe.send("subscribed")
    for messages in rounds:
        consumers.receive(messages * count)
        pipe.send("received")


def run_sender(url: str, rate: int, rounds: Sequence[int], pipe: Connection) -> None:
    """The sender's process: on request it publishes a round at its rate."""
    sender = Sender(url)
    sender.open_producers([TOPIC])
    frames = [send_frame(0, n) for n in range(5_000)]
    for messages in rounds:
        pipe.recv()
        began, sent = time.perf_counter(), 0
        while sent < messages:
            due = min(messages, int((time.perf_counter() - began) * rate) + 1)
            if due > sent:
                sender.send(b"".join(frames[n % 5_000] for n in range(sent, due)))
                sender.receive(due - sent)
                sent = due
            time.sleep(TICK_S)
        pipe.send("sent")


def figure(page: str, name: str) -> float:
    """One figure of the metrics page."""
    found = re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def rss_mib(pid: int) -> float:
    """The process's resident memory."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def measure(subscriptions: int, messages: int, cache_mb: int) -> Cost:
    """One run of a new broker."""
    rounds = [max(messages // 4, 200), messages]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "broker.conf"
        config.write_text(f"managedLedgerCacheSizeMB={cache_mb}\n", encoding="ascii")
        process, ready, _ = start(broker("--data-dir", f"{folder}/data", "--config", str(config)))
        run_first(process.pid, 1)
        try:
            return _run(process.pid, ready, subscriptions, rounds)
        finally:
            stop(process)


def _run(pid: int, ready: dict[str, str], subscriptions: int, rounds: Sequence[int]) -> Cost:
    url, pages = ready["service_url"], ready["http_url"] + "/metrics"
    receiving, consumers = multiprocessing.Pipe()
    sending, sender = multiprocessing.Pipe()
    children = [
        multiprocessing.Process(target=run_sender, args=(url, RATES[subscriptions], rounds, sender))
    ]
    if subscriptions:
        arguments = (url, subscriptions, rounds, consumers)
        children.insert(0, multiprocessing.Process(target=run_consumers, args=arguments))
    for child in children:
        child.start()
        assert child.pid is not None
        run_first(child.pid, 2)
    if subscriptions:
        receiving.recv()
    used = 0.0
    cache_bytes = 0.0
    page = ""
    for _ in rounds:
        before = cpu_s(pid)
        sending.send("go")
        while not sending.poll(1.0):
            page = urllib.request.urlopen(pages).read().decode()
            cache_bytes = max(cache_bytes, figure(page, "pulsar_ml_cache_used_size"))
        sending.recv()
        if subscriptions:
            receiving.recv()
        used = cpu_s(pid) - before
    page = urllib.request.urlopen(pages).read().decode()
    cache_bytes = max(cache_bytes, figure(page, "pulsar_ml_cache_used_size"))
    hits = figure(page, "pulsemark_ml_cache_hits_total")
    missed = figure(page, "pulsemark_ml_cache_misses_total")
    rss = rss_mib(pid)
    for child in children:
        child.join()
    done = rounds[-1] * max(subscriptions, 1)
    share = hits / (hits + missed) if hits + missed else 0.0
    return Cost(used / done * 1e6, rss, cache_bytes / 2**20, share)


def reading(entries: int, readers: int, cache_mb: int) -> float:
    """CPU of reading one entry, in microseconds, of commits of so many entries."""
    options = StoreOptions(tail_cache_bytes=cache_mb << 20)
    body = unbatched_message(bytes(100), publish_time_ms=0, producer_name="p", sequence_id=1)
    used = 0.0
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore.open(Path(folder) / "data", options=options, threaded=False)
        with store:
            topic = store.open_topic(TOPIC)
            position = topic.end_position
            topic.read(position)
            for _ in range(READ_COMMITS):
                for _ in range(entries):
                    topic.append(body)
                store.committer.flush()
                before = time.process_time()
                for _ in range(readers):
                    last = topic.read(position, max_entries=200)[-1].position
                used += time.process_time() - before
                position = Position(last.ledger_id, last.entry_id + 1)
    return used / (READ_COMMITS * entries * readers) * 1e6


def reading_figures(rounds: int) -> list[Figure]:
    """Reading with and without the cache, in turns."""
    figures = []
    for entries in (1, 10):
        for readers in (1, 10, 100):
            sides = (partial(reading, entries, readers, cache_mb) for cache_mb in (CACHE_MB, 0))
            name = f"read an entry, {entries} a commit, {readers} readers"
            ours, peers = in_turns(rounds, *sides)
            figures.append(lower(name, ours, peers, "us", "no cache"))
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subscriptions", type=int, nargs="+", default=[0, 1, 10, 100])
    parser.add_argument("--deliveries", type=int, default=120_000)
    add_rounds(parser, 5)
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for count in arguments.subscriptions:
        seconds = arguments.deliveries / (RATES[count] * max(count, 1))
        messages = int(RATES[count] * max(4.0, min(seconds, 12.0)))
        sides = (partial(measure, count, messages, cache_mb) for cache_mb in (CACHE_MB, 0))
        figures += _figures(count, *in_turns(arguments.rounds, *sides))
    show("tail cache", figures + reading_figures(arguments.rounds))


def _figures(count: int, with_cache: list[Cost], without: list[Cost]) -> list[Figure]:
    what = f"{count} subscriptions"
    ours, peers = ([cost.cpu_us for cost in costs] for costs in (with_cache, without))
    our_mib, peers_mib = ([cost.rss_mib for cost in costs] for costs in (with_cache, without))
    name = f"{what}: CPU a {'delivery' if count else 'message'}"
    return [
        lower(name, ours, peers, "us", "no cache"),
        lower(f"{what}: RSS", our_mib, peers_mib, "MiB", "no cache"),
        lower(f"{what}: the cache's own", [cost.cache_mib for cost in with_cache], None, "MiB"),
        lower(f"{what}: hits", [cost.hit_share * 100 for cost in with_cache], None, "%"),
    ]


if __name__ == "__main__":
    main()
