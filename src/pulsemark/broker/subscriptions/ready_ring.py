"""Chooses the next consumer: round robin over the ready consumers, by priority level.

A consumer enters the ring when it may have become ready (permits, a drained buffer,
acknowledgements). It is removed when it is first in the ring and is not ready. So the next
consumer is found without visiting all the others, however many wait without permits.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from .consumer import Consumer

__all__ = ["ReadyRing"]


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
