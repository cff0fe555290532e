"""The parts that all topics of a store share: engine, state, group commit, clock, ledger ids."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from ..metadata import Clock
from .commit.group_commit import Delivery, GroupCommit, Notify
from .options import StoreOptions
from .store import LedgerStore, MetadataStore
from .store_state import StoreState
from .tail_cache import TailCache
from .uninterrupted import UninterruptedWork

_LEDGER_IDS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class StoreSetup:
    """What a store is opened with, whatever its engine."""

    clock: Clock
    options: StoreOptions
    notify: Notify | None
    """Schedules commit callbacks (``loop.call_soon_threadsafe``); it must not run them itself.
    None: they run in a thread of the store that does nothing else, and may call every method."""
    threaded: bool
    """False is for simulations: the store has no threads, and the callers that wait make the
    commits."""


class StoreCore:
    """The parts of an open store that managed ledgers use."""

    def __init__(self, engine: LedgerStore, state: StoreState, setup: StoreSetup) -> None:
        clock, options, threaded = setup.clock, setup.options, setup.threaded
        self.engine = engine
        self.state = state
        self.owner_id = os.urandom(16).hex()
        """Identifies this opening of the store; each one is different."""
        self.clock = clock
        self.options = options
        self.tail_cache = TailCache(options.tail_cache_bytes, clock)
        """The entries committed last, for readers at the end of a topic."""
        self._ids_lock = threading.Lock()
        self._spare_ids: list[int] = []
        self._delivery = Delivery(setup.notify, threaded=threaded)
        self.committer = GroupCommit(
            engine.writer,
            state,
            self._delivery,
            max_pending_bytes=options.max_pending_bytes,
            interval_ms=options.sync_interval_ms,
            threaded=threaded,
        )
        self.uninterrupted = UninterruptedWork(state, self.committer.lock, threaded=threaded)
        """Runs work that must not be left half done."""

    @property
    def catalog(self) -> MetadataStore:
        """The engine's metadata; its calls block."""
        return self.engine.metadata

    is_whole = True
    """All topics that are known by its metadata are in this store (see the broker's `Storage`)."""

    @property
    def name(self) -> str:
        """The store's name in messages: its folder."""
        return self.state.name

    def wake_committer(self) -> None:
        """Have committed what was appended without waking the committer (``wakes``)."""
        self.committer.thread.wake()

    def sync_acknowledged(self) -> None:
        """Have everything that was acknowledged on the disk: in interval mode it may not be yet.

        The rule for all that removes the old after writing the new. Blocks. Raises OSError, after
        which the old must stay.
        """
        self.uninterrupted.run(self.committer.sync_acknowledged)

    def reads_are_due(self) -> bool:
        """Whether readers of old entries must take turns now (`ReadTurns`)."""
        return self.committer.read_turns.are_due()

    def never_wait_here(self) -> None:
        """From now on reads in the calling thread raise BeingReadError instead of waiting for a
        network. Nothing here: what is in files or in memory is read at once.
        """

    def next_ledger_id(self) -> int:
        """A ledger id that was never used before in this store. Raises CatalogError."""
        with self._ids_lock:
            if not self._spare_ids:
                first = self.catalog.reserve_ledger_ids(_LEDGER_IDS_AT_ONCE)
                self._spare_ids = list(range(first + _LEDGER_IDS_AT_ONCE - 1, first - 1, -1))
            return self._spare_ids.pop()

    def _stop_threads(self) -> None:
        self.committer.stop()
        self._delivery.stop()
        self.uninterrupted.stop()
