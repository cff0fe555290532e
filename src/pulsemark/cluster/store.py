"""The stores of one broker of a cluster: the shared catalog, and the stores of its bundles.

There are two kinds. On a shared engine each bundle is a store of its own: opening it takes it over,
which fences the broker that had it before. With one data folder for each worker all bundles of a
worker are in its one store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..broker.topics.registry import TOPIC_KIND
from ..ledger import ManagedLedger, TopicNotFoundError, TopicStore
from ..ledger.store import MetadataStore
from .bundle_ownership import Stores
from .shared_catalog import SharedCatalog

# The stores of bundles: one for each on an engine that all brokers share, or a worker's one.


class BundleStores(Stores):
    """A store for each bundle, on an engine that all brokers share."""

    are_shared = True

    def __init__(
        self, open_store: Callable[[str], TopicStore], run_blocking: Callable[..., Awaitable[Any]]
    ) -> None:
        self._open_store = open_store
        self._run_blocking = run_blocking

    async def open(self, bundle: str) -> TopicStore:
        """Open the bundle's own store, which fences the owner before."""
        store: TopicStore = await self._run_blocking(self._open_store, bundle)
        store.never_wait_here()
        return store

    async def close(self, bundle: str, store: TopicStore, *, is_lost: bool) -> None:
        """Close the bundle's store."""
        await self._run_blocking(store.abandon if is_lost else store.close)

    def finish(self) -> None:
        """Do nothing: each store is closed with its bundle."""

    def bad_copies(self) -> dict[str, int]:
        """The damaged copies from each bookie, counted in this process."""
        from ..ledger.bookkeeper.client.entries import bad_copies

        return bad_copies.counts()


class OneStore(Stores):
    """One store for all bundles of a worker. It stays open when a bundle is unloaded."""

    are_shared = False

    def __init__(
        self, open_store: Callable[[], TopicStore], run_blocking: Callable[..., Awaitable[Any]]
    ) -> None:
        self._open_store = open_store
        self._run_blocking = run_blocking
        self._opening = asyncio.Lock()
        self._store: TopicStore | None = None

    async def open(self, bundle: str) -> TopicStore:
        """The worker's store, which is opened for its first bundle."""
        async with self._opening:
            if self._store is None:
                self._store = await self._run_blocking(self._open_store)
            return self._store

    async def close(self, bundle: str, store: TopicStore, *, is_lost: bool) -> None:
        """Do nothing: the store is shared by all bundles."""

    def finish(self) -> None:
        """Close the worker's store."""
        if self._store is not None:
            self._store.close()

    def bad_copies(self) -> dict[str, int]:
        """Always empty: there are no bookies."""
        return {}


T = TypeVar("T")


class ClusterStore:
    """The stores of the bundles that this broker owns now, as one `Storage`."""

    is_whole = False

    def __init__(self, catalog: SharedCatalog, bundle_of: Callable[[str], str], name: str) -> None:
        self.catalog = catalog
        self.owner_id = os.urandom(16).hex()
        self.name = name
        self.stores: dict[str, TopicStore] = {}
        """By bundle. Changed on the event loop only."""
        #: Called at the end.
        self.finish: Callable[[], None] = lambda: None
        self._bundle_of = bundle_of

    def distinct(self) -> list[TopicStore]:
        """The open stores, each once."""
        return list(dict.fromkeys(tuple(self.stores.values())))

    def store_of(self, topic: str) -> TopicStore:
        """The store of a topic's bundle. Raises TopicNotFoundError for another broker's."""
        store = self.stores.get(self._bundle_of(topic))
        if store is None:
            raise TopicNotFoundError(topic)
        return store

    def metadata_of(self, name: str) -> MetadataStore:
        """The metadata of the topic's bundle. Raises as `store_of`."""
        return self.store_of(name).catalog

    # -- topics -----------------------------------------------------------------------------------

    def topic_names(self) -> list[str]:
        """Full names of all topics of the cluster, sorted."""
        return [key for key, _ in self.catalog.items(TOPIC_KIND)]

    def add_topics(self, names: Sequence[str]) -> None:
        """Make the names known to all brokers. The stores create topics when they open them."""
        new = [name for name in names if self.catalog.get(TOPIC_KIND, name) is None]
        if new:
            self.catalog.write([(TOPIC_KIND, name, b"") for name in new])

    def open_topic(self, name: str) -> ManagedLedger:
        """A topic's ledger. Raises as `TopicStore.open_topic`."""
        if self.catalog.get(TOPIC_KIND, name) is None:
            self.add_topics([name])
        return self.store_of(name).open_topic(name)

    def open_internal(self, name: str) -> ManagedLedger:
        """Open an internal log in the bundle of its name. Raises as `TopicStore.open_topic`."""
        return self.store_of(name).open_internal(name)

    def delete_topic(self, name: str) -> None:
        """Remove a topic. Raises as `TopicStore.delete_topic`."""
        store = self.store_of(name)
        with suppress(TopicNotFoundError):  # it was made known, and never opened
            store.delete_topic(name)
        self.catalog.delete(TOPIC_KIND, name)

    # -- the whole --------------------------------------------------------------------------------

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that changes the shared catalog, which is on no local disk."""
        return work()

    def probe(self) -> None:
        """Check whether all stores take writes. Raises OSError."""
        for store in self.distinct():
            store.probe()

    def wake_committer(self) -> None:
        """Wake the committers for entries that were appended without waking them."""
        for store in self.distinct():
            if store.committer.pending.size_bytes:
                store.wake_committer()

    def reads_are_due(self) -> bool:
        """Whether readers of old entries must take turns now."""
        return any(store.reads_are_due() for store in self.stores.values())

    def never_wait_here(self) -> None:
        """As `Storage.never_wait_here`; stores that are added later are told, too."""
        for store in self.distinct():
            store.never_wait_here()

    def close(self) -> None:
        """Close all stores."""
        for store in self.distinct():
            store.close()
        self.stores.clear()
        self.finish()
