"""Work that goes on to its end, even if the client that asked for it goes away."""

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
        """Begin `work`, whose outcome no one waits for."""
        task = self._begin(work)
        task.add_done_callback(_report)
        return task

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, which goes on even if the one who waits is cancelled."""
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

    async def settle_present(self) -> None:
        """Return when what is under way now has ended, whatever begins meanwhile."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def settled(self) -> None:
        """Return when nothing is under way any more."""
        while self._tasks:
            await self.settle_present()


def _report(task: asyncio.Task[Any]) -> None:
    """Log why work failed, but for refusals: without a client who waits they are no news."""
    if task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, (RefusedError, LedgerError, OSError)):
        log.error("work in the background failed", exc_info=error)
