"""A data folder, open for writing: the one place that joins the parts.

Opening: check the folder, take its lock, open the catalog, write the journal's blocks into the
segments and sync them, complete the catalog if it knows less than the folder, free the journal.
Topics are opened when first asked for.

Closing: no more appends, commit what is pending, checkpoint, seal every index, remove the
journal's files, give the lock back. A store that was closed needs no recovery.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from ..metadata import Clock, SystemClock
from .catalog import Catalog, SegmentId
from .chain import counting_segments
from .checkpoint import Checkpointer
from .compacted_format import VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX
from .cursor_store import CURSOR_TOPIC, CursorStore
from .errors import CorruptFileError, LedgerError, StoreClosedError, TopicNotFoundError
from .fd_cache import FdCache
from .files import Files, OsFiles
from .folder import (
    CATALOG_NAME,
    index_path,
    lock_folder,
    prepare_folder,
    probe_folder,
    segment_path,
)
from .group_commit import GroupCommit
from .journal import Journal
from .managed_ledger import ManagedLedger
from .options import StoreOptions
from .recovery import recover, remove_journal, remove_segment_files
from .salvage import read_named_header, salvage_headers
from .segment import Segment
from .segment_format import MAX_TOPIC_NAME_BYTES, SegmentHeader
from .time_index import ChunkCache, TimeIndex

_log = logging.getLogger(__name__)
_LEDGER_IDS_AT_ONCE = 64
_DELETING = "deleting"
"""Kind of the catalog's property that a topic, by its id, is being deleted."""

Notify = Callable[[Callable[[], None]], object]


