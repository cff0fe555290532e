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
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from ...compaction.view_format import (
    VIEW_PROPERTY_KIND,
    VIEW_TOPIC_PREFIX,
    BadViewError,
    unpack_property,
)
from ...metadata import Clock, SystemClock
from ..aside import Aside, made_aside
from ..cursors.cursor_store import CURSOR_TOPIC, CursorStore
from ..errors import (
    LedgerError,
    ReservedTopicError,
    StoreClosedError,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from ..managed_ledger import ManagedLedger
from ..options import StoreOptions
from ..tail_cache import TailCache
from .catalog.catalog import Catalog
from .commit.batch_writer import BatchWriter
from .commit.checkpoint import Checkpointer
from .commit.delivery import Delivery, Notify
from .commit.group_commit import GroupCommit
from .commit.journal import Journal
from .io.fd_cache import FdCache
from .io.files import Files, OsFiles
from .io.folder import (
    CATALOG_NAME,
    lock_folder,
    prepare_folder,
    probe_folder,
)
from .io.reserve import Reserve
from .opening.recovery import recover, remove_journal
from .opening.store_state import ForeignCatalog, StoreState
from .segment.chunk_cache import ChunkCache
from .segment.segment import Segment
from .segment.segment_format import MAX_TOPIC_NAME_BYTES, SegmentHeader
from .segment.segment_removal import SegmentRemoval, segment_ids
from .segment.topic_segments import TopicSegments, make_segment

_log = logging.getLogger(__name__)
_LEDGER_IDS_AT_ONCE = 64
_DELETING = "deleting"
"""Kind of the catalog's property that a topic, by its id, is being deleted."""

SEEN_PROPERTY_KIND = "retention-seen"
"""Kind of the catalog's property, by topic id, that `retention` keeps."""

T = TypeVar("T")


class LocalStore:
    """Ledgers in local files. Make one with ``LocalStore.open``.

    Its methods, and those of its ledgers and cursors, raise StoreClosedError once it is closed,
    StoreFailedError once something failed that it cannot repair, and ForkedStoreError in a child
    of the process that opened it. In a child ``close`` does nothing, and no file is touched.
    """

    def __init__(
        self,
        folder: Path,
        files: Files,
        clock: Clock,
        options: StoreOptions,
        notify: Notify | None,
        *,
        lock_fd: int,
        threaded: bool,
        reserve: Reserve,
    ) -> None:
        self.folder = folder
        self._reserve = reserve
        self.clock = clock
        self.options = options
        self._files = files
        self._lock_fd = lock_fd
        self._fds = FdCache(files, limit=options.fd_limit)
        self._chunks = ChunkCache()
        self.tail_cache = TailCache(options.tail_cache_bytes, clock)
        """The entries committed last, for those who read a topic at its end."""
        self.state = StoreState(folder)
        self._open_lock = threading.RLock()
        self._close_lock = threading.Lock()
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
            self._segments = TopicSegments(files, self._fds, folder, self.catalog, self._chunks)
            interval_ms = options.sync_interval_ms
            journal = Journal(files, folder, last_id, sync_interval_ms=interval_ms)
            self._topic_ids = self.catalog.topics()
            self._start(journal, notify, threaded=threaded)
            on_failure.pop_all()
        self.state.on_fork = self._forked

    def _start(self, journal: Journal, notify: Notify | None, *, threaded: bool) -> None:
        options = self.options
        self._delivery = Delivery(notify, threaded=threaded)
        self.committer = GroupCommit(
            BatchWriter(self._files, self._fds, journal),
            self.state,
            self._delivery,
            max_pending_bytes=options.max_pending_bytes,
            interval_ms=options.sync_interval_ms,
            threaded=threaded,
        )
        self.aside = Aside(self.state, self.committer.lock, threaded=threaded)
        """Runs what must not be left half done."""
        self._journal = journal
        self._checkpointer = Checkpointer(
            self._files, self._fds, self.folder, self.catalog, journal, self.committer, options
        )
        self.removal = SegmentRemoval(
            self._files, self._fds, self.folder, self.catalog, self._checkpointer, self._reserve
        )
        """Removes segments of topics, also on a full disk."""
        try:
            of_cursors = self._open_ledger(CURSOR_TOPIC, create=True)
            self.cursors = CursorStore(of_cursors)
            of_cursors.recent.reader_left()  # it was read to its end, and will not be again
            if threaded:
                self._checkpointer.start()
            self._end_deletions()
        except BaseException:
            self._checkpointer.end()
            self._stop_threads()
            raise

    def _stop_threads(self) -> None:
        self.committer.stop()
        self._delivery.stop()
        self.aside.stop()

    def _forked(self) -> None:
        """In a child process: it has no part in the folder, nor in its lock."""
        self._parents_catalog = self.catalog  # SQLite must not close it here
        self.catalog = ForeignCatalog(self.state)  # type: ignore[assignment]
        with suppress(Exception):
            self._files.close(self._lock_fd)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        notify: Notify | None = None,
        files: Files | None = None,
        threaded: bool = True,
    ) -> LocalStore:
        """Open a data folder; a missing or empty one becomes one. Blocks.

        ``notify`` is how commit callbacks are run (``loop.call_soon_threadsafe``): it hands a call
        over and does not run it. Without one they run in a thread of the store that does nothing
        else, and may call every method. ``threaded`` False is for simulations: the store has no
        threads, commits are made by those who wait for them, and checkpoints only on demand.

        Raises FolderLockedError, ForeignFolderError, UnsupportedVersionError, CorruptFileError
        (the catalog), CatalogError, OSError. An exception that a signal handler raises ends the
        waiting: the store is then closed again as soon as it is open.
        """
        opening = partial(
            cls._open,
            Path(folder),
            files or OsFiles(),
            clock or SystemClock(),
            options or StoreOptions(),
            notify,
            threaded=threaded,
        )
        return made_aside(opening, cls.close) if threaded else opening()

    @classmethod
    def _open(
        cls,
        folder: Path,
        files: Files,
        clock: Clock,
        options: StoreOptions,
        notify: Notify | None,
        *,
        threaded: bool,
    ) -> LocalStore:
        prepare_folder(files, folder)
        lock_fd = lock_folder(files, folder)
        try:
            reserve = Reserve(files, folder)
            store = reserve.with_space_for(
                lambda: cls(
                    folder,
                    files,
                    clock,
                    options,
                    notify,
                    lock_fd=lock_fd,
                    threaded=threaded,
                    reserve=reserve,
                )
            )
        except BaseException:
            files.close(lock_fd)
            raise
        reserve.try_to_fill_up()
        return store

    # Topics

    def topic_names(self) -> list[str]:
        """Full names of all topics, sorted; without those that the store has for itself.

        Raises StoreClosedError.
        """
        self.state.check_process()
        if self._closed:
            raise StoreClosedError(str(self.folder))
        return sorted(name for name in self._topic_ids if not _is_reserved(name))

    def open_topic(self, name: str, *, create: bool = True) -> ManagedLedger:
        """The managed ledger of a topic, the same object each time. Blocks.

        Raises TopicNotFoundError when there is none and ``create`` is false, ReservedTopicError
        for a name that the store keeps for itself, ValueError for a new one that has no name or
        one longer than a segment's header can hold, StoreClosedError, CatalogError, OSError.
        """
        if _is_reserved(name):
            raise ReservedTopicError(name)
        return self.open_view(name, create=create)

    def open_view(self, name: str, *, create: bool = True) -> ManagedLedger:
        """As `open_topic`, for a compacted view's own topic (see `current_view`)."""
        self.state.check()
        return self.aside.run(partial(self._open_topic, name, create=create))

    def _open_topic(self, name: str, *, create: bool) -> ManagedLedger:
        with self._open_lock:
            if self._closed:
                raise StoreClosedError(str(self.folder))
            ledger = self._ledgers.get(name)
            if ledger is None:
                ledger = self._open_ledger(name, create=create)
            return ledger

    def _open_ledger(self, name: str, *, create: bool) -> ManagedLedger:
        self.state.check()
        topic_id = self._topic_ids.get(name)
        if topic_id is None:
            if not create:
                raise TopicNotFoundError(name)
            if not 1 <= len(name.encode()) <= MAX_TOPIC_NAME_BYTES:
                raise ValueError(
                    f"a topic's name has 1 to {MAX_TOPIC_NAME_BYTES} bytes, not "
                    f"{len(name.encode())}: {name[:40]!r}"
                )
            topic_id = self.catalog.create_topic(name)
            self._topic_ids[name] = topic_id
        segments = self._load_segments(name, topic_id)
        ledger_id = self._reserve.with_space_for(self.next_ledger_id)
        floor = self._index_floor(name, topic_id, segments)
        ledger = ManagedLedger(self, name, topic_id, segments, ledger_id, index_floor=floor)
        if name != CURSOR_TOPIC:
            self.cursors.attach(ledger)
        self._ledgers[name] = ledger
        return ledger

    def _index_floor(self, name: str, topic_id: int, segments: list[Segment]) -> int:
        """Indexes below this were given, though the file of the newest ledger is lost.

        The compacted view remembers how far the log went. Where the log ends before that, its
        end was lost: a tail that is cut off leaves a newer ledger in its place.
        """
        value = self.catalog.get(VIEW_PROPERTY_KIND, str(topic_id))
        if value is None:
            return 0
        try:
            _, summary = unpack_property(value, name)
        except (BadViewError, UnsupportedVersionError):
            return 0  # whoever asks for the view hears of it
        newest = segments[-1].ledger_id if segments else -1
        return summary.next_index if newest <= summary.horizon.ledger_id else 0

    def _load_segments(self, name: str, topic_id: int) -> list[Segment]:
        counting, dropped = self._segments.of_topic(name, topic_id)
        if dropped:
            self.removal.left_over(name, topic_id, dropped)
        return counting

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its entries, cursors and compacted views. Blocks.

        Where it raises, the topic is as it was. Once the catalog has it no more it is deleted,
        also after a crash: what cannot be removed then (files, cursors, views) goes when the
        folder is next opened.

        Raises TopicNotFoundError, ReservedTopicError, StoreClosedError, CatalogError, OSError.
        """
        if _is_reserved(name):
            raise ReservedTopicError(name)
        self.delete_view(name)

    def delete_view(self, name: str) -> None:
        """As `delete_topic`, for a compacted view's own topic."""
        self.state.check()
        self.aside.run(partial(self._delete_topic, name))

    def _delete_topic(self, name: str) -> None:
        with self._open_lock:
            ledger = self._open_topic(name, create=False)
            with ledger.refusing_appends():
                self.committer.flush()
                unlisted = segment_ids(ledger.all_segments())
                segments = self._reserve.with_space_for(
                    lambda: self.catalog.delete_topic(
                        ledger.topic_id, unlisted=unlisted, note=(_DELETING, str(ledger.topic_id))
                    )
                )
                ledger.deleted()
            del self._ledgers[name], self._topic_ids[name]
            try:
                self.removal.remove_files(segments)
                self._delete_belongings(ledger.topic_id)
            except (OSError, LedgerError) as error:
                _log.warning("%s: rests stay until the next opening: %s", name, error)
            self.removal.take_space_back()

    def _delete_belongings(self, topic_id: int) -> None:
        """Remove the cursors and compacted views of a topic that is no more."""
        forgotten = self.cursors.forget_topic(topic_id)
        prefix = f"{VIEW_TOPIC_PREFIX}{topic_id}/"
        for name in [name for name in self._topic_ids if name.startswith(prefix)]:
            self._delete_topic(name)
        for kind in (VIEW_PROPERTY_KIND, SEEN_PROPERTY_KIND):
            self.catalog.delete(kind, str(topic_id))
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

    def make_segment(self, header: SegmentHeader) -> Segment:
        """A segment to append to; its file comes with the first commit."""
        segment = make_segment(self._files, self._fds, self.folder, header, self._chunks)
        segment.index.end_offset = header.size_bytes
        return segment

    def segment_began(self, segment: Segment) -> None:
        """A segment is to be appended to."""
        self._checkpointer.segment_began(segment)

    def segment_ended(self, segment: Segment) -> None:
        """No entry follows in this segment."""
        self._checkpointer.segment_ended(segment)

    def segment_void(self, segment: Segment) -> None:
        """Nothing of this segment, which began here, became durable."""
        self._checkpointer.segment_void(segment)

    def drop_read_caches(self) -> None:
        """Forget what was kept of index files: for measuring what a first search costs."""
        self._chunks.clear()

    # Ending

    def probe(self) -> None:
        """See whether the disk takes writes, apart from any ledger, and has room for the reserve.

        Blocks. Raises OSError.
        """
        self.state.check()
        self._reserve.fill_up()
        probe_folder(self._files, self.folder)

    def checkpoint(self) -> None:
        """Sync all segments and free the journal now. Blocks."""
        self.state.check()
        self.aside.run(self._checkpointer.checkpoint)

    def close(self) -> None:
        """Close the folder; a second call waits for the first and does nothing. Blocks.

        Where the disk fails, what was acknowledged is in the journal, for the next opening; the
        folder is given free, and OSError or CatalogError raised. An exception that a signal handler
        raises ends the waiting: the folder is closed all the same, and another call waits for that.
        """
        if self.state.is_foreign:
            return
        self.committer.refuse_committer("close")
        if self.aside.run(self._close):
            self.aside.join()

    def _close(self) -> bool:
        """Whether the store is closed now. A callback does not wait for another thread that is
        closing: that thread waits for the callbacks.
        """
        if not self._close_lock.acquire(blocking=not self._delivery.is_own_thread):
            return False
        try:
            with self._open_lock:
                is_first, self._closed = not self._closed, True
            if is_first:
                self._end()
        finally:
            self._close_lock.release()
        return True

    def _end(self) -> None:
        with ExitStack() as at_the_end:
            at_the_end.callback(self.state.close)
            at_the_end.callback(self._give_lock_back)
            at_the_end.callback(self.catalog.close)
            at_the_end.callback(self._fds.close)
            at_the_end.callback(self._journal.close)
            at_the_end.callback(self._stop_threads)
            at_the_end.callback(self.tail_cache.close)
            for ledger in self._ledgers.values():
                ledger.close()
            self.committer.flush()
            self._reserve.with_space_for(self._checkpointer.stop)
            self.state.close()
            self._stop_threads()
            self._journal.close()
            if self._checkpointer.complete and not self.state.has_failed:
                remove_journal(self._files, self.folder)
            self._reserve.try_to_fill_up()

    def _give_lock_back(self) -> None:
        # From here on the descriptor's number may be another file's: a child must not close it.
        self.state.on_fork = None
        self._files.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_reserved(name: str) -> bool:
    return name == CURSOR_TOPIC or name.startswith(VIEW_TOPIC_PREFIX)
