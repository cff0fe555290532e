"""Whose turn it is: round robin over the consumers that can take something, by priority level.

A consumer stands in the ring from the moment it offers to take something (permits, a drained
buffer, acknowledgements) until its turn comes and it cannot. So finding the next one does not
cost a look at all the others, however many wait without permits.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable

from .consumer import Consumer

__all__ = ["ReadyRing"]


class ReadyRing:
    """Consumers that may be ready; `is_ready` says whether one still is."""

    def __init__(self, is_ready: Callable[[Consumer], bool]) -> None:
        self._is_ready = is_ready
        self._members: set[Consumer] = set()
        self._rings: dict[int, deque[Consumer]] = {}
        self._levels: list[int] = []

    def add(self, consumer: Consumer) -> None:
        """A consumer can take something; twice is once."""
        if consumer in self._members:
            return
        self._members.add(consumer)
        level = consumer.priority_level
        ring = self._rings.get(level)
        if ring is None:
            ring = self._rings[level] = deque()
            insort(self._levels, level)
        ring.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        if consumer in self._members:
            self._members.remove(consumer)
            self._rings[consumer.priority_level].remove(consumer)

    def first(self) -> Consumer | None:
        """Whose turn it is: a ready consumer of the best level that has one."""
        for level in self._levels:
            ring = self._rings[level]
            if self._has_ready(ring):
                return ring[0]
        return None

    def had_turn(self, consumer: Consumer) -> None:
        """The first one was given something: the next one's turn."""
        ring = self._rings[consumer.priority_level]
        if ring and ring[0] is consumer:
            ring.rotate(-1)

    def has_ready(self) -> bool:
        """Whether any consumer is ready."""
        return any(self._has_ready(self._rings[level]) for level in self._levels)

    def _has_ready(self, ring: deque[Consumer]) -> bool:
        """Whether the first in the ring is ready, once those that are not are out of it."""
        while ring and not self._is_ready(ring[0]):
            self._members.remove(ring.popleft())
        return bool(ring)
