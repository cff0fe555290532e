r"""Bytes of a segment file: one header, then records. Nothing else does arithmetic on them.

All integers are little-endian. Segment header, ``header_size`` bytes, a multiple of 8::

     0  magic "PMKSEGM\n"            8
     8  version                      u16   newer than ours: unsupported, not corrupt
    10  features                     u16   bits a reader must know; unknown bit: unsupported
    12  header size                  u32   including topic name, padding and checksum
    16  ledger id                    u64
    24  segment number               u32   0, 1, 2 ... within the ledger
    28  leader epoch                 u32
    32  topic id                     u64   never used again, so a topic's namesake is another
    40  first entry id               u64
    48  first index                  u64   index the first message of this segment gets
    56  entry time floor             u64   highest entry time of the topic before this segment
    64  stamp floor                  u64   highest append time of the topic before this segment
    72  previous ledger id           i64   -1: none
    80  previous ledger's entries    u64   how many of its entries count; any more never did
    88  topic name size              u32
    92  topic name                   UTF-8, zero padding
   -12  secret                       8     random, drawn for this segment; absent in version 1
    -4  CRC32C of all before         u32

Magic, version, features, header size and checksum keep their places in every version to come: so
a newer header is known to be whole before it is called unsupported.

The secret makes records that no client can forge: its first four bytes are the marker of this
segment's records, its last four go into their header checksums. Where a record is damaged, the
next one is looked for by that marker, and what a producer put into a body is never taken for it.
So the secret leaves the data folder in no answer, message or error. The index file holds a second
copy of the whole header (see `index_format`). In version 1 the marker is the same everywhere and
nothing secret is under the checksum; such segments are read, and never written.

Record header, 40 bytes, then the entry as Pulsar would store it (prefix, then body)::

     0  marker                       4     finds the next record after damage
     4  CRC32C                       u32   of: ledger id (u64), the secret's last four bytes,
                                           bytes 8-40, the prefix, and the first six body bytes
                                           (magic and CRC of the producer)
     8  entry size                   u32   prefix and body
    12  prefix size                  u16
    14  kind                         u8    0 data, 1 control
    15  body check                   u8    1: the producer's own CRC32C, which stands in body
                                           bytes 2-6 and covers all behind it (checked at append)
                                           0: ours: a u32 behind the body, of the whole body
    16  entry id                     u32   within the ledger
    20  message count                u32
    24  append time                  u64   milliseconds; never decreases within a topic
    32  index                        u64   of the entry's last message (PIP-70); of the message
                                           before it where the count is 0, so -1 is possible

40 bytes of header, 18 of prefix (broker time, an index below 2^28) and the six body bytes make
64: one small read decides a step of a search, its checksum checked, no payload touched.

The ledger id is inside the checksum only: a stale record of another ledger is no record here.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ....metadata import PREFIX_HEADER_SIZE_BYTES
from ....metadata.crc import crc32c
from ...errors import CorruptFileError, UnsupportedVersionError
from ...limits import (
    BODY_CRC_PRODUCER,
    CHECKED_BODY_BYTES,
    MAX_RUN_BYTES,
    MAX_TOPIC_NAME_BYTES,
)
from ...run import RunHeader
from ..io.files import Buffer

SEGMENT_MAGIC = b"PMKSEGM\n"
SEGMENT_VERSION = 2
KNOWN_FEATURES = 0
SECRET_SIZE = 8

_FIXED = struct.Struct("<8sHHIQIIQQQQQqQI")
_U32 = struct.Struct("<I")
assert _FIXED.size == 92

VERSION_1_MARKER = b"\xf7PM\x1e"
"""Of every record in segments of version 1."""
RECORD_HEADER = struct.Struct("<4sIIHBBIIQq")
RECORD_HEADER_SIZE = RECORD_HEADER.size
RECORD_CORE = struct.Struct("<IHBBIIQq")
"""The part of the record header that its checksum covers."""
CORE_OFFSET = RECORD_HEADER_SIZE - RECORD_CORE.size
RECORD_LEAD = struct.Struct("<4sI")
_PRODUCER_CRC = struct.Struct(">I")
_VIEW_FROM_BYTES = 2048
RecordTuple = tuple[bytes, int, int, int, int, int, int, int, int, int]
"""A record header as it is unpacked: marker, CRC32C, entry size, prefix size, kind, body check,
entry id, message count, append time, index."""

MAX_SEGMENT_BYTES = MAX_RUN_BYTES
BODY_CRC_SIZE = 4
assert (RECORD_HEADER_SIZE, CORE_OFFSET) == (40, 8)

_LEDGER_ID = struct.Struct("<Q")
UNKNOWN_COUNT = -1
"""``previous_entry_count`` where it was lost with the header and is not known. Never on disk."""


class RecordKey(NamedTuple):
    """What the records of one segment have in common, and no others."""

    marker: bytes
    """The first four bytes of each record."""
    seed: int
    """Where the checksum of each record's header starts."""


