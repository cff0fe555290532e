"""The topics of a broker: opened, created and deleted.

Tenants, namespaces and partitioned topics are in the store's catalog; commands read a copy in
memory. Blocking work (opening a ledger, changing the catalog) runs in the executor, one piece of
work per topic at a time.

A topic is opened at its first use, and created if it does not exist and `create` allows that.
Opening and deleting use one lock. A topic to be deleted is closed when it is found unused, in one
step. So a later caller finds it closed and is refused.

This broker's own changes of the catalog go through `CatalogWriter` and are shown by their parts;
those of the other brokers of a cluster go to `takers_of`. `unload` closes topics that are
given away: clients look them up again, what was appended before gets its receipts, and the cursors
are durable before the next owner reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...ledger import Cursor, LedgerError, ManagedLedger, Position, TopicNotFoundError
from ...ledger.store import NAMESPACE_KIND, PARTITIONED_KIND, TENANT_KIND, MetadataStore
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError, TopicName
from ..configuration.config import BrokerConfig
from ..cooperative import Background, Turns
from ..errors import LimitReachedError, RefusedError
from ..policies.pulsar_policies import AUTO_TOPIC_CREATION, MAX_TOPICS
from ..storage import Storage, durable
from ..subscriptions.delayed import DelayedTotal
from .catalog_writer import CatalogWriter
from .deduplication import SNAPSHOT_KIND
from .namespaces import Namespaces
from .partitioned_topics import (
    RETIRED_KIND,
    PartitionedTopics,
    finish_deletions,
    open_all,
    share_subscriptions,
)
from .policy_store import TOPIC_POLICY_KIND, Policies, RuleKeeping, rules_of, stored_policies
from .schemas import STORED_KINDS
from .topic_marks import EPOCH_KIND, TERMINATED_KIND, LeaderEpochs, TopicMarks, leader_name
from .topic_names import NameLocks, TopicNames, invalid_name

if TYPE_CHECKING:
    from ..ownership import Cluster
    from .non_persistent import NonPersistentTopic
    from .schemas import Schemas
    from .topic import Topic

log = logging.getLogger(__name__)

RunBlocking = Callable[..., Awaitable[Any]]
DeletionHook = Callable[[TopicName], Awaitable[None]]

MAX_PARTITIONS = 10_000
#: Kind of the values, by full name, that say which topics a cluster has.
TOPIC_KIND = "topic"


class Topics:
    """The registry of topics.

    Attributes: `open_topics` by full name; `names` of all topics; `turns` runs long work of the
    whole broker, in time slices; `on_open` is called with each topic that is opened, and
    `before_open` before that: it may raise `RefusedError`.
    """

    def __init__(
        self,
        store: Storage,
        config: BrokerConfig,
        run_blocking: RunBlocking,
        catalog_writer: CatalogWriter,
        broker_name: str = "",
    ) -> None:
        self.config = config
        self.run_blocking = run_blocking
        self.open_topics: dict[str, Topic] = {}
        self.on_open: list[Callable[[Topic], None]] = []
        self.before_open: list[Callable[[Topic], Awaitable[None]]] = []
        #: Called with the name of a topic that is closed and will be deleted, and after that.
        self.before_delete: list[DeletionHook] = []
        self.after_delete: list[DeletionHook] = []
        self.names = TopicNames()
        self.turns = Turns()
        #: The brokers that share the topics; None: this broker serves all of them.
        self.cluster: Cluster | None = None
        self.catalog_writer = catalog_writer
        self.namespaces = Namespaces(store.catalog, catalog_writer)
        partitioned = self.partitioned = PartitionedTopics(store.catalog, catalog_writer)
        self.policies = Policies(config, self.namespaces, self.names, partitioned, catalog_writer)
        self.non_persistent = NonPersistentTopics(self)
        self.store = store
        self._additions = Additions(store, run_blocking)
        self.marks = TopicMarks(catalog_writer, run_blocking)
        #: Locks of logs; and of partitioned topics and REST creations (see `unload`).
        self.locks, self.changes = NameLocks(), NameLocks()
        self._background = Background()
        self._delayed_total = DelayedTotal(config.max_delayed_entries)
        self.rule_keeping = RuleKeeping(self, broker_name)
        leader = leader_name(broker_name, store.owner_id)
        self.leader_epochs = LeaderEpochs(self, self._background, leader=leader)
        self.names.watchers.run = self._run_soon

    def _run_soon(self, pieces: Iterator[None]) -> None:
        if not self.turns.run_now(pieces):
            self._background.start(self.turns.work(pieces))

    async def load(self) -> None:
        """Read the catalog; a new folder gets public/default."""
        await self.run_blocking(self._load)

    def _load(self) -> None:
        for name in sorted(self.store.topic_names()):
            self.names.add(name)
        self.partitioned.load()
        if self.store.is_whole:
            finish_deletions(self, self.store)
        self.marks.load(self.catalog, self.names)
        self.namespaces.load()
        self.policies.load(self.catalog)

    @property
    def catalog(self) -> MetadataStore:
        """The store's catalog; its calls block."""
        return self.store.catalog

    def owns(self, name: TopicName) -> bool:
        """Whether this broker serves a topic."""
        return self.cluster is None or self.cluster.owns(name)

    def check_owned(self, name: TopicName) -> None:
        """Raise `NotOwnedError` for a topic of another broker."""
        if self.cluster is not None:
            self.cluster.check_owned(name)

    # -- names ----------------------------------------------------------------------------------

    def parse(self, name: str) -> TopicName:
        """Parse a topic's name. Raises `RefusedError` if its namespace does not exist."""
        try:
            parsed = TopicName.parse(name)
        except InvalidTopicNameError as error:
            raise invalid_name(name, error) from None
        self.check_namespace(parsed)
        return parsed

    def check_namespace(self, name: TopicName) -> None:
        """Raise `RefusedError` if the topic's namespace does not exist."""
        if not self.namespaces.may_have_topics(name.namespace):
            raise RefusedError(ServerError.TopicNotFound, f"Namespace not found: {name.namespace}")

    def exists(self, name: TopicName) -> bool:
        """Whether the topic, partitioned or not, exists."""
        names = self.names if name.is_persistent else self.non_persistent.names
        return str(name) in names or name in self.partitioned

    def names_in(self, namespace: str) -> list[str]:
        """Full names of a namespace's topics and partitions; the persistent ones first, sorted."""
        return self.names.of(namespace) + self.non_persistent.names.of(namespace)

    def changed_cursors(self) -> Iterator[Cursor]:
        """The durable cursors with changes that are not stored yet."""
        return chain.from_iterable(one.cursors.changed() for one in self.store.distinct())

    # -- opening --------------------------------------------------------------------------------

    async def open(self, name: TopicName, *, create: bool, explicit: bool = False) -> Topic:
        """The open topic. Opens it, and creates it if `create` allows. Raises `RefusedError`.

        `explicit`: the client asks to create the topic, not only to use it; also a partition that
        was deleted with its partitioned topic.
        """
        topic = self.open_topics.get(str(name))
        if topic is not None:
            return topic
        self._check_can_open(name, create=create, explicit=explicit)
        opening = self._open_alone(name, create=create, explicit=explicit)
        return await self._background.run_to_end(opening)

    async def _open_alone(self, name: TopicName, *, create: bool, explicit: bool) -> Topic:
        async with self.locks.held(str(name)):
            topic = self.open_topics.get(str(name))
            if topic is None:
                self._check_can_open(name, create=create, explicit=explicit)
                topic = await self._open(name)
            return topic

    def _check_can_open(self, name: TopicName, *, create: bool, explicit: bool) -> None:
        self.check_owned(name)
        if not name.is_persistent:
            raise RefusedError(ServerError.NotAllowedError, f"{name} is not stored")
        self.check_namespace(name)
        if self.partitioned.count_of(name):
            text = f"{name} is partitioned: use one of its partitions"
            raise RefusedError(ServerError.NotAllowedError, text)
        exists = self.exists(name)
        if name.partition_index >= 0:
            self.partitioned.check_partition(name, exists=exists, explicit=explicit)
        if not exists and not create and not self.partitioned.count_of(name.partitioned):
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        if str(name) not in self.names:
            check_room(self, name.namespace, 1)
            _check_limit(name, len(self.names), self.config)

    async def _open(self, name: TopicName) -> Topic:
        full = str(name)
        if full not in self.names:
            await self._additions.add(full)
        try:
            ledger = await self.run_blocking(self.store.open_topic, full)
        except TopicNotFoundError as error:
            raise RefusedError(ServerError.TopicNotFound, str(error)) from error
        except (LedgerError, OSError) as error:
            raise RefusedError(ServerError.PersistenceError, str(error)) from error
        from .topic import Topic

        topic = Topic(
            name,
            ledger,
            self.config,
            topic_epoch=self.marks.epoch_of(full),
            store_epoch=partial(self.marks.store_epoch, full),
            delayed_total=self._delayed_total,
        )
        await self.marks.take_over(topic)
        await self.rule_keeping.opened(topic)
        await self.leader_epochs.try_to_begin(topic)
        for prepare in self.before_open:
            await prepare(topic)
        for call in self.on_open:
            call(topic)
        self.open_topics[full] = topic
        self.names.add(full)
        return topic

    async def make_known(self, name: TopicName) -> None:
        """Create a topic that another broker serves: that one opens it at its first use."""
        await self._additions.add(str(name))
        self.names.add(str(name))

    async def open_internal(self, name: str) -> ManagedLedger:
        """Open a log that the broker itself uses. Raises LedgerError, OSError."""
        ledger: ManagedLedger = await self.run_blocking(self.store.open_internal, name)
        return ledger

    # -- creating and deleting ------------------------------------------------------------------

    def creating(self, what: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a creation over REST: only one of several requests creates it."""
        return self.changes.held(f"creation of {what}")

    async def create_partitioned(
        self,
        name: TopicName,
        partitions: int,
        policies: dict[str, Any] | None = None,
        *,
        only_adds: bool = False,
    ) -> None:
        """Create a partitioned topic with all its partitions, or add partitions to one.

        A new one may have `policies`, stored in the same change. With `only_adds` a topic that was
        deleted meanwhile is refused (TopicNotFound).
        """
        creating = self._create_partitioned_alone(name, partitions, policies, only_adds=only_adds)
        await self._background.run_to_end(creating)

    async def _create_partitioned_alone(
        self, name: TopicName, partitions: int, policies: dict[str, Any] | None, *, only_adds: bool
    ) -> None:
        async with self.changes.held(str(name)):
            self.check_namespace(name)
            if only_adds and name not in self.partitioned:
                raise RefusedError(ServerError.TopicNotFound, f"Topic {name} not found")
            policies = {key: value for key, value in (policies or {}).items() if value is not None}
            if not policies:
                await self.partitioned.put(name, partitions)
            else:
                change = TOPIC_POLICY_KIND, str(name), stored_policies(policies)
                await self.partitioned.put(name, partitions, change)
                self.policies.show(name, policies)
        if name.is_persistent:
            await share_subscriptions(await open_all(self, name, partitions))

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a partitioned topic and its partitions. Raises `TopicInUseError`."""
        await self._background.run_to_end(self._delete_partitioned_alone(name, force=force))

    async def _delete_partitioned_alone(self, name: TopicName, *, force: bool) -> None:
        async with self.changes.held(str(name)):
            if name not in self.partitioned:
                raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            indexes = range(self.partitioned.count_of(name))
            opened: list[Topic] = [
                self.open_topics[full]
                for full in (str(name.partition(index)) for index in indexes)
                if full in self.open_topics
            ]
            if not name.is_persistent:
                opened += self.non_persistent.partitions(name, indexes)
            if not force:
                for topic in opened:
                    topic.check_is_unused()
            if name.is_persistent:
                notifying = [self.close_topic(topic) for topic in opened]
            else:
                notifying = [self.non_persistent.remove(t.topic_name, force=True) for t in opened]
            # Clients are notified after this: they must not bring partitions back.
            await self.partitioned.retire(name)
            for pieces in notifying:
                await self.turns.work(pieces)
            for index in indexes:
                if self.exists(name.partition(index)):
                    await self._delete_partition(name.partition(index))
            await self.policies.forget(name)
            await self._deleted(name)
            await self.partitioned.forget(name)

    async def terminate(self, topic: Topic) -> Position:
        """Terminate a topic and close its producers. Return the last entry's position."""
        return await self._background.run_to_end(self.marks.end(topic, self.locks, self.turns))

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its data. Raises `TopicInUseError`, `RefusedError`."""
        self.check_owned(name)
        if not name.is_persistent:
            await self.turns.work(self.non_persistent.remove(name, force=force))
            await self._deleted(name)
            return
        await self._background.run_to_end(self._delete_alone(name, force=force))

    async def _delete_partition(self, name: TopicName) -> None:
        if self.cluster is None or self.cluster.owns(name):
            await self._delete_alone(name, force=True)
        else:
            await self.cluster.delete_topic(name)

    async def _delete_alone(self, name: TopicName, *, force: bool) -> None:
        full = str(name)
        async with self.locks.held(full):
            if full not in self.names:
                raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            topic = self.open_topics.get(full)
            if topic is not None:
                if not force:
                    topic.check_is_unused()
                await self.turns.work(self.close_topic(topic))
                await topic.producers.settled()
            for prepare in self.before_delete:
                await prepare(name)
            await self.run_blocking(self.store.delete_topic, full)
            await self.marks.forget(full, (SNAPSHOT_KIND, full, None))
            self.names.discard(full)
            await self.policies.forget(name)
            await self._deleted(name)

    async def _deleted(self, name: TopicName) -> None:
        for forget in self.after_delete:
            await forget(name)

    def close_topic(self, topic: Topic) -> Iterator[None]:
        """Close a topic for its users. Return the pieces that notify their clients."""
        del self.open_topics[topic.name]
        topic.close()
        return topic.disconnect()

    # -- namespaces -----------------------------------------------------------------------------

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace that has no topics.

        Raises `RefusedError` (ServiceNotReady) if a topic was created meanwhile; it stays then.
        """
        settings = self.namespaces.withdraw(namespace)
        if settings is None:
            return
        try:
            # From now on none of its topics is opened. Wait for those that are being opened.
            await self._background.settle_running()
            if self.names_in(namespace) or self.partitioned.in_namespace(namespace):
                text = f"a topic was created in {namespace} meanwhile"
                raise RefusedError(ServerError.ServiceNotReady, text)
        except BaseException:
            self.namespaces.restore(namespace, settings)
            raise
        await self.namespaces.forget(namespace, settings)

    async def settled(self) -> None:
        """Return when no topic is being opened or deleted."""
        await self._background.settled()

    async def close(self) -> None:
        """Close every topic. After this nothing more is written for producers."""
        self.non_persistent.close()
        topics = tuple(self.open_topics.values())
        self.open_topics.clear()
        for topic in topics:
            topic.close()
            await self.turns.work(topic.disconnect())
            await topic.producers.settled()


MAX_AT_ONCE = 1_000


def creates(topics: Topics, name: TopicName) -> bool:
    """Whether a topic is created when a client produces to it or subscribes."""
    return bool(topics.policies.applied(name, AUTO_TOPIC_CREATION)["allowAutoTopicCreation"])


def partitions_created(topics: Topics, name: TopicName) -> int:
    """With how many partitions a topic is created when a client uses it; 0: without partitions."""
    policy = topics.policies.applied(name, AUTO_TOPIC_CREATION)
    if name.partition_index >= 0 or policy.get("topicType") != "partitioned":
        return 0
    return int(policy.get("defaultNumPartitions") or 1)


def is_beyond_partitions(topics: Topics, name: TopicName) -> bool:
    """Whether this is a partition beyond its partitioned topic's number."""
    count = topics.partitioned.count_of(name.partitioned)
    return bool(count) and name.partition_index >= count


def check_room(topics: Topics, namespace: str, more: int) -> None:
    """Raise `LimitReachedError` if `more` topics exceed a namespace's limit."""
    levels = topics.policies[MAX_TOPICS]
    most = levels.of(namespace)
    most = levels.default if most is None else most
    if most and topics.names.count_of(namespace) + more > most:
        reason = "Exceed maximum number of topics in namespace."
        raise LimitReachedError(ServerError.NotAllowedError, reason)


def _check_limit(name: TopicName, count: int, config: BrokerConfig) -> None:
    if count >= config.max_topics:
        text = f"{name} cannot be created: the limit is {config.max_topics} topics"
        raise RefusedError(ServerError.NotAllowedError, text)


class Additions:
    """Creates topics; each synced transaction creates all that wait."""

    def __init__(self, store: Storage, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._waiting: dict[str, None] = {}
        self._one_at_a_time = asyncio.Lock()

    async def add(self, name: str) -> None:
        """Return when the topic is in the catalog, or creating it failed: opening then says why."""
        self._waiting[name] = None
        async with self._one_at_a_time:
            while name in self._waiting:  # else another caller has created it
                await self._create(list(self._waiting)[:MAX_AT_ONCE])

    async def _create(self, names: list[str]) -> None:
        for name in names:
            del self._waiting[name]
        try:
            await self._run_blocking(self._store.add_topics, names)
        except (LedgerError, OSError):
            pass  # opening each of them says what is wrong
        except Exception:
            log.exception("%d topics could not be created together", len(names))


class NonPersistentTopics:
    """The open non-persistent topics of a broker. All of them are in memory only."""

    def __init__(self, topics: Topics) -> None:
        self.open_topics: dict[str, NonPersistentTopic] = {}
        self.names = TopicNames()
        self._topics = topics

    def open(self, name: TopicName, *, create: bool) -> NonPersistentTopic:
        """The open topic; created if `create` allows that. Raises `RefusedError`."""
        topic = self.open_topics.get(str(name))
        if topic is not None:
            # Producers and consumers that come from now on meet the present policies.
            topic.rules = rules_of(self._topics.policies, name)
            return topic
        self._topics.check_namespace(name)
        partitions_of = self._topics.partitioned.count_of
        if name.partition_index >= 0:
            self._topics.partitioned.check_partition(name, exists=False, explicit=create)
        if partitions_of(name) and not create:
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        is_partition = partitions_of(name.partitioned) and name.partition_index >= 0
        if not create and not is_partition:
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        _check_limit(name, len(self.open_topics), self._topics.config)
        from .non_persistent import NonPersistentTopic

        topic = NonPersistentTopic(name, self._topics.config)
        topic.rules = rules_of(self._topics.policies, name)
        self.open_topics[topic.name] = topic
        self.names.add(topic.name)
        return topic

    def partitions(self, name: TopicName, indexes: Iterable[int]) -> list[NonPersistentTopic]:
        """The open partitions of a partitioned topic."""
        full = (str(name.partition(index)) for index in indexes)
        return [self.open_topics[one] for one in full if one in self.open_topics]

    def remove(self, name: TopicName, *, force: bool) -> Iterator[None]:
        """Close a topic. Return the pieces that notify its clients. Raises `TopicInUseError`."""
        topic = self.open_topics.get(str(name))
        if topic is None:
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        if not force:
            topic.check_is_unused()
        del self.open_topics[topic.name]
        self.names.discard(topic.name)
        topic.close()
        return topic.disconnect()

    def close(self) -> None:
        """The broker ends: close every topic."""
        for topic in self.open_topics.values():
            topic.close()


def takers_of(topics: Topics, schemas: Schemas) -> dict[str, Callable[[str, bytes | None], None]]:
    """By kind, what takes over a value that another broker of a cluster has stored, or removed."""

    def namespace(key: str, value: bytes | None) -> None:
        before = topics.namespaces.get(key, {})
        topics.namespaces.take(NAMESPACE_KIND, key, value)
        topics.policies.took_namespace(key, before, topics.namespaces.get(key, {}))

    def topic(full: str, value: bytes | None) -> None:
        (topics.names.discard if value is None else topics.names.add)(full)

    return {
        TENANT_KIND: partial(topics.namespaces.take, TENANT_KIND),
        NAMESPACE_KIND: namespace,
        TOPIC_KIND: topic,
        PARTITIONED_KIND: partial(topics.partitioned.take, PARTITIONED_KIND),
        RETIRED_KIND: partial(topics.partitioned.take, RETIRED_KIND),
        TOPIC_POLICY_KIND: topics.policies.take,
        EPOCH_KIND: partial(topics.marks.take, EPOCH_KIND),
        TERMINATED_KIND: partial(topics.marks.take, TERMINATED_KIND),
        **dict.fromkeys(STORED_KINDS, lambda key, value: schemas.take(key)),
    }


async def unload(
    topics: Topics, belongs: Callable[[TopicName], bool], *, is_lost: bool = False
) -> int:
    """Close the open topics for which `belongs` is true, and return their number.

    `Topics.check_owned` must refuse them already. Topics that are just being opened are waited for,
    by the locks of their names. Changes of partitioned topics are not: they may wait until this
    broker owns the bundle again. `is_lost`: another broker owns the topics already, so nothing can
    be stored.
    """
    count = 0
    for name in dict.fromkeys((*topics.open_topics, *topics.locks.names())):
        if belongs(TopicName.parse(name)):
            async with topics.locks.held(name):
                topic = topics.open_topics.get(name)
                if topic is not None:
                    await _close(topics, topic, is_lost=is_lost)
                    count += 1
    for other in tuple(topics.non_persistent.open_topics.values()):
        if belongs(other.topic_name):
            await topics.turns.work(topics.non_persistent.remove(other.topic_name, force=True))
            count += 1
    return count


async def _close(topics: Topics, topic: Topic, *, is_lost: bool) -> None:
    if not is_lost:
        for subscription in tuple(topic.subscriptions.values()):
            subscription.work.finish()
    notifying = topics.close_topic(topic)
    if not is_lost:
        await _store_cursors(topic)
    await topics.turns.work(notifying)
    await topic.producers.settled()


async def _store_cursors(topic: Topic) -> None:
    """Store a topic's cursors. Their commits come after all appends, which are durable then."""
    for cursor in tuple(topic.ledger.cursors.values()):
        if cursor.durable:
            try:
                await durable(cursor.persist())
            except (RefusedError, LedgerError) as error:
                text = "%s: a cursor was not stored; acknowledged messages may come again: %s"
                log.warning(text, topic.name, error)
