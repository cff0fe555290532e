"""Transactions of Pulsar's clients: all of one counts, or nothing, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.broker.configuration.config import BrokerConfig
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.subscriptions.pending_acks import WHOLE, Part, PendingAcks
from pulsemark.broker.topics import transactions
from pulsemark.client import RequestRefusedError, SendRefusedError
from pulsemark.ledger import CatalogError, Position
from pulsemark.ledger.store import PENDING_ACKS_KIND
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import BrokerProcess, PulsarBroker, RawClient, running_broker
from pulsemark.wire import MessageId, TopicName
from tests.support.transaction_client import TransactionClient, received

TOPIC, OTHER = "persistent://public/default/orders", "persistent://public/default/paid"
ON = {"transaction_coordinator_enabled": True}


@pytest.fixture
def broker() -> Iterator[PulsarBroker]:
    """A broker with transactions."""
    with running_broker(**ON) as started:
        yield started


@pytest.fixture
def client(broker: PulsarBroker) -> Iterator[TransactionClient]:
    """A client of that broker."""
    with RawClient.from_url(broker.service_url) as raw:
        yield TransactionClient(raw)


def test_clients_that_look_up_over_http_find_the_coordinator(broker):
    """Its topic has one partition, which this broker serves."""
    coordinators = "persistent://pulsar/system/transaction_coordinator_assign"
    assert broker.admin.partitions(coordinators) == 1


def test_messages_come_with_the_commit_and_in_the_logs_order(client):
    """Nothing after the first open transaction is delivered; then all of it, in order."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(100)
    txn = client.begin()
    client.add(txn, TOPIC)
    producer.send(b"before")
    client.send(producer, b"in it", txn)
    producer.send(b"after")
    assert received(consumer) == [b"before"]
    client.end(txn, committed=True)
    assert received(consumer) == [b"in it", b"after"]


def test_aborted_messages_never_come(client, broker):
    """Neither to a consumer that waited, nor to one that comes later; the index counts them."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(100)
    txn = client.begin()
    client.add(txn, TOPIC)
    client.send(producer, b"in it", txn)
    producer.send(b"after")
    client.end(txn, committed=False)
    later = client.raw.subscribe(TOPIC, "later", earliest=True)
    later.flow(100)
    assert received(consumer) == received(later) == [b"after"]
    stats = broker.admin.stats(TOPIC)
    assert (stats["abortedTxnCount"], stats["ongoingTxnCount"]) == (1, 0)


def test_one_transaction_over_two_topics_and_an_acknowledgement(client):
    """Consume, transform, produce: the input is gone and both outputs are there, or none of it."""
    source = client.raw.create_producer(TOPIC)
    sinks = [client.raw.create_producer(f"{OTHER}{number}") for number in range(2)]
    outputs = [client.raw.subscribe(f"{OTHER}{number}", "s", earliest=True) for number in range(2)]
    shared = pb.CommandSubscribe.Shared
    inputs = client.raw.subscribe(TOPIC, "s", sub_type=shared, earliest=True)
    for consumer in (*outputs, inputs):
        consumer.flow(100)
    source.send(b"input")
    for committed in (False, True):
        message = inputs.receive()
        txn = client.begin()
        client.add(txn, *(f"{OTHER}{number}" for number in range(2)))
        for sink in sinks:
            client.send(sink, b"output", txn)
        client.ack(inputs, message.message_id, txn)
        assert [received(each) for each in outputs] == [[], []]
        client.end(txn, committed=committed)
        assert [received(each) for each in outputs] == [[b"output"] if committed else []] * 2
    assert received(inputs) == []
    inputs.redeliver()
    assert received(inputs) == []


@pytest.mark.parametrize("sub_type", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared])
def test_what_a_transaction_has_acknowledged_comes_to_nobody_else(client, sub_type):
    """Not after a redelivery, not to a new consumer; an abort gives it back, counted."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", sub_type=sub_type, earliest=True)
    consumer.flow(100)
    ids = [producer.send(b"%d" % number) for number in range(3)]
    assert len(consumer.receive_many(3)) == 3
    txn = client.begin()
    client.ack(consumer, MessageId(ids[1].ledger_id, ids[1].entry_id), txn)
    consumer.redeliver()
    assert received(consumer) == [b"0", b"2"]
    consumer.close()
    consumer = client.raw.subscribe(TOPIC, "s", sub_type=sub_type, earliest=True)
    consumer.flow(100)
    assert received(consumer) == [b"0", b"2"]
    client.end(txn, committed=False)
    assert received(consumer) == [b"1"]


