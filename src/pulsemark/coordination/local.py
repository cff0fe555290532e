"""`Coordination` among the processes of one machine: one serves its tree over a Unix socket.

The session is the connection: when it ends, at once when its process dies, the session is lost with
its ephemeral nodes, and there is no new one. The server ends it after `session_timeout_ms` in which
it heard nothing, because the process hangs; so a session that asks nothing sends pings. Requests of
one connection are answered in their order. One that has no answer after twice that time raises
ConnectionLossError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Self

from . import (
    ANY_VERSION,
    OF_STATE,
    ConnectionLossError,
    Coordination,
    CoordinationClosedError,
    CoordinationError,
    CoordinationUnavailableError,
    Operation,
    SessionExpiredError,
    Stat,
    State,
    Versioned,
    Watch,
    Watches,
)
from .memory import MemoryCoordination, MemoryTree

# Messages are pickles as lines of base64. Both sides belong to one run of one program, and only its
# user reaches the socket. A question has a number, the name of a session's method, and what the
# method gets; its answer has the number and what the method returned or raised.

log = logging.getLogger(__name__)

LOOKS = 10
"""The server looks at its sessions so often within a session's timeout."""
SILENT_LOOKS = 4
"""After so many looks at which nothing was heard, a process counts as silent."""

MAX_LINE_BYTES = 64 * 1024 * 1024
CHANGED = "changed"
"""Instead of an answer: the node of the watch with this number has changed."""
UNREADABLE = (ValueError, EOFError, pickle.UnpicklingError)
"""What `message_of` raises for a line that is not a message."""


def line_of(*message: Any) -> bytes:
    """A message as a line."""
    return b64encode(pickle.dumps(message)) + b"\n"


def message_of(line: bytes) -> Any:
    """The message in a line. Raises one of `UNREADABLE`."""
    return pickle.loads(b64decode(line, validate=True))  # noqa: S301 - of this program


SESSION_TIMEOUT_MS = 5_000
PINGS = 10
"""So many pings are sent within a session's timeout."""


