"""Every error the ledger raises. Each has its facts as attributes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..records import FactsError
from .limits import MAX_TIME_MS
from .position import Position


class LedgerError(FactsError):
    """Base of all errors of the ledger package."""


class FolderLockedError(LedgerError):
    """Another process has the data folder open for writing."""

    folder: Path
    owner_pid: int | None

    def __str__(self) -> str:
        by = f" by process {self.owner_pid}" if self.owner_pid is not None else ""
        return f"data folder {self.folder} is in use{by}"


class ForeignFolderError(LedgerError, text="{folder} is not a pulsemark data folder: {reason}"):
    """The folder is missing, or holds something that is not a pulsemark data folder."""

    folder: Path
    reason: str


class UnsupportedVersionError(
    LedgerError,
    text="{path}: {what} {found} is not supported (this program knows up to {supported})",
):
    """The file was written by a newer format than this code can read."""

    path: Path
    what: str
    found: int
    supported: int


class TopicNotFoundError(LedgerError, text="topic {topic!r} does not exist"):
    """The store has no topic of that name."""

    topic: str


class ReservedTopicError(LedgerError, text="topic {topic!r} belongs to the store itself"):
    """The name is reserved for the store's cursors or a topic's compacted view."""

    topic: str


class CorruptFileError(LedgerError, text="{path} is damaged: {reason}"):
    """The file is unusable, because its header is damaged."""

    path: Path
    reason: str


class CorruptEntryError(LedgerError, text="{topic}: entry {position} is damaged: {reason}"):
    """One entry is damaged. ``next_position`` is where reading can go on."""

    topic: str
    position: Position
    next_position: Position
    reason: str


class CatalogError(LedgerError, text="{path}: {reason}"):
    """The catalog could not be read or written: its disk is full, failing, or it is closed."""

    path: str | os.PathLike[str]
    """The place as it was given: a `Path` would lose a slash of `zk://...`."""
    reason: str


class ChangedElsewhereError(CatalogError):
    """Another broker has changed the same value at the same time; nothing was changed here."""


class CatalogFullError(CatalogError):
    """The catalog's disk is full; the change was not made."""


class CorruptCatalogError(
    CatalogError,
    CorruptFileError,
    text="{path} is damaged: {reason}; `pulsemark rebuild-catalog {path.parent}` makes it again "
    "from the segments",
):
    """The catalog is damaged. It can be rebuilt: most of its content is also in the segments."""

    path: Path


class AlreadyStampedError(
    LedgerError, text="{topic}: the entry already begins with a broker entry prefix (0x0e02)"
):
    """The body begins with 0x0e02: readers would take it for the broker's prefix (PIP-70)."""

    topic: str


class InvalidCursorError(
    LedgerError, text="{topic}: the cursor {name!r} cannot be stored: {reason}"
):
    """A cursor with such a name or such properties cannot be stored; nothing has changed."""

    topic: str
    name: str
    reason: str


class InvalidEntryError(LedgerError, ValueError, text="{topic}: {reason}"):
    """The entry cannot be stored: its body is not a contiguous buffer, its kind is unknown,
    its count is not an integer or is above MAX_MESSAGE_COUNT, or its index is above 2^63-1.
    """

    topic: str
    reason: str


class ClockError(
    LedgerError,
    ValueError,
    text=f"the clock must give whole milliseconds of at most {MAX_TIME_MS}, not {{value!r}}",
):
    """The store's clock gave no whole number of milliseconds within 64 bits: `value`.

    Nothing has changed: the next append asks the clock again.
    """

    value: object


class EntryTooLargeError(
    LedgerError, text="{topic}: entry of {size_bytes} bytes, the limit is {limit_bytes}"
):
    """The entry is larger than the store allows."""

    topic: str
    size_bytes: int
    limit_bytes: int


class FencedError(LedgerError, text="{topic}: not stored: {reason}"):
    """The entry is not in the log. While the store lives, no reader sees its position and index.

    A write that failed half way may have stored the first entries of a commit: those of its ledger
    below ``stored_end_id``. `Appended.error` tells it for one entry.
    """

    topic: str
    reason: str
    stored_end_id: int = 0


class StaleEpochError(
    LedgerError, text="{topic}: leader epoch {epoch}, the current one is {current}"
):
    """The leader epoch is not the current one, or not higher than it."""

    topic: str
    epoch: int
    current: int


class FollowerFolderError(
    LedgerError,
    text="{folder} follows {place}; `pulsemark promote --data-dir {folder}` makes it a leader",
):
    """The folder follows another one: nothing may be appended to it until it is promoted."""

    folder: Path
    place: str


class StoreClosedError(LedgerError, text="{what} is closed"):
    """The store, or this topic in it, was closed or deleted."""

    what: str


class TopicTerminatedError(LedgerError, text="{topic} was terminated"):
    """The topic was terminated: it can be read, and never gets another entry."""

    topic: str


class StoreFailedError(LedgerError, text="the store of {folder} has stopped: {reason}"):
    """The store stopped after a failure that it cannot repair. Open the folder again.

    What was acknowledged is on disk. Entries that were not acknowledged may be on disk or not.
    """

    folder: Path
    reason: str


class OwnershipLostError(LedgerError, text="{what} has another owner now"):
    """Another owner has taken over: writes are refused."""

    what: str


class ForkedStoreError(
    LedgerError, text="the store of {folder} belongs to the process that opened it"
):
    """The store was opened by the parent of this process, and belongs to it."""

    folder: Path


class CallbackError(
    LedgerError, text="{what} from a callback that `notify` calls in the committer's thread"
):
    """The calling thread would wait for itself."""

    what: str


class CompactionRunningError(LedgerError, text="{topic} is being compacted already"):
    """The topic is already being compacted."""

    topic: str


class CompactionFailedError(LedgerError, text="{topic}: not compacted: {reason}"):
    """A compaction failed; the former compacted view stays in use."""

    topic: str
    reason: str


class WouldBlockError(
    LedgerError, OSError, text="the entries are not in memory, and are being read"
):
    """The entries are not in memory, and this thread must not wait. They are being read.

    Raised only in threads that called `TopicStore.never_wait_here`. Repeat the call once ``done``
    is done: it then returns, or raises the error of reading.
    """

    done: Any
    """A future of a thread, or of the event loop."""
