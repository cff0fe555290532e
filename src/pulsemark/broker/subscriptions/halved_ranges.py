"""AUTO_SPLIT of Key_Shared without consistent hashing: each consumer has one range of slots.

Pulsar assigns slots in this way when `subscriptionKeySharedUseConsistentHashing` is false. The
first consumer has all slots. Each further one gets the lower half of the largest range. The range
of a consumer that leaves goes to the consumer above it; that of the highest one to the one below.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from ...proto.pulsar_api_pb2 import ServerError
from ..errors import RefusedError
from .consumer import Consumer
from .slot_set import SLOTS

__all__ = ["HalvedRanges"]

#: The heap is built again when it has this many items for each consumer.
STALE_ITEMS = 4


class HalvedRanges:
    """One range of slots for each consumer. A range is known by its end, which is included."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: dict[int, Consumer] = {}
        self._end_of: dict[Consumer, int] = {}
        #: (-size, end) of the ranges; some are no longer true and are skipped.
        self._by_size: list[tuple[int, int]] = []

    def add(self, consumer: Consumer) -> None:
        """Give a consumer half of the largest range. Raises `RefusedError` if all have one slot."""
        end = SLOTS
        if self._ends:
            size, largest = self._largest()
            if size <= 1:
                raise RefusedError(
                    ServerError.ConsumerAssignError,
                    "No more range can assigned to new consumer, assigned consumers "
                    f"{len(self._ends)}",
                )
            end = largest - size // 2
        insort(self._ends, end)
        self._owners[end] = consumer
        self._end_of[consumer] = end
        self._note_sizes(end)

    def remove(self, consumers: Iterable[Consumer]) -> None:
        """Give the consumers' ranges to their neighbours; unknown consumers are ignored."""
        for consumer in consumers:
            end = self._end_of.pop(consumer, None)
            if end is None:
                continue
            at = bisect_left(self._ends, end)
            if end == SLOTS and at > 0:
                # The end of all slots stays: the consumer below gets it.
                heir = self._owners.pop(self._ends.pop(at - 1))
                self._owners[end] = heir
                self._end_of[heir] = end
            else:
                del self._ends[at], self._owners[end]
            self._note_sizes(end)

    def sweeping(self) -> Iterator[None]:
        """Nothing to do: `remove` leaves no data that grows."""
        return iter(())

    def select(self, slot: int) -> Consumer | None:
        """The consumer whose range contains the slot."""
        at = bisect_left(self._ends, slot)
        return self._owners[self._ends[at]] if at < len(self._ends) else None

    def slot_of(self, sticky_hash: int) -> int:
        """The slot of a sticky key's hash. Slot 0 is not used."""
        return sticky_hash % SLOTS or 1

    def ranges(self) -> Iterator[tuple[Consumer, int, int]]:
        """See `Selector.ranges`."""
        first = 1
        for end in tuple(self._ends):
            if end in self._owners:
                yield self._owners[end], first, end
                first = end + 1

    def _size(self, at: int) -> int:
        return self._ends[at] - (self._ends[at - 1] if at else 0)

    def _largest(self) -> tuple[int, int]:
        """Size and end of the largest range; of equal ones the lowest."""
        while True:
            size, end = -self._by_size[0][0], self._by_size[0][1]
            if end in self._owners and self._size(bisect_left(self._ends, end)) == size:
                return size, end
            heappop(self._by_size)

    def _note_sizes(self, slot: int) -> None:
        """Note the sizes of the range with this slot and of the one above it."""
        at = bisect_left(self._ends, slot)
        for near in range(at, min(at + 2, len(self._ends))):
            heappush(self._by_size, (-self._size(near), self._ends[near]))
        if len(self._by_size) > STALE_ITEMS * len(self._ends) + STALE_ITEMS:
            self._by_size = [(-self._size(at), end) for at, end in enumerate(self._ends)]
            heapify(self._by_size)
