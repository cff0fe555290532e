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
    return items_at(data, ">u4" if order == "big" else "<u4", at).astype(np.int64)


def items_at(data: Bytes, dtype: str, at: Ints) -> NDArray[Any]:
    """The numbers (or bytes) that begin at the offsets ``at``, all inside ``data``.

    Entries of one size follow each other evenly. Their items are then a view of ``data``, which
    costs no copy and no memory. Otherwise they are copied.
    """
    step = step_of(at)
    if step is None:
        return at_every_place(data, dtype)[at]
    return np.ndarray((len(at),), dtype, buffer=data, offset=int(at[0]), strides=(step,))


def once_if_alike(values: NDArray[Any]) -> NDArray[Any]:
    """The first value alone if all are equal, which numpy broadcasts; else all."""
    alike = len(values) > 0 and values[0] == values[-1] and bool((values == values[0]).all())
    return values[:1] if alike else values


def spread(values: NDArray[Any], count: int) -> NDArray[Any]:
    """An array of ``count`` values, or a single value broadcast without memory."""
    return np.broadcast_to(values, count)


def once(values: NDArray[Any]) -> NDArray[Any]:
    """The reverse of `spread`: a broadcast value alone, else all. No value is compared."""
    return values[:1] if values.strides == (0,) else values


def step_of(places: Ints) -> int | None:
    """The distance between evenly spaced places; None if they are not."""
    if len(places) < 2:
        return None
    first, last = int(places[0]), int(places[-1])
    step = int(places[1]) - first
    if last - first != step * (len(places) - 1):
        return None
    return step if bool((places[1:] - places[:-1] == step).all()) else None


def at_every_place(data: Bytes, dtype: str) -> NDArray[Any]:
    """``data`` as an array of overlapping numbers, one beginning at every byte."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(0, len(data) - size + 1),), dtype, buffer=data, strides=(1,))
