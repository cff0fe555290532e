"""The partitions of a partitioned topic as a whole: opened, and their deletion finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ownership import NotOwnedError
from .deduplication import SNAPSHOT_KIND
from .schema_kinds import STORED_KINDS

if TYPE_CHECKING:
    from ...wire import TopicName
    from ..storage import Storage
    from .registry import Topics
    from .topic import Topic

__all__ = ["finish_deletions", "is_owned", "open_all"]


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
