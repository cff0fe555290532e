"""Topics with Kafka's cleanup policy "compact": what every client gets of a log that is cleaned."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import pulsar
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.record.memory_records import MemoryRecords

from pulsemark.finder.search import finder_of
from pulsemark.ledger.position import EARLIEST
from pulsemark.maintenance.findings import Severity
from pulsemark.maintenance.verify import verify_folder
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from .conftest import create, numbers, set_of_keys

WAIT_S = 60
FORMATS = {0: "0.9.0", 1: "0.10.0", 2: "3.0"}
VERSIONS = {0: 0, 1: 2, 2: 11}
"""A version of Fetch for each magic that clients understand."""
OLD_CLIENTS = [(0, 8, 2), (0, 9), (0, 10, 1), (0, 11), (2, 0), (4, 0)]


class Row(NamedTuple):
    """A record as clients see it."""

    offset: int
    key: bytes
    value: bytes | None


def opened(broker: Any, topic: str) -> Any:
    """A topic's only partition, as the broker has it."""
    return broker.broker.services.topics.open_topics[name_of(topic)]


def name_of(topic: str) -> str:
    """The partition by Pulsar's name."""
    return f"persistent://public/default/{topic}-partition-0"


def clean(broker: Any, topic: str) -> None:
    """Clean a topic and free what its view replaces; returns when both are done."""
    cleaning, partition = broker.broker.services.cleaning, opened(broker, topic)
    figures = partition.cleaning.compaction
    until_s = time.monotonic() + WAIT_S
    before = figures.succeeded

    async def ask(_: Any) -> bool:
        return bool(cleaning.compact(partition))

    broker.call(ask)
    while figures.succeeded == before:
        assert not figures.last_error, figures.last_error
        assert time.monotonic() < until_s, "the topic was not cleaned"
        time.sleep(0.002)

    async def trim(_: Any) -> None:
        await cleaning.trim(partition)

    broker.call(trim)


def read_on(raw: RawKafka, topic: str, magic: int, start: int = 0) -> tuple[list[Row], list[int]]:
    """What a consumer that goes on as clients do gets, and the offsets that it asks for."""
    rows: list[Row] = []
    asked: list[int] = []
    offset = start
    while True:
        answer = raw.fetch(topic, offset, version=VERSIONS[magic], max_bytes=400)
        assert answer.error_code == 0
        if offset == answer.high_watermark:
            return rows, asked
        asked.append(offset)
        records, after = MemoryRecords(bytes(answer.records or b"")), offset
        while (batch := records.next_batch()) is not None:
            if getattr(batch, "is_control_batch", False):
                after = max(after, batch.base_offset + 1)
                continue
            for record in batch:
                after = max(after, record.offset + 1)
                if record.offset >= offset:
                    rows.append(Row(record.offset, record.key, record.value))
            if magic == 2 and hasattr(batch, "last_offset_delta"):
                after = max(after, batch.base_offset + batch.last_offset_delta + 1)
        assert after > offset, f"a consumer asks for offset {offset} for ever"
        offset = after


class Model:
    """What a topic has: all its records, and how far it was cleaned."""

    def __init__(self, *, keeps_tombstones: bool) -> None:
        self.rows: list[Row] = []
        self.keeps_tombstones = keeps_tombstones
        self.cleaned_to = self.start = 0

    def expected(self, start: int = 0) -> list[Row]:
        """What a consumer gets from an offset on."""
        latest = {row.key: row for row in self.rows if row.offset < self.cleaned_to}
        return [
            row
            for row in self.rows
            if row.offset >= max(start, self.start)
            and (
                row.offset >= self.cleaned_to
                or (latest[row.key] is row and (row.value is not None or self.keeps_tombstones))
            )
        ]


