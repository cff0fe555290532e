"""Rates of publishing and dispatch: averages are kept by the broker's clock, nothing is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.policies.pulsar_policies import (
    DISPATCH_RATE,
    PUBLISH_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
)
from pulsemark.broker.policies.rate_limits import TokenBucket
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/rated"
Shared, Key_Shared = CommandSubscribe.Shared, CommandSubscribe.Key_Shared
FIVE_IN_2_S = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}


def eventually(holds: Callable[[], object], what: str) -> None:
    """Return when something holds."""
    deadline_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline_s, f"{what} did not come to hold"
        time.sleep(0.01)


def test_tokens() -> None:
    """So many come in a period, and as many can be saved; a debt is paid before more is there."""
    clock = SettableClock()
    bucket = TokenBucket(10, 1000, clock)
    assert bucket.available() == 10
    bucket.take(35)
    assert (bucket.available(), bucket.wait_ms()) == (-25, 2600)
    clock.advance(by_ms=2600)
    assert (bucket.available(), bucket.wait_ms()) == (1, 0)
    clock.advance(by_ms=1_000_000)
    assert bucket.available() == 10
    bucket.take(10)
    clock.advance(by_ms=-5_000)
    assert bucket.available() == 0
    clock.advance(by_ms=100)
    assert bucket.available() == 1


@pytest.fixture
def clock() -> SettableClock:
    """The broker's clock."""
    return SettableClock()


@pytest.fixture
def broker(clock: SettableClock) -> Iterator[BrokerThread]:
    """A broker whose clock the test moves."""
    with running_broker(clock=clock) as running:
        yield running


def set_policy(broker: BrokerThread, policy: Any, value: Any) -> None:
    """For the topic."""

    async def run(running: Any) -> None:
        topics = running.services.topics
        await topics.policies[policy].set(topics.parse(TOPIC), value)

    broker.call(run)


def stored(broker: BrokerThread) -> int:
    """The number of durable messages."""

    async def run(running: Any) -> int:
        return int(running.services.topics.open_topics[TOPIC].counters.messages_in)

    found: int = broker.call(run)
    return found


def paused(broker: BrokerThread) -> int:
    """The number of connections that are not read."""

    async def run(running: Any) -> int:
        return sum(session.is_throttled for session in running.services.sessions)

    found: int = broker.call(run)
    return found


def post(client: RawClient, producer: Any, count: int, size: int = 10) -> None:
    """Send without waiting."""
    for n in range(count):
        body = unbatched_message(
            b"x" * size, publish_time_ms=n, sequence_id=n, producer_name=producer.name
        )
        producer.post(body)
    client.write()


@pytest.mark.parametrize(
    "rate",
    [
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
        {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 300},
    ],
)
def test_publishing_pauses(broker: BrokerThread, clock: SettableClock, rate: Any) -> None:
    """The connection is not read until the debt is paid by the clock; other ones are."""
    with (
        RawClient.from_url(broker.service_url) as client,
        RawClient.from_url(broker.service_url) as other,
    ):
        producer = client.create_producer(TOPIC)
        set_policy(broker, PUBLISH_RATE, rate)
        post(client, producer, 20)
        eventually(lambda: stored(broker) >= 5, "5 messages")
        eventually(lambda: paused(broker) == 1, "a pause")
        # What one read brought is handled; the next read waits for the clock.
        before = stored(broker)
        post(client, producer, 1)
        other.create_producer("persistent://public/default/other").send(b"x")
        assert (paused(broker), stored(broker)) == (1, before)
        for _ in range(100):
            if paused(broker) == 0 and stored(broker) == 21:
                break
            clock.advance(by_ms=1_000)
            time.sleep(0.05)
        assert stored(broker) == 21


def test_a_limit_that_is_removed_ends_the_pause(broker: BrokerThread) -> None:
    """At once, whatever the debt."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        limit = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        set_policy(broker, PUBLISH_RATE, limit)
        post(client, producer, 20)
        eventually(lambda: paused(broker) == 1, "a pause")
        post(client, producer, 5)
        set_policy(broker, PUBLISH_RATE, None)
        eventually(lambda: stored(broker) == 25, "all messages")
        assert paused(broker) == 0


def test_a_connection_that_ends_while_it_is_paused(broker: BrokerThread) -> None:
    """Leaves nothing, and others publish on."""
    client = RawClient.from_url(broker.service_url)
    producer = client.create_producer(TOPIC)
    limit = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    set_policy(broker, PUBLISH_RATE, limit)
    post(client, producer, 5)
    eventually(lambda: paused(broker) == 1, "a pause")
    client.close()
    set_policy(broker, PUBLISH_RATE, None)
    with RawClient.from_url(broker.service_url) as other:
        other.create_producer(TOPIC).send(b"x")


@pytest.mark.parametrize("policy", [DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE])
@pytest.mark.parametrize("sub_type", [CommandSubscribe.Exclusive, Shared, Key_Shared])
def test_dispatch_waits(
    broker: BrokerThread, clock: SettableClock, policy: Any, sub_type: Any
) -> None:
    """5 messages in 2 seconds, and the average is kept."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        set_policy(broker, policy, FIVE_IN_2_S)
        consumer = client.subscribe(TOPIC, "s", sub_type=sub_type)
        consumer.flow(100)
        for n in range(20):
            producer.send(b"%d" % n)
        got: list[Any] = []

        def received(count: int) -> bool:
            got.extend(consumer.drain())
            return len(got) >= count

        eventually(lambda: received(5), "5 messages")
        time.sleep(0.3)
        assert not received(6)
        clock.advance(by_ms=2_000)
        eventually(lambda: received(10), "10 messages")
        time.sleep(0.3)
        assert not received(11)
        set_policy(broker, policy, None)
        eventually(lambda: received(20), "all messages")


