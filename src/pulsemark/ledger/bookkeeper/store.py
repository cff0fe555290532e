"""A store with its ledgers in BookKeeper, and its lists and values in ZooKeeper."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...coordination import CoordinationError
from ...metadata import Clock, SystemClock
from ..commit.group_commit import Notify
from ..errors import CatalogError, OwnershipLostError
from ..store_core import StoreOptions, StoreSetup
from ..store_state import StoreState, make_uninterrupted
from ..topic_store import TopicStore
from .address import DEFAULT_ROOT, Connect, StoreAddress, connected, disconnected
from .client.errors import BookKeeperError
from .ledgers import BookKeeperLedgers, LedgerOptions
from .loop_thread import LoopThread
from .metadata import LedgerIds, ZooKeeperMetadata
from .owned_tree import OwnedTree

if TYPE_CHECKING:
    from .client import BookieTls

MAX_ENTRY_SIZE_BYTES = 5 * 1024 * 1024
"""Bookies take frames up to 5 MiB and a little: as Pulsar's largest message."""
MAX_LEDGER_ENTRIES = 50_000
"""As Pulsar's managedLedgerMaxEntriesPerLedger: what recovery and a retention step work with."""


class BookKeeperStore(TopicStore):
    """Topics in BookKeeper. Make one with ``BookKeeperStore.open``.

    Raises what a `TopicStore` does. Several stores may have the same bookies, each with a root of
    its own. A store has one owner: opening it takes it over, and fences the owner before.
    """

    engine: BookKeeperLedgers

    @classmethod
    def open(
        cls,
        address: str,
        *,
        root: str = DEFAULT_ROOT,
        ledger_options: LedgerOptions | None = None,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        notify: Notify | None = None,
        threaded: bool = True,
        session_timeout_ms: int = 6_000,
        tls: BookieTls | None = None,
    ) -> BookKeeperStore:
        """Open the store at ``root`` of a ZooKeeper; a missing one is made. Blocks.

        ``address`` is `zk://HOST:PORT[,HOST:PORT...]/ledgers`, with the path of BookKeeper's nodes.
        Entries have at most 5 MiB, and a ledger has one run, whatever ``options`` says. ``notify``
        and ``threaded`` are as in `StoreSetup`. Without ``tls`` connections are in plain.

        Raises StoreAddressError, CatalogError (no ZooKeeper, or no BookKeeper there),
        UnsupportedVersionError, OSError.
        """
        where = StoreAddress.parse(address)
        return cls.open_with(
            partial(connected, where, tls, session_timeout_ms=session_timeout_ms),
            ledgers_root=where.ledgers_root,
            root=root,
            ledger_options=ledger_options,
            setup=StoreSetup(clock or SystemClock(), fitting(options), notify, threaded),
        )

    @classmethod
    def open_with(
        cls,
        connecting: Connect,
        *,
        ledgers_root: str,
        root: str,
        ledger_options: LedgerOptions | None,
        setup: StoreSetup,
    ) -> BookKeeperStore:
        """As ``open``, with sessions that ``connecting`` makes on the store's own event loop."""

        def opening() -> BookKeeperStore:
            with ExitStack() as on_failure:
                thread = LoopThread("pulsemark-bookkeeper")
                on_failure.callback(thread.stop)
                try:
                    coordination, client = thread.run(connecting())
                except (CoordinationError, BookKeeperError) as error:
                    raise CatalogError(Path(root), str(error)) from error
                on_failure.callback(lambda: thread.run(disconnected(coordination, client)))
                tree = OwnedTree(coordination, root, os.urandom(16).hex())
                ids = LedgerIds(coordination, ledgers_root, client.has_any)
                metadata = ZooKeeperMetadata(thread, tree, ids)
                # From here on the engine closes the thread and the sessions.
                engine = BookKeeperLedgers(
                    thread, client, tree, metadata, ledger_options or LedgerOptions()
                )
                on_failure.pop_all()
                on_failure.callback(engine.close)
                store = cls(engine, StoreState(Path(root)), setup)
                on_failure.pop_all()
                return store

        return make_uninterrupted(opening, cls.close) if setup.threaded else opening()

    def never_wait_here(self) -> None:
        """As `TopicStore.never_wait_here`: entries are on bookies."""
        self.engine.access.never_wait_here()

    def abandon(self) -> None:
        """Close at once, since another broker owns the store or may own it. Pending calls fail."""
        with self._open_lock:
            is_first, self._closed = not self._closed, True
        if is_first:
            self.state.fail(OwnershipLostError(self.engine.name))
            with ExitStack() as at_the_end:
                at_the_end.callback(self.state.close)
                at_the_end.callback(self.tail_cache.close)
                at_the_end.callback(self._stop_threads)
                self.engine.close()


def fitting(options: StoreOptions | None) -> StoreOptions:
    """Limit the options to what bookies take. The default ledger length is Pulsar's."""
    options = options or StoreOptions()
    is_default = options.ledger_entries == StoreOptions().ledger_entries
    return replace(
        options,
        ledger_entries=MAX_LEDGER_ENTRIES if is_default else options.ledger_entries,
        max_entry_size_bytes=min(options.max_entry_size_bytes, MAX_ENTRY_SIZE_BYTES),
    )
