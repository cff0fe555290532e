"""Topics and subscriptions that are not used are deleted, as policies say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.configuration.config import DELETE_MODES
from pulsemark.broker.ownership import NotOwnedError
from pulsemark.broker.policies.pulsar_policies import INACTIVE_TOPICS, SUBSCRIPTION_EXPIRATION
from pulsemark.broker.topics.registry import unload
from pulsemark.testing import RawClient, SettableClock, running_broker

NAME = "persistent://public/default/{}"


@pytest.fixture
def clock() -> SettableClock:
    """The broker's clock."""
    return SettableClock()


@pytest.fixture
def broker(clock: SettableClock) -> Iterator[BrokerThread]:
    """A broker whose clock the test moves."""
    with running_broker(clock=clock) as running:
        yield running


def work(broker: BrokerThread, round_name: str) -> None:
    """A round of the broker's timers, now."""

    async def run(running: Any) -> None:
        await getattr(running.services.lifetimes, round_name)()

    broker.call(run)


def set_policy(broker: BrokerThread, policy: Any, value: Any) -> None:
    """For the namespace."""

    async def run(running: Any) -> None:
        await running.services.topics.policies[policy].set("public/default", value)

    broker.call(run)


def topics(broker: BrokerThread) -> set[str]:
    """The short names of all topics."""

    async def run(running: Any) -> list[str]:
        names: list[str] = running.services.topics.names_in("public/default")
        return names

    return {name.rpartition("/")[2] for name in broker.call(run)}


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        (DELETE_MODES[0], {"producing", "consuming", "backlog", "read"}),
        (DELETE_MODES[1], {"producing", "consuming", "backlog"}),
    ],
)
def test_inactive_topics(
    broker: BrokerThread, clock: SettableClock, mode: str, left: set[str]
) -> None:
    """A topic in use stays; one that is not used is deleted after the time, not before."""
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(NAME.format("producing"))
        client.subscribe(NAME.format("consuming"), "s")
        client.subscribe(NAME.format("read"), "s").close()
        client.subscribe(NAME.format("backlog"), "s").close()
        for name in ("backlog", "unused"):
            producer = client.create_producer(NAME.format(name))
            producer.send(b"x")
            producer.close()
        everything = {"producing", "consuming", "read", "backlog", "unused"}
        policy = {
            "inactiveTopicDeleteMode": mode,
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        }
        set_policy(broker, INACTIVE_TOPICS, policy)
        work(broker, "check_topics")
        clock.advance(by_ms=59_000)
        work(broker, "check_topics")
        assert topics(broker) == everything
        clock.advance(by_ms=1_000)
        work(broker, "check_topics")
        assert topics(broker) == left


def test_a_topic_that_is_used_again_starts_a_new_wait(
    broker: BrokerThread, clock: SettableClock
) -> None:
    """The time counts from its last use."""
    policy = {"maxInactiveDurationSeconds": 60, "deleteWhileInactive": True}
    set_policy(broker, INACTIVE_TOPICS, policy)
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(NAME.format("t")).close()
        work(broker, "check_topics")
        clock.advance(by_ms=50_000)
        producer = client.create_producer(NAME.format("t"))
        work(broker, "check_topics")
        producer.close()
        clock.advance(by_ms=50_000)
        work(broker, "check_topics")
        assert topics(broker) == {"t"}
        clock.advance(by_ms=60_000)
        work(broker, "check_topics")
        assert topics(broker) == set()


def test_without_the_policy_nothing_is_opened_or_deleted(broker: BrokerThread) -> None:
    """As by default."""
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(NAME.format("t")).close()
    work(broker, "check_topics")
    assert topics(broker) == {"t"}


def test_subscriptions_expire(broker: BrokerThread, clock: SettableClock) -> None:
    """Those without consumers, after the time."""
    set_policy(broker, SUBSCRIPTION_EXPIRATION, 1)
    with RawClient.from_url(broker.service_url) as client:
        client.subscribe(NAME.format("t"), "gone").close()
        client.subscribe(NAME.format("t"), "used")

        def subscriptions() -> set[str]:
            async def run(running: Any) -> set[str]:
                topic = running.services.topics.open_topics[NAME.format("t")]
                return set(topic.subscriptions)

            found: set[str] = broker.call(run)
            return found

        clock.advance(by_ms=59_000)
        work(broker, "check_subscriptions")
        assert subscriptions() == {"gone", "used"}
        clock.advance(by_ms=1_000)
        work(broker, "check_subscriptions")
        assert subscriptions() == {"used"}


def test_topics_of_other_brokers_are_left_to_them(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """In a cluster each broker knows the names of all topics: it warns of none that it lacks."""
    with RawClient.from_url(broker.service_url) as client:
        client.create_producer(NAME.format("elsewhere")).close()

    def refuse(name: object) -> None:
        raise NotOwnedError(str(name), "0x00000000_0xffffffff", "other:6650")

    async def give_away(running: Any) -> None:
        running.services.topics.check_owned = refuse
        await unload(running.services.topics, lambda name: True)

    set_policy(
        broker, INACTIVE_TOPICS, {"maxInactiveDurationSeconds": 1, "deleteWhileInactive": True}
    )
    broker.call(give_away)
    work(broker, "check_topics")

    assert "elsewhere" not in caplog.text
    assert topics(broker) == {"elsewhere"}
