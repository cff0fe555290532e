"""The commands of consumers: permits, acknowledgement, redelivery, closing."""

from __future__ import annotations

import shutil

import pytest

from pulsemark.client import RequestRefusedError
from pulsemark.ledger.cursors.cursor import TOPIC_PROPERTIES_MAX_BYTES
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, CommandAck, CommandSubscribe
from pulsemark.testing import RawClient, SettableClock, running_broker
from pulsemark.wire import EARLIEST, LATEST, MessageId, commands, pack_ack_set

Shared = CommandSubscribe.Shared
Failover = CommandSubscribe.Failover
NO_REQUEST_ID = 2**64 - 1


@pytest.fixture
def other(broker):
    """A second connection."""
    with RawClient.from_url(broker.service_url) as connection:
        yield connection


def publish(client, topic, count):
    """`count` unbatched messages; their ids."""
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % i) for i in range(count)]
    return [MessageId(receipt.ledger_id, receipt.entry_id) for receipt in ids]


def ids_of(messages):
    """Message ids of frames."""
    return [message.message_id for message in messages]


# -- permits --------------------------------------------------------------------------------------


def test_permits_count_messages_and_may_go_negative(raw, topic, drain):
    """Batches of 5 with FLOW 1, 1, 3, 1, 5: the second and third FLOW bring nothing more."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", earliest=True)
    for _ in range(4):
        producer.send_batch([b"x"] * 5)
    came = []
    for permits in (1, 1, 3, 1, 5):
        consumer.flow(permits)
        came.append(len(drain(consumer)))
    # 1 -> -4 | -3 | 0 | 1 -> -4 | 1 -> -4
    assert came == [1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("sub_type", "first"),
    [(CommandSubscribe.Exclusive, 3), (CommandSubscribe.Key_Shared, 3), (Shared, 1)],
)
def test_permits_are_a_number_of_entries_at_once(raw, topic, drain, sub_type, first):
    """FLOW 3 brings three batches of 5 at once, on Shared one; the next FLOWs make up for them."""
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", earliest=True, sub_type=sub_type)
    for _ in range(5):
        producer.send_batch([b"x"] * 5)
    came = []
    owed = 5 * first - 3
    for permits in (3, owed, 1):
        consumer.flow(permits)
        came.append(len(drain(consumer)))
    assert came == [first, 0, 1]


def test_permits_before_anything_is_published_are_kept(raw, topic, drain):
    """A consumer that waits gets as many later messages as it permitted."""
    consumer = raw.subscribe(topic, "s")
    consumer.flow(2)
    ids = publish(raw, topic, 3)
    assert ids[:2] == ids_of(consumer.receive_many(2))
    assert drain(consumer) == []


@pytest.mark.parametrize("permits", [0, 2**32 - 1])
def test_a_flow_of_nothing_closes_the_connection(broker, topic, permits):
    """FLOW must permit something that fits a signed number."""
    with RawClient.from_url(broker.service_url) as client:
        consumer = client.subscribe(topic, "s")
        consumer.flow(permits)
        client.wait_closed()


def test_messages_of_a_partition_name_it(raw, topic):
    """message_id.partition is the partition's number, and unset without partitions."""
    for name, partition in ((f"{topic}-partition-3", 3), (topic, -1)):
        publish(raw, name, 1)
        consumer = raw.subscribe(name, "s", earliest=True)
        consumer.flow(1)
        assert partition == consumer.receive().message_id.partition
        assert partition == consumer.get_last_message_id()[0].partition


@pytest.mark.parametrize(
    ("sub_type", "allowed"),
    [(CommandSubscribe.Exclusive, True), (Failover, True), (Shared, False)],
)
def test_the_compacted_view_is_the_topic(raw, topic, sub_type, allowed):
    """Nothing is ever compacted, so read_compacted reads everything; not on Shared."""
    ids = publish(raw, topic, 3)
    if not allowed:
        with pytest.raises(RequestRefusedError, match="NotAllowedError"):
            raw.subscribe(topic, "s", sub_type=sub_type, read_compacted=True)
        return
    consumer = raw.subscribe(topic, "s", sub_type=sub_type, read_compacted=True, earliest=True)
    consumer.flow(10)
    assert ids == ids_of(consumer.receive_many(3))