RECORDS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.sampled_from([b"1", b"22", None])),
    min_size=1,
    max_size=6,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), RECORDS),
        st.just(("clean", None)),
        st.tuples(st.just("delete"), st.integers(0, 20)),
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [0, 1])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, keeps=st.booleans())
def test_every_client_gets_the_latest_of_each_key_at_its_offset(
    kafka_broker, raw, magic, codec, steps, keeps
):
    """By a model: the latest value of each key, in order, offsets unchanged, from each offset on.

    Whatever client asks, from whatever offset, it comes to the end.
    """
    topic = f"model{next(numbers)}"
    configs = {"message_format_version": FORMATS[magic], "cleanup_policy": "compact"}
    configs |= {"file_delete_delay_ms": "0", "min_cleanable_dirty_ratio": "1"}
    create(raw, topic, delete_retention_ms="86400000" if keeps else "0", **configs)
    model = Model(keeps_tombstones=keeps)
    for step, value in steps:
        if step == "produce":
            sent = set_of_keys(value, magic, codec)
            answer = raw.produce(topic, sent, version=7 if magic == 2 else 2)
            assert answer.error_code == 0
            base = answer.base_offset
            model.rows += [Row(base + n, *record) for n, record in enumerate(value)]
        elif step == "clean" and model.rows:
            clean(kafka_broker, topic)
            view = opened(kafka_broker, topic).cleaned.view
            model.cleaned_to = 0 if view is None else view.summary.next_index
        elif step == "delete" and model.rows:
            end = model.rows[-1].offset + 1
            model.start = max(model.start, min(value, end))
            delete_before(raw, topic, model.start)
    if not model.rows:
        return
    end = model.rows[-1].offset + 1
    for start in sorted({model.start, (model.start + end) // 2, end}):
        for client in (0, 1, 2):
            rows, _ = read_on(raw, topic, client, start)
            assert rows == model.expected(start)
    partition = opened(kafka_broker, topic)
    view = partition.cleaned.view if partition.cleaned is not None else None
    if view is not None:
        assert partition.ledger.first_index >= view.summary.next_index  # its space is free


def delete_before(raw: RawKafka, topic: str, offset: int) -> int:
    """DeleteRecords; the low watermark that it answers."""
    wanted = DeleteRecordsRequest.DeleteRecordsTopic
    partition = wanted.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [wanted(name=topic, partitions=[partition])]
    answer = raw.call(DeleteRecordsRequest, 1, topics=topics, timeout_ms=1).topics[0].partitions[0]
    assert answer.error_code == 0
    return int(answer.low_watermark)


def offset_at(raw: RawKafka, topic: str, time_ms: int) -> int:
    """ListOffsets."""
    wanted = ListOffsetsRequest.ListOffsetsTopic
    partition = wanted.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=time_ms
    )
    topics = [wanted(name=topic, partitions=[partition])]
    answer = raw.call(ListOffsetsRequest, 5, replica_id=-1, isolation_level=0, topics=topics)
    return int(answer.topics[0].partitions[0].offset)


@pytest.fixture
def cleaned(kafka_broker, raw, topic):
    """Offsets 0 to 59 in sets of six, of which keys k0 to k4 left 50 to 54, and the last set."""
    create(raw, topic, cleanup_policy="compact", file_delete_delay_ms="0")
    for number in range(10):
        records = [(b"k%d" % (n % 5), b"v%d" % (number * 6 + n)) for n in range(6)]
        assert raw.produce(topic, set_of_keys(records, 2, 0)).error_code == 0
    clean(kafka_broker, topic)
    return topic


def test_a_consumer_goes_on_from_holes_and_groups_commit_in_them(kafka_broker, cleaned):
    """An offset that was cleaned away is no error: reading goes on at the next record."""
    options = {"bootstrap_servers": kafka_broker.kafka_url, "metadata_max_age_ms": 1_000}
    place = kafka.TopicPartition(cleaned, 0)
    consumer = kafka.KafkaConsumer(
        **options, group_id="g" + cleaned, enable_auto_commit=False, auto_offset_reset="none"
    )
    consumer.assign([place])
    for offset in (0, 7, 30):
        consumer.commit({place: kafka.OffsetAndMetadata(offset, "", -1)})
        consumer.close(autocommit=False)
        consumer = kafka.KafkaConsumer(
            **options, group_id="g" + cleaned, enable_auto_commit=False, auto_offset_reset="none"
        )
        consumer.assign([place])
        rows: list[Any] = []
        until_s = time.monotonic() + WAIT_S
        while consumer.position(place) < 60 and time.monotonic() < until_s:
            rows += consumer.poll(1000).get(place, [])
        assert [row.offset for row in rows] == [49, 50, 51, 52, 53, *range(54, 60)]
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 60}
    consumer.close(autocommit=False)


