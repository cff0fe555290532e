"""Runs of records of one shape: checked column by column instead of record by record.

Producers that send alike messages make batches whose records have equal sizes, so that each field
stands at equal distances. A slice with that stride is a field of all these records at once, and
comparing slices costs a tenth of reading numbers one after another. What may differ in a run are
the bytes of keys and values, the time deltas, and the offset deltas, which have to count up. A
record with headers or with other sizes ends a run. `scan` reads such records by itself.
"""

from __future__ import annotations

from typing import NamedTuple

from .record import TOMBSTONE_FLAG
from .varints import MOST_BITS_64, read_unsigned

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


class Run(NamedTuple):
    """Records of one shape."""

    records: int
    end: int
    latest: int
    """The highest time delta."""
    has_key: bool
    is_null: bool
    flagged: bool


class _Shape(NamedTuple):
    """Where the fields of the run's first record stand."""

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
    """Whether the offset deltas are ``number`` and those that follow it."""
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
    """The highest time delta; None: the numbers are too long to be worth it."""
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
