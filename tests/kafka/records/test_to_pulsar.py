"""Kafka's records as Pulsar's messages."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.kafka.records import Record, UnconvertibleEntryError, read, read_pulsar, to_pulsar
from pulsemark.metadata import payload_of, read_message_metadata, verify_checksum
from pulsemark.proto.pulsar_api_pb2 import SingleMessageMetadata

from .conftest import CELLS, ROWS, build_set, stored

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
    """A stored set of any magic and codec becomes messages with its keys and values."""
    body = stored(build_set(magic, codec), magic).body
    records = read_pulsar(to_pulsar(read(body), len(ROWS), **OPTIONS), len(ROWS))
    assert [(r.offset, r.key, r.value) for r in records] == [
        (n, row.key, row.value) for n, row in enumerate(ROWS)
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
        flag = 0x20 if value is None else 0
        records.append(Record(offset, time_ms, key, value, headers, flag))
    count = max(1, offset + 2)
    assert read_pulsar(to_pulsar(records, count, **OPTIONS), count) == records
