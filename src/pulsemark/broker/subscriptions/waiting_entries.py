"""Entries that were read, and wait for a consumer: who counts them, and in which order they go.

Each entry waits in one queue, and a queue's entries go in their order. A Shared subscription has a
queue for any consumer, and one for each consumer that must get the rest of a chunked message. A
Key_Shared subscription has a queue for each slot, and the one for any consumer has the entries
whose slot is not known. One dict says where each entry waits, so it is in one queue, and what waits
is counted once. The queues themselves are heaps, whose outdated items are dropped when they are
met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from ...ledger import Position
from .consumer import Consumer

__all__ = ["ANY", "Queue", "WaitingEntries"]

Queue = Consumer | int | None
"""A queue's name: a consumer or a slot; None (`ANY`) is the queue for any consumer."""

#: The queue of entries that any consumer can take.
ANY = None
#: If a queue grows by more than 1/HEAPIFY_RATIO of its size, its heap is built again.
HEAPIFY_RATIO = 16
_NOWHERE = object()


class WaitingEntries:
    """Positions, each in one queue."""

    def __init__(self) -> None:
        self._queue_of: dict[Position, Queue] = {}
        self._heaps: dict[Queue, list[Position]] = {}
        #: Positions that were taken out of a heap's middle since the heaps were built.
        self._outdated = 0

    def __len__(self) -> int:
        return len(self._queue_of)

    def __iter__(self) -> Iterator[Position]:
        return iter(self._queue_of)

    def __contains__(self, position: object) -> bool:
        return position in self._queue_of

    def add(self, position: Position, queue: Queue) -> None:
        """Let a position wait in a queue, and in no other one."""
        before = self._queue_of.get(position, _NOWHERE)
        if before is _NOWHERE or before != queue:
            self._queue_of[position] = queue
            heappush(self._heaps.setdefault(queue, []), position)

    def update(self, positions: Iterable[Position], queue: Queue) -> None:
        """Let many positions wait in a queue."""
        new = {one for one in positions if self._queue_of.get(one, _NOWHERE) != queue}
        heap = self._heaps.setdefault(queue, [])
        self._queue_of.update(dict.fromkeys(new, queue))
        if len(new) * HEAPIFY_RATIO < len(heap):
            for position in new:
                heappush(heap, position)
        elif new:
            # Many positions are usually almost sorted, so sorting them is cheap.
            heap += sorted(new)
            heapify(heap)

    def discard(self, position: Position) -> None:
        """A position waits no more."""
        if self._queue_of.pop(position, _NOWHERE) is not _NOWHERE:
            self._taken_from_middle()

    def first(self, queue: Queue) -> Position | None:
        """The smallest position of a queue; None when it is empty."""
        heap = self._heaps.get(queue)
        while heap:
            if self._queue_of.get(heap[0], _NOWHERE) == queue:
                return heap[0]
            heappop(heap)
        self._heaps.pop(queue, None)
        return None

    def pop(self, queue: Queue) -> Position | None:
        """Remove and return the smallest position of a queue; None when it is empty."""
        position = self.first(queue)
        if position is not None:
            heappop(self._heaps[queue])
            del self._queue_of[position]
        return position

    def pop_run(self, queue: Queue, max_count: int) -> list[Position]:
        """Remove and return a queue's smallest position and those adjacent to it in its ledger."""
        run: list[Position] = []
        position = self.pop(queue)
        while position is not None:
            run.append(position)
            position = position.following
            if len(run) == max_count or self.first(queue) != position:
                break
            self.pop(queue)
        return run

    def queues(self) -> list[Queue]:
        """The queues in which something waits, and perhaps some that became empty."""
        return list(self._heaps)

    def merge(self, queues: Iterable[Queue], into: Queue) -> None:
        """What waits in some queues waits in another one from now on."""
        for queue in queues:
            if queue in self._heaps and queue != into:
                heap = self._heaps.pop(queue)
                self.update([p for p in heap if self._queue_of.get(p, _NOWHERE) == queue], into)

    def clear(self) -> None:
        """Forget everything."""
        self._queue_of.clear()
        self._heaps.clear()
        self._outdated = 0

    def _taken_from_middle(self) -> None:
        # The heaps are built again before most of their items are outdated, so that their size
        # stays in proportion to what waits.
        self._outdated += 1
        if self._outdated > len(self._queue_of) + 64:
            self._outdated = 0
            self._heaps.clear()
            for position, queue in self._queue_of.items():
                self._heaps.setdefault(queue, []).append(position)
            for heap in self._heaps.values():
                heapify(heap)
