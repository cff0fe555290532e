"""Leader epochs of topics in Kafka's formats: kept by default, begun before a producer's set."""

from __future__ import annotations

import json
import urllib.request

import kafka
import pytest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords

from pulsemark.ledger import CatalogError
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_kafka import RawKafka

from .conftest import create, ledger_of, record_set, records_of

WAIT_S = 60
ADMIN = "/admin/v2/persistent/public/default"


def started(folder):
    """A broker with the default settings."""
    return running_broker(data_dir=folder, kafka_port=0, kafka_group_initial_rebalance_delay_ms=0)


def offset_at(raw, topic, time_ms):
    """The answer of ListOffsets for a time."""
    asked = ListOffsetsRequest.ListOffsetsTopic(
        name=topic,
        partitions=[
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=time_ms
            )
        ],
    )
    answer = raw.call(ListOffsetsRequest, 5, replica_id=-1, isolation_level=0, topics=[asked])
    return answer.topics[0].partitions[0]


def ask(broker, path, value):
    """Set a policy by the admin interface."""
    request = urllib.request.Request(
        f"{broker.http_url}{ADMIN}{path}", json.dumps(value).encode(), method="POST"
    )
    urllib.request.urlopen(request, timeout=30).close()


def test_a_restart_begins_an_epoch_and_a_stale_client_gets_an_error(tmp_path):
    """74 for a Fetch, in every version that has epochs; records carry the epoch they belong to."""
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        create(raw, "t")
        assert raw.produce("t", record_set([b"a", b"b"])).base_offset == 0
        assert raw.fetch("t", 0, leader_epoch=0).error_code == 0
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        for version in (9, 10, 11):
            assert raw.fetch("t", 0, version=version, leader_epoch=0).error_code == 74
            assert raw.fetch("t", 0, version=version, leader_epoch=2).error_code == 75
        assert raw.fetch("t", 0, version=8, leader_epoch=0).error_code == 0
        assert raw.produce("t", record_set([b"c"])).base_offset == 3
        found = raw.fetch("t", 0, leader_epoch=1)
        assert records_of(found.records)[:2] == [(0, b"a"), (1, b"b")]
        assert records_of(found.records)[-1] == (3, b"c")
        epochs, batches = [], MemoryRecords(found.records)
        while (batch := batches.next_batch()) is not None:
            epochs.append((batch.base_offset, batch.leader_epoch))
        assert epochs == [(0, 0), (2, 1), (3, 1)]


def test_kafkas_client_reads_over_restarts(tmp_path):
    """Nothing is lost or doubled: the mark's offset is passed over, and groups go on."""
    got = []
    for number in range(3):
        with started(tmp_path / "data") as broker:
            options = {"bootstrap_servers": broker.kafka_url}
            producer = kafka.KafkaProducer(**options)
            for part in range(2):
                producer.send("t", b"%d-%d" % (number, part)).get(WAIT_S)
            producer.close()
            consumer = kafka.KafkaConsumer(
                "t",
                **options,
                group_id="g",
                auto_offset_reset="earliest",
                consumer_timeout_ms=WAIT_S * 1000,
                metadata_max_age_ms=1_000,  # its first metadata may leave out the topic
            )
            got += [next(consumer) for _ in range(2)]
            consumer.commit()
            consumer.close()
    assert [m.value for m in got] == [b"%d-%d" % (n, p) for n in range(3) for p in range(2)]
    assert [m.offset for m in got] == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("door", ["rest", "kafka"])
def test_a_topic_of_pulsars_keeps_epochs_from_its_entry_format_on(tmp_path, door):
    """Until then it has none; if the broker took it over, the epoch begins at once."""
    name = "persistent://public/default/p"
    with started(tmp_path / "data") as broker, RawClient.from_url(broker.service_url) as client:
        client.create_producer(name).send(b"x")
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer(name).send(b"y")
        ledger = broker.broker.services.topics.open_topics[name].ledger
        assert (ledger.epoch, ledger.next_index) == (0, 2)
        if door == "rest":
            ask(broker, "/p/entryFormat", {"message.format.version": "3.0"})
        else:
            admin = kafka.KafkaAdminClient(bootstrap_servers=broker.kafka_url)
            setting = {"message.format.version": "3.0"}
            admin.alter_configs([kafka.admin.ConfigResource("TOPIC", "p", setting)])
            admin.close()
        assert (ledger.epoch, ledger.next_index) == (1, 3)
        assert raw.produce("p", record_set([b"z"])).base_offset == 3


