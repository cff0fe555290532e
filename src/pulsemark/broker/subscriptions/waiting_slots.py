"""The entries of a Key_Shared subscription that wait, by slot.

Each slot has its own queue, in order. Each consumer has a heap with the first entry of each of its
slots. So finding a consumer's next entry costs the logarithm of the number of its slots, and a
consumer that takes nothing costs nothing.

A heap may contain outdated items: the slot's first entry has changed, or another consumer still
holds entries of the slot. Such items are dropped when they are met. So code that makes a slot
ready to go on must call `offer`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from ...ledger import Position
from .consumer import Consumer
from .replay import ReplayQueue

__all__ = ["WaitingSlots"]


class WaitingSlots:
    """Waiting positions by slot; `owner_of` returns the consumer of a slot."""

    def __init__(self, owner_of: Callable[[int], Consumer | None]) -> None:
        self._owner_of = owner_of
        self._queues: dict[int, ReplayQueue] = {}
        self._heads: dict[Consumer, list[tuple[Position, int]]] = {}
        self._count = 0
        self._to_offer: list[int] = []
        #: Consumers that may have waiting entries which they can take.
        self.to_serve: dict[Consumer, None] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, slot: object) -> bool:
        """Whether entries of a slot wait."""
        return slot in self._queues

    def add(self, position: Position, slot: int) -> None:
        """Add a waiting entry, if it is not waiting already."""
        queue = self._queues.get(slot)
        if queue is None:
            queue = self._queues[slot] = ReplayQueue()
        if position in queue:
            return
        queue.add(position)
        self._count += 1
        if queue.first() == position:
            self.offer(slot)

    def first_of(self, slot: int) -> Position | None:
        """The first waiting entry of a slot."""
        queue = self._queues.get(slot)
        return queue.first() if queue is not None else None

    def discard(self, position: Position, slot: int) -> None:
        """Remove an entry that no longer waits."""
        queue = self._queues.get(slot)
        if queue is None or position not in queue:
            return
        queue.discard(position)
        self._count -= 1
        if queue:
            self.offer(slot)
        else:
            del self._queues[slot]

    def offer(self, slot: int) -> None:
        """The slot's first entry may be ready to go to the slot's consumer now."""
        queue = self._queues.get(slot)
        owner = self._owner_of(slot)
        first = queue.first() if queue is not None else None
        if owner is not None and first is not None:
            heappush(self._heads.setdefault(owner, []), (first, slot))
            self.to_serve[owner] = None

    def reassign(self) -> None:
        """Slots have new consumers: offer all slots again, with `offer_more`."""
        self._heads.clear()
        self.to_serve.clear()
        self._to_offer = list(self._queues)

    def offer_more(self, max_count: int) -> bool:
        """Offer up to `max_count` of the reassigned slots. Return whether more are left."""
        for slot in self._to_offer[-max_count:]:
            self.offer(slot)
        del self._to_offer[-max_count:]
        return bool(self._to_offer)

    def can_take(self, consumer: Consumer) -> None:
        """A consumer can take something: serve it if entries wait for it."""
        if consumer in self._heads:
            self.to_serve[consumer] = None

    def take(
        self, consumer: Consumer, max_count: int, may_go: Callable[[int], bool]
    ) -> list[Position]:
        """Remove and return the first entries of a consumer's slots, in order.

        At most `max_count`. Slots for which `may_go` is False are skipped until the next `offer`.
        """
        heads = self._heads.get(consumer, [])
        taken: list[Position] = []
        while heads and len(taken) < max_count:
            position, slot = heappop(heads)
            queue = self._queues.get(slot)
            if queue is None or queue.first() != position or not may_go(slot):
                continue
            queue.pop()
            self._count -= 1
            taken.append(position)
            following = queue.first()
            if following is None:
                del self._queues[slot]
            else:
                heappush(heads, (following, slot))
        if not heads:
            self._heads.pop(consumer, None)
            self.to_serve.pop(consumer, None)
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self._heads.clear()
        self.to_serve.clear()
        self._to_offer.clear()
        self._count = 0
