"""Running maxima of the entry times of one run, without those of removed entries.

The index has running maxima over all entries ever appended. If a producer's clock was wrong by
years, and its entry is trimmed by now, that one time stays the maximum of all rows after it. Then
the index does not help, and a search has to read entries. The times that it reads are kept here,
one maximum for STRIDE_ROWS entries, so that no entry is read twice for this. It is filled only as
far as searches need it.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Protocol

from .rows import IoCount, Probe, Row

STRIDE_ROWS = 64


class TimedRun(Protocol):
    """The methods of a `Run` that are used here."""

    cut_rows: int
    entry_count: int

    def row(self, row: int, io: IoCount | None = None) -> Row:
        """One entry's row."""

    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        """What entries say about themselves."""

    def own_time_ms(self, row: int, append_time_ms: int, io: IoCount) -> int | None:
        """The time of an entry without a stamp."""


class OwnTimes:
    """Times of the entries from ``run.cut_rows`` on, as that was when this object was made."""

    def __init__(self, run: TimedRun) -> None:
        self._run = run
        self._first_row = run.cut_rows
        self._maxima: array[int] = array("Q")
        self._filling = threading.Lock()

    def max_before(self, row: int) -> int:
        """A time that no entry counted here before ``row`` exceeds; 0: there are none."""
        strides = -(-(row - self._first_row) // STRIDE_ROWS)
        known = min(strides, len(self._maxima))
        return self._maxima[known - 1] if known > 0 else 0

    def find(
        self, time_ms: int, entry_count: int, check: Callable[[], None], io: IoCount
    ) -> tuple[int, int] | None:
        """The first row below ``entry_count`` whose entry's time is >= ``time_ms``, with that time.

        None: there is none. ``check`` is called for each entry that is read; what it raises ends
        the search.
        """
        with self._filling:
            self._fill(time_ms, check, io)
        strides = bisect_left(self._maxima, time_ms)
        first = max(self._first_row + strides * STRIDE_ROWS, self._run.cut_rows)
        for row, own_ms in self._times(first, entry_count, io):
            check()
            if own_ms >= time_ms:
                return row, own_ms
        return None

    def _fill(self, time_ms: int, check: Callable[[], None], io: IoCount) -> None:
        """Read on up to the stride that reaches ``time_ms``, or to the last full one."""
        maximum = self._maxima[-1] if self._maxima else 0
        row = self._first_row + len(self._maxima) * STRIDE_ROWS
        while maximum < time_ms and row + STRIDE_ROWS <= self._run.entry_count:
            for _, own_ms in self._times(row, row + STRIDE_ROWS, io):
                check()
                maximum = max(maximum, own_ms)
            self._maxima.append(maximum)
            row += STRIDE_ROWS

    def _times(self, row: int, end: int, io: IoCount) -> Iterator[tuple[int, int]]:
        """Rows with their entries' own times; damaged ones are left out."""
        run = self._run
        if row >= end:
            return
        for probe in run.probes(row, run.row(row, io).offset, end - row, io):
            own_ms: int | None = probe.stamp_ms
            if probe.stamp_ms < 0:
                own_ms = run.own_time_ms(probe.row, probe.append_time_ms, io)
            if own_ms is not None:
                yield probe.row, own_ms
