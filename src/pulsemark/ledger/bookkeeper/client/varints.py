"""Protobuf's numbers and tags, for what is written by hand."""

from __future__ import annotations

LEN = 2
"""Protobuf's wire type of bytes and messages."""

_LOW_MORE = [bytes((low | 0x80,)) for low in range(0x80)]
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """A number that is not negative, as protobuf writes it."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varints(first: int, count: int) -> list[bytes]:
    """Consecutive numbers. Of 128 each only the first byte is another."""
    out: list[bytes] = []
    end = first + count
    while first < end:
        low = first & 0x7F
        until = min(0x80, low + end - first)
        if first < 0x80:
            out += _ONE_BYTE[low:until]
        else:
            rest = varint(first >> 7)
            out += [byte + rest for byte in _LOW_MORE[low:until]]
        first += until - low
    return out


def tag(number: int, wire_type: int = 0) -> bytes:
    """What stands before a field."""
    return varint(number << 3 | wire_type)
