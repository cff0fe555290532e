"""Small protobuf messages that are built alike, read together by comparing words.

The headers of a topic's entries differ in their numbers, hardly ever in how they are built: the
same fields in the same order, each of the same size. A *skeleton* has all bytes that decide this:
tags, lengths, and the high bits of varints. Messages with the same skeleton have each field at the
same place. So it is enough to parse one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fields import VARINT, MalformedError, fields_of
from .octets import Bools, Bytes, Ints, Words, items_at, joined_groups

_WORD_BYTES = 8
_SIZE_MAX_BYTES = 256
"""Larger messages are not compared: their bytes would be copied."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field and its place in each message."""

    number: int
    wire_type: int
    start: int
    end: int

    def numbers(self, heads: Words) -> Ints:
        """The varints of messages, of which ``heads`` are the first bytes."""
        row_bytes = heads.shape[1] * _WORD_BYTES
        at_start: Words = np.ndarray(
            (len(heads),), "<u8", buffer=heads, offset=self.start, strides=(row_bytes,)
        )
        return joined_groups(at_start & np.uint64((1 << 8 * (self.end - self.start)) - 1))


@dataclass(frozen=True, slots=True)
class Skeleton:
    """How messages are built."""

    size: int
    fields: tuple[Field, ...]
    words: tuple[tuple[int, int], ...]
    """Of each eight bytes: the bits that are compared, and what they are. Eight bytes more than
    the messages have, so that eight bytes can be read at the last field."""

    def alike(self, data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Words]:
        """Which messages ``data[start:end]`` have this skeleton, and their first bytes."""
        last = len(data) - len(self.words) * _WORD_BYTES
        fitting: Bools = (ends - starts == self.size) & (starts <= last)
        rows: Ints = np.flatnonzero(fitting)
        heads = self._first_bytes(data, starts if len(rows) == len(starts) else starts[rows])
        for column, (mask, bits) in enumerate(self.words):
            if mask:
                right = heads[:, column] & np.uint64(mask) == np.uint64(bits)
                if not bool(right.all()):
                    rows, heads = rows[right], heads[right]
        return rows, heads

    def _first_bytes(self, data: Bytes, starts: Ints) -> Words:
        """The words of each message; all must be inside ``data``."""
        count = len(self.words)
        items = np.ascontiguousarray(items_at(data, f"V{count * _WORD_BYTES}", starts))
        return items.view("<u8").reshape(len(starts), count)


def skeleton_of(message: bytes) -> Skeleton | None:
    """The skeleton of a message; None if it is malformed, large, or has very long varints."""
    if not 0 < len(message) <= _SIZE_MAX_BYTES:
        return None
    width = -(-len(message) // _WORD_BYTES) * _WORD_BYTES + _WORD_BYTES
    mask = bytearray(b"\xff" * len(message)).ljust(width, b"\0")
    fields = []
    try:
        for number, wire_type, _, start, end in fields_of(message):
            if wire_type == VARINT and end - start > _WORD_BYTES:
                return None
            free = b"\x80" if wire_type == VARINT else b"\0"
            mask[start:end] = free * (end - start)
            fields.append(Field(number, wire_type, start, end))
    except MalformedError:
        return None
    bits = bytes(a & b for a, b in zip(mask, message.ljust(width, b"\0"), strict=True))
    words = tuple(
        (int.from_bytes(mask[at : at + _WORD_BYTES], "little"), int.from_bytes(each, "little"))
        for at, each in ((at, bits[at : at + _WORD_BYTES]) for at in range(0, width, _WORD_BYTES))
    )
    return Skeleton(len(message), tuple(fields), words)
