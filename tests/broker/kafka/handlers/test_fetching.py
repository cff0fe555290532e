"""Fetch: limits, waiting, errors, leader epochs."""

from __future__ import annotations

import time
from types import SimpleNamespace

import kafka
import pytest
from kafka.consumer.fetcher import RecordTooLargeError
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from pulsemark.broker.kafka import reading
from pulsemark.broker.kafka.partitions import KafkaPartition
from pulsemark.ledger.topic_log import TopicLog
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields

from ..conftest import create, is_on_loop, ledger_of, record_set, records_of


@pytest.mark.parametrize("version", range(12))
def test_every_version_gets_what_was_stored(raw, made, version):
    """Versions 0 and 1 as magic 0, 2 and 3 as magic 1, later ones as magic 2."""
    raw.produce(made, record_set([b"a", b"b"]))
    raw.produce(made, record_set([b"c"]))
    part = raw.fetch(made, 1, version=version)
    assert (part.error_code, part.high_watermark) == (0, 3)
    assert [found for found in records_of(part.records) if found[0] >= 1] == [(1, b"b"), (2, b"c")]
    assert part.records[16] == (0 if version < 2 else 1 if version < 4 else 2)


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_compressed_set_of_magic_0_is_sent_as_it_is_stored(kafka_broker, raw, topic, sent):
    """Its inner offsets are absolute: they are written when it is produced, once for all."""
    figures = kafka_broker.broker.kafka.figures
    create(raw, topic, message_format_version="0.9.0")
    values = [b"%d" % number for number in range(20)]
    raw.produce(topic, record_set([b"first"], magic=0), version=0)
    before = figures.compressions
    for _ in range(2):
        version = (0, 2, 3)[sent]
        raw.produce(topic, record_set(values, magic=sent, codec=1), version=version)
    assert figures.compressions == before + 2
    before = figures.compressions, figures.decompressions, figures.sets_converted
    for version in (0, 2, 4, 11):
        part = raw.fetch(topic, 1, version=version)
        assert records_of(part.records) == list(enumerate(values * 2, 1))
    assert (figures.compressions, figures.decompressions, figures.sets_converted) == before


def test_sets_of_magic_0_that_come_at_the_same_time_are_sent_as_stored(kafka_broker, raw, topic):
    """Large sets are numbered in threads, one after another, and small ones wait for them."""
    figures = kafka_broker.broker.kafka.figures
    create(raw, topic, message_format_version="0.9.0")
    large = [b"%d" % number * 30 for number in range(900)]
    clients = [RawKafka.from_url(kafka_broker.kafka_url) for _ in range(6)]
    for number, client in enumerate(clients * 3):
        sent = record_set(large if number % 3 else [b"small"], magic=0, codec=1)
        client.send(ProduceRequest, 0, **produce_fields([(topic, 0, sent)], -1))
    for client in clients * 3:
        answer = client.receive(ProduceRequest, 0)[1]
        assert answer.responses[0].partition_responses[0].error_code == 0
    for client in clients:
        client.close()
    before = figures.compressions
    seen: list[int] = []
    while len(seen) < 6 + 12 * len(large):
        seen += [offset for offset, _ in records_of(raw.fetch(topic, len(seen), version=0).records)]
    assert seen == list(range(len(seen)))
    assert figures.compressions == before


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_an_offset_outside_the_log_is_out_of_range(raw, made, offset):
    """Code 1; the end itself is empty."""
    raw.produce(made, record_set([b"a", b"b"]))
    assert raw.fetch(made, offset).error_code == 1
    at_end = raw.fetch(made, 2)
    assert (at_end.error_code, at_end.records) == (0, b"")


@pytest.mark.parametrize(("version", "whole"), [(11, True), (3, True), (2, False), (0, False)])
@pytest.mark.parametrize("stored_magic", [0, 1, 2])
def test_a_first_batch_above_the_limits_is_sent_whole_from_version_3_on(
    raw, topic, version, whole, stored_magic
):
    """Older clients get the first bytes of it, so that they say that it is too large."""
    create(raw, topic, message_format_version=("0.9.0", "0.10.0", "2.8")[stored_magic])
    raw.produce(topic, record_set([b"v" * 1000]))
    part = raw.fetch(topic, 0, version=version, max_bytes=100)
    assert part.error_code == 0
    if whole:
        assert records_of(part.records) == [(0, b"v" * 1000)]
    else:
        assert len(part.records) == 100
        assert part.records == raw.fetch(topic, 0, version=version).records[:100]


