"""A connection that ends with many consumers of one subscription."""

from __future__ import annotations

import pytest

from pulsemark.broker.subscriptions.consumer import Consumer
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from tests.support.simulated_broker import SimulatedBroker

TOPIC = "persistent://public/default/t"
FEW, MANY = 40, 160


@pytest.fixture
def broker(tmp_path):
    """A broker whose every step is controlled by the test."""
    simulated = SimulatedBroker(tmp_path / "data", active_consumer_failover_delay_ms=0)
    yield simulated
    simulated.end()


def subscribe(client, broker, sub_type, count, level):
    """That many consumers; the last one to come is the first in rank."""
    for number in range(count):
        options = {"sub_type": sub_type, "priority_level": level - number}
        client.send(client.subscribe(number, TOPIC, "s", **options))
    broker.quiesce()
    assert len(client.consumers) == count


@pytest.mark.parametrize(
    "sub_type",
    [CommandSubscribe.Failover, CommandSubscribe.Shared, CommandSubscribe.Key_Shared],
)
def test_the_leave_of_many_costs_in_proportion_to_them(broker, monkeypatch, steps_of, sub_type):
    """Four times the consumers cost about four times the steps, and all are gone in that step."""
    # A list that is searched for a consumer calls this for each one before it: a step to count.
    monkeypatch.setattr(Consumer, "__eq__", lambda one, other: one is other)
    stays = broker.connect()
    subscribe(stays, broker, sub_type, 1, level=MANY + 1)
    subscription = broker.topics.open_topics[TOPIC].subscriptions["s"]
    steps = []
    for count in (FEW, MANY):
        leaves = broker.connect()
        subscribe(leaves, broker, sub_type, count, level=MANY)
        assert len(subscription.consumers) == count + 1
        steps.append(steps_of(lambda client=leaves: broker.loop.do(client.ended)))
        (left,) = subscription.consumers
        assert left.connection is stays.session
        broker.quiesce()
    assert steps[1] < 4.6 * steps[0]


@pytest.mark.parametrize(
    "sub_type", [CommandSubscribe.Failover, CommandSubscribe.Shared, CommandSubscribe.Key_Shared]
)
def test_closing_many_one_by_one_does_not_search_among_the_others(broker, monkeypatch, sub_type):
    """No consumer is compared with another when one is closed."""
    client = broker.connect()
    subscribe(client, broker, sub_type, FEW, level=MANY)
    compared = []

    def equal(one, other):
        compared.append(1)
        return one is other

    monkeypatch.setattr(Consumer, "__eq__", equal)
    for number in range(FEW):
        client.send(client.close_consumer(number))
    broker.quiesce()
    assert not broker.topics.open_topics[TOPIC].subscriptions["s"].consumers
    assert not compared
