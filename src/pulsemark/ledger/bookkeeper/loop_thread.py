"""A thread with an event loop, for blocking code that needs an asyncio client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, ParamSpec, TypeVar

from ..errors import StoreClosedError

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread, until ``stop``. Other threads run coroutines on it."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._name = name
        self._lock = threading.Lock()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. Raises StoreClosedError if the loop ends."""
        future = self.begin(work)
        try:
            return future.result()
        except (CancelledError, asyncio.CancelledError):
            if self._is_ending:
                raise StoreClosedError(self._name) from None
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine, and return at once. Raises StoreClosedError."""
        with self._lock:
            if not self._is_ending:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise StoreClosedError(self._name)

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function on the loop, unless the loop ends before."""
        with self._lock:
            if not self._is_ending:
                self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def stop(self) -> None:
        """Cancel what runs on the loop, and end the thread. A second call does nothing."""
        with self._lock:
            if self._is_ending:
                return
            # From here on nothing is begun. What was begun before is a task when this comes to run.
            self._is_ending = True
            ending = asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop)
        ending.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @property
    def is_over(self) -> bool:
        """Whether ``stop`` was called."""
        return self._is_ending


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make uvloop's loop if it is installed: bookie requests cost less; else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop, and wait for their end."""
    this = asyncio.current_task()
    while others := [task for task in asyncio.all_tasks() if task is not this]:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
