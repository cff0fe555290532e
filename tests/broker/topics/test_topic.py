"""A topic's last message id, and the number of messages that its entries count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsemark.broker import cooperative
from pulsemark.broker.policies.pulsar_policies import PUBLISH_RATE
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_COMMIT
from pulsemark.proto.pulsar_api_pb2 import ZSTD, CommandAck, CommandSubscribe
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import batched_message, unbatched_message

Shared = CommandSubscribe.Shared
Exclusive = CommandSubscribe.Exclusive
Failover, Key_Shared = CommandSubscribe.Failover, CommandSubscribe.Key_Shared
CONTROLS = 50
#: It claims a million messages, and has bytes for a few.
FORGED = unbatched_message(b"x" * 100, publish_time_ms=1, num_messages_in_batch=1_000_000)
COMPRESSED: dict[str, Any] = {"compression": ZSTD, "uncompressed_size": 5_000_000}


def compressed(count):
    """A small entry that claims so many messages before its compression."""
    return unbatched_message(
        b"x" * 1000, publish_time_ms=1, num_messages_in_batch=count, **COMPRESSED
    )


@pytest.fixture
def watch_reads(broker, topic, monkeypatch):
    """Append control entries; the list that gets the loop's turn of each read from then on."""
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    tasks = []

    def arm():
        async def run(running):
            ledger = running.services.topics.open_topics[topic].ledger
            for _ in range(CONTROLS):
                appended = ledger.append_control(CONTROL_TXN_COMMIT, "t")
            await asyncio.get_running_loop().run_in_executor(None, appended.commit.wait, 10)
            turns, turn, read = [], 0, ledger.read

            async def count():
                nonlocal turn
                while True:
                    turn += 1
                    await asyncio.sleep(0)

            def noting(*arguments, **options):
                turns.append(turn)
                return read(*arguments, **options)

            tasks.append(asyncio.ensure_future(count()))
            ledger.read = noting
            return turns

        return broker.call(run)

    yield arm

    async def stop(_):
        for task in tasks:
            task.cancel()

    broker.call(stop)


def test_the_last_message_before_many_control_entries(raw, topic, watch_reads):
    """One entry is read in each turn of the loop, and none is read twice."""
    producer = raw.create_producer(topic)
    last = producer.send(b"x")
    consumer = raw.subscribe(topic, "s")
    turns = watch_reads()
    assert consumer.get_last_message_id()[0].entry_id == last.entry_id
    assert CONTROLS < len(turns) <= CONTROLS + 2
    assert len(set(turns)) == len(turns)
    turns.clear()
    assert consumer.get_last_message_id()[0].entry_id == last.entry_id
    assert len(turns) == 0
    newest = producer.send(b"y")
    assert consumer.get_last_message_id()[0].entry_id == newest.entry_id
    assert len(turns) <= 3


def test_a_last_message_that_was_trimmed_is_none(raw, topic, watch_reads, broker):
    """A result found before does not count after its message was trimmed."""
    raw.create_producer(topic).send(b"x")
    consumer = raw.subscribe(topic, "s")
    watch_reads()
    assert consumer.get_last_message_id()[0].entry_id == 0

    async def trim(running):
        ledger = running.services.topics.open_topics[topic].ledger
        before = ledger.last_position
        await asyncio.get_running_loop().run_in_executor(None, ledger.truncate_head, before)

    broker.call(trim)
    assert consumer.get_last_message_id()[0].entry_id == -1


