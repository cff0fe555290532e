"""PRODUCER, SEND and CLOSE_PRODUCER on the wire."""

from __future__ import annotations

import re

import pytest

from pulsemark.broker.handlers import checks
from pulsemark.client import RequestRefusedError, SendRefusedError
from pulsemark.metadata import BrokerEntryMetadata, pack
from pulsemark.proto.pulsar_api_pb2 import BaseCommand, CommandSend
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message, with_wrong_checksum
from pulsemark.wire import commands

GOOD = unbatched_message(b"x", publish_time_ms=1)
STAMPED = pack(BrokerEntryMetadata(broker_timestamp=1, index=7)) + GOOD


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (STAMPED, "NotAllowedError"),
        (b"\x0e\x02", "NotAllowedError"),
        (with_wrong_checksum(GOOD), "ChecksumError"),
        (GOOD[:8], "ChecksumError"),
    ],
)
def test_a_refused_send_is_answered_in_its_turn(raw, topic, body, error):
    """SEND_ERROR comes after earlier receipts; nothing is stored, and the connection stays."""
    producer = raw.create_producer(topic)
    first = producer.post(GOOD)
    refused = producer.post(body)
    assert [first] == [receipt.sequence_id for receipt in producer.receipts(1)]
    with pytest.raises(SendRefusedError) as caught:
        producer.receipts(1)
    assert (error, refused) == (caught.value.error_name, caught.value.sequence_id)
    receipt = producer.send_raw(GOOD)
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.flow(10)
    assert [0, receipt.entry_id] == [m.message_id.entry_id for m in consumer.receive_many(2)]
    assert receipt.entry_id == 1


def test_a_client_fills_no_log_with_refused_messages(raw, topic, caplog):
    """Of 120 SENDs that a connection was refused three are logged, with the number so far."""
    producer = raw.create_producer(topic)
    with caplog.at_level("WARNING", "pulsemark.broker.handlers.producing"):
        for _ in range(120):
            producer.post(STAMPED)
        for _ in range(120):
            with pytest.raises(SendRefusedError):
                producer.receipts(1)
    counts = [re.search(r"refusal (\d+) on", record.message) for record in caplog.records]
    assert [found and found[1] for found in counts] == ["1", "10", "100"]


def test_what_is_refused_within_a_run_is_answered_in_its_turn(raw, topic):
    """Of SENDs that arrive together only the bad ones are refused, each between its neighbours."""
    producer = raw.create_producer(topic)
    bad = {3: with_wrong_checksum(GOOD), 4: STAMPED, 9: with_wrong_checksum(GOOD)}
    sends = [
        commands.send(producer.producer_id, number, bad.get(number, GOOD)) for number in range(60)
    ]
    raw.write(b"".join(part for send in sends for part in send))
    answers: list[tuple[int, int | str]] = []
    while len(answers) < 60:
        try:
            (receipt,) = producer.receipts(1)
            answers.append((receipt.sequence_id, receipt.entry_id))
        except SendRefusedError as refused:
            answers.append((refused.sequence_id, refused.error_name))
    errors = {3: "ChecksumError", 4: "NotAllowedError", 9: "ChecksumError"}
    entry_ids = iter(range(60))
    assert answers == [(number, errors.get(number) or next(entry_ids)) for number in range(60)]


def test_receipts_keep_the_order_of_the_sends(raw, topic):
    """A thousand sends in flight are answered one by one, in order, each with the next entry."""
    producer = raw.create_producer(topic)
    receipts = producer.send_many([GOOD] * 1000, window=1000)
    assert list(range(1000)) == [receipt.sequence_id for receipt in receipts]
    assert list(range(1000)) == [receipt.entry_id for receipt in receipts]


def test_a_receipt_repeats_the_highest_sequence_id_or_says_none(raw, topic):
    """Without one in the SEND the receipt carries 2^64-1 (read as -1)."""
    producer = raw.create_producer(topic)
    assert producer.send_raw(GOOD).highest_sequence_id == -1
    assert producer.send_raw(GOOD, highest_sequence_id=41).highest_sequence_id == 41


def test_the_index_counts_what_send_says(raw, broker, topic):
    """num_messages of the SEND moves the index; 0 leaves it and gives no prefix."""
    producer = raw.create_producer(topic)
    for count in (1, 5, 0, 2):
        producer.send_raw(GOOD, num_messages=count)

    async def entries(running):
        ledger = running.services.topics.open_topics[topic].ledger
        return [(e.message_count, e.index, e.prefix_size_bytes > 0) for e in ledger.read((-1, -1))]

    assert broker.call(entries) == [(1, 0, True), (5, 5, True), (0, 5, False), (2, 7, True)]


def test_counters_do_not_fall_by_a_negative_count(raw, broker, topic):
    """A count below zero takes no index, as in Pulsar, and counts for no message."""
    producer = raw.create_producer(topic)
    for count in (3, -(2**31), -1):
        producer.send_raw(GOOD, num_messages=count)

    async def counted(running):
        opened = running.services.topics.open_topics[topic]
        return opened.counters.messages_in, opened.ledger.next_index

    assert broker.call(counted) == (3, 3)


