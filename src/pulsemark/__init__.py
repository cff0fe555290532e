"""pulsemark: Pulsar's protocol over a ledger that stamps every entry with broker time and index.

This module re-exports the names that most programs start with. Each name is imported from its
package when it is first used. So a tool that only reads a folder does not load the broker, and a
broker without a finder does not load gRPC. The packages themselves export more: `broker`,
`client`, `compaction`, `finder`, `ledger`, `metadata`, `mirror`, `pipeline`, `testing`, `wire`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .broker import Broker as Broker
    from .broker import BrokerConfig as BrokerConfig
    from .broker import BrokerError as BrokerError
    from .broker import BrokerStateError as BrokerStateError
    from .broker import BrokerThread as BrokerThread
    from .broker import ConfigError as ConfigError
    from .broker import PortInUseError as PortInUseError
    from .broker import SecurityConfig as SecurityConfig
    from .compaction import CompactionReport as CompactionReport
    from .compaction import claim_kept as claim_kept
    from .compaction import compact as compact
    from .compaction import compacted_log as compacted_log
    from .finder import Finder as Finder
    from .finder import Found as Found
    from .finder import IndexOutOfRangeError as IndexOutOfRangeError
    from .finder import IndexPlace as IndexPlace
    from .finder import IndexRange as IndexRange
    from .finder import SearchMethod as SearchMethod
    from .finder import SeekCallError as SeekCallError
    from .finder import SeekClient as SeekClient
    from .ledger import EARLIEST as EARLIEST
    from .ledger import LATEST as LATEST
    from .ledger import AlreadyStampedError as AlreadyStampedError
    from .ledger import Appended as Appended
    from .ledger import CallbackError as CallbackError
    from .ledger import CatalogError as CatalogError
    from .ledger import CatalogFullError as CatalogFullError
    from .ledger import ChangedElsewhereError as ChangedElsewhereError
    from .ledger import ClockError as ClockError
    from .ledger import Commit as Commit
    from .ledger import CompactionFailedError as CompactionFailedError
    from .ledger import CompactionRunningError as CompactionRunningError
    from .ledger import CorruptCatalogError as CorruptCatalogError
    from .ledger import CorruptEntryError as CorruptEntryError
    from .ledger import CorruptFileError as CorruptFileError
    from .ledger import Entry as Entry
    from .ledger import EntryKind as EntryKind
    from .ledger import EntryTooLargeError as EntryTooLargeError
    from .ledger import FencedError as FencedError
    from .ledger import FolderLockedError as FolderLockedError
    from .ledger import FolderReader as FolderReader
    from .ledger import FollowerFolderError as FollowerFolderError
    from .ledger import ForeignFolderError as ForeignFolderError
    from .ledger import ForkedStoreError as ForkedStoreError
    from .ledger import InvalidCursorError as InvalidCursorError
    from .ledger import InvalidEntryError as InvalidEntryError
    from .ledger import LedgerError as LedgerError
    from .ledger import LocalStore as LocalStore
    from .ledger import ManagedLedger as ManagedLedger
    from .ledger import MemoryStore as MemoryStore
    from .ledger import OwnershipLostError as OwnershipLostError
    from .ledger import Position as Position
    from .ledger import ReservedTopicError as ReservedTopicError
    from .ledger import StaleEpochError as StaleEpochError
    from .ledger import StoreClosedError as StoreClosedError
    from .ledger import StoreFailedError as StoreFailedError
    from .ledger import StoreOptions as StoreOptions
    from .ledger import TopicLog as TopicLog
    from .ledger import TopicNotFoundError as TopicNotFoundError
    from .ledger import TopicTerminatedError as TopicTerminatedError
    from .ledger import UnsupportedVersionError as UnsupportedVersionError
    from .ledger import WouldBlockError as WouldBlockError
    from .ledger import apply_retention as apply_retention
    from .ledger import entries_of as entries_of
    from .metadata import BrokerEntryMetadata as BrokerEntryMetadata
    from .metadata import ChecksumError as ChecksumError
    from .metadata import Message as Message
    from .metadata import MessageFormatError as MessageFormatError
    from .metadata import MessageMetadata as MessageMetadata
    from .metadata import PrefixError as PrefixError
    from .metadata import StampError as StampError
    from .metadata import StampingError as StampingError
    from .metadata import messages_of as messages_of
    from .metadata import pack as pack
    from .metadata import pack_message as pack_message
    from .metadata import peek as peek
    from .metadata import split as split
    from .metadata import strip as strip

__version__ = "1.0.0"

# Package -> the names that are re-exported from it.
_EXPORTS = {
    "broker": (
        "Broker", "BrokerConfig", "BrokerError", "BrokerStateError", "BrokerThread", "ConfigError",
        "PortInUseError", "SecurityConfig",
    ),
    "compaction": ("CompactionReport", "claim_kept", "compact", "compacted_log"),
    "finder": (
        "Finder", "Found", "IndexOutOfRangeError", "IndexPlace", "IndexRange", "SearchMethod",
        "SeekCallError", "SeekClient",
    ),
    "ledger": (
        "EARLIEST", "LATEST", "AlreadyStampedError", "WouldBlockError", "Appended", "CallbackError",
        "CatalogError", "CatalogFullError", "ChangedElsewhereError", "ClockError", "Commit",
        "CompactionFailedError", "CompactionRunningError", "CorruptCatalogError",
        "CorruptEntryError", "CorruptFileError", "Entry", "EntryKind", "EntryTooLargeError",
        "FencedError", "FolderLockedError", "FollowerFolderError", "FolderReader",
        "ForeignFolderError", "ForkedStoreError", "InvalidCursorError", "InvalidEntryError",
        "LedgerError", "LocalStore", "ManagedLedger", "MemoryStore", "OwnershipLostError",
        "Position", "ReservedTopicError", "StaleEpochError", "StoreClosedError", "StoreFailedError",
        "StoreOptions", "TopicLog", "TopicNotFoundError", "TopicTerminatedError",
        "UnsupportedVersionError", "apply_retention", "entries_of",
    ),
    "metadata": (
        "BrokerEntryMetadata", "ChecksumError", "Message", "MessageFormatError", "MessageMetadata",
        "PrefixError", "StampError", "StampingError", "messages_of", "pack", "pack_message", "peek",
        "split", "strip",
    ),
}  # fmt: skip
_PACKAGE_OF = {name: package for package, names in _EXPORTS.items() for name in names}

__all__ = sorted(["__version__", *_PACKAGE_OF])  # noqa: PLE0605 - the table is the list

__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