def test_the_policy_switches_them_off(tmp_path):
    """Then offsets have no gap over a restart."""
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        create(raw, "t")
        ask(broker, "/t/leaderEpochs", False)
        assert raw.produce("t", record_set([b"a"])).base_offset == 0
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        assert raw.produce("t", record_set([b"b"])).base_offset == 1
        assert ledger_of(broker, "t").epoch == 0


def test_a_partition_in_use_gets_its_epoch_when_the_policy_is_switched_on(tmp_path, monkeypatch):
    """If it cannot begin, the next set is refused, though the ones before were taken."""
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        create(raw, "t")
        ask(broker, "/t/leaderEpochs", False)
        raw.produce("t", record_set([b"a"]))
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        assert raw.produce("t", record_set([b"b"])).base_offset == 1

        def fail(*_: object, **__: object) -> None:
            raise CatalogError(tmp_path, "full")

        with monkeypatch.context() as patch:
            patch.setattr(type(ledger_of(broker, "t")), "begin_epoch", fail)
            ask(broker, "/t/leaderEpochs", True)
            assert raw.produce("t", record_set([b"c"])).error_code == 56
        assert raw.produce("t", record_set([b"c"])).base_offset == 3
        assert ledger_of(broker, "t").epoch == 1


def test_if_the_epoch_cannot_begin_producers_are_refused(tmp_path, monkeypatch):
    """With 56, for which clients try again; consumers read; the first set after is taken."""
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        create(raw, "t")
        raw.produce("t", record_set([b"a"]))
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:

        def full(*_: object) -> None:
            raise CatalogError(tmp_path, "full")

        with monkeypatch.context() as patch:
            patch.setattr(type(broker.broker.store.catalog), "put", full)
            for _ in range(2):
                assert raw.produce("t", record_set([b"b"])).error_code == 56
            assert records_of(raw.fetch("t", 0).records) == [(0, b"a")]
        assert raw.produce("t", record_set([b"b"])).base_offset == 2
        assert ledger_of(broker, "t").epoch == 1


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31, 3_000_000_000])
def test_an_epoch_that_kafka_cannot_carry_is_shown_as_unknown(tmp_path, epoch):
    """Its own topic is read and written, and other topics' answers are as before."""
    shown = epoch if epoch < 2**31 else -1
    with started(tmp_path / "data") as broker, RawKafka.from_url(broker.kafka_url) as raw:
        create(raw, "t")
        create(raw, "other")
        raw.produce("t", record_set([b"a"]))
        ledger_of(broker, "t").begin_epoch(epoch).commit.wait()
        assert raw.produce("t", record_set([b"b"])).error_code == 0
        answer = raw.call(MetadataRequest, 7, topics=None, allow_auto_topic_creation=False)
        assert {t.name: t.partitions[0].leader_epoch for t in answer.topics} == {
            "t": shown,
            "other": 0,
        }
        for version in (0, 3, 11):
            found = records_of(raw.fetch("t", 0, version=version, leader_epoch=-1).records)
            assert [value for _, value in found if value in (b"a", b"b")] == [b"a", b"b"]
        assert raw.fetch("t", 0, leader_epoch=0).error_code == 74
        for time_ms in (-1, -2, 0):
            assert offset_at(raw, "t", time_ms).error_code == 0
        assert offset_at(raw, "t", -1).leader_epoch == shown
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=broker.kafka_url, auto_offset_reset="earliest"
        )
        consumer.assign([kafka.TopicPartition("t", 0)])
        values: list[bytes] = []
        while len(values) < 2:
            polled = consumer.poll(timeout_ms=WAIT_S * 1000)
            assert polled
            values += [record.value for records in polled.values() for record in records]
        consumer.close()
        assert values == [b"a", b"b"]
