"""Bytes of the records of a segment, and the one parser of them.

A record is a header of 40 bytes, then the entry as Pulsar would store it (prefix, then body), then
our checksum where the body has none of the producer's. docs/formats.md has the table of the
header's fields; no other module computes their offsets.

40 bytes of header, 18 of prefix (broker time, an index below 2^28) and the six body bytes make
64. So each step of a search is one small read, with its checksum checked and no payload read.

The ledger id is only part of the checksum's input: a record of another ledger does not match here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ....metadata import PREFIX_HEADER_SIZE_BYTES
from ....metadata.crc import crc32c
from ...limits import BODY_CRC_OURS, BODY_CRC_PRODUCER, CHECKED_BODY_BYTES
from ..io.files import Buffer

_U32 = struct.Struct("<I")
RECORD_HEADER = struct.Struct("<4sIIHBBIIQq")
RECORD_HEADER_SIZE = RECORD_HEADER.size
RECORD_CORE = struct.Struct("<IHBBIIQq")
"""The part of the record header that its checksum covers."""
CORE_OFFSET = RECORD_HEADER_SIZE - RECORD_CORE.size
RECORD_LEAD = struct.Struct("<4sI")
_PRODUCER_CRC = struct.Struct(">I")
_VIEW_FROM_BYTES = 2048

BODY_CRC_SIZE = 4
"""The checksum after a body that has none of its own."""
assert (RECORD_HEADER_SIZE, CORE_OFFSET) == (40, 8)


class RecordKey(NamedTuple):
    """The marker and checksum seed that only the records of one segment have."""

    marker: bytes
    """The first four bytes of each record."""
    seed: int
    """The start value of the checksum of each record's header."""


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
    """Record header and prefix in one piece. The body follows unchanged, then ``pack_body_crc`` if
    ``body_check`` is BODY_CRC_OURS.
    """
    prefix_size = len(prefix)
    core = RECORD_CORE.pack(
        prefix_size + len(body), prefix_size, kind, body_check,
        entry_id, message_count, append_time_ms, index,
    )  # fmt: skip
    core += prefix
    marker, seed = key
    return RECORD_LEAD.pack(marker, crc32c(core + body[:CHECKED_BODY_BYTES], seed)) + core


def pack_records(
    key: RecordKey,
    first_entry_id: int,
    kind: int,
    message_counts: Sequence[int],
    append_time_ms: int,
    next_index: int,
    prefixes: Sequence[bytes],
    bodies: Sequence[Buffer],
    body_check: int,
    offset: int,
) -> tuple[list[Buffer], list[int]]:
    """The records of consecutive entries of the same kind, time and body check, from ``offset`` on.

    Returns their parts, and where each record ends. The loop is `pack_record_head` once more: a
    call for each record would cost half as much as all the rest.
    """
    marker, seed = key
    pack_core, pack_lead, crc_of = RECORD_CORE.pack, RECORD_LEAD.pack, crc32c
    parts: list[Buffer] = []
    ends: list[int] = []
    entry_id, index = first_entry_id, next_index - 1
    for prefix, body, count in zip(prefixes, bodies, message_counts, strict=True):
        index += count
        prefix_size = len(prefix)
        size = prefix_size + len(body)
        core = pack_core(
            size, prefix_size, kind, body_check, entry_id, count, append_time_ms, index
        )
        core += prefix
        parts.append(pack_lead(marker, crc_of(core + body[:CHECKED_BODY_BYTES], seed)) + core)
        parts.append(body)
        offset += RECORD_HEADER_SIZE + size
        if body_check == BODY_CRC_OURS:
            parts.append(pack_body_crc(body))
            offset += BODY_CRC_SIZE
        ends.append(offset)
        entry_id += 1
    return parts, ends


def pack_body_crc(body: Buffer) -> bytes:
    """The checksum after a body that has none of its own."""
    return _U32.pack(crc32c(body))


def record_size(entry_size_bytes: int, body_check: int) -> int:
    """The size of a record, from its marker to the next record."""
    return (
        RECORD_HEADER_SIZE
        + entry_size_bytes
        + (0 if body_check == BODY_CRC_PRODUCER else BODY_CRC_SIZE)
    )


class RecordFields(NamedTuple):
    """The fields of a record header."""

    marker: bytes
    crc: int
    entry_size_bytes: int
    prefix_size_bytes: int
    kind: int
    body_check: int
    entry_id: int
    message_count: int
    append_time_ms: int
    index: int  # type: ignore[assignment]

    @property
    def record_size_bytes(self) -> int:
        """The size of the record, from its marker to the next record."""
        return record_size(self[2], self[5])


_fields: Callable[[tuple[object, ...]], RecordFields] = partial(tuple.__new__, RecordFields)
"""Makes RecordFields from an unpacked header in half of the time."""


RecordTuple = tuple[bytes, int, int, int, int, int, int, int, int, int]
"""The same fields as a plain tuple: named ones cost time if thousands of records are read."""


class BadRecordError(Exception):
    """The bytes are not a whole record. ``short``: they end before that can be decided."""

    def __init__(self, reason: str, *, short: bool = False) -> None:
        self.reason = reason
        self.short = short
        super().__init__(reason)


def unpack_record_head(data: Buffer, offset: int, key: RecordKey) -> RecordFields:
    """Check header, prefix and up to six body bytes of a record. Raises BadRecordError."""
    start = offset + RECORD_HEADER_SIZE
    if start > len(data):
        raise BadRecordError("the record header is cut off", short=True)
    fields = RECORD_HEADER.unpack_from(data, offset)
    marker, crc, size, prefix_size, _, _, _, _, _, _ = fields
    own_marker, seed = key
    if marker != own_marker:
        raise BadRecordError("no record marker")
    if prefix_size > size:
        raise BadRecordError("the prefix is larger than the entry")
    checked_end = start + min(prefix_size + CHECKED_BODY_BYTES, size)
    if checked_end > len(data):
        raise BadRecordError("the record is cut off", short=True)
    if crc32c(data[offset + CORE_OFFSET : checked_end], seed) != crc:
        raise BadRecordError("the header checksum does not match")
    return _fields(fields)


def whole_record(data: Buffer, view: memoryview, at: int, key: RecordKey) -> RecordTuple:
    """The fast way: the header of a record with good checksums. Raises BadRecordError."""
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
    """The stored entries in ``data``, known to be whole. ``data`` begins at offsets[0]."""
    view = memoryview(data)
    start = offsets[0] - RECORD_HEADER_SIZE
    size_at = 8 - RECORD_HEADER_SIZE
    size_of = _U32.unpack_from
    return [
        view[(at := offset - start) : at + size_of(data, at + size_at)[0]] for offset in offsets
    ]


def body_damage(fields: RecordFields, record: memoryview) -> str | None:
    """The damage to the body of ``record``, which begins at its marker; None: it is whole."""
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


FIRST_TAG_AT = RECORD_HEADER_SIZE + PREFIX_HEADER_SIZE_BYTES
"""The offset of the tag of a prefix's first field, in a record."""
BROKER_TIMESTAMP_TAG = 0x08
"""Field 1 of the prefix's protobuf, which stampers write first. The ledger makes sure that its
value is the record's append time."""
