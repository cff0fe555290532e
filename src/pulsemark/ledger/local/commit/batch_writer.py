"""Writes a batch to the disk: one journal block, then each segment's part, then its rows.

An entry's row is added to its segment's index only after its bytes are in the segment. So an index
never has an entry that is not durable, and an entry that fails leaves nothing to take back.

Only one thread at a time uses it, between the batches of a `GroupCommit`. If an exception ends a
batch half way, the batch is written again from the beginning: steps that are done are skipped, or
done a second time with the same bytes at the same place.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from ...commit.batch import Batch, EntryWriter, Group, Outcome, Owner, PlainWrite, all_buffers
from ...run import ROW_FIELDS
from ...store_state import is_of_handler
from ..io.files import Buffer, write_all
from ..io.folder import Reserve, is_full
from ..segment.filer import Filer
from ..segment.index_file import CHUNK_ROWS
from ..segment.segment import Segment, SegmentState
from .journal import GroupRef, Journal

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """A segment with unsynced writes, its owner and a pinned descriptor."""

    segment: Segment
    owner: Owner
    fd: int


class BatchWriter(EntryWriter):
    """Writes groups to the journal and into their segments."""

    def __init__(self, filer: Filer, journal: Journal, reserve: Reserve) -> None:
        self._filer = filer
        self._reserve = reserve
        self._files = filer.files
        self._fds = filer.fds
        self.journal = journal
        self._dirty: dict[Segment, Written] = {}
        self._with_end: set[Segment] = set()
        """Without a sync of each block: the segments of which this journal has a synced block."""
        self._with_end_in = 0
        """That journal's id."""
        self.broken: list[Owner] = []
        """Owners of segments that could not be synced; they are fenced after the batch."""

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """Make groups durable and write them to their segments, but do not show them.

        Without ``sync`` they are durable after the journal's next sync. Raises OSError if it is not
        known what counts of the journal: the store must stop.
        """
        try:
            if batch.journal_error is not None:
                raise batch.journal_error
            self.write_to_journal(batch, groups, sync=sync)
        except Exception as error:  # noqa: BLE001 - after any error, nothing of the block counts
            _log_unless_disk("the journal", error)
            self._leave_journal()
            return Outcome(failed=list(groups), error=error)
        outcome = Outcome()
        stored: list[tuple[Group, int]] = []  # with the bytes of each that are in its segment
        failed_owners: set[int] = set()
        for group in groups:
            if id(group.owner) in failed_owners:
                # Entries after a gap must not be written: readers would find them in the file.
                outcome.failed.append(group)
                continue
            try:
                self.write_to_segment(group)
            except Exception as error:  # noqa: BLE001 - the other groups must go on
                _log_unless_disk(str(_segment(group).path), error)
                if size_bytes := self._show_whole_records(group):
                    stored.append((group, size_bytes))
                elif group.offset == 0:
                    self._remove(_segment(group))
                outcome.failed.append(group)
                failed_owners.add(id(group.owner))
                outcome.error = error
                continue
            outcome.good.append(group)
            stored.append((group, group.size_bytes))
        if outcome.failed:
            self._take_out_of_journal(stored)
        return outcome

    def _take_out_of_journal(self, stored: Sequence[tuple[Group, int]]) -> None:
        """Keep only `size` bytes of each of these groups in the batch's journal block.

        The block is written again in its place, where a full disk has room. A power cut may tear
        it, and readers have seen its entries, so their segments are synced before. If that fails,
        the block goes to another file. Raises OSError if that fails, too: then it is unknown what a
        crash would bring back.
        """
        for group, _ in stored:
            written = self._dirty.get(_segment(group))  # None: it was synced (``_sync_some``)
            if written is not None and not self._filer.sync(written.segment, written.fd):
                self.broken.append(written.owner)
        if any(group.offset == 0 for group, _ in stored):
            with suppress(OSError):  # the journal keeps them all the same
                self._filer.sync_folder()
        refs = [_reference(group, size_bytes) for group, size_bytes in stored]
        content: list[Buffer] = []
        for group, size_bytes in stored:
            is_whole = size_bytes == group.size_bytes
            content += group.buffers if is_whole else [b"".join(group.buffers)[:size_bytes]]
        try:
            self.journal.rewrite(refs, content)
        except OSError as error:
            _log.error("the journal goes on in another file: %s", error)
            self._leave_journal()
            if refs:
                self._reserve.with_space_for(partial(self.journal.write, refs, content))

    def _leave_journal(self) -> None:
        """Make acknowledged entries durable, after a failed write or sync of the journal.

        Entries acknowledged without a sync must be in their segments. Failed entries must not count
        after a crash; on a full disk that may wait for the next batch, whose header says it. Raises
        OSError.
        """
        if self.journal.take_back():
            return
        has_unsynced = self.journal.has_unsynced
        if has_unsynced:
            for written in list(self._dirty.values()):
                if not self._filer.sync(written.segment, written.fd):
                    reason = "neither the journal nor this segment could be synced"
                    raise OSError(errno.EIO, reason, str(written.segment.path))
            self._filer.sync_folder()
        try:
            self._reserve.with_space_for(self.journal.begin)
        except OSError as error:
            if has_unsynced or not is_full(error):
                raise
            _log.error("the journal's next file waits for the next batch: %s", error)

    def _remove(self, segment: Segment) -> None:
        """Remove the file of a new segment whose first write failed: without the journal's block
        the next opening would take the rest for a segment.
        """
        try:
            self._filer.remove_files([segment.segment_id])
        except OSError as error:
            _log.warning("%s: the next checkpoint removes it: %s", segment.path, error)

    def plain_write(self, groups: Sequence[Group]) -> PlainWrite | None:
        """A write in steps that can be repeated; None if it opens a file or begins a chunk."""
        if not self.journal.is_plain:
            return None
        for group in groups:
            segment = _segment(group)
            row = segment.index.count % CHUNK_ROWS
            if not 0 < row < CHUNK_ROWS - group.entry_count or segment not in self._dirty:
                return None
        return self._write_plainly

    def _write_plainly(self, batch: Batch, groups: Sequence[Group]) -> None:
        self.write_to_journal(batch, groups)
        for group in groups:
            self.write_to_segment(group)

    def write_to_journal(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> None:
        """Write the batch's block, unless it is written already.

        A segment's first block in each file is synced at once, also without ``sync``: so the last
        file says where each segment ends that was written to, and recovery cuts off what was not
        synced.
        """
        if batch.is_in_journal:
            return
        for group in groups:
            group.join_small_buffers()
        refs = [_reference(group, group.size_bytes) for group in groups]
        try:
            if sync:
                self.journal.write(refs, all_buffers(groups))
            else:
                self._write_unsynced(groups, refs)
        except OSError as error:
            if not is_of_handler(error):
                batch.journal_error = error
            raise
        batch.is_in_journal = True

    def _write_unsynced(self, groups: Sequence[Group], refs: Sequence[GroupRef]) -> None:
        segments = {_segment(group) for group in groups}
        if self._with_end_in != self.journal.journal_id:
            self._with_end.clear()
        self.journal.write(refs, all_buffers(groups), sync=not segments <= self._with_end)
        self._with_end_in = self.journal.journal_id
        self._with_end |= segments

    def write_to_segment(self, group: Group) -> None:
        """Write a group's bytes to its segment, and its rows, unless they are written already."""
        segment = _segment(group)
        if segment.index.end_offset < group.end_offset:
            written = self._dirty.get(segment) or self._open(group)
            write_all(self._files, written.fd, group.buffers, group.offset)
        self._add_rows(group, group.entry_count)

    def _open(self, group: Group) -> Written:
        if len(self._dirty) >= self._fds.limit:
            self._sync_some()
        fd = self._fds.acquire(_segment(group).path, create=True)
        written = self._dirty[_segment(group)] = Written(_segment(group), group.owner, fd)
        return written

    def _show_whole_records(self, group: Group) -> int:
        """Show a failed write's whole records, which readers may have seen. Return their size."""
        written = self._dirty.get(_segment(group))
        if written is None:
            return 0
        try:
            size = self._files.size(written.fd)
        except OSError:
            return 0
        ends = group.rows[ROW_FIELDS - 1 :: ROW_FIELDS]
        whole = bisect_right(ends, size)
        if not whole:
            return 0
        self._add_rows(group, whole)
        group.show(whole)
        return ends[whole - 1] - group.offset

    def _add_rows(self, group: Group, count: int) -> None:
        """Add the group's first entries, which are written, to the segment's index."""
        index = _segment(group).index
        rows = group.rows if count == group.entry_count else group.rows[: count * ROW_FIELDS]
        if index.end_offset < rows[-1]:
            index.append_many(rows[1::ROW_FIELDS], rows[2::ROW_FIELDS], rows[3::ROW_FIELDS])
        end = index.end_offset
        offset = group.offset
        for buffer in group.buffers:
            size = len(buffer)
            if offset + size > index.digested_end:
                cut = offset + size > end
                index.digest(memoryview(buffer)[: end - offset] if cut else buffer, offset)
            offset += size
            if offset >= end:
                return

    def _sync_some(self) -> None:
        """Sync the segments written first, before the checkpoint, if too many files are open."""
        count = 1 + self._fds.limit // 4
        unsynced = [w for w in self._dirty.values() if w.segment.state is not SegmentState.FAILED]
        for written in unsynced[:count]:
            if self._filer.sync(written.segment, written.fd):
                self._fds.release(written.fd)
                del self._dirty[written.segment]
            else:  # it stays in the list, so that the checkpoint keeps the journal
                self.broken.append(written.owner)

    @property
    def is_waiting(self) -> bool:
        """Whether the journal is being synced now."""
        return self.journal.is_syncing

    def sync(self) -> None:
        """Sync the journal; if that fails, the segments. Raises OSError if that fails, too."""
        try:
            self.journal.sync()
        except OSError as error:
            _log.error("%s: the segments are synced instead", error)
            self._leave_journal()

    def shown(self, groups: Sequence[Group]) -> None:
        """Move full chunks of rows to the index files."""
        for group in groups:
            segment = _segment(group)
            try:
                segment.index.flush(segment.entry_count)
            except OSError as error:
                # The index file is a cache: its rows stay in memory and are written later.
                _log.warning("%s: its index file is not written yet: %s", segment.path, error)

    def rotate(self) -> tuple[int, list[Written]]:
        """End the journal's file, between two batches.

        Returns the highest journal id that ended, and every segment written since the last
        rotation. The caller releases their descriptors. Raises OSError.
        """
        last_id = self._reserve.with_space_for(self.journal.rotate)
        written, self._dirty = list(self._dirty.values()), {}
        return last_id, written


_segment: Callable[[Group], Segment] = attrgetter("run")
"""The segment of a group: every run of this engine is one."""


def _reference(group: Group, size_bytes: int) -> GroupRef:
    """The reference to a group's first bytes."""
    header = _segment(group).header
    return GroupRef(header.ledger_id, header.segment_no, size_bytes, group.offset)


def _log_unless_disk(what: str, error: Exception) -> None:
    if not isinstance(error, OSError):
        _log.error("%s", what, exc_info=error)
