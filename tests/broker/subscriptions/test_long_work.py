"""Commands that name very many messages are worked on in pieces."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from pulsemark.broker.subscriptions.long_work import PIECE_IDS, LongWork
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient
from pulsemark.wire import MessageId

Shared = CommandSubscribe.Shared
Key_Shared = CommandSubscribe.Key_Shared


async def test_others_have_a_turn_between_two_pieces():
    """Each turn of the loop does one piece, and what came first is done first."""
    work = LongWork()
    log: list[str] = []

    def pieces(name):
        for _ in range(3):
            log.append(name)
            yield

    work.add(pieces("a"), lambda: log.append("a done"))
    work.add(pieces("b"), lambda: log.append("b done"))
    while work:
        log.append("turn")
        await asyncio.sleep(0)
    expected = ["a", "a", "a", "a done", "b", "b", "b", "b done"]
    assert [event for event in log if event != "turn"] == expected
    assert log.count("turn") >= 6


async def test_the_rest_can_be_done_at_once():
    """finish() leaves nothing, and calls what follows."""
    work = LongWork()
    done: list[int] = []
    for number in range(3):
        work.add(iter([None] * 5), partial(done.append, number))
    work.finish()
    assert done == [0, 1, 2]
    await asyncio.sleep(0)
    assert not work


async def test_a_piece_that_fails_does_not_stop_what_comes_after(caplog):
    """It is logged, the rest of that work is left out, and the next is done."""
    work = LongWork()
    done: list[str] = []

    def failing():
        raise RuntimeError("broken")
        yield

    work.add(failing(), lambda: done.append("failed"))
    work.add(iter([None]), lambda: done.append("next"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not work
    assert done == ["failed", "next"]
    assert "a piece of work failed" in caplog.text


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_an_acknowledgement_of_very_many_messages(raw, broker, topic, sub_type):
    """It is answered when all of it is durable; another client is served before it is done."""
    producer = raw.create_producer(topic)
    count = 6 * PIECE_IDS
    receipts = producer.send_many([b"\x00\x00\x00\x00x"] * count)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    consumer.flow(count)
    consumer.receive_many(count)
    ids = [MessageId(r.ledger_id, r.entry_id) for r in receipts]
    seen = broker.call(watch_acks(topic))
    with RawClient.from_url(broker.service_url) as other:
        consumer.redeliver(*ids[: 3 * PIECE_IDS])
        consumer.flow(count)
        consumer.ack(*ids[1::2], *ids[::2], wait=False)
        other.ping()
        consumer.ack(ids[-1])
    assert max(seen) <= PIECE_IDS
    assert sum(seen) == count + 1
    assert consumer.get_last_message_id()[1].entry_id == count - 1


def watch_acks(topic):
    """A coroutine function: the list that gets the number of ids of each piece from now on."""

    async def arm(broker):
        subscription = broker.services.topics.open_topics[topic].subscriptions["s"]
        ack_piece, sizes = subscription.ack_piece, []

        def counting(consumer, ids):
            sizes.append(len(ids))
            ack_piece(consumer, ids)

        subscription.ack_piece = counting
        return sizes

    return arm


def test_what_was_sent_before_a_disconnect_is_acknowledged(broker, topic):
    """The client closes right after a long ACK: all of it counts."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        count = 4 * PIECE_IDS
        receipts = producer.send_many([b"\x00\x00\x00\x00x"] * count)
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.ack(*(MessageId(r.ledger_id, r.entry_id) for r in receipts), wait=False)
        client.ping()
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(topic, "s", sub_type=Shared)
        _, mark_delete = consumer.get_last_message_id()
        assert mark_delete is not None
        assert mark_delete.entry_id == count - 1


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_a_consumer_that_leaves_with_very_much_gives_it_back_in_pieces(
    raw, broker, topic, sub_type
):
    """One turn gives back a piece; in the end the other consumer gets every message, in order."""
    count = 5 * PIECE_IDS
    raw.create_producer(topic).send_many([b"\x00\x00\x00\x00x"] * count)
    with RawClient.from_url(broker.service_url) as other:
        leaving = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
        leaving.flow(count)
        leaving.receive_many(count)
        staying = other.subscribe(topic, "s", sub_type=sub_type)
        staying.flow(count)

        async def leave(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            consumer = next(c for c in subscription.consumers if c.pending)
            subscription.remove_consumers([consumer])
            return len(consumer.pending)

        assert broker.call(leave) == count - PIECE_IDS
        got = [message.message_id.entry_id for message in staying.receive_many(count)]
        assert got == list(range(count))


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_a_seek_in_the_middle_of_giving_back_wins(raw, broker, topic, sub_type):
    """What a consumer was still to give back is not sent beside what the seek asks for."""
    count = 5 * PIECE_IDS
    receipts = raw.create_producer(topic).send_many([b"\x00\x00\x00\x00x"] * count)
    with RawClient.from_url(broker.service_url) as other:
        leaving = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
        leaving.flow(count)
        leaving.receive_many(count)
        staying = other.subscribe(topic, "s", sub_type=sub_type)
        staying.flow(count)

        async def leave_and_detach(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            dispatcher = subscription.dispatcher
            subscription.remove_consumers([next(c for c in subscription.consumers if c.pending)])
            (consumer,) = subscription.fence()
            consumer.outlet.close_consumer(consumer)
            subscription.unfence()
            sent = subscription.messages_out
            subscription.work.finish()
            dispatcher.dispatch()
            return subscription.messages_out - sent

        assert broker.call(leave_and_detach) == 0
        other.ping()
        staying.resubscribe()
        last = receipts[-10]
        staying.seek(message_id=MessageId(last.ledger_id, last.entry_id))
        staying.resubscribe()
        staying.flow(count)
        got = [message.message_id.entry_id for message in staying.receive_many(10)]
        assert got == list(range(count - 10, count))
