"""The partitioned topics: how many partitions each has, and which were deleted.

A partitioned topic is only a number of partitions in the catalog; its partitions are normal topics.
As in Pulsar, a partition that is added gets every durable subscription of the first one, at its
beginning. So a consumer that notices the partition later misses nothing.

When a partitioned topic is deleted, clients that were connected to a partition reconnect to it by
themselves. They must not create it again, since it would belong to no partitioned topic. So a
deletion has three steps: store that it has begun (`retire`), delete the partitions, delete the
number. In a cluster each broker deletes the partitions that it serves, when it hears of the first
step. From that step on, partitions of that name are not created automatically, also after a
restart, until the partitioned topic is created again. A deletion that a crash interrupted is
finished at the next start. The latest `REMEMBERED_MAX` deletions are remembered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ledger import EARLIEST
from ...ledger.store import PARTITIONED_KIND, MetadataStore
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..errors import RefusedError
from .catalog_writer import CatalogWriter, Change
from .deduplication import SNAPSHOT_KIND
from .schemas import STORED_KINDS
from .topic_names import TopicNames

if TYPE_CHECKING:
    from ..storage import Storage
    from .registry import Topics
    from .topic import Topic


RETIRED_KIND = "deleted-partitioned-topic"
REMEMBERED_MAX = 10_000


class PartitionedTopics:
    """The numbers of partitions, and the names of deleted partitioned topics."""

    def __init__(self, catalog: MetadataStore, writer: CatalogWriter) -> None:
        self._catalog = catalog
        self._writer = writer
        self._counts: dict[str, int] = {}
        self._names = TopicNames()
        #: Names of deleted partitioned topics, oldest first.
        self._retired: dict[str, None] = {}

    def load(self) -> None:
        """Read the catalog. Blocks."""
        self._counts = {key: int(value) for key, value in self._catalog.items(PARTITIONED_KIND)}
        self._names = TopicNames(self._counts)
        self._retired = dict.fromkeys(key for key, _ in self._catalog.items(RETIRED_KIND))

    def half_deleted(self) -> list[TopicName]:
        """The partitioned topics whose deletion has begun and is not finished."""
        return [TopicName.parse(name) for name in self._retired if name in self._counts]

    # -- asking ---------------------------------------------------------------------------------

    def __contains__(self, name: TopicName) -> bool:
        """Whether this is the name of a partitioned topic."""
        return str(name) in self._counts

    def in_namespace(self, namespace: str) -> list[str]:
        """Full names of a namespace's partitioned topics, sorted."""
        return self._names.of(namespace)

    def count_of(self, name: TopicName) -> int:
        """Partitions of a partitioned topic; 0 for any other name."""
        return self._counts.get(str(name), 0)

    def with_partitions(self, name: TopicName) -> list[str]:
        """The full names of a topic and of its partitions, if it has some."""
        return [str(name), *(str(name.partition(index)) for index in range(self.count_of(name)))]

    def check_partition(self, name: TopicName, *, exists: bool, explicit: bool) -> None:
        """Refuse (TopicNotFound) a partition that cannot exist or must not be created.

        `explicit`: the client asks to create the topic, not only to use it.
        """
        parent = name.partitioned
        count = self.count_of(parent)
        if str(parent) in self._retired and (count or not (exists or explicit)):
            text = f"{name} was deleted with its partitioned topic"
            raise RefusedError(ServerError.TopicNotFound, text)
        if count and name.partition_index >= count:
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    # -- changing -------------------------------------------------------------------------------

    async def put(self, name: TopicName, partitions: int, *others: Change) -> None:
        """Create a partitioned topic, or change its number of partitions; durable on return.

        `others` are written in the same transaction.
        """
        await self._writer.in_turn(lambda: self._put(str(name), partitions, others))

    async def _put(self, full: str, partitions: int, others: tuple[Change, ...]) -> None:
        known = 0 if full in self._retired else self._counts.get(full, 0)
        if partitions < known:  # added meanwhile, perhaps at another broker
            text = f"{full} has {known} partitions, not {partitions}"
            raise RefusedError(ServerError.NotAllowedError, text)
        # In one transaction: else the next start could finish the old deletion on the new topic.
        count = PARTITIONED_KIND, full, str(partitions).encode()
        await self._writer.write((RETIRED_KIND, full, None), count, *others)
        self._retired.pop(full, None)
        self._counts[full] = partitions
        self._names.add(full)

    async def retire(self, name: TopicName) -> None:
        """Begin a deletion: no partition is opened from now on. Durable on return."""
        full = str(name)
        was_retired = full in self._retired
        self._retired[full] = None
        await self._writer.in_turn(lambda: self._retire(full, was_retired))

    async def _retire(self, full: str, was_retired: bool) -> None:
        self._retired[full] = None
        others = [name for name in self._retired if name != full]
        forgotten = others[: max(0, len(self._retired) - REMEMBERED_MAX)]
        try:
            await self._writer.write(
                # Another value each time: brokers of a cluster hear only of what has changed, and
                # each of them deletes its own partitions.
                (RETIRED_KIND, full, str(time.time_ns()).encode()),
                *((RETIRED_KIND, name, None) for name in forgotten),
                frees=True,
            )
        except BaseException:
            if not was_retired:
                self._retired.pop(full, None)
            raise
        for name in forgotten:
            self._retired.pop(name, None)

    async def forget(self, name: TopicName) -> None:
        """End a deletion: the partitions are gone."""
        full = str(name)
        await self._writer.put(PARTITIONED_KIND, full, None, lambda: self._drop(full))

    def finish(self, name: TopicName) -> None:
        """End a deletion at the start of the broker, when there are no turns yet. Blocks."""
        self._catalog.delete(PARTITIONED_KIND, str(name))
        self._drop(str(name))

    def take(self, kind: str, full: str, value: bytes | None) -> None:
        """Take over what another broker has stored under (kind, name); None: a removal."""
        if kind == RETIRED_KIND:
            if value is None:
                self._retired.pop(full, None)
            else:
                self._retired[full] = None
        elif value is None:
            self._drop(full)
        else:
            self._counts[full] = int(value)
            self._names.add(full)

    def _drop(self, full: str) -> None:
        self._counts.pop(full, None)
        self._names.discard(full)


async def open_all(topics: Topics, name: TopicName, count: int) -> list[Topic]:
    """Create all partitions; return those that this broker serves, which are open."""
    opened = []
    for index in range(count):
        partition = name.partition(index)
        if topics.owns(partition):
            opened.append(await topics.open(partition, create=True))
        else:
            await topics.make_known(partition)
    return opened


def finish_deletions(topics: Topics, store: Storage) -> None:
    """At the start: finish deletions of partitioned topics that a crash interrupted. Blocks."""
    for name in topics.partitioned.half_deleted():
        for partition in topics.partitioned.with_partitions(name)[1:]:
            if partition in topics.names:
                store.delete_topic(partition)
                topics.names.discard(partition)
            topics.catalog.delete(SNAPSHOT_KIND, partition)
        for kind in STORED_KINDS:
            topics.catalog.delete(kind, str(name))
        topics.partitioned.finish(name)


async def share_subscriptions(partitions: Sequence[Topic]) -> None:
    """Create the first partition's durable subscriptions on all others; durable on return.

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
