"""Subscriptions of a partitioned topic on the partitions that it gets when it grows.

As in Pulsar, a new partition gets every durable subscription of the first one, at its beginning.
So a consumer that notices the partition later misses nothing that was sent to it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ledger import EARLIEST
from .topic import Topic

__all__ = ["share_subscriptions"]


async def share_subscriptions(partitions: Sequence[Topic]) -> None:
    """Make the first partition's durable subscriptions on all others; durable on return.

    Raises `RefusedError`.
    """
    if not partitions:
        return
    first, *others = partitions
    names = {one.name: one.properties for one in first.subscriptions.values() if one.durable}
    for topic in others:
        for name, properties in names.items():
            if name not in topic.subscriptions:
                start = topic.clamp(EARLIEST)
                made = topic.create_subscription(name, start, properties=dict(properties))
                await made.stored()