def test_a_cut_batch_holds_up_no_other_partition(raw, topic):
    """Each partition of an old client's answer is cut by itself, and small batches are whole."""
    create(raw, topic, partitions=3)
    for partition, size in enumerate([1000, 10, 1000]):
        raw.produce(topic, record_set([b"v" * size]), partition=partition)
    asked = [(topic, partition, 0, 120, -1) for partition in range(3)]
    answer = raw.call(FetchRequest, 2, **fetch_fields(asked, 0, 1, 1 << 20))
    parts = [part.records for each in answer.responses for part in each.partitions]
    assert [len(parts[0]), records_of(parts[1]), len(parts[2])] == [120, [(0, b"v" * 10)], 120]


def test_an_old_client_says_that_a_record_is_too_large(kafka_broker, raw, made):
    """kafka-python with Kafka 0.9's requests raises, as with a real Kafka, and does not wait."""
    raw.produce(made, record_set([b"v" * 1000]))
    consumer = kafka.KafkaConsumer(
        made,
        bootstrap_servers=kafka_broker.kafka_url,
        api_version=(0, 9),
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=120,
    )
    with pytest.raises(RecordTooLargeError):
        consumer.poll(timeout_ms=60_000)
    consumer.close()


def test_an_answer_keeps_the_limits_of_the_request_and_of_each_partition(raw, topic):
    """Whole batches up to max_bytes; what does not fit comes with the next fetch."""
    create(raw, topic, partitions=3)
    size = len(record_set([b"v" * 1000]))
    for partition in range(3):
        for _ in range(4):
            raw.produce(topic, record_set([b"v" * 1000]), partition=partition)
    asked = [(topic, partition, 0, 2 * size, -1) for partition in range(3)]
    answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 0, 1, 3 * size))
    sizes = [len(part.records) for each in answer.responses for part in each.partitions]
    assert sizes == [2 * size, size, 0]


def test_a_fetch_waits_until_there_is_enough(kafka_broker, raw, made):
    """It is answered by the commit that brings min_bytes, not by those before it."""
    raw.produce(made, record_set([b"first"]))
    size = len(record_set([b"x"]))
    with RawKafka.from_url(kafka_broker.kafka_url) as waiting:
        asked = (made, 0, 1, 1 << 20, -1)
        waiting.send(FetchRequest, 11, **fetch_fields([asked], 60_000, 3 * size, 1 << 20))
        for _ in range(3):
            raw.produce(made, record_set([b"x"]))
        _, answer = waiting.receive(FetchRequest, 11)
    found = records_of(answer.responses[0].partitions[0].records)
    assert [offset for offset, _ in found] == [1, 2, 3]


def test_a_fetch_that_finds_too_little_is_answered_when_its_time_is_over(raw, made):
    """With what there is."""
    raw.produce(made, record_set([b"a"]))
    part = raw.fetch(made, 0, max_wait_ms=50, min_bytes=1 << 20)
    assert records_of(part.records) == [(0, b"a")]


def test_a_client_that_leaves_while_it_waits_leaves_nothing(kafka_broker, raw, made):
    """Its partitions forget the fetch."""
    raw.produce(made, record_set([b"a"]))
    partition = kafka_broker.broker.kafka.partitions.get(made, 0)
    with RawKafka.from_url(kafka_broker.kafka_url) as waiting:
        asked = (made, 0, 1, 1 << 20, -1)
        waiting.send(FetchRequest, 11, **fetch_fields([asked], 60_000, 1, 1 << 20))
        wait_until(lambda: len(partition.waiting) == 1)
    wait_until(lambda: not partition.waiting)


def wait_until(condition):
    """Until it holds."""
    import time

    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s, "the condition did not hold within 30 s"
        time.sleep(0.002)


def test_unknown_partitions_have_an_error_beside_those_that_are_known(raw, made):
    """Code 3, and the other partition's records."""
    raw.produce(made, record_set([b"a"]))
    asked = [(made, 0, 0, 1000, -1), (made, 5, 0, 1000, -1), ("none", 0, 0, 1000, -1)]
    answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 60_000, 1, 1 << 20))
    found = {
        (each.topic, part.partition_index): part.error_code
        for each in answer.responses
        for part in each.partitions
    }
    assert found == {(made, 0): 0, (made, 5): 3, ("none", 0): 3}


def test_a_reader_of_committed_records_gets_a_list_of_aborted_ones(raw, made):
    """It is empty, and null for readers of all records."""
    fields = fetch_fields([(made, 0, 0, 1 << 20, -1)], 0, 1, 1 << 20)
    for level, aborted in ((0, None), (1, [])):
        answer = raw.call(FetchRequest, 4, **fields | {"isolation_level": level})
        assert answer.responses[0].partitions[0].aborted_transactions == aborted


