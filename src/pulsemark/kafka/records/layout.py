"""The common parts of all magics: the layout of messages and batches, varints, records and errors.

========  =======================================  ==========================================
magic     one message is                           a compressed set is
========  =======================================  ==========================================
0         key, value                               one message, whose value is the set
1         the same with a time (KIP-32)            the same, its inner offsets relative (KIP-31)
2         the same with headers; part of a batch   the same batch, records compressed (KIP-98)
========  =======================================  ==========================================

All integers are big-endian. In every magic, byte 0 has an offset, byte 8 the size of what follows
byte 12, byte 16 the magic::

    magic 0, 1   offset i64, size i32, crc u32, magic i8, attributes i8, [1: time i64],
                 key size i32, key, value size i32, value        (a size of -1: null)
    magic 2      baseOffset i64, size i32, leaderEpoch i32, magic i8, crc u32, attributes i16,
                 lastOffsetDelta i32, baseTime i64, maxTime i64, producerId i64,
                 producerEpoch i16, baseSequence i32, count i32, records

The checksum of magic 0 and 1 (CRC-32) covers magic to end, that of magic 2 (CRC-32C) attributes to
end. Neither covers the offset, nor magic 2's the leader epoch. So a broker writes these fields
without touching the rest.

A set is split into its batches (`spans`): messages of magic 0 and 1, batches of magic 2. Each has
its size at byte 8, so a set is split without looking into it. A set may end with a part of a batch:
Kafka's answers to fetch requests do, and old producers' sets may.

Records of magic 2 have zigzag varints (Protocol Buffers' sint32 and sint64). A varint has at most 5
bytes, a varlong 10. A longer or cut off one raises ValueError or IndexError, which the readers of
records turn into their own errors.

Each error has the code that a Kafka client gets from Apache Kafka 3.9.2. But a codec number from 5
to 7 and bytes that do not decompress are 87 here; Kafka answers -1, unknown. Programs read `code`;
the text is for people.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple, TypeAlias

from ...metadata import Buffer

Headers: TypeAlias = tuple[tuple[bytes, bytes | None], ...]
"""A record's headers in their order: name (UTF-8, as it came) and value."""

NO_TIME_MS = -1
"""The time of a record that has none: every record of magic 0."""

TOMBSTONE_FLAG = 0x20
"""Bit 5 of a RECORD's attributes: it deletes its key, whatever its value is (KIP-87)."""

LOG_APPEND_TIME = 0x08
"""Bit 3 of the attributes of a message (magic 1) or batch (magic 2): the time is the broker's."""

CODEC_MASK = 0x07
MAX_RECORDS = 2**20
"""The most records of a set; what an entry of a ledger can count."""


class Codec(IntEnum):
    """Kafka's numbers of the codecs, as in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Record(NamedTuple):
    """One record. Its offset is absolute, or relative to the entry's first message."""

    offset: int
    time_ms: int
    """Milliseconds since the epoch: the producer's, or the broker's (LogAppendTime); -1: none."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    attributes: int = 0
    """Attributes of magic 2: only `TOMBSTONE_FLAG` has a meaning."""

    @property
    def flagged(self) -> bool:
        """Whether its tombstone flag is set (KIP-87)."""
        return bool(self.attributes & TOMBSTONE_FLAG)


@dataclass(slots=True)
class Work:
    """The cost of a call in compressions and conversions: the counters of the metrics page."""

    decompressions: int = 0
    compressions: int = 0
    """Zero wherever a set is stored or sent in place."""
    converted_records: int = 0
    """Records written again, because offsets, codec or magic could not stay."""


class RecordSetError(ValueError):
    """A record set cannot be stored, read or converted; ``code`` is Kafka's error code."""

    code: ClassVar[int] = -1


class CorruptRecordSetError(RecordSetError):
    """A checksum is wrong, or the bytes are no message of a known magic (CORRUPT_MESSAGE)."""

    code = 2


class RecordSetTooLargeError(RecordSetError):
    """The set exceeds the topic's limit, as sent or decompressed (MESSAGE_TOO_LARGE)."""

    code = 10


class RecordTimeError(RecordSetError):
    """The producer set the attribute of LogAppendTime (INVALID_TIMESTAMP)."""

    code = 32


