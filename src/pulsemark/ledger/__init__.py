"""The ledger store: append-only ledgers of stamped entries, in files, memory or BookKeeper.

Start with ``LocalStore.open(folder)`` to write, ``FolderReader(folder)`` to read beside a writer;
``MemoryStore.open()`` needs no folder. Another engine has to be a `store.LedgerStore`.
docs/formats.md has every byte on disk; docs/internals.md says how the parts work together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .commit.batch import Appended, Batch, Commit
from .cursors.cursor import Cursor
from .entry import Entry, EntryKind, RecordHead
from .epochs import EpochHistory, EpochStart, LedgerExtent, common_end, common_point
from .errors import (
    AlreadyStampedError,
    CallbackError,
    CatalogError,
    CatalogFullError,
    ChangedElsewhereError,
    ClockError,
    CompactionFailedError,
    CompactionRunningError,
    CorruptCatalogError,
    CorruptEntryError,
    CorruptFileError,
    EntryTooLargeError,
    FencedError,
    FolderLockedError,
    FollowerFolderError,
    ForeignFolderError,
    ForkedStoreError,
    InvalidCursorError,
    InvalidEntryError,
    LedgerError,
    OwnershipLostError,
    ReservedTopicError,
    StaleEpochError,
    StoreClosedError,
    StoreFailedError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnsupportedVersionError,
    WouldBlockError,
)
from .memory.folder import MemoryFolder
from .position import EARLIEST, LATEST, Position
from .retention import apply_retention, expire_position, retention_cut
from .run import IoCount, Run
from .store_core import StoreOptions
from .topic_log import LogSnapshot, TopicLog, entries_of
from .topic_store import TopicStore
from .writer import ManagedLedger

if TYPE_CHECKING:
    from .local.folder_reader import FolderLog, FolderReader
    from .local.segment.segment import Segment
    from .local.store import LocalStore
    from .memory.store import MemoryStore

#: Each engine is imported when it is first used.
_ENGINES = {
    "local.folder_reader": ("FolderLog", "FolderReader"),
    "local.segment.segment": ("Segment",),
    "local.store": ("LocalStore",),
    "memory.store": ("MemoryStore",),
}
__getattr__, __dir__ = lazy_names(__name__, _ENGINES)

__all__ = [
    "EARLIEST",
    "LATEST",
    "AlreadyStampedError",
    "Appended",
    "Batch",
    "CallbackError",
    "CatalogError",
    "CatalogFullError",
    "ChangedElsewhereError",
    "ClockError",
    "Commit",
    "CompactionFailedError",
    "CompactionRunningError",
    "CorruptCatalogError",
    "CorruptEntryError",
    "CorruptFileError",
    "Cursor",
    "Entry",
    "EntryKind",
    "EntryTooLargeError",
    "EpochHistory",
    "EpochStart",
    "FencedError",
    "FolderLockedError",
    "FolderLog",
    "FolderReader",
    "FollowerFolderError",
    "ForeignFolderError",
    "ForkedStoreError",
    "InvalidCursorError",
    "InvalidEntryError",
    "IoCount",
    "LedgerError",
    "LedgerExtent",
    "LocalStore",
    "LogSnapshot",
    "ManagedLedger",
    "MemoryFolder",
    "MemoryStore",
    "OwnershipLostError",
    "Position",
    "RecordHead",
    "ReservedTopicError",
    "Run",
    "Segment",
    "StaleEpochError",
    "StoreClosedError",
    "StoreFailedError",
    "StoreOptions",
    "TopicLog",
    "TopicNotFoundError",
    "TopicStore",
    "TopicTerminatedError",
    "UnsupportedVersionError",
    "WouldBlockError",
    "apply_retention",
    "common_end",
    "common_point",
    "entries_of",
    "expire_position",
    "retention_cut",
]