def test_one_subscription_with_a_rate_of_its_own(
    broker: BrokerThread, http_of: Callable[..., Any]
) -> None:
    """Waits, while the topic's others get everything; without the rate it gets the rest."""
    path = f"/admin/v2/{TOPIC.replace('://', '/')}/slow/dispatchRate"
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        assert http_of(broker)("POST", path, FIVE_IN_2_S).status == 204
        consumers = {name: client.subscribe(TOPIC, name) for name in ("slow", "fast")}
        got: dict[str, list[Any]] = {name: [] for name in consumers}
        for consumer in consumers.values():
            consumer.flow(100)
        for n in range(20):
            producer.send(b"%d" % n)

        def received(name: str, count: int) -> bool:
            got[name].extend(consumers[name].drain())
            return len(got[name]) >= count

        eventually(lambda: received("fast", 20), "all messages of the other subscription")
        eventually(lambda: received("slow", 5), "5 messages")
        assert not received("slow", 6)
        assert http_of(broker)("DELETE", path).status == 204
        eventually(lambda: received("slow", 20), "all messages")


def test_the_topics_rate_is_shared_by_its_subscriptions(broker: BrokerThread) -> None:
    """Each subscription's own rate is not."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        rate = {
            "dispatchThrottlingRateInMsg": 6,
            "dispatchThrottlingRateInByte": -1,
            "relativeToPublishRate": False,
            "ratePeriodInSecond": 1,
        }
        set_policy(broker, DISPATCH_RATE, rate)
        consumers = [client.subscribe(TOPIC, name) for name in ("a", "b")]
        for _ in range(10):
            producer.send(b"x")
        got = 0

        def received() -> int:
            nonlocal got
            got += sum(len(consumer.drain()) for consumer in consumers)
            return got

        for consumer in consumers:
            consumer.flow(100)
        eventually(lambda: received() >= 6, "6 messages")
        time.sleep(0.3)
        assert received() == 6


@pytest.mark.parametrize("sub_type", [CommandSubscribe.Exclusive, Shared, Key_Shared])
def test_what_is_delivered_again_keeps_the_rate(
    broker: BrokerThread, clock: SettableClock, drain: Any, sub_type: Any
) -> None:
    """Entries that wait for another delivery count like new ones."""
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(TOPIC, "s", sub_type=sub_type)
        consumer.flow(100)
        producer = client.create_producer(TOPIC)
        for n in range(12):
            producer.send(b"%d" % n)
        assert len(drain(consumer)) == 12
        set_policy(broker, DISPATCH_RATE, FIVE_IN_2_S)
        consumer.redeliver()
        again = drain(consumer)
        assert len(again) == 5
        clock.advance(by_ms=2_000)
        eventually(lambda: again.extend(consumer.drain()) or len(again) >= 10, "10 messages")
        assert (len(again), drain(consumer)) == (10, [])


def test_chunks_that_waited_for_their_consumer_keep_the_rate(
    broker: BrokerThread, clock: SettableClock, drain: Any
) -> None:
    """Permits for them come at once; the rate still holds."""
    with (
        RawClient.from_url(broker.service_url) as client,
        RawClient.from_url(broker.service_url) as other,
    ):
        first, second = (each.subscribe(TOPIC, "s", sub_type=Shared) for each in (client, other))
        producer = client.create_producer(TOPIC)

        def send_chunk(number: int) -> None:
            chunk: dict[str, Any] = {
                "uuid": "u",
                "num_chunks_from_msg": 12,
                "total_chunk_msg_size": 12,
            }
            body = unbatched_message(b"x", publish_time_ms=1, chunk_id=number, **chunk)
            producer.send_raw(body, sequence_id=0, is_chunk=True)

        first.flow(1)
        send_chunk(0)
        assert len(drain(first)) == 1
        second.flow(100)
        for number in range(1, 12):
            send_chunk(number)
        assert drain(second) == []
        set_policy(broker, DISPATCH_RATE, FIVE_IN_2_S)
        first.flow(100)
        got = drain(first)
        assert len(got) == 5
        clock.advance(by_ms=2_000)
        eventually(lambda: got.extend(first.drain()) or len(got) >= 10, "10 chunks")
        assert (len(got), drain(first)) == (10, [])
