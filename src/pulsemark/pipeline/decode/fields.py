"""The fields of one small protobuf message, one by one, without its description.

The rules are those of :mod:`.protoscan`, which reads many messages at once.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types. Groups are refused, because Pulsar has none."""
VARINT_MAX_BYTES = 10
FIELD_NUMBER_MAX = 2**29 - 1


def fields_of(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of one message: number, wire type, value, start and end of its bytes.

    Raises:
        MalformedError: at bytes that are not a field.
    """
    at, end = 0, len(data)
    while at < end:
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
        else:
            raise MalformedError
        if at > end or not 0 < number <= FIELD_NUMBER_MAX:
            raise MalformedError
        yield number, wire_type, value if value < 1 << 63 else value - (1 << 64), start, at


class MalformedError(ValueError):
    """The bytes are not a protobuf message."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint in ``data`` at ``at``, modulo 2^64, and its end; raises MalformedError."""
    number = shift = 0
    for byte in data[at : at + VARINT_MAX_BYTES]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + shift // 7
    raise MalformedError
