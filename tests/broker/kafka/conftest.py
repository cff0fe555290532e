"""Fixtures of the endpoint's tests: one broker per module, with a Kafka port."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pulsar
import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.broker import BrokerThread
from pulsemark.broker.kafka import reading
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka_broker() -> Iterator[BrokerThread]:
    """A broker for Kafka's clients, whose groups do not wait for more members."""
    with running_broker(
        kafka_port=0, http_port=None, kafka_group_initial_rebalance_delay_ms=0
    ) as running:
        yield running


@pytest.fixture(scope="module")
def both() -> Iterator[BrokerThread]:
    """A broker for clients of both protocols."""
    with running_broker(kafka_port=0, kafka_group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def client(both: BrokerThread) -> Iterator[pulsar.Client]:
    """An official client of Pulsar's."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(both.service_url, logger=quiet, operation_timeout_seconds=30)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _time_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch may read for long: on a busy machine it would leave out entries at random."""
    for name in ("READ_S", "STORED_READ_S"):
        monkeypatch.setattr(reading, name, 60.0)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t{next(numbers)}"


@pytest.fixture
def raw(kafka_broker: BrokerThread) -> Iterator[RawKafka]:
    """A raw connection to the module's broker."""
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        yield client


@pytest.fixture
def made(raw: RawKafka, topic: str) -> str:
    """A topic that exists, in Kafka's format."""
    answer = raw.call(MetadataRequest, 1, topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    assert answer.topics[0].error_code == 0
    return topic


_Topic = CreateTopicsRequest.CreatableTopic


def record_set(values, magic=2, producer=None, transactional=False, codec=0):
    """A record set; `producer`: its id, epoch and sequence number."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 24)
    if producer is not None:
        builder.set_producer_state(*producer, transactional)
    for number, value in enumerate(values):
        builder.append(timestamp=1_000 + number, key=b"k", value=value)
    builder.close()
    return bytes(builder.buffer())


def records_of(data):
    """Offset and value of each record in a fetched set."""
    found = []
    records = MemoryRecords(data)
    while (each := records.next_batch()) is not None:
        found += [(record.offset, record.value) for record in each]
    return found


def create(client, name, partitions=1, version=4, check=False, replicas=1, assigned=(), **configs):
    """A CreateTopics for one topic; its error code."""
    fields = {"validate_only": check} if version >= 1 else {}
    wanted = _Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            _Topic.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assigned
        ],
        configs=[
            _Topic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    answer = client.call(CreateTopicsRequest, version, topics=[wanted], timeout_ms=1, **fields)
    return answer.topics[0].error_code


def ledger_of(broker, topic, partition=0):
    """The ledger of a partition."""
    name = f"persistent://public/default/{topic}-partition-{partition}"
    return broker.broker.services.topics.open_topics[name].ledger


def is_on_loop():
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def set_of_keys(records, magic, codec):
    """A record set of keys and values."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 24)
    for key, value in records:
        builder.append(timestamp=1_000, key=key, value=value)
    builder.close()
    return bytes(builder.buffer())
