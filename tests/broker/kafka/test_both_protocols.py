"""Pulsar's clients and Kafka's clients on the same topics."""

from __future__ import annotations

import logging
from typing import Any

import kafka
import pulsar
import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.broker.subscriptions.kafka_entries import read_entries
from pulsemark.kafka import records
from pulsemark.ledger import EntryKind, Position
from pulsemark.metadata import payload_of
from pulsemark.testing import RawClient
from pulsemark.testing.raw_kafka import RawKafka

from .conftest import is_on_loop

WAIT_S = 60


def produced(both, topic, *messages, **options):
    """Send messages with Kafka's client: key, value, headers."""
    producer = kafka.KafkaProducer(bootstrap_servers=both.kafka_url, **options)
    try:
        futures = [
            producer.send(topic, value, key=key, headers=headers)
            for key, value, headers in messages
        ]
        return [future.get(WAIT_S).offset for future in futures]
    finally:
        producer.close()


def fetched(both, topic, count):
    """The first messages, by Kafka's client."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=both.kafka_url,
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
        metadata_max_age_ms=1_000,  # its first metadata may leave out the topic
    )
    messages = [next(consumer) for _ in range(count)]
    consumer.close()
    return messages


def received(consumer, count):
    """The next messages of Pulsar's consumer, acknowledged."""
    messages = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=WAIT_S * 1000)
        consumer.acknowledge(message)
        messages.append(message)
    return messages


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "KeyShared", "Failover"])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_pulsar_consumer_gets_kafka_messages_as_messages(both, client, topic, kind, codec):
    """Keys, values and headers, alone and in batches, for every type of subscription."""
    produced(both, topic, (b"k", b"first", [("h", b"x")]), compression_type=codec)
    sent: list[Any] = [(b"k", b"%d" % n, []) for n in range(20)]
    produced(both, topic, *sent, linger_ms=200, compression_type=codec)
    consumer = client.subscribe(
        topic,
        "s",
        getattr(pulsar.ConsumerType, kind),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    messages = received(consumer, 21)
    assert [m.data() for m in messages] == [b"first"] + [b"%d" % n for n in range(20)]
    assert {m.partition_key() for m in messages} == {"k"}
    assert messages[0].properties() == {"h": "x"}


def test_a_kafka_consumer_gets_pulsar_messages_as_records(both, client, topic):
    """Also of a topic that Pulsar's clients made; batches keep their offsets."""
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"one", partition_key="k", properties={"p": "v"}, event_timestamp=7_000)
    producer.close()
    batching = client.create_producer(topic, batching_max_publish_delay_ms=500)
    for number in range(5):
        batching.send_async(b"%d" % number, None)
    batching.flush()
    batching.close()
    messages = fetched(both, topic, 6)
    assert [m.offset for m in messages] == list(range(6))
    assert [m.value for m in messages] == [b"one", b"0", b"1", b"2", b"3", b"4"]
    first = messages[0]
    assert (first.key, first.timestamp) == (b"k", 7_000)
    assert first.headers == [("p", b"v")]


def test_messages_of_both_share_one_order(both, client, topic):
    """Written in turns, read by both: the same messages at the same indexes."""
    produced(both, topic, (None, b"k0", []))
    producer = client.create_producer(f"{topic}-partition-0", batching_enabled=False)
    for number in range(1, 4):
        producer.send(b"p%d" % number)
        produced(both, topic, (None, b"k%d" % number, []))
    expected = [b"k0", b"p1", b"k1", b"p2", b"k2", b"p3", b"k3"]
    assert [m.value for m in fetched(both, topic, 7)] == expected
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_S * 1000).data() for _ in range(7)] == expected
    assert not reader.has_message_available()


def test_a_topic_of_pulsars_takes_kafka_sets_only_after_a_setting(both, client, topic):
    """Produce is refused with POLICY_VIOLATION until a setting opens the topic for it."""
    client.create_producer(topic).close()
    with pytest.raises(kafka.errors.PolicyViolationError):
        produced(both, topic, (None, b"v", []), retries=0)
    admin = kafka.KafkaAdminClient(bootstrap_servers=both.kafka_url)
    resource = kafka.admin.ConfigResource("TOPIC", topic, {"message.format.version": "3.0"})
    admin.alter_configs([resource])
    admin.close()
    assert produced(both, topic, (None, b"v", [])) == [0]
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert received(consumer, 1)[0].data() == b"v"


def test_no_pulsar_consumer_gets_the_bytes_of_a_set_that_cannot_be_converted(
    both, topic, raw_set, caplog
):
    """It is skipped, acknowledged and logged; the next message comes."""
    with RawKafka.from_url(both.kafka_url) as raw, caplog.at_level(logging.ERROR):
        produced(both, topic, (None, b"before", []))
        large = b"x" * (6 * 1024 * 1024)
        assert raw.produce(topic, raw_set([large], codec=1)).error_code == 0
        produced(both, topic, (None, b"after", []))
        with RawClient.from_url(both.service_url) as pulsars:
            consumer = pulsars.subscribe(
                f"persistent://public/default/{topic}-partition-0", "s", earliest=True
            )
            consumer.flow(10)
            got = [
                bytes(payload_of(consumer.receive(timeout_s=WAIT_S).headers_and_payload))
                for _ in range(2)
            ]
    assert got == [b"before", b"after"]
    assert "is left out" in caplog.text


