"""kill -9 of leader and follower in every phase, and official clients that go on afterwards."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from pulsemark.ledger import EARLIEST, FolderReader, LedgerError
from pulsemark.testing import RawClient

from .conftest import TOPIC, message
from .test_kills import LIMIT_S, Start, kill, start, wait_for

__all__ = ["start"]

#: Each has 9 kills.
ROUNDS = int(os.environ.get("PULSEMARK_KILLS", "18")) // 9
RECORDS = "persistent://public/default/records-partition-0"


class Node:
    """One machine: a folder that is served, or follows the other one."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._launch = start
        self.folder = folder
        self.urls: dict[str, Any] = {}
        self.process: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        """Start a broker, and wait until it serves."""
        ports = ("--port", 0, "--http-port", 0, "--grpc-port", 0, "--kafka-port", 0)
        data = ("--data-dir", self.folder, *ports)
        self.process = self._launch("standalone", "--json", *data)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.urls = json.loads(line or "{}")
        assert self.urls, self.process.communicate()[1]

    def follow(self, other: Node, *more: str) -> subprocess.Popen[str]:
        """Start to follow another node."""
        source = f"grpc://{other.urls['grpc_url']}"
        data = ("--data-dir", self.folder, "--progress-s", "0.1")
        self.process = self._launch("follow", source, *data, *more)
        return self.process

    def follow_all(self, other: Node) -> str:
        """Follow until nothing is left; what it said."""
        out, err = self.follow(other, "--once").communicate(timeout=LIMIT_S)
        assert self.process is not None
        assert self.process.returncode == 0, err
        return out + err

    def promote(self) -> subprocess.Popen[str]:
        """Start to promote the folder."""
        return self._launch("promote", "--data-dir", self.folder)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        kill(self.process)

    def entries(self, topic: str) -> list[Any]:
        """Positions, indexes and bytes of a topic's entries."""
        with FolderReader(self.folder) as reader:
            log = reader.log(topic)
            read = log.read(EARLIEST, max_entries=100_000, max_bytes=1 << 30)
            return [(e.position, e.index, bytes(e.stored)) for e in read]


@pytest.fixture
def nodes(start: Start, tmp_path: Path) -> list[Node]:
    """Two machines; the first one leads."""
    made = [Node(start, tmp_path / name) for name in "ab"]
    made[0].serve()
    return made


def publish(node: Node, numbers: range, topic: str = TOPIC) -> None:
    """Send messages, and wait for their receipts."""
    with RawClient.from_url(node.urls["service_url"]) as client:
        producer = client.create_producer(topic)
        for number in numbers:
            producer.send_raw(message(number))


def test_kills_in_every_phase(nodes: list[Node]) -> None:
    """Copy, promotion and rejoin are killed at random moments, on both sides, over three leaders:
    what was followed before a failover is there, and both folders end equal.
    """
    random_s = random.Random(7)
    topics = [f"{TOPIC}-{number}" for number in range(4)]
    sent = 0
    began_s = time.monotonic()
    publish(nodes[0], range(1))
    nodes[1].follow_all(nodes[0])
    whole_s = min(time.monotonic() - began_s, 2.0)  # most of it is the start of a process

    def moment(process: subprocess.Popen[str]) -> None:
        time.sleep(random_s.uniform(0.4, 1.1) * whole_s)
        kill(process)

    for _ in range(ROUNDS):
        leader, follower = nodes
        for topic in topics:
            publish(leader, range(sent, sent + 20), topic)
        moment(follower.follow(leader))  # in the copy
        process = follower.follow(leader)
        time.sleep(random_s.uniform(0.3, 0.9) * whole_s)
        leader.kill()  # the source is away for a moment
        leader.serve()
        kill(process)
        follower.follow_all(leader)
        followed = {topic: follower.entries(topic) for topic in topics}
        assert followed == {topic: leader.entries(topic) for topic in topics}
        for topic in topics:
            publish(leader, range(sent + 20, sent + 25), topic)  # and these are not followed
        leader.kill()
        for _ in range(2):
            moment(follower.promote())
        _, err = follower.promote().communicate(timeout=LIMIT_S)
        assert not err or "is not a follower's folder" in err
        follower.serve()
        for topic in topics:
            publish(follower, range(sent + 30, sent + 35), topic)
            assert follower.entries(topic)[: len(followed[topic])] == followed[topic]
        for _ in range(3):
            moment(leader.follow(follower, "--once"))  # in the truncation
        leader.follow_all(follower)
        for topic in topics:
            assert leader.entries(topic) == follower.entries(topic)
        nodes.reverse()
        sent += 100


def test_official_clients_go_on_after_a_promotion(nodes: list[Node]) -> None:
    """Pulsar's client by its subscription, Kafka's by its group: after the leader is gone, they
    read from the follower what they have not read, once and in order.
    """
    leader, follower = nodes
    process = follower.follow(leader, "--metrics-port", "0")
    read = _pulsar_round(leader, range(20), receive=8)
    assert read == list(range(8))
    offsets = _kafka_round(leader, range(20), receive=8)
    assert offsets == list(range(8))
    # The broker stores cursors once a second; the follower asks ten times a second.
    wait_for(lambda: len(_entries(follower)) >= 20, "all of Pulsar's entries")
    wait_for(lambda: len(_entries(follower, RECORDS)) >= 20, "all of Kafka's entries")
    time.sleep(2.5)
    leader.kill()
    process.terminate()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert "lag: 0 entries" in out
    _, err = follower.promote().communicate(timeout=LIMIT_S)
    assert err == ""
    follower.serve()
    assert _pulsar_round(follower, range(20, 25), receive=17) == list(range(8, 25))
    assert _kafka_round(follower, range(20, 25), receive=17) == list(range(8, 25))
    said = leader.follow_all(follower)
    assert "truncated: 0" in said
    assert leader.entries(RECORDS) == follower.entries(RECORDS)


def _entries(node: Node, topic: str = TOPIC) -> list[Any]:
    try:
        return node.entries(topic)
    except (LedgerError, OSError):  # not there yet
        return []


def _pulsar_round(node: Node, numbers: range, receive: int) -> list[int]:
    """Send numbers, then receive and acknowledge some; those that came."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(node.urls["service_url"], logger=quiet)
    start = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(TOPIC, "billing", initial_position=start)
    producer = client.create_producer(TOPIC)
    for number in numbers:
        producer.send(b"%d" % number)
    found = []
    for _ in range(receive):
        got = consumer.receive(timeout_millis=20_000)
        found.append(int(got.data()))
        consumer.acknowledge(got)
    consumer.close()
    client.close()
    return found


def _kafka_round(node: Node, numbers: range, receive: int) -> list[int]:
    """The same with records of one partition, by a group whose offsets are committed."""
    server = node.urls["kafka_url"].removeprefix("kafka://")
    producer = KafkaProducer(bootstrap_servers=server)
    for number in numbers:
        producer.send("records", b"%d" % number).get(timeout=20)
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=server, group_id="g", auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    partition = TopicPartition("records", 0)
    consumer.assign([partition])
    found: list[int] = []
    end_s = time.monotonic() + 30
    while len(found) < receive and time.monotonic() < end_s:
        for records in consumer.poll(500, max_records=receive - len(found)).values():
            found += [int(record.value) for record in records]
    consumer.commit()
    consumer.close()
    return found
