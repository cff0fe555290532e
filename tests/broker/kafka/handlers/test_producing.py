"""Produce: what is stored, what is refused with which code, and idempotent producers."""

from __future__ import annotations

import errno
import gc
import logging
import struct
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka
import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.broker.kafka.handlers import producing
from pulsemark.kafka import protocol
from pulsemark.ledger import LocalStore
from pulsemark.metadata import crc32c, peek
from pulsemark.proto.broker_entry_pb2 import SourceFormat
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.faulty_files import FaultyFiles
from pulsemark.testing.raw_kafka import RawKafka, produce_fields

from ..conftest import create, ledger_of, record_set


def test_a_set_is_one_entry_with_its_count_and_format_in_the_prefix(kafka_broker, raw, made):
    """Offsets are indexes; the body's offset bytes are zero, whatever the client sent."""
    first = raw.produce(made, record_set([b"a", b"b", b"c"]))
    second = raw.produce(made, struct.pack(">q", 0) + record_set([b"d"])[8:])
    assert (first.error_code, first.base_offset, first.log_start_offset) == (0, 0, 0)
    assert second.base_offset == 3
    entries = ledger_of(kafka_broker, made).read(ledger_of(kafka_broker, made).first_position)
    assert [entry.message_count for entry in entries] == [3, 1]
    prefix = peek(entries[0].prefix)
    assert prefix is not None
    assert (prefix.index, prefix.message_count, prefix.has_keys) == (2, 3, True)
    assert prefix.source_format == SourceFormat.SOURCE_KAFKA_MAGIC_2
    assert prefix.relative_offset_honoured
    assert bytes(entries[0].body[:8]) == bytes(8)


def test_several_partitions_are_stored_or_refused_one_by_one(raw, made):
    """A wrong set, an unknown partition and an unknown topic do not keep the good one out."""
    broken = bytearray(record_set([b"x"]))
    broken[-1] ^= 1
    sets = [
        (made, 0, record_set([b"good"])),
        ("no-such-topic", 0, record_set([b"x"])),
        (made, 7, record_set([b"x"])),
        ("illegal!", 0, record_set([b"x"])),
        (made, 0, bytes(broken)),
    ]
    answer = raw.call(ProduceRequest, 7, **produce_fields(sets, -1))
    codes = {
        (topic.name, part.index): [p.error_code for p in topic.partition_responses if p is part]
        for topic in answer.responses
        for part in topic.partition_responses
    }
    assert codes["no-such-topic", 0] == codes["illegal!", 0] == codes[made, 7] == [3]
    assert sorted(
        part.error_code
        for topic in answer.responses
        if topic.name == made
        for part in topic.partition_responses
    ) == [0, 2, 3]
    assert raw.fetch(made, 0).high_watermark == 1


@pytest.mark.parametrize(
    ("records", "version", "acks", "code"),
    [
        (record_set([b"x"]), 7, 2, 21),
        (record_set([b"x"]), 7, -2, 21),
        (record_set([b"x"], transactional=True, producer=(9, 0, 0)), 7, -1, 53),
        (record_set([b"x" * 1_100_000]), 7, -1, 10),
        (b"", 7, -1, 87),
        (record_set([b"x"], magic=1), 3, -1, 87),
        (None, 7, -1, 87),
    ],
)
def test_refusals_have_kafkas_codes(raw, made, records, version, acks, code):
    """What a real Kafka answers; nothing is stored."""
    assert raw.produce(made, records, version=version, acks=acks).error_code == code
    assert raw.fetch(made, 0).high_watermark == 0


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_no_kafka_knows_are_refused(raw, made, codec):
    """With 87; Kafka answers -1."""
    batch = bytearray(record_set([b"x"]))
    batch[22] = codec
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    assert raw.produce(made, bytes(batch)).error_code == 87
    assert raw.fetch(made, 0).high_watermark == 0


