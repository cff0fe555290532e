"""Chunked messages: all chunks of one go to one consumer."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pulsar
import pytest

from pulsemark.broker.subscriptions import shared_dispatcher
from pulsemark.broker.subscriptions.shared_dispatcher import Chunk, ChunkedMessages, chunk_of
from pulsemark.ledger import Position
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import batched_message, unbatched_message

Shared = CommandSubscribe.Shared
Key_Shared = CommandSubscribe.Key_Shared
SHARING = [Shared, Key_Shared]


@pytest.fixture
def other(broker):
    """A second connection."""
    with RawClient.from_url(broker.service_url) as connection:
        yield connection


def send_chunk(producer, message, number, count=3):
    """One chunk, as clients send it: its sequence id is the message's."""
    body = unbatched_message(
        b"m%d c%d" % (message, number),
        publish_time_ms=1,
        sequence_id=message,
        producer_name=producer.name,
        uuid=f"{producer.name}-{message}",
        num_chunks_from_msg=count,
        total_chunk_msg_size=count * 5,
        chunk_id=number,
    )
    producer.send_raw(body, sequence_id=message, is_chunk=True)


def chunks_of(messages):
    """Message number -> chunk numbers in the order they came."""
    seen = defaultdict(list)
    for frame in messages:
        message, chunk = frame.headers_and_payload.rpartition(b"m")[2].split(b" c")
        seen[int(message)].append(int(chunk))
    return dict(seen)


@pytest.mark.parametrize("sub_type", SHARING)
def test_all_chunks_of_a_message_come_to_one_consumer_in_order(raw, other, topic, sub_type, drain):
    """Six messages in interleaved chunks, two consumers: each message goes to one of them."""
    consumers = [c.subscribe(topic, "s", sub_type=sub_type) for c in (raw, other)]
    for consumer in consumers:
        consumer.flow(100)
    producer = raw.create_producer(topic)
    for message in range(6):
        for number in range(3):
            send_chunk(producer, message, number)
    seen = [chunks_of(drain(consumer)) for consumer in consumers]
    assert not set(seen[0]) & set(seen[1])
    assert (seen[0] | seen[1]) == {message: [0, 1, 2] for message in range(6)}
    if sub_type == Shared:
        assert all(seen)


@pytest.mark.parametrize("sub_type", SHARING)
def test_interleaved_messages_are_not_mixed(raw, other, topic, sub_type, drain):
    """Chunks of several producers are mixed; each message stays with its consumer."""
    consumers = [c.subscribe(topic, "s", sub_type=sub_type) for c in (raw, other)]
    for consumer in consumers:
        consumer.flow(100)
    producer = raw.create_producer(topic)
    for number in range(4):
        for message in range(5):
            send_chunk(producer, message, number, 4)
    seen = [chunks_of(drain(consumer)) for consumer in consumers]
    assert not set(seen[0]) & set(seen[1])
    assert (seen[0] | seen[1]) == {message: [0, 1, 2, 3] for message in range(5)}


@pytest.mark.parametrize("sub_type", SHARING)
def test_a_message_whose_consumer_leaves_starts_again_elsewhere(raw, other, topic, sub_type, drain):
    """If it leaves in the middle of the message, another one gets all chunks in order."""
    producer = raw.create_producer(topic)
    first = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    first.flow(2)
    for number in range(3):
        send_chunk(producer, 0, number)
    assert chunks_of(drain(first)) == {0: [0, 1]}
    second = other.subscribe(topic, "s", sub_type=sub_type)
    second.flow(100)
    assert drain(second) == []
    first.close()
    assert chunks_of(drain(second)) == {0: [0, 1, 2]}


def test_chunks_wait_for_their_consumer_and_others_go_on(raw, other, topic, drain):
    """Without permits for the rest of a message, other messages still reach the other consumer."""
    first = raw.subscribe(topic, "s", sub_type=Shared)
    second = other.subscribe(topic, "s", sub_type=Shared)
    first.flow(1)
    producer = raw.create_producer(topic)
    send_chunk(producer, 0, 0)
    assert chunks_of(drain(first)) == {0: [0]}
    second.flow(100)
    for number in (1, 2):
        send_chunk(producer, 0, number)
    for number in range(3):
        send_chunk(producer, 1, number)
    assert chunks_of(drain(second)) == {1: [0, 1, 2]}
    first.flow(100)
    assert chunks_of(drain(first)) == {0: [1, 2]}