def test_a_client_with_a_stale_leader_epoch_gets_an_error(kafka_broker, raw, made):
    """An older one is fenced, one that has not begun is unknown; -1 makes no claim."""
    raw.produce(made, record_set([b"a"]))
    ledger_of(kafka_broker, made).begin_epoch(4).commit.wait(30)
    codes = [raw.fetch(made, 0, leader_epoch=epoch).error_code for epoch in (3, 4, 5, -1)]
    assert codes == [74, 0, 75, 0]


def test_reading_on_costs_no_search(kafka_broker, raw, made, monkeypatch):
    """The place after what was read is remembered; only the first offset is searched."""
    for number in range(10):
        raw.produce(made, record_set([b"%d" % number]))
    partition = kafka_broker.broker.kafka.partitions.get(made, 0)
    searched: list[int] = []
    find = partition.find

    def counted(offset):
        searched.append(offset)
        return find(offset)

    monkeypatch.setattr(partition, "find", counted)
    offset, values = 2, []
    while offset < 10:
        found = records_of(raw.fetch(made, offset, max_bytes=200).records)
        values += [value for _, value in found]
        offset = found[-1][0] + 1
    assert values == [b"%d" % number for number in range(2, 10)]
    assert searched == [2]


def test_a_fetch_that_takes_long_answers_what_it_has(raw, made, monkeypatch):
    """One batch at least, and no error; the next fetch goes on there."""
    for number in range(5):
        raw.produce(made, record_set([b"%d" % number]))
    monkeypatch.setattr(reading, "STORED_READ_S", -1.0)
    monkeypatch.setattr(reading, "PIECE_STEPS", 1)
    part = raw.fetch(made, 0, max_wait_ms=60_000, min_bytes=1 << 20)
    assert (part.error_code, records_of(part.records)) == (0, [(0, b"0")])
    assert records_of(raw.fetch(made, 1).records) == [(1, b"1")]


def test_a_failure_of_our_own_is_answered_and_logged(kafka_broker, raw, made, monkeypatch, caplog):
    """Also for a fetch that waits, and for one set among others: nothing hangs."""
    kafka = kafka_broker.broker.kafka
    raw.produce(made, record_set([b"a"]))
    partition = kafka.partitions.get(made, 0)

    def failing(*_, **__):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(partition, "read", failing)
        assert raw.fetch(made, 0, max_wait_ms=60_000).error_code == -1
        patched.setattr(partition.ledger, "append", failing)
        assert raw.produce(made, record_set([b"b"])).error_code == -1
    assert kafka.services.budget.bytes_in_flight == 0
    assert raw.produce(made, record_set([b"b"])).base_offset == 1
    assert len([each for each in caplog.records if each.exc_info]) == 2


def test_a_log_of_mixed_formats_is_readable_by_every_client(raw, topic):
    """Each entry is converted by its own format, whatever the topic's format is by now."""
    from kafka.protocol.admin import AlterConfigsRequest

    create(raw, topic, message_format_version="0.9.0")
    raw.produce(topic, record_set([b"zero"], magic=0), version=2)
    for version, value in (("0.10.0", b"one"), ("2.8", b"two"), ("0.9.0", b"back")):
        config = AlterConfigsRequest.AlterConfigsResource.AlterableConfig(
            name="message.format.version", value=version
        )
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[config]
        )
        altered = raw.call(AlterConfigsRequest, 0, resources=[resource], validate_only=False)
        assert altered.responses[0].error_code == 0
        assert raw.produce(topic, record_set([value])).error_code == 0
    stored = [raw.fetch(topic, n, max_bytes=1).records[16] for n in range(4)]
    assert stored == [0, 1, 2, 0]
    for fetch_version in (1, 3, 11):
        got = []
        for offset in range(4):
            part = raw.fetch(topic, offset, version=fetch_version)
            got += [found for found in records_of(part.records) if found[0] == offset]
        assert got == [(0, b"zero"), (1, b"one"), (2, b"two"), (3, b"back")]


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("max_wait_ms", [0, 60_000])
def test_a_large_set_is_converted_in_a_thread(
    kafka_broker, raw, made, monkeypatch, codec, max_wait_ms
):
    """The event loop, and so every other client, does not wait for it."""
    on_loop = []

    def spied(*args):
        on_loop.append(is_on_loop())
        return convert(*args)

    convert = vars(reading)["fetch"]
    values = [b"%d" % number for number in range(3_000)]
    for _ in range(2):
        assert raw.produce(made, record_set(values, codec=codec)).error_code == 0
    monkeypatch.setattr(reading, "fetch", spied)
    offset, found = 0, []
    while offset < 2 * len(values):
        part = raw.fetch(made, offset, version=3, max_wait_ms=max_wait_ms)
        found += records_of(part.records)
        offset = found[-1][0] + 1
    assert found == [(at, values[at % len(values)]) for at in range(2 * len(values))]
    assert on_loop
    assert not any(on_loop)


