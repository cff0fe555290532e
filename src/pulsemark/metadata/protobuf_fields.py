"""Protobuf's encoding without a message's type: the fields of a message, and varints."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
"""Wire types."""
VARINT_MAX_BYTES = 10
FIELD_NUMBER_MAX = 2**29 - 1
GROUPS_DEPTH_MAX = 100
"""How deep groups are in what protobuf itself reads."""


class MalformedError(ValueError):
    """The bytes are not a protobuf message."""


def fields_of(data: bytes, groups: int = 0) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of one message, each as `field_at` gives it. Raises MalformedError."""
    at, end = 0, len(data)
    while at < end:
        field = field_at(data, at, end, groups)
        yield field
        at = field[-1]


def field_at(
    data: bytes | memoryview, at: int, end: int, groups: int = 0
) -> tuple[int, int, int, int, int]:
    """The field that begins at a place before ``end``; ``groups``: how deep groups may be.

    Returns:
        Number, wire type, value (of bytes their count), and where its bytes begin and end.

    Raises MalformedError: at bytes that are not a field.
    """
    tag, at = read_varint(data, at)
    number, wire_type = tag >> 3, tag & 7
    start, value = at, 0
    if wire_type == VARINT:
        value, at = read_varint(data, at)
    elif wire_type == BYTES:
        value, start = read_varint(data, at)
        at = start + value
    elif wire_type in (FIXED32, FIXED64):
        at += 4 if wire_type == FIXED32 else 8
    elif wire_type == GROUP and groups:
        at = _group_end(data, at, end, number, groups - 1)
    else:
        raise MalformedError
    if at > end or not 0 < number <= FIELD_NUMBER_MAX:
        raise MalformedError
    return number, wire_type, value if value < 1 << 63 else value - (1 << 64), start, at


def _group_end(data: bytes | memoryview, at: int, end: int, number: int, groups: int) -> int:
    """The end of a group whose content begins at ``at``."""
    while True:
        tag, after = read_varint(data, at)
        if tag == number << 3 | GROUP_END:
            return after
        *_, at = field_at(data, at, end, groups)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint in ``data`` at ``at``, modulo 2^64, and its end; raises MalformedError."""
    number = shift = 0
    for byte in data[at : at + VARINT_MAX_BYTES]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + shift // 7
    raise MalformedError


ONE_BYTE = [bytes((value,)) for value in range(0x80)]
"""The varints of the numbers below 128."""
_TWO = struct.Struct("BB")
_THREE = struct.Struct("BBB")


def varint(value: int) -> bytes:
    """`value` (0 to 2^64-1) as protobuf's base-128 varint."""
    if value < 0x80:
        return ONE_BYTE[value]
    if value < 0x4000:
        return _TWO.pack(value & 0x7F | 0x80, value >> 7)
    if value < 0x20_0000:
        return _THREE.pack(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
