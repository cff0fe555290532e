"""The parts shared by a store's topics: engine, state, group commit, clock, options, ledger ids."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

from ..metadata import Clock
from ..records import record
from .commit.group_commit import Delivery, GroupCommit, Notify
from .limits import MAX_ENTRY_ID, MAX_RUN_BYTES
from .store import TRANSACTIONS_NOTE_KIND, LedgerStore, MetadataStore
from .store_state import StoreState, UninterruptedWork
from .tail_cache import TailCache

LEDGER_IDS_AT_ONCE = 64


@record(frozen=True)
class StoreSetup:
    """The arguments with which a store is opened, whatever its engine."""

    clock: Clock
    options: StoreOptions
    notify: Notify | None
    """Schedules commit callbacks (``loop.call_soon_threadsafe``); it must not run them itself.
    None: they run in a thread of the store that does nothing else, and may call every method."""
    threaded: bool
    """False is for simulations: the store has no threads, and the callers that wait make the
    commits."""


class StoreCore:
    """The part of a `TopicStore` that its ledgers know."""

    def __init__(self, engine: LedgerStore, state: StoreState, setup: StoreSetup) -> None:
        options, threaded = setup.options, setup.threaded
        self.engine, self.state = engine, state
        self.owner_id = os.urandom(16).hex()
        """Identifies this opening of the store; each one is different."""
        self.clock, self.options = setup.clock, options
        self.tail_cache = TailCache(options.tail_cache_bytes, setup.clock)
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

    def metadata_of(self, _name: str) -> MetadataStore:
        """The metadata; a store of one bundle of topics is for that bundle alone."""
        return self.catalog

    def transactions_noter(self, topic_id: int) -> Callable[[bytes], None]:
        """A function that stores the note of a topic's transactions. Raises CatalogError."""
        return partial(self.catalog.put, TRANSACTIONS_NOTE_KIND, str(topic_id))

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
        """Have all acknowledged entries on the disk, before something old is removed.

        Blocks. Raises OSError, after which the old must stay.
        """
        self.uninterrupted.run(self.committer.sync_acknowledged)

    def reads_are_due(self) -> bool:
        """Whether readers of old entries must take turns now (`ReadThrottle`)."""
        return self.committer.read_throttle.are_due()

    def never_wait_here(self) -> None:
        """From now on reads in the calling thread raise WouldBlockError instead of waiting for a
        network. Nothing here: what is in files or in memory is read at once.
        """

    def next_ledger_id(self) -> int:
        """A ledger id that was never used before in this store. Raises CatalogError."""
        with self._ids_lock:
            if not self._spare_ids:
                self._keep_ids(self.catalog.reserve_ledger_ids(LEDGER_IDS_AT_ONCE))
            return self._spare_ids.pop()

    def _keep_ids(self, first: int) -> None:
        self._spare_ids = list(range(first + LEDGER_IDS_AT_ONCE - 1, first - 1, -1))

    def _stop_threads(self) -> None:
        self.committer.stop()
        self._delivery.stop()
        self.uninterrupted.stop()


MAX_SYNC_INTERVAL_MS = 60_000


@record(frozen=True, kw_only=True)
class StoreOptions:
    """Limits and rolling rules. Raises ValueError for a bad value, naming the field."""

    max_entry_size_bytes: int = 32 * 1024 * 1024
    """Largest entry, prefix included."""
    segment_size_bytes: int = 256 * 1024 * 1024
    """A segment ends before it grows beyond this, unless one entry alone is larger."""
    ledger_size_bytes: int = 2 * 1024 * 1024 * 1024
    """A ledger ends before it grows beyond this."""
    ledger_entries: int = 50_000_000
    """A ledger ends after so many entries."""
    ledger_age_ms: int = 4 * 60 * 60 * 1000
    """A ledger ends when its first entry's stamp is this old. File times are never used."""
    journal_size_bytes: int = 128 * 1024 * 1024
    """At about this size the journal's file ends, and a checkpoint is made."""
    sync_interval_ms: int = 0
    """0: an entry is acknowledged only after it is synced. Above: it is acknowledged once written,
    and synced within so many milliseconds; a power cut may lose the last interval's entries."""
    checkpoint_interval_ms: int = 10_000
    """A checkpoint is made at least this often while there are new entries."""
    max_pending_bytes: int = 256 * 1024 * 1024
    """Appends wait while more bytes than this are not yet durable."""
    max_unacked_ranges_to_persist: int = 10_000
    """How many ranges of single acknowledgements are stored of one cursor, the first ones first.
    Messages of further ranges are redelivered after a restart."""
    max_batch_deleted_index_to_persist: int = 10_000
    """How many partly acknowledged batches are stored of one cursor, likewise."""
    tail_cache_bytes: int = 32 * 1024 * 1024
    """Memory for the newest entries of topics that are read at their end, for all topics together;
    0: no entry is kept."""
    fd_limit: int | None = None
    """Files kept open; None: half of what the process may open, at most 4096."""

    def __post_init__(self) -> None:
        limits = {
            "max_entry_size_bytes": (1, MAX_RUN_BYTES // 2),
            "segment_size_bytes": (1, MAX_RUN_BYTES // 2),
            "ledger_size_bytes": (1, 2**62),
            "ledger_entries": (1, MAX_ENTRY_ID),
            "ledger_age_ms": (1, 2**62),
            "journal_size_bytes": (1, 2**40),
            "sync_interval_ms": (0, MAX_SYNC_INTERVAL_MS),
            "checkpoint_interval_ms": (1, 2**40),
            "max_unacked_ranges_to_persist": (1, 2**31),
            "max_batch_deleted_index_to_persist": (1, 2**31),
            "max_pending_bytes": (1, 2**31),  # one journal block must hold it
            "tail_cache_bytes": (0, 2**62),
        }
        for name, (lowest, highest) in limits.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ValueError(f"{name} must be from {lowest} to {highest}, not {value}")
