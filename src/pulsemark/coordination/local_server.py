"""Serves a tree to the other processes of this machine, over a Unix socket.

Each connection is a session: its ephemeral nodes go when it ends, which is at once when its process
dies, and when nothing was heard of it for its timeout, because its process hangs. Requests of one
connection are answered in their order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from .errors import CoordinationError
from .local import MAX_LINE_BYTES, SESSION_TIMEOUT_MS, bytes_of, line_of, text_of, unpacked
from .memory import MemoryCoordination, MemoryTree
from .protocol import Watch

log = logging.getLogger(__name__)

LOOKS = 10
"""The server looks at its sessions so often within a session's timeout."""
SILENT_LOOKS = 4
"""After so many looks at which nothing was heard, a process counts as silent."""


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