@pytest.mark.parametrize(
    ("name", "code"), [("no-such-topic", 3), ("a/b", 17), ("", 17), (".", 17), ("x" * 250, 17)]
)
def test_topics_that_are_not_there(raw, name, code):
    """Produce gets 3 also where no topic can have the name, which Metadata says with 17."""
    assert raw.produce(name, record_set([b"x"])).error_code == 3
    asked = [MetadataRequest.MetadataRequestTopic(name=name)]
    answer = raw.call(MetadataRequest, 4, topics=asked, allow_auto_topic_creation=False)
    assert answer.topics[0].error_code == code


def test_an_empty_set_of_an_old_client_is_no_error(raw, made):
    """Below version 3: code 0 and offset -1."""
    answer = raw.produce(made, b"", version=2)
    assert (answer.error_code, answer.base_offset) == (0, -1)


def test_without_acks_there_is_no_answer_and_a_refusal_ends_the_connection(
    kafka_broker, made, caplog
):
    """The next answer belongs to the next request; the log says why a connection ended."""
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.send(ProduceRequest, 7, **produce_fields([(made, 0, record_set([b"x"]))], 0))
        assert client.fetch(made, 0, max_wait_ms=30_000).high_watermark == 1
        with caplog.at_level(logging.INFO):
            client.send(ProduceRequest, 7, **produce_fields([(made, 9, record_set([b"x"]))], 0))
            with pytest.raises(ConnectionError):
                client.receive_frame()
    assert "acks=0 was refused" in caplog.text


def test_log_append_time_shows_the_brokers_time(raw, topic):
    """In the answer to Produce and in what is fetched."""
    assert create(raw, topic, message_timestamp_type="LogAppendTime") == 0
    answer = raw.produce(topic, record_set([b"a"]))
    assert answer.log_append_time_ms > 1_600_000_000_000
    from kafka.record.memory_records import MemoryRecords

    found = MemoryRecords(raw.fetch(topic, 0).records).next_batch()
    assert found is not None
    assert found.validate_crc()
    assert [(r.timestamp, r.timestamp_type) for r in found] == [(answer.log_append_time_ms, 1)]


def test_nothing_is_compressed_where_a_set_is_stored_as_sent(kafka_broker, raw, made):
    """KIP-31: zero compressions in place; an older format of the topic costs one for each set."""
    figures = kafka_broker.broker.kafka.figures
    before = figures.compressions, figures.sets_in_place, figures.sets_in
    sent = record_set([b"v" * 100] * 20, codec=1)
    assert raw.produce(made, sent).error_code == 0
    fetched = raw.fetch(made, 0).records
    assert fetched[16:] == sent[16:]
    after = figures.compressions, figures.sets_in_place, figures.sets_in
    assert after == (before[0], before[1] + 1, before[2] + 1)
    old = f"{made}old"
    assert create(raw, old, message_format_version="0.9.0") == 0
    assert raw.produce(old, sent).error_code == 0
    assert figures.compressions == before[0] + 1
    assert figures.sets_in_place == before[1] + 1


# -- idempotence --------------------------------------------------------------------------------


def test_producer_ids_are_given_once(raw):
    """Every InitProducerId gets another id."""
    fields = {"transactional_id": None, "transaction_timeout_ms": 1}
    ids = [raw.call(InitProducerIdRequest, 1, **fields) for _ in range(3)]
    assert len({answer.producer_id for answer in ids}) == 3
    assert {(answer.error_code, answer.producer_epoch) for answer in ids} == {(0, 0)}


