"""kill -9 of the mirror, of the source and of the target: no entry is lost, and none is doubled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from pulsemark.ledger import FolderReader, LedgerError
from pulsemark.testing import RawClient

from .conftest import CLUSTER, TOPIC, bodies_of, fill, message
from .test_kafka import create, produce, seen, transactions

Start = Callable[..., subprocess.Popen[str]]
LIMIT_S = 60
ENTRIES = 400
END = ("--once", "--verify")
KILLS = int(os.environ.get("PULSEMARK_KILLS", "3"))


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `pulsemark ...`; whatever still runs at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def launch(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pulsemark", *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield launch
    for process in processes:
        process.kill()
        # Shown if the test has failed.
        print((process.communicate()[1] or "")[-2_000:], file=sys.stderr)


def mirror_arguments(
    source: object, target: object, *more: str, topic: str = TOPIC
) -> list[object]:
    """The command line of a mirror of the topic."""
    cluster = ("--source-cluster", CLUSTER)
    return ["mirror", source, target, "--topics", topic, *cluster, *more]


def count_in(folder: Path) -> int:
    """Entries of the folder's topic; 0 while there is none."""
    try:
        with FolderReader(folder) as reader:
            return reader.log(TOPIC).next_index
    except (LedgerError, OSError):
        return 0


def wait_for(reached: Callable[[], bool], what: str) -> None:
    """Wait until something has happened, for a limited time."""
    end_s = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < end_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, and wait for the end."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)


class Standalone:
    """A broker process on one folder and one port, over all its starts."""

    def __init__(self, start: Start, folder: Path) -> None:
        with socket.socket() as free, socket.socket() as other, socket.socket() as third:
            for each in (free, other, third):
                each.bind(("127.0.0.1", 0))
            self.port, self.grpc_port = free.getsockname()[1], other.getsockname()[1]
            self.kafka = f"127.0.0.1:{third.getsockname()[1]}"
        self.folder = folder
        self._launch = start
        self.start()

    @property
    def url(self) -> str:
        """Its service URL."""
        return f"pulsar://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it serves."""
        ports = ("--port", self.port, "--grpc-port", self.grpc_port, "--http-port", 0)
        kafka = ("--kafka-port", self.kafka.rpartition(":")[2])
        data = ("--data-dir", self.folder, *ports, *kafka)
        self.process = self._launch("standalone", "--json", *data, "--mirror-sources", "*")
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["service_url"]

    def kill(self) -> None:
        """kill -9."""
        kill(self.process)


def test_a_killed_mirror_goes_on(start: Start, tmp_path: Path) -> None:
    """Between folders a mirror that is killed again and again brings every entry once."""
    source, target = tmp_path / "a", tmp_path / "b"
    fill(source, [(message(number), 1) for number in range(ENTRIES)], ledger_entries=70)
    slow = mirror_arguments(source, target, "--once", "--rate-limit", "60msg")
    for reached in (50, 130, 210):
        process = start(*slow)
        wait_for(lambda seen=reached: count_in(target) >= seen, f"{reached} entries")  # type: ignore[misc]
        kill(process)
    assert count_in(target) < ENTRIES
    out, err = start(*mirror_arguments(source, target, "--once", "--verify")).communicate(
        timeout=LIMIT_S
    )
    assert "400 entries are equal" in out
    assert err == ""
    assert bodies_of(target) == bodies_of(source)


