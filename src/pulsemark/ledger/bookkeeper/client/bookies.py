"""Connections to bookies, made on demand, and the bookies that failed lately."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping

from ....proto.bookkeeper_wire_pb2 import Response
from .adds import AddRun, AddsDone
from .connection import Answer, BookieConnection, Done, Numbers
from .errors import (
    BookieError,
    BookieOverloadedError,
    BookieUnreachableError,
    BookKeeperError,
    ClientClosedError,
)
from .frames import Outgoing
from .options import ClientOptions
from .tls import connect_with_tls

Resolve = Callable[[str], Awaitable[tuple[str, int]]]
Send = Callable[[BookieConnection], None]
Fail = Callable[[BookKeeperError], None]


class _Link:
    """The connection to one bookie, or the requests that wait for it."""

    __slots__ = ("connecting", "connection", "down_error", "down_until_s", "queue", "queued_bytes")

    def __init__(self) -> None:
        self.connection: BookieConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.queue: list[tuple[Send, Fail]] = []
        self.queued_bytes = 0
        self.down_until_s = 0.0
        self.down_error: BookKeeperError | None = None


class Bookies:
    """The connections of a client, at most one to a bookie; without TLS if ``tls`` is None."""

    def __init__(
        self,
        resolve: Resolve,
        options: ClientOptions,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._resolve = resolve
        self._tls = tls
        self._options = options
        self._links: dict[str, _Link] = {}
        self._suspected_s: dict[str, float] = {}
        self._closed = False
        self.numbers = Numbers()
        """Of requests."""

    def send(self, bookie: str, request: Outgoing, done: Done) -> None:
        """Send a request; `done` is called once, with the answer or the error."""
        link = self._link(bookie)
        if link.connection is not None:
            link.connection.send(request, done)
        else:
            self._wait(bookie, link, request.size_bytes, lambda one: one.send(request, done), done)

    def send_adds(self, bookie: str, run: AddRun, done: AddsDone) -> None:
        """Send adds. Their numbers must be above those of all earlier adds."""
        link = self._link(bookie)
        if link.connection is not None:
            link.connection.send_adds(run, done)
        else:
            self._wait(bookie, link, run.size_bytes, lambda one: one.send_adds(run, done), done)

    async def ask(self, bookie: str, request: Outgoing) -> Response:
        """Send a request and return the answer. Raises the error for a failure or a status."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if future.done():
                return  # the caller was cancelled
            if isinstance(answer, BookKeeperError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.send(bookie, request, answered)
        return await future

    def is_connecting(self, bookie: str) -> bool:
        """Whether requests wait for a connection to this bookie."""
        link = self._links.get(bookie)
        return link is not None and link.connecting is not None

    # -- bookies that failed ----------------------------------------------------------------------

    def suspect(self, bookie: str) -> None:
        """Note that a bookie failed or is silent: for a while it is chosen only without others."""
        self._suspected_s[bookie] = self._now()

    def suspected(self) -> frozenset[str]:
        """The bookies that failed lately."""
        since = self._now() - self._options.quarantine_ms / 1000
        self._suspected_s = {one: at for one, at in self._suspected_s.items() if at > since}
        return frozenset(self._suspected_s)

    # -- inside -----------------------------------------------------------------------------------

    def _link(self, bookie: str) -> _Link:
        link = self._links.get(bookie)
        if link is None:
            link = self._links[bookie] = _Link()
        return link

    def _wait(self, bookie: str, link: _Link, size_bytes: int, send: Send, fail: Fail) -> None:
        """Queue a request until the bookie is connected, beginning that if needed; or fail it."""
        if self._closed:
            fail(ClientClosedError(bookie=bookie))
        elif link.connecting is None and self._now() < link.down_until_s:
            assert link.down_error is not None
            fail(link.down_error)
        elif link.queued_bytes + size_bytes > self._options.max_bookie_bytes:
            waiting = f"{link.queued_bytes} bytes wait for a connection"
            fail(BookieOverloadedError(waiting, bookie=bookie))
        else:
            link.queue.append((send, fail))
            link.queued_bytes += size_bytes
            if link.connecting is None:
                link.connecting = asyncio.ensure_future(self._connect(bookie, link))

    async def _connect(self, bookie: str, link: _Link) -> None:
        loop = asyncio.get_running_loop()

        def ended(connection: BookieConnection) -> None:
            if link.connection is connection:
                link.connection = None

        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                host, port = await self._resolve(bookie)
                connection = BookieConnection(bookie, self._options, loop, self.numbers, ended)
                if self._tls is None:
                    await loop.create_connection(lambda: connection, host, port)
                else:
                    await connect_with_tls(connection, bookie, host, port, self._tls())
        except Exception as error:  # noqa: BLE001 - those that wait must get any error
            if isinstance(error, BookieError):
                link.down_error = error
            else:
                reason = str(error) or "no connection in time"
                link.down_error = BookieUnreachableError(reason, bookie=bookie)
            link.down_until_s = self._now() + self._options.reconnect_delay_ms / 1000
            self._end_connecting(link, None, link.down_error)
        else:
            self._end_connecting(link, connection, None)

    def _end_connecting(
        self, link: _Link, connection: BookieConnection | None, error: BookKeeperError | None
    ) -> None:
        """Send what waits for the connection, or fail it."""
        link.connecting = None
        if connection is not None and connection.is_open:
            link.connection = connection
        queue, link.queue, link.queued_bytes = link.queue, [], 0
        for send, fail in queue:
            if connection is not None:
                send(connection)
            else:
                assert error is not None
                fail(error)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        """End all connections. Waiting requests fail with ClientClosedError."""
        self._closed = True
        tasks = [link.connecting for link in self._links.values() if link.connecting is not None]
        for task in tasks:
            task.cancel()
        for bookie, link in self._links.items():
            if link.connection is not None:
                link.connection.close(ClientClosedError(bookie=bookie))
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled before it began has not failed the waiting requests.
        for bookie, link in self._links.items():
            self._end_connecting(link, None, ClientClosedError(bookie=bookie))


def ask_all(
    bookies: Bookies, places: Mapping[int, str], request: Outgoing
) -> asyncio.Queue[tuple[int, Answer]]:
    """Send a request to several bookies; the queue gets each one's answer, with its place."""
    answers: asyncio.Queue[tuple[int, Answer]] = asyncio.Queue()
    for place, bookie in places.items():
        bookies.send(bookie, request, lambda got, place=place: answers.put_nowait((place, got)))  # type: ignore[misc]
    return answers
