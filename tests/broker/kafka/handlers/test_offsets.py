"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import DeleteRecordsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from ..conftest import create, ledger_of, record_set, records_of


def listed(client, topic, time_ms, version=5, partition=0, epoch=-1, count=10):
    """The answer for one partition."""
    asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=partition,
        current_leader_epoch=epoch,
        timestamp=time_ms,
        max_num_offsets=count,
    )
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])]
    answer = client.call(
        ListOffsetsRequest, version, replica_id=-1, isolation_level=0, topics=topics
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_ends_and_times_in_every_version(kafka_broker, raw, made, version):
    """-2 the start, -1 the end, a time: the first entry at or after it; none: -1 and -1."""
    for number in range(3):
        raw.produce(made, record_set([b"%d" % number]))
    ledger = ledger_of(kafka_broker, made)
    entries = ledger.read(ledger.first_position)
    assert listed(raw, made, -2, version).offset == 0
    assert listed(raw, made, -1, version).offset == 3
    last_ms = entries[-1].time_ms
    first_at = next(entry.first_index for entry in entries if entry.time_ms >= last_ms)
    found = listed(raw, made, last_ms, version)
    assert (found.offset, found.timestamp) == (first_at, last_ms)
    none = listed(raw, made, last_ms + 1, version)
    assert (none.error_code, none.offset, none.timestamp) == (0, -1, -1)


def test_version_0_lists_the_starts_of_segments(kafka_broker, raw, made):
    """Newest first; the end before them for -1; no more than asked for."""
    raw.produce(made, record_set([b"a", b"b"]))
    ledger_of(kafka_broker, made).roll()
    raw.produce(made, record_set([b"c"]))
    assert listed(raw, made, -1, 0).old_style_offsets == [3, 2, 0]
    assert listed(raw, made, -1, 0, count=1).old_style_offsets == [3]
    assert listed(raw, made, -2, 0).old_style_offsets == [0]
    assert listed(raw, made, 2**62, 0).old_style_offsets == [3, 2, 0]
    assert listed(raw, made, 5, 0).old_style_offsets == []


def test_what_cannot_be_listed(raw, made):
    """Other negative times, unknown partitions, stale epochs."""
    assert listed(raw, made, -7, 11).error_code == 35
    assert listed(raw, made, -1, partition=4).error_code == 3
    assert listed(raw, "none", -1).error_code == 3
    assert listed(raw, made, -1, epoch=9).error_code == 75
    assert listed(raw, made, -1, epoch=-2).error_code == 74


@pytest.mark.parametrize("version", range(12))
def test_a_partition_that_is_asked_for_twice_is_refused(raw, made, version):
    """From version 1 on with code 42, once; version 0 may ask for several times of a log."""
    asked = [
        ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=-1, timestamp=time_ms, max_num_offsets=1
        )
        for time_ms in (-1, -2, -1)
    ]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=made, partitions=asked)]
    answer = raw.call(ListOffsetsRequest, version, replica_id=-1, isolation_level=0, topics=topics)
    codes = [part.error_code for part in answer.topics[0].partitions]
    assert codes == ([42] if version else [0, 0])


@pytest.mark.parametrize("version", range(1, 12))
def test_special_times_begin_with_a_version(raw, made, version):
    """-3 with 7 (KIP-734), -4 with 8 and -5 with 9 (KIP-405), -6 with 11; 35 before."""
    raw.produce(made, record_set([b"a"]))
    served = [at for at in range(-8, 0) if not listed(raw, made, at, version).error_code]
    lowest = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}
    assert served == [at for at in sorted(lowest) if version >= lowest[at]]


def test_the_newest_time_is_that_of_the_newest_record(kafka_broker, raw, made):
    """The first record with it; marks of leader epochs are passed over; none: -1 and -1."""
    empty = listed(raw, made, -3, 7)
    assert (empty.error_code, empty.offset, empty.timestamp) == (0, -1, -1)
    for number in range(3):
        raw.produce(made, record_set([b"%d" % number, b"x"]))
    ledger = ledger_of(kafka_broker, made)
    entries = ledger.read(ledger.first_position)
    for epoch in (3, 4):
        ledger.begin_epoch(epoch).commit.wait(30)
    time_ms = entries[-1].time_ms
    first_at = next(entry.first_index for entry in entries if entry.time_ms == time_ms)
    found = listed(raw, made, -3, 7)
    assert (found.offset, found.timestamp, found.leader_epoch) == (first_at, time_ms, 0)


def test_nothing_is_in_another_storage(raw, made):
    """The local start is the log's start; no record is tiered, and none waits to be."""
    raw.produce(made, record_set([b"a", b"b"]))
    deleted(raw, made, 1)
    found = {at: listed(raw, made, at, 11) for at in (-2, -4, -5, -6)}
    assert {at: part.offset for at, part in found.items()} == {-2: 1, -4: 1, -5: -1, -6: -1}
    assert {part.timestamp for part in found.values()} == {-1}


def ends(client, topic, epoch, version=3, current=-1):
    """The answer of OffsetForLeaderEpoch: code, epoch, end."""
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    answer = client.call(OffsetForLeaderEpochRequest, version, replica_id=-1, topics=topics)
    part = answer.topics[0].partitions[0]
    return part.error_code, part.leader_epoch, part.end_offset