@pytest.mark.parametrize("version", OLD_CLIENTS, ids=str)
def test_kafka_python_of_every_version(kafka_broker, cleaned, version):
    """Each reads the compacted log to its end."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=kafka_broker.kafka_url,
        api_version=version,
        group_id=None,
        metadata_max_age_ms=1_000,
    )
    place = kafka.TopicPartition(cleaned, 0)
    consumer.assign([place])
    consumer.seek(place, 3)
    rows: list[Any] = []
    until_s = time.monotonic() + WAIT_S
    while consumer.position(place) < 60 and time.monotonic() < until_s:
        rows += consumer.poll(1000).get(place, [])
    consumer.close()
    assert [(row.offset, row.value) for row in rows] == [
        (n, b"v%d" % n) for n in [49, 50, 51, 52, 53, *range(54, 60)]
    ]


def test_librdkafka_reads_to_the_end(kafka_broker, cleaned):
    """It says when it has reached the end of a partition, holes before it or not."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_broker.kafka_url,
            "group.id": "c" + cleaned,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(cleaned, 0, 1)])
    offsets: list[int | None] = []
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            assert "EOF" in str(message.error())
            break
        offsets.append(message.offset())
    consumer.close()
    assert offsets == [49, 50, 51, 52, 53, *range(54, 60)]


def test_times_and_ends(kafka_broker, raw, cleaned):
    """The log begins at 0 and ends at 60; a time leads to the first record left after it."""
    assert offset_at(raw, cleaned, -2) == 0
    assert offset_at(raw, cleaned, -1) == 60
    assert offset_at(raw, cleaned, 0) == 48  # of its set the first record was removed
    assert offset_at(raw, cleaned, int(time.time() * 1000) + 60_000) == -1


def test_deleted_records_are_gone_at_once_and_from_the_next_view(kafka_broker, raw, cleaned):
    """DeleteRecords may name a hole: the log begins there, and the next cleaning has less."""
    assert delete_before(raw, cleaned, 20) == 20
    assert raw.fetch(cleaned, 19).error_code == 1
    assert read_on(raw, cleaned, 2, 20)[0][0].offset == 49
    assert delete_before(raw, cleaned, 52) == 52
    assert [row.offset for row in read_on(raw, cleaned, 2, 52)[0]] == [52, 53, *range(54, 60)]
    assert offset_at(raw, cleaned, -2) == 52
    assert delete_before(raw, cleaned, -1) == 60
    assert read_on(raw, cleaned, 2, 60)[0] == []
    raw.produce(cleaned, set_of_keys([(b"x", b"1")], 2, 0))
    raw.produce(cleaned, set_of_keys([(b"y", b"2")], 2, 0))
    clean(kafka_broker, cleaned)
    assert [row.value for row in read_on(raw, cleaned, 2, 60)[0]] == [b"1", b"2"]
    assert opened(kafka_broker, cleaned).cleaned.view.summary.entry_count == 1


def test_pulsars_readers_get_the_same(kafka_broker, cleaned):
    """Without readCompacted, on every type of subscription, and by seek, too."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(kafka_broker.service_url, logger=quiet)
    expected = [b"v%d" % n for n in [49, 50, 51, 52, 53, *range(54, 60)]]

    def read(receive: Callable[[], Any]) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < len(expected):
            message = receive()
            if message.partition_key():  # holes come as empty messages
                found.append(message.data())
        return found

    reader = client.create_reader(name_of(cleaned), pulsar.MessageId.earliest)
    assert read(lambda: reader.read_next(WAIT_S * 1000)) == expected
    kinds = pulsar.ConsumerType
    for kind in (kinds.Exclusive, kinds.Shared, kinds.KeyShared, kinds.Failover):
        consumer = client.subscribe(
            name_of(cleaned),
            f"s{kind}",
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
        )

        def receive(consumer: Any = consumer) -> Any:
            message = consumer.receive(WAIT_S * 1000)
            consumer.acknowledge(message)
            return message

        assert sorted(read(receive)) == sorted(expected)
        consumer.close()
    client.close()


def test_what_a_subscription_has_not_acknowledged_is_not_freed(kafka_broker, raw, topic):
    """A durable subscription of Pulsar's holds the log back; it is freed when that has gone on."""
    create(raw, topic, cleanup_policy="compact", file_delete_delay_ms="0")
    raw.produce(topic, set_of_keys([(b"k", b"0")], 2, 0))
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(kafka_broker.service_url, logger=quiet)
    earliest = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(name_of(topic), "slow", initial_position=earliest)
    for number in range(1, 6):
        raw.produce(topic, set_of_keys([(b"k", b"%d" % number)], 2, 0))
    clean(kafka_broker, topic)
    ledger = opened(kafka_broker, topic).ledger
    assert ledger.first_index == 0
    last = None
    while last is None or last.data() != b"5":
        last = consumer.receive(WAIT_S * 1000)
    consumer.acknowledge_cumulative(last)
    consumer.close()
    client.close()
    clean(kafka_broker, topic)
    assert ledger.first_index == 5


