"""The order of a subscription's consumers: which one is active, and which one gets entries next.

- `RankedConsumers`: ordered by rank; consumers of equal rank by arrival. One connection can have
  tens of thousands of consumers, and all leave in one step when it ends. So a consumer is found by
  binary search, not by visiting all the others.
- `FailoverRing`: which consumer of a Failover subscription is active on a topic without partitions,
  as in Pulsar. The consumers of the best priority level have points on a ring, 100 each, that
  depend on their names. The topic's name is a place on the ring, and the consumer with the next
  point is the active one. So the topics of many such subscriptions are spread over their consumers.
  Of consumers with the same name, the one that came last is active.
- `ReadyRing`: round robin over the ready consumers of Shared types, by priority level. A consumer
  enters the ring when it may have become ready (permits, a drained buffer, acknowledgements). It
  is removed when it is first in the ring and is not ready. So the next consumer is found without
  visiting all the others, however many wait without permits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from .consumer import Consumer
from .sticky_keys import murmur3_32

__all__ = ["FailoverRing", "Rank", "RankedConsumers", "ReadyRing"]

#: Values that can be compared, the priority level first; the smallest comes first.
Rank = tuple[Any, ...]
#: If more than 1/FEW_PART of all leave, the list is built again instead of deleting one by one.
FEW_PART = 100
POINTS_PER_CONSUMER = 100
#: The size of a `FailoverRing`: the hash has 31 bits.
RING_SIZE = 1 << 31


class RankedConsumers(Sequence[Consumer]):
    """Consumers ordered by `rank`, which must not change while a consumer is in the list."""

    def __init__(self, rank: Callable[[Consumer], Rank]) -> None:
        self._rank = rank
        #: Sorted by rank and arrival number. Numbers differ, so consumers are never compared.
        self._places: list[tuple[Rank, int, Consumer]] = []
        self._place_of: dict[Consumer, tuple[Rank, int, Consumer]] = {}
        self._added = 0

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self._added += 1
        place = self._place_of[consumer] = (self._rank(consumer), self._added, consumer)
        insort(self._places, place)

    def remove(self, consumers: Iterable[Consumer]) -> list[Consumer]:
        """Remove consumers; return those that were in the list."""
        found = [self._place_of.pop(one) for one in consumers if one in self._place_of]
        if len(found) * FEW_PART < len(self._places):
            # From the end, so that fewer list items have to move.
            for place in sorted(found, reverse=True):
                del self._places[bisect_left(self._places, place)]
        elif found:
            self._places = [place for place in self._places if place[2] in self._place_of]
        return [consumer for _, _, consumer in found]

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._place_of

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Consumer]:
        return (consumer for _, _, consumer in self._places)

    @overload
    def __getitem__(self, at: int) -> Consumer: ...
    @overload
    def __getitem__(self, at: slice) -> list[Consumer]: ...
    def __getitem__(self, at: int | slice) -> Consumer | list[Consumer]:
        if isinstance(at, slice):
            return [consumer for _, _, consumer in self._places[at]]
        return self._places[at][2]


class FailoverRing:
    """The consumers of a subscription, ordered by the way from the topic to their next point."""

    def __init__(self, topic: str) -> None:
        self._place = murmur3_32(topic.encode())
        self._added = 0
        self._consumers = RankedConsumers(self._rank)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self._added += 1
        self._consumers.add(consumer)

    def remove(self, consumers: Iterable[Consumer]) -> None:
        """Remove consumers."""
        self._consumers.remove(consumers)

    def first(self) -> Consumer | None:
        """The consumer of the best level with the next point; None without consumers."""
        return self._consumers[0] if self._consumers else None

    def _rank(self, consumer: Consumer) -> Rank:
        name = consumer.name
        way = min(
            (murmur3_32(f"{name}{at}".encode()) - self._place) % RING_SIZE
            for at in range(POINTS_PER_CONSUMER)
        )
        return consumer.priority_level, way, -self._added


class ReadyRing:
    """Consumers that may be ready; `is_ready` returns whether one still is."""

    def __init__(self, is_ready: Callable[[Consumer], bool]) -> None:
        self._is_ready = is_ready
        #: By priority level. In an ordered dict a consumer is removed in constant time.
        self._rings: dict[int, OrderedDict[Consumer, None]] = {}
        self._levels: list[int] = []

    def close(self) -> None:
        """Remove all consumers, and drop the reference to `is_ready`."""
        self._is_ready = _never
        self._rings.clear()
        self._levels.clear()

    def add(self, consumer: Consumer) -> None:
        """A consumer may be ready. Nothing happens if it is in the ring already."""
        level = consumer.priority_level
        ring = self._rings.get(level)
        if ring is None:
            ring = self._rings[level] = OrderedDict()
            insort(self._levels, level)
        ring.setdefault(consumer, None)

    def remove(self, consumer: Consumer) -> None:
        """A consumer left."""
        ring = self._rings.get(consumer.priority_level)
        if ring is not None:
            ring.pop(consumer, None)

    def first(self) -> Consumer | None:
        """The next consumer: a ready one of the best level that has one."""
        for level in self._levels:
            consumer = self._first_ready(self._rings[level])
            if consumer is not None:
                return consumer
        return None

    def move_to_end(self, consumer: Consumer) -> None:
        """The first consumer was sent something: move it to the end of its ring."""
        ring = self._rings[consumer.priority_level]
        if ring and next(iter(ring)) is consumer:
            ring.move_to_end(consumer)

    def has_ready(self) -> bool:
        """Whether any consumer is ready."""
        return self.first() is not None

    def _first_ready(self, ring: OrderedDict[Consumer, None]) -> Consumer | None:
        """The first ready consumer of a ring; those before it are removed."""
        while ring:
            consumer = next(iter(ring))
            if self._is_ready(consumer):
                return consumer
            del ring[consumer]
        return None


def _never(_: Consumer) -> bool:
    return False
