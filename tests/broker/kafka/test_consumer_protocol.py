"""The consumer protocol (KIP-848) with librdkafka: `group.protocol=consumer`."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from pulsemark.testing import running_broker

WAIT_S = 60


@pytest.fixture(scope="module")
def broker():
    """A broker whose members send heartbeats often."""
    with running_broker(
        kafka_port=0,
        http_port=None,
        kafka_group_initial_rebalance_delay_ms=0,
        kafka_group_consumer_heartbeat_interval_ms=100,
    ) as running:
        yield running


@pytest.fixture
def admin(broker):
    """An administrator."""
    return AdminClient({"bootstrap.servers": broker.kafka_url})


@pytest.fixture
def wide(admin, topic):
    """A topic of six partitions."""
    admin.create_topics([NewTopic(topic, 6)])[topic].result(WAIT_S)
    return topic


@contextlib.contextmanager
def consuming(broker, group, *topics, protocol="consumer", **settings):
    """A member of a group."""
    given: dict[str, Any] = {
        "bootstrap.servers": broker.kafka_url,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 200,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    consumer = Consumer(given)
    consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        consumer.close()


def shares(*consumers, until):
    """Poll until the assignments are as wanted; the numbers of partitions."""
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s:
        for each in consumers:
            message = each.poll(0.05)
            assert message is None or message.error() is None, message.error()
        sizes = [len(each.assignment()) for each in consumers]
        if sizes == until:
            held = [(p.topic, p.partition) for each in consumers for p in each.assignment()]
            assert len(held) == len(set(held))
            return
    raise AssertionError(f"{sizes}, not {until}")


def produce(broker, topic, count):
    """Produce to all partitions in turn."""
    producer = Producer({"bootstrap.servers": broker.kafka_url})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % 6)
    assert producer.flush(WAIT_S) == 0


def test_members_share_the_partitions_and_hand_them_on(broker, wide):
    """One, two, one again; what was committed is where the next one goes on."""
    produce(broker, wide, 60)
    with consuming(broker, wide, wide) as one:
        shares(one, until=[6])
        with consuming(broker, wide, wide) as two:
            shares(one, two, until=[3, 3])
        shares(one, until=[6])
        one.commit(offsets=[TopicPartition(wide, p, 4) for p in range(6)], asynchronous=False)
    with consuming(broker, wide, wide) as again:
        found: list[int] = []
        while len(found) < 36:
            message = again.poll(WAIT_S)
            assert message.error() is None
            found.append(int(message.value()))
        assert sorted(found) == list(range(24, 60))


def test_the_server_assigns_as_asked(broker, wide):
    """By ranges, and not by what it does not know."""
    with (
        consuming(broker, wide, wide, group_remote_assignor="range") as one,
        consuming(broker, wide, wide, group_remote_assignor="range") as two,
    ):
        shares(one, two, until=[3, 3])
        parts = sorted(sorted(p.partition for p in each.assignment()) for each in (one, two))
        assert parts == [[0, 1, 2], [3, 4, 5]]
    with consuming(broker, f"{wide}-2", wide, group_remote_assignor="best") as wrong:
        message = None
        ends_s = time.monotonic() + WAIT_S
        while message is None and time.monotonic() < ends_s:
            message = wrong.poll(0.1)
        assert message is not None
        assert "assignor" in message.error().str()


def test_a_regex_is_looked_up_by_the_broker(broker, admin, topic):
    """Also for topics that come later, and that come as another one goes."""
    pytest.importorskip("re2", reason="google-re2 is not installed (the extra `kafka`)")
    names = [f"{topic}-x-{number}" for number in range(3)]
    admin.create_topics([NewTopic(names[0], 2)])[names[0]].result(WAIT_S)
    with consuming(broker, topic, f"^{topic}-x-.*") as one:
        shares(one, until=[2])
        admin.create_topics([NewTopic(names[1], 1)])[names[1]].result(WAIT_S)
        shares(one, until=[3])
        admin.delete_topics([names[1]])[names[1]].result(WAIT_S)
        admin.create_topics([NewTopic(names[2], 1)])[names[2]].result(WAIT_S)
        until_s = time.monotonic() + WAIT_S
        while names[2] not in {each.topic for each in one.assignment()}:
            assert time.monotonic() < until_s
            one.poll(0.1)


def test_more_partitions_are_shared_out(broker, admin, wide):
    """A topic that grows."""
    with consuming(broker, wide, wide) as one:
        shares(one, until=[6])
        admin.create_partitions([NewPartitions(wide, 8)])[wide].result(WAIT_S)
        shares(one, until=[8])


def test_a_static_member_gets_back_what_it_had(broker, wide):
    """While it is away, the others keep what they have."""
    with consuming(broker, wide, wide) as other:
        with consuming(broker, wide, wide, group_instance_id="i") as one:
            shares(one, other, until=[3, 3])
            had = sorted(p.partition for p in one.assignment())
        shares(other, until=[3])
        with consuming(broker, wide, wide, group_instance_id="i") as back:
            shares(back, other, until=[3, 3])
            assert sorted(p.partition for p in back.assignment()) == had


def test_a_group_is_described(broker, admin, wide):
    """With its type and members, by the new request."""
    with consuming(broker, wide, wide) as one:
        shares(one, until=[6])
        (found,) = [
            each
            for each in admin.list_consumer_groups().result(WAIT_S).valid
            if each.group_id == wide
        ]
        assert (found.type.name, found.state.name) == ("CONSUMER", "STABLE")
        group = admin.describe_consumer_groups([wide])[wide].result(WAIT_S)
        (member,) = group.members
        assert len(member.assignment.topic_partitions) == 6
        assert len(member.target_assignment.topic_partitions) == 6
        assert member.member_id == one.memberid()
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([wide])[wide].result(WAIT_S)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_protocol_while_it_works(broker, wide, strategy):
    """A classic member, beside it one of the new protocol, then the classic one alone again."""
    settings = {"protocol": "classic", "partition_assignment_strategy": strategy}
    with consuming(broker, wide, wide, heartbeat_interval_ms=100, **settings) as classic:
        shares(classic, until=[6])
        with consuming(broker, wide, wide) as new:
            shares(classic, new, until=[3, 3])
            offsets = [TopicPartition(wide, classic.assignment()[0].partition, 1)]
            classic.commit(offsets=offsets, asynchronous=False)
            with consuming(broker, wide, wide, heartbeat_interval_ms=100, **settings) as third:
                shares(classic, new, third, until=[2, 2, 2])
            shares(classic, new, until=[3, 3])
        shares(classic, until=[6])
