"""The engine on BookKeeper keeps the promises of every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from bookkeeper_peer import BookKeeperPeer

from pulsemark.coordination import connect
from pulsemark.ledger import StoreOptions, TopicStore
from pulsemark.ledger.bookkeeper.client import BookKeeperClient, LedgerWriter
from pulsemark.ledger.bookkeeper.client.errors import NotEnoughBookiesError
from pulsemark.ledger.bookkeeper.ledgers import LedgerOptions
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.metadata import Buffer
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.conformance import Engine, LedgerStoreConformance
from tests.support.faulty_coordination import FaultyTree
from tests.support.memory_bookies import MemoryBookies


class BookKeeperEngine:
    """What the two engines share: stores at one root."""

    def __init__(self, options: StoreOptions, root: str) -> None:
        self.clock = SettableClock(A_TIME_MS)
        self._root = root
        self._options = options
        self._stores: list[BookKeeperStore] = []

    async def _connecting(self) -> Any:
        raise NotImplementedError

    def open(self, *, threaded: bool = True) -> TopicStore:
        """As `Engine.open`."""
        store = BookKeeperStore.open_with(
            self._connecting,
            ledgers_root="/ledgers",
            root=self._root,
            ledger_options=LedgerOptions(),
            setup=StoreSetup(self.clock, self._options, None, threaded),
        )
        self._stores.append(store)
        return store

    def kill(self) -> None:
        """The owner's sessions end, and with them whatever it has not written."""
        for store in self._stores:
            store.engine.close()
        while self._stores:
            self._bury(self._stores.pop())

    @staticmethod
    def _bury(store: BookKeeperStore) -> None:
        try:
            store.close()
        except Exception:
            return

    def take_over(self) -> TopicStore | None:
        """The owner there is loses the ownership."""
        return self.open()

    def end(self) -> None:
        """As `Engine.end`."""
        self.kill()


class MemoryBookKeeperEngine(BookKeeperEngine):
    """The engine over bookies and ZooKeeper's nodes in memory."""

    def __init__(self, options: StoreOptions) -> None:
        super().__init__(options, "/stores/one")
        self.tree = FaultyTree()
        self.bookies = MemoryBookies()

    async def _connecting(self) -> Any:
        return self.tree.session(), self.bookies.client()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """No bookie takes anything."""
        self.bookies.fails = True
        try:
            yield
        finally:
            self.bookies.fails = False


class RealBookKeeperEngine(BookKeeperEngine):
    """The engine over real bookies; writes fail where the client would send them."""

    def __init__(self, zookeeper: str, options: StoreOptions) -> None:
        super().__init__(options, f"/conformance/{uuid4().hex}")
        self._zookeeper = zookeeper
        self._fails = False

    async def _connecting(self) -> Any:
        coordination = await connect(self._zookeeper)
        return coordination, FailingClient(BookKeeperClient(coordination), lambda: self._fails)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """No bookie takes anything."""
        self._fails = True
        try:
            yield
        finally:
            self._fails = False


class FailingClient:
    """A client whose writes fail while the test says so."""

    def __init__(self, client: BookKeeperClient, fails: Callable[[], bool]) -> None:
        self._client = client
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create_ledger(self, **options: Any) -> Any:
        """As the client's."""
        if self._fails():
            raise NotEnoughBookiesError("none takes anything")
        return FailingWriter(await self._client.create_ledger(**options), self._fails)


class FailingWriter:
    """A writer of such a client."""

    def __init__(self, writer: LedgerWriter, fails: Callable[[], bool]) -> None:
        self._writer = writer
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def append_all(self, payloads: Sequence[Sequence[Buffer]]) -> asyncio.Future[int]:
        """As the writer's."""
        if self._fails():
            raise NotEnoughBookiesError("none takes anything")
        return self._writer.append_all(payloads)


class TestInMemory(LedgerStoreConformance):
    """Over bookies in memory."""

    @pytest.fixture
    def make_engine(self) -> Callable[[StoreOptions], Engine]:
        """Engines over bookies in memory."""
        return MemoryBookKeeperEngine


class TestOnRealBookies(LedgerStoreConformance):
    """Over ZooKeeper and three bookies."""

    histories = 5

    @pytest.fixture
    def make_engine(self, bookkeeper_peer: BookKeeperPeer) -> Callable[[StoreOptions], Engine]:
        """Engines over real bookies, each with a root of its own."""
        return partial(RealBookKeeperEngine, bookkeeper_peer.zookeeper)
