"""A broker for synchronous code. It runs in its own thread with its own event loop.

    with BrokerThread(BrokerConfig(port=0, http_port=None)) as broker:
        client = pulsar.Client(broker.service_url)

The loop is uvloop if it is installed, else asyncio's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from ..ledger.bookkeeper.loop_thread import new_event_loop
from .configuration.config import BrokerConfig
from .errors import BrokerStateError, OwnLoopError
from .server import Addresses, Broker

T = TypeVar("T")


class BrokerThread(Addresses):
    """Runs a broker until it is closed; usable from any thread."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        make_broker: Callable[[BrokerConfig | None], Broker] = Broker,
    ) -> None:
        """`make_broker` makes the broker; None: the class `Broker`."""
        self.broker = make_broker(config)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ending = False
        self._failure: BaseException | None = None

    def _addressed(self) -> Broker:
        return self.broker

    def start(self) -> None:
        """Start, and return when the broker serves.

        Raises BrokerStateError for a second start, and what `Broker.start` raises. If a signal
        handler raises meanwhile, the broker ends by itself; `close` waits for that.
        """
        if self._thread is not None:
            raise BrokerStateError("new", "started")
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="pulsemark-broker", daemon=True
        )
        try:
            self._thread.start()
            started.result()
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the broker in order and end the thread; a second call does nothing.

        Every thread may call it except the broker's own, which gets OwnLoopError.
        Raises what `Broker.close` raises.
        """
        self._check_thread("close")
        self._end()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def call(self, work: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's loop and return its result.

        Raises BrokerStateError before the start, OwnLoopError in the broker's own thread, and what
        the coroutine raises.
        """
        self._check_thread("call")
        if self._loop is None:
            raise BrokerStateError("running", "new")
        return asyncio.run_coroutine_threadsafe(work(self.broker), self._loop).result()

    def _check_thread(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise OwnLoopError(f"BrokerThread.{call}")

    def _end(self) -> None:
        # First the flag, then the loop; `_serve` in the other order, so that one sees the other.
        self._is_ending = True
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            # The loop may end between the check above and this call.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(started))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            if not started.done():
                started.set_exception(error)
            else:
                self._failure = error

    async def _serve(self, started: Future[None]) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._is_ending:
            self._stop.set()
        async with self.broker:
            started.set_result(None)
            await self._stop.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
