"""Your own tests against a real broker: installing pulsemark is all it takes to have the fixtures.

    pytest examples/test_with_pytest.py

`pulsar_broker` is shared by the session's tests, `pulsemark_broker` is new for each test, and
`running_broker(...)` takes any setting, for example a clock that moves only when a test sets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from pulsemark.finder import SeekClient
from pulsemark.testing import RawClient, SettableClock, running_broker


@pytest.fixture
def client(pulsar_broker: Any) -> Iterator[pulsar.Client]:
    """The official client, connected to the session's broker."""
    client = pulsar.Client(
        pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield client
    client.close()


def test_what_is_sent_arrives(client: pulsar.Client) -> None:
    """A test of your own application would begin like this."""
    topic = f"orders-{uuid4()}"
    consumer = client.subscribe(topic, "billing")
    client.create_producer(topic).send(b"one espresso")
    message = consumer.receive(5_000)
    assert message.data() == b"one espresso"
    consumer.acknowledge(message)


def test_fresh_broker(pulsemark_broker: Any) -> None:
    """A new broker has no topics yet; RawClient sends exactly the given fields."""
    with RawClient.from_url(pulsemark_broker.service_url) as client:
        receipt = client.create_producer("persistent://public/default/t").send(b"first")
        assert receipt.entry_id == 0


def test_hours_take_no_time() -> None:
    """With a settable clock a test of broker time does not wait; a client's clock may be wrong."""
    clock = SettableClock(1_700_000_000_000)
    topic = "persistent://public/default/t"
    with running_broker(clock=clock, grpc_port=0) as broker:
        with RawClient.from_url(broker.service_url) as client:
            producer = client.create_producer(topic)
            producer.send(b"nine o'clock", publish_time_ms=0)
            clock.advance(by_ms=3_600_000)
            producer.send(b"ten o'clock", publish_time_ms=0)
        with SeekClient(broker.grpc_url) as finder:
            assert finder.by_time(topic, 1_700_000_000_001).index == 1
