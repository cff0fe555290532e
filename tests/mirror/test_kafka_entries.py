"""Record sets of Kafka's clients go through a mirror as they are stored: bytes, holes, offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from pulsemark.broker import BrokerThread
from pulsemark.broker.kafka.partitions import read_sequences
from pulsemark.client import RawReader, Service
from pulsemark.client.raw_reader import PERMITS
from pulsemark.compaction.cleaner import CleanerRules, clean, freeable
from pulsemark.compaction.current_view import claim_kept
from pulsemark.kafka.records import EntryRules, Produced, Work, keep, validate_produced
from pulsemark.ledger import LocalStore, ManagedLedger
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain, peek
from pulsemark.metadata.source_stamp import RecordSetTags, SourceStamp, record_set_tags_of
from pulsemark.mirror import KafkaEntryError, Options, TargetRefusedError, compare
from pulsemark.mirror.broker_target import BrokerTarget
from pulsemark.mirror.entries import SourceEntry
from pulsemark.proto.broker_entry_pb2 import BrokerEntryMetadata
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka
from pulsemark.testing.raw_messages import unbatched_message

from .conftest import CLUSTER, TOPIC, Mirror, batch, bodies_of, entries_of
from .test_pulsar_target import like_pulsar  # noqa: F401

CELLS = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
KAFKA_TOPIC = f"{TOPIC}-partition-0"
COUNT = 4


def record_set(magic: int, codec: int = 0, producer: tuple[int, int, int] | None = None) -> bytes:
    """Records `v0` to `v3`, the last one without a value."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    if producer is not None:
        builder.set_producer_state(*producer, False)
    for number in range(COUNT):
        value = None if number == COUNT - 1 else b"v%d" % number
        builder.append(timestamp=1_000 + number, key=b"k%d" % number, value=value)
    builder.close()
    return bytes(builder.buffer())


def produced(magic: int, codec: int = 0, producer: tuple[int, int, int] | None = None) -> Produced:
    """The set as it is stored."""
    version = 3 if magic == 2 else 2
    made = validate_produced(record_set(magic, codec, producer), version, EntryRules(magic=magic))
    assert made is not None
    return made


def tags_of(made: Produced) -> RecordSetTags:
    """The tags with which the endpoint stores it."""
    return RecordSetTags(
        made.message_count,
        made.source_format,
        has_keys=made.has_keys,
        raw_size_bytes=made.raw_size_bytes,
    )


def store(folder: Path, sets: list[tuple[bytes, RecordSetTags | None, int]], topic: str) -> None:
    """Append entries as the endpoint, or compaction, stores them."""
    with LocalStore.open(folder) as opened:
        ledger = opened.open_topic(topic)
        ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        for body, tags, count in sets:
            base = BrokerEntryMetadata()
            if tags is not None:
                tags.write(base)
            ledger.append(body, message_count=count, base=base).commit.wait()


def every_cell() -> list[tuple[bytes, RecordSetTags | None, int]]:
    """A Pulsar batch, and each cell whole and with holes: the first and third record are gone."""
    pulsar, count = batch(b"a", b"b")
    found: list[tuple[bytes, RecordSetTags | None, int]] = [(pulsar, None, count)]
    for magic, codec in CELLS:
        made = produced(magic, codec)
        holes = keep(made.body, {1, 3}, Work())
        found += [(body, tags_of(made), COUNT) for body in (made.body, holes)]
    return found


def facts_of(folder: Path, topic: str) -> list[tuple[bytes, int, int, RecordSetTags | None]]:
    """Of each entry: the bytes, the first index, how many indexes, the tags."""
    return [
        (
            bytes(entry.body),
            entry.first_index,
            entry.message_count,
            record_set_tags_of(peek(entry.prefix)),
        )
        for entry in entries_of(folder, topic)
    ]


def seen_by_kafka(
    broker: BrokerThread, topic: str = "orders", first: int = 0
) -> list[tuple[int, bytes | None]]:
    """Offset and value of all records of a topic, as a client of magic 2 gets them."""
    with RawKafka.from_url(broker.kafka_url) as raw:
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        raw.call(MetadataRequest, 1, topics=[wanted])
        found: list[tuple[int, bytes | None]] = []
        while True:  # a broker under load answers with what it has converted by then
            after = found[-1][0] + 1 if found else first
            answer = raw.fetch(topic, after, version=4)
            assert answer.error_code == 0
            batches, before = MemoryRecords(bytes(answer.records)), len(found)
            while (one := batches.next_batch()) is not None:
                records = [(record.offset, record.value) for record in one]
                found += [each for each in records if not before or each[0] >= after]
            if len(found) == before or found[-1][0] + 1 >= answer.high_watermark:
                return found


