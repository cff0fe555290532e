"""Whose turn it is: round robin over the consumers that can take something, by priority level.

A consumer stands in the ring from the moment it offers to take something (permits, a drained
buffer, acknowledgements) until its turn comes and it cannot. So finding the next one does not
cost a look at all the others, however many wait without permits.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from .consumer import Consumer

__all__ = ["ReadyRing"]


class ReadyRing:
    """Consumers that may be ready; `is_ready` says whether one still is."""

    def __init__(self, is_ready: Callable[[Consumer], bool]) -> None:
        self._is_ready = is_ready
        #: By level. Ordered dicts, so that taking one out costs no look at the others.
        self._rings: dict[int, OrderedDict[Consumer, None]] = {}
        self._levels: list[int] = []

    def close(self) -> None:
        """No one's turn comes any more; what decides about it is let go."""
        self._is_ready = _never
        self._rings.clear()
        self._levels.clear()

    def add(self, consumer: Consumer) -> None:
        """A consumer can take something; twice is once."""
        level = consumer.priority_level
        ring = self._rings.get(level)
        if ring is None:
            ring = self._rings[level] = OrderedDict()
            insort(self._levels, level)
        ring.setdefault(consumer, None)

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        ring = self._rings.get(consumer.priority_level)
        if ring is not None:
            ring.pop(consumer, None)

    def first(self) -> Consumer | None:
        """Whose turn it is: a ready consumer of the best level that has one."""
        for level in self._levels:
            consumer = self._first_ready(self._rings[level])
            if consumer is not None:
                return consumer
        return None

    def had_turn(self, consumer: Consumer) -> None:
        """The first one was given something: the next one's turn."""
        ring = self._rings[consumer.priority_level]
        if ring and next(iter(ring)) is consumer:
            ring.move_to_end(consumer)

    def has_ready(self) -> bool:
        """Whether any consumer is ready."""
        return self.first() is not None

    def _first_ready(self, ring: OrderedDict[Consumer, None]) -> Consumer | None:
        """The first in the ring that is ready; those before it are taken out."""
        while ring:
            consumer = next(iter(ring))
            if self._is_ready(consumer):
                return consumer
            del ring[consumer]
        return None


def _never(_: Consumer) -> bool:
    return False