class FormatTooOldError(RecordSetError):
    """The topic's entry format cannot hold the set (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""

    code = 43


class CodecError(RecordSetError):
    """The codec cannot be used here (UNSUPPORTED_COMPRESSION_TYPE)."""

    code = 76


class InvalidRecordSetError(RecordSetError):
    """The record set breaks a rule (INVALID_RECORD)."""

    code = 87


OFFSET = struct.Struct(">q")
SIZE = struct.Struct(">i")
TIME = struct.Struct(">q")
CRC = struct.Struct(">I")
LOG_OVERHEAD_BYTES = 12
"""Offset and size, which the size does not count."""
SIZE_AT = 8
MAGIC_AT = 16
LEAST_SIZE_BYTES = 14
"""The least size of a message: one of magic 0 with null key and null value."""
MESSAGE_CRC_AT = 12
MESSAGE_COVERED_AT = 16
MESSAGE_ATTRIBUTES_AT = 17
MESSAGE_TIME_AT = 18
MESSAGE_KEY_AT = (18, 26)
"""Where the key's size is, by magic 0 and 1."""
MESSAGE_HEADER = struct.Struct(">qiIbB")
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_HEADER_BYTES = BATCH_HEADER.size
BATCH_CRC_AT = 17
BATCH_COVERED_AT = 21
BATCH_OFFSET_SIZE_EPOCH = struct.Struct(">qii")
TRANSACTIONAL = 0x10
CONTROL = 0x20
NO_PRODUCER_ID = -1
NO_LEADER_EPOCH = -1
MAX_MAGIC = 2
MOST_BITS_32, MOST_BITS_64 = 35, 70
"""The bits in the longest varint, and varlong."""


class BatchHeader(NamedTuple):
    """The header of a batch of magic 2, field by field."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_time_ms: int
    max_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class Span(NamedTuple):
    """The place of a batch in its set."""

    start: int
    end: int
    magic: int


def spans(records: Buffer) -> Iterator[Span]:
    """The whole batches of a set. Raises CorruptRecordSetError: bad size, unknown magic."""
    start, total = 0, len(records)
    while start + LOG_OVERHEAD_BYTES <= total:
        (size,) = SIZE.unpack_from(records, start + SIZE_AT)
        if size < LEAST_SIZE_BYTES:
            raise CorruptRecordSetError(f"a message of {size} bytes at byte {start}")
        if start + MAGIC_AT >= total:
            return
        magic = records[start + MAGIC_AT]
        if magic > MAX_MAGIC:
            raise CorruptRecordSetError(f"unknown magic {magic} at byte {start}")
        end = start + LOG_OVERHEAD_BYTES + size
        if end > total:
            return
        yield Span(start, end, magic)
        start = end


def stored_magic(body: Buffer) -> int:
    """The magic of a stored set. Raises CorruptRecordSetError for an unknown one."""
    if len(body) < LOG_OVERHEAD_BYTES + LEAST_SIZE_BYTES:
        raise CorruptRecordSetError(f"a stored set of {len(body)} bytes")
    magic = body[MAGIC_AT]
    if magic > MAX_MAGIC:
        raise CorruptRecordSetError(f"unknown magic {magic} in a stored set")
    return magic


def whole_spans(body: Buffer) -> Iterator[Span]:
    """The batches of a stored set. Raises CorruptRecordSetError if the last one is cut off."""
    end = 0
    for span in spans(body):
        end = span.end
        yield span
    if end != len(body) or not end:
        raise CorruptRecordSetError(f"{len(body) - end} bytes of a stored set are not a message")


def read_unsigned(data: Buffer, at: int, most_bits: int = MOST_BITS_32) -> tuple[int, int]:
    """A number before zigzag decoding, and its end. Raises ValueError, IndexError.

    Bits beyond 32 or 64 are dropped, as by Java.
    """
    value = bits = 0
    byte = 0x80
    while byte & 0x80:
        if bits == most_bits:
            raise ValueError(f"a number of more than {most_bits // 7} bytes at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << bits
        bits += 7
    return value & (0xFFFFFFFF if most_bits == MOST_BITS_32 else 0xFFFFFFFFFFFFFFFF), at


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """A signed number of 32 bits and its end. Raises ValueError, IndexError."""
    value = data[at]
    if value < 0x80:
        return value >> 1 ^ -(value & 1), at + 1
    byte = data[at + 1]
    if byte < 0x80:
        value += (byte << 7) - 128
        return value >> 1 ^ -(value & 1), at + 2
    value, at = read_unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def read_varlong(data: Buffer, at: int) -> tuple[int, int]:
    """A signed number of 64 bits and its end. Raises ValueError, IndexError."""
    if data[at] < 0x80 or data[at + 1] < 0x80:
        return read_varint(data, at)
    value, at = read_unsigned(data, at, MOST_BITS_64)
    return value >> 1 ^ -(value & 1), at


def varint(value: int) -> bytes:
    """A number of at most 64 bits, encoded."""
    value = value << 1 ^ value >> 63
    if value < 0x1000:
        return _SMALL[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL = [bytes((value,)) for value in range(0x80)] + [
    bytes((value & 0x7F | 0x80, value >> 7)) for value in range(0x80, 0x1000)
]
"""Most numbers of a record have one or two bytes."""


def int64(value: int) -> int:
    """Wrap a number to 64 bits, as Java's long does. Sums of times may overflow."""
    if -(2**63) <= value < 2**63:
        return value
    return (value + 2**63) % 2**64 - 2**63