def test_cumulative_acknowledgements(client):
    """All up to there is acknowledged by the commit; an abort delivers all of it again."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(100)
    for number in range(3):
        producer.send(b"%d" % number)
    ids = [message.message_id for message in consumer.receive_many(3)]
    aborted, committed = client.begin(), client.begin()
    client.ack(consumer, ids[1], aborted, up_to=True)
    with pytest.raises(RequestRefusedError, match="within range of current"):
        client.ack(consumer, ids[2], committed, up_to=True)
    client.end(aborted, committed=False)
    assert received(consumer) == [b"0", b"1", b"2"]
    client.ack(consumer, ids[1], committed, up_to=True)
    client.end(committed, committed=True)
    consumer.redeliver()
    assert received(consumer) == [b"2"]


def test_conflicts(client):
    """A message is acknowledged by one transaction; one that is acknowledged for good, by none."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True)
    consumer.flow(100)
    producer.send(b"0")
    message_id = consumer.receive().message_id
    first, second = client.begin(), client.begin()
    client.ack(consumer, message_id, first)
    with pytest.raises(RequestRefusedError, match="in pending ack status") as caught:
        client.ack(consumer, message_id, second)
    assert caught.value.error_name == "TransactionConflict"
    client.end(first, committed=True)
    with pytest.raises(RequestRefusedError, match="already acked before"):
        client.ack(consumer, message_id, second)


def test_a_batch_in_parts(client, broker):
    """Two transactions acknowledge messages of one batch; each ends as its client says."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True)
    consumer.flow(100)
    producer.send_batch([b"0", b"1", b"2"])
    message = consumer.receive()
    first, second = client.begin(), client.begin()
    at = message.message_id

    def of(bit: int) -> MessageId:
        return MessageId(at.ledger_id, at.entry_id, ack_set=(0b111 & ~(1 << bit),))

    client.ack(consumer, of(0), first)
    client.ack(consumer, of(1), second)
    with pytest.raises(RequestRefusedError, match="in pending ack status"):
        client.ack(consumer, of(1), first)
    consumer.redeliver()
    (rest,) = consumer.drain()
    assert [*rest.command.ack_set] == [0b100], "to nobody else meanwhile"
    client.end(first, committed=True)
    client.end(second, committed=False)
    (again,) = consumer.drain()
    assert again.message_id.entry_id == at.entry_id
    assert [*again.command.ack_set] == [0b110]


def test_a_batch_up_to_one_message_after_another(client):
    """A transaction may go on in the batch in which it was; another one may not."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(100)
    producer.send(b"before")
    producer.send_batch([b"0", b"1", b"2", b"3"])
    before, message = consumer.receive_many(2)
    consumer.ack(before.message_id, cumulative=True)
    at = message.message_id

    def up_to(bit: int) -> MessageId:
        return MessageId(at.ledger_id, at.entry_id, ack_set=(0b1111 & ~((2 << bit) - 1),))

    aborted, committed = client.begin(), client.begin()
    client.ack(consumer, up_to(0), aborted, up_to=True)
    client.ack(consumer, up_to(2), aborted, up_to=True)
    for bit, transaction in ((1, aborted), (3, committed)):
        with pytest.raises(RequestRefusedError) as caught:
            client.ack(consumer, up_to(bit), transaction, up_to=True)
        assert caught.value.error_name == "TransactionConflict"
    client.end(aborted, committed=False)
    consumer.drain()
    client.ack(consumer, up_to(1), committed, up_to=True)
    client.end(committed, committed=True)
    consumer.redeliver()
    (rest,) = consumer.drain()
    assert [*rest.command.ack_set] == [0b1100]