def version_1_key(ledger_id: int) -> RecordKey:
    """The key of segments of version 1, which anyone who knows the ledger id can tell."""
    return RecordKey(VERSION_1_MARKER, crc32c(_LEDGER_ID.pack(ledger_id)))


def new_secret() -> bytes:
    """A secret for a new segment or journal file.

    No byte of the marker in it is zero, so that room that was never written has no marker.
    """
    while True:
        secret = secrets.token_bytes(SECRET_SIZE)
        if all(secret[:4]):
            return secret


@dataclass(frozen=True, slots=True)
class SegmentHeader(RunHeader):
    """What a segment says of itself; enough to rebuild a topic without the catalog."""

    secret: bytes = field(default=b"", repr=False)
    """What makes the segment's records its own (see `new_secret`); empty: a segment of version 1.
    Not to be shown to clients, nor written into messages."""

    @property
    def version(self) -> int:
        """Version of the segment's format."""
        return 2 if self.secret else 1

    @property
    def record_key(self) -> RecordKey:
        """How the segment's records are marked and summed."""
        if not self.secret:
            return version_1_key(self.ledger_id)
        ledger_id = _LEDGER_ID.pack(self.ledger_id)
        return RecordKey(self.secret[:4], crc32c(ledger_id + self.secret[4:]))

    def pack(self) -> bytes:
        """The header's bytes, checksum included."""
        name = self.topic.encode()
        size = self.size_bytes
        fixed = _FIXED.pack(
            SEGMENT_MAGIC,
            self.version,
            0,
            size,
            self.ledger_id,
            self.segment_no,
            self.epoch,
            self.topic_id,
            self.first_entry_id,
            self.first_index,
            self.entry_time_floor_ms,
            self.stamp_floor_ms,
            self.previous_ledger_id,
            self.previous_entry_count,
            len(name),
        )
        body = (fixed + name).ljust(size - len(self.secret) - _U32.size, b"\0") + self.secret
        return body + _U32.pack(crc32c(body))

    @property
    def size_bytes(self) -> int:
        """Where the first record begins."""
        return _padded(_FIXED.size + len(self.topic.encode()) + len(self.secret) + _U32.size)


SEGMENT_HEADER_LIMIT = 8192
"""Read this much to have any segment header whole."""
_SIZE_END = 16
"""Where the field with the header's size ends."""


def unpack_segment_header(data: Buffer, path: Path) -> SegmentHeader:
    """Parse the beginning of a segment file.

    Raises CorruptFileError, or UnsupportedVersionError for a newer version or feature.
    """
    if len(data) < _FIXED.size or bytes(data[:8]) != SEGMENT_MAGIC:
        raise CorruptFileError(path, "it does not begin with a segment header")
    (_, version, features, size, ledger_id, segment_no, epoch, topic_id, first_entry_id,
     first_index, entry_time_floor, stamp_floor, previous_id, previous_count,
     name_size) = _FIXED.unpack_from(data)  # fmt: skip
    if not _FIXED.size < size <= SEGMENT_HEADER_LIMIT:
        raise CorruptFileError(path, f"segment header of {size} bytes")
    if len(data) < size:
        raise CorruptFileError(path, f"segment header cut at {len(data)} of {size} bytes")
    body = bytes(data[: size - 4])
    (expected,) = _U32.unpack_from(data, size - 4)
    if crc32c(body) != expected:
        raise CorruptFileError(path, "segment header checksum does not match")
    # Only now: a flipped bit in the version must not pass for a version to come.
    if version > SEGMENT_VERSION:
        raise UnsupportedVersionError(path, "segment version", version, SEGMENT_VERSION)
    if features & ~KNOWN_FEATURES:
        raise UnsupportedVersionError(path, "segment features", features, KNOWN_FEATURES)
    secret_size = SECRET_SIZE if version > 1 else 0
    fitting = _padded(_FIXED.size + name_size + secret_size + _U32.size)
    if name_size > MAX_TOPIC_NAME_BYTES or size != fitting:
        raise CorruptFileError(path, f"segment header of {size} bytes, name of {name_size}")
    try:
        topic = body[_FIXED.size : _FIXED.size + name_size].decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(path, "topic name is not UTF-8") from error
    return SegmentHeader(
        topic=topic,
        topic_id=topic_id,
        ledger_id=ledger_id,
        segment_no=segment_no,
        first_entry_id=first_entry_id,
        first_index=first_index,
        entry_time_floor_ms=entry_time_floor,
        stamp_floor_ms=stamp_floor,
        previous_ledger_id=previous_id,
        previous_entry_count=previous_count,
        epoch=epoch,
        secret=body[len(body) - secret_size :],
    )


