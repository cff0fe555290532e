"""Serves a tree to the other processes of this machine, over a Unix socket.

Each connection is a session: its ephemeral nodes go when it ends, which is at once when its process
dies. Requests of one connection are answered in their order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

from .errors import CoordinationError
from .local import MAX_LINE_BYTES, bytes_of, line_of, text_of, unpacked
from .memory import MemoryCoordination, MemoryTree
from .protocol import Watch

log = logging.getLogger(__name__)


class LocalServer:
    """Serves a tree until it is closed."""

    def __init__(self, tree: MemoryTree, socket: Path) -> None:
        self.tree = tree
        self.socket = socket
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_unix_server(
            self._serve, str(self.socket), limit=MAX_LINE_BYTES
        )

    async def close(self) -> None:
        """End all sessions."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _Connection(self.tree.session(), writer)
        try:
            writer.write(line_of({"session": connection.session.session_id}))
            while line := await reader.readline():
                await connection.answer(json.loads(line))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            await connection.session.close()
            writer.close()
            self._connections.discard(task)


class _Connection:
    def __init__(self, session: MemoryCoordination, writer: asyncio.StreamWriter) -> None:
        self.session = session
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
