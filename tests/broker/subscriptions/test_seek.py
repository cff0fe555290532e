"""SEEK by id and by time: the new position, the answers, and their order."""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.wire import EARLIEST, LATEST, Command, Connection, MessageId, Role, commands

Shared = CommandSubscribe.Shared
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def clock():
    """The clock of this module's broker: entry n of a test's topic has START_MS + 1000 n."""
    return SettableClock(START_MS)


@pytest.fixture(scope="module")
def broker(clock):
    """A broker with a settable clock."""
    with running_broker(clock=clock) as running:
        yield running


@pytest.fixture
def ids(raw, clock, topic):
    """Ids of ten messages, one second apart by the broker's clock."""
    producer = raw.create_producer(topic)
    found = []
    for n in range(10):
        clock.set(START_MS + 1000 * n)
        receipt = producer.send(b"%d" % n, publish_time_ms=7)
        found.append(MessageId(receipt.ledger_id, receipt.entry_id))
    return found


def entries_after(consumer, *, count=100):
    """Entry ids that a consumer gets after it has subscribed again."""
    consumer.resubscribe()
    consumer.flow(count)
    last, _ = consumer.get_last_message_id()
    found: list[Any] = []
    while not found or found[-1] < last.entry_id:
        found.append(consumer.receive(timeout_s=2).message_id.entry_id)
    return found


@pytest.mark.parametrize(
    ("time_ms", "first"),
    [
        (0, 0),
        (START_MS, 0),
        (START_MS + 1, 1),
        (START_MS + 4000, 4),
        (START_MS + 4001, 5),
        (START_MS + 9000, 9),
    ],
)
def test_a_seek_by_time_lands_on_the_first_entry_not_before_it(raw, topic, ids, time_ms, first):
    """By the broker's clock, whatever the producer's says."""
    consumer = raw.subscribe(topic, "s")
    consumer.seek(publish_time_ms=time_ms)
    assert list(range(first, 10)) == entries_after(consumer)


@pytest.mark.parametrize("time_ms", [START_MS + 9001, 2**62, 2**64 - 1])
def test_a_seek_behind_everything_is_the_end(raw, topic, ids, time_ms):
    """Never silently the beginning: only what comes afterwards."""
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.seek(publish_time_ms=time_ms)
    raw.create_producer(topic).send(b"new")
    assert entries_after(consumer) == [10]


def test_a_seek_on_an_empty_topic_succeeds(raw, topic):
    """By time and by id."""
    consumer = raw.subscribe(topic, "s")
    consumer.seek(publish_time_ms=START_MS)
    consumer.resubscribe()
    consumer.seek(message_id=EARLIEST)
    raw.create_producer(topic).send(b"x")
    assert entries_after(consumer) == [0]


@pytest.mark.parametrize(
    ("choose", "first"),
    [
        (lambda ids: EARLIEST, 0),
        (lambda ids: ids[0], 0),
        (lambda ids: ids[6], 6),
        (lambda ids: ids[6]._replace(batch_index=0), 6),
        (lambda ids: MessageId(0, 3), 0),
        (lambda ids: LATEST, 10),
        (lambda ids: MessageId(ids[0].ledger_id, 77), 10),
        (lambda ids: MessageId(ids[0].ledger_id + 999, 0), 10),
    ],
)
def test_a_seek_by_id_lands_on_the_entry_itself(raw, topic, ids, choose, first):
    """Ids outside of the topic are its beginning or its end."""
    consumer = raw.subscribe(topic, "s")
    consumer.seek(message_id=choose(ids))
    raw.create_producer(topic).send(b"new")
    assert list(range(first, 11)) == entries_after(consumer)


def test_a_seek_clears_acknowledgements_and_redelivery_counts(raw, topic, ids):
    """Acknowledged messages after the target come again, with a redelivery count of 0."""
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    consumer.flow(100)
    consumer.receive_many(10)
    consumer.redeliver(ids[7])
    assert consumer.receive().command.redelivery_count == 1
    consumer.ack(*ids[3:9])
    consumer.seek(message_id=ids[2])
    consumer.resubscribe()
    consumer.flow(100)
    again = consumer.receive_many(8)
    assert ids[2:] == [message.message_id for message in again]
    assert not any(message.command.HasField("redelivery_count") for message in again)


def test_every_consumer_is_closed_and_success_follows_at_once(raw, broker, topic, ids):
    """CLOSE_CONSUMER to all of the subscription's consumers, with no request id, then SUCCESS."""
    with RawClient.from_url(broker.service_url) as other:
        first = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
        second = other.subscribe(topic, "s", sub_type=Shared)
        bystander = other.subscribe(topic, "elsewhere")
        first.seek(publish_time_ms=START_MS + 5000)
        close = raw.wait_unsolicited(BaseCommand.CLOSE_CONSUMER, timeout_s=0.001)
        assert (first.consumer_id, 2**64 - 1) == (close.consumer_id, close.request_id)
        close = other.wait_unsolicited(BaseCommand.CLOSE_CONSUMER)
        assert (second.consumer_id, 2**64 - 1) == (close.consumer_id, close.request_id)
        assert not bystander.is_closed
        assert list(range(5, 10)) == entries_after(second)


def test_a_seek_on_failover_leaves_the_consumers_that_wait(broker, topic, ids):
    """The active one is closed; another one keeps its permits, and takes over if it stays away."""
    failover = CommandSubscribe.Failover
    with (
        RawClient.from_url(broker.service_url) as first,
        RawClient.from_url(broker.service_url) as second,
    ):
        active = first.subscribe(topic, "s", sub_type=failover, earliest=True)
        assert first.wait_unsolicited(BaseCommand.ACTIVE_CONSUMER_CHANGE).is_active
        waiting = second.subscribe(topic, "s", sub_type=failover, priority_level=1)
        assert not second.wait_unsolicited(BaseCommand.ACTIVE_CONSUMER_CHANGE).is_active
        waiting.flow(100)
        second.ping()
        active.seek(message_id=ids[7])
        first.wait_unsolicited(BaseCommand.CLOSE_CONSUMER)
        second.ping()
        assert not waiting.is_closed
        assert [ids[7], ids[8], ids[9]] == [one.message_id for one in waiting.receive_many(3)]