class LocalStore:
    """Ledgers in local files. Make one with ``LocalStore.open``."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        clock: Clock,
        options: StoreOptions,
        notify: Notify | None,
        lock_fd: int,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.options = options
        self._files = files
        self._lock_fd = lock_fd
        self._fds = FdCache(files, limit=options.fd_limit)
        self._chunks = ChunkCache()
        self._open_lock = threading.RLock()
        self._ids_lock = threading.Lock()
        self._ledgers: dict[str, ManagedLedger] = {}
        self._closed = False
        self._spare_ids: list[int] = []
        with ExitStack() as on_failure:
            on_failure.callback(self._fds.close)
            self.catalog = Catalog(folder / CATALOG_NAME)
            on_failure.callback(self.catalog.close)
            files.sync_folder(folder)
            last_id = recover(files, self._fds, folder, self.catalog)
            interval_ms = options.sync_interval_ms
            journal = Journal(files, folder, last_id, sync_interval_ms=interval_ms)
            self._topic_ids = self.catalog.topics()
            self._start(journal, notify)
            on_failure.pop_all()

    def _start(self, journal: Journal, notify: Notify | None) -> None:
        options = self.options
        self.committer = GroupCommit(
            self._files,
            self._fds,
            journal,
            notify=notify,
            max_pending_bytes=options.max_pending_bytes,
            interval_ms=options.sync_interval_ms,
        )
        self._journal = journal
        self._checkpointer = Checkpointer(
            self._files, self._fds, self.folder, self.catalog, journal, self.committer, options
        )
        try:
            self.cursors = CursorStore(self._open_ledger(CURSOR_TOPIC, create=True))
        except BaseException:
            self.committer.stop()
            raise
        self._checkpointer.start()
        self._end_deletions()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        notify: Notify | None = None,
        files: Files | None = None,
    ) -> LocalStore:
        """Open a data folder; a missing or empty one becomes one. Blocks.

        ``notify`` is how commit callbacks are run (``loop.call_soon_threadsafe``); without one
        they run in the committer's thread.

        Raises FolderLockedError, ForeignFolderError, UnsupportedVersionError, CorruptFileError
        (the catalog), CatalogError, OSError.
        """
        files = files or OsFiles()
        folder = Path(folder)
        prepare_folder(files, folder)
        lock_fd = lock_folder(files, folder)
        try:
            return cls(
                folder, files, clock or SystemClock(), options or StoreOptions(), notify, lock_fd
            )
        except BaseException:
            files.close(lock_fd)
            raise

    # Topics

    def topic_names(self) -> list[str]:
        """Full names of all topics, sorted; without those that the store has for itself."""
        return sorted(
            name
            for name in self._topic_ids
            if name != CURSOR_TOPIC and not name.startswith(VIEW_TOPIC_PREFIX)
        )

    def open_topic(self, name: str, *, create: bool = True) -> ManagedLedger:
        """The managed ledger of a topic, the same object each time. Blocks.

        Raises TopicNotFoundError when there is none and ``create`` is false, ValueError for a
        new one whose name is longer than a segment's header can hold.
        """
        with self._open_lock:
            ledger = self._ledgers.get(name)
            if ledger is None:
                ledger = self._open_ledger(name, create=create)
                self.cursors.attach(ledger)
            return ledger

    def _open_ledger(self, name: str, *, create: bool) -> ManagedLedger:
        if self._closed:
            raise StoreClosedError(str(self.folder))
        topic_id = self._topic_ids.get(name)
        if topic_id is None:
            if not create:
                raise TopicNotFoundError(name)
            if len(name.encode()) > MAX_TOPIC_NAME_BYTES:
                raise ValueError(f"a topic's name has at most {MAX_TOPIC_NAME_BYTES} bytes")
            topic_id = self.catalog.create_topic(name)
            self._topic_ids[name] = topic_id
        segments = self._load_segments(name, topic_id)
        ledger = ManagedLedger(self, name, topic_id, segments, self.next_ledger_id())
        self._ledgers[name] = ledger
        return ledger

    def _load_segments(self, name: str, topic_id: int) -> list[Segment]:
        headers, lost = self._read_headers(name, topic_id)
        segments = [self._segment(header) for header in headers]
        counting = counting_segments(segments, lost=lost)
        for segment in counting:
            if not segment.index.sealed:
                self._seal(segment)
        return counting

    def _read_headers(self, name: str, topic_id: int) -> tuple[list[SegmentHeader], set[int]]:
        """The headers of a topic's segments, and the ledgers that have none any more."""
        headers: dict[SegmentId, SegmentHeader] = {}
        unread: dict[SegmentId, Exception] = {}
        for segment_id in self.catalog.segments(topic_id):
            try:
                headers[segment_id] = read_named_header(self._files, self.folder, segment_id)
            except (FileNotFoundError, CorruptFileError) as error:
                unread[segment_id] = error
        if unread:
            headers |= salvage_headers(
                self._files, self.folder, unread, headers.values(), (name, topic_id)
            )
        for segment_id, reason in unread.items():
            if segment_id not in headers:
                _log.error("%s: a segment is lost: %s", name, reason)
        lost = {ledger_id for ledger_id, _ in unread} - {ledger_id for ledger_id, _ in headers}
        return list(headers.values()), lost

    def _seal(self, segment: Segment) -> None:
        try:
            segment.index.seal(segment.append_time_max_ms)
        except OSError as error:
            _log.warning("%s: index not sealed: %s", segment.path, error)

    def _segment(self, header: SegmentHeader) -> Segment:
        path = segment_path(self.folder, header.ledger_id, header.segment_no)
        index = TimeIndex(
            self._files,
            self._fds,
            index_path(path),
            header.ledger_id,
            header.segment_no,
            header.entry_time_floor_ms,
            self._chunks,
            header.pack() if header.secret else b"",
        )
        return Segment(self._files, self._fds, path, header, index)

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its entries, cursors and compacted views. Blocks.

        Raises TopicNotFoundError, CatalogError, OSError.
        """
        with self._open_lock:
            ledger = self.open_topic(name, create=False)
            ledger.close()
            self.committer.flush()
            self._checkpointer.checkpoint()
            for segment in ledger.segments():
                segment.removed = True
            self.catalog.put(_DELETING, str(ledger.topic_id), b"")
            segments = self.catalog.delete_topic(ledger.topic_id)
            del self._ledgers[name], self._topic_ids[name]
            remove_segment_files(self._files, self._fds, self.folder, segments)
            self._checkpointer.segments_removed(set(segments))
            self._delete_belongings(ledger.topic_id)

    def _delete_belongings(self, topic_id: int) -> None:
        """Remove the cursors and compacted views of a topic that is no more."""
        forgotten = self.cursors.forget_topic(topic_id)
        prefix = f"{VIEW_TOPIC_PREFIX}{topic_id}/"
        for name in [name for name in self._topic_ids if name.startswith(prefix)]:
            self.delete_topic(name)
        self.catalog.delete(VIEW_PROPERTY_KIND, str(topic_id))
        for commit in forgotten:
            commit.wait()
        self.catalog.delete(_DELETING, str(topic_id))

    def _end_deletions(self) -> None:
        """Go on where a process ended while it deleted a topic."""
        there = {str(topic_id) for topic_id in self._topic_ids.values()}
        for topic_id, _ in self.catalog.items(_DELETING):
            try:
                if topic_id in there:  # its entries are all there: it was not deleted
                    self.catalog.delete(_DELETING, topic_id)
                else:
                    self._delete_belongings(int(topic_id))
            except (OSError, LedgerError) as error:
                _log.warning("rests of topic %s stay until the next opening: %s", topic_id, error)

    # What managed ledgers call

    def next_ledger_id(self) -> int:
        """A ledger id that was never used before in this folder."""
        with self._ids_lock:
            if not self._spare_ids:
                first = self.catalog.reserve_ledger_ids(_LEDGER_IDS_AT_ONCE)
                self._spare_ids = list(range(first + _LEDGER_IDS_AT_ONCE - 1, first - 1, -1))
            return self._spare_ids.pop()

    def new_segment(self, header: SegmentHeader) -> Segment:
        """A segment to append to; its file comes with the first commit."""
        segment = self._segment(header)
        segment.index.end_offset = header.size_bytes
        self._checkpointer.segment_began(segment)
        return segment

    def segment_ended(self, segment: Segment) -> None:
        """No entry follows in this segment."""
        self._checkpointer.segment_ended(segment)

    def segment_void(self, segment: Segment) -> None:
        """Nothing of this segment, which began here, became durable."""
        self._checkpointer.segment_void(segment)

    def unlist_segments(self, ledger: ManagedLedger, segments: Sequence[Segment]) -> None:
        """Decide, durably, that a topic no longer has these segments. Raises CatalogError."""
        self.catalog.remove_segments(ledger.topic_id, _ids(segments))
        for segment in segments:
            segment.removed = True

    def remove_segments(self, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that were unlisted."""
        ids = _ids(segments)
        remove_segment_files(self._files, self._fds, self.folder, ids)
        self._checkpointer.segments_removed(set(ids))

    def drop_read_caches(self) -> None:
        """Forget what was kept of index files: for measuring what a first search costs."""
        self._chunks.clear()

    # Ending

    def probe(self) -> None:
        """See whether the disk takes writes, apart from any ledger. Blocks. Raises OSError."""
        probe_folder(self._files, self.folder)

    def checkpoint(self) -> None:
        """Sync all segments and free the journal now. Blocks."""
        self._checkpointer.checkpoint()

    def close(self) -> None:
        """Close the folder; a second call does nothing. Blocks.

        Where the disk fails, what was acknowledged is in the journal, for the next opening; the
        folder is given free, and OSError or CatalogError raised.
        """
        with self._open_lock:
            if self._closed:
                return
            self._closed = True
        with ExitStack() as at_the_end:
            at_the_end.callback(self._files.close, self._lock_fd)
            at_the_end.callback(self.catalog.close)
            at_the_end.callback(self._fds.close)
            at_the_end.callback(self._journal.close)
            at_the_end.callback(self.committer.stop)
            for ledger in self._ledgers.values():
                ledger.close()
            self.committer.flush()
            self._checkpointer.stop()
            self.committer.stop()
            self._journal.close()
            if self._checkpointer.complete:
                remove_journal(self._files, self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ids(segments: Sequence[Segment]) -> list[SegmentId]:
    return [(s.ledger_id, s.header.segment_no) for s in segments]
