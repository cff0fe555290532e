"""Every error the ledger raises.

LedgerError
 +-- FolderLockedError         another process owns the data folder
 +-- ForeignFolderError        the folder holds something that is not a pulsemark data folder
 +-- UnsupportedVersionError   a newer format than this code reads (never taken for damage)
 +-- TopicNotFoundError
 +-- ReservedTopicError        a name that the store keeps for itself
 +-- CorruptFileError          a file's own header is damaged
 +-- CorruptEntryError         one entry is damaged; the rest stays readable
 +-- CatalogError              the catalog could not be read or written
 |    +-- CatalogFullError     its disk is full: nothing has changed
 |    +-- CorruptCatalogError  it is damaged, and has to be made again (a CorruptFileError, too)
 +-- AlreadyStampedError       the body begins with a broker entry prefix (PIP-70 magic 0x0e02)
 +-- InvalidEntryError         the body is no plain buffer, or it holds more messages than can be
 +-- EntryTooLargeError
 +-- StaleEpochError           a leader of an earlier epoch, or an epoch that has begun already
 +-- FencedError               the append was not made durable and never will be
 +-- StoreClosedError
 +-- StoreFailedError          the store stopped: something in it failed that it cannot repair
 +-- OwnershipLostError        another owner has taken over what the store writes to
 +-- ForkedStoreError          the store was opened by the parent of this process
 +-- CallbackError             it would wait for the thread that calls the callback it stands in

Each carries the facts as attributes, so that a caller needs not parse the message.
"""

from __future__ import annotations

from pathlib import Path

from .position import Position


class LedgerError(Exception):
    """Base of everything the ledger package raises on purpose."""


class FolderLockedError(LedgerError):
    """Another process has the data folder open for writing."""

    def __init__(self, folder: Path, owner_pid: int | None) -> None:
        self.folder = folder
        self.owner_pid = owner_pid
        by = f" by process {owner_pid}" if owner_pid is not None else ""
        super().__init__(f"data folder {folder} is in use{by}")


class ForeignFolderError(LedgerError):
    """The folder is missing, or holds something that is not a pulsemark data folder."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(f"{folder} is not a pulsemark data folder: {reason}")


class UnsupportedVersionError(LedgerError):
    """The file was written by a newer format than this code knows."""

    def __init__(self, path: Path, what: str, found: int, supported: int) -> None:
        self.path = path
        self.what = what
        self.found = found
        self.supported = supported
        super().__init__(
            f"{path}: {what} {found} is not supported (this program knows up to {supported})"
        )


class TopicNotFoundError(LedgerError):
    """No topic of that name in the data folder."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} does not exist")


class ReservedTopicError(LedgerError):
    """The store keeps this name for itself: its cursors, or a topic's compacted view."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} belongs to the store itself")


class CorruptFileError(LedgerError):
    """A file cannot be used at all: its header is damaged."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} is damaged: {reason}")


class CorruptEntryError(LedgerError):
    """One entry is damaged. ``next_position`` is where reading can go on."""

    def __init__(
        self, topic: str, position: Position, next_position: Position, reason: str
    ) -> None:
        self.topic = topic
        self.position = position
        self.next_position = next_position
        self.reason = reason
        super().__init__(f"{topic}: entry {position} is damaged: {reason}")


class CatalogError(LedgerError):
    """The catalog could not be read or written: its disk is full, failing, or it is closed."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class CatalogFullError(CatalogError):
    """The catalog's disk is full; the change was not made."""


class CorruptCatalogError(CatalogError, CorruptFileError):
    """The catalog is damaged. The segments tell most of what it said: it can be made again."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        LedgerError.__init__(
            self,
            f"{path} is damaged: {reason}; `pulsemark rebuild-catalog {path.parent}` makes it "
            "again from the segments",
        )


class AlreadyStampedError(LedgerError):
    """The body begins with 0x0e02: it would be read as the broker's own prefix (PIP-70)."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{topic}: the entry already begins with a broker entry prefix (0x0e02)")


class InvalidCursorError(LedgerError):
    """A cursor with such a name or such properties cannot be stored; nothing was."""

    def __init__(self, topic: str, name: str, reason: str) -> None:
        super().__init__(f"{topic}: the cursor {name!r} cannot be stored: {reason}")
        self.topic = topic
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[InvalidCursorError], tuple[str, str, str]]:
        """Carry the facts through pickling, as between processes."""
        return type(self), (self.topic, self.name, self.reason)


class InvalidEntryError(LedgerError, ValueError):
    """The entry cannot be stored: its body is no contiguous buffer, its kind is none, its count is
    no integer or above MAX_MESSAGE_COUNT, or its index above 2^63-1.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: {reason}")


class EntryTooLargeError(LedgerError):
    """The entry is larger than the store allows."""

    def __init__(self, topic: str, size_bytes: int, limit_bytes: int) -> None:
        self.topic = topic
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"{topic}: entry of {size_bytes} bytes, the limit is {limit_bytes}")


class FencedError(LedgerError):
    """The entry did not become durable; its position and index were never handed on."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: not stored: {reason}")


class StaleEpochError(LedgerError):
    """The leader epoch is not the current one, or not higher than it."""

    def __init__(self, topic: str, epoch: int, current: int) -> None:
        self.topic = topic
        self.epoch = epoch
        self.current = current
        super().__init__(f"{topic}: leader epoch {epoch}, the current one is {current}")


class StoreClosedError(LedgerError):
    """The store, or this topic in it, was closed or deleted."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} is closed")


class StoreFailedError(LedgerError):
    """The store stopped: something failed that it cannot repair. Open the folder again.

    What was acknowledged is on disk. Appends that were not may be there or not.
    """

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(f"the store of {folder} has stopped: {reason}")


class OwnershipLostError(LedgerError):
    """Another owner has taken over: nothing that this one does gets in any more."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} has another owner now")


class ForkedStoreError(LedgerError):
    """The store was opened by the parent of this process, and belongs to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"the store of {folder} belongs to the process that opened it")


class CallbackError(LedgerError):
    """The call would wait for the very thread that it is made in, and so for ever."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} from a callback that `notify` calls in the committer's thread")


class CompactionRunningError(LedgerError):
    """The topic is being compacted already."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{topic} is being compacted already")


class CompactionFailedError(LedgerError):
    """Nothing came of a compaction; what was compacted before still counts."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: not compacted: {reason}")
