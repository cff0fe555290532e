"""A set of positions as ranges of entries per ledger: what a cursor holds above its mark delete."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from .position import Position


class PositionRanges:
    """Positions, kept as disjoint [first, last] entry ranges that never touch."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}

    def add(self, ledger_id: int, first: int, last: int) -> None:
        """Add the entries ``first`` to ``last`` (both inclusive) of a ledger."""
        firsts = self._firsts.setdefault(ledger_id, [])
        lasts = self._lasts.setdefault(ledger_id, [])
        # Ranges [start, stop) overlap or touch the new one and are merged with it.
        start = bisect_right(lasts, first - 2)
        stop = bisect_right(firsts, last + 1)
        if start < stop:
            first = min(first, firsts[start])
            last = max(last, lasts[stop - 1])
        firsts[start:stop] = [first]
        lasts[start:stop] = [last]

    def end_of(self, position: Position) -> int | None:
        """The last entry id of the range that holds ``position``; None if none does."""
        firsts = self._firsts.get(position.ledger_id)
        if not firsts:
            return None
        at = bisect_right(firsts, position.entry_id) - 1
        if at < 0:
            return None
        last = self._lasts[position.ledger_id][at]
        return last if position.entry_id <= last else None

    def __contains__(self, position: Position) -> bool:
        return self.end_of(position) is not None

    def remove_up_to(self, position: Position) -> None:
        """Drop everything at or before ``position``."""
        for ledger_id in [ledger for ledger in self._firsts if ledger < position.ledger_id]:
            del self._firsts[ledger_id], self._lasts[ledger_id]
        firsts = self._firsts.get(position.ledger_id)
        if firsts is None:
            return
        lasts = self._lasts[position.ledger_id]
        gone = bisect_right(lasts, position.entry_id)
        del firsts[:gone], lasts[:gone]
        if not firsts:
            del self._firsts[position.ledger_id], self._lasts[position.ledger_id]
        elif firsts[0] <= position.entry_id:
            firsts[0] = position.entry_id + 1

    def clear(self) -> None:
        """Drop everything."""
        self._firsts.clear()
        self._lasts.clear()

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, first, last) of every range, in order."""
        for ledger_id in sorted(self._firsts):
            for first, last in zip(self._firsts[ledger_id], self._lasts[ledger_id], strict=True):
                yield ledger_id, first, last

    def __len__(self) -> int:
        return sum(map(len, self._firsts.values()))
