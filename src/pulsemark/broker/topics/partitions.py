"""The partitions of a partitioned topic as a whole: opened, grown, and their deletion finished.

As in Pulsar, a partition that is added gets every durable subscription of the first one, at its
beginning. So a consumer that notices the partition later misses nothing that was sent to it
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ledger import EARLIEST
from ..ownership import NotOwnedError
from .deduplication import SNAPSHOT_KIND
from .schemas import STORED_KINDS
from .topic import Topic

if TYPE_CHECKING:
    from ...wire import TopicName
    from ..storage import Storage
    from .registry import Topics

__all__ = ["finish_deletions", "is_owned", "open_all", "share_subscriptions"]


def is_owned(topics: Topics, name: TopicName) -> bool:
    """Whether this broker serves a topic: a broker without a cluster serves all."""
    try:
        topics.check_owned(name)
    except NotOwnedError:
        return False
    return True


async def open_all(topics: Topics, name: TopicName, count: int) -> list[Topic]:
    """Create all partitions; return those that this broker serves, which are open."""
    opened = []
    for index in range(count):
        partition = name.partition(index)
        if is_owned(topics, partition):
            opened.append(await topics.open(partition, create=True))
        else:
            await topics.make_known(partition)
    return opened


def finish_deletions(topics: Topics, store: Storage) -> None:
    """At the start: finish deletions of partitioned topics that a crash interrupted. Blocks."""
    for name in topics.partitioned.half_deleted():
        for index in range(topics.partitions_of(name)):
            partition = str(name.partition(index))
            if partition in topics.names:
                store.delete_topic(partition)
                topics.names.discard(partition)
            topics.catalog.delete(SNAPSHOT_KIND, partition)
        for kind in STORED_KINDS:
            topics.catalog.delete(kind, str(name))
        topics.partitioned.finish(name)


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
