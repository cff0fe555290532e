"""The engine on BookKeeper keeps the promises of every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pulsemark.coordination.memory import MemoryTree
from pulsemark.ledger import StoreOptions, TopicStore
from pulsemark.ledger.bookkeeper.ledgers import LedgerOptions
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.conformance import Engine, LedgerStoreConformance
from pulsemark.testing.memory_bookies import MemoryBookies


class MemoryBookKeeperEngine:
    """The engine over bookies and ZooKeeper's nodes in memory."""

    def __init__(self, options: StoreOptions) -> None:
        self.clock = SettableClock(A_TIME_MS)
        self.tree = MemoryTree()
        self.bookies = MemoryBookies()
        self._options = options
        self._stores: list[BookKeeperStore] = []

    def open(self, *, threaded: bool = True) -> TopicStore:
        """As `Engine.open`."""

        async def connecting():
            return self.tree.session(), self.bookies.client()

        store = BookKeeperStore.open_with(
            connecting,
            ledgers_root="/ledgers",
            root="/stores/one",
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

    @contextmanager
    def failing(self) -> Iterator[None]:
        """No bookie takes anything."""
        self.bookies.fails = True
        try:
            yield
        finally:
            self.bookies.fails = False

    def end(self) -> None:
        """As `Engine.end`."""
        self.kill()


class TestInMemory(LedgerStoreConformance):
    """Over bookies in memory."""

    @pytest.fixture
    def make_engine(self) -> Callable[[StoreOptions], Engine]:
        """Engines over bookies in memory."""
        return MemoryBookKeeperEngine
