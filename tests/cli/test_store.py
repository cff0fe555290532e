"""`--store`: a broker on real bookies, the official client, and the commands that read there."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from bookkeeper_peer import BookKeeperPeer

from pulsemark.ledger.bookkeeper.reader import BookKeeperReader

LIMIT_S = 90


@contextmanager
def serving(*arguments: str) -> Iterator[dict[str, Any]]:
    """A command as a process; yields what it says once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pulsemark", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    late = threading.Timer(LIMIT_S, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"pulsemark {arguments[0]} is not ready within {LIMIT_S} s"
        yield json.loads(line)
    finally:
        late.cancel()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def published(bookkeeper_peer: BookKeeperPeer) -> Iterator[tuple[BookKeeperPeer, str, list[int]]]:
    """A topic that the official client has filled, while its broker still runs."""
    topic = f"persistent://public/default/{uuid4().hex}"
    place = ("--store", bookkeeper_peer.store, "--advertised-address", "127.0.0.1")
    with serving("standalone", *place, "--port", "0", "--http-port", "0") as ready:
        client = pulsar.Client(
            ready["service_url"], operation_timeout_seconds=60, logger=logging.getLogger("quiet")
        )
        try:
            times = _used(client, topic)
            _wait_for(bookkeeper_peer.store, topic, len(times))
            yield bookkeeper_peer, topic, times
        finally:
            client.close()


def _used(client: pulsar.Client, topic: str) -> list[int]:
    """Publish, consume, seek and read as an application does; the messages' publish times."""
    bodies = [b"order %d" % number for number in range(20)]
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic, batching_enabled=False)
    for body in bodies:
        producer.send(body)
    received = [consumer.receive(LIMIT_S * 1000) for _ in bodies]
    assert [message.data() for message in received] == bodies
    for message in received:
        consumer.acknowledge(message)
    consumer.seek(received[7].message_id())
    # This client goes on after the message that it was told to seek.
    assert consumer.receive(LIMIT_S * 1000).data() in bodies[7:9]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(LIMIT_S * 1000).data() for _ in bodies] == bodies
    return [message.publish_timestamp() for message in received]


def _wait_for(store: str, topic: str, count: int) -> None:
    """The newest entry is seen a moment after its writer has nothing more to write."""
    deadline = time.monotonic() + LIMIT_S
    with BookKeeperReader.open(store) as reader:
        while reader.log(topic).next_index < count:
            assert time.monotonic() < deadline, f"the last of {count} entries is not confirmed"
            time.sleep(0.05)


Published = tuple[BookKeeperPeer, str, list[int]]
Command = Callable[..., Any]


def test_dump(published: Published, pulsemark: Command) -> None:
    """All entries, also the newest one of the open ledger, with indexes from 0 on."""
    peer, topic, _ = published
    ran = pulsemark("dump", topic, "--store", peer.store, "--json")
    assert ran.status == 0
    assert [row["index"] for row in ran.json() if "index" in row] == list(range(20))


def test_verify(published: Published, pulsemark: Command) -> None:
    """It reads all entries and finds nothing."""
    peer, topic, _ = published
    ran = pulsemark("verify", "--store", peer.store, topic, "--json")
    assert ran.status == 0
    assert ran.json()[-1]["entries"] == 20


def test_audit(published: Published, pulsemark: Command) -> None:
    """It counts the messages, and misses none."""
    peer, topic, _ = published
    ran = pulsemark("audit", topic, "--store", peer.store, "--json")
    assert ran.status == 0
    rows = [row for row in ran.json() if "count" in row]
    assert sum(row["count"] for row in rows) == 20


def test_seek_with_and_without_a_service(published: Published, pulsemark: Command) -> None:
    """`seek --store` and a `finder serve --store` name the same message for a time."""
    peer, topic, times_ms = published
    alone = pulsemark("seek", topic, str(times_ms[11]), "--store", peer.store, "--json")
    assert alone.status == 0
    with serving("finder", "serve", "--store", peer.store, "--port", "0") as ready:
        target = ready["grpc_url"].removeprefix("grpc://")
        asked = pulsemark("seek", topic, str(times_ms[11]), "--grpc", target, "--json")
    assert asked.status == 0
    (here,), (there,) = alone.json(), asked.json()
    for name in ("ledger_id", "entry_id", "index"):
        assert here.get(name) == there.get(name), (here, there)


def test_addresses_that_are_refused(pulsemark: Command) -> None:
    """A place that is no address, or two places, is refused with one line."""
    assert "zk://" in pulsemark("verify", "--store", "/data").error()
    assert "--data-dir" in pulsemark("dump", "t", "--store", "zk://h:1", "--data-dir", "d").error()
