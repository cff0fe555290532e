"""The journal: the one file that is synced per group commit, whatever the number of topics.

A block has the bytes that a group commit adds to all segments, and where they belong.
Once the block is synced the bytes are written to the segments (page cache), and only then are
the appends acknowledged; a checkpoint syncs the segments later and frees the journal's files.
So at any time the content of a segment is durable, in the journal or in the segment.

Files are used in turn under growing journal ids and are not cut when freed, and a growing file is
filled with zeros before small blocks are written: overwriting in place needs no write to the file
system's own journal, which is most of an fdatasync's price.

After a failed write or sync the file is closed and never synced again, only removed. The journal
goes on in another file, whose header says how much of the previous one counts. The same happens
after a write that an exception ended half way, because its result is not known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..io.files import Buffer, Files, write_all
from ..io.folder import journal_folder, journal_path, list_journal_slots
from ..segment.segment_format import new_secret
from .journal_format import (
    JOURNAL_HEADER_SIZE,
    BlockKey,
    GroupRef,
    JournalHeader,
    pack_block_head,
)


@dataclass(slots=True)
class _OpenJournal:
    """The file that is being written."""

    slot: int
    fd: int
    journal_id: int
    key: BlockKey
    header: bytes
    """The header, if it is not written yet: it is written with the first block."""
    allocated: int
    """The file's length. A write below it changes no metadata, so that a sync need not wait for
    the file system's own journal: a third of the price of small blocks."""
    end: int = JOURNAL_HEADER_SIZE
    synced: bool = True
    is_broken: bool = False
    """A write or sync began and did not succeed: the file is never synced again."""


_ZEROS = bytes(256 * 1024)
_SMALL_BLOCK_BYTES = 64 * 1024
"""For larger blocks, writing zeros first costs more than it saves."""


class Journal:
    """Appends blocks. The committer's thread uses it; the checkpoint's thread calls ``free``."""

    def __init__(
        self, files: Files, folder: Path, last_id: int = 0, sync_interval_ms: int = 0
    ) -> None:
        self._sync_interval_ms = sync_interval_ms
        self._files = files
        self._folder = folder
        self._next_id = last_id + 1
        self._previous = (0, 0)
        self._slots = set(list_journal_slots(files, folder))
        """Slots whose file has a durable name."""
        self._in_use: dict[int, int] = {}
        self._failed: set[int] = set()
        """Slots whose file must not be synced again."""
        self._open: _OpenJournal | None = None
        self.is_syncing = False
        """Whether the thread that writes is waiting for the disk."""

    @property
    def size_bytes(self) -> int:
        """Size of the current file's blocks and header, in bytes."""
        return self._open.end - JOURNAL_HEADER_SIZE if self._open else 0

    def write(
        self, groups: Sequence[GroupRef], content: Sequence[Buffer], *, sync: bool = True
    ) -> None:
        """Append one block and sync it. After an exception nothing of the block counts.

        Without ``sync`` the block is durable once ``sync`` has been called.
        """
        self.close_broken()
        journal = self._open or self._begin()
        head = pack_block_head(journal.key, journal.end, groups, content)
        size = len(head) + sum([group.size_bytes for group in groups])
        end = journal.end + size
        grow = (_ZEROS,) if end > journal.allocated and size <= _SMALL_BLOCK_BYTES else ()
        allocated = max(journal.allocated, end + (len(_ZEROS) if grow else 0))
        journal.is_broken = True  # until it is written and synced
        try:
            if journal.header:
                write_all(self._files, journal.fd, [journal.header, head, *content, *grow], 0)
            else:
                write_all(self._files, journal.fd, [head, *content, *grow], journal.end)
            if sync:
                self.is_syncing = True
                self._files.fdatasync(journal.fd)
        finally:
            self.is_syncing = False
        # No call from here on, so that no exception can come in between.
        journal.synced = sync
        journal.header = b""
        journal.end = end
        journal.allocated = allocated
        journal.is_broken = False

    @property
    def is_plain(self) -> bool:
        """Whether the next block goes to the open file, without beginning a new one."""
        journal = self._open
        return journal is not None and not (journal.header or journal.is_broken)

    def close_broken(self) -> None:
        """Close a file whose last write failed or was interrupted."""
        if self._open is not None and self._open.is_broken:
            self._leave(self._open)

    def sync(self) -> None:
        """Make the blocks written without a sync durable. After an OSError they may be lost."""
        self.close_broken()
        journal = self._open
        if journal is None or journal.synced:
            return
        journal.is_broken = True
        try:
            self._files.fdatasync(journal.fd)
        except OSError:
            self._leave(journal)
            raise
        journal.synced, journal.is_broken = True, False

    def rotate(self) -> int:
        """End the current file; returns the highest journal id that ended."""
        if self._open is not None:
            self._leave(self._open)
        return self._next_id - 1

    def _begin(self) -> _OpenJournal:
        slot = next(n for n in count() if n not in self._in_use and n not in self._failed)
        path = journal_path(self._folder, slot)
        fd = self._files.open(path, os.O_RDWR | os.O_CREAT)
        try:
            if slot not in self._slots:
                self._files.sync_folder(journal_folder(self._folder))
                self._slots.add(slot)
            size = self._files.size(fd)
        except OSError:
            self._close(fd)
            raise
        header = JournalHeader(self._next_id, *self._previous, self._sync_interval_ms, new_secret())
        self._in_use[slot] = self._next_id
        self._open = _OpenJournal(slot, fd, self._next_id, header.block_key, header.pack(), size)
        self._next_id += 1
        return self._open

    def _leave(self, journal: _OpenJournal) -> None:
        self._open = None
        self._close(journal.fd)
        if journal.is_broken:
            self._failed.add(journal.slot)
        if not journal.header:
            self._previous = (journal.journal_id, journal.end)
        elif journal.is_broken:
            with suppress(OSError):  # it has no blocks; if it cannot be removed now, it is later
                self._remove(journal.slot)
                del self._in_use[journal.slot]

    def _close(self, fd: int) -> None:
        with suppress(OSError):  # it is closed all the same, and what counts is synced
            self._files.close(fd)

    def free(self, first_id: int, last_id: int) -> None:
        """Free the files of the ended journals ``first_id`` to ``last_id``, synced elsewhere.

        Frees all that it can; raises OSError if some could not be freed.
        """
        error: OSError | None = None
        for slot, journal_id in sorted(self._in_use.items(), key=lambda item: item[1]):
            if first_id <= journal_id <= last_id:
                try:
                    self._free(slot)
                    del self._in_use[slot]
                except OSError as failure:
                    error = failure
        if error is not None:
            raise error

    def _free(self, slot: int) -> None:
        if slot not in self._failed:
            try:
                free_journal(self._files, journal_path(self._folder, slot))
                return
            except OSError:
                self._failed.add(slot)
        self._remove(slot)

    def _remove(self, slot: int) -> None:
        """Remove a slot's file, durably; the slot can be used again then."""
        with suppress(FileNotFoundError):
            self._files.unlink(journal_path(self._folder, slot))
        self._slots.discard(slot)
        self._files.sync_folder(journal_folder(self._folder))
        self._failed.discard(slot)

    def close(self) -> None:
        """Close the current file, keeping what it holds."""
        if self._open is not None:
            self._leave(self._open)


def free_journal(files: Files, path: Path) -> None:
    """Mark the file as free, durably."""
    fd = files.open(path, os.O_RDWR)
    try:
        write_all(files, fd, [bytes(JOURNAL_HEADER_SIZE)], 0)
        files.fdatasync(fd)
    finally:
        files.close(fd)
