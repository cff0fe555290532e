"""How many message headers the broker parses for what official clients do, as its metrics say."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import running_broker

SOURCES = Path(__file__).parents[2] / "src" / "pulsemark"
MESSAGES = 24
PLAIN = {"batching_enabled": False}
#: Larger than the messages of a test, so that `flush` alone ends a batch.
BATCHED = {
    "batching_enabled": True,
    "batching_max_messages": 6,
    "batching_max_publish_delay_ms": 60_000,
}
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def parsed(broker: BrokerThread) -> int:
    """The counter, as the metrics page shows it."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    (value,) = re.findall(
        r"^pulsemark_message_headers_parsed_total\{.*\} (\S+)$", text, re.MULTILINE
    )
    return int(float(value))


def publish(client: pulsar.Client, topic: str, **options: Any) -> None:
    """Messages with keys, properties and payloads that compress, in batches or not."""
    producer = client.create_producer(topic, **options)
    for number in range(MESSAGES):
        payload = b"%d" % number * 200
        properties = {"number": str(number)}
        producer.send_async(payload, None, partition_key=f"k{number % 3}", properties=properties)
    producer.flush()
    producer.close()


def receive(consumer: pulsar.Consumer) -> None:
    """All messages, in order, acknowledged."""
    for number in range(MESSAGES):
        message = consumer.receive(30_000)
        assert message.data() == b"%d" % number * 200
        consumer.acknowledge(message)


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("batching", [PLAIN, BATCHED], ids=["plain", "batched"])
def test_publishing_and_an_exclusive_delivery_parse_none(
    broker: BrokerThread,
    client: pulsar.Client,
    topic: str,
    batching: dict[str, Any],
    compression: pulsar.CompressionType,
) -> None:
    """With the default stamp no header is parsed, from SEND to acknowledgement, live or stored."""
    live = client.subscribe(topic, "live")
    before = parsed(broker)
    publish(client, topic, compression_type=compression, **batching)
    assert parsed(broker) == before
    receive(live)
    stored = client.subscribe(
        topic, "stored", initial_position=pulsar.InitialPosition.Earliest,
        consumer_type=pulsar.ConsumerType.Exclusive,
    )  # fmt: skip
    receive(stored)
    assert parsed(broker) == before
    if batching is BATCHED:
        assert entries_of(broker, topic) == MESSAGES // 6


def entries_of(broker: BrokerThread, topic: str) -> int:
    """How many entries the topic has."""

    async def count(running: Any) -> int:
        ledger = running.services.topics.open_topics[topic].ledger
        return sum(segment.entry_count for segment in ledger.segments())

    return int(broker.call(count))


@pytest.mark.parametrize(
    ("stampers", "each"),
    [
        (("broker-time", "index", "message-count", "producer", "broker"), 0),
        (("broker-time", "index", "has-keys", "raw-size", "send-time"), 1),
        ((), 1),
    ],
)
def test_only_what_needs_a_header_parses_it(
    make_client: Callable[..., pulsar.Client], topic: str, stampers: tuple[str, ...], each: int
) -> None:
    """Tags from the header cost one parse an entry, and so does an entry without broker time."""
    with running_broker(stampers=stampers) as broker:
        client = make_client(broker.service_url)
        before = parsed(broker)
        publish(client, topic, **PLAIN)
        assert parsed(broker) - before == each * MESSAGES


def test_key_shared_parses_one_header_for_each_delivered_entry(
    broker: BrokerThread, client: pulsar.Client, topic: str
) -> None:
    """Where the protocol needs the key, the counter counts: so zero elsewhere says something."""
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared)
    before = parsed(broker)
    publish(client, topic, **PLAIN)
    assert parsed(broker) - before <= MESSAGES
    receive(consumer)
    assert parsed(broker) - before == MESSAGES


def test_one_module_parses_headers() -> None:
    """No other module of the package parses a MessageMetadata, so the counter misses none."""
    parses = re.compile(r"(?<!Single)MessageMetadata(?:\.FromString|\(\)\.\w*FromString)\(")
    found = [
        path.relative_to(SOURCES).as_posix()
        for path in sorted(SOURCES.rglob("*.py"))
        if not path.name.endswith("_pb2.py") and parses.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["metadata/message.py"]
