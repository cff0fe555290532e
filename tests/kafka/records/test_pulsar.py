"""Pulsar's messages as Kafka's records."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.kafka.records import (
    Record,
    UnconvertibleEntryError,
    pulsar_set,
    read,
    read_pulsar,
    to_pulsar,
)
from pulsemark.kafka.records.pulsar import add_properties, headers_of
from pulsemark.metadata import payload_of, read_message_metadata, verify_checksum
from pulsemark.metadata.compression import compress
from pulsemark.proto.pulsar_api_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata

from .conftest import CELLS, ROWS, build_set, seen_by_aiokafka, seen_by_kafka_python, stored

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


def test_an_empty_message_with_a_key_is_a_tombstone():
    """As for compaction, alone and in a batch; without a key it is an empty value."""
    keyed, plain = entry(b"", partition_key="k"), entry(b"")
    assert [read_pulsar(body, 1)[0].value for body in (keyed, plain)] == [None, b""]
    assert [read_pulsar(body, 1)[0].flagged for body in (keyed, plain)] == [True, False]


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
        Record(2, 6, b"\xff\xfe", b"w"),
        Record(3, 7, None, None, (), 0x20),
    ]
    body = to_pulsar(records, 5, publish_time_ms=9, producer_name="kafka", max_bytes=1 << 20)
    assert read_pulsar(body, 5) == records


def test_base64_of_other_clients() -> None:
    """A key that is not valid base64 in spite of its flag is taken as it is."""
    key = base64.b64encode(b"\x00\xff").decode()
    body = entry(partition_key=key, partition_key_b64_encoded=True)
    assert read_pulsar(body, 1)[0].key == b"\x00\xff"


# -- Headers as properties: every header comes back as it was, text stays readable


VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b"null:", b"base64:", b"base64:AA==", b"base64:?", b"null:x", b"\xff"]),
)
HEADERS = st.lists(st.tuples(st.text(max_size=10).map(str.encode), VALUES), max_size=6).map(tuple)


@given(HEADERS)
def test_headers_come_back(headers: tuple[tuple[bytes, bytes | None], ...]) -> None:
    """Order, repeated names, binary and null values survive, over the wire too."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    add_properties(metadata.properties, headers)
    again = MessageMetadata.FromString(metadata.SerializeToString())
    assert headers_of(again.properties) == headers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"plain", "plain"),
        ("grüße".encode(), "grüße"),
        (b"", ""),
        (None, "null:"),
        (b"\x00\x01\x02\x03", "\x00\x01\x02\x03"),
        (b"\xff\xfe", "base64://4="),
        (b"null:", "base64:bnVsbDo="),
        (b"base64:AA==", "base64:YmFzZTY0OkFBPT0="),
    ],
)
def test_what_a_pulsar_client_sees(value: bytes | None, expected: str) -> None:
    """Text is itself; only what is not text, or looks like an escape, is escaped."""
    metadata = MessageMetadata()
    add_properties(metadata.properties, ((b"name", value),))
    assert [(p.key, p.value) for p in metadata.properties] == [("name", expected)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", b"text"),
        ("base64:AAEC", b"\x00\x01\x02"),
        ("base64:not base64", b"base64:not base64"),
        ("null:", None),
        ("null: is text", b"null: is text"),
    ],
)
def test_what_a_pulsar_producer_sends(value: str, expected: bytes | None) -> None:
    """A Pulsar producer can send binary and null headers; what only begins so is text."""
    metadata = MessageMetadata()
    metadata.properties.add(key="name", value=value)
    assert headers_of(metadata.properties) == ((b"name", expected),)


def test_names_that_are_no_text() -> None:
    """A header's name that is not UTF-8 shows its wrong bytes."""
    metadata = MessageMetadata()
    add_properties(metadata.properties, ((b"a\xff", b"v"),))
    assert metadata.properties[0].key == "a\\xff"


# -- Kafka's records as Pulsar's messages


OPTIONS: dict[str, Any] = {
    "publish_time_ms": 1_700_000_000_000, "producer_name": "kafka", "max_bytes": 1 << 20
}  # fmt: skip
BYTES = st.one_of(st.none(), st.binary(max_size=12))
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 2**62),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=4).map(str.encode), BYTES), max_size=3).map(tuple),
    ),
    max_size=8,
)


def test_one_record_is_one_message() -> None:
    """An entry that counts one record is an ordinary message, with a checksum that holds."""
    record = Record(0, 77, b"key", b"value", ((b"name", b"text"),))
    body = to_pulsar([record], 1, sequence_id=5, **OPTIONS)
    assert verify_checksum(body)
    metadata = read_message_metadata(body)
    assert not metadata.HasField("num_messages_in_batch")
    assert (metadata.producer_name, metadata.sequence_id) == ("kafka", 5)
    assert (metadata.publish_time, metadata.event_time) == (1_700_000_000_000, 77)
    assert metadata.partition_key == "key"
    assert [(p.key, p.value) for p in metadata.properties] == [("name", "text")]
    assert bytes(payload_of(body)) == b"value"


