"""The coordination service in memory, with sessions that a test can cut, expire and delay.

    tree = FaultyTree()
    first, second = tree.session(), tree.session()
    second.expire()         # its ephemeral nodes go

A session ends when a test says so, or, with `cut(expire_after_ms=...)`, by the timer of the loop on
which it is used. `tree.fault` is asked before and after each request's effect, and may wait or
raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from pulsemark.coordination import ConnectionLossError, State
from pulsemark.coordination.memory import MemoryCoordination, MemoryTree

T = TypeVar("T")

Fault = Callable[["FaultyCoordination", str, str, Literal["before", "after"]], Awaitable[None]]
"""Asked with the session, the request's name, its path, and whether its effect is still to come."""


class FaultyTree(MemoryTree):
    """The service, whose requests may fail."""

    def __init__(self, *, session_timeout_ms: int = 6_000) -> None:
        super().__init__(session_timeout_ms=session_timeout_ms)
        self.fault: Fault | None = None

    def session(self) -> FaultyCoordination:
        """A new session."""
        return FaultyCoordination(self)


class FaultyCoordination(MemoryCoordination):
    """A session with a `FaultyTree`."""

    def __init__(self, tree: FaultyTree) -> None:
        super().__init__(tree)
        self._faulty_tree = tree
        self._expiring: asyncio.TimerHandle | None = None

    def cut(self, *, expire_after_ms: int | None = None) -> None:
        """Lose the connection. The session ends after that time by the loop's timer, if given."""
        self._become(State.SUSPENDED)
        if expire_after_ms is not None:
            loop = asyncio.get_running_loop()
            self._expiring = loop.call_later(expire_after_ms / 1000, self.end_silently)

    def end_silently(self) -> None:
        """The service ends the session, while this side, which is cut off, knows nothing of it."""
        self._tree.dismiss(self._session_id)

    def heal(self) -> None:
        """Connect again: to the same session if it lives, else to a new one, as ZooKeeper does."""
        if self._expiring is not None:
            self._expiring.cancel()
            self._expiring = None
        if not self._tree.has_session(self._session_id):
            self.expire()
            return
        self._become(State.CONNECTED)
        self._report_all()

    def expire(self) -> None:
        """The session is lost; a new one follows at once."""
        self._tree.dismiss(self._session_id)
        self._become(State.LOST)
        self._session_id = self._tree.admit(self)
        self._become(State.CONNECTED)
        self._report_all()

    async def _request(self, name: str, path: str, effect: Callable[[], T]) -> T:
        self._loop = self._loop or asyncio.get_running_loop()
        await asyncio.sleep(0)
        if (fault := self._faulty_tree.fault) is not None:
            await fault(self, name, path, "before")
        if not self._is_closed:
            self._need_connection(path)
        result = self._perform(name, path, effect)
        if fault is not None:
            await fault(self, name, path, "after")
        self._need_connection(path)
        return result

    def _need_connection(self, path: str) -> None:
        if self.state is State.SUSPENDED:
            raise ConnectionLossError(path)

    def _report_all(self) -> None:
        for watches in tuple(self._watches.values()):
            for watch in tuple(watches):
                self._call(watch.run)