def header_size_field(data: Buffer) -> int | None:
    """What the field with the header's size says; None where the bytes end before it."""
    if len(data) < _SIZE_END:
        return None
    (size,) = _U32.unpack_from(data, _SIZE_END - _U32.size)
    return int(size)


def told_header_size(data: Buffer) -> int:
    """How long a header that may be damaged says it is; at least what lies up to that field."""
    size = header_size_field(data)
    if size is None:
        return len(data)
    return size if _FIXED.size < size <= min(len(data), SEGMENT_HEADER_LIMIT) else _SIZE_END


def told_version(data: Buffer) -> int:
    """The version that a header says that may be damaged; 0 where it has no magic any more."""
    if len(data) < _FIXED.size or bytes(data[:8]) != SEGMENT_MAGIC:
        return 0
    return int(_FIXED.unpack_from(data)[1])


def told_topic(data: Buffer) -> tuple[str, int] | None:
    """Topic name and id that a damaged header says; None where that cannot be a name."""
    if len(data) < _FIXED.size:
        return None
    topic_id, name_size = _FIXED.unpack_from(data)[7::7]
    if not 0 < name_size <= MAX_TOPIC_NAME_BYTES or len(data) < _FIXED.size + name_size:
        return None
    try:
        return bytes(data[_FIXED.size : _FIXED.size + name_size]).decode(), topic_id
    except UnicodeDecodeError:
        return None


def _padded(size: int) -> int:
    return (size + 7) & ~7


def pack_record_head(
    key: RecordKey,
    entry_id: int,
    kind: int,
    message_count: int,
    append_time_ms: int,
    index: int,
    prefix: bytes,
    body: Buffer,
    body_check: int,
) -> bytes:
    """Record header and prefix in one piece; the body follows it unchanged, then, where
    ``body_check`` is BODY_CRC_OURS, ``pack_body_crc``.
    """
    core = (
        RECORD_CORE.pack(
            len(prefix) + len(body),
            len(prefix),
            kind,
            body_check,
            entry_id,
            message_count,
            append_time_ms,
            index,
        )
        + prefix
    )
    marker, seed = key
    crc = crc32c(core + body[:CHECKED_BODY_BYTES], seed)
    return RECORD_LEAD.pack(marker, crc) + core


def pack_body_crc(body: Buffer) -> bytes:
    """What stands behind a body that brings no checksum of its own."""
    return _U32.pack(crc32c(body))


@dataclass(slots=True)
class RecordFields:
    """A record header's fields, checked against its checksum."""

    entry_size_bytes: int
    prefix_size_bytes: int
    kind: int
    body_check: int
    entry_id: int
    message_count: int
    append_time_ms: int
    index: int

    @property
    def record_size_bytes(self) -> int:
        """From marker to the next record."""
        own_crc = 0 if self.body_check == BODY_CRC_PRODUCER else _U32.size
        return RECORD_HEADER_SIZE + self.entry_size_bytes + own_crc


class BadRecordError(Exception):
    """The bytes are no whole record; ``short`` tells that they end too early to know."""

    def __init__(self, reason: str, *, short: bool = False) -> None:
        self.reason = reason
        self.short = short
        super().__init__(reason)


def unpack_record_head(data: Buffer, offset: int, key: RecordKey) -> RecordFields:
    """Check marker, sizes and checksum of the record at ``offset``; raises BadRecordError.

    Needs header, prefix and up to six body bytes; whether the body is whole and right is
    ``check_body``'s matter.
    """
    start = offset + RECORD_HEADER_SIZE
    if start > len(data):
        raise BadRecordError("the record header is cut off", short=True)
    marker, crc, *core = RECORD_HEADER.unpack_from(data, offset)
    if marker != key.marker:
        raise BadRecordError("no record marker")
    fields = RecordFields(*core)
    if fields.prefix_size_bytes > fields.entry_size_bytes:
        raise BadRecordError("the prefix is larger than the entry")
    body_start = start + fields.prefix_size_bytes
    checked = min(CHECKED_BODY_BYTES, fields.entry_size_bytes - fields.prefix_size_bytes)
    if body_start + checked > len(data):
        raise BadRecordError("the record is cut off", short=True)
    if crc32c(data[offset + CORE_OFFSET : body_start + checked], key.seed) != crc:
        raise BadRecordError("the header checksum does not match")
    return fields


