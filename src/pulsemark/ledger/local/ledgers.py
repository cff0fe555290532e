"""The engine on local files: the parts of a data folder, joined, as a `LedgerStore`.

Making one opens the catalog, writes the journal's blocks into the segments and syncs them,
completes the catalog if the folder has more than it lists, and frees the journal. The caller has
taken the folder's lock before; ``close`` gives it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from ..commit.group_commit import GroupCommit
from ..options import StoreOptions
from ..run import Run, RunHeader
from ..store_state import ForeignCatalog, StoreState
from .catalog.catalog import Catalog
from .commit.batch_writer import BatchWriter
from .commit.checkpoint import Checkpointer
from .commit.journal import Journal
from .io.fd_cache import FdCache
from .io.files import Files
from .io.folder import CATALOG_NAME, probe_folder
from .io.reserve import Reserve
from .opening.recovery import recover, remove_journal
from .removal import SegmentRemoval
from .segment.filer import Filer
from .segment.segment import Segment
from .segment.segment_format import SegmentHeader, new_secret

T = TypeVar("T")


class LocalLedgers:
    """Ledgers in one data folder, which this process has locked."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        state: StoreState,
        options: StoreOptions,
        reserve: Reserve,
        *,
        lock_fd: int,
        threaded: bool,
    ) -> None:
        """Raises UnsupportedVersionError, CorruptFileError, CatalogError, OSError."""
        self._folder = folder
        self._files = files
        self._state = state
        self._options = options
        self._reserve = reserve
        self._lock_fd = lock_fd
        self._threaded = threaded
        self._is_finished = False
        self._checkpointer: Checkpointer | None = None
        self._fds = FdCache(files, limit=options.fd_limit)
        with ExitStack() as on_failure:
            on_failure.callback(self._fds.close)
            self._catalog = Catalog(folder / CATALOG_NAME)
            on_failure.callback(self._catalog.close)
            files.sync_folder(folder)
            self.filer = Filer(files, self._fds, folder)
            """The one owner of the folder's segments."""
            last_id = recover(self.filer, self._catalog)
            interval_ms = options.sync_interval_ms
            self._journal = Journal(files, folder, last_id, sync_interval_ms=interval_ms)
            self._writer = BatchWriter(self.filer, self._journal)
            on_failure.pop_all()
        state.on_fork = self._forked

    def start(self, committer: GroupCommit) -> None:
        """Begin to make checkpoints."""
        self._checkpointer = Checkpointer(
            self.filer,
            self._catalog,
            self._journal,
            self._writer,
            committer,
            self._options,
            threaded=self._threaded,
        )
        self._removal = SegmentRemoval(self.filer, self._catalog, self._checkpointer, self._reserve)
        if self._threaded:
            self._checkpointer.start()

    def _forked(self) -> None:
        """In a child process: give up the folder and its lock, which are the parent's."""
        self._parents_catalog = self._catalog  # SQLite must not close it here
        self._catalog = ForeignCatalog(self._state)  # type: ignore[assignment]
        with suppress(Exception):
            self._files.close(self._lock_fd)

    @property
    def _checkpoints(self) -> Checkpointer:
        assert self._checkpointer is not None, "the engine was not started"
        return self._checkpointer

    @property
    def metadata(self) -> Catalog:
        """The catalog."""
        return self._catalog

    @property
    def writer(self) -> BatchWriter:
        """Writes journal and segments."""
        return self._writer

    # Ledgers

    def create(self, header: RunHeader) -> Segment:
        """A segment to append to; its file comes with the first commit."""
        segment_header = SegmentHeader(
            topic=header.topic,
            topic_id=header.topic_id,
            ledger_id=header.ledger_id,
            segment_no=header.segment_no,
            first_entry_id=header.first_entry_id,
            first_index=header.first_index,
            entry_time_floor_ms=header.entry_time_floor_ms,
            stamp_floor_ms=header.stamp_floor_ms,
            previous_ledger_id=header.previous_ledger_id,
            previous_entry_count=header.previous_entry_count,
            epoch=header.epoch,
            secret=new_secret(),
        )
        return self.filer.new(segment_header)

    def open(self, name: str, topic_id: int) -> list[Run]:
        """The segments that count; files of a tail that was cut off are removed."""
        listed = self._catalog.segments(topic_id)
        counting, dropped = self.filer.open_topic(name, topic_id, listed)
        if dropped:
            self._removal.left_over(name, topic_id, dropped)
        return list(counting)

    def began(self, segment: Run) -> None:
        """Have the next checkpoint list the segment."""
        self.filer.begin(cast("Segment", segment))

    def sealed(self, segment: Run) -> None:
        """Have the next checkpoint seal the segment's index."""
        self.filer.end(cast("Segment", segment))

    def void(self, segment: Run) -> None:
        """Have the next checkpoint remove the file that a failed write may have left."""
        self.filer.discard(cast("Segment", segment))

    # Removing

    def remove(self, topic_id: int, segments: Sequence[Run]) -> Callable[[], None]:
        """Remove them from the catalog now; the returned function removes the files."""
        mine = cast("Sequence[Segment]", segments)
        self._removal.unlist(topic_id, mine)
        return partial(self._removal.remove, mine)

    def remove_topic(
        self, topic_id: int, segments: Sequence[Run], note: tuple[str, str]
    ) -> Callable[[], None]:
        """Remove it from the catalog now; the returned function removes the files."""
        unlisted = [s.segment_id for s in cast("Sequence[Segment]", segments)]
        removed = self._reserve.with_space_for(
            lambda: self._catalog.delete_topic(topic_id, unlisted=unlisted, note=note)
        )
        return partial(self._removal.remove_files_of_topic, removed)

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space; on a full disk it may use the reserve (see `reserve`)."""
        return self._removal.freeing(work)

    def drop_read_caches(self) -> None:
        """Drop the cached parts of index files."""
        self.filer.drop_read_caches()

    # The whole

    def probe(self) -> None:
        """Check whether the disk takes writes, and has room for the reserve. Raises OSError."""
        self._reserve.fill_up()
        probe_folder(self._files, self._folder)

    def checkpoint(self) -> None:
        """Sync all segments and free the journal."""
        self._checkpoints.checkpoint()

    def finish(self) -> None:
        """Make a last checkpoint."""
        self._reserve.with_space_for(self._checkpoints.stop)
        self._is_finished = True

    def abandon(self) -> None:
        """Opening failed: close all files. The lock stays with the caller."""
        self._state.on_fork = None
        with ExitStack() as at_the_end:
            at_the_end.callback(self._catalog.close)
            at_the_end.callback(self._fds.close)
            at_the_end.callback(self._journal.close)
            self._end_checkpoints()

    def _end_checkpoints(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.end()

    def close(self) -> None:
        """Close all files and give the folder's lock back. If everything is synced, remove the
        journal, so that the next opening needs no recovery.
        """
        with ExitStack() as at_the_end:
            at_the_end.callback(self._give_lock_back)
            at_the_end.callback(self._catalog.close)
            at_the_end.callback(self._fds.close)
            at_the_end.callback(self._journal.close)
            self._end_checkpoints()
            if self._is_finished:
                self._journal.close()
                if self._checkpoints.complete and not self._state.has_failed:
                    remove_journal(self._files, self._folder)
                self._reserve.try_to_fill_up()

    def _give_lock_back(self) -> None:
        # From here on the descriptor's number may be another file's: a child must not close it.
        self._state.on_fork = None
        self._files.close(self._lock_fd)
