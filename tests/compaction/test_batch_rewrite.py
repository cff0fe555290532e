"""Batches taken apart and put together with holes; the official client is the judge."""

from __future__ import annotations

import struct
from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.compaction.batch_rewrite import HOLE, BatchFormatError, open_batch, rewrite_batch
from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import compacted_log
from pulsemark.ledger import EARLIEST
from pulsemark.metadata import payload_of, read_message_metadata, verify_checksum
from pulsemark.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import BatchMember, batched_message, seal

LIMIT_BYTES = 1 << 20

members = st.builds(
    BatchMember,
    payload=st.binary(max_size=30) | st.none(),
    key=st.text(max_size=5) | st.none(),
    properties=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


def opened(body, limit_bytes=LIMIT_BYTES):
    """The batch in headers-and-payload."""
    return open_batch(read_message_metadata(body), body, limit_bytes)


@given(given_members=st.lists(members, max_size=8))
def test_taken_apart(given_members):
    """Every member is found, with its key, whether it is empty, and its very bytes."""
    body = batched_message(given_members, publish_time_ms=1)
    batch = opened(body)
    assert batch.payload == bytes(payload_of(body))
    assert len(batch.members) == len(given_members)
    assert [0, *(m.end for m in batch.members)] == [
        *(m.start for m in batch.members),
        len(batch.payload),
    ]
    for member, wanted in zip(batch.members, given_members, strict=True):
        assert member.key == (None if wanted.key is None else wanted.key.encode())
        assert member.deletes is (not wanted.payload)
        assert not member.hole


@given(given_members=st.lists(members, min_size=1, max_size=8), data=st.data())
def test_rewritten(given_members, data):
    """What stays is copied byte by byte, in its place; the rest are holes; the header stays."""
    body = batched_message(given_members, publish_time_ms=1, properties=None, sequence_id=9)
    batch = opened(body)
    kept = data.draw(st.sets(st.integers(0, len(given_members) - 1)))
    for checksum in (True, False):
        original = seal(
            read_message_metadata(body).SerializeToString(), batch.payload, checksum=checksum
        )
        metadata = read_message_metadata(original)
        written = rewrite_batch(metadata, batch, kept)
        assert verify_checksum(written)
        again = opened(written)
        for place, (before, after) in enumerate(zip(batch.members, again.members, strict=True)):
            bytes_before = batch.payload[before.start : before.end]
            bytes_after = again.payload[after.start : after.end]
            assert bytes_after == (bytes_before if place in kept else HOLE)
            assert after.hole is (place not in kept)
        metadata.uncompressed_size = len(again.payload)
        assert read_message_metadata(written) == metadata


def test_hole():
    """A hole says that it is one, and no more."""
    (size,) = struct.unpack_from(">I", HOLE)
    assert size == len(HOLE) - 4
    single = SingleMessageMetadata.FromString(HOLE[4:])
    assert single == SingleMessageMetadata(compacted_out=True, payload_size=0)


def batch_of(payload: bytes, count: int, **fields: Any) -> bytes:
    """Headers-and-payload with any payload."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count, **fields
    )
    return seal(metadata.SerializeToString(), payload)


ONE = b"\0\0\0\2\x18\1x"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (batch_of(ONE, 2), "message 1 of 2: no metadata"),
        (batch_of(ONE + ONE, 1), "7 bytes after"),
        (batch_of(b"x", 0), "1 bytes after"),
        (batch_of(b"x", -1), "1 bytes after"),
        (batch_of(b"\0\0\0\2\x18\2x", 1), "cut off"),
        (batch_of(b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\1", 1), "cut off"),
        (batch_of(b"\0\0\0\0", 1), "cut off"),
        (batch_of(b"\xff\0\0\2\x18\1x", 1), "no metadata"),
        (batch_of(b"\xff\0\0\2\x18\1", 1), "cut off"),
        (batch_of(b"\0\0\0\2\xff\xffx", 1), "no metadata"),
        (batch_of(b"rubbish", 1, compression=2, uncompressed_size=9), "ZLIB"),
        (batch_of(b"", 1, compression=2, uncompressed_size=LIMIT_BYTES + 1), "the limit is"),
        (batch_of(ONE, 1, compacted_batch_indexes=[0]), "another broker"),
        (seal(b"\x0a\1p\x10\0\x18\1\x40\x09\x58\1", ONE), "unknown compression type 9"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed(body, reason):
    """Bytes that are not a batch of that many messages are refused, with the reason."""
    with pytest.raises(BatchFormatError, match=reason) as caught:
        opened(body)
    assert caught.value.reason == str(caught.value)


@given(payload=st.binary(max_size=40), count=st.integers(-3, 5))
def test_any_payload(payload, count):
    """Arbitrary bytes are a batch that ends with its last message, or refused."""
    try:
        batch = opened(batch_of(payload, count))
    except BatchFormatError:
        return
    assert len(batch.members) == max(0, count)
    assert (batch.members[-1].end if batch.members else 0) == len(payload)


BATCHES = [
    [("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1")],
    [("a", b"2"), ("e", b"1"), ("c", b""), ("f", b"1")],
    [("e", b"2"), ("b", b"2"), ("g", b"1")],
]
LEFT = [("d", 3), ("a", 0), ("f", 3), ("e", 0), ("b", 1), ("g", 2)]
"""Key, and place in its batch, of what compaction leaves of these."""


@pytest.fixture(scope="module")
def broker():
    """A broker to let the official client write batches, and read what became of them."""
    with running_broker() as running:
        yield running


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_official_client(broker, compression):
    """The client's own batches are compacted; sent again, it reads what stayed, in its place."""
    written = f"persistent://public/default/written-{compression}"
    compacted = f"persistent://public/default/compacted-{compression}"
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=quiet)
    try:
        producer = client.create_producer(
            written,
            compression_type=getattr(pulsar.CompressionType, compression),
            batching_enabled=True,
            batching_max_publish_delay_ms=5000,
        )
        for batch in BATCHES:
            for key, value in batch:
                producer.send_async(value * 100, lambda *_: None, partition_key=key)
            producer.flush()
        topic = broker.broker.store.open_topic(written)
        report = compact(topic)
        assert (report.entries_read, report.messages_read) == (3, 11)
        assert (report.keys, report.entries_rewritten) == (6, 2)
        entries = compacted_log(topic).read(EARLIEST)
        consumer = client.subscribe(
            compacted, "s", initial_position=pulsar.InitialPosition.Earliest
        )
        with RawClient.from_url(broker.service_url) as raw:
            sender = raw.create_producer(compacted)
            for entry in entries:
                sender.send_raw(bytes(entry.body), num_messages=entry.message_count)
            found = [consumer.receive(5000) for _ in range(11)]
    finally:
        client.close()
    kept = [message for message in found if message.data()]
    assert [(m.partition_key(), m.message_id().batch_index()) for m in kept] == LEFT
    last = dict(value for batch in BATCHES for value in batch)
    assert [m.data() for m in kept] == [last[key] * 100 for key, _ in LEFT]
