"""The check of the records of a set when it is produced: sizes, checksums, numbers, keys, times.

This is what a set costs that is stored in place. So it is one loop for magic 2 and one for 0 and 1,
which make no objects, and runs of records of one shape are checked at once (`uniform_run`). They
accept the same bytes as the readers in `batch` and `legacy`; tests hold them together.

Producers that send alike messages make batches whose records have equal sizes, so that each field
stands at equal distances. A slice with that stride is a field of all these records at once, and
comparing slices costs a tenth of reading numbers one after another. What may differ in a run are
the bytes of keys and values, the time deltas, and the offset deltas, which have to count up. A
record with headers or with other sizes ends a run. Such records are read one by one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

from ...metadata import Buffer
from . import layout
from .batch import read_headers
from .layout import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    MAX_RECORDS,
    MESSAGE_KEY_AT,
    MOST_BITS_64,
    NO_TIME_MS,
    TOMBSTONE_FLAG,
    CorruptRecordSetError,
    InvalidRecordSetError,
    int64,
    read_unsigned,
    spans,
)

_ONE_BYTE = 0x7F
#: So few records are read in any memory.
FEW_RECORDS = 64
LEAST_RECORDS = 8
"""A shorter run is not worth its check."""
# Deltas below these have one and two bytes. Those above have three bytes, of which the third one
# stays the same for as many records as there are deltas of up to two bytes.
_ONE_BYTE_OFFSETS, _TWO_BYTE_OFFSETS = 64, 8192
_LOW = bytes(n << 1 & 0x7F | 0x80 for n in range(_TWO_BYTE_OFFSETS))
_HIGH = bytes(n >> 6 for n in range(_TWO_BYTE_OFFSETS))
_MIDDLE = bytes(byte | 0x80 for byte in _HIGH)
_SMALL = bytes(n << 1 for n in range(_ONE_BYTE_OFFSETS))
# Bytes with and without the bit that says that a number goes on.
_GOES_ON = bytes(byte >> 7 for byte in range(256))
# One-byte deltas in the order of their values, from -64 on.
_ORDER = bytes((byte >> 1 ^ -(byte & 1)) + 64 & 0xFF for byte in range(256))


@dataclass(slots=True)
class Scan:
    """The result of checking a set's records."""

    count: int = 0
    numbered: bool = True
    """Whether the offsets are 0, 1, 2 ..., so that none has to be assigned."""
    max_time_ms: int = NO_TIME_MS
    keys: int = 0
    """Records that have a key."""
    nulls: int = 0
    """Records without a value and without the tombstone flag."""
    flags: int = 0
    """Records with the tombstone flag."""
    end: int = 0
    """Magic 0 and 1: the end of the last whole message."""
    largest_bytes: int = 0
    """Magic 0 and 1: the size of the largest message, in bytes."""
    states_broker_time: bool = False
    """Magic 1: whether a message has the attribute of LogAppendTime."""


def suits_view(raw: memoryview, count: int) -> bool:
    """Whether to read records in a view; single numbers are read faster from copied bytes."""
    if count < FEW_RECORDS:
        return True
    try:
        size, at = read_unsigned(raw, 0)
    except (IndexError, ValueError):
        return True
    return looks_uniform(raw, 0, at + (size >> 1))


def scan_records(raw: bytes | memoryview, count: int, base_time_ms: int, begin: int = 0) -> Scan:
    """Check the records of a batch of magic 2, decompressed, which are ``raw`` from ``begin`` on.

    Raises InvalidRecordSetError: they are not records, or not ``count`` of them.
    """
    try:
        scan, at, latest = _scan(raw, count, begin)
    except (IndexError, ValueError) as error:
        raise InvalidRecordSetError(
            f"{count} records in {len(raw) - begin} bytes: {error}"
        ) from error
    if at != len(raw):
        raise InvalidRecordSetError(f"{len(raw) - at} bytes after {count} records")
    scan.max_time_ms = int64(base_time_ms + latest)
    return scan


