from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger import CorruptFileError, UnsupportedVersionError
from pulsemark.ledger.limits import BODY_CRC_OURS, BODY_CRC_PRODUCER, MAX_ENTRY_ID, MAX_PREFIX_BYTES
from pulsemark.ledger.local.segment.record_format import (
    RECORD_HEADER_SIZE,
    BadRecordError,
    body_damage,
    pack_body_crc,
    pack_record_head,
    unpack_record_head,
    whole_record,
)
from pulsemark.ledger.local.segment.segment_format import (
    SegmentHeader,
    unpack_segment_header,
    version_1_key,
)
from pulsemark.metadata import crc32c, pack_stamp
from pulsemark.testing.faulty_files import flipped
from pulsemark.testing.raw_messages import unbatched_message

PATH = Path("x.log")
TOPIC = "persistent://public/default/orders"
HEADER = SegmentHeader(
    topic=TOPIC,
    topic_id=3,
    ledger_id=7,
    segment_no=0,
    first_entry_id=0,
    first_index=42,
    entry_time_floor_ms=1_700_000_000_000,
    stamp_floor_ms=1_700_000_000_001,
    previous_ledger_id=5,
    previous_entry_count=12,
)
# Header and first record of the worked example in docs/formats.md.
HEADER_HEX = """
    504d4b5345474d0a 0100 0000 88000000 0700000000000000 00000000 00000000
    0300000000000000 0000000000000000 2a00000000000000 0068e5cf8b010000
    0168e5cf8b010000 0500000000000000 0c00000000000000 22000000
    70657273697374656e743a2f2f7075626c69632f64656661756c742f6f7264657273
    000000000000 9d27fd02
"""
MESSAGE = unbatched_message(b"hello", publish_time_ms=1_700_000_000_000, producer_name="p")
STAMP = pack_stamp(1_700_000_000_123, 42)
RECORD_HEX = """
    f7504d1e 0739c457 2a000000 0f00 00 01 00000000 01000000 7b68e5cf8b010000 2a00000000000000
    0e02 00000009 08fbd095ffbc31 102a
    0e01 cf85822f 0000000c 0a0170 1000 1880d095ffbc31 68656c6c6f
"""
# Not in that example: an entry of no bytes and no messages, without prefix. Our own checksum
# stands after it.
EMPTY_RECORD_HEX = """
    f7504d1e 3040cdfe 00000000 0000 00 00 00000000 00000000 7b68e5cf8b010000 2a00000000000000
    00000000
"""
uint64s = st.integers(0, 2**63 - 1)
headers = st.builds(
    SegmentHeader,
    topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
    topic_id=uint64s,
    ledger_id=uint64s,
    segment_no=st.integers(0, 2**32 - 1),
    first_entry_id=uint64s,
    first_index=uint64s,
    entry_time_floor_ms=uint64s,
    stamp_floor_ms=uint64s,
    previous_ledger_id=st.integers(-1, 2**63 - 1),
    previous_entry_count=uint64s,
    epoch=st.integers(0, 2**32 - 1),
)


def record(
    body: bytes, *, prefix: bytes = b"", ledger_id: int = 7, entry_id: int = 0, count: int = 1
) -> bytes:
    """A record as the store writes it."""
    check = BODY_CRC_PRODUCER if body[:2] == b"\x0e\x01" and len(body) >= 6 else BODY_CRC_OURS
    head = pack_record_head(
        version_1_key(ledger_id), entry_id, 0, count, 1_700_000_000_123, 42, prefix, body, check
    )
    return head + body + (pack_body_crc(body) if check == BODY_CRC_OURS else b"")


def test_segment_header_has_the_documented_bytes():
    """The worked example's segment header, byte by byte."""
    assert HEADER.pack() == bytes.fromhex(HEADER_HEX)
    assert HEADER.size_bytes == len(HEADER.pack()) == 136


def test_record_has_the_documented_bytes():
    """The worked example's first record, header and entry; and a record of an empty entry."""
    assert record(MESSAGE, prefix=STAMP) == bytes.fromhex(RECORD_HEX)
    assert record(b"", count=0) == bytes.fromhex(EMPTY_RECORD_HEX)


@given(headers)
def test_segment_header_round_trip(header):
    """Every header comes back as it was written, whatever follows it."""
    assert unpack_segment_header(header.pack() + b"records", PATH) == header
    assert len(header.pack()) == header.size_bytes
    assert header.size_bytes % 8 == 0


def test_every_flipped_bit_of_a_segment_header_is_found():
    """One wrong bit anywhere in a header, padding and name included, is an error."""
    good = HEADER.pack()
    for bit in range(8 * len(good)):
        bad = flipped(good, bit)
        with pytest.raises(CorruptFileError):
            unpack_segment_header(bad, PATH)


def test_every_cut_of_a_segment_header_is_found():
    """A header that ends early is an error, never a shorter header."""
    good = HEADER.pack()
    for size in range(len(good)):
        with pytest.raises(CorruptFileError):
            unpack_segment_header(good[:size], PATH)