class LocalCoordination(Coordination):
    """A session over a Unix socket. Made by `connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.state = State.CONNECTED
        self._is_closed = False
        self._number = 0
        self._session_id = 0
        self.session_timeout_ms = SESSION_TIMEOUT_MS
        self._waiting: dict[int, tuple[asyncio.Future[Any], str]] = {}
        self._looks: dict[int, Callable[[], None]] = {}
        self._listeners: Watches = {}
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, socket: Path) -> Self:
        """Open a session. Raises CoordinationUnavailableError."""
        try:
            streams = await asyncio.open_unix_connection(str(socket), limit=MAX_LINE_BYTES)
            self = cls(*streams)
            greeting = message_of((await self._reader.readline()).strip())
            self._session_id, self.session_timeout_ms = greeting
        except (OSError, *UNREADABLE) as error:
            raise CoordinationUnavailableError("", f"{socket}: {error}") from error
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._ping())]
        return self

    @property
    def session_id(self) -> int:
        return self._session_id

    async def get(self, path: str) -> Versioned:
        found: Versioned = await self._ask("get", path)
        return found

    async def exists(self, path: str) -> Stat | None:
        found: Stat | None = await self._ask("exists", path)
        return found

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._ask("children", path)
        return names

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        flags = {"ephemeral": ephemeral, "sequence": sequence, "make_parents": make_parents}
        return str(await self._ask("create", path, data, **flags))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return int(await self._ask("set", path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask("delete", path, version)

    async def transaction(self, operations: Sequence[Operation]) -> list[str | int | None]:
        results: list[str | int | None] = await self._ask("transaction", list(operations))
        return results

    async def watch(
        self, path: str, look_again: Callable[[], None], *, children: bool = False
    ) -> Watch:
        number = self._number + 1
        self._looks[number] = look_again
        try:
            await self._ask("watch", path, children=children)
        except BaseException:
            self._looks.pop(number, None)
            raise
        return _Watch(self, number)

    def unwatch(self, number: int) -> None:
        """Report nothing more of a watch."""
        if self._looks.pop(number, None) is not None and self.state is State.CONNECTED:
            self._number += 1
            self._writer.write(line_of(self._number, "unwatch", (number,), {}))

    def listen(self, changed: Callable[[State], None]) -> Watch:
        return Watch(self._listeners, OF_STATE, changed)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._end()

    # -- inside -----------------------------------------------------------------------------------

    async def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        path = given[0] if given and isinstance(given[0], str) else ""
        if self._is_closed:
            raise CoordinationClosedError(path)
        if self.state is State.LOST:
            raise SessionExpiredError(path)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, path
        self._writer.write(line_of(number, method, given, named))
        try:
            async with asyncio.timeout(2 * self.session_timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise ConnectionLossError(path, "no answer in time") from None
        finally:
            self._waiting.pop(number, None)

    async def _ping(self) -> None:
        while self.state is State.CONNECTED:
            with suppress(ConnectionLossError, SessionExpiredError):
                await self._ask("ping", os.getpid())
            await asyncio.sleep(self.session_timeout_ms / 1000 / PINGS)

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(*message_of(line.strip()))
        except (OSError, *UNREADABLE) as error:  # a line that is too long, or is not of a server's
            log.warning("the session with the supervisor is lost: %s", error)
        self._end()

    def _take(self, number: int, result: Any) -> None:
        if result == CHANGED:
            look_again = self._looks.get(number)
            if look_again is not None:
                look_again()
            return
        answer, _ = self._waiting.pop(number, (None, ""))
        if answer is None or answer.done():
            return
        if isinstance(result, CoordinationError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _end(self) -> None:
        if self.state is State.LOST:
            return
        self.state = State.LOST
        for answer, path in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLossError(path))
        self._waiting.clear()
        for listener in tuple(self._listeners.get(OF_STATE, ())):
            listener.run(State.LOST)


class _Watch(Watch):
    def __init__(self, session: LocalCoordination, number: int) -> None:
        self._session = session
        self._number = number

    def close(self) -> None:
        self._session.unwatch(self._number)


class Silence(Enum):
    """The outcome for a process that sent nothing for a while."""

    BEGAN = "it says nothing"
    OVER = "it was heard again"
    TOO_LONG = "its session has ended"


class LocalServer:
    """Serves a tree until it is closed."""

    def __init__(
        self,
        tree: MemoryTree,
        socket: Path,
        *,
        on_silence: Callable[[int, Silence], None] | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        """``on_silence``: called with the id of a process that hangs, or did."""
        self.tree = tree
        self.socket = socket
        self._on_silence = on_silence
        self.session_timeout_ms = session_timeout_ms
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[Any], _Connection] = {}
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_unix_server(
            self._serve, str(self.socket), limit=MAX_LINE_BYTES
        )
        self._looking = asyncio.get_running_loop().create_task(self._end_silent_sessions())

    async def close(self) -> None:
        """End all sessions."""
        if self._server is not None:
            self._server.close()
        if self._looking is not None:
            self._looking.cancel()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(self.tree.session(), writer)
        self._connections[task] = connection
        try:
            writer.write(line_of(connection.session.session_id, self.session_timeout_ms))
            while line := await reader.readline():
                if connection.silent_looks > SILENT_LOOKS:
                    self._tell(connection, Silence.OVER)
                connection.silent_looks = 0
                await connection.answer(*message_of(line.strip()))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            await connection.session.close()
            writer.close()
            del self._connections[task]

    async def _end_silent_sessions(self) -> None:
        """Count looks, not time: data sent while this process hung is read first."""
        while True:
            await asyncio.sleep(self.session_timeout_ms / 1000 / LOOKS)
            for task, connection in tuple(self._connections.items()):
                connection.silent_looks += 1
                if connection.silent_looks == SILENT_LOOKS + 1:
                    self._tell(connection, Silence.BEGAN)
                elif connection.silent_looks == LOOKS + 1:
                    task.cancel()
                    self._tell(connection, Silence.TOO_LONG)

    def _tell(self, connection: _Connection, silence: Silence) -> None:
        if self._on_silence is not None and connection.pid:
            self._on_silence(connection.pid, silence)


class _Connection:
    def __init__(self, session: MemoryCoordination, writer: asyncio.StreamWriter) -> None:
        self.session = session
        self.pid = 0
        """The other side's process, once it has said so."""
        self.silent_looks = 0
        """How often the server has looked since it heard something."""
        self._writer = writer
        self._watches: dict[int, Watch] = {}

    async def answer(
        self, number: int, method: str, given: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Carry out a request, and send the answer."""
        result: Any
        try:
            result = await self._do(number, method, given, named)
        except CoordinationError as error:
            result = error
        except sqlite3.Error as error:
            log.exception("the workers' shared metadata could not be stored")
            result = CoordinationError("", str(error))
        self._writer.write(line_of(number, result))
        await self._writer.drain()

    async def _do(
        self, number: int, method: str, given: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        if method == "ping":
            (self.pid,) = given
        elif method == "watch":
            changed = partial(self._changed, number)
            self._watches[number] = await self.session.watch(given[0], changed, **named)
        elif method == "unwatch":
            self._watches.pop(*given).close()
        else:
            return await getattr(self.session, method)(*given, **named)
        return None

    def _changed(self, number: int) -> None:
        if not self._writer.is_closing():
            self._writer.write(line_of(number, CHANGED))
