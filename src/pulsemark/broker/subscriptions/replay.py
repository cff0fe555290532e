"""Positions that wait for another delivery, smallest first.

A heap beside a set: adding and taking cost O(log n), and a position that was acknowledged while
it waited is dropped when its turn comes instead of being searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from ...ledger import Position

__all__ = ["ReplayQueue"]

#: Where a queue grows by more than this part of itself, its heap is made anew.
HEAPIFY_RATIO = 16


class ReplayQueue:
    """A set of positions with a cheap minimum."""

    __slots__ = ("_heap", "_members")

    def __init__(self) -> None:
        self._heap: list[Position] = []
        self._members: set[Position] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, position: object) -> bool:
        return position in self._members

    def __iter__(self) -> Iterator[Position]:
        return iter(sorted(self._members))

    def add(self, position: Position) -> None:
        """Put a position in; twice is once."""
        if position not in self._members:
            self._members.add(position)
            heappush(self._heap, position)

    def update(self, positions: Iterable[Position]) -> None:
        """Put many positions in."""
        new = set(positions) - self._members
        self._members |= new
        if len(new) * HEAPIFY_RATIO < len(self._heap):
            for position in new:
                heappush(self._heap, position)
        elif new:
            # Many positions come in their order, mostly: sorting them is what costs least.
            self._heap += sorted(new)
            heapify(self._heap)

    def discard(self, position: Position) -> None:
        """Take a position out wherever it stands."""
        self._members.discard(position)
        self._compact()

    def first(self) -> Position | None:
        """The smallest position; None when empty."""
        heap = self._heap
        while heap and heap[0] not in self._members:
            heappop(heap)
        return heap[0] if heap else None

    def pop(self) -> Position | None:
        """Take out the smallest position; None when empty."""
        while self._heap:
            position = heappop(self._heap)
            if position in self._members:
                self._members.remove(position)
                return position
        return None

    def pop_run(self, max_count: int) -> list[Position]:
        """Take out the smallest positions that lie side by side in one ledger, at most so many."""
        first = self.pop()
        if first is None:
            return []
        run = [first]
        while len(run) < max_count:
            wanted = Position(first.ledger_id, first.entry_id + len(run))
            if wanted not in self._members:
                break
            self._members.remove(wanted)
            run.append(wanted)
        self._compact()
        return run

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
        self._members.clear()

    def _compact(self) -> None:
        # Positions taken out of the middle stay in the heap; rebuilt before they outnumber the
        # rest, so that the heap stays within a constant of the set.
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = list(self._members)
            heapify(self._heap)