def _scan(raw: bytes | memoryview, count: int, begin: int) -> tuple[Scan, int, int]:
    """Read the records. Return the result, their end, and the latest time delta.

    Numbers of one or two bytes, the ordinary ones, are read inline. After a failed look for a run
    the next look is later, and later each time.
    """
    at = start = begin
    keys = nulls = flags = number = last_size = 0
    numbered, latest, total, next_try, wait = True, -(2**63), len(raw), 1, LEAST_RECORDS
    while number < count:
        tried = number >= next_try and raw[at] == last_size and looks_uniform(raw, at, at - start)
        if tried and (run := uniform_run(raw, at, number, count)):
            at, number = run.end, number + run.records
            keys += run.records * run.has_key
            nulls += run.records * (run.is_null and not run.flagged)
            flags += run.records * run.flagged
            latest = max(latest, run.latest)
            continue
        if tried:
            next_try, wait = number + wait, wait * 2
        start, last_size = at, raw[at]
        size, at = last_size, at + 1
        if size > _ONE_BYTE:
            size, at = size + (raw[at] << 7) - 128, at + 1
            if raw[at - 1] > _ONE_BYTE:
                size, at = read_unsigned(raw, at - 2)
        end = at + (size >> 1)
        if size & 1 or end > total:
            raise ValueError(f"record {number} ends at byte {end}")
        flagged = raw[at] & TOMBSTONE_FLAG
        delta, at = raw[at + 1], at + 2
        if delta > _ONE_BYTE:
            delta, at = read_unsigned(raw, at - 1, MOST_BITS_64)
        delta = delta >> 1 ^ -(delta & 1)
        if delta > latest:
            latest = delta
        offset, at = raw[at], at + 1
        if offset > _ONE_BYTE:
            offset, at = offset + (raw[at] << 7) - 128, at + 1
            if raw[at - 1] > _ONE_BYTE:
                offset, at = read_unsigned(raw, at - 2)
        if offset != number << 1:
            numbered = False
        size, at = raw[at], at + 1
        if size > _ONE_BYTE:
            size, at = read_unsigned(raw, at - 1)
        if not size & 1:
            keys, at = keys + 1, at + (size >> 1)
        size, at = raw[at], at + 1
        if size > _ONE_BYTE:
            size, at = size + (raw[at] << 7) - 128, at + 1
            if raw[at - 1] > _ONE_BYTE:
                size, at = read_unsigned(raw, at - 2)
        if not size & 1:
            at += size >> 1
        elif not flagged:
            nulls += 1
        if flagged:
            flags += 1
        if raw[at] or at + 1 != end:
            at += read_headers(bytes(raw[at:end]), 0, end - at)[1]
            if at != end:
                raise ValueError(f"record {number} ends {end - at} bytes before its size")
        else:
            at = end
        number += 1
    return Scan(count, numbered, NO_TIME_MS, keys, nulls, flags), at, latest


def scan_messages(records: Buffer, magic: int) -> Scan:
    """Check plain messages of magic 0 or 1: a produced set, or the set in a wrapper.

    Raises CorruptRecordSetError: a wrong checksum, or sizes that point beyond their message. Raises
    InvalidRecordSetError: a message of another magic, a wrapper, or more than `MAX_RECORDS`.
    """
    scan = Scan()
    view = memoryview(records)
    least = MESSAGE_KEY_AT[magic] + 2 * layout.SIZE.size
    for start, end, found in spans(view):
        if found != magic:
            raise InvalidRecordSetError(f"a message of magic {found} in a set of magic {magic}")
        if end - start < least:
            raise CorruptRecordSetError(f"a message of {end - start} bytes, of magic {magic}")
        offset, _, crc, _, attributes = layout.MESSAGE_HEADER.unpack_from(view, start)
        actual = zlib.crc32(view[start + layout.MESSAGE_COVERED_AT : end])
        if actual != crc:
            raise CorruptRecordSetError(f"CRC-32 is {actual:#010x}, a message says {crc:#010x}")
        if attributes & CODEC_MASK:
            raise InvalidRecordSetError("a compressed message in another one, or after a plain one")
        if scan.count == MAX_RECORDS:
            raise InvalidRecordSetError(f"more than {MAX_RECORDS} messages in a set")
        if offset != scan.count:
            scan.numbered = False
        scan.count += 1
        scan.end = end
        if end - start > scan.largest_bytes:
            scan.largest_bytes = end - start
        if magic:
            (time_ms,) = layout.TIME.unpack_from(view, start + layout.MESSAGE_TIME_AT)
            if time_ms > scan.max_time_ms:
                scan.max_time_ms = time_ms
            if attributes & LOG_APPEND_TIME:
                scan.states_broker_time = True
        _scan_key_and_value(view, start + MESSAGE_KEY_AT[magic], end, scan)
    return scan


def _scan_key_and_value(view: memoryview, at: int, end: int, scan: Scan) -> None:
    (key_size,) = layout.SIZE.unpack_from(view, at)
    at += layout.SIZE.size
    if key_size >= 0:
        scan.keys += 1
        at += key_size
    if key_size < -1 or at + layout.SIZE.size > end:
        raise CorruptRecordSetError(f"a message with a key of {key_size} bytes")
    (value_size,) = layout.SIZE.unpack_from(view, at)
    at += layout.SIZE.size
    if value_size >= 0:
        at += value_size
    else:
        scan.nulls += 1
    if value_size < -1 or at != end:
        raise CorruptRecordSetError(f"a message with a value of {value_size} bytes")


