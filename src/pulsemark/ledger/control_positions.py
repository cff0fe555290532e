"""Which entries of a topic are control entries: consumers' backlogs do not count them.

A log's index counts control entries as messages, and the index files do not distinguish them. So a
topic keeps their positions in memory. To have them again after a restart without reading the whole
log, the metadata store has a note for each topic with control entries: the ledgers that have some.
The note is stored before the first control entry of a ledger is appended, so that a crash cannot
lose one. It also lists the positions in ledgers that have ended; only the others are read again
when the topic is opened. Topics without control entries have no note, and cost nothing.

If the note is lost with the metadata store, backlogs count control entries until a consumer has
gone past them. Nothing else depends on it: dispatchers look at each entry's own kind.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from .entry import EntryKind
from .limits import MAX_ENTRY_ID
from .position import Position
from .rows import DamagedRecordError
from .run import Run

__all__ = ["ControlPositions"]

MAX_NOTED_ENTRIES = 10_000
"""The most control entries of a ledger that a note lists; the ledger is read again if it has more.
"""
READ_ENTRIES, READ_BYTES = 1_000, 4 << 20
_SHIFT = MAX_ENTRY_ID.bit_length()


Store = Callable[[bytes], None]
"""Stores a topic's note durably. Raises CatalogError."""

#: One object for all topics: most have no control entries.
_NO_LEDGERS: frozenset[int] = frozenset()


class ControlPositions:
    """The positions of a topic's control entries. Changed under the store's lock."""

    def __init__(self, store: Store | None = None) -> None:
        """``store`` None: nothing is noted, as for a log that is only read."""
        self._store = store
        self._keys: list[int] = []
        self.removed_count = 0
        """How many of these entries were removed from the log's head, by this owner."""
        self._noting = threading.Lock()
        self._noted = _NO_LEDGERS
        """The ledgers of which the stored note says that they have control entries."""
        self._doubtful = _NO_LEDGERS
        """Ledgers with control entries that failed: after a crash they may be in the log."""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, position: Position) -> bool:
        key = _key(position)
        at = bisect_left(self._keys, key)
        return self._keys[at : at + 1] == [key]

    def add(self, position: Position) -> None:
        """A control entry got this position."""
        if self._store is not None:
            insort(self._keys, _key(position))

    def within(self, start: Position, end: Position) -> list[Position]:
        """Those in [start, end), in order."""
        keys = self._keys
        found = keys[bisect_left(keys, _key(start)) : bisect_left(keys, _key(end))]
        return [Position(key >> _SHIFT, key & MAX_ENTRY_ID) for key in found]

    def count(self, start: Position, end: Position) -> int:
        """How many are in [start, end)."""
        keys = self._keys
        return max(0, bisect_left(keys, _key(end)) - bisect_left(keys, _key(start)))

    def drop_before(self, position: Position) -> None:
        """The entries before ``position`` were removed."""
        removed = bisect_left(self._keys, _key(position))
        self._keys = self._keys[removed:]
        self.removed_count += removed

    def drop_after(self, last: Run | None) -> None:
        """The log ends with this run now; None: it is empty."""
        if self._keys:
            end = Position(last.ledger_id, last.end_entry_id) if last else Position(-1, 0)
            self._keys = self._keys[: bisect_left(self._keys, _key(end))]

    def failed_after(self, last: Run | None) -> None:
        """What comes after this run did not become durable; a crash may show it all the same."""
        before = self._keys
        self.drop_after(last)
        self._doubtful |= {key >> _SHIFT for key in before[len(self._keys) :]}

    # The note

    def is_noted(self, ledger_id: int) -> bool:
        """Whether control entries can be appended to a ledger."""
        return self._store is None or ledger_id in self._noted

    def note(self, ledger_id: int, open_ledger_id: int, segments: Sequence[Run]) -> None:
        """Note that ``ledger_id`` has control entries. Durable. Raises CatalogError.

        ``segments`` are the log's; ``open_ledger_id`` is the ledger that is appended to.
        """
        with self._noting:
            if not self.is_noted(ledger_id):
                first = segments[0].ledger_id if segments else -1
                kept = frozenset(each for each in self._noted if each >= first)
                self._write(kept | {ledger_id}, kept - {open_ledger_id})

    def close(self) -> None:
        """No entry follows: note all positions. Raises CatalogError."""
        with self._noting:
            if self._noted:
                self._write(self._noted, self._noted)

    def _write(self, ledgers: frozenset[int], ended: frozenset[int]) -> None:
        assert self._store is not None
        listed: dict[str, list[int] | None] = {str(ledger_id): None for ledger_id in ledgers}
        for ledger_id in ended - self._doubtful:
            found = self.within(Position(ledger_id, 0), Position(ledger_id + 1, 0))
            if len(found) <= MAX_NOTED_ENTRIES:
                listed[str(ledger_id)] = [position.entry_id for position in found]
        self._store(json.dumps(listed, separators=(",", ":")).encode())
        self._noted = ledgers

    def load(self, note: bytes, segments: Sequence[Run]) -> None:
        """Take the positions from a note, and from those ledgers whose positions it does not list.

        Reads all entries of such a ledger. Raises OSError. A damaged note says nothing.
        """
        listed = _listed(note)
        there = [s for s in segments if s.ledger_id in listed]
        self._noted = frozenset(s.ledger_id for s in there)
        for segment in there:
            ids = listed[segment.ledger_id]
            first, end = segment.first_entry_id, segment.end_entry_id
            found = _read(segment) if ids is None else [i for i in ids if first <= i < end]
            self._keys += [_key(Position(segment.ledger_id, entry_id)) for entry_id in found]
        self._keys.sort()


def _key(position: Position) -> int:
    ledger_id, entry_id = position
    return (max(ledger_id, -1) << _SHIFT) + min(max(entry_id, 0), MAX_ENTRY_ID)


def _listed(note: bytes) -> dict[int, list[int] | None]:
    try:
        listed = {int(ledger_id): ids for ledger_id, ids in json.loads(note).items()}
    except (ValueError, AttributeError):
        return {}
    are_good = (ids is None or all(type(i) is int for i in ids) for ids in listed.values())
    return listed if all(are_good) else {}


def _read(segment: Run) -> list[int]:
    """The entry ids of a run's control entries; a damaged entry counts as none."""
    found: list[int] = []
    row = segment.cut_rows
    while row < segment.entry_count:
        try:
            entries = segment.read(row, READ_ENTRIES, READ_BYTES)
        except DamagedRecordError:
            row += 1
            continue
        found += [e.position.entry_id for e in entries if e.kind is EntryKind.CONTROL]
        row += len(entries)
    return found
