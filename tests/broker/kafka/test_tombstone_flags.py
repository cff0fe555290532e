"""Tombstones with a value (KIP-87), from client to client and through compaction."""

from __future__ import annotations

import json
import time
import urllib.request

import kafka
import pulsar
import pytest
from kafka.record.memory_records import MemoryRecords

from pulsemark.kafka.records import TOMBSTONE_FLAG, Record, Work, read
from pulsemark.kafka.records import batch as batches
from pulsemark.kafka.records.convert import to_legacy
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from .conftest import create

WAIT_S = 30
ADMIN = "/admin/v2/persistent/public/default"


@pytest.fixture(scope="module")
def both():
    """A broker for clients of both protocols, with its admin interface."""
    with running_broker(kafka_port=0, kafka_group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def raw(both):
    """A raw connection, which can set the flag."""
    with RawKafka.from_url(both.kafka_url) as client:
        yield client


@pytest.fixture
def client(both):
    """An official client of Pulsar's."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(both.service_url, logger=quiet, operation_timeout_seconds=30)
    yield made
    made.close()


def ask(both, method, path, value=None):
    """The admin interface's JSON answer."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(both.http_url + ADMIN + path, body, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def set_of(*rows, magic=2):
    """The bytes of a set with these keys, values and attributes."""
    records = [Record(n, 1_000 + n, k, v, (), flags) for n, (k, v, flags) in enumerate(rows)]
    if magic == 2:
        return batches.build(records, batches.BatchFields(), Work())
    return to_legacy(records, magic, 0, Work())


def seen(raw, topic, version):
    """Key, value and flag of each record that a client of a Fetch version gets."""
    data = raw.fetch(topic, 0, version=version).records
    if version < 4:
        rows = []
        found = MemoryRecords(data)
        while (each := found.next_batch()) is not None:
            rows += [(record.key, record.value, False) for record in each]
        return rows
    rows = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        rows += [(r.key, r.value, r.flagged) for r in read(data[:size], 0)]
        data = data[size:]
    return rows


def left_after_compaction(both, client, topic):
    """Keys and values of the compacted form."""
    path = f"/{topic}-partition-0/compaction"
    ask(both, "PUT", path)
    until_s = time.monotonic() + WAIT_S
    while ask(both, "GET", path)["status"] != "SUCCESS":
        assert time.monotonic() < until_s, "the topic was not compacted"
        time.sleep(0.05)
    reader = client.create_reader(
        f"{topic}-partition-0", pulsar.MessageId.earliest, is_read_compacted=True
    )
    rows = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_S * 1000)
        if message.partition_key():  # the official client shows holes as empty messages
            rows.append((message.partition_key(), message.data()))
    reader.close()
    return rows


def test_the_flag_over_the_wire(raw, topic):
    """New fetches get value and flag as sent, old ones a null value."""
    assert create(raw, topic) == 0
    sent = set_of((b"a", b"sold by ann", TOMBSTONE_FLAG), (b"b", b"1", 0))
    assert raw.produce(topic, sent).error_code == 0
    assert seen(raw, topic, 11) == [(b"a", b"sold by ann", True), (b"b", b"1", False)]
    for version in (0, 2):
        assert seen(raw, topic, version) == [(b"a", None, False), (b"b", b"1", False)]


@pytest.mark.parametrize("stored", ["0.9.0", "0.10.0"])
def test_on_an_old_format_the_flag_makes_the_value_null(raw, topic, stored):
    """Whatever fetches it; there is no place for the flag."""
    assert create(raw, topic, message_format_version=stored) == 0
    assert raw.produce(topic, set_of((b"a", b"why", TOMBSTONE_FLAG))).error_code == 0
    assert seen(raw, topic, 1) == [(b"a", None, False)]
    data = raw.fetch(topic, 0).records
    assert [(r.key, r.value) for r in read(data, 0)] == [(b"a", None)]


def test_stage_2_refuses_a_null_without_the_flag(raw, topic):
    """With 87, and nothing of the set is stored; an old producer's null gets the flag."""
    assert create(raw, topic, pulsemark_tombstone_stage="2") == 0
    refused = raw.produce(topic, set_of((b"a", b"1", 0), (b"b", None, 0)))
    assert refused.error_code == 87
    assert raw.produce(topic, set_of((b"a", None, TOMBSTONE_FLAG))).base_offset == 0
    old = raw.produce(topic, set_of((b"b", None, 0), magic=1), version=2)
    assert (old.error_code, old.base_offset) == (0, 1)
    assert seen(raw, topic, 11) == [(b"a", None, True), (b"b", None, True)]