@pytest.mark.parametrize(("offset", "what"), [(8, "segment version"), (10, "segment features")])
def test_newer_segment_is_unsupported_not_corrupt(offset, what):
    """A version or feature from the future is not reported as damage."""
    data = bytearray(HEADER.pack())
    data[offset] = 0x7F
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersionError) as caught:
        unpack_segment_header(data, PATH)
    assert (caught.value.what, caught.value.found) == (what, 0x7F)


def test_segment_header_with_a_name_that_is_not_utf8_is_damage():
    """A topic name of broken UTF-8 is an error of the file, not of Python."""
    data = bytearray(HEADER.pack())
    data[92] = 0xFF
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
    with pytest.raises(CorruptFileError, match="UTF-8"):
        unpack_segment_header(data, PATH)


bodies = st.one_of(
    st.binary(max_size=40).filter(lambda b: b[:2] != b"\x0e\x01"),
    st.binary(max_size=40).map(lambda p: unbatched_message(p, publish_time_ms=1)),
    st.integers(2040, 2060).map(bytes),
)


@given(
    body=bodies,
    prefix=st.sampled_from([b"", STAMP, bytes(MAX_PREFIX_BYTES)]),
    entry_id=st.integers(0, MAX_ENTRY_ID),
    count=st.integers(0, 2**32 - 1),
    time_ms=st.integers(0, 2**64 - 1),
    index=st.integers(-1, 2**63 - 1),
    kind=st.sampled_from([0, 1]),
    offset=st.integers(0, 3),
)
def test_record_round_trip(body, prefix, entry_id, count, time_ms, index, kind, offset):
    """Every field of a record comes back, on the careful way and on the fast one."""
    check = BODY_CRC_PRODUCER if body[:2] == b"\x0e\x01" else BODY_CRC_OURS
    head = pack_record_head(
        version_1_key(9), entry_id, kind, count, time_ms, index, prefix, body, check
    )
    whole = head + body + (pack_body_crc(body) if check == BODY_CRC_OURS else b"")
    data = bytes(offset) + whole + b"next"
    fields = unpack_record_head(data, offset, version_1_key(9))
    assert (fields.entry_id, fields.kind, fields.message_count) == (entry_id, kind, count)
    assert (fields.append_time_ms, fields.index) == (time_ms, index)
    assert fields.prefix_size_bytes == len(prefix)
    assert fields.entry_size_bytes == len(prefix) + len(body)
    assert fields.record_size_bytes == len(whole)
    assert body_damage(fields, memoryview(data)[offset:]) is None
    fast = whole_record(data, memoryview(data), offset, version_1_key(9))
    assert fast[2:] == (
        len(prefix) + len(body), len(prefix), kind, check, entry_id, count, time_ms, index
    )  # fmt: skip


EXAMPLES = {
    "stamped message": record(MESSAGE, prefix=STAMP),
    "message without stamp": record(MESSAGE),
    "any bytes": record(b"not a message", prefix=STAMP),
    "five bytes": record(b"12345"),
    "nothing": record(b"", count=0),
    "large": record(bytes(range(256)) * 12, prefix=STAMP),
}


def whole(data: bytes) -> bool:
    """Whether both ways of reading take these bytes for a whole record; they must agree."""
    seed = version_1_key(7)
    try:
        fields = unpack_record_head(data, 0, seed)
        careful = body_damage(fields, memoryview(data)) is None
    except BadRecordError:
        careful = False
    try:
        whole_record(data, memoryview(data), 0, seed)
        fast = True
    except BadRecordError:
        fast = False
    assert careful == fast
    return careful


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_flipped_bit_of_a_record_is_found(name):
    """One wrong bit anywhere in a record, body included, is found on both ways of reading."""
    good = EXAMPLES[name]
    assert whole(good)
    for bit in range(0, 8 * len(good), 1 if len(good) < 500 else 7):
        assert not whole(flipped(good, bit)), f"bit {bit}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cut_of_a_record_is_found(name):
    """A record that ends early is not accepted, even with zeros in place of its rest."""
    good = EXAMPLES[name]
    for size in range(0, len(good), 1 if len(good) < 500 else 11):
        assert not whole(good[:size])
        filled = good[:size].ljust(len(good) + 64, b"\0")
        assert filled[: len(good)] == good or not whole(filled)


@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_no_record(data):
    """Bytes that no writer wrote are never taken for a record, nor do they break a reader."""
    assert not whole(data)
    assert not whole(bytes.fromhex("f7504d1e") + data)


def test_record_of_another_ledger_is_no_record():
    """The ledger id is under the checksum: a stale record of another ledger is not taken."""
    assert not whole(record(MESSAGE, prefix=STAMP, ledger_id=8))
    assert whole(record(MESSAGE, prefix=STAMP, ledger_id=7))


def test_cut_header_is_reported_as_short():
    """A reader that has too few bytes learns that more may help."""
    good = EXAMPLES["stamped message"]
    for size in (RECORD_HEADER_SIZE - 1, RECORD_HEADER_SIZE, RECORD_HEADER_SIZE + len(STAMP) + 5):
        with pytest.raises(BadRecordError) as caught:
            unpack_record_head(good[:size], 0, version_1_key(7))
        assert caught.value.short