@pytest.fixture
def reads(monkeypatch):
    """The partitions that are read, in order."""
    indexes = []
    read = KafkaPartition.read

    def spied(self, offset, max_bytes):
        indexes.append(self.index)
        return read(self, offset, max_bytes)

    monkeypatch.setattr(KafkaPartition, "read", spied)
    return indexes


def filled(raw, topic):
    """Fill 20 partitions with a record set each; the size of one."""
    create(raw, topic, partitions=20)
    for partition in range(20):
        raw.produce(topic, record_set([b"v" * 1000]), partition=partition)
    return len(record_set([b"v" * 1000]))


def test_a_fetch_whose_time_is_over_reads_no_more_partitions(raw, topic, reads, monkeypatch):
    """Also if what it reads is too large for the rest of the answer."""
    size = filled(raw, topic)
    clock = SimpleNamespace(monotonic=lambda: 0.6 * reading.STORED_READ_S * len(reads))
    monkeypatch.setattr(reading, "time", clock)
    asked = [(topic, partition, 0, 1 << 20, -1) for partition in range(20)]
    answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 0, 1, size + 100))
    sizes = [len(part.records) for each in answer.responses for part in each.partitions]
    assert sizes == [size] + [0] * 19
    assert reads == [0, 1]


def test_a_full_answer_reads_one_partition_in_vain_at_most(raw, topic, reads):
    """And partitions without new entries are not read at all."""
    size = filled(raw, topic)
    asked = [(topic, partition, partition % 2, 1 << 20, -1) for partition in range(20)]
    answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 0, 1, 2 * size + 100))
    parts = [part for each in answer.responses for part in each.partitions]
    assert [len(part.records) for part in parts] == [size, 0, size] + [0] * 17
    assert [(part.error_code, part.high_watermark) for part in parts] == [(0, 1)] * 20
    assert reads == [0, 2, 4]


def test_leader_epochs_of_entries_are_known_without_reading_their_marks(
    kafka_broker, raw, made, monkeypatch
):
    """Each fetched set has the epoch in which it was stored."""
    stored = []
    for epoch in (0, 4, 7):
        if epoch:
            ledger_of(kafka_broker, made).begin_epoch(epoch).commit.wait(30)
        stored.append(raw.produce(made, record_set([b"%d" % epoch])).base_offset)
    monkeypatch.setattr(TopicLog, "epochs", None)
    for epoch, offset in zip((0, 4, 7), stored, strict=True):
        batch = raw.fetch(made, offset, max_bytes=1).records
        assert int.from_bytes(batch[12:16], "big") == epoch


def test_a_topic_that_is_named_twice_gets_its_own_records(raw, topic):
    """The answer has each topic once; the records stay with their partitions."""
    other = f"{topic}-other"
    for name in (topic, other):
        create(raw, name, partitions=2)
        for partition in range(2):
            value = f"{name} {partition}".encode()
            raw.produce(name, record_set([value]), partition=partition)
    order = [(topic, 0), (other, 0), (topic, 1), (other, 1)]
    asked = [(*at, 0, 1 << 20, -1) for at in order]
    answer = raw.call(FetchRequest, 11, **fetch_fields(asked, 0, 1, 1 << 20))
    found = {
        (each.topic, part.partition_index): records_of(part.records)
        for each in answer.responses
        for part in each.partitions
    }
    assert found == {(name, part): [(0, f"{name} {part}".encode())] for name, part in order}


def test_the_memory_of_unread_answers_counts_whole_reads(kafka_broker, raw, made):
    """Entries of one read are views on the same bytes, which are kept until the last is sent."""
    count = 60
    for _ in range(count):
        raw.produce(made, record_set([b"v" * 100_000]))
    kafka = kafka_broker.broker.kafka
    known = set(kafka.sessions)
    with RawKafka.from_url(kafka_broker.kafka_url) as unread:
        asked = (made, 0, 0, 1 << 24, -1)
        unread.send(FetchRequest, 11, **fetch_fields([asked], 0, 1, 1 << 24))
        until_s = time.monotonic() + 60
        beyond_bytes = 0
        while not beyond_bytes and time.monotonic() < until_s:
            time.sleep(0.02)
            for each in set(kafka.sessions) - known:
                beyond_bytes = each.held_output_bytes() - each.unsent_bytes()
    assert beyond_bytes >= 10 * 100_000
