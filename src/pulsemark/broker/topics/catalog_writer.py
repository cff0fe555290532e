"""The only writer of the catalog: it makes one change at a time, in the order of the requests.

A change of the catalog is a turn with four steps: read the stored state, refuse a change that is
not valid, write, and then show the change to the rest of the broker. If two turns overlapped, the
second would read a state that the first is about to change, and the order of the two writes would
depend on the threads. So turns wait for one another, over all kinds and keys. This costs nothing:
each write is one synced transaction, and SQLite runs only one at a time.

A turn that has begun runs to its end, even if its caller is cancelled: a durable change must also
be shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ..background import Background
from ..storage import Storage

__all__ = ["CatalogWriter", "Change"]

T = TypeVar("T")

Change = tuple[str, str, bytes | None]
"""Kind, key, and the new value; None removes the value."""


class CatalogWriter:
    """The only object that changes the catalog's properties while the broker runs.

    The auditor is the one exception: its thread alone changes properties of its own kinds.
    """

    def __init__(self, store: Storage, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._catalog = store.catalog
        self._run_blocking = run_blocking
        self._one_at_a_time = asyncio.Lock()
        self._background = Background()
        self._current: asyncio.Task[Any] | None = None

    async def in_turn(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``change`` after all earlier turns; return or raise what it returns or raises.

        ``change`` may use `read` and `write`, but nothing else that waits for a turn.
        """
        assert not self._is_current(), "a turn within a turn would wait for itself"
        return await self._background.run_to_end(self._take(change))

    async def _take(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._one_at_a_time:
            self._current = asyncio.current_task()
            try:
                return await change()
            finally:
                self._current = None

    def _is_current(self) -> bool:
        return self._current is not None and asyncio.current_task() is self._current

    async def read(self, kind: str, key: str) -> bytes | None:
        """Within a turn: the value stored under (kind, key). Raises CatalogError."""
        assert self._is_current()
        stored: bytes | None = await self._run_blocking(self._catalog.get, kind, key)
        return stored

    async def items(self, kind: str) -> list[tuple[str, bytes]]:
        """Within a turn: all keys and values of a kind. Raises CatalogError."""
        assert self._is_current()
        stored: list[tuple[str, bytes]] = await self._run_blocking(self._catalog.items, kind)
        return stored

    async def write(self, *changes: Change, frees: bool = False) -> None:
        """Within a turn: make changes, in one transaction; durable on return.

        ``frees``: the changes are a part of removing something, so they must also be possible on a
        full disk (see the store's reserve). This is always so for changes that only remove.

        Raises CatalogError; then nothing has changed.
        """
        assert self._is_current()
        if frees or all(value is None for _, _, value in changes):
            await self._run_blocking(self._store.freeing, partial(self._catalog.write, changes))
        else:
            await self._run_blocking(self._catalog.write, changes)

    async def put(
        self,
        kind: str,
        key: str,
        value: bytes | None,
        show: Callable[[], object] = lambda: None,
        *others: Change,
    ) -> None:
        """A turn with one change: store ``value`` (None removes it), then call ``show``.

        ``others`` are made in the same transaction.

        Raises CatalogError; then nothing has changed, and ``show`` was not called.
        """

        async def change() -> None:
            await self.write((kind, key, value), *others)
            show()

        await self.in_turn(change)

    async def settled(self) -> None:
        """Return when no turn runs or waits."""
        await self._background.settled()