def test_folder_to_folder_keeps_bytes_counts_and_tags(mirror: Mirror, tmp_path: Path):
    """Every magic, plain and compressed, whole and compacted: nothing is opened or renumbered."""
    source, target = tmp_path / "source", tmp_path / "target"
    store(source, every_cell(), TOPIC)
    report = mirror(source, target).report
    assert facts_of(target, TOPIC) == facts_of(source, TOPIC)
    assert report.sum().entries == 1 + 2 * len(CELLS)
    assert report.sum().messages == 2 + 2 * COUNT * len(CELLS)
    assert mirror(source, target).entries == 0
    assert compare(str(source), str(target), TOPIC, Options(source_cluster=CLUSTER)).is_equal


def clean_up(topic: ManagedLedger) -> None:
    """Compact a log as Kafka's cleaner does, and free what the view replaces."""
    clean(topic, CleanerRules(free_after_ms=0), 1 << 41)
    with claim_kept(topic) as claim:
        cut = freeable(topic, CleanerRules(free_after_ms=0), 1 << 41, claim)
        assert cut is not None
        topic.truncate_head(cut)


def test_a_compacted_log_of_a_folder_has_holes_and_no_gaps(mirror: Mirror, tmp_path: Path):
    """What compaction has left goes over, from the view and from the log; what it removes later
    is no loss either.
    """
    source, target = tmp_path / "source", tmp_path / "target"

    def add(*keys: str, cleans: bool = True) -> None:
        with LocalStore.open(source) as store:
            topic = store.open_topic(TOPIC)
            topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
            for key in keys:
                topic.append(unbatched_message(b"v", publish_time_ms=1, key=key)).commit.wait()
            if cleans:
                clean_up(topic)

    add("a", "b", "a", "c", "a", "d")
    run = mirror(source, target)
    assert (run.entries, run.report.sum().gaps) == (5 - 1, 0)
    assert compare(str(source), str(target), TOPIC, Options(source_cluster=CLUSTER)).is_equal
    add("e", "b", "f", cleans=False)
    assert mirror(source, target).entries == 3
    add("e", "b", "g", "h")
    run = mirror(source, target)
    assert (run.entries, run.report.sum().gaps) == (4, 0)


@pytest.mark.parametrize("shows_stamps", [False, True])
def test_a_compacted_log_of_a_broker_has_holes_and_no_gaps(
    mirror: Mirror, tmp_path: Path, shows_stamps: bool
):
    """The broker tells the mirror that the log is compacted, with and without its stamps."""
    folder, target = tmp_path / "source", tmp_path / "target"
    with LocalStore.open(folder) as opened:
        topic = opened.open_topic(TOPIC)
        topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        for key in ("a", "b", "a", "c", "a", "d"):
            topic.append(unbatched_message(b"v", publish_time_ms=1, key=key)).commit.wait()
        made = produced(2)
        base = BrokerEntryMetadata()
        tags_of(made).write(base)
        topic.append(made.body, message_count=COUNT, base=base).commit.wait()
        clean_up(topic)
        policy = b'{"kafka": {"cleanup.policy": "compact"}}'
        opened.catalog.put("topic-policy", TOPIC, policy)
    shown = {"exposing_broker_entry_metadata_to_client_enabled": shows_stamps}
    with running_broker(data_dir=folder, kafka_port=0, **shown) as source:
        run = mirror(source.service_url, target)
    assert (run.entries, run.report.sum().gaps) == (4 + 1, 0)
    assert facts_of(target, TOPIC)[-1][0] == made.body


@pytest.mark.parametrize("shows_stamps", [False, True])
def test_broker_to_broker_keeps_offsets_for_kafka_clients(
    mirror: Mirror, tmp_path: Path, shows_stamps: bool
):
    """A consumer of the copy sees the same records at the same offsets, with the same holes."""
    folder = tmp_path / "source"
    store(folder, every_cell(), TOPIC)
    shown = {"exposing_broker_entry_metadata_to_client_enabled": shows_stamps}
    with (
        running_broker(data_dir=folder, kafka_port=0, **shown) as source,
        running_broker(mirror_sources=(CLUSTER,), kafka_port=0) as target,
    ):
        assert mirror(source.service_url, target.service_url).entries == 1 + 2 * len(CELLS)
        assert mirror(source.service_url, target.service_url).entries == 0
        seen = seen_by_kafka(target)
        assert seen == seen_by_kafka(source)
        assert [offset for offset, _ in seen][:8] == [0, 1, 2, 3, 4, 5, 7, 9]
        options = Options(source_cluster=CLUSTER)
        assert compare(source.service_url, target.service_url, TOPIC, options).is_equal
        assert facts_of(target.data_dir, TOPIC) == facts_of(folder, TOPIC)


def test_a_reader_counts_the_messages_of_sets(tmp_path: Path):
    """A set of a Kafka client has as many messages as its stamp says: they are its permits."""
    made = produced(2)
    tags = replace(tags_of(made), message_count=PERMITS)
    store(tmp_path, [(made.body, tags, PERMITS)] * 3, TOPIC)
    with (
        running_broker(data_dir=tmp_path, kafka_port=0) as broker,
        Service(broker.service_url) as service,
        RawReader(service, TOPIC, timeout_s=3) as reader,
    ):
        found = [(entry.body, entry.message_count) for entry in reader.entries()]
    assert found == [(made.body, PERMITS)] * 3