def test_a_redelivered_message_is_whole_again(raw, other, topic, drain):
    """Given back completely it may go to any one consumer; in part, only to the same."""
    consumers = [c.subscribe(topic, "s", sub_type=Shared) for c in (raw, other)]
    for consumer in consumers:
        consumer.flow(100)
    producer = raw.create_producer(topic)
    for message in range(4):
        for number in range(3):
            send_chunk(producer, message, number)
    got = [drain(consumer) for consumer in consumers]
    assert all(got)
    consumers[0].redeliver(*(frame.message_id for frame in got[0]))
    again = [chunks_of(drain(consumer)) for consumer in consumers]
    assert not set(again[0]) & set(again[1])
    assert (again[0] | again[1]) == chunks_of(got[0])
    consumers[1].redeliver(got[1][1].message_id)
    assert chunks_of(drain(consumers[1])) == {next(iter(chunks_of(got[1]))): [1]}
    assert drain(consumers[0]) == []


def test_waiting_chunks_are_limited(raw, other, broker, topic, monkeypatch, drain):
    """Above the limit no new entries are read ahead; everything comes once the consumer takes."""
    monkeypatch.setattr("pulsemark.broker.subscriptions.shared_dispatcher.MAX_WAITING_CHUNKS", 10)
    first = raw.subscribe(topic, "s", sub_type=Shared)
    second = other.subscribe(topic, "s", sub_type=Shared)
    first.flow(1)
    producer = raw.create_producer(topic)
    send_chunk(producer, 0, 0, 99)
    assert len(drain(first)) == 1
    second.flow(1000)
    for number in range(1, 99):
        send_chunk(producer, 0, number, 99)
    assert drain(second) == []

    async def waiting(running):
        subscription = running.services.topics.open_topics[topic].subscriptions["s"]
        return len(subscription.dispatcher.waiting)

    assert broker.call(waiting) < 40
    first.flow(1000)
    assert chunks_of(drain(first)) == {0: list(range(1, 99))}
    producer.send(b"behind")
    assert len(drain(first) + drain(second)) == 1


@pytest.mark.parametrize(
    "consumer_type", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared]
)
def test_the_official_client_puts_messages_together(client, topic, consumer_type):
    """Six messages of three chunks, two consumers: each is delivered once, complete."""
    consumers = [client.subscribe(topic, "s", consumer_type=consumer_type) for _ in range(2)]
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    sent = [bytes([n]) * (11 * 1024 * 1024) for n in range(6)]
    for payload in sent:
        producer.send(payload)
    got = []
    for consumer in consumers:
        while True:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                break
            got.append(message.data())
            consumer.acknowledge(message)
    assert sorted(got) == sent


# -- by themselves --------------------------------------------------------------------------------


def test_what_is_a_chunk():
    """An entry with uuid, chunk id and more than one chunk is a chunk; others are not."""
    fields: dict[str, Any] = {"uuid": "u", "num_chunks_from_msg": 3}
    first, last = (
        chunk_of(unbatched_message(b"x", publish_time_ms=1, chunk_id=n, **fields)) for n in (0, 2)
    )
    assert first is not None
    assert last is not None
    assert (first.is_last, last.is_last) == (False, True)
    assert first.message == last.message
    assert chunk_of(unbatched_message(b"\xd8\x01", publish_time_ms=1)) is None
    assert chunk_of(unbatched_message(b"x", publish_time_ms=1, **fields)) is None
    single = {**fields, "num_chunks_from_msg": 1, "chunk_id": 0}
    assert chunk_of(unbatched_message(b"x", publish_time_ms=1, **single)) is None
    assert chunk_of(batched_message([b"a", b"b"], publish_time_ms=1)) is None
    assert chunk_of(b"\xd8\x01" * 9) is None
    long: dict[str, Any] = {"properties": {"k": "x" * 3000}, "chunk_id": 1}
    assert chunk_of(unbatched_message(b"x", publish_time_ms=1, **fields, **long)) is not None


def test_what_is_remembered_of_unfinished_messages_is_limited(monkeypatch):
    """A producer that never sends its last chunks: only the newest messages keep a consumer."""
    monkeypatch.setattr(shared_dispatcher, "MAX_IDLE_MESSAGES", 10)
    consumer: Any = object()
    chunked = ChunkedMessages()
    for number in range(100):
        chunked.sent(Chunk(number, is_last=False), Position(1, number), consumer)
        chunked.released([Position(1, number)])
    known = [n for n in range(100) if chunked.consumer_of(Chunk(n, is_last=True)) is consumer]
    assert known == list(range(90, 100))
    chunked.left({consumer})
    assert chunked.consumer_of(Chunk(99, is_last=True)) is None