def test_killed_brokers_and_mirrors(start: Start, tmp_path: Path) -> None:
    """Source, target and mirror are killed in turn while producers publish: the logs are equal, and
    a subscription of the source goes on in the target after the last message that it has read.
    """
    source, target = (Standalone(start, tmp_path / name) for name in "ab")
    sides = zip(("--source-grpc", "--target-grpc"), (source, target), strict=True)
    ports = (word for side, one in sides for word in (side, f"grpc://127.0.0.1:{one.grpc_port}"))
    more = ("--progress-s", "0.1", "--subscriptions", *ports)
    follow = mirror_arguments(source.url, target.url, *more)
    mirror = start(*follow)
    sent = read = 0

    def publish(count: int) -> None:
        nonlocal sent
        with RawClient.from_url(source.url) as client:
            producer = client.create_producer(TOPIC)
            for _ in range(count):
                producer.send_raw(message(sent))
                sent += 1

    def consume(broker: Standalone, count: int) -> None:
        """Read on, and acknowledge."""
        nonlocal read
        with RawClient.from_url(broker.url) as client:
            consumer = client.subscribe(TOPIC, "billing", earliest=True)
            consumer.flow(count)
            for _ in range(count):
                got = consumer.receive()
                assert bytes(got.headers_and_payload) == message(read)
                read += 1
            consumer.ack(got.message_id, cumulative=True, wait=True)
            consumer.close()

    def stored() -> int:
        """How far the target is."""
        return count_in(target.folder)

    publish(1)
    kill(mirror)  # perhaps before it saw the topic
    mirror = start(*follow)
    for broker in islice(cycle((source, target, None)), KILLS):
        wait_for(lambda: stored() >= sent, f"{sent} entries")
        publish(60)
        consume(source, 20)
        if broker is None:
            kill(mirror)
            mirror = start(*follow)
        else:
            broker.kill()
            broker.start()
        publish(20)
    wait_for(lambda: stored() >= sent, f"{sent} entries")
    mirror.send_signal(signal.SIGTERM)
    out, err = mirror.communicate(timeout=LIMIT_S)
    assert (mirror.returncode, "gaps: 0" in out) == (0, True), err
    assert bodies_of(target.folder) == bodies_of(source.folder)
    assert len(bodies_of(target.folder)) == sent
    consume(target, 20)


def test_killed_kafkas_and_mirrors(start: Start, tmp_path: Path) -> None:
    """A Kafka is mirrored to a broker and to a Kafka, and all of them are killed in turn while sets
    and transactions are sent: both copies have what was committed, in order and once.
    """
    source, broker, other = (Standalone(start, tmp_path / name) for name in "abc")
    for each in (source, broker, other):
        create(each.kafka, "orders")
    more = ("--progress-s", "0.1", "--renumber")
    targets = (broker.url, f"kafka://{other.kafka}")
    follow = [
        mirror_arguments(f"kafka://{source.kafka}", target, *more, topic="orders")
        for target in targets
    ]
    mirrors = [start(*each) for each in follow]
    committed: list[bytes | None] = []

    def send(sets: int) -> None:
        for _ in range(sets):
            first = len(committed)
            produce(source.kafka, "orders", 1, first=first)
            committed.extend(b"v%d" % number for number in range(first, first + 3))

    def values(kafka: str) -> list[bytes | None]:
        return [value for _, _, value in seen(kafka, "orders")]

    def is_mirrored() -> bool:
        return all(len(values(each.kafka)) >= len(committed) for each in (broker, other))

    send(1)
    for number, killed in enumerate(islice(cycle((source, broker, other, *mirrors)), KILLS)):
        wait_for(is_mirrored, f"{len(committed)} records")
        send(20)
        if number % 3 == 0:
            transactions(source.kafka, "orders", "ac")
            committed += [b"c 1"] * 3
        if isinstance(killed, Standalone):
            killed.kill()
            killed.start()
        else:
            at = number % 5 - 3
            kill(mirrors[at])
            mirrors[at] = start(*follow[at])
        send(5)
    wait_for(is_mirrored, f"{len(committed)} records")
    for mirror in mirrors:
        mirror.send_signal(signal.SIGTERM)
        out, err = mirror.communicate(timeout=LIMIT_S)
        assert (mirror.returncode, "gaps: 0" in out) == (0, True), err
    assert values(source.kafka) == values(broker.kafka) == values(other.kafka) == committed
    for target in targets:
        once = mirror_arguments(f"kafka://{source.kafka}", target, *more, *END, topic="orders")
        process = start(*once)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, out + err


def test_an_unreachable_endpoint_is_an_error_at_once(start: Start, tmp_path: Path) -> None:
    """Where no broker listens at the start, the command ends with its address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"pulsar://127.0.0.1:{port}"
        process = start(*mirror_arguments(url, tmp_path / "b"))
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert f"cannot connect to {url}" in err
