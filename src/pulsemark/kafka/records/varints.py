"""Zigzag varints, as records of magic 2 have them (Protocol Buffers' sint32 and sint64).

A varint has at most 5 bytes, a varlong 10. What is longer, or cut off, raises ValueError or
IndexError, which the readers of records turn into their own errors.
"""

from __future__ import annotations

from ...metadata import Buffer

MOST_BITS_32, MOST_BITS_64 = 35, 70
"""The bits in the longest varint, and varlong."""


def read_unsigned(data: Buffer, at: int, most_bits: int = MOST_BITS_32) -> tuple[int, int]:
    """A number before its zigzag is undone, and where it ends. Raises ValueError, IndexError.

    It has 32 or 64 bits: those beyond are dropped, as by Java.
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
    """A signed number of 32 bits and where it ends. Raises ValueError, IndexError."""
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
    """A signed number of 64 bits and where it ends. Raises ValueError, IndexError."""
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
    """A number as Java keeps it in a long. Times are anything, so their sums may overflow."""
    if -(2**63) <= value < 2**63:
        return value
    return (value + 2**63) % 2**64 - 2**63
