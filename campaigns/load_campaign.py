"""Measures what idle and slow clients cost a broker, and compares it with the limits.

    python campaigns/load_campaign.py [--only NAME ...] [--scale 1.0]

Each scenario has a broker of its own, started as a user would start it:

- backlog: consumers that are 1 GB behind catch up, or do not read; the broker's memory may grow by
  64 MiB;
- connections: 5,000 idle ones (with pings; with consumers); a producer keeps 80 % of its rate;
- slow: a slow consumer on the same topic, subscription, connection, or another topic; the 99th
  percentile of another consumer's latency at most doubles;
- topics: 10,000 topics with one subscription each; 20 KiB a topic, and no work in a second.

Prints a table in Markdown and one line of JSON. Exit code 1 if a limit was exceeded. Memory is the
larger of the growth of PSS (which counts mapped files) and of the process' own pages. Rates and
latencies are medians of three measurements, taken in turns with those without the load.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
from bench_produce import Sender, send_frame
from bench_startup import broker, pss_mib, start, stop

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

TOPIC = "persistent://public/default/load"
LARGE_BYTES = 131_072
Type = pb.CommandSubscribe


@dataclass
class Row:
    """A measured figure and its limit."""

    what: str
    value: float
    limit: float
    unit: str
    note: str = ""
    is_most: bool = True

    @property
    def is_good(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit if self.is_most else self.value >= self.limit


@dataclass
class Running:
    """A broker process."""

    pid: int
    url: str

    def connect(self) -> RawClient:
        """A client."""
        return RawClient.from_url(self.url, timeout_s=120)

    def dial(self, *, small_window: bool = False) -> socket.socket:
        """A connection after its handshake, of which nothing more is read by itself."""
        address = urlsplit(self.url)
        link = socket.socket()
        if small_window:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(60)
        link.connect((address.hostname, address.port))
        link.sendall(commands.connect("load"))
        link.recv(4096)
        return link

    def memory_mib(self) -> tuple[float, float]:
        """PSS, and the process' own pages."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return pss_mib(self.pid), int(status.partition("RssAnon:")[2].split()[0]) / 1024

    def cpu_s(self) -> float:
        """CPU seconds of all threads, exact."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def running(folder: Path, settings: str = "") -> Iterator[Running]:
    """Run a broker on a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "broker.conf").write_text(settings, encoding="ascii")
    command = broker(str(folder / "data"), "--config", str(folder / "broker.conf"))
    process, ready, _ = start(command)
    try:
        yield Running(process.pid, ready["service_url"])
    finally:
        stop(process)


