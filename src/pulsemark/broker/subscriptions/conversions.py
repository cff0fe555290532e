"""Conversions for dispatchers that would hold up the event loop.

A large entry is converted in a thread, and small ones only for a part of a loop's turn. A
dispatcher that has to wait gets a `BeingConvertedError`, whose future is done when it can go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["BeingConvertedError", "Conversions", "Waiting"]

T = TypeVar("T")

#: How long a topic's small conversions may run in one turn of the event loop.
TURN_S = 0.01
#: A result that no dispatcher takes is kept so long; they are called at once.
KEPT_S = 1.0


class BeingConvertedError(Exception):
    """The next entry cannot be read yet."""

    def __init__(self, done: asyncio.Future[Any]) -> None:
        super().__init__("the next entry is being converted")
        #: Done when reading can go on.
        self.done = done


class Waiting:
    """A call that will be made when a future is done."""

    def __init__(self, done: asyncio.Future[Any], call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        done.add_done_callback(self._due)

    def _due(self, _: asyncio.Future[Any]) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()

    def cancel(self) -> None:
        """Do not call."""
        self._call = None


class Conversions:
    """The conversions of one topic's entries."""

    def __init__(self) -> None:
        self._in_threads: dict[object, asyncio.Future[Any]] = {}
        self._turn: asyncio.Future[None] | None = None
        self._until_s = 0.0

    def at_once(self, make: Callable[[], T]) -> T:
        """What `make` returns. Raises BeingConvertedError: this turn's time is used up."""
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            self._until_s = time.monotonic() + TURN_S
            loop.call_soon(self._end_turn)
        elif time.monotonic() >= self._until_s:
            raise BeingConvertedError(self._turn)
        return make()

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and not turn.done():
            turn.set_result(None)

    def in_thread(self, key: object, make: Callable[[], T]) -> T:
        """What `make` returned, or raised, in a thread. Raises BeingConvertedError: not yet."""
        known = self._in_threads.get(key)
        if known is None:
            known = asyncio.get_running_loop().run_in_executor(None, make)
            self._in_threads[key] = known
            known.add_done_callback(lambda done: self._made(key, done))
        if not known.done():
            raise BeingConvertedError(known)
        # Others who waited for it are called in this turn, too.
        asyncio.get_running_loop().call_soon(self._in_threads.pop, key, None)
        return cast("T", known.result())

    def _made(self, key: object, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # it may be that no dispatcher wants it any more
        asyncio.get_running_loop().call_later(KEPT_S, self._in_threads.pop, key, None)
