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
from .waiting_entries import Queue, WaitingEntries

__all__ = ["WaitingSlots"]


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
        """Let a position wait in a slot's queue."""
        super().add(position, queue)
        if self.first(queue) == position:
            self.offer(queue)

    def discard(self, position: Position) -> None:
        """A position waits no more."""
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
            if self.first(slot) != position or not may_go(slot):
                continue
            self.pop(slot)
            taken.append(position)
            following = self.first(slot)
            if following is not None:
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