def test_a_message_of_aborted_transactions_is_counted_as_delivered_again(client):
    """So one that no transaction can be done with comes to the dead letters."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True)
    consumer.flow(100)
    producer.send(b"poison")
    for count in range(3):
        message = consumer.receive()
        assert message.command.redelivery_count == count
        transaction = client.begin()
        client.ack(consumer, message.message_id, transaction)
        client.end(transaction, committed=False)


def test_an_unknown_or_ended_transaction_is_refused(client):
    """By its commands, by ACK, and by SEND with an error after which clients do not try again."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(1)
    producer.send(b"0")
    message_id = consumer.receive().message_id
    ended = client.begin()
    client.end(ended, committed=True)
    for txn in (ended, {"txnid_most_bits": 0, "txnid_least_bits": 99_999}):
        for ask in (
            lambda txn=txn: client.add(txn, TOPIC),
            lambda txn=txn: client.end(txn, committed=True),
            lambda txn=txn: client.ack(consumer, message_id, txn),
        ):
            with pytest.raises(RequestRefusedError) as caught:
                ask()
            assert caught.value.error_name == "TransactionNotFound"
        with pytest.raises(SendRefusedError, match="not found") as refused:
            client.send(producer, b"late", txn)
        assert refused.value.error_name == "NotAllowedError"
    with pytest.raises(RequestRefusedError) as caught:
        client.end({"txnid_most_bits": 7, "txnid_least_bits": 0}, committed=True)
    assert caught.value.error_name == "TransactionCoordinatorNotFound"


def test_a_transaction_keeps_nothing_of_what_is_too_much(client, broker, monkeypatch):
    """Topics by a request and by a message, subscriptions; what it has still counts."""
    monkeypatch.setattr(transactions, "MAX_PLACES", 2)
    first, second, third = (f"persistent://public/default/t{number}" for number in range(3))
    producer = client.raw.create_producer(third)
    consumer = client.raw.subscribe(third, "s", earliest=True)
    consumer.flow(10)
    txn = client.begin()
    client.add(txn, first)
    with pytest.raises(RequestRefusedError, match="at most 2 topics"):
        client.add(txn, second, third)
    with pytest.raises(RequestRefusedError, match="at most 2 topics"):
        client.add(txn, *(f"{first}-{number}" for number in range(9)))
    client.add(txn, second)
    with pytest.raises(SendRefusedError, match="at most 2 topics"):
        client.send(producer, b"x", txn)
    client.end(txn, committed=True)
    assert not broker.broker.services.transactions.coordinator.by_number
    assert received(consumer) == []


@pytest.mark.parametrize("steps_h", [(1,), (-8_000, 1)])
def test_a_transaction_that_takes_too_long_is_aborted(client, broker, steps_h):
    """By the broker's clock, also if that steps back meanwhile; what it sent never comes."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(10)
    txn = client.begin(timeout_ms=3_600_000)
    client.send(producer, b"in it", txn)
    producer.send(b"after")
    for hours in steps_h:
        assert received(consumer) == []
        broker.clock.advance(hours=hours)
    assert received(consumer) == [b"after"]
    with pytest.raises(RequestRefusedError, match="not found"):
        client.end(txn, committed=True)


def test_a_time_below_zero_is_over_at_once(client, broker):
    """Java's clients send -1, and cannot read the list of transactions with 2^64-1 in it."""
    transaction = client.begin(timeout_ms=2**64 - 1)
    broker.call(lambda running: running.services.transactions.checked())
    with pytest.raises(RequestRefusedError, match="not found"):
        client.end(transaction, committed=True)


def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(client, broker):
    """Its other topics get the decision."""
    first = client.raw.create_producer(TOPIC)
    second = client.raw.create_producer(OTHER)
    consumer = client.raw.subscribe(OTHER, "s", earliest=True)
    consumer.flow(10)
    txn = client.begin()
    client.add(txn, TOPIC, OTHER)
    client.send(first, b"gone", txn)
    client.send(second, b"stays", txn)
    first.close()
    broker.admin.delete_topic(TOPIC)
    client.end(txn, committed=True)
    assert received(consumer) == [b"stays"]


@pytest.mark.parametrize("committed", [True, False])
def test_kill_9_keeps_open_transactions(tmp_path: Path, committed):
    """Messages and acknowledgements of an open transaction are still pending after a kill; then
    they end as the client says.
    """
    conf = tmp_path / "broker.conf"
    conf.write_text("transactionCoordinatorEnabled=true\n")
    with BrokerProcess("--config", str(conf), data_dir=tmp_path / "d") as process:
        with RawClient.from_url(process.service_url) as raw:
            client = TransactionClient(raw)
            producer = raw.create_producer(TOPIC)
            consumer = raw.subscribe(TOPIC, "s", earliest=True)
            consumer.flow(10)
            producer.send(b"input")
            message_id = consumer.receive().message_id
            txn = client.begin()
            client.send(producer, b"in it", txn)
            client.ack(consumer, message_id, txn)
        process.kill()
        process.start()
        with RawClient.from_url(process.service_url) as raw:
            client = TransactionClient(raw)
            consumer = raw.subscribe(TOPIC, "s", earliest=True)
            consumer.flow(10)
            assert received(consumer) == []
            client.end(txn, committed=committed)
            assert received(consumer) == ([b"in it"] if committed else [b"input"])
            assert client.begin() != txn


