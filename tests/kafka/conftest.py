"""Fixtures of the endpoint's tests: one broker per module, with a Kafka port."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka_broker() -> Iterator[BrokerThread]:
    """A broker for Kafka's clients, whose groups do not wait for more members."""
    with running_broker(
        kafka_port=0, http_port=None, kafka_group_initial_rebalance_delay_ms=0
    ) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def raw(kafka_broker: BrokerThread) -> Iterator[RawKafka]:
    """A raw connection to the module's broker."""
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        yield client


@pytest.fixture
def made(raw: RawKafka, topic: str) -> str:
    """A topic that exists, in Kafka's format."""
    from kafka.protocol.metadata import MetadataRequest

    answer = raw.call(MetadataRequest, 1, topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    assert answer.topics[0].error_code == 0
    return topic
