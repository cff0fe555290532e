"""Produce and fetch with Kafka's clients, against pulsemark and a real Apache Kafka, in turns.

    python bench/bench_kafka.py [HOME] [--peer HOST:PORT] [--java] [--rounds N] [--only NAME ...]

HOME is an unpacked Apache Kafka 3.3 or newer (a folder `libs` or `lib` with its jars), which needs
a Java. It runs with log.flush.interval.messages=1, because Kafka does not sync by default and
pulsemark always does. With --peer the Kafka that runs there is the peer instead. Without both only
pulsemark is measured. The load is librdkafka's; --java adds the tools of HOME's jars,
ProducerPerformance and ConsumerPerformance. Client and brokers share the machine.

Each cell is measured N times, the brokers taking turns, after a round in which the JVM warms up.
Shown are the median and the spread (lowest to highest) of both, and the CPU time that each broker's
process took for a message; then the same as rows of the table in docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka_java_load import JavaLoad
from report import Figure, higher, lower, show
from rounds import Sample, add_rounds

#: Name: size of a value in bytes, partitions, messages.
CELLS = {
    "100B-1": (100, 1, 200_000),
    "100B-100": (100, 100, 200_000),
    "1KiB-1": (1024, 1, 50_000),
    "1KiB-100": (1024, 100, 50_000),
}
WAIT_S = 120
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """A running broker, and what was measured with it: rates per second, CPU in microseconds."""

    name: str
    url: str
    #: None: it is not our process, and its CPU time is not known.
    pid: int | None
    rates: dict[str, list[float]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """CPU time of the broker's process so far."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def forget(self) -> None:
        """Forget the measurements."""
        self.rates.clear()
        self.cpu_us.clear()

    def note(self, job: str, count: int, rate: float, cpu_s: float) -> None:
        """Keep one measurement: messages, messages per second, the broker's CPU time."""
        self.rates.setdefault(job, []).append(rate)
        self.cpu_us.setdefault(job, []).append(cpu_s / count * 1e6)


def free_ports() -> tuple[int, int]:
    """Two ports on which no process listens now."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process with the block."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def pulsemark(folder: Path) -> Iterator[Side]:
    """Run pulsemark."""
    command = [sys.executable, "-m", "pulsemark", "standalone", "--json", "--port", "0",
               "--http-port", "0", "--kafka-port", "0", "--data-dir", str(folder)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with ended(process):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("pulsemark does not start")
        yield Side("pulsemark", json.loads(line)["kafka_url"], process.pid)


def jars_of(home: Path) -> Path:
    """The folder with Kafka's jars."""
    jars = next((home / name for name in ("libs", "lib") if (home / name).is_dir()), None)
    if jars is None:
        raise SystemExit(f"{home} has no folder libs or lib with Kafka's jars")
    return jars


@contextmanager
def kafka(home: Path, folder: Path) -> Iterator[Side]:
    """Run the peer: one node that is broker and controller."""
    java = ["java", "-Xmx512m", "-cp", f"{jars_of(home)}/*"]
    port, controller = free_ports()
    settings = {
        "log.dirs": folder / "data", "process.roles": "broker,controller", "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1, "log.flush.interval.messages": 1,
    }  # fmt: skip
    conf = folder / "server.properties"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    storage = [*java, "kafka.tools.StorageTool"]
    made = subprocess.run([*storage, "random-uuid"], check=True, capture_output=True, text=True)
    cluster = made.stdout.split()[-1]
    format_it = [*storage, "format", "-t", cluster, "-c", str(conf)]
    subprocess.run(format_it, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(conf)], stdout=log, stderr=log, cwd=folder
        )
    with ended(process):
        until_s = time.monotonic() + WAIT_S
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"Kafka does not start:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield Side("Kafka", f"127.0.0.1:{port}", process.pid)


def create(side: Side, topic: str, partitions: int) -> None:
    """Create a topic, and wait until it can be used."""
    admin = AdminClient({"bootstrap.servers": side.url})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(WAIT_S)