def test_the_offsets_inside_are_those_of_the_source_only_there(mirror: Mirror, tmp_path: Path):
    """A compressed set of magic 0 has the source's offsets in it: there it is sent as it is stored,
    in a copy at other offsets it is numbered anew, and clients of both see right ones.
    """
    source, target = tmp_path / "source", tmp_path / "target"
    made = validate_produced(record_set(0, 1), 0, EntryRules(magic=0, base_offset=COUNT))
    assert made is not None
    tags = tags_of(made)
    with LocalStore.open(source) as opened:
        ledger = opened.open_topic(TOPIC)
        ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        for inside in (None, COUNT):
            base = BrokerEntryMetadata(inner_base_offset=inside)
            tags.write(base)
            last = ledger.append(made.body, message_count=COUNT, base=base)
            last.commit.wait()
        ledger.truncate_head(last.position)
    mirror(source, target)
    assert facts_of(target, TOPIC) == [(made.body, 0, COUNT, tags)]
    for folder, first, converted in ((source, COUNT, 0), (target, 0, 1)):
        with running_broker(data_dir=folder, kafka_port=0) as broker:
            seen = seen_by_kafka(broker, first=first)
            assert seen[:COUNT] == [
                (first + n, None if n == COUNT - 1 else b"v%d" % n) for n in range(COUNT)
            ]
            endpoint = broker.broker.kafka
            assert endpoint is not None
            figures = endpoint.figures
            assert figures.compressions == figures.sets_converted == converted


def test_a_producers_number_of_the_source_means_nothing_in_the_target(
    mirror: Mirror, tmp_path: Path
):
    """The target may give the same id to a producer of its own, whose numbers begin with 0."""
    source, target = tmp_path / "source", tmp_path / "target"
    made = produced(2, producer=(7, 0, 40))
    store(source, [(made.body, tags_of(made), COUNT)], TOPIC)
    mirror(source, target)
    for folder, known in ((source, 1), (target, 0)):
        with LocalStore.open(folder) as opened:
            sequences = read_sequences(opened.open_topic(TOPIC), 10)
            assert len(sequences) == known


def test_apache_pulsar_gets_no_record_set(
    mirror: Mirror,
    tmp_path: Path,
    target: BrokerThread,
    like_pulsar: Callable[[Any], None],  # noqa: F811
):
    """Its clients could not read one. What is before it is copied, and the entry is named."""
    like_pulsar(lambda last: last)
    pulsar, count = batch(b"a", b"b")
    made = produced(2)
    store(tmp_path / "a", [(pulsar, None, count), (made.body, tags_of(made), COUNT)], TOPIC)
    with pytest.raises(KafkaEntryError, match="Apache Pulsar broker cannot serve it"):
        mirror(tmp_path / "a", target.service_url)
    assert bodies_of(target.data_dir) == [pulsar]


def damaged(made: Produced) -> Iterator[tuple[str, bytes, RecordSetTags, int]]:
    """Sets that a mirror must not bring: the refusal's text, the bytes, the tags, num_messages."""
    tags, body = tags_of(made), made.body
    yield "CRC", body[:-1] + bytes([body[-1] ^ 1]), tags, COUNT
    yield "bytes", body[:-1], tags, COUNT
    yield "num_messages", body, tags, COUNT + 1
    yield "set of 2 messages", body, RecordSetTags(2, tags.source_format), 2
    yield "source_format", body, RecordSetTags(COUNT, tags.source_format % 3 + 1), COUNT


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_broker_checks_what_a_mirror_sends(target: BrokerThread, magic: int):
    """Bytes that are not what the tags say are refused, and nothing of them is stored."""
    made = produced(magic, codec=1)
    for number, (text, body, tags, count) in enumerate(damaged(made)):
        topic = f"{TOPIC}-{number}"
        with pytest.raises(TargetRefusedError, match=text):
            send(target, topic, SourceEntry(SourceStamp(CLUSTER, 1, 1, 9, 9, tags), count, body))
        assert not target.broker.services.topics.open_topics[topic].ledger.next_index
    untagged = SourceEntry(SourceStamp(CLUSTER, 1, 1), COUNT, made.body)
    with pytest.raises(TargetRefusedError, match="source_format"):
        send(target, TOPIC, untagged)


def send(broker: BrokerThread, topic: str, entry: SourceEntry) -> None:
    """Send one entry as a mirror, and wait for its receipt. Raises TargetRefusedError."""
    target = BrokerTarget(broker.service_url, Options(source_cluster=CLUSTER))
    deadline_s = time.monotonic() + 60
    try:
        opened = target.open(topic)
        opened.put(entry)
        while not opened.stored():
            assert time.monotonic() < deadline_s, "no answer within 60 s"
            time.sleep(0.01)
    finally:
        target.close()
