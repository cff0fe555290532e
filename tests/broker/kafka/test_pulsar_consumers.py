"""What Pulsar's consumers can do besides reading, on topics with Kafka's record sets."""

from __future__ import annotations

import json
import time
import urllib.request

import kafka
import pulsar
import pytest

from pulsemark.testing.raw_kafka import RawKafka

from .conftest import create

WAIT_MS = 60_000


def sent(both, topic, messages, **options):
    """Send batches: lists of (key, value); each list is one set."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=both.kafka_url, linger_ms=10_000, compression_type="gzip", **options
    )
    for batch in messages:
        futures = [producer.send(topic, value, key=key, partition=0) for key, value in batch]
        producer.flush(60)
        assert all(future.succeeded() for future in futures)
    producer.close()


def name_of(topic):
    """The partition by Pulsar's name."""
    return f"persistent://public/default/{topic}-partition-0"


def compact(both, topic):
    """Compact a partition, and wait until it is done."""
    url = f"{both.http_url}/admin/v2/persistent/public/default/{topic}-partition-0/compaction"
    request = urllib.request.Request(url, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    for _ in range(600):
        with urllib.request.urlopen(url, timeout=30) as answer:
            if json.load(answer)["status"] == "SUCCESS":
                return
        time.sleep(0.05)
    pytest.fail("the compaction does not end")


def test_seek_by_time_and_by_id(both, client, topic):
    """By time to the first set that the broker took at or after it; by id into a set."""
    values = [b"%d" % number for number in range(6)]
    sent(both, topic, [[(b"k", value) for value in values[:3]]])
    time.sleep(0.01)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    sent(both, topic, [[(b"k", value) for value in values[3:]]])
    consumer = client.subscribe(
        name_of(topic), "s", initial_position=pulsar.InitialPosition.Earliest
    )
    found = [consumer.receive(WAIT_MS) for _ in values]
    assert [each.data() for each in found] == values
    consumer.seek(between_ms)
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == values[3:]
    consumer.seek(found[1].message_id())
    assert [consumer.receive(WAIT_MS).data() for _ in range(4)] == values[2:]
    consumer.seek(pulsar.MessageId.earliest)
    assert [consumer.receive(WAIT_MS).data() for _ in values] == values


def test_a_reader_of_the_compacted_form_gets_the_last_of_each_key(both, client, topic):
    """Records that were replaced or deleted are left out, also inside a set."""
    with RawKafka.from_url(both.kafka_url) as raw:
        create(raw, topic)
    sent(
        both,
        topic,
        [
            [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")],
            [(b"a", b"2"), (b"c", None)],
            [(b"d", b"1")],
        ],
    )
    compact(both, topic)
    reader = client.create_reader(name_of(topic), pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        if message.partition_key():  # the official client shows holes as empty messages
            found.append((message.partition_key(), message.data()))
    assert found == [("b", b"1"), ("a", b"2"), ("d", b"1")]


def test_what_is_not_acknowledged_becomes_a_dead_letter(both, client, topic):
    """With value and key, each record of the set."""
    records = [(b"x", b"bad"), (b"y", b"worse")]
    sent(both, topic, [records])
    consumer = client.subscribe(
        name_of(topic),
        "s",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, dead_letter_topic=f"{topic}-dead", initial_subscription_name="d"
        ),
    )
    dead = client.subscribe(f"{topic}-dead", "d")
    for _ in range(3 * len(records)):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    letters = [dead.receive(WAIT_MS) for _ in records]
    found = sorted((letter.partition_key().encode(), letter.data()) for letter in letters)
    assert found == records
