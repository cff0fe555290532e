"""The topics of a data folder: which there are, and which are open.

Tenants, namespaces and partitioned topics live in the store's catalog; a copy in memory answers
the questions that come with every command. What blocks (opening a ledger, a change to the
catalog) runs in the executor, one piece of work per topic at a time.

A topic is opened when somebody first needs it, and created with it where `create` allows. It is
deleted under the same lock as it is opened under, and closed for its users in the same step in
which it is found unused: who comes later, or has waited meanwhile, meets a closed topic, never one
that is gone.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ...ledger import LedgerError, LocalStore, TopicNotFoundError
from ...ledger.local.catalog.catalog import Catalog
from ...metadata import StamperChain
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError, TopicName, check_namespace
from ..background import Background
from ..configuration.config import BrokerConfig
from ..errors import RefusedError
from .catalog_writer import CatalogWriter
from .name_locks import NameLocks
from .partitioned_topics import PartitionedTopics
from .policy_store import TOPIC_POLICY_KIND, PolicyStore
from .producers import CLAIMED_EPOCH_MAX
from .stamp_policies import StampPolicies, StampPolicy
from .topic import Topic

__all__ = ["TopicInUseError", "Topics"]

T = TypeVar("T")
RunBlocking = Callable[..., Awaitable[Any]]

DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "public/default"
MAX_PARTITIONS = 10_000


class TopicInUseError(Exception):
    """A topic cannot be deleted while producers or consumers are connected to it."""

    def __init__(self, topic: str, producers: int, consumers: int) -> None:
        super().__init__(f"{topic} has {producers} producers and {consumers} consumers")
        self.topic = topic
        self.producers = producers
        self.consumers = consumers


class Topics:
    """The registry of topics, tenants and namespaces."""

    def __init__(
        self,
        store: LocalStore,
        config: BrokerConfig,
        stampers: StamperChain,
        run_blocking: RunBlocking,
        catalog_writer: CatalogWriter,
        *,
        before_delete: Callable[[TopicName], Awaitable[None]],
        after_delete: Callable[[TopicName], Awaitable[None]],
        broker_name: str = "",
    ) -> None:
        """`after_delete` is called with the name of each topic that was deleted.

        `before_delete` is called with that of one that is closed, and about to be deleted.
        """
        self.config = config
        self.open_topics: dict[str, Topic] = {}
        self.tenants: dict[str, dict[str, Any]] = {}
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.catalog_writer = catalog_writer
        self.policy_store = PolicyStore(self, catalog_writer)
        self.stamp_policies = StampPolicies(
            self,
            StampPolicy(config.stampers, stampers),
            self.policy_store,
            broker_name=broker_name,
        )
        self._store = store
        self._run_blocking = run_blocking
        self._partitioned = PartitionedTopics(store.catalog, self.catalog_writer)
        self._names: set[str] = set()
        self._topic_epochs: dict[str, int] = {}
        self._locks = NameLocks()
        self._before_delete = before_delete
        self._after_delete = after_delete
        self._background = Background()

    async def load(self) -> None:
        """Read the catalog; a fresh folder gets public/default."""
        await self._run_blocking(self._load)

    def _load(self) -> None:
        catalog = self._store.catalog
        self._names = set(self._store.topic_names())
        self.tenants = {key: json.loads(value) for key, value in catalog.items("tenant")}
        self.namespaces = {key: json.loads(value) for key, value in catalog.items("namespace")}
        self._partitioned.load()
        self._finish_deletions()
        self._topic_epochs = self._stored_epochs()
        if not self.tenants:
            # Together: a tenant alone would look like a folder that somebody has set up.
            catalog.write(
                [("tenant", DEFAULT_TENANT, b"{}"), ("namespace", DEFAULT_NAMESPACE, b"{}")]
            )
            self.tenants[DEFAULT_TENANT] = {}
            self.namespaces[DEFAULT_NAMESPACE] = {}
        self.policy_store.load(catalog.items(TOPIC_POLICY_KIND))
        self.stamp_policies.check_stored()

    def _finish_deletions(self) -> None:
        """End what a crash interrupted: partitioned topics whose deletion had begun."""
        for name in self._partitioned.half_deleted():
            for index in range(self.partitions_of(name)):
                partition = str(name.partition(index))
                if partition in self._names:
                    self._store.delete_topic(partition)
                    self._names.discard(partition)
            self.catalog.delete("schema", str(name))
            self._partitioned.finish(name)

    def _stored_epochs(self) -> dict[str, int]:
        """Each topic's epoch; one that a crash left after its topic was deleted is removed."""
        epochs: dict[str, int] = {}
        for key, value in self.catalog.items("topic-epoch"):
            if key in self._names:
                # Earlier versions stored any epoch that a client claimed to have had.
                epochs[key] = int(value) if int(value) < 1 << 63 else CLAIMED_EPOCH_MAX
            else:
                self.catalog.delete("topic-epoch", key)
        return epochs

    @property
    def catalog(self) -> Catalog:
        """The store's catalog; its calls block."""
        return self._store.catalog

    # -- names ----------------------------------------------------------------------------------

    @property
    def creates_topics(self) -> bool:
        """Whether a topic comes into being when somebody produces to it or subscribes."""
        return self.config.allow_auto_topic_creation

    def parse(self, name: str) -> TopicName:
        """The topic's parsed name, in a namespace that exists, or `RefusedError`."""
        try:
            parsed = TopicName.parse(name)
        except InvalidTopicNameError as error:
            raise RefusedError(ServerError.InvalidTopicName, str(error)) from None
        self._check_namespace(parsed)
        return parsed

    def _check_namespace(self, name: TopicName) -> None:
        if name.namespace not in self.namespaces:
            raise RefusedError(ServerError.TopicNotFound, f"Namespace not found: {name.namespace}")

    def exists(self, name: TopicName) -> bool:
        """Whether the topic, partitioned or not, is there."""
        return str(name) in self._names or name in self._partitioned

    def partitions_of(self, name: TopicName) -> int:
        """Partitions of a partitioned topic; 0 for any other name."""
        return self._partitioned.count_of(name)

    def names_in(self, namespace: str) -> list[str]:
        """Full names of a namespace's topics, sorted; partitions one by one."""
        middle = f"://{namespace}/"
        return sorted(name for name in self._names if middle in name)

    def partitioned_in(self, namespace: str) -> list[str]:
        """Full names of a namespace's partitioned topics, sorted."""
        middle = f"://{namespace}/"
        return sorted(name for name in self._partitioned if middle in name)

    def topic_names(self) -> Iterable[str]:
        """Full names of all topics."""
        return sorted(self._names)

    # -- opening --------------------------------------------------------------------------------

    async def open(self, name: TopicName, *, create: bool, explicit: bool = False) -> Topic:
        """The open topic; opened, and where allowed created, if need be. Raises `RefusedError`.

        `explicit`: made because somebody asks for it, not by being used; that is also possible for
        a partition that was deleted with its partitioned topic.
        """
        topic = self.open_topics.get(str(name))
        if topic is not None:
            return topic
        self._check_can_open(name, create=create, explicit=explicit)
        return await self._background.to_the_end(
            self._open_alone(name, create=create, explicit=explicit)
        )

    async def _open_alone(self, name: TopicName, *, create: bool, explicit: bool) -> Topic:
        async with self._locks.held(str(name)):
            topic = self.open_topics.get(str(name))
            if topic is None:
                self._check_can_open(name, create=create, explicit=explicit)
                topic = await self._open(name)
            return topic

    def _check_can_open(self, name: TopicName, *, create: bool, explicit: bool) -> None:
        _check_persistent(name)
        self._check_namespace(name)
        if self.partitions_of(name):
            raise RefusedError(
                ServerError.NotAllowedError, f"{name} is partitioned: use one of its partitions"
            )
        exists = self.exists(name)
        if name.partition_index >= 0:
            self._partitioned.check_partition(name, exists=exists, explicit=explicit)
        if not exists and not create and not self.partitions_of(name.partitioned):
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        if str(name) not in self._names and len(self._names) >= self.config.max_topics:
            raise RefusedError(
                ServerError.NotAllowedError,
                f"no room for {name}: there are {self.config.max_topics} topics, the limit",
            )

    async def _open(self, name: TopicName) -> Topic:
        full = str(name)

        async def store_epoch(epoch: int) -> None:
            def show() -> None:
                self._topic_epochs[full] = epoch

            await self.catalog_writer.put("topic-epoch", full, str(epoch).encode(), show)

        try:
            ledger = await self._run_blocking(self._store.open_topic, full)
        except TopicNotFoundError as error:
            raise RefusedError(ServerError.TopicNotFound, str(error)) from error
        except LedgerError as error:
            raise RefusedError(ServerError.PersistenceError, str(error)) from error
        topic = Topic(
            name,
            ledger,
            self.config,
            topic_epoch=self._topic_epochs.get(full),
            store_epoch=store_epoch,
        )
        self.stamp_policies.apply_to(topic)
        self.open_topics[full] = topic
        self._names.add(full)
        return topic

    # -- creating and deleting ------------------------------------------------------------------

    async def create_partitioned(self, name: TopicName, partitions: int) -> None:
        """Make a partitioned topic with all of its partitions, or give one more of them."""
        _check_persistent(name)
        await self._background.to_the_end(self._create_partitioned_alone(name, partitions))

    async def _create_partitioned_alone(self, name: TopicName, partitions: int) -> None:
        async with self._locks.held(str(name)):
            self._check_namespace(name)
            await self._partitioned.put(name, partitions)
        for index in range(partitions):
            await self.open(name.partition(index), create=True)

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a partitioned topic and its partitions. Raises `TopicInUseError`."""
        await self._background.to_the_end(self._delete_partitioned_alone(name, force=force))

    async def _delete_partitioned_alone(self, name: TopicName, *, force: bool) -> None:
        async with self._locks.held(str(name)):
            if name not in self._partitioned:
                raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            partitions = [name.partition(i) for i in range(self.partitions_of(name))]
            if not force:
                for partition in partitions:
                    self._check_unused(partition)
            for partition in partitions:
                self._close(partition)
            await self._partitioned.retire(name)
            for partition in partitions:
                if self.exists(partition):
                    await self._delete_alone(partition, force=True)
            await self.policy_store.forget(name)
            await self._after_delete(name)
            await self._partitioned.forget(name)

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with everything in it. Raises `TopicInUseError`, `RefusedError`."""
        await self._background.to_the_end(self._delete_alone(name, force=force))

    async def _delete_alone(self, name: TopicName, *, force: bool) -> None:
        full = str(name)
        async with self._locks.held(full):
            if full not in self._names:
                raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")
            if not force:
                self._check_unused(name)
            topic = self._close(name)
            if topic is not None:
                await topic.producers.settled()
            await self._before_delete(name)
            await self._run_blocking(self._store.delete_topic, full)
            await self.catalog_writer.put(
                "topic-epoch", full, None, lambda: self._topic_epochs.pop(full, None)
            )
            self._names.discard(full)
            await self.policy_store.forget(name)
            await self._after_delete(name)

    def _close(self, name: TopicName) -> Topic | None:
        """Close a topic for those who use it, if it is open. It is opened anew when needed."""
        topic = self.open_topics.pop(str(name), None)
        if topic is not None:
            topic.disconnect_all()
            topic.close()
        return topic

    def _check_unused(self, name: TopicName) -> None:
        topic = self.open_topics.get(str(name))
        if topic is None:
            return
        producers = len(topic.producers.by_name) + len(topic.producers.waiting)
        consumers = sum(len(s.consumers) for s in topic.subscriptions.values())
        if producers or consumers:
            raise TopicInUseError(str(name), producers, consumers)

    # -- tenants and namespaces -----------------------------------------------------------------

    async def put_tenant(self, tenant: str, settings: dict[str, Any]) -> None:
        """Make a tenant, or change its settings."""

        def show() -> None:
            self.tenants[tenant] = settings

        await self.catalog_writer.put("tenant", tenant, _stored(settings), show)

    async def delete_tenant(self, tenant: str) -> None:
        """Forget a tenant that has no namespaces left."""
        await self.catalog_writer.put(
            "tenant", tenant, None, lambda: self.tenants.pop(tenant, None)
        )

    async def put_namespace(self, namespace: str, settings: dict[str, Any]) -> None:
        """Make a namespace, or change its settings."""
        check_namespace(namespace)

        def show() -> None:
            self.namespaces[namespace] = settings

        await self.catalog_writer.put("namespace", namespace, _stored(settings), show)

    async def change_namespace(
        self,
        namespace: str,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Store what `change` makes of a namespace's settings, then call `changed`.

        Raises `RefusedError` for a namespace that is not there.
        """

        async def turn() -> None:
            if namespace not in self.namespaces:
                raise RefusedError(
                    ServerError.TopicNotFound, f"Namespace {namespace} does not exist"
                )
            settings = change(self.namespaces[namespace])
            await self.catalog_writer.write(("namespace", namespace, _stored(settings)))
            self.namespaces[namespace] = settings
            changed()

        await self.catalog_writer.in_turn(turn)

    async def delete_namespace(self, namespace: str) -> None:
        """Forget a namespace that has no topics left.

        Raises `RefusedError` (ServiceNotReady) if one was made while the namespace was being
        deleted; then it stays.
        """
        settings = self.namespaces.pop(namespace, None)
        if settings is None:
            return
        try:
            # No topic of it is opened from now on; those that are being opened are waited for.
            await self._background.settle_present()
            if self.names_in(namespace) or self.partitioned_in(namespace):
                raise RefusedError(
                    ServerError.ServiceNotReady, f"{namespace} has got a topic meanwhile"
                )
        except BaseException:
            self.namespaces.setdefault(namespace, settings)
            raise

        async def turn() -> None:
            try:
                await self.catalog_writer.write(("namespace", namespace, None))
            except BaseException:
                self.namespaces.setdefault(namespace, settings)
                raise
            self.namespaces.pop(namespace, None)

        await self.catalog_writer.in_turn(turn)

    def namespaces_of(self, tenant: str) -> list[str]:
        """The tenant's namespaces, sorted."""
        return sorted(name for name in self.namespaces if name.startswith(f"{tenant}/"))

    async def settled(self) -> None:
        """Return when nothing is being opened or deleted any more."""
        await self._background.settled()

    async def close(self) -> None:
        """Close every topic; nothing is written on behalf of producers afterwards."""
        topics = tuple(self.open_topics.values())
        self.open_topics.clear()
        for topic in topics:
            topic.close()
            await topic.producers.settled()


def _stored(settings: dict[str, Any]) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()


def _check_persistent(name: TopicName) -> None:
    if not name.is_persistent:
        raise RefusedError(
            ServerError.NotAllowedError, "non-persistent topics are not served by this broker"
        )
