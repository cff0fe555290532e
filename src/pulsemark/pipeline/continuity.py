"""Noticing messages that are gone: a topic's indexes have no gaps, so a gap is a loss.

A read follows the indexes of the entries it gets. Whatever makes entries disappear between
planning and reading (rot, retention, a deleted file) leaves a gap, whether or not anything raised
an error on the way.
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


class Continuity:
    """Follows one slice from its first message to its last.

    A gap raises DataLossError where ``fail`` is set, and is logged otherwise.
    """

    def __init__(self, part: Slice, *, fail: bool) -> None:
        self._part = part
        self._fail = fail
        self._next_index = part.first_index
        self._damages: deque[CorruptEntryError] = deque()

    def damaged(self, damage: CorruptEntryError) -> None:
        """Remember why there is going to be a gap."""
        self._damages.append(damage)

    def check(self, table: EntryTable) -> None:
        """Take the next entries; control entries count."""
        firsts, nexts = table.first_indexes, table.indexes + 1
        expected = np.concatenate([[self._next_index], nexts[:-1]])
        for row in np.flatnonzero(firsts > expected).tolist():
            self._lost(int(expected[row]), int(firsts[row]), table.position(row))
        self._next_index = int(nexts[-1])

    def finish(self) -> None:
        """The slice has ended: nothing may be missing behind the last entry."""
        if self._next_index < self._part.end_index:
            self._lost(self._next_index, self._part.end_index, self._part.end)

    def _lost(self, first_index: int, end_index: int, before: Position) -> None:
        damage = None
        while self._damages and self._damages[0].position < before:
            last = self._damages.popleft()
            damage = damage or last
        reason = str(damage) if damage else "their entries are not in the folder"
        error = DataLossError(self._part.topic, first_index, end_index, reason)
        if self._fail:
            raise error
        _log.warning("left out: %s", error)
