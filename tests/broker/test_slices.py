"""What clients do between two slices of work that the broker does in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsemark.broker.connection import session as sessions
from pulsemark.broker.cooperative import at_once
from pulsemark.broker.subscriptions import subscription as subscriptions
from pulsemark.broker.subscriptions.seek import SeekTarget, reset_subscription
from pulsemark.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandSubscribe,
    CommandSuccess,
    MessageIdData,
    Schema,
)
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import TopicName, commands
from tests.support.simulated_broker import SimulatedBroker, SimulatedClient

TOPIC = "persistent://public/default/t"
BODY = unbatched_message(b"x", publish_time_ms=1)
Shared = CommandSubscribe.Shared


@pytest.fixture
def broker(tmp_path) -> Iterator[SimulatedBroker]:
    """A broker whose every step is the test's."""
    simulated = SimulatedBroker(tmp_path / "data", active_consumer_failover_delay_ms=0)
    yield simulated
    simulated.end()


@pytest.fixture
def let_leave(monkeypatch) -> Callable[[], None]:
    """Let the consumers leave whose connections have ended; without it their turn never comes."""
    pieces: list[Iterator[None]] = []

    class Held:
        """Keeps what is to be done in the coming turns."""

        def add(self, work: Iterator[None]) -> None:
            """Later."""
            pieces.append(work)

    monkeypatch.setattr(sessions, "LongWork", Held)

    def let_leave() -> None:
        while pieces:
            at_once(pieces.pop())

    return let_leave


def connected(broker: SimulatedBroker, *frames_of: Callable[[SimulatedClient], bytes]) -> Any:
    """A client that has sent these, and has its answers."""
    client = broker.connect()
    for frame_of in frames_of:
        client.send(frame_of(client))
    broker.quiesce()
    return client


def sent(number: int) -> bytes:
    """The SEND of one message by a producer."""
    return b"".join(commands.send(number, 0, BODY))


def reads(client: SimulatedClient) -> bytes:
    """The SUBSCRIBE of a reader."""
    return client.subscribe(9, TOPIC, "reader", durable=False)


def test_a_send_before_its_producer_is_notified_of_the_unload_is_dropped(broker, monkeypatch):
    """Its connection lives on, nothing of it is stored, and the producer can be opened again."""
    client = connected(broker, *[lambda c, n=n: c.open_producer(n, TOPIC, "") for n in range(3)])
    topic = broker.topics.open_topics[TOPIC]
    begun: list[Iterator[None]] = []
    broker.loop.do(lambda: begun.append(topic.disconnect()))
    pieces = begun[0]
    received = []
    monkeypatch.setattr(client, "_take", lambda event: received.append(event.type))
    client.send(sent(0), sent(0), client.close_producer(0), sent(1))
    # It gets the broker's CLOSE_PRODUCER before the answer to its own.
    close, success = BaseCommand.CLOSE_PRODUCER, BaseCommand.SUCCESS
    assert received == [close, success, close]
    broker.loop.do(lambda: at_once(pieces))
    assert received == [close, success, close, close]
    monkeypatch.undo()
    broker.quiesce()
    assert client.is_connected
    assert topic.ledger.next_index == 0
    client.send(client.open_producer(1, TOPIC, ""))
    broker.quiesce()
    client.send(sent(1))
    broker.quiesce()
    assert topic.ledger.next_index == 1


def test_a_reader_that_comes_back_before_its_old_connection_has_left_gets_entries(
    broker, let_leave
):
    """It is not connected to the subscription that goes with the old connection."""
    broker.loop.do(connected(broker, reads).ended)
    client = connected(broker, reads, lambda c: c.open_producer(1, TOPIC, ""))
    let_leave()
    broker.quiesce()
    assert 9 in client.consumers
    topic = broker.topics.open_topics[TOPIC]
    client.send(commands.flow(9, 10), sent(1))
    broker.quiesce()
    assert topic.subscriptions["reader"].messages_out == 1


def test_a_topic_whose_last_readers_are_leaving_can_be_deleted(broker, let_leave):
    """Those who look whether it is used let the readers leave, whose subscriptions end then."""
    client = connected(
        broker,
        *[lambda c, n=n: c.subscribe(n, TOPIC, f"r{n}", durable=False) for n in range(3)],
    )
    broker.loop.do(client.ended)
    deletion = broker.start(broker.topics.delete(TopicName.parse(TOPIC)))
    broker.quiesce()
    assert deletion.exception() is None
    assert TOPIC not in broker.topics.names
    let_leave()


def test_a_consumer_with_a_schema_comes_to_a_topic_whose_last_readers_are_leaving(
    broker, let_leave
):
    """The topic counts as untouched, so that the schema becomes its own."""
    readers = connected(
        broker,
        *[lambda c, n=n: c.subscribe(n, TOPIC, f"r{n}", durable=False) for n in range(3)],
    )
    broker.loop.do(readers.ended)
    definition = b'{"type":"record","name":"n","fields":[]}'
    schema = Schema(name="s", type=Schema.Json, schema_data=definition)
    client = connected(broker, lambda c: c.subscribe(1, TOPIC, "s", schema=schema))
    assert [type(answer) for answers in client.answers.values() for answer in answers] == [
        CommandSuccess
    ]
    let_leave()


def test_what_is_left_of_an_acknowledgement_does_not_count_after_a_seek(broker, monkeypatch):
    """Who subscribes after the seek gets every message, though an ACK of old was in pieces."""
    monkeypatch.setattr(subscriptions, "PIECE_IDS", 1)
    client = connected(
        broker,
        lambda c: c.subscribe(1, TOPIC, "s", sub_type=Shared),
        lambda c: c.open_producer(2, TOPIC, ""),
    )
    client.send(*[sent(2) for _ in range(4)])
    broker.quiesce()
    subscription = broker.topics.open_topics[TOPIC].subscriptions["s"]
    (consumer,) = subscription.consumers
    first = subscription.topic.ledger.first_position
    assert first is not None
    ids = [MessageIdData(ledgerId=first.ledger_id, entryId=number) for number in range(4)]
    pieces = subscription.ack_pieces(consumer, ids)
    not_begun = subscription.ack_pieces(consumer, ids)
    next(pieces)
    assert subscription.cursor.backlog_messages == 3
    broker.start(reset_subscription(subscription, SeekTarget(first), then=lambda: None))
    broker.quiesce()
    connected(broker, lambda c: c.subscribe(1, TOPIC, "s", sub_type=Shared))
    assert len(subscription.consumers) == 1
    broker.loop.do(lambda: at_once([*pieces, *not_begun]))
    assert subscription.cursor.backlog_messages == 4
