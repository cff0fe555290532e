"""Puts the bytes of stored records into an encoded response, without copying them.

The codec would copy all records into its buffer. So a response is encoded with a mark of 16 random
bytes in place of each partition's records. The encoded bytes are cut at the marks, and the size in
front of each mark is replaced. In the versions that are served, that size is an i32.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct

from ...metadata import Buffer

__all__ = ["RECORDS_MARK", "splice"]

RECORDS_MARK = os.urandom(16)
"""Stands in a response for the records of one partition. No client can know it."""

_SIZE = Struct(">i")


def splice(encoded: bytes, records: Sequence[Sequence[Buffer]]) -> list[Buffer]:
    """An encoded frame with the records of each partition in place of its mark.

    Raises ValueError if there are more or fewer marks than `records`.
    """
    pieces = encoded.split(RECORDS_MARK)
    if len(pieces) != len(records) + 1:
        raise ValueError(f"{len(pieces) - 1} marks for the records of {len(records)} partitions")
    sizes = [sum(map(len, parts)) for parts in records]
    total_bytes = len(encoded) - 4 + sum(sizes) - len(records) * len(RECORDS_MARK)
    pieces[0] = _SIZE.pack(total_bytes) + pieces[0][4:]
    spliced: list[Buffer] = []
    for piece, size_bytes, parts in zip(pieces, sizes, records, strict=False):
        spliced.append(piece[:-4] + _SIZE.pack(size_bytes))
        spliced.extend(parts)
    spliced.append(pieces[-1])
    return spliced
