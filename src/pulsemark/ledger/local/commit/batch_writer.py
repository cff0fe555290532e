"""A batch on its way to the disk: one journal block, then each segment's part, then its rows.

An entry's row comes into its segment's index once its bytes are in the segment, and not before.
So an index never holds what is not durable, and an entry that fails leaves nothing to take back.

Used between the batches of a `GroupCommit` only, by one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

from ...commit.commit import Group, Owner, PendingEntry, show
from ...commit.entry_writer import Outcome
from ..io.files import Buffer, write_all
from ..segment.filer import Filer
from ..segment.life import SegmentState
from ..segment.segment import Segment
from .journal import Journal
from .journal_format import GroupRef

_log = logging.getLogger(__name__)

_JOIN_BELOW_BYTES = 16 * 1024
"""Entries smaller than this on average are joined: one copy is cheaper than a long gather."""


@dataclass(frozen=True, slots=True)
class Written:
    """A segment that was written to and is not synced, its owner, and a pinned descriptor."""

    segment: Segment
    owner: Owner
    fd: int


class BatchWriter:
    """Writes groups to the journal and into their segments."""

    def __init__(self, filer: Filer, journal: Journal) -> None:
        self._filer = filer
        self._files = filer.files
        self._fds = filer.fds
        self.journal = journal
        self._dirty: dict[Segment, Written] = {}
        self.broken: list[Owner] = []
        """Owners of segments that could not be synced, to be fenced after the batch."""

    def write(self, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """Make groups durable and put them where readers find them, all but shown.

        Without ``sync`` they are durable after the journal's next one; but the first block of a
        segment since the last rotation is synced at once: so recovery knows of every segment where
        it ends, and cuts off what was not synced.
        """
        refs, content = [], []
        for group in groups:
            header = _segment(group).header
            refs.append(
                GroupRef(header.ledger_id, header.segment_no, group.size_bytes, group.offset)
            )
            content += _gathered(group)
        sync = sync or any(_segment(group) not in self._dirty for group in groups)
        try:
            self.journal.write(refs, content, sync=sync)
        except Exception as error:  # noqa: BLE001 - nothing of the block counts, whatever it is
            _log_unless_disk("the journal", error)
            return Outcome(failed=list(groups), error=error)
        outcome = Outcome()
        failed_owners: set[int] = set()
        for group in groups:
            if id(group.owner) in failed_owners:
                # What follows a gap must not come into a file where readers would find it.
                outcome.failed.append(group)
                continue
            try:
                self._write_segment(group)
            except Exception as error:  # noqa: BLE001 - the other groups must go on
                _log_unless_disk(str(_segment(group).path), error)
                outcome.failed.append(group)
                failed_owners.add(id(group.owner))
                outcome.error = error
                continue
            self._take_in(group, group.entries)
            outcome.good.append(group)
        return outcome

    def _write_segment(self, group: Group) -> None:
        segment = _segment(group)
        written = self._dirty.get(segment)
        if written is None:
            if len(self._dirty) >= self._fds.limit:
                self._sync_some()
            fd = self._fds.acquire(segment.path, create=True)
            written = self._dirty[segment] = Written(segment, group.owner, fd)
        try:
            write_all(self._files, written.fd, group.buffers, group.offset)
        except Exception:
            self._show_what_came_whole(group, written.fd)
            raise

    def _show_what_came_whole(self, group: Group, fd: int) -> None:
        """A reader of the folder may have seen these already: what was seen stays."""
        try:
            size = self._files.size(fd)
        except OSError:
            return
        whole = [entry for entry in group.entries if entry[4] <= size]
        if whole:
            self._take_in(group, whole)
            show(group.segment, whole[-1])

    def _take_in(self, group: Group, entries: Sequence[PendingEntry]) -> None:
        """Add the group's first entries, which are written, to the segment's index."""
        index = _segment(group).index
        _, _, times_ms, nexts, ends = zip(*entries, strict=True)
        index.append_many(times_ms, nexts, ends)
        end = index.end_offset
        offset = group.offset
        for buffer in group.buffers:
            if offset >= end:
                return
            cut = offset + len(buffer) > end
            data = memoryview(buffer)[: end - offset] if cut else buffer
            index.digest(data, offset)
            offset += len(buffer)

    def _sync_some(self) -> None:
        """Sync the segments written first, ahead of the checkpoint: too many files are open."""
        count = 1 + self._fds.limit // 4
        unsynced = [w for w in self._dirty.values() if w.segment.state is not SegmentState.FAILED]
        for written in unsynced[:count]:
            if self._filer.sync(written.segment, written.fd):
                self._fds.release(written.fd)
                del self._dirty[written.segment]
            else:  # it stays among the written: the checkpoint keeps the journal because of it
                self.broken.append(written.owner)

    @property
    def is_waiting(self) -> bool:
        """Whether the journal is being synced just now."""
        return self.journal.is_syncing

    def sync(self) -> None:
        """Sync what was written to the journal without. Raises OSError."""
        self.journal.sync()

    def shown(self, groups: Sequence[Group]) -> None:
        """Move full chunks of rows to the index files."""
        for group in groups:
            segment = _segment(group)
            try:
                segment.index.flush(segment.entry_count)
            except OSError as error:
                # The index file is a cache: its rows stay in memory and are written later.
                _log.warning("%s: index not written: %s", segment.path, error)

    def rotate(self) -> tuple[int, list[Written]]:
        """End the journal's file, between two batches.

        Returns the highest journal id that ended, and every segment written since the last
        rotation. Those who get them release their descriptors.
        """
        written, self._dirty = list(self._dirty.values()), {}
        return self.journal.rotate(), written


def _segment(group: Group) -> Segment:
    return cast("Segment", group.segment)


def _gathered(group: Group) -> list[Buffer]:
    """The entries' bytes, joined when they are small."""
    group.buffers = list(chain.from_iterable(entry[0] for entry in group.entries))
    if len(group.buffers) > 1 and group.size_bytes < _JOIN_BELOW_BYTES * len(group.buffers):
        group.buffers = [b"".join(group.buffers)]
    return group.buffers


def _log_unless_disk(what: str, error: Exception) -> None:
    if not isinstance(error, OSError):
        _log.error("%s", what, exc_info=error)
