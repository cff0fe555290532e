"""A sparse sample of one run, for searching by prefixes: one row in thirteen, in memory.

A search first bisects the sample without any read. Then it reads record headers with their prefixes
from the sampled record on: at most fourteen small reads, whatever the size of the run, and no
payload. A sample costs 16 bytes per thirteen entries. It is built when first used, and extended as
the run grows.
"""

from __future__ import annotations

import threading
from array import array
from typing import Protocol

from .rows import Rows

STRIDE_ROWS = 13


class SampledRun(Protocol):
    """The methods of a `Run` that are used here."""

    entry_count: int

    def chunk(self, row: int) -> Rows:
        """Some rows, among them ``row``."""


class PrefixSample:
    """Running maximum of times, messages before, and offset of every thirteenth row."""

    def __init__(self, run: SampledRun) -> None:
        self._run = run
        self._extending = threading.Lock()
        self.times: array[int] = array("Q")
        """Running maximum of entry times up to and with the sampled row."""
        self.nexts: array[int] = array("I")
        """Messages of the run up to and with the sampled row."""
        self.offsets: array[int] = array("I")

    def extend(self) -> None:
        """Add the rows that became visible since. Several threads may search at once."""
        with self._extending:
            self._extend()

    def _extend(self) -> None:
        row = len(self.times) * STRIDE_ROWS
        count = self._run.entry_count
        while row < count:
            chunk = self._run.chunk(row)
            first = row - chunk.first_row
            last = min(len(chunk.times), count - chunk.first_row)
            # Offsets first: a running search bisects the other two, then reads the offset.
            self.offsets.extend(chunk.offsets[first:last:STRIDE_ROWS])
            self.nexts.extend(chunk.nexts[first:last:STRIDE_ROWS])
            self.times.extend(chunk.times[first:last:STRIDE_ROWS])
            row = len(self.times) * STRIDE_ROWS
