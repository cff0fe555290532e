"""Requests of a connection that take time (open a topic, write the catalog). Each is a task.

The memory of a request is counted as long as the request runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from ...proto.pulsar_api_pb2 import ServerError
from ..errors import RefusedError
from .memory import Account, Reservation

__all__ = ["Requester", "Requests"]

log = logging.getLogger(__name__)

#: Memory of a request, parsed and with its task, as a multiple of its size on the wire.
PARSED_SHARE = 4
REQUEST_BYTES = 4 * 1024


class Requester(Protocol):
    """A session, as its requests see it."""

    address: str

    def refuse(self, request_id: int, refusal: RefusedError) -> None:
        """Answer a request with an ERROR."""
        ...

    def requests_changed(self, count: int) -> None:
        """The number of running requests is now `count`."""
        ...


class Requests:
    """A connection's running requests."""

    def __init__(self, requester: Requester, kept: Account) -> None:
        self._requester = requester
        self._kept = kept
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._tasks)

    def run(
        self, request_id: int, work: Coroutine[Any, Any, None], command_size_bytes: int
    ) -> None:
        """Run `work` as a task. A refusal or failure is answered with an ERROR."""
        try:
            size_bytes = REQUEST_BYTES + PARSED_SHARE * command_size_bytes
            reservation = self._kept.reserve("request", size_bytes)
        except RefusedError:
            work.close()
            raise
        task = self._loop.create_task(self._answered(request_id, work, reservation))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        # A task that is cancelled before its first step never awaits `work`, so close it here.
        task.add_done_callback(lambda _: work.close())
        self._requester.requests_changed(len(self._tasks))

    def cancel(self) -> None:
        """The connection has ended: leave no reference cycle with it (see `collector`)."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        self._drop_requester()

    def _drop_requester(self) -> None:
        if self._is_over and not self._tasks:
            del self._requester

    async def _answered(
        self, request_id: int, work: Coroutine[Any, Any, None], reservation: Reservation
    ) -> None:
        try:
            await work
        except RefusedError as refusal:
            self._requester.refuse(request_id, refusal)
        except Exception as error:
            log.exception("%s: request %d failed", self._requester.address, request_id)
            unknown = RefusedError(ServerError.UnknownError, repr(error))
            self._requester.refuse(request_id, unknown)
        finally:
            # Frees the request's memory in the count.
            del reservation

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._requester.requests_changed(len(self._tasks))
        self._drop_requester()