def produce(side: Side, topic: str, size: int, partitions: int, count: int) -> None:
    """Send `count` messages with acks=all, and wait until all are acknowledged."""
    failed = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": side.url, "acks": "all", "linger.ms": 5,
         "queue.buffering.max.messages": count + 1}
    )  # fmt: skip
    value = os.urandom(size)

    def reported(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(count):
        producer.produce(topic, value, partition=number % partitions, on_delivery=reported)
        if not number % 1000:
            producer.poll(0)
    if producer.flush(WAIT_S) or failed:
        raise SystemExit(f"{side.name} refused messages: {failed[:1]}")


def fetch(side: Side, topic: str, partitions: int, count: int) -> None:
    """Read `count` messages from the beginning."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": side.url, "group.id": topic, "enable.auto.commit": False,
         "queued.max.messages.kbytes": 65536, "fetch.queue.backoff.ms": 10}
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(partitions)])
    got, until_s = 0, time.monotonic() + WAIT_S
    while got < count:
        got += sum(message.error() is None for message in consumer.consume(10_000, 0.2))
        if time.monotonic() > until_s:
            raise SystemExit(f"{side.name} gave {got} of {count} messages in {WAIT_S} s")
    consumer.close()


def measure(side: Side, cell: str, turn: int, share: float, java: JavaLoad | None) -> None:
    """One round of a cell: produce, then fetch the same messages."""
    size, partitions, count = CELLS[cell]
    count = max(int(count * share), partitions)
    topic = f"bench-{cell}-{turn}-{int(time.time() * 1000)}"

    def timed(work: Callable[[], None]) -> float:
        began_s = time.perf_counter()
        work()
        return count / (time.perf_counter() - began_s)

    jobs: dict[str, Callable[[], float]] = {
        "produce": lambda: timed(lambda: produce(side, topic, size, partitions, count)),
        "fetch": lambda: timed(lambda: fetch(side, topic, partitions, count)),
    }
    create(side, topic, partitions)
    produce(side, topic, size, partitions, partitions)  # connections, partitions, producers' ids
    if java is not None:
        tool, java_topic = java, f"{topic}-java"
        create(side, java_topic, partitions)
        jobs["java produce"] = lambda: tool.produce(side.url, java_topic, size, count)
        jobs["java fetch"] = lambda: tool.fetch(side.url, java_topic, count)
    for job, work in jobs.items():
        cpu_s = side.cpu_s()
        rate = work()
        side.note(f"{job} {cell}", count, rate, side.cpu_s() - cpu_s)


def rate_of(job: str, ours: Side, peer: Side | None) -> Figure:
    """The rates of one job."""
    theirs = peer.rates[job] if peer else None
    return higher(job, ours.rates[job], theirs, "messages/s", "Apache Kafka")


def cpu_of(job: str, ours: Side, peer: Side | None) -> Figure:
    """What one job takes of the brokers' CPU."""
    theirs = peer.cpu_us[job] if peer and peer.pid is not None else None
    return lower(f"{job}: broker's CPU", ours.cpu_us[job], theirs, "us/message", "Apache Kafka")


def figures(ours: Side, peer: Side | None) -> list[Figure]:
    """The rows of the report."""
    return [of(job, ours, peer) for job in ours.rates for of in (rate_of, cpu_of)]


def table(ours: Side, peer: Side) -> list[str]:
    """The rows of the table in docs/performance.md."""
    rows = []
    for job in sorted(ours.rates, key=lambda job: ("fetch" in job, "java" in job)):
        kind, _, cell = job.rpartition(" ")
        partitions = CELLS[cell][1]
        client = "ProducerPerformance" if kind == "java produce" else "ConsumerPerformance"
        client = client if "java" in kind else "librdkafka"
        kind = kind.removeprefix("java ")
        name = f"{kind} {cell.partition('-')[0].replace('B', ' B').replace('Ki ', ' Ki')}"
        plural = "partition" if partitions == 1 else "partitions"
        rate, cpu = rate_of(job, ours, peer), cpu_of(job, ours, peer)
        rates = [Sample.of(side.rates[job]).text("/s") for side in (ours, peer)]
        cpus = [sample.text(" us") for sample in (cpu.ours, cpu.peer) if sample is not None]
        rows.append(
            f"| {name}, {partitions} {plural}, {client} | {rates[0]} | {rates[1]} "
            f"| {rate.ratio:.2f}x | {'; '.join(cpus)} |"
        )
    return rows


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path, nargs="?", metavar="HOME")
    parser.add_argument("--peer", metavar="HOST:PORT", help="a Kafka that is running already")
    parser.add_argument("--java", action="store_true", help="also load by the tools of HOME's jars")
    add_rounds(parser)
    parser.add_argument("--share", type=float, default=1.0, help="of the messages, for a try")
    parser.add_argument("--only", nargs="+", choices=list(CELLS), default=list(CELLS))
    arguments = parser.parse_args()
    if arguments.java and arguments.home is None:
        raise SystemExit("--java needs HOME, for its jars")
    java = JavaLoad(jars_of(arguments.home), WAIT_S) if arguments.java else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(pulsemark(folder / "ours"))
        sides, peer = [ours], None
        if arguments.peer is not None:
            peer = Side("Kafka", arguments.peer, None)
            sides.append(peer)
        elif arguments.home is not None:
            (folder / "kafka").mkdir()
            peer = stack.enter_context(kafka(arguments.home, folder / "kafka"))
            sides.append(peer)
        for turn in range(arguments.rounds + 1):
            for cell in arguments.only:
                for side in sides if turn % 2 else reversed(sides):
                    measure(side, cell, turn, arguments.share, java)
            if not turn:  # the JVM was warming up
                for side in sides:
                    side.forget()
        show("Kafka's clients", figures(ours, peer))
        if peer is not None:
            print("\n".join(table(ours, peer)))


if __name__ == "__main__":
    main()
