"""Backlog quotas by size and by age, with each of their three policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.policies.pulsar_policies import BACKLOG_QUOTAS, EVICT, HOLD, REFUSE
from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from pulsemark.testing import RawClient, SettableClock, running_broker

TOPIC = "persistent://public/default/full"


class Place:
    """A broker with a topic and a subscription that acknowledges nothing."""

    def __init__(self, broker: BrokerThread, clock: SettableClock) -> None:
        self.broker = broker
        self.clock = clock
        self.client = RawClient.from_url(broker.service_url)
        self.producer = self.client.create_producer(TOPIC)
        self.consumer = self.client.subscribe(TOPIC, "s", sub_type=CommandSubscribe.Shared)

    def quota(self, kind: str, policy: str, limit: int) -> None:
        """Set a quota of the topic; None of the others."""
        size = limit if kind == "destination_storage" else -1
        age = limit if kind == "message_age" else -1
        value = {"limit": size, "limitSize": size, "limitTime": age, "policy": policy}

        async def work(running: Any) -> None:
            topics = running.services.topics
            levels = topics.policies[BACKLOG_QUOTAS]
            await levels.set(topics.parse(TOPIC), {kind: value})

        self.broker.call(work)
        self.check()

    def check(self) -> None:
        """Check all quotas now."""

        async def work(running: Any) -> None:
            await running.services.lifetimes.backlogs.check_all()

        self.broker.call(work)

    def facts(self) -> tuple[int, int]:
        """The number of producers, and the backlog of the subscription."""

        async def work(running: Any) -> tuple[int, int]:
            topic = running.services.topics.open_topics[TOPIC]
            backlog = topic.subscriptions["s"].cursor.backlog_messages
            return len(topic.producers.by_name), int(backlog)

        found: tuple[int, int] = self.broker.call(work)
        return found


@pytest.fixture
def place() -> Iterator[Place]:
    """A broker whose clock the test moves."""
    clock = SettableClock()
    with running_broker(clock=clock) as broker:
        found = Place(broker, clock)
        yield found
        found.client.close()


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (HOLD, ServerError.ProducerBlockedQuotaExceededError),
        (REFUSE, ServerError.ProducerBlockedQuotaExceededException),
    ],
)
@pytest.mark.parametrize("kind", ["destination_storage", "message_age"])
def test_producers_are_closed_and_refused(
    place: Place, kind: str, policy: str, code: ServerError
) -> None:
    """Until the backlog is small again: then a producer can be opened at once."""
    place.quota(kind, policy, 500 if kind == "destination_storage" else 60)
    receipts = [place.producer.send(b"x" * 100) for _ in range(6)]
    place.clock.advance(by_ms=61_000)
    place.check()
    assert place.facts() == (0, 6)
    with pytest.raises(RequestRefusedError) as caught:
        place.client.create_producer(TOPIC)
    assert caught.value.error == code
    assert "Cannot create producer on topic with backlog quota exceeded" in caught.value.message
    place.consumer.flow(10)
    for _ in receipts:
        place.consumer.ack(place.consumer.receive().message_id)
    _until(lambda: place.facts()[1] == 0)
    place.client.create_producer(TOPIC).send(b"y")


def test_eviction_by_size(place: Place) -> None:
    """Nine tenths of the quota are left, and the producer stays."""
    for _ in range(20):
        place.producer.send(b"x" * 1000)
    place.quota("destination_storage", EVICT, 10_000)
    producers, backlog = place.facts()
    assert producers == 1
    assert 6 <= backlog <= 9


def test_eviction_by_age(place: Place) -> None:
    """What is too old is skipped, and only that."""
    place.quota("message_age", EVICT, 60)
    place.producer.send(b"old")
    place.clock.advance(by_ms=59_000)
    place.producer.send(b"new")
    place.check()
    assert place.facts() == (1, 2)
    place.clock.advance(by_ms=2_000)
    place.check()
    assert place.facts() == (1, 1)


def test_without_subscriptions_nothing_is_exceeded() -> None:
    """A topic without durable subscriptions has no backlog; the broker's quota is a setting."""
    with (
        running_broker(backlog_quota_default_limit_bytes=10) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(TOPIC)
        producer.send(b"x" * 100)
        client.create_producer(TOPIC)
        client.subscribe(TOPIC, "s")
        producer.send(b"x" * 100)
        with pytest.raises(RequestRefusedError):
            client.create_producer(TOPIC)


def _until(holds: Callable[[], bool]) -> None:
    import time

    deadline_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come to hold"
        time.sleep(0.01)