def test_a_topic_whose_policies_are_lost_still_gives_no_set_to_pulsars_consumers(
    both, client, topic
):
    """What an entry is, its stamp says; a catalog that was made again has no policies."""
    produced(both, topic, (b"k", b"v", []))
    both.broker.services.topics.policies.of_topics.clear()
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert received(consumer, 1)[0].data() == b"v"


def test_a_control_entry_is_a_control_batch_and_consumers_go_on_after_it(both, topic):
    """Its offset is passed over; clients of magic 0 and 1 get nothing for it."""
    produced(both, topic, (None, b"a", []))
    ledger = both.broker.services.topics.open_topics[
        f"persistent://public/default/{topic}-partition-0"
    ].ledger
    ledger.begin_epoch(3).commit.wait(WAIT_S)
    assert ledger.read(ledger.last_position)[0].kind is EntryKind.CONTROL
    assert produced(both, topic, (None, b"b", [])) == [2]
    assert [(m.offset, m.value) for m in fetched(both, topic, 2)] == [(0, b"a"), (2, b"b")]
    with RawKafka.from_url(both.kafka_url) as raw:
        batches = MemoryRecords(raw.fetch(topic, 1).records)
        control = batches.next_batch()
        assert (control.base_offset, control.is_control_batch) == (1, True)
        assert control.leader_epoch == 3
        old = MemoryRecords(raw.fetch(topic, 1, version=3).records)
        assert [record.offset for record in old.next_batch()] == [2]


@pytest.fixture
def raw_set():
    """Make the bytes of a set of magic 2: values, codec."""

    def make(values, codec=0):
        builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 25)
        for number, value in enumerate(values):
            builder.append(timestamp=1_000 + number, key=None, value=value)
        builder.close()
        return builder.buffer()

    return make


def test_fetch_request_versions_are_those_of_the_table():
    """The tests above use the newest version that is served."""
    from pulsemark.kafka.protocol import APIS

    assert APIS[FetchRequest.API_KEY].highest == 11


def large_set(values, codec=0):
    """A record set of magic 2."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 26)
    for value in values:
        builder.append(timestamp=1_000, key=None, value=value)
    builder.close()
    return bytes(builder.buffer())


def produced_sets(both, topic, *sets):
    """Send record sets to a topic that exists then."""
    with RawKafka.from_url(both.kafka_url) as raw:
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        assert raw.call(MetadataRequest, 1, topics=[wanted]).topics[0].error_code == 0
        for each in sets:
            assert raw.produce(topic, each).error_code == 0


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_a_large_set_is_made_pulsar_messages_in_a_thread(both, client, monkeypatch, kind):
    """The event loop, and so every other client, does not wait; each message comes once."""
    on_loop = []
    convert = records.to_pulsar

    def spied(*args, **options):
        on_loop.append(is_on_loop())
        return convert(*args, **options)

    monkeypatch.setattr(records, "to_pulsar", spied)
    topic = f"large-{kind}"
    values = [b"%d" % number for number in range(3_000)]
    produced_sets(both, topic, *[large_set(values, codec=codec) for codec in (0, 1)])
    consumer = client.subscribe(
        f"persistent://public/default/{topic}-partition-0",
        "s",
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    found = [consumer.receive(WAIT_S * 1000) for _ in range(2 * len(values))]
    assert [each.data() for each in found] == 2 * values
    consumer.redeliver_unacknowledged_messages()
    again = [consumer.receive(WAIT_S * 1000) for _ in range(2 * len(values))]
    assert sorted(each.data() for each in again) == sorted(2 * values)
    assert on_loop
    assert not any(on_loop)


def test_the_last_message_of_a_large_set_is_found_in_a_thread(both, client, monkeypatch):
    """Who asks for the last message's id does not hold up the event loop, and gets it right."""
    on_loop = []
    convert = records.to_pulsar

    def spied(*args, **options):
        on_loop.append(is_on_loop())
        return convert(*args, **options)

    monkeypatch.setattr(records, "to_pulsar", spied)
    values = [b"%d" % number for number in range(3_000)]
    produced_sets(both, "large-last", large_set(values, codec=1))
    consumer = client.subscribe("persistent://public/default/large-last-partition-0", "s")
    last = consumer.get_last_message_id()
    assert (last.entry_id(), last.batch_index()) == (0, len(values) - 1)
    assert on_loop
    assert not any(on_loop)


def test_a_read_gets_no_more_than_it_asked_for_after_conversion(both):
    """Sets of a few bytes become megabytes; those for one round of dispatch have one or two."""
    produced_sets(both, "few-bytes", *[large_set([bytes(1_000_000)], codec=1)] * 10)
    topic = both.broker.services.topics.open_topics[
        "persistent://public/default/few-bytes-partition-0"
    ]
    read = read_entries(topic, topic.ledger, Position(0, 0), max_entries=10, max_bytes=1 << 20)
    assert len(read) == 2
