"""Compaction of entries in Kafka's format, alone and beside Pulsar's messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pulsemark.compaction.compaction import DEFAULT_LIMITS, compact
from pulsemark.compaction.current_view import compacted_log
from pulsemark.kafka.records import (
    TOMBSTONE_FLAG,
    Codec,
    EntryRules,
    Record,
    StoredSet,
    Work,
    fetch,
    read,
    validate_produced,
)
from pulsemark.kafka.records import batch as batches
from pulsemark.kafka.records.convert import to_legacy
from pulsemark.ledger import EARLIEST, LocalStore, ManagedLedger
from pulsemark.metadata import (
    BrokerEntryMetadata,
    BrokerTimeStamper,
    IndexStamper,
    MessageMetadata,
    StamperChain,
)
from pulsemark.proto.broker_entry_pb2 import SOURCE_KAFKA_MAGIC_2

Row = tuple[bytes | None, bytes | None, int]
CELLS = [(m, c) for m in (0, 1) for c in (0, 1, 2, 3)] + [(2, c) for c in range(5)]


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[ManagedLedger]:
    """A topic on files."""
    store = LocalStore.open(tmp_path / "data")
    ledger = store.open_topic("persistent://public/default/kafka")
    ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    yield ledger
    store.close()


def publish(topic: ManagedLedger, magic: int, codec: int, rows: list[Row]) -> None:
    """Store a set as a broker does that has checked it."""
    records = [Record(n, 1000 + n, k, v, (), flags) for n, (k, v, flags) in enumerate(rows)]
    if magic == 2:
        sent = batches.build(records, batches.BatchFields(codec=codec), Work())
    else:
        sent = to_legacy(records, magic, codec, Work())
    produced = validate_produced(sent, 7 if magic == 2 else magic + 1, EntryRules(magic=magic))
    assert produced is not None
    base = BrokerEntryMetadata(
        source_format=produced.source_format, message_count=produced.message_count,
        tombstone=produced.tombstone,
    )  # fmt: skip
    appended = topic.append(produced.body, message_count=produced.message_count, base=base)
    appended.commit.wait(20)


def publish_pulsar(topic: ManagedLedger, key: str, payload: bytes) -> None:
    """Store a message of Pulsar's."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1000, partition_key=key
    )
    encoded = metadata.SerializeToString()
    topic.append(len(encoded).to_bytes(4, "big") + encoded + payload).commit.wait(20)


def left(topic: ManagedLedger) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of what is in the compacted form."""
    return [
        (record.offset, record.key, record.value)
        for entry in compacted_log(topic).read(EARLIEST)
        for record in read(entry.body, entry.first_index)
    ]


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_latest_per_key(topic: ManagedLedger, magic: int, codec: int) -> None:
    """Each key's latest record stays at its offset; a null value deletes, a new one revives."""
    publish(topic, magic, codec, [(b"a", b"1", 0), (b"b", b"2", 0), (b"c", b"3", 0)])
    publish(topic, magic, codec, [(b"a", b"4", 0), (b"b", None, 0), (b"d", b"5", 0)])
    publish(topic, magic, codec, [(b"d", None, 0), (b"b", b"6", 0), (b"d", b"7", 0)])
    report = compact(topic)
    assert report.keys == 4
    assert report.tombstones == 2
    assert report.unreadable == 0
    assert left(topic) == [(2, b"c", b"3"), (3, b"a", b"4"), (7, b"b", b"6"), (8, b"d", b"7")]


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_clients_read_the_compacted_sets(topic: ManagedLedger, magic: int, codec: int) -> None:
    """What is left of an entry goes to clients of every magic with its offsets."""
    publish(topic, magic, codec, [(b"a", b"1", 0), (b"b", b"2", 0), (b"a", b"3", 0)])
    publish(topic, magic, codec, [(b"c", b"4", 0), (b"b", None, 0), (b"c", b"5", 0)])
    compact(topic)
    for client in range(3):
        if codec == Codec.ZSTD and client < 2:
            continue
        offsets = []
        for entry in compacted_log(topic).read(EARLIEST):
            data = b"".join(fetch(StoredSet(entry.body, entry.first_index), client).parts)
            base = entry.first_index if data[16] == 2 else 0
            offsets += [record.offset for record in read(data, base)]
        assert offsets == [2, 5]


