"""Topics to search in, and seek servers to ask."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pulsemark.finder.server import SeekServer, ServerOptions
from pulsemark.finder.service import TopicSource
from pulsemark.ledger import LocalStore, ManagedLedger, TopicLog, TopicNotFoundError
from pulsemark.metadata import (
    BrokerTimeStamper,
    IndexStamper,
    MessageMetadata,
    Stamper,
    StamperChain,
    crc32c,
)
from pulsemark.testing.clock import SettableClock


class Topics(TopicSource):
    """A store in a temporary folder, with a clock that the test moves; a TopicSource."""

    ORDERS = "persistent://public/default/orders"
    FIRST_MS = 1_700_000_000_000

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SettableClock(self.FIRST_MS)
        self.store = LocalStore.open(folder, clock=self.clock)

    def log(self, topic: str) -> TopicLog:
        """What a broker would hand to the service."""
        if topic not in self.store.topic_names():
            raise TopicNotFoundError(topic)
        return self.store.open_topic(topic)

    @staticmethod
    def message(payload: bytes, publish_time_ms: int = FIRST_MS) -> bytes:
        """Headers and payload as a producer sends them."""
        metadata = MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=publish_time_ms
        ).SerializeToString()
        checked = struct.pack(">I", len(metadata)) + metadata + payload
        return struct.pack(">HI", 0x0E01, crc32c(checked)) + checked

    def fill(
        self, bodies: list[bytes], *, message_count: int = 1, stamped: bool = True
    ) -> ManagedLedger:
        """Append to the topic `orders`, 10 ms apart, and wait until all is durable."""
        topic = self.store.open_topic(self.ORDERS)
        stampers: list[Stamper] = [BrokerTimeStamper(), IndexStamper()] if stamped else []
        topic.stampers = StamperChain(stampers)
        for body in bodies:
            last = topic.append(body, message_count=message_count)
            self.clock.advance(by_ms=10)
        last.commit.wait(10)
        return topic


class ServerThread:
    """A seek server on an event loop of its own, so that tests can be plain functions."""

    def __init__(self, server: SeekServer, loop_factory: Callable[[], Any] | None) -> None:
        self.server = server
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, args=(loop_factory,), daemon=True)

    def start(self) -> SeekServer:
        """Return when it serves; raise what its start raised."""
        self._thread.start()
        assert self._started.wait(30)
        if self._error is not None:
            raise self._error
        return self.server

    def stop(self) -> None:
        """Return when it is gone."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self, loop_factory: Callable[[], Any] | None) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            await self.server.start()
        except BaseException as error:
            self._error = error
            return
        finally:
            if self._error is None:
                self._loop = asyncio.get_running_loop()
            self._started.set()
        await self._stop.wait()
        await self.server.stop(0)


Serve = Callable[..., SeekServer]


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[Topics]:
    """An empty store."""
    topics = Topics(tmp_path / "data")
    yield topics
    topics.store.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start seek servers; they are stopped when the test ends."""
    with ExitStack() as stack:

        def start(
            source: TopicSource,
            options: ServerOptions | None = None,
            loop_factory: Callable[[], Any] | None = None,
            **more: Any,
        ) -> SeekServer:
            thread = ServerThread(SeekServer(source, options, **more), loop_factory)
            server = thread.start()
            stack.callback(thread.stop)
            return server

        yield start
