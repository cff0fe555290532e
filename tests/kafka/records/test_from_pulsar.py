"""Pulsar's messages as Kafka's records."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from pulsemark.kafka.records import (
    Record,
    UnconvertibleEntryError,
    pulsar_set,
    read_pulsar,
    to_pulsar,
)
from pulsemark.metadata import MessageMetadata
from pulsemark.metadata.compression import compress
from pulsemark.proto.pulsar_api_pb2 import CompressionType, SingleMessageMetadata

from .conftest import seen_by_aiokafka, seen_by_kafka_python

PUBLISHED_MS = 1_700_000_000_000


def entry(
    payload: bytes = b"value", compression: Any = CompressionType.NONE, **fields: Any
) -> bytes:
    """An entry as a producer sends it, without checksum."""
    properties = fields.pop("properties", {})
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=PUBLISHED_MS, compression=compression,
        uncompressed_size=len(payload), **fields,
    )  # fmt: skip
    for key, value in properties.items():
        metadata.properties.add(key=key, value=value)
    encoded = metadata.SerializeToString()
    return struct.pack(">I", len(encoded)) + encoded + compress(compression, payload)


def member(payload: bytes, **fields: Any) -> bytes:
    """A message of a batch."""
    encoded = SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return struct.pack(">I", len(encoded)) + encoded + payload


def test_a_single_message() -> None:
    """Key, value, event time and properties of a message."""
    body = entry(partition_key="k", event_time=5, properties={"a": "1", "b": "base64:/w=="})
    (record,) = read_pulsar(body, 1)
    assert record == Record(0, 5, b"k", b"value", ((b"a", b"1"), (b"b", b"\xff")))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, None),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": ""}, b""),
        ({"partition_key": "a2V5", "partition_key_b64_encoded": True}, b"key"),
        ({"partition_key": "?", "partition_key_b64_encoded": True}, b"?"),
        ({"partition_key": "k", "ordering_key": b"\xff"}, b"\xff"),
        ({"partition_key": "k", "null_partition_key": True}, None),
    ],
)
def test_keys(fields: dict[str, Any], key: bytes | None) -> None:
    """The ordering key, else the partition key, undone from base64 if that is flagged."""
    assert read_pulsar(entry(**fields), 1)[0].key == key
    batch = entry(member(b"v", **fields), num_messages_in_batch=1)
    assert read_pulsar(batch, 1)[0].key == key


def test_times() -> None:
    """The event time, else the publish time; in a batch each message's own."""
    assert read_pulsar(entry(), 1)[0].time_ms == PUBLISHED_MS
    batch = entry(member(b"a", event_time=7) + member(b"b"), num_messages_in_batch=2)
    assert [record.time_ms for record in read_pulsar(batch, 2)] == [7, PUBLISHED_MS]
    assert read_pulsar(entry(event_time=2**64 - 1), 1)[0].time_ms == 2**63 - 1


@pytest.mark.parametrize(
    "compression",
    [CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY],
)
def test_compressed_batches(compression: int) -> None:
    """Batches are opened whatever their compression; members that are gone are holes."""
    payload = member(b"a" * 100) + member(b"", compacted_out=True) + member(b"c")
    records = read_pulsar(entry(payload, compression, num_messages_in_batch=3), 3)
    assert [(r.offset, r.value) for r in records] == [(0, b"a" * 100), (2, b"c")]


def test_tombstones() -> None:
    """A null value, the policy's property, or the prefix's field set the flag of KIP-87."""
    plain, null = entry(), entry(b"", null_value=True)
    marked = entry(properties={"gone": "true"})
    assert [r.flagged for b in (plain, null, marked) for r in read_pulsar(b, 1)] == [
        False, True, False
    ]  # fmt: skip
    assert read_pulsar(null, 1)[0].value is None
    (record,) = read_pulsar(marked, 1, tombstone_property="gone")
    assert (record.flagged, record.value) == (True, b"value")
    (record,) = read_pulsar(plain, 1, tombstone=True)
    assert (record.flagged, record.value) == (True, b"value")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (entry(num_chunks_from_msg=2, chunk_id=0), "chunk"),
        (entry(marker_type=10), "marker"),
        (entry(encryption_keys=[{"key": "k", "value": b"v"}]), "encrypted"),
        (entry(member(b"a") * 3, num_messages_in_batch=3), "more messages than the 2"),
        (entry(b"", num_messages_in_batch=1), "no metadata"),
        (entry(member(b"abc")[:-1], num_messages_in_batch=1), "cut off"),
        (b"", "cut off"),
        (b"\0\0\0\1\xff", "protobuf"),
        (b"junk that is no message at all", "metadata"),
    ],
)
def test_what_cannot_be_converted(body: bytes, reason: str) -> None:
    """Chunks, markers, encrypted and malformed entries raise the error that says why."""
    with pytest.raises(UnconvertibleEntryError, match=reason):
        read_pulsar(body, 2)


def test_a_bomb_is_not_opened() -> None:
    """A payload that states more than the limit is refused before it is decompressed."""
    body = entry(bytes(100_000), CompressionType.ZSTD)
    with pytest.raises(UnconvertibleEntryError, match="the limit is 99999"):
        read_pulsar(body, 1, max_raw_bytes=99_999)


def test_sets_for_clients_of_each_magic() -> None:
    """Kafka's clients see an entry's messages at base + batch index, as far as formats go."""
    payload = member(b"a", partition_key="k", event_time=9) + member(b"", compacted_out=True)
    payload += member(b"", partition_key="k", null_value=True) + member(b"d")
    records = read_pulsar(entry(payload, num_messages_in_batch=4), 5)
    for client in range(3):
        data = pulsar_set(records, 100, 5, client, leader_epoch=2)
        time_ms = None if client == 0 else PUBLISHED_MS
        assert seen_by_kafka_python(data) == seen_by_aiokafka(data) == [
            (100, None if client == 0 else 9, b"k", b"a", []),
            (102, time_ms, b"k", None, []),
            (103, time_ms, None, b"d", []),
        ]  # fmt: skip
    later = pulsar_set(records, 100, 5, 1, fetch_offset=103)
    assert [row[0] for row in seen_by_kafka_python(later)] == [103]
    assert data[23:27] == (4).to_bytes(4, "big")
    assert data[12:16] == (2).to_bytes(4, "big")


@pytest.mark.parametrize("client", [1, 2])
def test_sets_with_the_brokers_time(client: int) -> None:
    """With LogAppendTime all records have the broker's time and say so."""
    records = read_pulsar(entry(event_time=9), 1)
    data = pulsar_set(records, 0, 1, client, broker_time_ms=1234)
    assert [row[1] for row in seen_by_kafka_python(data)] == [1234]
    assert data[17 if client == 1 else 22] & 0x08


def test_there_and_back() -> None:
    """What was converted to Pulsar's form is read back as the same records."""
    records = [
        Record(0, 5, b"k", b"v", ((b"h", b"\xff"), (b"n", None))),
        Record(2, 6, b"\xff\xfe", b""),
        Record(3, 7, None, None, (), 0x20),
    ]
    body = to_pulsar(records, 5, publish_time_ms=9, producer_name="kafka", max_bytes=1 << 20)
    assert read_pulsar(body, 5) == records


def test_base64_of_other_clients() -> None:
    """A key that is not valid base64 in spite of its flag is taken as it is."""
    key = base64.b64encode(b"\x00\xff").decode()
    body = entry(partition_key=key, partition_key_b64_encoded=True)
    assert read_pulsar(body, 1)[0].key == b"\x00\xff"
