"""The seek service alone: read-only over a data folder, without a broker.

The folder may be at rest or being written by a broker: reading takes no lock and stops at what is
durable, so no answer is ever taken back, and new entries are seen by the next call. Cursors belong
to the broker: ResetCursor answers FAILED_PRECONDITION.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ..ledger import FolderLog, FolderReader, TopicLog
from ..ledger.lru import Lru
from .server import SeekServer, ServerOptions
from .service import Normalise, full_name

MAX_TOPICS = 1024


class FolderSource:
    """The topics of a data folder, for `SeekServer`.

    Topics that were asked for stay loaded, the last MAX_TOPICS of them, so that a call costs what
    is new in the folder and not what is there. Raises ForeignFolderError or
    UnsupportedVersionError if the folder is not one of ours.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = FolderReader(folder)
        self._logs: Lru[str, FolderLog] = Lru(MAX_TOPICS)

    def log(self, topic: str) -> TopicLog:
        """The topic as it is on disk now. Raises TopicNotFoundError."""
        log = self._logs.get(topic)
        if log is not None:
            log.refresh()
            return log
        log = self._reader.log(topic)
        self._logs.put(topic, log)
        return log

    def close(self) -> None:
        """Let go of the folder's files."""
        self._reader.close()


@contextlib.asynccontextmanager
async def folder_server(
    folder: Path, options: ServerOptions | None = None, *, normalise: Normalise = full_name
) -> AsyncIterator[SeekServer]:
    """A running server over a data folder, stopped at the end of the `async with` block.

    Raises what FolderSource and SeekServer.start raise.
    """
    source = await asyncio.to_thread(FolderSource, folder)
    try:
        async with SeekServer(source, options, normalise=normalise) as server:
            yield server
    finally:
        await asyncio.to_thread(source.close)


async def serve_folder(
    folder: Path,
    options: ServerOptions | None = None,
    *,
    normalise: Normalise = full_name,
    on_started: Callable[[SeekServer], None] = lambda _: None,
) -> None:
    """Serve a data folder until SIGINT or SIGTERM, then stop in good order.

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