def test_close_and_success_are_one_piece_on_the_wire(broker, topic, ids):
    """Nothing comes between CLOSE_CONSUMER and SUCCESS, in this order."""
    import socket

    host, port = broker.service_url.removeprefix("pulsar://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        conn = Connection(Role.CLIENT)

        def next_commands(count):
            found: list[int] = []
            while len(found) < count:
                conn.receive_data(link.recv(65536))
                found += [event.type for event in conn.events() if isinstance(event, Command)]
            return found

        link.sendall(commands.connect("test"))
        next_commands(1)
        link.sendall(commands.subscribe(topic, "s", 1, 1))
        next_commands(1)
        link.sendall(commands.seek(1, 2, message_id=EARLIEST))
        assert next_commands(2) == [BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS]


def test_commands_for_a_consumer_that_a_seek_closed_do_nothing(raw, topic, ids):
    """Late FLOW, ACK and redelivery requests are dropped."""
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.seek(message_id=ids[5])
    consumer.flow(5)
    consumer.ack(ids[9], cumulative=True, wait=False)
    consumer.redeliver()
    raw.ping()
    assert list(range(5, 10)) == entries_after(consumer)


def test_a_seek_without_target_is_refused(raw, topic):
    """Neither id nor time: MetadataError, and the consumer stays."""
    consumer = raw.subscribe(topic, "s")
    with pytest.raises(RequestRefusedError, match="MetadataError"):
        consumer.seek()
    raw.ping()
    assert not consumer.is_closed


def test_seeks_at_the_same_time_do_not_mix(raw, broker, topic, ids):
    """Of two concurrent seeks one has its full effect; the other fails or follows it."""
    consumer = raw.subscribe(topic, "s", sub_type=Shared)
    first, second = raw.new_id(), raw.new_id()
    raw.write(
        commands.seek(consumer.consumer_id, first, message_id=ids[3]),
        commands.seek(consumer.consumer_id, second, message_id=ids[6]),
    )
    raw.wait_response(first)
    with pytest.raises(RequestRefusedError, match="MetadataError"):
        raw.wait_response(second)
    assert list(range(3, 10)) == entries_after(consumer)


def test_a_seek_outlives_a_crash(tmp_path, topic):
    """SUCCESS means durable: a copy of the folder taken right then has the new place."""
    import shutil

    with (
        running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        ids = [MessageId(*producer.send(b"x")[1:3]) for _ in range(5)]
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.ack(ids[4], cumulative=True)
        consumer.seek(message_id=ids[2])
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with (
        running_broker(data_dir=tmp_path / "copy", http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe(topic, "s")
        consumer.flow(10)
        assert ids[2:] == [message.message_id for message in consumer.receive_many(3)]


def test_a_readers_place_outlives_its_seek_for_a_time(topic):
    """The subscription waits for its reader for a time, then it is removed."""
    with (
        running_broker(http_port=None, non_durable_return_timeout_ms=300) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        for n in range(5):
            producer.send(b"%d" % n)
        reader = client.subscribe(topic, "r", durable=False, start_message_id=LATEST)
        reader.seek(publish_time_ms=0)
        again = client.subscribe(
            topic, "r", durable=False, consumer_id=reader.consumer_id, start_message_id=None
        )
        again.flow(10)
        assert list(range(5)) == [m.message_id.entry_id for m in again.receive_many(5)]
        again.seek(publish_time_ms=0)
        deadline = time.monotonic() + 10
        while "r" in broker.call(subscription_names(topic)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def subscription_names(topic):
    """A coroutine function for the broker's loop."""

    async def names(broker):
        return list(broker.services.topics.open_topics[topic].subscriptions)

    return names


# -- the official client --------------------------------------------------------------------------


def test_the_official_consumer_seeks_by_time_and_id_again_and_again(client, topic, ids):
    """Several seeks in a row, each followed by what stands there."""
    consumer = client.subscribe(topic, "s")
    for n in (3, 0, 8, 5):
        consumer.seek(START_MS + 1000 * n)
        assert b"%d" % n == consumer.receive(5000).data()
    first = pulsar.MessageId.earliest
    consumer.seek(first)
    assert consumer.receive(5000).data() == b"0"


def test_the_official_reader_seeks_and_knows_what_is_available(client, topic, ids):
    """has_message_available is right after a seek by time, to the middle and to the end."""
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    reader.seek(START_MS + 7000)
    assert reader.has_message_available()
    assert [reader.read_next(5000).data() for _ in range(3)] == [b"7", b"8", b"9"]
    assert not reader.has_message_available()
    reader.seek(START_MS + 9001)
    assert not reader.has_message_available()
    reader.seek(0)
    assert reader.read_next(5000).data() == b"0"


def test_the_other_consumers_of_the_subscription_follow_a_seek(client, topic, ids):
    """Two Shared consumers: after a seek both reconnect and get everything after it."""
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)
    ]
    consumers[0].seek(START_MS + 6000)
    got: set[bytes] = set()
    deadline = time.monotonic() + 10
    while len(got) < 4 and time.monotonic() < deadline:
        for consumer in consumers:
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            got.add(message.data())
            consumer.acknowledge(message)
    assert {b"6", b"7", b"8", b"9"} == got
