"""Work that runs to its end, even if the client that asked for it disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..ledger import LedgerError
from .errors import RefusedError

__all__ = ["Background"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Background:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work`; the caller does not wait for its result."""
        task = self._begin(work)
        task.add_done_callback(_report)
        return task

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`. It goes on even if the waiting caller is cancelled."""
        task = self._begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle_running(self) -> None:
        """Return when all tasks that run now have ended; tasks started later are not awaited."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def settled(self) -> None:
        """Return when no task runs any more."""
        while self._tasks:
            await self.settle_running()


def _report(task: asyncio.Task[Any]) -> None:
    """Log why a task failed.

    Refusals and storage errors are not logged: they are answers to a client, and no client waits.
    """
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, (RefusedError, LedgerError, OSError)):
        log.error("background task %s failed", task.get_name(), exc_info=error)
