"""`Coordination` among the processes of one machine: one serves its tree over a Unix socket.

The session is the connection: when it ends, at once when its process dies, the session is lost with
its ephemeral nodes, and there is no new one. The server ends it after `session_timeout_ms` in which
it heard nothing, because the process hangs; so a session that asks nothing sends pings. Requests of
one connection are answered in their order. One that has no answer after twice that time raises
ConnectionLossError.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Self

from . import protocol
from .memory import MemoryCoordination, MemoryTree
from .protocol import (
    ANY_VERSION,
    Check,
    ConnectionLossError,
    Coordination,
    CoordinationClosedError,
    CoordinationError,
    CoordinationUnavailableError,
    Create,
    Delete,
    Listener,
    Operation,
    SessionExpiredError,
    Set,
    Stat,
    State,
    Versioned,
    Watch,
)

# Messages are lines of JSON on a Unix socket: a question and its answer have one `id`. Bytes are
# base64. Both sides are of one version: they belong to one run of one program.

log = logging.getLogger(__name__)

LOOKS = 10
"""The server looks at its sessions so often within a session's timeout."""
SILENT_LOOKS = 4
"""After so many looks at which nothing was heard, a process counts as silent."""

MAX_LINE_BYTES = 64 * 1024 * 1024
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Create, Set, Delete, Check)}


