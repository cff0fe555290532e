"""The stores of bundles: one for each on an engine that all brokers share, or a worker's one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..ledger import TopicStore
from .holdings import Stores

__all__ = ["BundleStores", "OneStore"]


class BundleStores(Stores):
    """A store for each bundle, on an engine that all brokers share."""

    are_shared = True

    def __init__(
        self,
        open_store: Callable[[str], TopicStore],
        run_blocking: Callable[..., Awaitable[Any]],
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
        """Nothing to do: `ClusterStore.close` closes it, and so does `finish`."""
