"""Every error the ledger raises. Each has its facts as attributes."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .limits import MAX_TIME_MS
from .position import Position

if TYPE_CHECKING:
    import asyncio


class LedgerError(Exception):
    """Base of all errors of the ledger package."""


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
    """The file was written by a newer format than this code can read."""

    def __init__(self, path: Path, what: str, found: int, supported: int) -> None:
        self.path = path
        self.what = what
        self.found = found
        self.supported = supported
        super().__init__(
            f"{path}: {what} {found} is not supported (this program knows up to {supported})"
        )


class TopicNotFoundError(LedgerError):
    """The store has no topic of that name."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} does not exist")


class ReservedTopicError(LedgerError):
    """The name is reserved for the store's cursors or a topic's compacted view."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} belongs to the store itself")


class CorruptFileError(LedgerError):
    """The file is unusable, because its header is damaged."""

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
    """The catalog could not be read or written: its disk is full, failing, or it is closed.

    The text names the place as it was given: a path would lose a slash of `zk://...`.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = Path(path)
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class ChangedElsewhereError(CatalogError):
    """Another broker has changed the same value at the same time; nothing was changed here."""


class CatalogFullError(CatalogError):
    """The catalog's disk is full; the change was not made."""


class CorruptCatalogError(CatalogError, CorruptFileError):
    """The catalog is damaged. It can be rebuilt: most of its content is also in the segments."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        LedgerError.__init__(
            self,
            f"{path} is damaged: {reason}; `pulsemark rebuild-catalog {path.parent}` makes it "
            "again from the segments",
        )


class AlreadyStampedError(LedgerError):
    """The body begins with 0x0e02: readers would take it for the broker's prefix (PIP-70)."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{topic}: the entry already begins with a broker entry prefix (0x0e02)")


class InvalidCursorError(LedgerError):
    """A cursor with such a name or such properties cannot be stored; nothing has changed."""

    def __init__(self, topic: str, name: str, reason: str) -> None:
        super().__init__(f"{topic}: the cursor {name!r} cannot be stored: {reason}")
        self.topic = topic
        self.name = name
        self.reason = reason

    def __reduce__(self) -> tuple[type[InvalidCursorError], tuple[str, str, str]]:
        """Keep the facts when the error is pickled, as between processes."""
        return type(self), (self.topic, self.name, self.reason)


class InvalidEntryError(LedgerError, ValueError):
    """The entry cannot be stored: its body is not a contiguous buffer, its kind is unknown,
    its count is not an integer or is above MAX_MESSAGE_COUNT, or its index is above 2^63-1.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: {reason}")


class ClockError(LedgerError, ValueError):
    """The store's clock gave no whole number of milliseconds within 64 bits: `value`.

    Nothing has changed: the next append asks the clock again.
    """

    def __init__(self, value: object) -> None:
        self.value = value
        super().__init__(
            f"the clock must give whole milliseconds of at most {MAX_TIME_MS}, not {value!r}"
        )

    def __reduce__(self) -> tuple[type[ClockError], tuple[object]]:
        return type(self), (self.value,)


class EntryTooLargeError(LedgerError):
    """The entry is larger than the store allows."""

    def __init__(self, topic: str, size_bytes: int, limit_bytes: int) -> None:
        self.topic = topic
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"{topic}: entry of {size_bytes} bytes, the limit is {limit_bytes}")


class FencedError(LedgerError):
    """The entry is not in the log. While the store lives, no reader sees its position and index.

    A write that failed half way may have stored the first entries of a commit: those of its ledger
    below ``stored_end_id``. `Appended.error` tells it for one entry.
    """

    def __init__(self, topic: str, reason: str, stored_end_id: int = 0) -> None:
        self.topic = topic
        self.reason = reason
        self.stored_end_id = stored_end_id
        super().__init__(f"{topic}: not stored: {reason}")


class StaleEpochError(LedgerError):
    """The leader epoch is not the current one, or not higher than it."""

    def __init__(self, topic: str, epoch: int, current: int) -> None:
        self.topic = topic
        self.epoch = epoch
        self.current = current
        super().__init__(f"{topic}: leader epoch {epoch}, the current one is {current}")


class FollowerFolderError(LedgerError):
    """The folder follows another one: nothing may be appended to it until it is promoted."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder = folder
        self.place = place
        super().__init__(
            f"{folder} follows {place}; `pulsemark promote --data-dir {folder}` makes it a leader"
        )


class StoreClosedError(LedgerError):
    """The store, or this topic in it, was closed or deleted."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} is closed")


class TopicTerminatedError(LedgerError):
    """The topic was terminated: it can be read, and never gets another entry."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{topic} was terminated")


class StoreFailedError(LedgerError):
    """The store stopped after a failure that it cannot repair. Open the folder again.

    What was acknowledged is on disk. Entries that were not acknowledged may be on disk or not.
    """

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(f"the store of {folder} has stopped: {reason}")


class OwnershipLostError(LedgerError):
    """Another owner has taken over: writes are refused."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} has another owner now")


class ForkedStoreError(LedgerError):
    """The store was opened by the parent of this process, and belongs to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"the store of {folder} belongs to the process that opened it")


class CallbackError(LedgerError):
    """The calling thread would wait for itself."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} from a callback that `notify` calls in the committer's thread")


class CompactionRunningError(LedgerError):
    """The topic is already being compacted."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{topic} is being compacted already")


class CompactionFailedError(LedgerError):
    """A compaction failed; the former compacted view stays in use."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{topic}: not compacted: {reason}")


class WouldBlockError(LedgerError, OSError):
    """The entries are not in memory, and this thread must not wait. They are being read.

    Raised only in threads that called `TopicStore.never_wait_here`. Repeat the call once ``done``
    is done: it then returns, or raises the error of reading.
    """

    def __init__(self, done: Future[Any] | asyncio.Future[Any]) -> None:
        self.done: Any = done
        super().__init__("the entries are not in memory, and are being read")
