"""The topics of a data folder: which there are, and which are open.

Tenants, namespaces and partitioned topics live in the store's catalog; a copy in memory answers
the questions that come with every command. What blocks (opening a ledger, a change to the
catalog) runs in the executor, one piece of work per topic at a time.

A topic is opened when somebody first needs it, and created with it where `create` allows.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ..ledger import LedgerError, LocalStore, TopicNotFoundError
from ..ledger.catalog import Catalog
from ..metadata import StamperChain
from ..proto.pulsar_api_pb2 import ServerError
from ..wire import InvalidTopicNameError, TopicName, check_namespace
from .config import BrokerConfig
from .errors import RefusedError
from .stamp_policies import TOPIC_POLICY_KIND, StampPolicies, StampPolicy
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
        *,
        broker_name: str = "",
    ) -> None:
        self.config = config
        self.open_topics: dict[str, Topic] = {}
        self.tenants: dict[str, dict[str, Any]] = {}
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.stamp_policies = StampPolicies(
            self, StampPolicy(config.stampers, stampers), run_blocking, broker_name=broker_name
        )
        self._store = store
        self._run_blocking = run_blocking
        self._partitions: dict[str, int] = {}
        self._names: set[str] = set()
        self._topic_epochs: dict[str, int] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Called with the name of each topic that was deleted.
        self.after_delete: Callable[[TopicName], Awaitable[None]] | None = None
        self._work: set[asyncio.Future[Any]] = set()
        self._changing_namespaces = asyncio.Lock()

    async def load(self) -> None:
        """Read the catalog; a fresh folder gets public/default."""
        await self._run_blocking(self._load)

    def _load(self) -> None:
        catalog = self._store.catalog
        self._names = set(self._store.topic_names())
        self.tenants = {key: json.loads(value) for key, value in catalog.items("tenant")}
        self.namespaces = {key: json.loads(value) for key, value in catalog.items("namespace")}
        self._topic_epochs = {key: int(value) for key, value in catalog.items("topic-epoch")}
        self._partitions = {key: int(value) for key, value in catalog.items("partitioned-topic")}
        if not self.tenants:
            self.tenants[DEFAULT_TENANT] = {}
            catalog.put("tenant", DEFAULT_TENANT, b"{}")
            self.namespaces[DEFAULT_NAMESPACE] = {}
            catalog.put("namespace", DEFAULT_NAMESPACE, b"{}")
        self.stamp_policies.load(catalog.items(TOPIC_POLICY_KIND))

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
        if parsed.namespace not in self.namespaces:
            raise RefusedError(
                ServerError.TopicNotFound, f"Namespace not found: {parsed.namespace}"
            )
        return parsed

    def exists(self, name: TopicName) -> bool:
        """Whether the topic, partitioned or not, is there."""
        return str(name) in self._names or str(name) in self._partitions

    def partitions_of(self, name: TopicName) -> int:
        """Partitions of a partitioned topic; 0 for any other name."""
        return self._partitions.get(str(name), 0)

    def names_in(self, namespace: str) -> list[str]:
        """Full names of a namespace's topics, sorted; partitions one by one."""
        middle = f"://{namespace}/"
        return sorted(name for name in self._names if middle in name)

    def partitioned_in(self, namespace: str) -> list[str]:
        """Full names of a namespace's partitioned topics, sorted."""
        middle = f"://{namespace}/"
        return sorted(name for name in self._partitions if middle in name)

    def topic_names(self) -> Iterable[str]:
        """Full names of all topics."""
        return sorted(self._names)

    # -- opening --------------------------------------------------------------------------------

    async def open(self, name: TopicName, *, create: bool) -> Topic:
        """The open topic; opened, and where allowed created, if need be. Raises `RefusedError`."""
        topic = self.open_topics.get(str(name))
        if topic is not None:
            return topic
        self._check_can_open(name, create=create)
        return await self._to_the_end(self._open_alone(name, create=create))

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, which goes on even if whoever waits is cancelled."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return await asyncio.shield(task)

    async def _open_alone(self, name: TopicName, *, create: bool) -> Topic:
        async with self._locks[str(name)]:
            topic = self.open_topics.get(str(name))
            if topic is None:
                self._check_can_open(name, create=create)
                topic = await self._open(name)
            return topic

    def _check_can_open(self, name: TopicName, *, create: bool) -> None:
        _check_persistent(name)
        if self.partitions_of(name):
            raise RefusedError(
                ServerError.NotAllowedError, f"{name} is partitioned: use one of its partitions"
            )
        parent = self.partitions_of(name.partitioned)
        if parent and name.partition_index >= parent:
            raise RefusedError(
                ServerError.TopicNotFound, f"{name.partitioned} has {parent} partitions"
            )
        if not self.exists(name) and not create and not parent:
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def _open(self, name: TopicName) -> Topic:
        full = str(name)

        async def store_epoch(epoch: int) -> None:
            await self._run_blocking(
                self._store.catalog.put, "topic-epoch", full, str(epoch).encode()
            )
            self._topic_epochs[full] = epoch

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
        await self._run_blocking(
            self._store.catalog.put, "partitioned-topic", str(name), str(partitions).encode()
        )
        self._partitions[str(name)] = partitions
        for index in range(partitions):
            await self.open(name.partition(index), create=True)

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a partitioned topic and its partitions. Raises `TopicInUseError`."""
        partitions = [name.partition(i) for i in range(self.partitions_of(name))]
        if not force:
            for partition in partitions:
                self._check_unused(partition)
        for partition in partitions:
            if self.exists(partition):
                await self.delete(partition, force=True)
        await self._run_blocking(self._store.catalog.delete, "partitioned-topic", str(name))
        self._partitions.pop(str(name), None)
        await self.stamp_policies.forget(name)
        if self.after_delete is not None:
            await self.after_delete(name)

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with everything in it. Raises `TopicInUseError`."""
        await self._to_the_end(self._delete_alone(name, force=force))

    async def _delete_alone(self, name: TopicName, *, force: bool) -> None:
        full = str(name)
        async with self._locks[full]:
            if not force:
                self._check_unused(name)
            topic = self.open_topics.pop(full, None)
            if topic is not None:
                topic.disconnect_all()
                topic.close()
            await self._run_blocking(self._store.delete_topic, full)
            await self._run_blocking(self._store.catalog.delete, "topic-epoch", full)
            self._topic_epochs.pop(full, None)
            self._names.discard(full)
            await self.stamp_policies.forget(name)
        if self.after_delete is not None:
            await self.after_delete(name)

    def _check_unused(self, name: TopicName) -> None:
        topic = self.open_topics.get(str(name))
        if topic is None:
            return
        producers = len(topic.producers.by_name)
        consumers = sum(len(s.consumers) for s in topic.subscriptions.values())
        if producers or consumers:
            raise TopicInUseError(str(name), producers, consumers)

    # -- tenants and namespaces -----------------------------------------------------------------

    async def put_tenant(self, tenant: str, settings: dict[str, Any]) -> None:
        """Make a tenant, or change its settings."""
        await self._put("tenant", tenant, settings)
        self.tenants[tenant] = settings

    async def delete_tenant(self, tenant: str) -> None:
        """Forget a tenant that has no namespaces left."""
        await self._run_blocking(self._store.catalog.delete, "tenant", tenant)
        self.tenants.pop(tenant, None)

    async def put_namespace(self, namespace: str, settings: dict[str, Any]) -> None:
        """Make a namespace, or change its settings."""
        check_namespace(namespace)
        async with self._changing_namespaces:
            await self._put("namespace", namespace, settings)
            self.namespaces[namespace] = settings

    async def change_namespace(
        self, namespace: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Store what `change` makes of a namespace's settings. Raises `RefusedError`."""
        async with self._changing_namespaces:
            if namespace not in self.namespaces:
                raise RefusedError(
                    ServerError.TopicNotFound, f"Namespace {namespace} does not exist"
                )
            settings = change(self.namespaces[namespace])
            await self._put("namespace", namespace, settings)
            self.namespaces[namespace] = settings

    async def delete_namespace(self, namespace: str) -> None:
        """Forget a namespace that has no topics left."""
        async with self._changing_namespaces:
            await self._run_blocking(self._store.catalog.delete, "namespace", namespace)
            self.namespaces.pop(namespace, None)

    def namespaces_of(self, tenant: str) -> list[str]:
        """The tenant's namespaces, sorted."""
        return sorted(name for name in self.namespaces if name.startswith(f"{tenant}/"))

    async def _put(self, kind: str, key: str, settings: dict[str, Any]) -> None:
        value = json.dumps(settings, sort_keys=True).encode()
        await self._run_blocking(self._store.catalog.put, kind, key, value)

    def close(self) -> None:
        """Stop dispatch on every topic."""
        for topic in self.open_topics.values():
            topic.close()
        self.open_topics.clear()


def _check_persistent(name: TopicName) -> None:
    if not name.is_persistent:
        raise RefusedError(
            ServerError.NotAllowedError, "non-persistent topics are not served by this broker"
        )
