"""Which consumer of a Failover subscription is active on a topic without partitions, as in Pulsar.

The consumers of the best priority level have points on a ring, 100 each, that depend on their
names. The topic's name is a place on the ring, and the consumer with the next point is the active
one. So the topics of many such subscriptions are spread over their consumers. Of consumers with the
same name, the one that came last is active.
"""

from __future__ import annotations

from collections.abc import Iterable

from .consumer import Consumer
from .ranked_consumers import Rank, RankedConsumers
from .sticky_keys import murmur3_32

__all__ = ["FailoverRing"]

POINTS_PER_CONSUMER = 100
#: The hash has 31 bits.
RING_SIZE = 1 << 31


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