def line_of(message: dict[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def text_of(data: bytes) -> str:
    """Bytes as text."""
    return b64encode(data).decode()


def bytes_of(text: str) -> bytes:
    """The bytes of such a text."""
    return b64decode(text)


def packed(operation: Operation) -> list[Any]:
    """An operation of a transaction as a list."""
    values = [getattr(operation, spec.name) for spec in fields(operation)]
    return [
        type(operation).__name__,
        *(["b", text_of(one)] if isinstance(one, bytes) else one for one in values),
    ]


def unpacked(values: list[Any]) -> Operation:
    """The operation of such a list."""
    kind, *fields = values
    made: Operation = KINDS[kind](
        *(bytes_of(one[1]) if isinstance(one, list) else one for one in fields)
    )
    return made


def error_of(name: str, path: str, reason: str) -> CoordinationError:
    """The error that the other side has raised."""
    kind: type[CoordinationError] = getattr(protocol, name, CoordinationError)
    return kind(path, reason)


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
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, socket: Path) -> Self:
        """Open a session. Raises CoordinationUnavailableError."""
        try:
            streams = await asyncio.open_unix_connection(str(socket), limit=MAX_LINE_BYTES)
            self = cls(*streams)
            greeting = json.loads(await self._reader.readline())
            self._session_id, self.session_timeout_ms = greeting["session"], greeting["timeout_ms"]
        except (OSError, ValueError) as error:
            raise CoordinationUnavailableError("", f"{socket}: {error}") from error
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._ping())]
        return self

    @property
    def session_id(self) -> int:
        return self._session_id

    async def get(self, path: str) -> Versioned:
        data, version = await self._ask("get", path)
        return Versioned(bytes_of(data), version)

    async def exists(self, path: str) -> Stat | None:
        found = await self._ask("exists", path)
        return None if found is None else Stat(*found)

    async def children(self, path: str) -> list[str]:
        return list(await self._ask("children", path))

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
        return str(await self._ask("create", path, data=text_of(data), **flags))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return int(await self._ask("set", path, data=text_of(data), version=version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask("delete", path, version=version)

    async def transaction(self, operations: Sequence[Operation]) -> list[str | int | None]:
        path = operations[0].path if operations else ""
        return list(
            await self._ask("transaction", path, operations=[packed(one) for one in operations])
        )

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
            self._writer.write(line_of({"id": self._number, "do": "unwatch", "watch": number}))

    def listen(self, changed: Callable[[State], None]) -> Watch:
        return Listener(self._listeners, changed)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._writer.close()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._end()

    # -- inside -----------------------------------------------------------------------------------

    async def _ask(self, what: str, path: str, **more: object) -> Any:
        if self._is_closed:
            raise CoordinationClosedError(path)
        if self.state is State.LOST:
            raise SessionExpiredError(path)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, path
        self._writer.write(line_of({"id": number, "do": what, "path": path, **more}))
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
                await self._ask("ping", "", pid=os.getpid())
            await asyncio.sleep(self.session_timeout_ms / 1000 / PINGS)

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except (OSError, ValueError) as error:  # a line that is too long, or is not of a server's
            log.warning("the session with the supervisor is lost: %s", error)
        self._end()

    def _take(self, message: dict[str, Any]) -> None:
        if "watch" in message:
            look_again = self._looks.get(message["watch"])
            if look_again is not None:
                look_again()
            return
        answer, _ = self._waiting.pop(message["id"], (None, ""))
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(error_of(message["error"], message["path"], message["reason"]))
        else:
            answer.set_result(message["is"])

    def _end(self) -> None:
        if self.state is State.LOST:
            return
        self.state = State.LOST
        for answer, path in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLossError(path))
        self._waiting.clear()
        for listener in tuple(self._listeners):
            listener.changed(State.LOST)


class _Watch:
    def __init__(self, session: LocalCoordination, number: int) -> None:
        self._session = session
        self._number = number

    def close(self) -> None:
        self._session.unwatch(self._number)


class Silence(Enum):
    """What became of a process of which nothing was heard."""

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
            greeting = {"session": connection.session.session_id}
            writer.write(line_of({**greeting, "timeout_ms": self.session_timeout_ms}))
            while line := await reader.readline():
                if connection.silent_looks > SILENT_LOOKS:
                    self._tell(connection, Silence.OVER)
                connection.silent_looks = 0
                await connection.answer(json.loads(line))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            await connection.session.close()
            writer.close()
            del self._connections[task]

    async def _end_silent_sessions(self) -> None:
        """Counts looks, not time: what was sent while this process itself hung is read first."""
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

    async def answer(self, request: dict[str, Any]) -> None:
        """Do what is asked, and send the answer."""
        number = request["id"]
        try:
            result = await getattr(self, f"_do_{request['do']}")(request)
        except CoordinationError as error:
            failure = {"error": type(error).__name__, "path": error.path, "reason": error.reason}
            self._writer.write(line_of({"id": number, **failure}))
        except sqlite3.Error as error:
            log.exception("the workers' shared metadata could not be stored")
            failure = {"error": "CoordinationError", "path": "", "reason": str(error)}
            self._writer.write(line_of({"id": number, **failure}))
        else:
            self._writer.write(line_of({"id": number, "is": result}))
        await self._writer.drain()

    async def _do_ping(self, request: dict[str, Any]) -> Any:
        self.pid = request["pid"]

    async def _do_get(self, request: dict[str, Any]) -> Any:
        data, version = await self.session.get(request["path"])
        return [text_of(data), version]

    async def _do_exists(self, request: dict[str, Any]) -> Any:
        return await self.session.exists(request["path"])

    async def _do_children(self, request: dict[str, Any]) -> Any:
        return await self.session.children(request["path"])

    async def _do_create(self, request: dict[str, Any]) -> Any:
        return await self.session.create(
            request["path"],
            bytes_of(request["data"]),
            ephemeral=request["ephemeral"],
            sequence=request["sequence"],
            make_parents=request["make_parents"],
        )

    async def _do_set(self, request: dict[str, Any]) -> Any:
        return await self.session.set(
            request["path"], bytes_of(request["data"]), request["version"]
        )

    async def _do_delete(self, request: dict[str, Any]) -> Any:
        await self.session.delete(request["path"], request["version"])

    async def _do_transaction(self, request: dict[str, Any]) -> Any:
        return await self.session.transaction([unpacked(one) for one in request["operations"]])

    async def _do_watch(self, request: dict[str, Any]) -> Any:
        number = request["id"]

        def look_again() -> None:
            if not self._writer.is_closing():
                self._writer.write(line_of({"watch": number}))

        self._watches[number] = await self.session.watch(
            request["path"], look_again, children=request["children"]
        )

    async def _do_unwatch(self, request: dict[str, Any]) -> Any:
        self._watches.pop(request["watch"]).close()
