"""Where the fields of messages and batches are. All integers are big-endian.

In every magic, byte 0 has an offset, byte 8 the size of what follows byte 12, byte 16 the magic::

    magic 0, 1   offset i64, size i32, crc u32, magic i8, attributes i8, [1: time i64],
                 key size i32, key, value size i32, value        (a size of -1: null)
    magic 2      baseOffset i64, size i32, leaderEpoch i32, magic i8, crc u32, attributes i16,
                 lastOffsetDelta i32, baseTime i64, maxTime i64, producerId i64,
                 producerEpoch i16, baseSequence i32, count i32, records

The checksum of magic 0 and 1 (CRC-32) covers magic to end, that of magic 2 (CRC-32C) attributes to
end: neither covers the offset, and magic 2's not the leader epoch. So a broker writes these fields
without touching the rest.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

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
