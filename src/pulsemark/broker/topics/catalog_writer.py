"""Who changes the catalog: one writer, one change at a time, first come first served.

A change of what the catalog holds is a turn: look at what is there, refuse what cannot be, write,
and only then show it to the others. Were two turns to overlap, the second would decide by a state
that the first is about to change, and which of the two writes comes last would be up to the
threads. So turns wait for one another, over all kinds and keys. That costs nothing: a write is one
synced transaction, and SQLite makes one at a time anyway.

A turn that has begun ends, even if whoever asked for it is cancelled: what became durable is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ...ledger import TopicStore
from ..background import Background

__all__ = ["CatalogWriter"]

T = TypeVar("T")

Change = tuple[str, str, bytes | None]
"""Kind, key, and the new value; None: there is to be none."""


class CatalogWriter:
    """The only one that changes the catalog's properties while the broker runs."""

    def __init__(self, store: TopicStore, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._catalog = store.catalog
        self._run_blocking = run_blocking
        self._one_at_a_time = asyncio.Lock()
        self._background = Background()
        self._current: asyncio.Task[Any] | None = None

    async def in_turn(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``change`` when all that was asked for before has ended; what it returns or raises.

        It uses `read` and `write`, and nothing else that waits for a turn.
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
        """Within a turn: what is stored under (kind, key). Raises CatalogError."""
        assert self._is_current()
        stored: bytes | None = await self._run_blocking(self._catalog.get, kind, key)
        return stored

    async def write(self, *changes: Change, frees: bool = False) -> None:
        """Within a turn: make changes, in one transaction; durable on return.

        ``frees``: they are a part of removing something, so that a full disk must not keep us
        from them (see the store's reserve). So are changes that only remove.

        Raises CatalogError: nothing has changed then.
        """
        assert self._is_current()
        if frees or all(value is None for _, _, value in changes):
            await self._run_blocking(self._store.freeing, partial(self._catalog.write, changes))
        else:
            await self._run_blocking(self._catalog.write, changes)

    async def put(
        self, kind: str, key: str, value: bytes | None, show: Callable[[], object] = lambda: None
    ) -> None:
        """A turn of one change: store ``value`` (None: remove what is there), then ``show`` it.

        Raises CatalogError; nothing has changed, and nothing is shown then.
        """

        async def change() -> None:
            await self.write((kind, key, value))
            show()

        await self.in_turn(change)

    async def settled(self) -> None:
        """Return when there is no turn left."""
        await self._background.settled()
