"""Splitting entries into messages."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark import messages_of
from pulsemark.metadata import Message, MessageFormatError
from pulsemark.metadata.compression import DecompressionError, compress
from pulsemark.proto.pulsar_api_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from pulsemark.testing.raw_messages import seal


def header(**fields):
    """A producer's header."""
    made = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_000)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def member(payload, **fields):
    """One message in a batch's payload."""
    own = SingleMessageMetadata(payload_size=len(payload), **fields).SerializeToString()
    return len(own).to_bytes(4, "big") + own + payload


def batch(*members, count=None, compression=CompressionType.NONE):
    """A batch as an entry."""
    payload = b"".join(members)
    made = header(
        num_messages_in_batch=len(members) if count is None else count,
        compression=compression,
        uncompressed_size=len(payload),
    )
    return seal(made.SerializeToString(), compress(compression, payload))


@given(
    values=st.lists(st.binary(max_size=50), min_size=1, max_size=20),
    compression=st.sampled_from(CompressionType.values()),
)
def test_a_batch_of_any_values(values, compression):
    """Comes apart into these, in their order, whatever its compression."""
    found = messages_of(batch(*map(member, values), compression=compression))
    assert [each.value for each in found] == values
    assert [each.batch_index for each in found] == list(range(len(values)))
    assert [each.sequence_id for each in found] == list(range(7, 7 + len(values)))


def test_a_message_alone():
    """Has the header's fields; those that are not set are None."""
    (found,) = messages_of(seal(header().SerializeToString(), b"value"))
    assert found == Message(b"value", None, "p", 7, 1_000, None)
    full = header(partition_key="k", event_time=5, deliver_at_time=9, schema_version=b"\0\1",
                  ordering_key=b"o", chunk_id=2)  # fmt: skip
    full.properties.add(key="a", value="1")
    full.properties.add(key="a", value="2")
    (found,) = messages_of(seal(full.SerializeToString(), b""))
    assert (found.key, found.event_time_ms, found.deliver_at_ms) == ("k", 5, 9)
    assert (found.schema_version, found.ordering_key, found.chunk_id) == (b"\0\1", b"o", 2)
    assert (found.properties, found.value) == ({"a": "2"}, b"")


def test_keys_of_bytes_and_null_values():
    """A key in base64 is decoded if it is text; a null value is None, an empty one is not."""
    coded = base64.b64encode("schlüssel".encode()).decode()
    raw = base64.b64encode(b"\xff\xfe").decode()
    found = messages_of(
        batch(
            member(b"", null_value=True),
            member(b""),
            member(b"x", partition_key=coded, partition_key_b64_encoded=True),
            member(b"x", partition_key=raw, partition_key_b64_encoded=True),
        )
    )
    assert [each.value for each in found] == [None, b"", b"x", b"x"]
    assert [each.key for each in found] == [None, None, "schlüssel", raw]


def test_what_compaction_removed_is_left_out():
    """The others keep their places."""
    found = messages_of(batch(member(b"a"), member(b"", compacted_out=True), member(b"c")))
    assert [(each.batch_index, each.value) for each in found] == [(0, b"a"), (2, b"c")]


def test_an_encrypted_batch_is_not_opened():
    """It is one message, with its cipher text."""
    made = header(num_messages_in_batch=3, compression=CompressionType.LZ4, uncompressed_size=99)
    made.encryption_keys.add(key="k", value=b"v")
    (found,) = messages_of(seal(made.SerializeToString(), b"cipher"))
    assert (found.value, found.is_encrypted, found.batch_index) == (b"cipher", True, -1)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (batch(member(b"a"), count=2), "message 1 of 2: no metadata"),
        (batch(member(b"a"), count=0), "bytes after its 0 messages"),
        (batch(member(b"abc")[:-1], count=1), "its payload is cut off"),
        (batch(b"\xff\xff\xff\xffx", count=1), "message 0 of 1"),
        (b"nonsense", "bad message header"),
    ],
)
def test_what_is_no_message_is_an_error(entry, reason):
    """It names the message and what is wrong with it."""
    with pytest.raises(MessageFormatError, match=reason):
        messages_of(entry)


def test_a_bomb_is_not_opened():
    """A payload that states a larger size than allowed is refused before it is decompressed."""
    entry = batch(member(b"\0" * 100_000), compression=CompressionType.ZSTD)
    assert len(messages_of(entry)) == 1
    with pytest.raises(DecompressionError):
        messages_of(entry, max_bytes=1_000)