def test_a_repeated_batch_is_answered_with_its_offset_and_not_stored(raw, made):
    """The last five are known; a gap, an older epoch and a new one that does not begin at 0."""
    for number in range(6):
        sent = raw.produce(made, record_set([b"a", b"b"], producer=(7, 1, 2 * number)))
        assert (sent.error_code, sent.base_offset) == (0, 2 * number)
    again = raw.produce(made, record_set([b"a", b"b"], producer=(7, 1, 4)))
    assert (again.error_code, again.base_offset) == (0, 4)
    too_old = raw.produce(made, record_set([b"a", b"b"], producer=(7, 1, 0)))
    gap = raw.produce(made, record_set([b"a"], producer=(7, 1, 13)))
    old_epoch = raw.produce(made, record_set([b"a"], producer=(7, 0, 0)))
    new_epoch = raw.produce(made, record_set([b"a"], producer=(7, 2, 5)))
    codes = [answer.error_code for answer in (too_old, gap, old_epoch, new_epoch)]
    assert codes == [45, 45, 47, 45]
    assert raw.produce(made, record_set([b"a"], producer=(7, 2, 0))).base_offset == 12
    assert raw.produce(made, record_set([b"a"], producer=(8, 0, 99))).base_offset == 13


def test_a_batch_that_is_repeated_after_a_restart_is_not_doubled(tmp_path):
    """What producers sent is found in the log again, and ids are not given a second time."""
    folder = tmp_path / "data"
    fields = {"transactional_id": None, "transaction_timeout_ms": 1}
    with (
        running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        client.call(MetadataRequest, 1, topics=[topic])
        first_id = client.call(InitProducerIdRequest, 0, **fields).producer_id
        for number in range(3):
            client.produce("t", record_set([b"%d" % number], producer=(first_id, 0, number)))
    with (
        running_broker(data_dir=folder, kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        again = client.produce("t", record_set([b"1"], producer=(first_id, 0, 1)))
        following = client.produce("t", record_set([b"3"], producer=(first_id, 0, 3)))
        gap = client.produce("t", record_set([b"5"], producer=(first_id, 0, 5)))
        second_id = client.call(InitProducerIdRequest, 0, **fields).producer_id
        # Offset 3 is the mark of the new leader epoch.
        assert (again.base_offset, following.base_offset, gap.error_code) == (1, 4, 45)
        assert client.fetch("t", 0).high_watermark == 5
        assert second_id > first_id


def test_publishes_of_one_connection_share_commits(kafka_broker, made):
    """Requests are taken while earlier ones wait for the disk, and answered in their order."""
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.produce(made, record_set([b"open"]))
        ledger = ledger_of(kafka_broker, made)
        with ledger.store.committer.lock:
            sent = [
                client.send(
                    ProduceRequest, 7, **produce_fields([(made, 0, record_set([b"x"]))], -1)
                )
                for _ in range(20)
            ]
        answers = [client.receive(ProduceRequest, 7) for _ in range(20)]
    assert [correlation_id for correlation_id, _ in answers] == sent
    offsets = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert offsets == list(range(1, 21))


def test_a_large_set_is_checked_in_a_thread_and_keeps_its_place(raw, made):
    """The set after it is stored after it."""
    large = record_set([b"v" * 1000] * 500, codec=1)
    plain = record_set([b"v" * 1000] * 500)
    assert raw.produce(made, plain).base_offset == 0
    first = raw.send(ProduceRequest, 7, **produce_fields([(made, 0, large)], -1))
    second = raw.send(ProduceRequest, 7, **produce_fields([(made, 0, record_set([b"s"]))], -1))
    answers = dict(raw.receive(ProduceRequest, 7) for _ in range(2))
    offsets = [answers[n].responses[0].partition_responses[0].base_offset for n in (first, second)]
    assert offsets == [500, 1000]


def test_an_answered_request_leaves_no_memory_to_the_garbage_collector(raw, made, monkeypatch):
    """Its megabyte is free when it is answered, not at some later collection."""
    begun = []

    class Noted(producing.Publish):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            begun.append(weakref.ref(self))

    monkeypatch.setattr(producing, "Publish", Noted)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert raw.produce(made, record_set([b"v" * 1000] * 500)).error_code == 0
        until_s = time.monotonic() + 20
        while any(publish() is not None for publish in begun) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert [publish() for publish in begun] == [None] * 3
    finally:
        gc.enable()


def test_sets_that_are_stored_from_the_requests_memory_are_what_was_sent(kafka_broker, made):
    """Many large requests at once, whose memory is used again: each entry has its own bytes."""
    host, _, port = kafka_broker.kafka_url.rpartition(":")
    sent = [record_set([b"%03d" % n * 100] * 1_000) for n in range(30)]
    with RawKafka(host, int(port)) as client:
        for records in sent:
            client.send(ProduceRequest, 7, **produce_fields([(made, 0, records)], -1))
        for _ in sent:
            answer = client.receive(ProduceRequest, 7)[1]
            assert answer.responses[0].partition_responses[0].error_code == 0
        for number, records in enumerate(sent):
            stored = client.fetch(made, number * 1_000).records
            assert stored[16 : len(records)] == records[16:]


def test_a_failing_disk_is_answered_with_a_storage_error(tmp_path, monkeypatch):
    """The client sends the batch again, and it is stored once."""
    files = FaultyFiles()
    opened = LocalStore.open
    monkeypatch.setattr(
        LocalStore, "open", lambda folder, **options: opened(folder, **{**options, "files": files})
    )
    with (
        running_broker(data_dir=tmp_path / "data", kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        client.call(MetadataRequest, 1, topics=[topic])
        assert client.produce("t", record_set([b"0"], producer=(1, 0, 0))).error_code == 0
        files.fail("fdatasync", error=errno.ENOSPC, times=1)
        assert client.produce("t", record_set([b"1"], producer=(1, 0, 1))).error_code == 56
        files.heal()
        again = client.produce("t", record_set([b"1"], producer=(1, 0, 1)))
        following = client.produce("t", record_set([b"2"], producer=(1, 0, 2)))
        assert (again.base_offset, following.base_offset) == (1, 2)
        assert not files.violations


def test_a_set_that_a_failed_write_stored_is_answered_as_stored(tmp_path, monkeypatch):
    """Of sets in one commit whose segment is written half, the first are in the log: no error."""
    files = FaultyFiles()
    opened, sync = LocalStore.open, files.fdatasync
    monkeypatch.setattr(
        LocalStore, "open", lambda folder, **options: opened(folder, **{**options, "files": files})
    )
    syncing, gathered = threading.Event(), threading.Event()

    def sync_late(fd):
        if not syncing.is_set():
            syncing.set()
            gathered.wait(30)
        elif not files.failed_calls:
            files.fail("pwritev", error=errno.ENOSPC)  # half of what goes to the segment next
        sync(fd)

    def produce(number):
        with RawKafka.from_url(broker.kafka_url) as client:
            return client.produce("t", record_set([b"%d" % number]))

    with (
        running_broker(data_dir=tmp_path / "data", kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
        ThreadPoolExecutor(6) as threads,
    ):
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        client.call(MetadataRequest, 1, topics=[topic])
        assert client.produce("t", record_set([b"0"])).error_code == 0
        ledger = ledger_of(broker, "t")
        monkeypatch.setattr(files, "fdatasync", sync_late)
        answers = [threads.submit(produce, 1)]
        assert syncing.wait(30)
        answers += [threads.submit(produce, number) for number in range(2, 7)]
        deadline_s = time.monotonic() + 30
        while ledger.tail.entry_id < 7 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        gathered.set()
        codes = sorted((each.result().error_code, each.result().base_offset) for each in answers)
        stored = [offset for code, offset in codes if code == 0]
        assert 1 < len(stored) < len(codes)
        assert stored == list(range(1, 1 + len(stored)))
        assert {code for code, _ in codes} == {0, 56}
        assert ledger.next_index == 1 + len(stored)


def test_a_disk_that_stays_full_leaves_no_message_of_librdkafka_without_a_report(
    tmp_path, monkeypatch
):
    """Each Produce is answered with 56; the client repeats it until its own time is over.

    The broker never keeps an answer back, so the client's `message.timeout.ms` is the longest wait.
    """
    files = FaultyFiles()
    opened = LocalStore.open
    monkeypatch.setattr(
        LocalStore, "open", lambda folder, **options: opened(folder, **{**options, "files": files})
    )
    reports: list[Any] = []
    with running_broker(data_dir=tmp_path / "data", kafka_port=0, http_port=None) as broker:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.kafka_url, "message.timeout.ms": 3_000, "linger.ms": 1,
             "retry.backoff.ms": 20, "retry.backoff.max.ms": 50, "log_level": 0}
        )  # fmt: skip
        producer.produce("t", b"first", on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(30) == 0
        files.fail("fdatasync", error=errno.ENOSPC, times=None)
        for number in range(200):
            producer.produce("t", b"%d" % number, on_delivery=lambda e, _: reports.append(e))
        assert producer.flush(60) == 0, "messages have no report"
        files.heal()
        producer.produce("t", b"last", on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(30) == 0
    assert len(reports) == 202
    assert (reports[0], reports[-1]) == (None, None)
    assert {error.name() for error in reports[1:-1]} == {"_MSG_TIMED_OUT"}


def test_a_batch_is_not_stored_twice_if_a_commit_fails_while_its_request_is_prepared(
    kafka_broker, raw, topic, monkeypatch
):
    """What was known of producers is dropped then; the client has to try again."""
    create(raw, topic, partitions=2)
    batch = record_set([b"a"], producer=(7, 0, 0))
    assert raw.produce(topic, batch).base_offset == 0
    validate = vars(producing)["validate_produced"]

    def spied(*args, **options):
        server = kafka_broker.broker.kafka
        server.partitions.get(topic, 0).sequences = None  # as after a failed commit
        return validate(*args, **options)

    monkeypatch.setattr(producing, "validate_produced", spied)
    large = record_set([b"v" * 1000] * 500)
    sets = [(topic, 0, batch), (topic, 1, large)]
    answer = raw.call(ProduceRequest, 7, **produce_fields(sets, -1))
    codes = [part.error_code for each in answer.responses for part in each.partition_responses]
    assert codes == [6, 0]
    monkeypatch.undo()
    assert raw.produce(topic, batch).base_offset == 0
    assert raw.fetch(topic, 0).high_watermark == 1


def test_a_produce_with_as_many_sets_as_allowed_over_absent_topics_is_answered(monkeypatch):
    """Each set gets code 3, as from Kafka; one set more ends the connection."""
    monkeypatch.setattr(protocol, "MAX_SETS", 3_000)
    with (
        running_broker(kafka_port=0, http_port=None, allow_auto_topic_creation=False) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        sets = [
            (f"absent{number % 200}", number // 200, record_set([b"x"])) for number in range(3_000)
        ]
        answer = client.call(ProduceRequest, 7, **produce_fields(sets, -1))
        codes = [
            part.error_code for topic in answer.responses for part in topic.partition_responses
        ]
        assert codes == [3] * 3_000
        client.send(ProduceRequest, 7, **produce_fields([*sets, ("absent", 0, b"")], -1))
        with pytest.raises(ConnectionError):
            client.receive(ProduceRequest, 7)


@pytest.mark.parametrize("time_ms", [-(2**63), -2, 0, 2**63 - 1])
@pytest.mark.parametrize("magic", [1, 2])
def test_times_at_the_ends_of_64_bits_are_stored_as_by_kafka(
    kafka_broker, raw, made, magic, time_ms
):
    """Kafka's consumers get them as sent; Pulsar's get the message, too."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    builder.append(timestamp=time_ms, key=b"k", value=b"v")
    builder.close()
    version = 7 if magic == 2 else 2
    assert raw.produce(made, bytes(builder.buffer()), version=version).error_code == 0
    for fetched in (2, 11):
        batch = MemoryRecords(raw.fetch(made, 0, version=fetched).records).next_batch()
        assert batch is not None
        assert [(record.timestamp, record.value) for record in batch] == [(time_ms, b"v")]
    with RawClient.from_url(kafka_broker.service_url) as reader:
        consumer = reader.subscribe(
            f"persistent://public/default/{made}-partition-0", "s", earliest=True
        )
        consumer.flow(1)
        assert b"v" in consumer.receive().headers_and_payload