def test_it_is_the_same_log_after_a_restart(tmp_path):
    """Offsets, holes, the start and tombstones are on the disk; what was freed is gone from it."""
    options: dict[str, Any] = {"kafka_port": 0, "http_port": None, "data_dir": tmp_path}
    with running_broker(**options) as broker, RawKafka.from_url(broker.kafka_url) as raw:
        create(raw, "t", cleanup_policy="compact", file_delete_delay_ms="0")
        for number in range(30):
            raw.produce("t", set_of_keys([(b"k%d" % (number % 3), b"x" * 10_000)], 2, 0))
        raw.produce("t", set_of_keys([(b"k0", None)], 2, 0))
        raw.produce("t", set_of_keys([(b"end", b"1")], 2, 0))
        size_before = opened(broker, "t").ledger.first_index
        clean(broker, "t")
        before = read_on(raw, "t", 2)
        assert opened(broker, "t").ledger.first_index > size_before
    with running_broker(**options) as broker, RawKafka.from_url(broker.kafka_url) as raw:
        raw.fetch("t", 0)
        rows, _ = read_on(raw, "t", 2)
        assert rows == before[0]
        assert [(row.offset, row.key) for row in rows] == [
            (28, b"k1"), (29, b"k2"), (30, b"k0"), (31, b"end")
        ]  # fmt: skip
        assert rows[2].value is None
        create(raw, "u", cleanup_policy="compact")
        form = opened(broker, "t").read_log
        assert finder_of(form).by_index(3).first_index == 28
        assert form.read(EARLIEST)[0].index == 28


PROGRAM = """
import asyncio, json, pathlib, sys
from pulsemark.broker import Broker, BrokerConfig
from pulsemark.ledger import StoreOptions

async def main():
    config = BrokerConfig(
        data_dir=pathlib.Path(sys.argv[1]), port=0, http_port=None, kafka_port=0,
        compaction_monitor_interval_ms=30, retention_check_interval_ms=30,
        store_options=StoreOptions(segment_size_bytes=3_000, ledger_entries=40),
    )
    async with Broker(config) as broker:
        print(json.dumps(broker.kafka_url), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
KILLS = int(os.environ.get("PULSEMARK_KILLS", "4"))


@pytest.mark.timeout(120 + 20 * KILLS)
def test_killed_while_it_cleans(tmp_path):
    """After each kill -9 every key's latest acknowledged value is there, at its offset."""
    chance = random.Random(11)
    acknowledged: dict[int, tuple[bytes, bytes]] = {}
    freed = 0
    for number in range(KILLS + 1):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            with RawKafka.from_url(json.loads(process.stdout.readline())) as raw:
                if not number:
                    create(
                        raw,
                        "t",
                        cleanup_policy="compact",
                        file_delete_delay_ms="0",
                        min_cleanable_dirty_ratio="0.1",
                    )
                else:
                    rows = {row.offset: row for row in read_on(raw, "t", 2)[0]}
                    latest = {key: offset for offset, (key, _) in sorted(acknowledged.items())}
                    for offset in latest.values():
                        assert (rows[offset].key, rows[offset].value) == acknowledged[offset]
                    assert all(
                        acknowledged.get(offset, row[1:]) == row[1:] for offset, row in rows.items()
                    )
                    freed += len(rows) < len(acknowledged)
                until_s = time.monotonic() + 0.3 + chance.random() * 0.5
                while time.monotonic() < until_s and number < KILLS:
                    records = [
                        (b"k%d" % chance.randrange(9), b"%d" % chance.randrange(10**6))
                        for _ in range(chance.randrange(1, 5))
                    ]
                    answer = raw.produce("t", set_of_keys(records, 2, chance.randrange(2)))
                    assert answer.error_code == 0
                    acknowledged |= dict(enumerate(records, answer.base_offset))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        findings = [f for f in verify_folder(tmp_path) if f.severity >= Severity.DAMAGE]
        assert findings == []
    assert freed