POSITIONS = st.builds(Position, st.integers(0, 3), st.integers(0, 40))
PARTS = st.one_of(st.just(WHOLE), st.builds(Part, st.integers(1, 2**70), st.integers(1, 2)))


@settings(max_examples=50)
@given(
    st.dictionaries(st.text(max_size=3), st.dictionaries(POSITIONS, PARTS, min_size=1)),
    st.none() | st.tuples(st.text(max_size=3), POSITIONS),
)
def test_what_is_stored_is_what_was_acknowledged(acks, up_to):
    """A subscription's row has all of its pending acknowledgements, however they lie."""
    pending = PendingAcks()
    for transaction, acked in acks.items():
        pending.add(transaction, acked)
    pending.cumulative = up_to
    found = PendingAcks.of(json.loads(json.dumps(pending.row())))
    assert found.single == acks
    assert found.cumulative == up_to
    places = {place for acked in acks.values() for place in acked}
    assert all(found.bits_in(place) == pending.bits_in(place) for place in places)


def beside_a_write(
    broker: PulsarBroker, txn: Any, work: Callable[..., Coroutine[Any, Any, Any]], error: Any = None
) -> Any:
    """What work gives while the next change of what the coordinator stores waits for the disk.

    It gets the coordinator, the transaction, and what lets the change be made, or fail.
    """

    async def run(one: Any) -> Any:
        coordinator = one.services.transactions.coordinator
        transaction = txn and coordinator.get(0, txn["txnid_least_bits"])
        write, may_write = coordinator.metadata.write, threading.Event()

        def write_late(changes: Any) -> None:
            coordinator.metadata.write = write
            may_write.wait()
            if error is not None:
                raise error
            write(changes)

        coordinator.metadata.write = write_late
        try:
            return await work(coordinator, transaction, may_write.set)
        finally:
            may_write.set()

    return broker.call(run)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_commit_that_is_asked_for_twice_is_one(client, broker, is_lost):
    """Also if the first one's client goes away meanwhile, or its decision cannot be stored."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", earliest=True)
    consumer.flow(10)
    txn = client.begin()
    client.add(txn, TOPIC)
    client.send(producer, b"in it", txn)

    async def ended(coordinator: Any, transaction: Any, go_on: Any) -> Any:
        def end() -> asyncio.Task[None]:
            return asyncio.ensure_future(coordinator.end(transaction, committed=True))

        first = end()
        await asyncio.sleep(0.05)
        second = end()
        await asyncio.sleep(0.05)
        if is_lost:
            first.cancel()
            await asyncio.sleep(0.05)
        go_on()
        return await asyncio.gather(first, second, return_exceptions=True)

    error = None if is_lost else CatalogError(Path(), "the disk fails once")
    _, second = beside_a_write(broker, txn, ended, error)
    if isinstance(second, RefusedError):
        client.end(txn, committed=True)
    assert received(consumer) == [b"in it"]


@pytest.mark.parametrize("name", [None, "s"])
def test_a_topic_is_in_a_transaction_once_that_is_durable(client, broker, name):
    """Who asks meanwhile gets no answer: a kill would take the topic out of it again."""
    txn = client.begin()

    async def joined(coordinator: Any, transaction: Any, go_on: Any) -> list[bool]:
        least = transaction.number
        asked = [asyncio.ensure_future(coordinator.join(0, least, TOPIC, name)) for _ in range(2)]
        await asyncio.sleep(0.05)
        before = [each.done() for each in asked]
        go_on()
        assert await asyncio.gather(*asked) == [str(transaction)] * 2
        return before

    assert beside_a_write(broker, txn, joined) == [False, False]


def test_acknowledgements_that_come_together_are_stored_together(client, broker, monkeypatch):
    """What a transaction has acknowledged is put together once for all of them, not for each."""
    producer = client.raw.create_producer(TOPIC)
    consumer = client.raw.subscribe(TOPIC, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True)
    consumer.flow(10)
    producer.send(b"0")
    client.ack(consumer, consumer.receive().message_id, client.begin())
    rows: list[int] = []
    row = PendingAcks.row

    def counted(pending: PendingAcks) -> Any:
        rows.append(1)
        return row(pending)

    monkeypatch.setattr(PendingAcks, "row", counted)

    async def keep(one: Any) -> None:
        topic = one.services.topics.open_topics[TOPIC]
        keep_pending = one.services.participants.keep_pending
        topic.subscriptions["s"].pending_acks.add("(0,99)", {Position(9, 9): WHOLE})
        await asyncio.gather(*(keep_pending(topic) for _ in range(50)))

    broker.call(keep)
    assert len(rows) <= 2


def test_what_is_acknowledged_later_is_stored_later(client, broker):
    """Also if the client that has acknowledged before goes away while that is being stored."""
    producer = client.raw.create_producer(TOPIC)
    client.raw.subscribe(TOPIC, "s", earliest=True)
    producer.send(b"0")

    async def keep(one: Any) -> bool:
        topic, participants = one.services.topics.open_topics[TOPIC], one.services.participants
        catalog, pending = topic.ledger.store.catalog, PendingAcks()
        topic.subscriptions["s"].pending_acks = pending
        write, may_write = catalog.write, threading.Event()

        def write_late(changes: Any) -> None:
            catalog.write = write
            may_write.wait()
            write(changes)

        catalog.write = write_late
        asked = []
        for number in range(2):
            pending.add("(0,9)", {Position(9, number): WHOLE})
            asked.append(asyncio.ensure_future(participants.keep_pending(topic)))
            await asyncio.sleep(0.05)
            asked[0].cancel()
        may_write.set()
        await asked[1]
        await asyncio.sleep(0.05)
        stored = catalog.get(PENDING_ACKS_KIND, str(topic.ledger.topic_id))
        return bool(stored == topic.pending_acks_stored)

    assert broker.call(keep)


@pytest.mark.parametrize("again", ["the time", "the client"])
async def test_no_topic_is_told_before_the_decision_is_durable(again):
    """While a commit is being stored, neither the time nor a second END_TXN begins its steps."""
    told: list[int] = []
    stored: list[Any] = []
    may_store = asyncio.Event()

    class Participants:
        async def end(self, *names, **facts):
            told.append(len(stored))

    class Metadata:
        async def write(self, changes):
            if any(b"COMMITTING" in (value or b"") for _, _, value in changes):
                await may_store.wait()
                stored.append(changes)

    async def run(function, *arguments):
        return await function(*arguments)

    parts: tuple[Any, Any] = Metadata(), Participants()
    coordinator = transactions.Transactions(*parts, BrokerConfig(), run)
    transaction = await coordinator.begin(60_000, None)
    await coordinator.add_topics(transaction, [(TopicName.parse("orders"), "orders")])
    ends = [asyncio.ensure_future(coordinator.end(transaction, committed=True))]
    await asyncio.sleep(0)
    if again == "the time":
        coordinator.check_time()
    else:
        ends.append(asyncio.ensure_future(coordinator.end(transaction, committed=True)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert told == []
    may_store.set()
    await asyncio.gather(*ends)
    assert told
    assert min(told) >= 1


def test_no_number_is_given_twice(broker):
    """Also if the disk failed when the first one of many was to be stored: a broker that starts
    again goes on after all that were given.
    """

    async def begun(coordinator: Any, _: Any, go_on: Any) -> tuple[int, int]:
        begins = []
        for _ in range(2):
            begins.append(asyncio.ensure_future(coordinator.begin(60_000, None)))
            await asyncio.sleep(0.05)
        go_on()
        outcomes: list[Any] = await asyncio.gather(*begins, return_exceptions=True)
        refused, given = outcomes
        assert isinstance(refused, RefusedError)
        stored = dict(coordinator.metadata.items(transactions.TRANSACTION_PROPERTY_KIND))
        return given.number, int(stored.get(transactions.NEXT_KEY, 0))

    number, following = beside_a_write(broker, None, begun, CatalogError(Path(), "it fails once"))
    assert number < following
