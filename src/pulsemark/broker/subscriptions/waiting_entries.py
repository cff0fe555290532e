"""Entries that were read and wait for a consumer, in queues by position.

A Shared subscription has a queue for any consumer, and one for each consumer that must get the rest
of a chunked message. A Key_Shared subscription has a queue for each slot; the one for any consumer
has the entries whose slot is not known. One dict maps each entry to its queue, so an entry is in
one queue only, and counted once. The queues are heaps; their outdated items are dropped when they
are met.

`WaitingSlots` has a heap for each consumer of Key_Shared, too, with the first entry of each of its
slots: a consumer's next entry costs the logarithm of the number of its slots, and a consumer that
takes nothing costs nothing. An item is outdated when the slot's first entry has changed, or when
another consumer still holds entries of the slot. So code that makes a slot ready to go on must call
`offer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from ...ledger import Position
from .consumer import Consumer

Queue = Consumer | int | None
"""A queue's name: a consumer or a slot; None (`ANY`) is the queue for any consumer."""

#: The queue of entries that any consumer can take.
ANY = None
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
        """Put a position into a queue, and remove it from any other one."""
        before = self._queue_of.get(position, _NOWHERE)
        if before is _NOWHERE or before != queue:
            self._queue_of[position] = queue
            heappush(self._heaps.setdefault(queue, []), position)

    def update(self, positions: Iterable[Position], queue: Queue) -> None:
        """Put many positions into a queue."""
        for position in positions:
            self.add(position, queue)

    def discard(self, position: Position) -> None:
        """Remove a position."""
        if self._queue_of.pop(position, _NOWHERE) is _NOWHERE:
            return
        # The heaps are built again before most of their items are outdated, so that their size
        # stays in proportion to what waits.
        self._outdated += 1
        if self._outdated > len(self._queue_of) + 64:
            self._outdated = 0
            self._heaps.clear()
            for waiting, queue in self._queue_of.items():
                self._heaps.setdefault(queue, []).append(waiting)
            for heap in self._heaps.values():
                heapify(heap)

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
        """Move the positions of some queues into another one."""
        for queue in queues:
            if queue in self._heaps and queue != into:
                heap = self._heaps.pop(queue)
                self.update([p for p in heap if self._queue_of.get(p, _NOWHERE) == queue], into)

    def clear(self) -> None:
        """Forget everything."""
        self._queue_of.clear()
        self._heaps.clear()
        self._outdated = 0


class WaitingSlots(WaitingEntries):
    """Waiting positions by slot; `owner_of` returns the consumer of a slot."""

    def __init__(self, owner_of: Callable[[int], Consumer | None]) -> None:
        super().__init__()
        self._owner_of = owner_of
        self._heads: dict[Consumer, list[tuple[Position, int]]] = {}
        self._to_offer: list[Queue] = []
        #: Consumers that may have waiting entries which they can take.
        self.to_serve: dict[Consumer, None] = {}

    def add(self, position: Position, queue: Queue) -> None:
        """Put a position into a slot's queue."""
        super().add(position, queue)
        if self.first(queue) == position:
            self.offer(queue)

    def discard(self, position: Position) -> None:
        """Remove a position."""
        queue = self._queue_of.get(position)
        super().discard(position)
        self.offer(queue)

    def offer(self, slot: Queue) -> None:
        """The slot's first entry may be ready to go to the slot's consumer now."""
        first = self.first(slot)
        if first is None or not isinstance(slot, int):
            return
        owner = self._owner_of(slot)
        if owner is not None:
            heappush(self._heads.setdefault(owner, []), (first, slot))
            self.to_serve[owner] = None

    def reassign(self) -> None:
        """Slots have new consumers: offer all slots again, with `offer_more`."""
        self._heads.clear()
        self.to_serve.clear()
        self._to_offer = self.queues()

    def offer_more(self, max_count: int) -> bool:
        """Offer up to `max_count` of the reassigned slots. Return whether more are left."""
        for slot in self._to_offer[-max_count:]:
            self.offer(slot)
        del self._to_offer[-max_count:]
        return bool(self._to_offer)

    def can_take(self, consumer: Consumer) -> None:
        """Serve a consumer that can take something, if entries wait for it."""
        if consumer in self._heads:
            self.to_serve[consumer] = None

    def take(
        self, consumer: Consumer, max_count: int, may_go: Callable[[int], bool]
    ) -> list[Position]:
        """Remove and return up to `max_count` first entries of a consumer's slots, in order.

        Slots for which `may_go` is False are skipped until the next `offer`.
        """
        heads = self._heads.get(consumer, [])
        taken: list[Position] = []
        while heads and len(taken) < max_count:
            position, slot = heappop(heads)
            if self.first(slot) != position or not may_go(slot):
                continue
            self.pop(slot)
            taken.append(position)
            if (following := self.first(slot)) is not None:
                heappush(heads, (following, slot))
        if not heads:
            self._heads.pop(consumer, None)
            self.to_serve.pop(consumer, None)
        return taken

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._heads.clear()
        self.to_serve.clear()
        self._to_offer.clear()
