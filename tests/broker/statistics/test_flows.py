"""Rates of single producers, consumers and subscriptions."""

from __future__ import annotations

from dataclasses import dataclass

from pulsemark.broker.statistics.flows import NOTHING, Flow, Flows
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import commands


@dataclass(eq=False)
class _Counted:
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


def test_rates_are_those_of_the_last_period():
    """Growth divided by the period; what had no traffic has no meter, what left is forgotten."""
    flows, producer, idle, consumer = Flows(), _Counted(10, 100), _Counted(), _Counted()
    consumer.messages_out, consumer.bytes_out = 4, 40
    flows.update([producer, idle], [consumer], 2.0)
    assert flows.of(producer) == Flow(5.0, 50.0, 10, 100)
    assert flows.of(consumer) == Flow(2.0, 20.0, 4, 40)
    assert flows.of(idle) is NOTHING
    producer.messages_in = 11
    flows.update([producer], [], 1.0)
    assert flows.of(producer).messages_per_s == 1.0
    assert flows.of(consumer) is NOTHING


async def _end_period(broker):
    for topic in broker.services.topics.open_topics.values():
        topic.update_rates(2.0)


def test_clients_see_their_rates():
    """CONSUMER_STATS has a consumer's rates of the last period, and msgBacklog counts entries."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        name = "persistent://public/default/rates"
        producer = raw.create_producer(name)
        consumer = raw.subscribe(name, "s", earliest=True)
        for _ in range(3):
            producer.send(b"12345")
        consumer.flow(2)
        consumer.receive_many(2)
        broker.call(_end_period)
        stats = raw.request(lambda number: commands.consumer_stats(consumer.consumer_id, number))
        assert (stats.msgRateOut, stats.msgBacklog) == (1.0, 3)
        assert stats.msgThroughputOut > 5.0
