"""The states of a segment, and which of them may follow which.

A segment has one state. Only the `Filer` changes it (and a reader, which finds a file gone), and
each change is checked against `FOLLOWING`: any other change is a mistake in this program.

::

    NEW ──► PENDING ──► DURABLE ──► ENDED ──► SEALED

A ledger that is fenced has no state of its own: of its segments those with durable entries end,
those without are void.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from enum import Enum


class SegmentState(Enum):
    """The state of a segment."""

    NEW = "new"
    """A topic is about to begin it. It has no file, and nothing else refers to it."""
    PENDING = "pending"
    """Entries are appended to it, and none of them is durable yet."""
    DURABLE = "durable"
    """It has durable entries, and more may follow."""
    ENDED = "ended"
    """No entry follows. Entries may still be pending; once they are durable it can be sealed."""
    SEALED = "sealed"
    """Ended, and its index file is complete and synced."""
    FAILED = "failed"
    """A sync of its file failed. The file is never synced again; the journal is kept."""
    VOID = "void"
    """None of its entries ever counted. Its file is removed before the journal is freed."""
    REMOVED = "removed"
    """Its entries were removed, durably; the file is removed or about to be."""


_S = SegmentState
FOLLOWING: dict[SegmentState, set[SegmentState]] = {
    _S.NEW: {_S.PENDING},
    # Ended: the ledger rolled before the first commit.
    _S.PENDING: {_S.DURABLE, _S.ENDED, _S.FAILED, _S.VOID},
    # Void: a cut's control entry was written whole, though its write failed.
    _S.DURABLE: {_S.ENDED, _S.FAILED, _S.VOID, _S.REMOVED},
    # Void: all entries that were still pending failed.
    _S.ENDED: {_S.SEALED, _S.FAILED, _S.VOID, _S.REMOVED},
    # Ended: its tail was cut off. Failed: sealed between two checkpoints; the second one failed.
    _S.SEALED: {_S.ENDED, _S.FAILED, _S.REMOVED},
    _S.FAILED: {_S.VOID, _S.REMOVED},
    _S.VOID: {_S.REMOVED},
    _S.REMOVED: set(),
}
"""The legal transitions; every other one raises SegmentStateError."""

GONE = frozenset({_S.VOID, _S.REMOVED})
"""The file is removed or about to be: it needs no sync, and failing to read it is not damage."""


class SegmentStateError(Exception):
    """A transition that is not in `FOLLOWING`: a mistake in this program."""

    def __init__(self, name: str, old: SegmentState, new: SegmentState) -> None:
        self.name = name
        self.old = old
        self.new = new
        super().__init__(f"segment {name} is {old.value} and cannot become {new.value}")


_changing = threading.Lock()


class Life:
    """The state of one segment. Safe between threads."""

    __slots__ = ("_name", "state")

    def __init__(self, name: str, state: SegmentState = SegmentState.NEW) -> None:
        self._name = name
        self.state = state
        """Anyone may read it; only ``become`` changes it."""

    def become(self, new: SegmentState, *, only_if: Collection[SegmentState] = ()) -> bool:
        """Change the state; returns whether it changed.

        ``only_if``: in any other state nothing happens. Raises SegmentStateError.
        """
        with _changing:
            if only_if and self.state not in only_if:
                return False
            if new not in FOLLOWING[self.state]:
                raise SegmentStateError(self._name, self.state, new)
            self.state = new
            return True
