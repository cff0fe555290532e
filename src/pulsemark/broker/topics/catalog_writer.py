"""The only writer of the catalog: it makes one change at a time, in the order of the requests.

A change is a turn with four steps: read the stored state, refuse a change that is not valid, write,
and show the change to the rest of the broker. Turns wait for one another, over all kinds and keys,
so that none reads a state that another is about to change. This costs nothing: each write is one
synced transaction, and SQLite runs only one at a time. A turn that has begun runs to its end, even
if its caller is cancelled: a durable change must also be shown.

In a cluster other brokers change the same values. If another broker has changed a value after the
turn was requested, nothing is written: a turn of `in_turn` raises ChangedElsewhereError, and one of
`revising`, which computes its values itself, is run again on the new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ...ledger.errors import ChangedElsewhereError
from ..cooperative import Background
from ..storage import Storage

T = TypeVar("T")

PAUSE_S = 0.005
#: A value that other brokers change so often in a row is refused.
MAX_ATTEMPTS = 20

Change = tuple[str, str, bytes | None]
"""Kind, key, and the new value; None removes the value."""


class CatalogWriter:
    """The only object that changes the catalog's properties while the broker runs.

    The exceptions are the auditor, whose thread alone changes properties of its own kinds, and the
    acknowledgements that transactions have made, which `Participants` stores topic by topic.
    """

    def __init__(self, store: Storage, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._catalog = store.catalog
        self._run_blocking = run_blocking
        self._one_at_a_time = asyncio.Lock()
        self._background = Background()
        self._current: asyncio.Task[Any] | None = None
        #: The moment before the current turn's values were computed.
        self._moment = 0
        self._written: set[tuple[str, str]] = set()

    async def in_turn(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``change`` after all earlier turns; return or raise what it returns or raises.

        ``change`` may use `read` and `write`, but nothing else that waits for a turn.
        """
        assert not self._is_current(), "a turn within a turn would wait for itself"
        return await self._background.run_to_end(self._take(change, self._catalog.moment()))

    async def revising(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `in_turn`; it is run again if another broker has changed what it writes."""
        assert not self._is_current(), "a turn within a turn would wait for itself"
        return await self._background.run_to_end(self._revise(change))

    async def _revise(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for attempt in range(1, MAX_ATTEMPTS):
            try:
                return await self._take(change, None)
            except ChangedElsewhereError:
                import random

                # Not all at the same pace: else the one that is a little slower always fails.
                await asyncio.sleep(random.uniform(0, attempt * PAUSE_S))  # noqa: S311
        return await self._take(change, None)

    async def _take(self, change: Callable[[], Coroutine[Any, Any, T]], moment: int | None) -> T:
        """Run a turn. `moment` None: the moment at which the turn begins."""
        async with self._one_at_a_time:
            self._current = asyncio.current_task()
            self._moment = self._catalog.moment() if moment is None else moment
            try:
                return await change()
            finally:
                # Another broker's change may have come after the write, and before it was shown.
                self._catalog.report_since(self._moment, self._written)
                self._written.clear()
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

        ``frees``: the changes are a part of removing something, and possible on a full disk (see
        the store's reserve), as those that only remove always are. Raises CatalogError
        (ChangedElsewhereError: another broker has changed a value); then nothing has changed.
        """
        assert self._is_current()
        self._written.update((kind, key) for kind, key, _ in changes)
        write, moment = self._catalog.write_since, self._moment
        if frees or all(value is None for _, _, value in changes):
            await self._run_blocking(self._store.freeing, partial(write, moment, changes))
        else:
            await self._run_blocking(write, moment, changes)

    async def put(
        self,
        kind: str,
        key: str,
        value: bytes | None,
        show: Callable[[], object] = lambda: None,
        *others: Change,
    ) -> None:
        """A turn that stores ``value`` (None removes it) and ``others``, and then calls ``show``.

        Raises CatalogError; then nothing has changed, and ``show`` was not called.
        """

        async def change() -> None:
            await self.write((kind, key, value), *others)
            show()

        await self.in_turn(change)

    async def settled(self) -> None:
        """Return when no turn runs or waits."""
        await self._background.settled()
