"""A broker with its ledgers in memory does what one on files does, and needs no disk."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.broker.errors import ConfigError, NoDataFolderError
from pulsemark.finder.client import SeekClient
from pulsemark.ledger import EARLIEST, LedgerError, MemoryFolder, MemoryStore
from pulsemark.testing import SettableClock, running_broker

TOPIC = "persistent://public/default/orders"
ROOT = Path(__file__).resolve().parents[2]


def send(client: pulsar.Client, bodies: list[bytes]) -> None:
    """Send messages one by one."""
    producer = client.create_producer(TOPIC)
    for body in bodies:
        producer.send(body)
    producer.close()


def receive(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Take and acknowledge so many messages."""
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=10_000)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def admin(broker: BrokerThread, path: str) -> Any:
    """What a GET of the admin API answers."""
    with urllib.request.urlopen(f"{broker.http_url}/admin/v2/{path}") as answer:
        return json.load(answer)


def test_produce_consume_restart_and_seek():
    """Messages, places, schemas and indexes outlive the broker in the memory it was given."""
    memory, clock = MemoryFolder(), SettableClock()
    first = [b"first %d" % n for n in range(20)]
    with running_broker(storage="memory", memory=memory, clock=clock) as broker:
        client = pulsar.Client(broker.service_url)
        consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
        send(client, first)
        assert receive(consumer, 12) == first[:12]
        stats = admin(broker, "persistent/public/default/orders/internalStats")
        assert stats["numberOfEntries"] == 20
        assert admin(broker, "persistent/public/default/orders/stats")["msgInCounter"] == 20
        client.close()
    clock.advance(by_ms=60_000)
    later_ms = clock.now_ms()
    second = [b"second %d" % n for n in range(5)]
    with running_broker(storage="memory", memory=memory, clock=clock, grpc_port=0) as broker:
        client = pulsar.Client(broker.service_url)
        consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
        send(client, second)
        assert receive(consumer, 13) == first[12:] + second
        consumer.seek(later_ms)
        assert receive(consumer, 5) == second
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        bodies = [reader.read_next(timeout_millis=10_000).data() for _ in range(25)]
        assert bodies == first + second
        with SeekClient(broker.grpc_url) as seek:
            found = seek.by_time(TOPIC, later_ms)
            assert found.first_index == 20
            assert seek.by_index(TOPIC, 3).index == 3
        client.close()


def test_it_writes_no_file(tmp_path, monkeypatch):
    """Not even a temporary folder is made; asking for the data folder is a typed error."""
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: 1 / 0)
    monkeypatch.chdir(tmp_path)
    with running_broker(storage="memory") as broker:
        client = pulsar.Client(broker.service_url)
        send(client, [b"x"])
        client.close()
        with pytest.raises(NoDataFolderError):
            _ = broker.data_dir
    assert list(tmp_path.iterdir()) == []


def test_topics_are_deleted_with_their_memory():
    """A topic made after a deletion is empty, and the memory of the old one is freed."""
    memory = MemoryFolder()
    with running_broker(storage="memory", memory=memory) as broker:
        client = pulsar.Client(broker.service_url)
        send(client, [b"x"] * 5)
        request = urllib.request.Request(
            f"{broker.http_url}/admin/v2/persistent/public/default/orders", method="DELETE"
        )
        deadline_s = time.monotonic() + 10
        while True:  # the producer's close may still be on its way
            try:
                urllib.request.urlopen(request)
                break
            except OSError:
                assert time.monotonic() < deadline_s
        assert TOPIC not in memory.topics
        send(client, [b"again"])
        client.close()
    with MemoryStore.open(memory) as store:
        assert [bytes(e.body)[-5:] for e in store.open_topic(TOPIC).read(EARLIEST)] == [b"again"]


def test_a_broker_that_lost_its_memory_confirms_nothing():
    """After another owner took over, later messages are refused and are not in the log."""
    memory = MemoryFolder()
    with running_broker(storage="memory", memory=memory) as broker:
        client = pulsar.Client(broker.service_url, operation_timeout_seconds=3)
        producer = client.create_producer(TOPIC, send_timeout_millis=2000)
        producer.send(b"before")
        with MemoryStore.open(memory) as other:
            with pytest.raises(pulsar.PulsarException):
                producer.send(b"late")
            entries = other.open_topic(TOPIC).read(EARLIEST)
            assert [bytes(entry.body).endswith(b"before") for entry in entries] == [True]
        with pytest.raises(LedgerError):
            broker.broker.store.open_topic(TOPIC)
        client.close()


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("storage", {"storage": "tape"}),
        ("data_dir", {"storage": "memory", "data_dir": Path("x")}),
        ("memory", {"memory": MemoryFolder()}),
        ("memory", {"storage": "memory", "memory": 7}),
    ],
)
def test_settings_that_cannot_be(field, settings):
    """The field is named."""
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(**settings)
    assert caught.value.field == field
