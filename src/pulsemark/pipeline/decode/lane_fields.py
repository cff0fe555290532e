"""The next field of each of very many protobuf messages at once: a step of :mod:`.protoscan`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fields import BYTES, FIELD_NUMBER_MAX, FIXED32, FIXED64, VARINT, VARINT_MAX_BYTES
from .octets import Bools, Bytes, Ints, at_every_place, joined_groups

_LENGTH_MAX = 2**31 - 1


@dataclass(slots=True)
class Fields:
    """One field of each lane."""

    tags: Ints
    """Field number and wire type as encoded; -1 if the lane is malformed."""
    values: Ints
    """A varint's number, a byte string's length."""
    starts: Ints
    """Where a byte string begins."""
    ends: Ints
    """Where the field ends; where the lane ends if it is malformed."""
    broken: Bools


_TAG_BITS = np.uint64(8)
_ONE = np.uint64(1)
_STOPS = np.uint64(0x0080808080808080)


def take_fields(data: Bytes, at: Ints, ends: Ints) -> Fields:
    """Read the field that begins at each of the places ``at``, each before its end.

    Nearly all fields have a tag of one byte and a varint (a number or a length) of up to seven
    bytes. For these, eight bytes are read at once. The other fields are read byte by byte.
    """
    words_at = at_every_place(data, "<u8")
    last = len(words_at) - 1
    if last < 0:
        return _take_unusual_fields(data, at, ends)
    words = words_at[np.minimum(at, last)]
    tags = (words & np.uint64(0xFF)).view(np.int64)
    # The first byte without its high bit ends the varint.
    words >>= _TAG_BITS
    stops = ~words & _STOPS
    below = (stops & (~stops + _ONE)) - _ONE
    values = joined_groups(words & below)
    starts = at + 1 + (np.bitwise_count(below) + 1 >> 3)
    is_bytes = tags & 7 == BYTES
    field_ends = starts + values * is_bytes
    odd = (stops == 0) | (field_ends > ends) | (at > last) | (tags >= 0x80) | (tags < 1 << 3)
    odd |= ~is_bytes & (tags & 7 != VARINT)
    fields = Fields(tags, values, starts, field_ends, np.zeros(len(at), np.bool_))
    rest = np.flatnonzero(odd)
    if len(rest):
        slow = _take_unusual_fields(data, at[rest], ends[rest])
        fields.tags[rest], fields.values[rest] = slow.tags, slow.values
        fields.starts[rest], fields.ends[rest] = slow.starts, slow.ends
        fields.broken[rest] = slow.broken
    return fields


def _take_unusual_fields(data: Bytes, at: Ints, ends: Ints) -> Fields:
    """The same for fields of any form."""
    tags, at, broken = _varints(data, at, ends)
    wire_types, numbers = tags & 7, tags >> 3
    values, after, cut = _varints(data, at, ends)
    is_varint, is_bytes = wire_types == VARINT, wire_types == BYTES
    is_32, is_64 = wire_types == FIXED32, wire_types == FIXED64
    broken |= (numbers <= 0) | (numbers > FIELD_NUMBER_MAX)
    broken |= ~(is_varint | is_bytes | is_32 | is_64)
    broken |= cut & (is_varint | is_bytes)
    broken |= is_bytes & ((values < 0) | (values > _LENGTH_MAX))
    field_ends = np.where(is_bytes, after + values, after)
    field_ends = np.where(is_32, at + 4, np.where(is_64, at + 8, field_ends))
    broken |= field_ends > ends
    return Fields(
        np.where(broken, -1, tags), values, after, np.where(broken, ends, field_ends), broken
    )


def _varints(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints, Bools]:
    """Read one varint at each of the places ``at``, byte by byte.

    Returns:
        The numbers (as int64: 2^63 and more wrap), where each ends, and which are malformed: cut
        off by ``ends``, or longer than 10 bytes.
    """
    last = len(data) - 1
    numbers, after = np.zeros(len(at), np.int64), at.copy()
    broken = np.zeros(len(at), np.bool_)
    going = np.arange(len(at))
    for place in range(VARINT_MAX_BYTES):
        cut = after[going] >= ends[going]
        broken[going[cut]] = True
        going = going[~cut]
        byte = data[np.minimum(after[going], last)].astype(np.int64)
        numbers[going] |= (byte & 0x7F) << (7 * place)
        after[going] += 1
        going = going[byte >= 0x80]
        if not len(going):
            break
    broken[going] = True
    return numbers, after, broken
