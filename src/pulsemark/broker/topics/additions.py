"""Creates topics in the catalog, many at once.

Each change of the catalog is a synced transaction. A client that opens thousands of topics would
wait for thousands of them; names that arrive during one transaction share the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ...ledger import LedgerError
from ..storage import Storage

__all__ = ["Additions"]

log = logging.getLogger(__name__)

MAX_AT_ONCE = 1_000


class Additions:
    """The topics that are being created."""

    def __init__(self, store: Storage, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._running: asyncio.Task[None] | None = None

    async def add(self, name: str) -> None:
        """Return when the topic is in the catalog, or could not be created.

        Opening it tries again if it is not there, and reports what is wrong.
        """
        if name not in self._waiting:
            self._waiting[name] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[name]
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
        await asyncio.shield(waiting)

    async def _run(self) -> None:
        try:
            while self._waiting:
                names = list(self._waiting)[:MAX_AT_ONCE]
                taken = [self._waiting.pop(name) for name in names]
                try:
                    await self._run_blocking(self._store.add_topics, names)
                except (LedgerError, OSError):
                    pass  # opening each of them says what is wrong
                except Exception:
                    log.exception("%d topics could not be created together", len(names))
                finally:
                    for waiting in taken:
                        waiting.set_result(None)
        finally:
            self._running = None