# -- acknowledgement ------------------------------------------------------------------------------


def test_an_acknowledgement_is_durable_when_it_is_confirmed(tmp_path, topic):
    """After an ACK_RESPONSE a copy of the folder has the acknowledgement."""
    with (
        running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        ids = publish(client, topic, 4)
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(10)
        consumer.receive_many(4)
        consumer.ack(ids[0], ids[2])
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with (
        running_broker(data_dir=tmp_path / "copy", http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe(topic, "s")
        consumer.flow(10)
        assert [ids[1], ids[3]] == ids_of(consumer.receive_many(2))


def test_odd_acknowledgements_change_nothing(raw, topic):
    """Backwards, twice, absent, past the end, entry -1: a plain answer, and no harm."""
    ids = publish(raw, topic, 4)
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.flow(10)
    consumer.receive_many(4)
    consumer.ack(ids[1], cumulative=True)
    consumer.ack(ids[0], cumulative=True)
    consumer.ack(ids[0])
    consumer.ack(MessageId(ids[0].ledger_id, -1), cumulative=True)
    consumer.ack(MessageId(ids[0].ledger_id, 99))
    consumer.ack(MessageId(999, 1))
    _, mark_delete = consumer.get_last_message_id()
    assert ids[1] == mark_delete
    later = publish(raw, topic, 100)
    assert ids[3:] + later[:5] == ids_of(after_redelivery(consumer, 1 + 1 + 5, skip=1))


def after_redelivery(consumer, count, *, skip):
    """Ask for everything again, and return `count` frames after the first `skip`."""
    consumer.drain()
    consumer.redeliver()
    consumer.flow(1000)
    return consumer.receive_many(count)[skip:]


def test_acknowledging_past_the_end_acknowledges_nothing(raw, topic):
    """As in Pulsar a cumulative acknowledgement beyond the last entry is answered, and no more."""
    ids = publish(raw, topic, 2)
    consumer = raw.subscribe(topic, "s", earliest=True)
    for beyond in (MessageId(ids[0].ledger_id, 50), MessageId(ids[0].ledger_id + 7, 0)):
        consumer.ack(beyond, cumulative=True)
    later = publish(raw, topic, 2)
    consumer.redeliver()
    consumer.flow(10)
    assert ids + later == ids_of(consumer.receive_many(4))


def test_an_ack_set_longer_than_its_batch_blocks_no_consumer(topic):
    """Bits beyond the batch count for nothing: not as unacknowledged messages either."""
    with (
        running_broker(http_port=None, acknowledgment_at_batch_index_level_enabled=True) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.flow(100)
        producer.send_batch([b"x"] * 5)
        got = consumer.receive()
        consumer.ack(got.message_id._replace(ack_set=(-1,) * 80_000))

        async def unacked(running):
            subscription = running.services.topics.open_topics[topic].subscriptions["s"]
            return subscription.dispatcher.unacked_messages

        assert broker.call(unacked) == 5
        producer.send(b"next")
        assert consumer.receive().message_id.entry_id == 1


def test_a_validation_error_acknowledges(raw, topic):
    """A consumer that cannot read a message gets rid of it."""
    ids = publish(raw, topic, 2)
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.ack(ids[0], validation_error=CommandAck.DecryptionError)
    consumer.flow(10)
    assert ids[1] == consumer.receive().message_id
    assert ids[0] == consumer.get_last_message_id()[1]


@pytest.mark.parametrize("enabled", [False, True])
def test_single_members_of_a_batch(topic, enabled):
    """With the setting a batch comes again with its unacknowledged messages marked."""
    with (
        running_broker(
            http_port=None, acknowledgment_at_batch_index_level_enabled=enabled
        ) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        receipt = client.create_producer(topic).send_batch([b"a", b"b", b"c"])
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.flow(3)
        consumer.receive()
        partly = MessageId(receipt.ledger_id, receipt.entry_id, ack_set=pack_ack_set([0, 2]))
        consumer.ack(partly)
        consumer.redeliver()
        consumer.flow(3)
        ack_set = list(consumer.receive().command.ack_set)
        assert (list(pack_ack_set([0, 2])) if enabled else []) == ack_set
        consumer.ack(MessageId(receipt.ledger_id, receipt.entry_id, ack_set=()))
        assert consumer.get_last_message_id()[1] == MessageId(receipt.ledger_id, receipt.entry_id)


def test_permits_of_a_partly_acknowledged_batch_count_what_is_open(topic):
    """A batch with one open member takes one permit."""
    with (
        running_broker(http_port=None, acknowledgment_at_batch_index_level_enabled=True) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        first = producer.send_batch([b"a", b"b", b"c"])
        producer.send(b"d")
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.flow(1)
        consumer.receive()
        consumer.ack(MessageId(first.ledger_id, first.entry_id, ack_set=pack_ack_set([1])))
        consumer.redeliver()
        consumer.flow(4)
        assert [first.entry_id, 1] == [m.message_id.entry_id for m in consumer.receive_many(2)]


# -- redelivery -----------------------------------------------------------------------------------


def test_redelivery_counts_on_shared_subscriptions(raw, topic):
    """Unset at first, then growing with each redelivery, named ids and all."""
    ids = publish(raw, topic, 3)
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    consumer.flow(100)
    assert not any(m.command.HasField("redelivery_count") for m in consumer.receive_many(3))
    consumer.redeliver(ids[1])
    assert (ids[1], 1) == one(consumer)
    consumer.redeliver()
    counts = {m.message_id: m.command.redelivery_count for m in consumer.receive_many(3)}
    assert {ids[0]: 1, ids[1]: 2, ids[2]: 1} == counts


def one(consumer):
    """Id and redelivery count of the next message."""
    message = consumer.receive()
    return message.message_id, message.command.redelivery_count


def test_what_a_closed_consumer_held_goes_to_the_others_uncounted(raw, other, topic):
    """A consumer that closes gives its messages back with redelivery count 0, in order."""
    ids = publish(raw, topic, 6)
    leaving = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    leaving.flow(4)
    leaving.receive_many(4)
    leaving.ack(ids[1])
    staying = other.subscribe(topic, "s", sub_type=Shared)
    staying.flow(10)
    assert ids[4:] == ids_of(staying.receive_many(2))
    leaving.close()
    got = staying.receive_many(3)
    assert [ids[0], ids[2], ids[3]] == ids_of(got)
    assert not any(m.command.redelivery_count for m in got)


def test_redelivery_counts_end_with_the_last_consumer(raw, topic):
    """After all consumers have left, the next one gets the messages with a count of 0."""
    publish(raw, topic, 1)
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    consumer.flow(10)
    consumer.receive()
    consumer.redeliver()
    assert one(consumer)[1] == 1
    consumer.close()
    again = raw.subscribe(topic, "s", sub_type=Shared)
    again.flow(1)
    assert not again.receive().command.HasField("redelivery_count")


def test_redelivery_on_exclusive_starts_over_in_order(raw, topic):
    """Whatever ids are named, all unacknowledged messages come again, without a count."""
    ids = publish(raw, topic, 4)
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.flow(100)
    consumer.receive_many(4)
    consumer.ack(ids[0])
    consumer.redeliver(ids[2])
    again = consumer.receive_many(3)
    assert ids[1:] == ids_of(again)
    assert not any(m.command.redelivery_count for m in again)


def test_a_consumer_epoch_comes_back_with_the_messages(raw, topic):
    """MESSAGE repeats the epoch of the latest redelivery request."""
    publish(raw, topic, 1)
    consumer = raw.subscribe(topic, "s", earliest=True, consumer_epoch=0)
    consumer.flow(10)
    assert consumer.receive().command.consumer_epoch == 0
    raw.write(
        commands.redeliver_unacknowledged_messages(consumer.consumer_id, (), consumer_epoch=3)
    )
    assert consumer.receive().command.consumer_epoch == 3


def test_too_many_unacknowledged_messages_stop_a_consumer(topic, drain_of):
    """Above the limit a consumer is passed over until half of it is acknowledged."""
    with (
        running_broker(http_port=None, max_unacked_messages_per_consumer=4) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        ids = publish(client, topic, 8)
        consumer = client.subscribe(topic, "s", sub_type=Shared, earliest=True)
        consumer.flow(100)
        held = consumer.receive_many(4)
        assert drain_of(broker)(consumer) == []
        assert ids[:4] == ids_of(held)
        consumer.ack(*ids[:2])
        assert ids[4:6] == ids_of(consumer.receive_many(2))


# -- subscriptions --------------------------------------------------------------------------------


def test_a_subscription_has_one_type_at_a_time(raw, other, topic):
    """Another type is ConsumerBusy while a consumer is connected, and allowed afterwards."""
    first = raw.subscribe(topic, "s")
    with pytest.raises(RequestRefusedError, match="ConsumerBusy"):
        other.subscribe(topic, "s", sub_type=Shared)
    first.close()
    other.subscribe(topic, "s", sub_type=Shared)


def test_an_exclusive_place_is_free_once_its_holder_is_found_dead(topic):
    """A silent holder is closed, and the newcomer gets in."""
    with (
        running_broker(http_port=None, connection_liveness_check_timeout_ms=200) as broker,
        RawClient.from_url(broker.service_url, answers_pings=False) as dead,
        RawClient.from_url(broker.service_url) as other,
    ):
        dead.subscribe(topic, "s")
        other.subscribe(topic, "s")
        dead.wait_closed()


def test_durable_and_non_durable_do_not_mix(raw, topic):
    """A reader cannot take a durable subscription's name."""
    raw.subscribe(topic, "s").close()
    with pytest.raises(RequestRefusedError, match="NotAllowedError"):
        raw.subscribe(topic, "s", durable=False, start_message_id=EARLIEST)


def test_a_readers_subscription_ends_with_it(raw, broker, topic):
    """A non-durable subscription is removed with its reader, closed or disconnected."""
    raw.subscribe(topic, "closed", durable=False, start_message_id=LATEST).close()
    with RawClient.from_url(broker.service_url) as client:
        client.subscribe(topic, "cut", durable=False, start_message_id=LATEST)
    raw.subscribe(topic, "kept")

    async def names(running):
        return sorted(running.services.topics.open_topics[topic].subscriptions)

    for _ in range(100):
        raw.ping()
        if broker.call(names) == ["kept"]:
            break
    assert broker.call(names) == ["kept"]


@pytest.mark.parametrize("batch_index", [-1, 0])
def test_a_readers_start_is_the_entry_itself(raw, topic, batch_index):
    """start_message_id is inclusive on entry level, with or without batch index."""
    ids = publish(raw, topic, 4)
    start = ids[2]._replace(batch_index=batch_index)
    consumer = raw.subscribe(topic, "r", durable=False, start_message_id=start)
    consumer.flow(10)
    assert ids[2:] == ids_of(consumer.receive_many(2))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (lambda i: EARLIEST, 0),
        (lambda i: MessageId(0, 5), 0),
        (lambda i: MessageId(i.ledger_id, 99), 3),
        (lambda i: MessageId(i.ledger_id + 1000, 0), 3),
        (lambda i: LATEST, 3),
    ],
)
def test_a_readers_start_outside_of_the_topic(raw, topic, start, first):
    """A start before the log is its first entry; a start after it is the next entry."""
    ids = publish(raw, topic, 3)
    consumer = raw.subscribe(topic, "r", durable=False, start_message_id=start(ids[0]))
    consumer.flow(10)
    ids += publish(raw, topic, 1)
    assert ids[first:] == ids_of(consumer.receive_many(4 - first))


def test_a_start_message_id_is_ignored_for_durable_subscriptions(raw, topic):
    """They begin at their initial position."""
    ids = publish(raw, topic, 2)
    consumer = raw.subscribe(topic, "s", start_message_id=ids[0])
    consumer.flow(10)
    later = publish(raw, topic, 1)
    assert later == ids_of(consumer.receive_many(1))


def test_the_last_message_id_of_an_empty_topic(raw, topic):
    """(-1, -1), and still a mark delete position."""
    last, mark_delete = raw.subscribe(topic, "s").get_last_message_id()
    assert (last.ledger_id, last.entry_id) == (-1, -1)
    assert mark_delete is not None


@pytest.mark.parametrize(
    "build",
    [
        lambda r: commands.get_last_message_id(99, r),
        lambda r: commands.seek(99, r, publish_time_ms=0),
        lambda r: commands.unsubscribe(99, r),
    ],
)
def test_an_unknown_consumer_is_a_metadata_error(raw, build):
    """SEEK, UNSUBSCRIBE and GET_LAST_MESSAGE_ID of a consumer that is not there."""
    with pytest.raises(RequestRefusedError, match="MetadataError"):
        raw.request(build)


def test_closing_an_unknown_consumer_succeeds(raw):
    """It is closed already."""
    raw.request(lambda r: commands.close_consumer(99, r))


def test_stats_of_a_consumer(raw, topic):
    """Name, permits, unacknowledged messages and backlog."""
    publish(raw, topic, 5)
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True, consumer_name="c")
    consumer.flow(3)
    consumer.receive_many(3)
    stats = raw.request(lambda r: commands.consumer_stats(consumer.consumer_id, r))
    assert (
        stats.consumerName,
        stats.availablePermits,
        stats.unackedMessages,
        stats.msgBacklog,
        stats.type,
    ) == ("c", 0, 3, 5, "Shared")


def test_stats_are_answered_also_if_the_consumer_is_closed_by_the_next_command(raw, topic):
    """Both commands arrive together; a client that waits for the statistics must not time out."""
    consumer = raw.subscribe(topic, "s")
    asked, closed = raw.new_id(), raw.new_id()
    raw.write(
        commands.consumer_stats(consumer.consumer_id, asked),
        commands.close_consumer(consumer.consumer_id, closed),
    )
    raw.wait_response(closed)
    with pytest.raises(RequestRefusedError, match="ConsumerNotFound"):
        raw.wait_response(asked, 5)


def test_stats_of_an_unknown_consumer_close_the_connection(broker):
    """As in Pulsar."""
    with RawClient.from_url(broker.service_url) as client:
        client.write(commands.consumer_stats(99, 1))
        client.wait_closed()


def test_unsubscribe_with_company_is_refused_unless_forced(raw, other, topic):
    """Another consumer of the subscription prevents it; force closes that one."""
    first = raw.subscribe(topic, "s", sub_type=Shared)
    second = other.subscribe(topic, "s", sub_type=Shared)
    with pytest.raises(RequestRefusedError, match="MetadataError"):
        first.unsubscribe()
    raw.request(lambda r: commands.unsubscribe(first.consumer_id, r, force=True))
    other.ping()
    assert second.is_closed


# -- failover -------------------------------------------------------------------------------------


def test_the_active_consumer_of_a_failover_subscription_is_notified(raw, other, topic):
    """ACTIVE_CONSUMER_CHANGE names the active consumer: the one with the lowest level."""

    def subscribe(client, name, level=0):
        return client.subscribe(
            topic, "s", sub_type=Failover, consumer_name=name, priority_level=level
        )

    def change(client):
        body = client.wait_unsolicited(BaseCommand.ACTIVE_CONSUMER_CHANGE)
        return body.consumer_id, body.is_active

    b = subscribe(raw, "b")
    assert (b.consumer_id, True) == change(raw)
    c = subscribe(other, "c", level=1)
    assert (c.consumer_id, False) == change(other)
    low = subscribe(other, "a", level=2)
    assert (low.consumer_id, False) == change(other)
    b.close()
    assert {(c.consumer_id, True), (low.consumer_id, False)} == {change(other), change(other)}


def test_a_failover_consumer_that_takes_over_gets_what_was_not_acknowledged(topic):
    """The new one starts at the cursor."""
    with (
        running_broker(http_port=None, active_consumer_failover_delay_ms=50) as broker,
        RawClient.from_url(broker.service_url) as first,
        RawClient.from_url(broker.service_url) as second,
    ):
        ids = publish(first, topic, 4)
        a = first.subscribe(topic, "s", sub_type=Failover, consumer_name="a", earliest=True)
        a.flow(10)
        a.receive_many(4)
        a.ack(ids[0], ids[1])
        b = second.subscribe(topic, "s", sub_type=Failover, consumer_name="b")
        b.flow(10)
        first.close()
        assert ids[2:] == ids_of(b.receive_many(2))


# -- texts and times ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"subscription": "x" * 1025},
        {"consumer_name": "x" * 1025},
        {"properties": {"k": "x" * 70_000}},
        {"subscription_properties": {"k": "x" * 70_000}},
    ],
)
def test_names_and_properties_have_limits(raw, topic, options):
    """Texts that are kept as long as a consumer lives must not be large."""
    with pytest.raises(RequestRefusedError, match="NotAllowedError"):
        raw.subscribe(topic, **{"subscription": "s", **options})


def test_subscriptions_properties_are_bounded_for_their_topic(raw, http, topic):
    """Also without a consumer, and over HTTP: clients are refused, and other topics go on."""
    large = {"k": "x" * 60_000}
    room = TOPIC_PROPERTIES_MAX_BYTES // 60_014
    for number in range(room):
        raw.subscribe(topic, f"s{number}", subscription_properties=large).close()
    with pytest.raises(RequestRefusedError, match=r"NotAllowedError.*the topic's subscriptions"):
        raw.subscribe(topic, "one-more", subscription_properties=large)
    raw.subscribe(topic, "without")
    place = f"/admin/v2/{topic.replace('://', '/')}/subscription"
    assert http("PUT", f"{place}/without/properties", large).status == 405
    assert http("GET", f"{place}/without/properties").json == {}
    assert http("PUT", f"{place}/s0/properties", {"k": "x" * 70_000}).status == 405
    assert http("PUT", f"{place}/s0/properties", {"k": "v"}).status == 204
    assert http("PUT", f"{place}/without/properties", large).status == 204
    raw.subscribe(f"{topic}-other", "s", subscription_properties=large)


@pytest.mark.parametrize(
    "options", [{"producer_name": "x" * 1025}, {"properties": {"k": "x" * 70_000}}]
)
def test_producers_names_and_properties_have_limits(raw, topic, options):
    """The same for producers."""
    with pytest.raises(RequestRefusedError, match="NotAllowedError"):
        raw.create_producer(topic, **options)


def test_a_subscription_may_begin_some_seconds_ago(topic):
    """start_message_rollback_duration_sec goes by the broker's clock."""
    clock = SettableClock(1_700_000_000_000)
    with (
        running_broker(http_port=None, clock=clock) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        for _ in range(10):
            producer.send(b"x")
            clock.advance(by_ms=1000)
        consumer = client.subscribe(
            topic,
            "r",
            durable=False,
            start_message_id=LATEST,
            start_message_rollback_duration_sec=3,
        )
        consumer.flow(10)
        assert [m.message_id.entry_id for m in consumer.receive_many(3)] == [7, 8, 9]
