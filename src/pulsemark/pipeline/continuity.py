"""Detect lost messages: a topic's indexes have no gaps, so a gap means a loss.

A read checks the indexes of the entries that it gets. Entries can disappear between planning and
reading: because of damage, retention, or a deleted file. Each of these leaves a gap in the indexes,
even if no error was raised.
"""

from __future__ import annotations

import logging
from collections import deque

import numpy as np

from ..ledger import CorruptEntryError, Position
from .decode.entries import EntryTable
from .errors import DataLossError
from .plan import Slice

_log = logging.getLogger(__name__)

Indexes = tuple[int, int]
"""The first index of some messages, and the index after their last."""
UNKNOWN: Indexes = (0, 1 << 63)
"""The indexes of messages of which only the position is known."""


class Continuity:
    """Checks one slice from its first message to its last.

    A gap raises DataLossError if ``fail`` is set; otherwise it is logged.
    """

    def __init__(self, part: Slice, *, fail: bool) -> None:
        self._part = part
        self._fail = fail
        self._next_index = part.first_index
        self._damages: deque[tuple[CorruptEntryError, Indexes | None]] = deque()

    def damaged(self, damage: CorruptEntryError, shown: Indexes | None = None) -> None:
        """Remember the reason of the gap that will follow.

        ``shown`` are the indexes of the entry's messages, if the result has a row that tells of the
        damage: these messages are then no loss. ``UNKNOWN`` stands for the whole gap.
        """
        self._damages.append((damage, shown))

    def check(self, table: EntryTable) -> None:
        """Check the next entries; control entries count too."""
        firsts, lasts = table.first_indexes, table.indexes
        if firsts[0] > self._next_index:
            self._lost(self._next_index, int(firsts[0]), table.position(0))
        for row in (np.flatnonzero(firsts[1:] - lasts[:-1] > 1) + 1).tolist():
            self._lost(int(lasts[row - 1]) + 1, int(firsts[row]), table.position(row))
        self._next_index = int(lasts[-1]) + 1

    def finish(self) -> None:
        """Check the end of the slice: no message may be missing after the last entry."""
        if self._next_index < self._part.end_index:
            self._lost(self._next_index, self._part.end_index, self._part.end)

    def _lost(self, first_index: int, end_index: int, before: Position) -> None:
        damage = None
        while self._damages and self._damages[0][0].position < before:
            last, shown = self._damages.popleft()
            damage = damage or last
            if shown is not None and shown[0] <= first_index < shown[1]:
                first_index = shown[1]
        if first_index >= end_index:
            return
        reason = str(damage) if damage else "their entries are not in the folder"
        error = DataLossError(self._part.topic, first_index, end_index, reason)
        if self._fail:
            raise error
        _log.warning("missing messages were left out of the result: %s", error)