@pytest.mark.parametrize(("stage", "expected"), [(1, [b"c"]), (2, [b"b", b"c"])])
def test_stages(topic: ManagedLedger, stage: int, expected: list[bytes]) -> None:
    """The flag deletes in both stages, a null value of magic 2 in the first alone."""
    publish(topic, 2, 0, [(b"a", b"1", 0), (b"b", b"2", 0), (b"c", b"3", 0)])
    publish(topic, 2, 0, [(b"a", b"why", TOMBSTONE_FLAG), (b"b", None, 0), (b"c", b"4", 0)])
    compact(topic, limits=replace(DEFAULT_LIMITS, tombstone_stage=stage))
    assert [key for _, key, _ in left(topic)] == expected


@pytest.mark.parametrize(("stage", "expected"), [(1, [b"d"]), (2, [b"b", b"c", b"d"])])
def test_batching_changes_nothing(topic: ManagedLedger, stage: int, expected: list[bytes]) -> None:
    """A null deletes by the stage of the moment, alone in its set or beside other records."""
    for row in ((b"b", b"1", 0), (b"c", b"1", 0)):
        publish(topic, 2, 0, [row])
    publish(topic, 2, 0, [(b"b", None, 0)])
    publish(topic, 2, 0, [(b"c", None, 0), (b"d", b"1", 0)])
    compact(topic, limits=replace(DEFAULT_LIMITS, tombstone_stage=stage))
    assert [key for _, key, _ in left(topic)] == expected


def test_an_empty_value_of_kafkas_is_a_value(topic: ManagedLedger) -> None:
    """It stays, where an empty message of Pulsar's deletes its key."""
    publish(topic, 2, 0, [(b"a", b"", 0)])
    publish_pulsar(topic, "b", b"1")
    publish_pulsar(topic, "b", b"")
    compact(topic)
    assert left(topic) == [(0, b"a", b"")]


@pytest.mark.parametrize("magic", [0, 1])
def test_null_of_old_formats_deletes_in_each_stage(topic: ManagedLedger, magic: int) -> None:
    """In magic 0 and 1 there is no flag: a null value deletes in stage 2 as well."""
    publish(topic, magic, 0, [(b"a", b"1", 0), (b"a", None, 0), (b"b", b"2", 0)])
    compact(topic, limits=replace(DEFAULT_LIMITS, tombstone_stage=2))
    assert left(topic) == [(2, b"b", b"2")]


def test_beside_pulsars_messages(topic: ManagedLedger) -> None:
    """Both protocols' messages of a key are of one key; a binary key too, as Pulsar sends it."""
    publish_pulsar(topic, "a", b"of pulsar")
    publish_pulsar(topic, "/w==", b"of pulsar")
    publish_pulsar(topic, "c", b"of pulsar")
    publish(topic, 2, 0, [(b"a", b"1", 0), (b"\xff", None, 0), (b"d", b"2", 0)])
    publish_pulsar(topic, "d", b"newer")
    report = compact(topic)
    assert report.keys == 3
    entries = compacted_log(topic).read(EARLIEST)
    assert [entry.index for entry in entries] == [2, 5, 6]
    assert [record.key for record in read(entries[1].body)] == [b"a"]


def test_sets_that_stay_whole_are_not_touched(topic: ManagedLedger) -> None:
    """A set all of whose records stay is copied byte by byte."""
    publish(topic, 2, 1, [(b"a", b"1", 0), (b"b", b"2", 0)])
    before = bytes(topic.read(EARLIEST)[0].body)
    report = compact(topic)
    assert report.entries_rewritten == 0
    assert bytes(compacted_log(topic).read(EARLIEST)[0].body) == before


@pytest.mark.parametrize("body", [bytes(10), bytes(100), b"\0\0" + b"junk" * 30], ids=len)
def test_damaged_sets_are_kept_whole(topic: ManagedLedger, body: bytes) -> None:
    """Bytes that claim to be a record set and are not stay, and are counted."""
    publish(topic, 2, 0, [(b"a", b"1", 0)])
    base = BrokerEntryMetadata(source_format=SOURCE_KAFKA_MAGIC_2, message_count=3)
    topic.append(body, message_count=3, base=base).commit.wait(20)
    report = compact(topic)
    assert report.unreadable == 1
    assert bytes(compacted_log(topic).read(EARLIEST)[1].body) == body


def test_a_second_compaction(topic: ManagedLedger) -> None:
    """Sets with holes are compacted again, from the view."""
    publish(topic, 1, 1, [(b"a", b"1", 0), (b"b", b"2", 0), (b"c", b"3", 0)])
    publish(topic, 2, 4, [(b"b", b"4", 0)])
    compact(topic)
    publish(topic, 0, 3, [(b"a", None, 0), (b"d", b"5", 0)])
    compact(topic)
    assert left(topic) == [(2, b"c", b"3"), (3, b"b", b"4"), (5, b"d", b"5")]
