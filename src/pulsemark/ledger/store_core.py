"""What a store is opened with: clock, options, where callbacks run."""

from __future__ import annotations

from ..metadata import Clock
from ..records import record
from .commit.group_commit import Notify
from .limits import MAX_ENTRY_ID, MAX_RUN_BYTES


@record(frozen=True)
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