def test_where_leader_epochs_ended(kafka_broker, raw, made):
    """The highest epoch up to the one asked for, and the offset at which the next one began."""
    raw.produce(made, record_set([b"a", b"b"]))
    ledger = ledger_of(kafka_broker, made)
    ledger.begin_epoch(3).commit.wait(30)
    raw.produce(made, record_set([b"c"]))
    ledger.begin_epoch(7).commit.wait(30)
    raw.produce(made, record_set([b"d"]))
    assert ends(raw, made, 0) == (0, 0, 2)
    assert ends(raw, made, 2) == (0, 0, 2)
    assert ends(raw, made, 3) == ends(raw, made, 5) == (0, 3, 4)
    assert ends(raw, made, 7) == (0, 7, 6)
    assert ends(raw, made, 8) == (0, -1, -1)
    assert ends(raw, made, 3, current=3)[0] == 74
    assert ends(raw, "none", 0)[0] == 3


def deleted(client, topic, offset, partition=0):
    """The answer of DeleteRecords: code, low watermark."""
    asked = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
        partition_index=partition, offset=offset
    )
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[asked])]
    answer = client.call(DeleteRecordsRequest, 1, topics=topics, timeout_ms=1)
    part = answer.topics[0].partitions[0]
    return part.error_code, part.low_watermark


def test_deleting_records_moves_the_start_of_the_log(raw, made):
    """Before an offset, then all; offsets go on, and what is gone is out of range."""
    for number in range(4):
        raw.produce(made, record_set([b"%d" % number]))
    assert deleted(raw, made, 2) == (0, 2)
    assert listed(raw, made, -2).offset == 2
    assert raw.fetch(made, 1).error_code == 1
    assert records_of(raw.fetch(made, 2).records) == [(2, b"2"), (3, b"3")]
    assert deleted(raw, made, 1) == (0, 2)
    assert deleted(raw, made, -1) == (0, 4)
    assert raw.produce(made, record_set([b"4"])).base_offset == 4
    assert records_of(raw.fetch(made, 4).records) == [(4, b"4")]


def test_the_log_may_start_inside_a_batch(raw, made):
    """As in Kafka: the start is the offset asked for, and the batch that holds it is sent whole."""
    raw.produce(made, record_set([b"a"]))
    raw.produce(made, record_set([b"b", b"c", b"d"]))
    assert deleted(raw, made, 3) == (0, 3)
    assert listed(raw, made, -2).offset == 3
    assert listed(raw, made, 0).offset == 3
    assert raw.fetch(made, 2).error_code == raw.fetch(made, 0).error_code == 1
    answer = raw.fetch(made, 3)
    assert answer.log_start_offset == 3
    assert records_of(answer.records) == [(1, b"b"), (2, b"c"), (3, b"d")]
    assert deleted(raw, made, 2) == (0, 3)
    assert raw.produce(made, record_set([b"e"])).log_start_offset == 3
    assert deleted(raw, made, 4) == (0, 4)
    assert listed(raw, made, -2).offset == 4


def test_a_start_inside_a_batch_outlives_the_broker_and_ends_with_its_topic(tmp_path):
    """It is on the disk when DeleteRecords is answered. A new topic of that name begins with 0."""
    settings = {"data_dir": tmp_path / "data", "kafka_port": 0, "http_port": None}
    with running_broker(**settings) as broker, RawKafka.from_url(broker.kafka_url) as client:
        create(client, "t")
        client.produce("t", record_set([b"a", b"b", b"c"]))
        assert deleted(client, "t", 2) == (0, 2)
    with running_broker(**settings) as broker, RawKafka.from_url(broker.kafka_url) as client:
        assert listed(client, "t", -2).offset == 2
        assert client.fetch("t", 1).error_code == 1
        client.call(DeleteTopicsRequest, 1, topic_names=["t"], timeout_ms=1_000)
        create(client, "t")
        assert listed(client, "t", -2).offset == 0
    with running_broker(**settings) as broker, RawKafka.from_url(broker.kafka_url) as client:
        assert listed(client, "t", -2).offset == 0


def test_offsets_that_are_not_there_cannot_be_deleted(raw, made):
    """Above the end and below -1: out of range; unknown partitions: unknown."""
    raw.produce(made, record_set([b"a"]))
    assert deleted(raw, made, 2)[0] == 1
    assert deleted(raw, made, -2)[0] == 1
    assert deleted(raw, made, 0, partition=3)[0] == 3


def test_each_start_begins_an_epoch_and_clients_of_earlier_ones_get_an_error(tmp_path):
    """Where the broker's setting says so: records keep their offsets, control entries take some."""
    folder, offsets, epochs = tmp_path / "data", [], []
    for number in range(3):
        with (
            running_broker(
                data_dir=folder, kafka_port=0, http_port=None, leader_epochs_enabled=True
            ) as broker,
            RawKafka.from_url(broker.kafka_url) as client,
        ):
            topic = MetadataRequest.MetadataRequestTopic(name="t")
            described = client.call(MetadataRequest, 7, topics=[topic])
            epochs.append(described.topics[0].partitions[0].leader_epoch)
            offsets.append(client.produce("t", record_set([b"%d" % number])).base_offset)
            codes = [client.fetch("t", 0, leader_epoch=epoch).error_code for epoch in epochs]
            assert codes == [74] * number + [0]
            found = records_of(client.fetch("t", 0).records)
            assert [value for offset, value in found if offset in offsets] == [
                b"%d" % each for each in range(number + 1)
            ]
            ended = [ends(client, "t", epoch) for epoch in epochs]
    assert epochs == sorted(set(epochs))
    assert offsets == sorted(set(offsets))
    assert [epoch for _, epoch, _ in ended] == epochs
    assert all(end <= offset + 1 for (_, _, end), offset in zip(ended, offsets, strict=True))