class Watch:
    """Notes by how much a broker's memory grows at most."""

    def __init__(self, watched: Running) -> None:
        self._watched = watched
        self._before = watched.memory_mib()
        self.grown_mib = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.02):
            for now, before in zip(self._watched.memory_mib(), self._before, strict=True):
                self.grown_mib = max(self.grown_mib, now - before)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def fill(broker_: Running, topic: str, count: int, size_bytes: int) -> None:
    """Publish, a window of 64 MB or 5,000 messages at a time."""
    sender = Sender(broker_.url)
    sender.open_producers([topic])
    window = max(8, min(5_000, 64_000_000 // size_bytes))
    body = unbatched_message(bytes(size_bytes), publish_time_ms=0, producer_name="p", key="k")
    frames = [b"".join(map(bytes, commands.send(0, n, body))) for n in range(window)]
    for at in range(0, count, window):
        part = frames[: min(window, count - at)]
        for frame in part:
            sender.send(frame)
        received = 0
        while received < len(part):
            received += sender.receive()


def subscribed(broker_: Running, name: str, kind: Any, topic: str, **options: Any) -> socket.socket:
    """A connection with one consumer from the beginning, which has all permits."""
    link = broker_.dial(**options)
    link.sendall(commands.subscribe(topic, name, 1, 1, kind, initial_position=Type.Earliest))
    success = commands.success(1)
    answer = b""
    while success not in answer:
        answer += link.recv(4096)
    link.sendall(commands.flow(1, 2**31 - 1))
    return link


def swallow(links: list[socket.socket], size_bytes: int, *, timeout_s: float = 300) -> None:
    """Read so many bytes of each connection, as fast as they come."""
    room = bytearray(1 << 20)
    left = {link.fileno(): size_bytes for link in links}
    by_number = {link.fileno(): link for link in links}
    deadline_s = time.monotonic() + timeout_s
    while left and time.monotonic() < deadline_s:
        for number in select.select(list(left), [], [], 1)[0]:
            got = by_number[number].recv_into(room)
            left[number] -= got
            if left[number] <= 0 or not got:
                del left[number]
    if left:
        raise SystemExit(f"{len(left)} consumers got too little: {left}")


def backlog(folder: Path, scale: float) -> Iterator[Row]:
    """Consumers that are 1 GB behind."""
    total = int(1_000_000_000 * scale)
    small_total = total // 4
    with running(folder) as it:
        large, small = f"{TOPIC}-large", f"{TOPIC}-small"
        fill(it, large, total // LARGE_BYTES, LARGE_BYTES)
        fill(it, small, small_total // 1_000, 1_000)
    cases: list[tuple[str, str, Any, int, bool, int]] = [
        ("Exclusive, reads all", large, Type.Exclusive, 1, True, total),
        ("Shared, reads all, acknowledges nothing", large, Type.Shared, 1, True, total),
        ("Key_Shared, reads all, acknowledges nothing", large, Type.Key_Shared, 1, True, total),
        ("five Exclusive subscriptions at once", large, Type.Exclusive, 5, True, total),
        ("1 KB messages, Exclusive, reads all", small, Type.Exclusive, 1, True, small_total),
        ("1 KB messages, Shared, 50,000 unacknowledged", small, Type.Shared, 1, True,
         min(small_total, 40_000_000)),
        ("Exclusive, does not read", large, Type.Exclusive, 1, False, 0),
        ("Shared, does not read", large, Type.Shared, 1, False, 0),
        ("Key_Shared, does not read", large, Type.Key_Shared, 1, False, 0),
        ("five that do not read", large, Type.Shared, 5, False, 0),
    ]  # fmt: skip
    for number, (what, topic, kind, count, reads, size) in enumerate(cases):
        # A broker that has just started: what an earlier case needed would hide the growth.
        with running(folder) as it, Watch(it) as watch:
            began_s = time.monotonic()
            links = [
                subscribed(it, f"s{number}-{n}", kind, topic, small_window=not reads)
                for n in range(count)
            ]
            if reads:
                swallow(links, int(size * 0.98))
            else:
                time.sleep(3)
            took_s = time.monotonic() - began_s
            for link in links:
                link.close()
        note = f"{count * size / took_s / 1e6:,.0f} MB/s" if reads else ""
        yield Row(f"backlog of 1 GB: {what}", watch.grown_mib, 64, "MiB", note)


def publish_rate(it: Running, messages: int) -> float:
    """Messages of 100 B a second, unbatched."""
    sender = Sender(it.url)
    sender.open_producers([f"{TOPIC}-{time.monotonic_ns()}"])
    frames = [send_frame(0, n) for n in range(20_000)]
    sender.publish(frames, messages // 5, 8_000)
    began_s = time.perf_counter()
    sender.publish(frames, messages, 8_000)
    return messages / (time.perf_counter() - began_s)


class Answering:
    """Answers PINGs on many connections, in a thread."""

    def __init__(self, links: list[socket.socket]) -> None:
        self._poll = select.epoll()
        self._links = {link.fileno(): link for link in links}
        self.pings = 0
        for link in links:
            self._poll.register(link, select.EPOLLIN)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pong = commands.PONG
        while not self._over:
            for number, _ in self._poll.poll(0.1):
                if self._links[number].recv(4096):
                    self._links[number].sendall(pong)
                    self.pings += 1

    def close(self) -> None:
        """Stop, and close the connections."""
        self._over = True
        self._thread.join()
        for link in self._links.values():
            link.close()


def connections(folder: Path, scale: float) -> Iterator[Row]:
    """Idle connections beside a producer."""
    count, messages = int(5_000 * scale), int(150_000 * scale)
    for what, settings, consumes in (
        ("idle", "", False),
        ("that answer a PING every 5 s", "keepAliveIntervalSeconds=5\n", False),
        ("with an idle consumer each", "", True),
    ):
        with ExitStack() as stack:
            it = stack.enter_context(running(folder / str(len(what)), settings))
            alone, beside = [], []
            pings = 0
            memory = it.memory_mib()[0]
            for _ in range(3):
                alone.append(publish_rate(it, messages))
                memory = it.memory_mib()[0]
                links = [it.dial() for _ in range(count)]
                if consumes:
                    for number, link in enumerate(links):
                        link.sendall(commands.subscribe(f"{TOPIC}-{number % 100}",
                                                        f"s{number}", 1, 1))  # fmt: skip
                    for link in links:
                        link.recv(4096)
                grown_kib = (it.memory_mib()[0] - memory) * 1024 / count
                answering = Answering(links)
                beside.append(publish_rate(it, messages))
                pings += answering.pings
                answering.close()
                time.sleep(2)
            ratio = statistics.median(beside) / statistics.median(alone)
            note = f"of {statistics.median(alone):,.0f}/s; {grown_kib:.1f} KiB a connection"
            note += f"; {pings} pings" if pings else ""
            yield Row(f"{count:,} connections {what}: rate kept", ratio, 0.8, "", note, False)


def latencies_ms(it: Running, client: RawClient, topic: str, count: int, kind: Any) -> float:
    """The 99th percentile of a message's way from the producer to a consumer and its ack."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "fast", sub_type=kind)
    consumer.flow(count + 1)
    taken = []
    for _ in range(count):
        began_s = time.perf_counter()
        producer.send(unbatched_message(bytes(1_000), publish_time_ms=1))
        message = consumer.receive()
        taken.append((time.perf_counter() - began_s) * 1e3)
        consumer.ack(message.message_id, wait=False)
        time.sleep(0.0005)
    consumer.close()
    producer.close()
    taken.sort()
    return taken[int(len(taken) * 0.99)]


def slow(folder: Path, scale: float) -> Iterator[Row]:
    """A slow consumer beside a fast one."""
    count = max(100, int(1_000 * scale))
    size = int(500_000_000 * scale)

    def trickle(link: socket.socket, over: threading.Event) -> None:
        while not over.wait(0.01):
            link.recv(1 << 17)

    cases: list[tuple[str, str, str, Any, bool]] = [
        ("on another subscription, does not read", TOPIC, "slow", Type.Exclusive, False),
        ("on another subscription, reads 13 MB/s", TOPIC, "slow", Type.Exclusive, True),
        ("on another topic, does not read", f"{TOPIC}-b", "slow", Type.Shared, False),
        ("on another topic, reads 13 MB/s", f"{TOPIC}-b", "slow", Type.Shared, True),
    ]
    for number, (what, topic, name, kind, reads) in enumerate(cases):
        with running(folder / str(number)) as it, it.connect() as client:
            fill(it, topic, size // LARGE_BYTES, LARGE_BYTES)
            alone, beside = [], []
            for turn in range(3):
                alone.append(latencies_ms(it, client, TOPIC, count, Type.Exclusive))
                over = threading.Event()
                link = subscribed(it, f"{name}{turn}", kind, topic, small_window=not reads)
                thread = threading.Thread(target=trickle, args=(link, over))
                if reads:
                    thread.start()
                beside.append(latencies_ms(it, client, TOPIC, count, Type.Exclusive))
                over.set()
                if reads:
                    thread.join()
                link.close()
            yield _slow_row(what, alone, beside)
    yield from _same_subscription(folder, count)


def _slow_row(what: str, alone: list[float], beside: list[float]) -> Row:
    ratio = statistics.median(beside) / statistics.median(alone)
    note = f"{statistics.median(beside):.2f} ms, alone {statistics.median(alone):.2f} ms"
    return Row(f"slow consumer {what}: p99 of another", ratio, 2, "x", note)


def _same_subscription(folder: Path, count: int) -> Iterator[Row]:
    """A consumer of the same Shared subscription that takes 1,000 messages and keeps them.

    Also one without permits on the same connection.
    """
    with running(folder / "same") as it, it.connect() as client, it.connect() as other:
        alone, kept, same = [], [], []
        for _ in range(3):
            alone.append(latencies_ms(it, client, TOPIC, count, Type.Shared))
            hoarder = other.subscribe(TOPIC, "fast", sub_type=Type.Shared)
            hoarder.flow(50)
            producer = other.create_producer(f"{TOPIC}-{time.monotonic_ns()}")
            producer.send(b"x" * 10)
            fill(it, TOPIC, 50, 1_000)
            hoarder.receive_many(50)
            kept.append(latencies_ms(it, client, TOPIC, count, Type.Shared))
            hoarder.close()
            idle = client.subscribe(TOPIC, "idle", sub_type=Type.Shared)
            skipping = client.subscribe(TOPIC, "fast", sub_type=Type.Shared)
            skipping.flow(1_000)
            while skipping.arrived():
                skipping.receive()
            skipping.close()
            same.append(latencies_ms(it, client, f"{TOPIC}-same", count, Type.Shared))
            idle.close()
        yield _slow_row("of the same Shared subscription, keeps all", alone, kept)
        yield _slow_row("without permits on the same connection", alone, same)


def topics(folder: Path, scale: float) -> Iterator[Row]:
    """Many topics with one subscription each."""
    count = int(10_000 * scale)
    names = [f"{TOPIC}-{number}" for number in range(count)]
    step = 500

    def many(client: RawClient, make: Callable[[int, int], bytes]) -> float:
        began_s = time.monotonic()
        for at in range(0, count, step):
            ids = {n: client.new_id() for n in range(at, min(count, at + step))}
            client.write(b"".join(make(n, request) for n, request in ids.items()))
            for request in ids.values():
                client.wait_response(request)
        return time.monotonic() - began_s

    def opened(n: int, request: int) -> bytes:
        return commands.subscribe(names[n], "s", n, request)

    with running(folder) as it:
        empty_mib, empty_cpu = max(it.memory_mib()), idle_ms_per_s(it)

        def rows(when: str, note: str = "") -> Iterator[Row]:
            kib = (it.memory_mib()[0] - empty_mib) * 1024 / count
            yield Row(f"{count:,} topics, {when}: memory a topic", kib, 20, "KiB", note)
            cpu = idle_ms_per_s(it)
            yield Row(f"{count:,} topics, {when}: CPU when idle", cpu, empty_cpu + 2, "ms/s",
                      f"{empty_cpu:.1f} without topics")  # fmt: skip

        with it.connect() as client:
            took = many(client, opened)
            yield from rows("a consumer each", f"opened in {took:.1f} s")
            many(client, lambda n, request: commands.producer(names[n], n, request))
            body = unbatched_message(bytes(100), publish_time_ms=1)
            for n in range(count):
                client.write(b"".join(map(bytes, commands.send(n, 0, body))))
            client.ping(60)
            time.sleep(3)
            yield from rows("a producer and a message each")
        time.sleep(3)
        yield from rows("all clients left")
        began_s = time.monotonic()
    stopped_s = time.monotonic() - began_s
    began_s = time.monotonic()
    with running(folder) as it:
        note = f"stopped in {stopped_s:.1f} s"
        yield Row(f"{count:,} topics: start", time.monotonic() - began_s, 5, "s", note)
        yield from rows("after a start")
        with it.connect() as client:
            took = many(client, opened)
            yield from rows("a consumer each again", f"opened in {took:.1f} s")


def idle_ms_per_s(it: Running, seconds: float = 6) -> float:
    """CPU in a second, with nothing to do: the lowest of three, since a checkpoint may run."""
    found = []
    for _ in range(3):
        time.sleep(3)
        before = it.cpu_s()
        time.sleep(seconds)
        found.append((it.cpu_s() - before) / seconds * 1e3)
    return min(found)


SCENARIOS = {"backlog": backlog, "connections": connections, "slow": slow, "topics": topics}


def main() -> int:
    """Run the scenarios; 1 if a limit was exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    rows: list[Row] = []
    print("| what | measured | limit | |\n|---|---|---|---|")
    for name in given.only:
        with tempfile.TemporaryDirectory(prefix="pulsemark-load-") as folder:
            for row in SCENARIOS[name](Path(folder), given.scale):
                rows.append(row)
                sign = "" if row.is_good else " **exceeded**"
                bound = f"{'at most' if row.is_most else 'at least'} {row.limit:.3g} {row.unit}"
                value = f"{row.value:.3g} {row.unit}".strip()
                print(f"| {row.what} | {value}{sign} | {bound.strip()} | {row.note} |", flush=True)
    print(json.dumps([asdict(row) for row in rows]))
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