@pytest.mark.parametrize(("stage", "expected"), [("1", ["c"]), ("2", ["b", "c"])])
def test_the_topics_stage_decides_what_compaction_deletes(
    both, client, raw, topic, stage, expected
):
    """A null that was stored in stage 1 deletes its key in that stage alone; the flag in both."""
    create(raw, topic)
    raw.produce(topic, set_of((b"a", b"1", 0), (b"b", b"2", 0), (b"c", b"3", 0)))
    raw.produce(topic, set_of((b"a", b"why", TOMBSTONE_FLAG), (b"b", None, 0), (b"c", b"4", 0)))
    ask(both, "POST", f"/{topic}/entryFormat", {"pulsemark.tombstone.stage": stage})
    left = left_after_compaction(both, client, topic)
    assert [key for key, _ in left] == expected


PROPERTY = {"stampers": ["broker-time", "index", "tombstone:gone"]}


@pytest.mark.parametrize("batched", [False, True])
def test_a_pulsar_producer_sets_it_by_a_property(both, client, raw, topic, batched):
    """Kafka's fetchers get the flag and the value, old ones null; only the value true counts.

    Compaction deletes the same keys.
    """
    create(raw, topic)
    ask(both, "POST", f"/{topic}/brokerEntryMetadata", PROPERTY)
    producer = client.create_producer(
        f"{topic}-partition-0", batching_enabled=batched, batching_max_publish_delay_ms=500
    )
    for key, value, gone in (("a", b"1", None), ("b", b"2", "false"), ("a", b"why", "true")):
        properties = {} if gone is None else {"gone": gone}
        producer.send_async(value, None, partition_key=key, properties=properties)
    producer.flush()
    producer.close()
    rows = [(b"a", b"1", False), (b"b", b"2", False), (b"a", b"why", True)]
    assert seen(raw, topic, 11) == rows
    assert seen(raw, topic, 2) == [*rows[:2], (b"a", None, False)]
    assert left_after_compaction(both, client, topic) == [("b", b"2")]


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("stage", ["1", "2"])
def test_a_stock_kafka_producer_sets_it_by_a_header(both, client, raw, topic, codec, stage):
    """A header that the topic's policy names, with the value true; all others go in place."""
    create(raw, topic, pulsemark_tombstone_stage=stage)
    ask(both, "POST", f"/{topic}/brokerEntryMetadata", PROPERTY)
    figures = both.broker.kafka.figures
    options = {"compression_type": codec, "linger_ms": 500}
    with kafka.KafkaProducer(bootstrap_servers=both.kafka_url, **options) as producer:

        def send(*rows):
            sent = [
                producer.send(topic, value, key=key, headers=[("gone", gone)] if gone else [])
                for key, value, gone in rows
            ]
            producer.flush()
            return [each.get(WAIT_S).offset for each in sent]

        in_place = figures.sets_in_place
        assert send((b"a", b"1", b""), (b"b", b"2", b"false"), (b"gone", b"gone", b"")) == [0, 1, 2]
        assert figures.sets_in_place == in_place + 1
        assert send((b"a", b"why", b"true"), (b"c", b"3", b"")) == [3, 4]
        assert send((b"c", None, b"true")) == [5]
        assert figures.sets_in_place == in_place + 1
    rows: list[tuple[bytes, bytes | None, bool]] = [
        (b"a", b"1", False), (b"b", b"2", False), (b"gone", b"gone", False)
    ]  # fmt: skip
    rows += [(b"a", b"why", True), (b"c", b"3", False), (b"c", None, True)]
    assert seen(raw, topic, 11) == rows
    assert seen(raw, topic, 2) == [*rows[:3], (b"a", None, False), rows[4], (b"c", None, False)]
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=both.kafka_url, auto_offset_reset="earliest"
    )
    got = [next(consumer) for _ in rows]
    consumer.close()
    assert [(each.key, each.value) for each in got] == [row[:2] for row in rows]
    assert dict(got[3].headers) == {"gone": b"true"}
    assert left_after_compaction(both, client, topic) == [("b", b"2"), ("gone", b"gone")]


def test_a_pulsar_consumer_gets_value_and_property(both, client, raw, topic):
    """Where the policy names one; without it the value is null."""
    create(raw, topic)
    ask(both, "POST", f"/{topic}/brokerEntryMetadata", PROPERTY)
    raw.produce(topic, set_of((b"a", b"why", TOMBSTONE_FLAG), (b"b", b"1", 0)))
    for number, received in enumerate([(b"why", {"gone": "true"}), (b"", {})]):
        reader = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.earliest)
        first, second = (reader.read_next(WAIT_S * 1000) for _ in range(2))
        assert (first.data(), first.properties()) == received
        assert (second.data(), second.properties()) == (b"1", {})
        reader.close()
        if not number:
            ask(both, "DELETE", f"/{topic}/brokerEntryMetadata")