def test_several_records_are_a_batch_with_holes() -> None:
    """Batch index = offset - base: what is missing is compacted out, at both ends too."""
    body = to_pulsar([Record(1, 5, b"k", b"v"), Record(3, -1, b"\xff", None)], 5, **OPTIONS)
    assert verify_checksum(body)
    metadata = read_message_metadata(body)
    assert metadata.num_messages_in_batch == 5
    members, at, payload = [], 0, bytes(payload_of(body))
    while at < len(payload):
        (size,) = struct.unpack_from(">I", payload, at)
        members.append(SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size]))
        at += 4 + size + members[-1].payload_size
    assert [single.compacted_out for single in members] == [True, False, True, False, True]
    assert (members[1].partition_key, members[1].event_time) == ("k", 5)
    assert (members[3].partition_key, members[3].partition_key_b64_encoded) == ("/w==", True)
    assert members[3].null_value
    assert not members[3].HasField("event_time")


def test_tombstones_with_a_value() -> None:
    """They keep their value if the policy names a property for them, else it is null."""
    flagged = Record(0, 1, b"k", b"why", (), 0x20)
    plain = read_message_metadata(to_pulsar([flagged], 1, **OPTIONS))
    assert plain.null_value
    body = to_pulsar([flagged], 1, tombstone_property="gone", **OPTIONS)
    named = read_message_metadata(body)
    assert not named.null_value
    assert [(p.key, p.value) for p in named.properties] == [("gone", "true")]
    (again,) = read_pulsar(body, 1, tombstone_property="gone")
    assert (again.value, again.flagged) == (b"why", True)


@pytest.mark.parametrize(("magic", "codec"), CELLS)
def test_stored_sets_of_every_cell(magic: int, codec: int) -> None:
    """A stored set of any magic and codec becomes messages with its keys and values.

    Pulsar cannot tell an empty value with a key from a tombstone.
    """
    body = stored(build_set(magic, codec), magic).body
    records = read_pulsar(to_pulsar(read(body), len(ROWS), **OPTIONS), len(ROWS))
    assert [(r.offset, r.key, r.value) for r in records] == [
        (n, row.key, None if row.key is not None and not row.value else row.value)
        for n, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("count", [1, 2, 10])
def test_too_large_for_consumers(count: int) -> None:
    """What Pulsar's clients would refuse is not made: the error says so, memory is bounded."""
    records = [Record(0, 1, b"k", b"v" * 1000)]
    with pytest.raises(UnconvertibleEntryError, match="more than 999 bytes"):
        to_pulsar(records, count, **OPTIONS | {"max_bytes": 999})


@given(RECORDS)
def test_records_come_back(rows: list[Any]) -> None:
    """Offsets, times, keys, values and headers survive the way to Pulsar and back."""
    records, offset = [], -1
    for step, time_ms, key, value, headers in rows:
        offset += step
        if key is not None and not value:
            value = None  # noqa: PLW2901 - an empty value with a key is a tombstone for Pulsar
        flag = 0x20 if value is None else 0
        records.append(Record(offset, time_ms, key, value, headers, flag))
    count = max(1, offset + 2)
    assert read_pulsar(to_pulsar(records, count, **OPTIONS), count) == records


NUMBERS = {7: 0, 9: 1}
"""Ids of a topic's schemas, and their versions."""


def framed(number: int, value: bytes) -> bytes:
    """A value as Kafka's serializers write it."""
    return struct.pack(">BI", 0, number) + value


@given(
    values=st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=5),
    number=st.sampled_from([7, 9]),
)
def test_a_registered_schema_is_the_entrys_version_and_comes_back(
    values: list[bytes | None], number: int
) -> None:
    """Pulsar's clients get the version and values without the id, Kafka's get the id again."""
    sent = [None if value is None else framed(number, value) for value in values]
    records = [Record(place, 1, None, value) for place, value in enumerate(sent)]
    made = to_pulsar(
        records, len(sent), publish_time_ms=1, producer_name="p", schema_numbers=NUMBERS,
        max_bytes=10_000,
    )  # fmt: skip
    has_values = any(value is not None for value in values)
    version = struct.pack(">Q", NUMBERS[number]) if has_values else b""
    assert read_message_metadata(made).schema_version == version
    plain = [record.value for record in read_pulsar(made, len(sent))]
    assert plain == [None if value is None else value for value in values]
    back = read_pulsar(made, len(sent), schema_numbers=NUMBERS)
    assert [record.value for record in back] == sent


@pytest.mark.parametrize(
    "values",
    [
        (framed(7, b"a"), framed(9, b"b")),
        (framed(8, b"a"),),
        (framed(7, b"a"), b"plain"),
        (b"\0\0\0",),
        (b"\1" + framed(7, b"a")[1:],),
        (None,),
    ],
    ids=["several", "unknown", "some", "short", "other", "none"],
)
def test_values_without_one_registered_schema_stay(values: tuple[bytes | None, ...]) -> None:
    """And the entry has no version."""
    records = [Record(place, 1, None, value) for place, value in enumerate(values)]
    made = to_pulsar(
        records, len(values), publish_time_ms=1, producer_name="p", schema_numbers=NUMBERS,
        max_bytes=10_000,
    )  # fmt: skip
    assert not read_message_metadata(made).HasField("schema_version")
    assert tuple(record.value for record in read_pulsar(made, len(values))) == values


def test_a_version_without_an_id_is_no_framing() -> None:
    """Nor is one of another size, or any without a registry."""
    for version, numbers in ((2, NUMBERS), (0, {}), (0, None)):
        body = entry(schema_version=struct.pack(">Q", version))
        assert read_pulsar(body, 1, schema_numbers=numbers)[0].value == b"value"
    assert read_pulsar(entry(schema_version=b"\0"), 1, schema_numbers=NUMBERS)[0].value == b"value"
