"""The seek service without a broker: read-only over a data folder.

A broker may write to the folder at the same time. Reading takes no lock and stops after the last
durable entry, so a restart of the broker never takes an answer back. The next call sees new
entries. Only the broker can change cursors: ResetCursor answers FAILED_PRECONDITION.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol, cast

from ..ledger import FolderReader, TopicLog
from ..ledger.lru import Lru
from .server import SeekServer, ServerOptions
from .service import Normalise, full_name

MAX_TOPICS = 1024


class RefreshedLog(Protocol):
    """A topic that is read, and can be brought up to date."""

    def refresh(self) -> None:
        """Load what is new. Raises TopicNotFoundError."""


class LogReader(Protocol):
    """What topics are read with: a `FolderReader`, or one of another store."""

    def log(self, topic: str) -> Any:
        """A `TopicLog` that is a `RefreshedLog`. Raises TopicNotFoundError."""

    def close(self) -> None:
        """Give all resources up."""


class FolderSource:
    """The topics of a data folder, for `SeekServer`.

    The last MAX_TOPICS topics that were used stay loaded, so that a call reads only what is new in
    the folder. Raises ForeignFolderError if the folder is not a data folder,
    UnsupportedVersionError if a newer version wrote it.
    """

    def __init__(self, folder: Path | LogReader) -> None:
        """``folder``: the path of one, or the reader of another store, which is then closed."""
        self._reader: LogReader = FolderReader(folder) if isinstance(folder, Path) else folder
        self._logs: Lru[str, RefreshedLog] = Lru(MAX_TOPICS)

    def log(self, topic: str) -> TopicLog:
        """The topic as it is on disk now. Raises TopicNotFoundError."""
        known: Any = self._logs.get(topic)
        if known is not None:
            known.refresh()
            return cast("TopicLog", known)
        log = self._reader.log(topic)
        self._logs.put(topic, log)
        return cast("TopicLog", log)

    def close(self) -> None:
        """Close the folder's files."""
        self._reader.close()


@contextlib.asynccontextmanager
async def folder_server(
    folder: Path | LogReader,
    options: ServerOptions | None = None,
    *,
    normalise: Normalise = full_name,
) -> AsyncIterator[SeekServer]:
    """A running server over a data folder, stopped at the end of the `async with` block.

    Raises the errors of FolderSource and SeekServer.start.
    """
    source = await asyncio.to_thread(FolderSource, folder)
    try:
        async with SeekServer(source, options, normalise=normalise) as server:
            yield server
    finally:
        await asyncio.to_thread(source.close)


async def serve_folder(
    folder: Path | LogReader,
    options: ServerOptions | None = None,
    *,
    normalise: Normalise = full_name,
    on_started: Callable[[SeekServer], None] = lambda _: None,
) -> None:
    """Serve a data folder until SIGINT or SIGTERM, then stop in an orderly way.

    `on_started` is called when clients can connect. For a program's main thread:
    `asyncio.run(serve_folder(...))`.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with folder_server(folder, options, normalise=normalise) as server:
            on_started(server)
            await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
