"""Dispatch: damaged entries, control entries, many acknowledged entries in a row."""

from __future__ import annotations

import errno

import pytest

from pulsemark.broker.storage import durable
from pulsemark.broker.subscriptions.dispatcher import ROUND_ENTRIES
from pulsemark.broker.subscriptions.sticky_keys import murmur3_32
from pulsemark.client import RequestRefusedError
from pulsemark.ledger import EntryKind, StoreOptions
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta, KeySharedMode
from pulsemark.testing import RawClient, running_broker
from pulsemark.wire import MessageId

Exclusive = CommandSubscribe.Exclusive
Shared = CommandSubscribe.Shared
Key_Shared = CommandSubscribe.Key_Shared
TYPES = [Exclusive, Shared, Key_Shared]


def entry_ids(messages):
    """Entry ids of frames."""
    return [message.message_id.entry_id for message in messages]


def damage(folder, text):
    """Flip a bit of a text that stands once in the ledgers of a data folder."""
    files = [path for path in (folder / "ledgers").rglob("*") if path.is_file()]
    (path,) = (path for path in files if text in path.read_bytes())
    at = path.read_bytes().index(text)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([text[0] ^ 1]))


@pytest.fixture
def damaged_folder(tmp_path, topic):
    """A data folder with six entries, of which the one in the middle is damaged."""
    folder = tmp_path / "data"
    with (
        running_broker(data_dir=folder, http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        client.subscribe(topic, "s", earliest=True).close()
        producer = client.create_producer(topic)
        for n in range(6):
            producer.send(b"the text of entry %d" % n)
    damage(folder, b"the text of entry 2")
    return folder


@pytest.mark.parametrize("sub_type", TYPES)
def test_dispatch_stops_in_front_of_a_damaged_entry(damaged_folder, topic, sub_type, drain_of):
    """No wrong byte goes out, stats name the place, and a seek leads past it."""
    with (
        running_broker(data_dir=damaged_folder, http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe(topic, "s", sub_type=sub_type)
        consumer.flow(100)
        got = consumer.receive_many(2)
        assert entry_ids(got) == [0, 1]
        assert drain_of(broker)(consumer) == []
        place = broker.call(damaged_position(topic))
        assert place.entry_id == 2
        consumer.seek(message_id=MessageId(place.ledger_id, 3))
        consumer.resubscribe()
        consumer.flow(100)
        assert entry_ids(consumer.receive_many(3)) == [3, 4, 5]


def damaged_position(topic):
    """A coroutine function for the broker's loop."""

    async def read(broker):
        return broker.services.topics.open_topics[topic].subscriptions["s"].damaged_position

    return read


@pytest.mark.parametrize("sub_type", TYPES)
def test_a_damaged_entry_is_stepped_over_where_that_is_wanted(damaged_folder, topic, sub_type):
    """auto_skip_non_recoverable_data: the rest comes, the loss is counted, the cursor passes."""
    with (
        running_broker(
            data_dir=damaged_folder, http_port=None, auto_skip_non_recoverable_data=True
        ) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe(topic, "s", sub_type=sub_type)
        consumer.flow(100)
        got = consumer.receive_many(5)
        assert entry_ids(got) == [0, 1, 3, 4, 5]
        consumer.ack(*(message.message_id for message in got))
        _, mark_delete = consumer.get_last_message_id()
        assert mark_delete is not None
        assert mark_delete.entry_id == 5
        assert broker.call(damaged_count(topic)) == 1


def damaged_count(topic):
    """A coroutine function for the broker's loop."""

    async def read(broker):
        return broker.services.topics.open_topics[topic].counters.damaged_entries

    return read


def test_an_entry_damaged_after_its_delivery_does_not_hold_up_others(tmp_path, topic):
    """It is not redelivered and stays unacknowledged."""
    folder = tmp_path / "data"
    from_disk = StoreOptions(tail_cache_bytes=0)
    with (
        running_broker(data_dir=folder, http_port=None, store_options=from_disk) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.flow(100)
        for n in range(4):
            producer.send(b"the text of entry %d" % n)
        consumer.receive_many(4)
        broker.call(checkpoint)
        damage(folder, b"the text of entry 1")
        consumer.redeliver()
        again = consumer.receive_many(3)
        assert entry_ids(again) == [0, 2, 3]
        consumer.ack(*(message.message_id for message in again))
        _, mark_delete = consumer.get_last_message_id()
        assert mark_delete is not None
        assert mark_delete.entry_id == 0


async def checkpoint(broker):
    """Sync the segments and drop the journal, so that a text stands in one place."""
    await broker.services.run_blocking(broker.store.checkpoint)


@pytest.mark.parametrize("sub_type", TYPES)
def test_control_entries_are_never_delivered_and_do_not_hold_the_cursor(
    raw, broker, topic, sub_type
):
    """They take an index; consumers do not see them, and the mark delete position passes them."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    consumer.flow(100)

    async def control(running):
        ledger = running.services.topics.open_topics[topic].ledger
        ledger.append(b"a mark of the broker's own", kind=EntryKind.CONTROL)

    producer.send(b"0")
    broker.call(control)
    producer.send(b"2")
    broker.call(control)
    got = consumer.receive_many(2)
    assert entry_ids(got) == [0, 2]
    assert consumer.get_last_message_id()[0].entry_id == 2
    consumer.ack(*(message.message_id for message in got))
    raw.ping()
    producer.send(b"4")
    assert consumer.receive().message_id.entry_id == 4
    assert consumer.get_last_message_id()[1].entry_id == 3


def test_a_long_acknowledged_stretch_is_jumped_over(raw, topic):
    """With 3,000 entries acknowledged in the middle the ends are delivered, in order."""
    producer = raw.create_producer(topic)
    receipts = producer.send_many([b"\x00\x00\x00\x00x"] * 3100)
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    ids = [MessageId(r.ledger_id, r.entry_id) for r in receipts]
    for at in range(50, 3050, 500):
        consumer.ack(*ids[at : at + 500])
    consumer.flow(1000)
    assert [*range(50), *range(3050, 3100)] == entry_ids(consumer.receive_many(100))


@pytest.mark.parametrize("sub_type", TYPES)
@pytest.mark.parametrize("again", [False, True])
def test_a_read_that_fails_is_tried_again(raw, broker, topic, sub_type, again):
    """After a temporary EIO no client is disconnected, and the messages come later."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    for _ in range(3):
        producer.send(b"x")
    if again:
        consumer.flow(3)
        consumer.receive_many(3)
    broker.call(failing_reads(topic, 1))
    if again:
        consumer.redeliver()
    consumer.flow(100)
    assert entry_ids(consumer.receive_many(3)) == [0, 1, 2]
    assert producer.send(b"x").entry_id == 3
    assert consumer.receive().message_id.entry_id == 3


@pytest.mark.parametrize("sub_type", [Shared, Key_Shared])
def test_a_disk_that_refuses_reads_does_not_hold_the_loop(raw, broker, topic, sub_type):
    """Many reads of waiting entries fail: the broker answers, and delivers when they succeed."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)
    consumer.flow(3)
    for _ in range(3):
        producer.send(b"x")
    consumer.receive_many(3)
    broker.call(failing_reads(topic, 3))
    consumer.redeliver()
    consumer.flow(100)
    raw.ping()
    assert entry_ids(consumer.receive_many(3)) == [0, 1, 2]


@pytest.mark.parametrize("sub_type", TYPES)
def test_a_long_stretch_without_anything_to_send_is_left_to_others_in_between(
    raw, broker, topic, sub_type
):
    """Thousands of control entries: one dispatch looks at a round of them, the next ones go on."""
    raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, earliest=True)

    async def look(running):
        opened = running.services.topics.open_topics[topic]
        for _ in range(3 * ROUND_ENTRIES):
            commit = opened.ledger.append(b"mark", kind=EntryKind.CONTROL).commit
        await durable(commit)
        dispatcher = opened.subscriptions["s"].dispatcher
        seen, is_wanted = [], dispatcher.is_wanted

        def watched(entry):
            seen.append(entry)
            return is_wanted(entry)

        dispatcher.is_wanted = watched
        opened.subscriptions["s"].flow(dispatcher.consumers[0], 10)
        return len(seen)

    assert ROUND_ENTRIES <= broker.call(look) <= ROUND_ENTRIES + 200
    raw.create_producer(topic).send(b"x")
    assert consumer.receive().message_id.entry_id == 3 * ROUND_ENTRIES


def test_a_round_ends_after_so_many_entries_however_small(raw, broker, topic):
    """After each round of a consumer with many permits other work runs."""
    producer = raw.create_producer(topic)
    producer.send_many([b"\x00\x00\x00\x00x"] * (3 * ROUND_ENTRIES))
    for sub_type in TYPES:
        raw.subscribe(topic, f"s{sub_type}", sub_type=sub_type, earliest=True)

    async def send(running):
        found = []
        for subscription in running.services.topics.open_topics[topic].subscriptions.values():
            subscription.flow(subscription.consumers[0], 10 * ROUND_ENTRIES)
            found.append(subscription.messages_out)
        return found

    # Less if the time of the loop's turn is over before.
    assert all(sent <= ROUND_ENTRIES + 200 for sent in broker.call(send))


def failing_reads(topic, count):
    """A coroutine function for the broker's loop: the topic's next reads fail with EIO."""

    async def arm(broker):
        ledger = broker.services.topics.open_topics[topic].ledger
        read, left = ledger.read, [count]

        def failing(*arguments, **options):
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EIO, "input/output error")
            return read(*arguments, **options)

        ledger.read = failing

    return arm


def test_a_question_the_disk_cannot_answer_is_refused(raw, broker, topic):
    """GET_LAST_MESSAGE_ID with EIO is a PersistenceError; the connection stays open."""
    raw.create_producer(topic).send(b"x")
    consumer = raw.subscribe(topic, "s")
    broker.call(failing_reads(topic, 1))
    with pytest.raises(RequestRefusedError, match="PersistenceError"):
        consumer.get_last_message_id()
    assert consumer.get_last_message_id()[0].entry_id == 0


def test_messages_one_at_a_time_go_round(raw, broker, topic):
    """Two Shared consumers each get every second message, however slowly they come."""
    with RawClient.from_url(broker.service_url) as other:
        consumers = [c.subscribe(topic, "s", sub_type=Shared) for c in (raw, other)]
        for consumer in consumers:
            consumer.flow(100)
        raw.ping()
        other.ping()
        producer = raw.create_producer(topic)
        for _ in range(6):
            producer.send(b"x")
        got = [entry_ids(consumer.receive_many(3)) for consumer in consumers]
        assert sorted(got) == [[0, 2, 4], [1, 3, 5]]


def test_an_exclusive_consumer_gets_the_keys_of_its_ranges(broker, raw, topic, drain_of):
    """A reader with two ranges of key hashes: the other entries stay unacknowledged."""
    producer = raw.create_producer(topic)
    keys = [f"key{n}" for n in range(24)]
    for key in keys:
        producer.send(key.encode(), key=key)
    hashes = {key: murmur3_32(key.encode()) % 65536 for key in keys}
    for ranges in ([(0, 20_000), (50_000, 65_535)], [(20_001, 49_999)]):
        meta = KeySharedMeta(keySharedMode=KeySharedMode.STICKY)
        for start, end in ranges:
            meta.hashRanges.add(start=start, end=end)
        consumer = raw.subscribe(topic, "r", earliest=True, keySharedMeta=meta)
        consumer.flow(100)
        wanted = [n for n, key in enumerate(keys) if any(a <= hashes[key] <= b for a, b in ranges)]
        assert 0 < len(wanted) < len(keys)
        assert entry_ids(drain_of(broker)(consumer)) == wanted
        consumer.close()
    consumer = raw.subscribe(topic, "r", earliest=True)
    consumer.flow(100)
    assert len(drain_of(broker)(consumer)) == len(keys)


def test_an_exclusive_consumer_whose_ranges_overlap_is_refused(raw, topic):
    """ConsumerAssignError, and the subscription is free for another consumer."""
    meta = KeySharedMeta(keySharedMode=KeySharedMode.STICKY)
    for _ in range(2):
        meta.hashRanges.add(start=1, end=5)
    with pytest.raises(RequestRefusedError, match="ConsumerAssignError"):
        raw.subscribe(topic, "r", keySharedMeta=meta)
    raw.subscribe(topic, "r")
