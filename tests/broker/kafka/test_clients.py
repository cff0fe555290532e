"""The official clients of three languages' libraries: kafka-python, aiokafka, librdkafka."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WAIT_S = 60

OLD_CLIENTS = [(0, 8, 2), (0, 9), (0, 10, 0), (0, 10, 1), (0, 11), (1, 0), (2, 0), (2, 4)]
OLD_CLIENTS += [(2, 8), (3, 0), (4, 0)]


def read(consumer, count):
    """So many messages of a confluent-kafka consumer."""
    messages: list[Any] = []
    until_s = time.monotonic() + WAIT_S
    while len(messages) < count:
        assert time.monotonic() < until_s, f"{len(messages)} of {count} messages came"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            messages.append(message)
    return messages


@pytest.fixture
def url(kafka_broker):
    """Where the broker serves Kafka's clients."""
    return kafka_broker.kafka_url


@pytest.mark.parametrize("version", OLD_CLIENTS, ids=str)
def test_kafka_python_of_every_version_writes_and_reads(url, topic, version):
    """Magic 0, 1 and 2, with and without groups; keys and values come back in order."""
    options = {"bootstrap_servers": url, "api_version": version}
    producer = kafka.KafkaProducer(**options, enable_idempotence=version >= (0, 11))
    sent = [producer.send(topic, b"v%d" % n, key=b"k%d" % n).get(WAIT_S).offset for n in range(5)]
    producer.close()
    assert sent == list(range(5))
    group = "g" + topic if version >= (0, 9) else None
    consumer = kafka.KafkaConsumer(
        topic,
        **options,
        group_id=group,
        enable_auto_commit=group is not None,
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
        metadata_max_age_ms=1_000,  # its first metadata may leave out the topic
    )
    got = [next(consumer) for _ in range(5)]
    consumer.close()
    assert [(m.offset, m.key, m.value) for m in got] == [
        (n, b"k%d" % n, b"v%d" % n) for n in range(5)
    ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_of_librdkafka_comes_back(url, topic, codec):
    """Compressed batches are stored as sent; headers and times are the producer's."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": url, "compression.type": codec, "linger.ms": 50}
    )
    for number in range(50):
        producer.produce(
            topic, b"v" * 100, key=b"%d" % number, timestamp=1000 + number, headers={"h": b"x"}
        )
    assert producer.flush(WAIT_S) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": url, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    messages = read(consumer, 50)
    consumer.close()
    assert [m.offset() for m in messages] == list(range(50))
    assert [m.key() for m in messages] == [b"%d" % n for n in range(50)]
    assert [m.timestamp()[1] for m in messages] == [1000 + n for n in range(50)]
    assert {tuple(m.headers()) for m in messages} == {(("h", b"x"),)}


async def test_aiokafka_reads_what_it_writes_while_it_writes(url, topic):
    """A fetch that waits at the end gets entries as they come; idempotence on."""
    async with (
        aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=url, auto_offset_reset="earliest", fetch_max_wait_ms=20_000
        ) as consumer,
        aiokafka.AIOKafkaProducer(bootstrap_servers=url, enable_idempotence=True) as producer,
    ):
        for number in range(20):
            await producer.send_and_wait(topic, b"%d" % number)
            message = await asyncio.wait_for(consumer.getone(), WAIT_S)
            assert (message.offset, message.value) == (number, b"%d" % number)


async def test_a_group_shares_partitions_and_goes_on_where_it_committed(url, topic):
    """Two members have all partitions between them; the next one begins at the commits."""
    admin = AdminClient({"bootstrap.servers": url})
    made = admin.create_topics([NewTopic(topic, 4, 1)])
    await asyncio.to_thread(made[topic].result, WAIT_S)
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=url) as producer:
        for number in range(40):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 4)

    def member():
        return aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=url,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1_000,
        )

    first, second = member(), member()
    await first.start()
    await second.start()
    try:
        async with asyncio.timeout(WAIT_S):
            while len(first.assignment()) != 2 or len(second.assignment()) != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not first.assignment() & second.assignment()
        got = []
        for each in (first, second):
            got += [await asyncio.wait_for(each.getone(), WAIT_S) for _ in range(20)]
            await each.commit()
    finally:
        await first.stop()
        await second.stop()
    assert sorted(int(m.value) for m in got) == list(range(40))
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=url) as producer:
        await producer.send_and_wait(topic, b"new", partition=3)
    async with member() as third:
        message = await asyncio.wait_for(third.getone(), WAIT_S)
    assert (message.value, message.partition, message.offset) == (b"new", 3, 10)


def test_a_consumer_of_librdkafka_takes_over_from_one_that_left(url, topic):
    """Its group's offsets are committed on close; the next one has nothing twice."""
    producer = confluent_kafka.Producer({"bootstrap.servers": url})
    options = {
        "bootstrap.servers": url,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    seen = []
    for number in range(3):
        producer.produce(topic, b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        consumer = confluent_kafka.Consumer(options)
        consumer.subscribe([topic])
        message = read(consumer, 1)[0]
        seen.append(message.value())
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
    assert seen == [b"0", b"1", b"2"]


def test_offsets_are_found_by_broker_time(kafka_broker, url, topic):
    """The first entry at or after a time; none: the end, as clients show it."""
    producer = kafka.KafkaProducer(bootstrap_servers=url)
    times = []
    for number in range(3):
        producer.send(topic, b"v", timestamp_ms=7).get(WAIT_S)
        ledger = kafka_broker.broker.services.topics.open_topics[
            f"persistent://public/default/{topic}-partition-0"
        ].ledger
        times.append(ledger.read(ledger.last_position)[0].time_ms)
        time.sleep(0.002)
        assert number == ledger.next_index - 1
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=url)
    place = kafka.TopicPartition(topic, 0)
    for number, time_ms in enumerate(times):
        found = consumer.offsets_for_times({place: time_ms})[place]
        assert (found.offset, found.timestamp) == (number, time_ms)
    assert consumer.offsets_for_times({place: times[-1] + 60_000})[place] is None
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 3}
    consumer.close()


def test_kcat_like_metadata_lists_all_topics(url, made):
    """librdkafka's list of topics has this broker as the leader of each partition."""
    listed = AdminClient({"bootstrap.servers": url}).list_topics(timeout=WAIT_S)
    assert made in listed.topics
    assert listed.topics[made].partitions[0].leader == listed.controller_id
    assert list(listed.brokers) == [listed.controller_id]