class Run(NamedTuple):
    """Consecutive records of one shape."""

    records: int
    end: int
    latest: int
    """The highest time delta."""
    has_key: bool
    is_null: bool
    flagged: bool


class _Shape(NamedTuple):
    """The offsets of the fields of a run's first record."""

    attributes: int
    offset: int
    key: int
    key_bytes: int
    value: int
    value_bytes: int
    last: int


def looks_uniform(raw: bytes | memoryview, start: int, stride: int) -> bool:
    """Whether a run may begin at ``start``: the records ahead seem to have the same size."""
    ahead = start + (LEAST_RECORDS - 1) * stride
    return ahead < len(raw) and raw[start] == raw[start + stride] == raw[ahead]


def uniform_run(raw: bytes | memoryview, start: int, number: int, count: int) -> Run | None:
    """The run that begins with record ``number`` at byte ``start``, if there is one.

    Raises ValueError, IndexError: as the readers of varints.
    """
    shape = _shape(raw, start, number)
    limit = number - number % _TWO_BYTE_OFFSETS + _TWO_BYTE_OFFSETS
    if number < _ONE_BYTE_OFFSETS:
        limit = _ONE_BYTE_OFFSETS
    if shape is None or shape.last >= len(raw):
        return None
    stride = shape.last + 1 - start
    records = min(count, limit) - number
    records = min(records, (len(raw) - start) // stride)
    alike = (
        *range(start, shape.attributes + 1),
        *range(shape.key, shape.key_bytes),
        *range(shape.value, shape.value_bytes),
        shape.last,
    )
    for at in alike:
        column = bytes(raw[at : start + records * stride : stride])
        records -= len(column.lstrip(column[:1]))
    for at in range(shape.attributes + 1, shape.offset):
        column = bytes(raw[at : start + records * stride : stride]).translate(_GOES_ON)
        records -= len(column.lstrip(column[:1]))
    if records < LEAST_RECORDS:
        return None
    end = start + records * stride
    if not _counts_up(raw, shape, stride, end, number, records):
        return None
    latest = _latest(raw, shape, stride, end)
    if latest is None:
        return None
    return Run(
        records,
        end,
        latest,
        not raw[shape.key] & 1,
        bool(raw[shape.value] & 1),
        bool(raw[shape.attributes] & TOMBSTONE_FLAG),
    )


def _shape(raw: bytes | memoryview, start: int, number: int) -> _Shape | None:
    size, attributes = read_unsigned(raw, start)
    _, offset = read_unsigned(raw, attributes + 1, MOST_BITS_64)
    delta, key = read_unsigned(raw, offset)
    key_size, key_bytes = read_unsigned(raw, key)
    value = key_bytes + (0 if key_size & 1 else key_size >> 1)
    value_size, value_bytes = read_unsigned(raw, value)
    last = value_bytes + (0 if value_size & 1 else value_size >> 1)
    if delta != number << 1 or last + 1 != attributes + (size >> 1) or raw[last]:
        return None
    return _Shape(attributes, offset, key, key_bytes, value, value_bytes, last)


def _counts_up(
    raw: bytes | memoryview, shape: _Shape, stride: int, end: int, number: int, records: int
) -> bool:
    """Whether the offset deltas are ``number`` and the numbers after it."""
    low = bytes(raw[shape.offset : end : stride])
    if shape.key - shape.offset == 1:
        return low == _SMALL[number : number + records]
    number, top = number % _TWO_BYTE_OFFSETS, number // _TWO_BYTE_OFFSETS
    size = shape.key - shape.offset
    if size != (3 if top else 2) or low != _LOW[number : number + records]:
        return False
    high = bytes(raw[shape.offset + 1 : end : stride])
    if not top:
        return high == _HIGH[number : number + records]
    if high != _MIDDLE[number : number + records]:
        return False
    return bytes(raw[shape.offset + 2 : end : stride]) == bytes((top,)) * records


def _latest(raw: bytes | memoryview, shape: _Shape, stride: int, end: int) -> int | None:
    """The highest time delta; None: the numbers are too long to read them at once."""
    at = shape.attributes + 1
    low = bytes(raw[at:end:stride])
    if shape.offset - at == 1:
        return max(low.translate(_ORDER)) - 64
    if shape.offset - at != 2:
        return None
    high, least = max(zip(raw[at + 1 : end : stride], low, strict=True))
    top = least & 0x7F | high << 7
    # An odd number is below zero, and hides the smaller even ones.
    return None if top & 1 else top >> 1
