"""Positions that wait for another delivery, smallest first.

A heap and a set: adding and removing cost O(log n). A position that was acknowledged while it
waited is removed from the set only, and is dropped from the heap when it becomes the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from ...ledger import Position

__all__ = ["ReplayQueue"]

#: If a queue grows by more than 1/HEAPIFY_RATIO of its size, its heap is built again.
HEAPIFY_RATIO = 16


class ReplayQueue:
    """A set of positions that finds its smallest one quickly."""

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
        """Add a position, if it is not in the queue."""
        if position not in self._members:
            self._members.add(position)
            heappush(self._heap, position)

    def update(self, positions: Iterable[Position]) -> None:
        """Add many positions."""
        new = set(positions) - self._members
        self._members |= new
        if len(new) * HEAPIFY_RATIO < len(self._heap):
            for position in new:
                heappush(self._heap, position)
        elif new:
            # Many positions are usually almost sorted, so sorting them is cheap.
            self._heap += sorted(new)
            heapify(self._heap)

    def discard(self, position: Position) -> None:
        """Remove a position, if it is in the queue."""
        self._members.discard(position)
        self._compact()

    def first(self) -> Position | None:
        """The smallest position; None when empty."""
        heap = self._heap
        while heap and heap[0] not in self._members:
            heappop(heap)
        return heap[0] if heap else None

    def pop(self) -> Position | None:
        """Remove and return the smallest position; None when empty."""
        while self._heap:
            position = heappop(self._heap)
            if position in self._members:
                self._members.remove(position)
                return position
        return None

    def pop_run(self, max_count: int) -> list[Position]:
        """Remove and return the smallest position and those adjacent to it in its ledger."""
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
        # Positions removed from the middle stay in the heap. It is rebuilt before they are more
        # than the others, so that the heap's size stays in proportion to the set's.
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = list(self._members)
            heapify(self._heap)