def whole_head(data: bytes, key: RecordKey) -> RecordTuple:
    """The header of the record that ``data`` begins with, once it has passed its checksum.

    ``data`` may end anywhere behind the sixth body byte. Raises BadRecordError.
    """
    if len(data) < RECORD_HEADER_SIZE:
        raise BadRecordError("the record header is cut off", short=True)
    record: RecordTuple = RECORD_HEADER.unpack_from(data)
    checked_end = RECORD_HEADER_SIZE + min(record[3] + CHECKED_BODY_BYTES, record[2])
    if checked_end > len(data):
        raise BadRecordError("the record is cut off", short=True)
    marker, seed = key
    if record[0] != marker or crc32c(data[CORE_OFFSET:checked_end], seed) != record[1]:
        raise BadRecordError("the header does not match its checksum")
    return record


FIRST_TAG_AT = RECORD_HEADER_SIZE + PREFIX_HEADER_SIZE_BYTES
"""Where in a record with a prefix the tag of its first field stands."""
BROKER_TIMESTAMP_TAG = 0x08
"""Field 1 of the prefix's protobuf, which stampers write first; the ledger sees to it that its
value is the record's append time."""


def record_size_bytes(record: RecordTuple) -> int:
    """From a record's marker to the next record."""
    own_crc = 0 if record[5] == BODY_CRC_PRODUCER else _U32.size
    return RECORD_HEADER_SIZE + record[2] + own_crc


def whole_record(data: Buffer, view: memoryview, at: int, key: RecordKey) -> RecordTuple:
    """The header of the record at ``at``, once header and body have passed their checksums.

    The fast way for records that are read by the thousand; ``view`` is a view on ``data``.
    Raises BadRecordError.
    """
    try:
        record: RecordTuple = RECORD_HEADER.unpack_from(data, at)
        marker, crc, size, prefix_size, _, body_check, _, _, _, _ = record
        own_marker, seed = key
        body_at = at + RECORD_HEADER_SIZE + prefix_size
        end = at + RECORD_HEADER_SIZE + size
        # Copying a few bytes is cheaper than making a view of them.
        body = data if size < _VIEW_FROM_BYTES else view
        if body_check == BODY_CRC_PRODUCER:
            good = (
                crc32c(data[at + CORE_OFFSET : body_at + CHECKED_BODY_BYTES], seed) == crc
                and marker == own_marker
                and crc32c(body[body_at + CHECKED_BODY_BYTES : end])
                == _PRODUCER_CRC.unpack_from(data, body_at + 2)[0]
            )
        else:
            checked_end = min(body_at + CHECKED_BODY_BYTES, end)
            good = (
                crc32c(data[at + CORE_OFFSET : checked_end], seed) == crc
                and marker == own_marker
                and crc32c(body[body_at:end]) == _U32.unpack_from(data, end)[0]
            )
    except struct.error as error:
        raise BadRecordError("the record is cut off", short=True) from error
    if not good or end > len(data):
        fields = unpack_record_head(view, at, key)
        reason = body_damage(fields, view[at : at + fields.record_size_bytes])
        raise BadRecordError(reason or "the record does not match its checksums")
    return record


def split_records(data: Buffer, offsets: Sequence[int]) -> list[memoryview]:
    """The stored entries in ``data``, known to be whole: its first record began at offsets[0]."""
    view = memoryview(data)
    start = offsets[0] - RECORD_HEADER_SIZE
    size_at = 8 - RECORD_HEADER_SIZE
    size_of = _U32.unpack_from
    return [
        view[(at := offset - start) : at + size_of(data, at + size_at)[0]] for offset in offsets
    ]


def body_damage(fields: RecordFields, record: memoryview) -> str | None:
    """What is wrong with the body of a ``record`` given from its marker on; None: nothing."""
    if len(record) < fields.record_size_bytes:
        return "the body is cut off"
    body_at = RECORD_HEADER_SIZE + fields.prefix_size_bytes
    entry_end = RECORD_HEADER_SIZE + fields.entry_size_bytes
    if fields.body_check == BODY_CRC_PRODUCER:
        actual = crc32c(record[body_at + CHECKED_BODY_BYTES : entry_end])
        expected = int.from_bytes(record[body_at + 2 : body_at + CHECKED_BODY_BYTES], "big")
    else:
        actual = crc32c(record[body_at:entry_end])
        (expected,) = _U32.unpack_from(record, entry_end)
    return None if actual == expected else "the body checksum does not match"
