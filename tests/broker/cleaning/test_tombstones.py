"""Deleting a key and still saying something about it: a value with a tombstone (KIP-87)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pulsar
import pytest

from pulsemark.metadata import tags_of

from .conftest import Place, wait_until

TOPIC = "public/default/stock"
PATH = f"/admin/v2/persistent/{TOPIC}"
POLICY = {"stampers": ["broker-time", "index", "tombstone:gone"]}


def stored_tags(place: Place) -> list[dict[str, object]]:
    """The tags of each stored entry."""

    async def read(running):
        ledger = running.services.topics.open_topics[f"persistent://{TOPIC}"].ledger
        return [tags_of(entry.prefix) for entry in ledger.read(ledger.first_position)]

    return place.broker.call(read)


@pytest.fixture
def client(place: Place) -> Iterator[pulsar.Client]:
    """An official client."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(place.broker.service_url, logger=quiet)
    yield made
    made.close()


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4])
def test_a_property_makes_a_tombstone_with_a_value(place, client, compression):
    """Consumers get the value, and compaction deletes the key."""
    producer = client.create_producer(TOPIC, batching_enabled=False, compression_type=compression)
    place.change("POST", f"{PATH}/brokerEntryMetadata", POLICY)
    consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"7 apples", partition_key="apples")
    producer.send(b"5 pears", partition_key="pears")
    producer.send(b"sold by ann", partition_key="apples", properties={"gone": "true"})
    producer.send(b"4 pears", partition_key="pears", properties={"gone": "false"})
    received = [consumer.receive(20_000).data() for _ in range(4)]
    assert received == [b"7 apples", b"5 pears", b"sold by ann", b"4 pears"]
    assert stored_tags(place) == [{}, {}, {"tombstone": True}, {}]
    place.change("PUT", f"{PATH}/compaction")
    wait_until(partial(succeeded, place))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    left = []
    while reader.has_message_available():
        left.append(reader.read_next(20_000).data())
    assert left == [b"4 pears"]


def succeeded(place: Place) -> bool:
    """Whether the topic was compacted."""
    return bool(place.get(f"{PATH}/compaction")["status"] == "SUCCESS")


@pytest.mark.parametrize("spec", ["tombstone", "tombstone:", "tombstone: "])
def test_the_property_must_be_named(place, spec):
    """A policy that does not say which property it is is refused, and nothing changes."""
    status, answer = place.ask(
        "POST", f"{PATH.replace('stock', 'prices')}/brokerEntryMetadata", {"stampers": [spec]}
    )
    assert (status, "tombstone:PROPERTY" in answer["reason"]) == (400, True), answer
