"""The order of consumers: which one of Failover is active, and the ring of ready ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pulsemark.broker.subscriptions.consumer import ReadyRing, failover_ring
from pulsemark.broker.subscriptions.sticky_keys import murmur3_32
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from pulsemark.testing import RawClient, running_broker

Failover = CommandSubscribe.Failover
CHANGE = BaseCommand.ACTIVE_CONSUMER_CHANGE


@dataclass(eq=False)
class Member:
    """A consumer, as the ring sees it."""

    name: str
    priority_level: int


def members(*names, level=0) -> list[Any]:
    """Consumers with these names."""
    return [Member(name, level) for name in names]


def by_definition(topic, consumers):
    """Pulsar's rule: all points in one sorted map, and the first one at or after the topic."""
    points = {}
    for consumer in consumers:
        for at in range(100):
            points[murmur3_32(f"{consumer.name}{at}".encode())] = consumer
    place = murmur3_32(topic.encode())
    return points[min((p for p in points if p >= place), default=min(points))]


def test_the_ring_chooses_as_pulsars_map_of_points():
    """For many topics and sets of consumers, also after some left."""
    chosen = set()
    for number in range(60):
        topic = f"persistent://public/default/t{number}"
        ring, present = failover_ring(topic), members("a", "b", "c", "d", "e")
        for consumer in present:
            ring.add(consumer)
        while present:
            active: Any = ring[0]
            assert active is by_definition(topic, present)
            chosen.add(active.name)
            ring.remove([active])
            present.remove(active)
        assert not ring
    assert chosen == set("abcde")


def test_of_one_name_the_last_one_is_active():
    """As in Pulsar, whose map keeps the last consumer of equal points."""
    ring, (first, second, third) = failover_ring("t"), members("same", "same", "same")
    for consumer in (first, second, third):
        ring.add(consumer)
    assert ring[0] is third
    last: Any = third
    ring.remove([last])
    assert ring[0] is second


def test_a_better_priority_level_wins_whatever_the_names():
    """Level 0 comes before level 1."""
    ring = failover_ring("t")
    for consumer in (*members("a", "b", "c", level=1), *members("z", level=0)):
        ring.add(consumer)
    first: Any = ring[0]
    assert first.name == "z"


@pytest.fixture
def quick():
    """A connection to a broker whose consumers start after 300 ms."""
    with (
        running_broker(http_port=None, active_consumer_failover_delay_ms=300) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        yield client


def test_consumers_get_the_active_one_when_it_starts(quick, topic):
    """Also the first consumer waits; then all are notified, and the active one gets messages."""
    producer = quick.create_producer(topic)
    producer.send(b"x")
    consumers = {
        name: quick.subscribe(topic, "s", sub_type=Failover, consumer_name=name, earliest=True)
        for name in ("b", "a")
    }
    expected = by_definition(topic, members("a", "b")).name
    for consumer in consumers.values():
        consumer.flow(5)
    quick.ping()
    assert not any(consumer.arrived() for consumer in consumers.values())
    names = {consumer.consumer_id: name for name, consumer in consumers.items()}
    said: dict[str, bool] = {}
    # One that comes and is not active is notified at once, too.
    while len(said) < 2 or not any(said.values()):
        received = quick.wait_unsolicited(CHANGE)
        said[names[received.consumer_id]] = received.is_active
    assert said == {name: name == expected for name in consumers}
    assert consumers[expected].receive().message_id.entry_id == 0


def test_consumers_are_notified_in_the_order_of_their_names(quick, topic):
    """As by Pulsar, whichever of them the ring has made the active one."""
    for number in range(5):
        names = {
            quick.subscribe(
                f"{topic}-{number}", "s", sub_type=Failover, consumer_name=name
            ).consumer_id: name
            for name in ("c", "a", "b")
        }
        said = [quick.wait_unsolicited(CHANGE)]
        while not any(each.is_active for each in said) or len(said) < 3:
            said.append(quick.wait_unsolicited(CHANGE))
        quick.ping()
        said += [each.body for each in quick.unsolicited if each.type == CHANGE]
        quick.unsolicited.clear()
        assert [names[each.consumer_id] for each in said[-3:]] == ["a", "b", "c"]


def test_partition_i_goes_to_consumer_i_mod_n(quick, topic):
    """By name among the consumers of the best level, whatever the ring would choose."""
    active = []
    for index in range(4):
        name = f"{topic}-partition-{index}"
        quick.create_producer(name)
        consumers = {}
        for label, level in (("b", 0), ("c", 1), ("a", 0)):
            consumer = quick.subscribe(
                name, "s", sub_type=Failover, consumer_name=label, priority_level=level
            )
            consumers[consumer.consumer_id] = label
        while True:
            received = quick.wait_unsolicited(CHANGE)
            if received.is_active:
                active.append(consumers[received.consumer_id])
                break
        for _ in range(2):
            quick.ping()
        while quick.unsolicited:
            quick.unsolicited.popleft()
    assert active == ["a", "b", "a", "b"]


@dataclass(eq=False)
class Taker:
    """A consumer as the ring sees it."""

    name: str
    priority_level: int = 0
    permits: int = 1


def ring_of(*takers):
    """A ring, and the consumers that were asked whether they are ready."""
    asked = []

    def is_ready(taker):
        asked.append(taker)
        return taker.permits > 0

    ring = ReadyRing(is_ready)
    for taker in takers:
        ring.add(taker)
    return ring, asked


def turn(ring):
    """The next consumer; it then moves to the end."""
    taker = ring.first()
    if taker is not None:
        assert ring.first() is taker
        ring.move_to_end(taker)
    return taker


def test_each_in_turn_and_the_best_level_first():
    """Round robin over the ready ones of a level; the next level when none of it is ready."""
    a, b, c, low = Taker("a"), Taker("b"), Taker("c"), Taker("low", priority_level=1)
    ring, _ = ring_of(low, a, b, c)
    assert [turn(ring).name for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    b.permits = 0
    assert [turn(ring).name for _ in range(4)] == ["a", "c", "a", "c"]
    a.permits = c.permits = 0
    assert turn(ring) is low
    low.permits = 0
    assert not ring.has_ready()
    assert turn(ring) is None
    c.permits = 1
    assert turn(ring) is None
    ring.add(c)
    ring.add(c)
    assert [turn(ring), turn(ring)] == [c, c]
    ring.remove(c)
    ring.remove(c)
    assert turn(ring) is None


def test_permits_from_many_consumers_cost_no_look_at_all_of_them():
    """3000 consumers get permits, one after the other, and each is used up at once."""
    takers = [Taker(str(n), permits=0) for n in range(3000)]
    ring, asked = ring_of(*takers)
    assert turn(ring) is None
    assert len(asked) == 3000
    asked.clear()
    for taker in takers:
        taker.permits = 1
        ring.add(taker)
        assert turn(ring) is taker
        taker.permits = 0
        assert turn(ring) is None
    assert len(asked) <= 5 * 3000