def test_a_count_that_no_batch_can_hold_is_refused(raw, topic):
    """It gets a SEND_ERROR after earlier receipts, and later messages are stored."""
    producer = raw.create_producer(topic)
    with pytest.raises(SendRefusedError) as caught:
        producer.send_raw(GOOD, num_messages=2**31 - 1)
    assert caught.value.error_name == "NotAllowedError"
    assert producer.send_raw(GOOD).entry_id == 0


def test_a_message_a_little_above_the_limit_is_taken(raw, topic):
    """The frame has 10 KiB of room above the largest message: 5 MiB + 100 bytes pass."""
    body = unbatched_message(bytes(5 * 1024 * 1024 + 100), publish_time_ms=1)
    assert raw.create_producer(topic).send_raw(body).entry_id == 0


def test_a_send_to_an_unknown_producer_closes_the_connection(broker):
    """The SEND belongs to no producer, so it cannot be answered."""
    with RawClient.from_url(broker.service_url) as client:
        header = BaseCommand(
            type=BaseCommand.SEND, send=CommandSend(producer_id=99, sequence_id=0)
        ).SerializeToString()
        sizes = (len(header) + 4 + len(GOOD)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
        client.write(sizes, header, GOOD)
        client.wait_closed()


def test_a_send_after_the_clients_own_close_closes_the_connection(broker, topic):
    """A producer the client closed is unknown."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        producer.close()
        producer.post(GOOD)
        client.wait_closed()


def test_a_send_after_the_brokers_close_is_dropped(broker, http, topic):
    """A SEND that was in flight when the broker closed its producer is dropped."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        path = topic.replace("://", "/")
        assert http("PUT", f"/admin/v2/{path}/unload").status == 204
        producer.post(GOOD)
        client.ping()
        assert producer.is_closed
        again = client.create_producer(topic)
        assert again.send_raw(GOOD).entry_id == 0


def test_success_of_a_close_follows_the_last_receipt(raw, topic):
    """CLOSE_PRODUCER waits for the publishes before it."""
    producer = raw.create_producer(topic)
    for _ in range(50):
        producer.post(GOOD)
    producer.close()
    assert len(producer.receipts(50, timeout_s=0.001)) == 50


def test_the_same_producer_id_again_is_the_same_producer(raw, topic):
    """A repeated PRODUCER gets the existing producer's success."""
    first = raw.create_producer(topic)
    again = raw.create_producer(topic, producer_id=first.producer_id)
    assert first.name == again.name


def test_generated_names_differ_and_survive_a_restart(tmp_path, topic):
    """standalone-N-N never repeats on one data folder."""
    names = []
    for _ in range(2):
        with (
            running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            names += [client.create_producer(topic).name for _ in range(2)]
    assert names == ["standalone-0-0", "standalone-0-1", "standalone-1-0", "standalone-1-1"]


def test_an_initial_subscription_is_made_with_the_producer(raw, topic):
    """initial_subscription_name exists before the first message."""
    producer = raw.create_producer(topic, initial_subscription_name="early")
    producer.send(b"x")
    consumer = raw.subscribe(topic, "early")
    consumer.flow(1)
    assert consumer.receive().message_id.entry_id == 0


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("persistent://public/nowhere/t", "ServiceNotReady"),
        ("persistent://nobody/default/t", "ServiceNotReady"),
        ("persistent://public/default/..", "InvalidTopicName"),
        ("persistent://public/default/a\x00b", "InvalidTopicName"),
        ("persistent://public/default/" + "x" * 300, "InvalidTopicName"),
    ],
)
def test_a_producer_needs_a_topic_that_can_be(raw, name, error):
    """Absent namespaces and impossible names are refused by their own errors."""
    with pytest.raises(RequestRefusedError) as caught:
        raw.create_producer(name)
    assert error == caught.value.error_name


def test_a_partition_beyond_the_last_is_not_found(raw, http, topic):
    """A topic of two partitions has no partition 7; an absent topic's partition 0 may begin."""
    path = topic.replace("://", "/")
    assert http("PUT", f"/admin/v2/{path}/partitions", 2).status == 204
    with pytest.raises(RequestRefusedError, match="TopicNotFound"):
        raw.create_producer(f"{topic}-partition-7")
    assert raw.create_producer(f"{topic}-new-partition-0").send(b"x").entry_id == 0


def test_no_topic_comes_into_being_where_that_is_off(topic):
    """allow_auto_topic_creation=False: only the admin interface creates topics."""
    with (
        running_broker(http_port=None, allow_auto_topic_creation=False) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        with pytest.raises(RequestRefusedError, match="TopicNotFound"):
            client.create_producer(topic)
        with pytest.raises(RequestRefusedError, match="TopicNotFound"):
            client.subscribe(topic, "s")
        with pytest.raises(RequestRefusedError, match="TopicNotFound"):
            client.partitions(topic)


def test_a_topic_that_closes_while_a_producer_opens_refuses_it(raw, broker, topic, monkeypatch):
    """No success for a producer that was closed during the wait for its last sequence id."""

    async def switch_on(running):
        topics = running.services.topics
        opened = await topics.open(topics.parse(topic), create=True)
        opened.deduplication = object()

    async def closing(opened, _):
        for _piece in opened.producers.disconnecting():
            pass
        return 7

    broker.call(switch_on)
    monkeypatch.setattr(checks, "last_stored", closing)
    with pytest.raises(RequestRefusedError, match="closed meanwhile") as refused:
        raw.create_producer(topic)
    assert refused.value.error_name == "ServiceNotReady"
