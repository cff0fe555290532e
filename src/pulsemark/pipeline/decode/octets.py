"""Numbers at any place of a buffer, for many places at once."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]

_GROUPS = np.uint64(0x7F7F7F7F7F7F7F7F)
_PAIRS = [
    (np.uint64(width), np.uint64(low), np.uint64(high))
    for width, low, high in (
        (1, 0x007F007F007F007F, 0x7F007F007F007F00),
        (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000),
        (4, 0x000000000FFFFFFF, 0x0FFFFFFF00000000),
    )
]


def joined_groups(words: Words) -> Ints:
    """The numbers of varints of up to eight bytes: of each byte the lower seven bits.

    They are joined two, four and eight at a time. The bytes after a varint must be zero.
    """
    numbers = words & _GROUPS
    for width, low, high in _PAIRS:
        numbers = (numbers & low) | (numbers & high) >> width
    return numbers.view(np.int64)


def u32_at(data: Bytes, at: Ints, order: Literal["big", "little"]) -> Ints:
    """The 32-bit numbers at the offsets ``at``; the 4 bytes of each must be inside ``data``."""
    dtype = ">u4" if order == "big" else "<u4"
    return at_every_place(data, dtype)[at].astype(np.int64)


def at_every_place(data: Bytes, dtype: str) -> NDArray[Any]:
    """``data`` as an array of overlapping numbers, one beginning at every byte."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(0, len(data) - size + 1),), dtype, buffer=data, strides=(1,))
