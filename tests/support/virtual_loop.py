"""An event loop whose time is made up: it jumps to the next timer when nothing else is to be done.

What runs on it is real code, and the same seed gives the same history.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_ANY = TypeVar("_ANY")


class VirtualTime(selectors.BaseSelector):
    """A selector that waits for no file: waiting moves the loop's clock instead."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        """The made-up time, in seconds."""
        return self.now_s

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Nothing to do."""
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Nothing to do."""
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Move the clock by so much. Raises StalledError."""
        if timeout is None:
            raise StalledError("nothing is left to do, and no timer is set")
        self.now_s += max(0.0, timeout)
        return []

    def get_map(self) -> Any:
        """No file."""
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """No file. Raises KeyError."""
        raise KeyError(fileobj)

    def close(self) -> None:
        """Nothing to do."""


class StalledError(Exception):
    """The program waits for something that can never happen."""


Connect = Callable[[Callable[[], asyncio.Protocol], str, int], Coroutine[Any, Any, Any]]


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Its connections are made by `connect`, which a simulated network sets."""

    def __init__(self, virtual: VirtualTime | None = None) -> None:
        self._virtual = virtual or VirtualTime()
        super().__init__(self._virtual)
        self.connect: Connect | None = None
        # The clock's steps are exact here: no timer may come early.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """The made-up time, in seconds."""
        return self._virtual.time()

    def due(self) -> float | None:
        """When the next timer is due."""
        timers = vars(self)["_scheduled"]
        return timers[0].when() if timers else None

    def drop(self) -> None:
        """End it as the end of its process does: nothing that is under way goes on."""
        drop(self)

    # It is woken by what it looks at, not through a socket.

    def _make_self_pipe(self) -> None: ...

    def _close_self_pipe(self) -> None: ...

    def _write_to_self(self) -> None: ...

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None,  # type: ignore[override]
                                **others: Any) -> Any:  # fmt: skip
        """A connection of the simulated network."""
        assert self.connect is not None
        return await self.connect(factory, host, port)


def drop(loop: Any) -> None:
    """End a loop that does not run, and whatever is under way on it."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop._ready.clear()
    loop._scheduled.clear()
    loop._thread_id = None
    loop.close()
    loop._check_closed = lambda: None  # what is collected later may still call it


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, _ANY]]) -> _ANY:
    """Run a coroutine to its end on a loop of its own, and all its tasks."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        _cancel_all(loop)
        loop.close()


def _cancel_all(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