@pytest.mark.parametrize("sub_type", [Exclusive, Shared])
@pytest.mark.parametrize(
    ("body", "said", "counted"),
    [
        (unbatched_message(b"x", publish_time_ms=1), 1_000_000, 1),
        (batched_message([b"x"] * 3, publish_time_ms=1), 1_000_000, 3),
        (batched_message([b"x"] * 3, publish_time_ms=1), 3, 3),
        (batched_message([b"x"] * 300, publish_time_ms=1), 300, 300),
        (batched_message([b""] * 300, publish_time_ms=1), 300, 300),
        (FORGED, 1_000_000, len(FORGED) // 6),
    ],
)
def test_permits_go_by_what_the_batch_says(raw, http, topic, sub_type, body, said, counted):
    """A SEND that claims a million messages takes no more of a consumer's permits than it has."""
    consumer = raw.subscribe(topic, "s", sub_type=sub_type)
    consumer.flow(1_000)
    producer = raw.create_producer(topic)
    for _ in range(2):
        producer.send_raw(body, num_messages=said)
        consumer.receive()
    path = f"/admin/v2/persistent/{topic.partition('://')[2]}/stats"
    (row,) = http("GET", path).json["subscriptions"]["s"]["consumers"]
    assert row["availablePermits"] == 1_000 - 2 * counted
    assert row["msgOutCounter"] == 2 * counted
    assert row["unackedMessages"] == (2 * counted if sub_type == Shared else 0)


@pytest.mark.parametrize("sub_type", [Exclusive, Failover, Shared, Key_Shared])
@pytest.mark.parametrize("said", [999_999, 1_000_000, 2**20])
def test_a_forged_batch_does_not_starve_its_consumer(raw, topic, sub_type, said):
    """SEND and header claim a million messages: the entry costs no more than its bytes can hold."""
    consumer = raw.subscribe(topic, "s", sub_type=sub_type)
    consumer.flow(1_000)
    producer = raw.create_producer(topic)
    producer.send_raw(FORGED, num_messages=said)
    producer.send(b"next")
    assert [one.message_id.entry_id for one in consumer.receive_many(2)] == [0, 1]


@pytest.mark.parametrize(("said", "counted"), [(100_000, 100_000), (800_000, 1 << 17)])
def test_a_compressed_batch_takes_no_more_permits_than_real_ones_have(
    raw, http, topic, said, counted
):
    """What its codec could make of a few bytes counts up to a number that no real batch reaches."""
    consumer = raw.subscribe(topic, "s", sub_type=Exclusive)
    consumer.flow(1_000)
    raw.create_producer(topic).send_raw(compressed(said), num_messages=said)
    consumer.receive()
    path = f"/admin/v2/persistent/{topic.partition('://')[2]}/stats"
    (row,) = http("GET", path).json["subscriptions"]["s"]["consumers"]
    assert row["availablePermits"] == 1_000 - counted


@pytest.mark.parametrize("sub_type", [Exclusive, Failover, Shared, Key_Shared])
def test_a_batch_that_cannot_be_opened_gives_its_permits_back(raw, topic, sub_type, drain):
    """A compressed batch may hold many messages. Clients that find none of them say so."""
    body = unbatched_message(
        b"x" * 100, publish_time_ms=1, num_messages_in_batch=500_000, **COMPRESSED
    )
    consumer = raw.subscribe(topic, "s", sub_type=sub_type)
    consumer.flow(1_000)
    producer = raw.create_producer(topic)
    producer.send_raw(body, num_messages=500_000)
    broken = consumer.receive()
    producer.send(b"next")
    assert drain(consumer) == []
    consumer.ack(broken.message_id, validation_error=CommandAck.BatchDeSerializeError)
    assert consumer.receive().message_id.entry_id == 1


def test_a_forged_batch_does_not_stop_a_topic_with_a_publish_rate(raw, broker, topic):
    """The rate is charged by what the batch can hold: publishing goes on within a second."""
    producer = raw.create_producer(topic)
    limit = {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1}

    async def set_limit(running):
        topics = running.services.topics
        await topics.policies[PUBLISH_RATE].set(topics.parse(topic), limit)

    broker.call(set_limit)
    producer.send_raw(FORGED, num_messages=1_000_000)
    producer.send(b"next")


def test_a_closed_topic_sends_nothing_more(raw, broker, topic):
    """From its close on, also before the last of its consumers was notified."""
    with RawClient.from_url(broker.service_url) as other:
        consumer = other.subscribe(topic, "s", sub_type=Shared, earliest=True)
        raw.create_producer(topic).send(b"x")

        async def close_and_offer(running):
            opened = running.services.topics.open_topics.pop(topic)
            subscription = opened.subscriptions["s"]
            held = subscription.consumers[0]
            opened.close()
            subscription.flow(held, 10)
            cooperative.at_once(opened.disconnect())
            return subscription.messages_out

        assert broker.call(close_and_offer) == 0
        other.ping()
        assert consumer.is_closed
