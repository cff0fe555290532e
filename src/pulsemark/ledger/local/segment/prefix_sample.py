"""A sparse sample of one segment, for searching by prefixes: one row in thirteen, in memory.

A search bisects the sample without any read, then reads record headers with their prefixes from
the sampled record on: at most fourteen small reads, whatever the size of the segment, and no
payload. Costs 16 bytes per thirteen entries, built when first used and extended as the segment
grows.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING

from .index_format import CHUNK_ROWS

if TYPE_CHECKING:
    from .segment import (
        Segment,
    )

STRIDE_ROWS = 13


class PrefixSample:
    """Running maximum of times, messages before, and offset of every thirteenth row."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._extending = threading.Lock()
        self.times: array[int] = array("Q")
        """Running maximum of entry times up to and with the sampled row."""
        self.nexts: array[int] = array("I")
        """Messages of the segment up to and with the sampled row."""
        self.offsets: array[int] = array("I")

    def extend(self) -> None:
        """Take in what the segment shows by now. Several threads may search at once."""
        with self._extending:
            self._extend()

    def _extend(self) -> None:
        row = len(self.times) * STRIDE_ROWS
        count = self._segment.entry_count
        while row < count:
            chunk = self._segment.chunk(row)
            first = row - chunk.first_row
            last = min(len(chunk.times), count - chunk.first_row)
            # Offsets first: a search that is under way bisects the others, then looks there.
            self.offsets.extend(chunk.offsets[first:last:STRIDE_ROWS])
            self.nexts.extend(chunk.nexts[first:last:STRIDE_ROWS])
            self.times.extend(chunk.times[first:last:STRIDE_ROWS])
            row = len(self.times) * STRIDE_ROWS


assert CHUNK_ROWS > STRIDE_ROWS
