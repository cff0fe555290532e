"""Policies of Pulsar's topics that hold for the record sets of Kafka's clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.broker import BrokerThread
from pulsemark.broker.policies.pulsar_policies import (
    BACKLOG_QUOTAS,
    ENCRYPTION,
    HOLD,
    MAX_MESSAGE_SIZE,
    PUBLISH_RATE,
    REFUSE,
)
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.testing.raw_kafka import RawKafka, produce_fields

from .conftest import create, record_set, records_of

FULL = "persistent://public/default/t"


@pytest.fixture
def clock() -> SettableClock:
    """The broker's clock, which stands still."""
    return SettableClock()


@pytest.fixture
def broker(clock: SettableClock) -> Iterator[BrokerThread]:
    """A broker with the topic `t`."""
    with running_broker(kafka_port=0, clock=clock) as running:
        with RawKafka.from_url(running.kafka_url) as client:
            create(client, "t")
        yield running


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[RawKafka]:
    """A raw connection to it."""
    with RawKafka.from_url(broker.kafka_url) as made:
        yield made


def apply(broker: BrokerThread, policy: Any, value: Any) -> None:
    """Set a policy of the topic."""

    async def run(running: Any) -> None:
        topics = running.services.topics
        await topics.policies[policy].set(topics.parse(FULL), value)

    broker.call(run)


def throttled(broker: BrokerThread) -> int:
    """How many connections are not read because of a publish rate."""

    async def run(running: Any) -> int:
        return sum(bool(session.throttles) for session in running.kafka.sessions)

    found: int = broker.call(run)
    return found


def produce(client: RawKafka, acks: int = -1) -> Any:
    """Ten records to the topic: the whole answer."""
    values = [b"x"] * 10
    return client.call(ProduceRequest, 7, **produce_fields([("t", 0, record_set(values))], acks))


def eventually(holds: Any, what: str) -> None:
    """Return when something holds."""
    deadline_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} did not come to hold within 30 s"
        time.sleep(0.01)


def test_a_publish_rate_throttles_the_client(
    broker: BrokerThread, client: RawKafka, clock: SettableClock
) -> None:
    """The answer has the time to wait; the client is not read before; no refusal (KIP-219)."""
    assert produce(client).throttle_time_ms == 0
    apply(
        broker, PUBLISH_RATE, {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    )
    answer = produce(client)
    assert answer.responses[0].partition_responses[0].error_code == 0
    # Five of ten records are a debt, and one token more is needed.
    assert answer.throttle_time_ms == 1_200
    assert throttled(broker) == 1
    client.send(ApiVersionsRequest, 0)
    with RawKafka.from_url(broker.kafka_url) as other:
        assert len(records_of(other.fetch("t", 0).records)) == 20
    clock.advance(by_ms=1_200)
    assert client.receive(ApiVersionsRequest, 0)[1].error_code == 0
    assert throttled(broker) == 0
    apply(broker, PUBLISH_RATE, None)
    assert produce(client).throttle_time_ms == 0


def test_a_throttled_client_without_answers_is_not_read_either(
    broker: BrokerThread, client: RawKafka
) -> None:
    """acks=0 has no answer that could tell it; the rate holds all the same, until it is lifted."""
    apply(
        broker, PUBLISH_RATE, {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    )
    fields = produce_fields([("t", 0, record_set([b"x"] * 10))], 0)
    for _ in range(3):
        client.send(ProduceRequest, 7, **fields)
    eventually(lambda: throttled(broker) == 1, "a pause")
    apply(broker, PUBLISH_RATE, None)
    assert produce(client).responses[0].partition_responses[0].base_offset == 30


def test_a_client_that_ends_while_it_is_not_read(broker: BrokerThread) -> None:
    """Its end is behind requests that the publish rate holds up, and is seen all the same."""
    apply(
        broker, PUBLISH_RATE, {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    )
    # More than is read while a request waits, and so little that the end is not held back by TCP.
    fields = produce_fields([("t", 0, record_set([b"x" * 5_000] * 10))], 0)
    with RawKafka.from_url(broker.kafka_url) as client:
        for _ in range(3):
            client.send(ProduceRequest, 7, **fields)
        eventually(lambda: throttled(broker) == 1, "a pause")

    async def connected(running: Any) -> int:
        return len(running.kafka.sessions)

    eventually(lambda: broker.call(connected) == 0, "the end of the connection")


@pytest.mark.parametrize(("policy", "code"), [(HOLD, 19), (REFUSE, 44)])
def test_a_full_backlog_refuses_records_until_there_is_room(
    broker: BrokerThread, client: RawKafka, policy: str, code: int
) -> None:
    """`producer_request_hold` is a code for which clients try again, the other one is final."""
    with RawClient.from_url(broker.service_url) as reader:
        consumer = reader.subscribe(f"{FULL}-partition-0", "slow")
        assert client.produce("t", record_set([b"x" * 2_000])).error_code == 0
        quota = {"limit": 1_000, "limitSize": 1_000, "limitTime": -1, "policy": policy}
        apply(broker, BACKLOG_QUOTAS, {"destination_storage": quota})
        eventually(lambda: client.produce("t", record_set([b"y"])).error_code, "a refusal")
        refused = client.produce("t", record_set([b"y"]), version=8)
        assert (refused.error_code, refused.base_offset) == (code, -1)
        assert "backlog" in refused.error_message
        end = client.fetch("t", 0).high_watermark
        consumer.flow(100)
        for _ in range(end):
            consumer.ack(consumer.receive().message_id, wait=True)
        assert client.produce("t", record_set([b"z"])).base_offset == end


def test_sets_above_the_largest_message_are_refused(broker: BrokerThread, client: RawKafka) -> None:
    """The policy maxMessageSize counts beside the setting max.message.bytes."""
    apply(broker, MAX_MESSAGE_SIZE, 500)
    assert client.produce("t", record_set([b"x" * 600])).error_code == 10
    assert client.produce("t", record_set([b"x"])).error_code == 0


def test_a_topic_that_wants_encryption_takes_no_records(
    broker: BrokerThread, client: RawKafka
) -> None:
    """Kafka's records are never encrypted."""
    for needs, code in ((True, 44), (False, 0)):

        async def run(running: Any, needs: bool = needs) -> None:
            policy = running.services.topics.policies[ENCRYPTION]
            await policy.set("public/default", needs)

        broker.call(run)
        assert client.produce("t", record_set([b"x"])).error_code == code


def test_a_terminated_topic_takes_no_records_and_is_still_read(
    broker: BrokerThread, client: RawKafka
) -> None:
    """The refusal is final, and the broker's storage has not failed."""
    assert client.produce("t", record_set([b"x"])).error_code == 0

    async def terminate(running: Any) -> None:
        topics = running.services.topics
        topic = topics.open_topics[f"{FULL}-partition-0"]
        await topics.terminate(topic)

    broker.call(terminate)
    refused = client.produce("t", record_set([b"y"]), version=8)
    assert (refused.error_code, "terminated" in refused.error_message) == (44, True)
    assert records_of(client.fetch("t", 0).records) == [(0, b"x")]
    create(client, "other")
    assert client.produce("other", record_set([b"x"])).error_code == 0
