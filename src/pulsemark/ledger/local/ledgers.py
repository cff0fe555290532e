"""The engine on local files: the parts of a data folder, joined, as a `LedgerStore`.

Making one opens the catalog, writes the journal's blocks into the segments and syncs them,
completes the catalog if the folder has more than it lists, and frees the journal. The caller has
taken the folder's lock before; ``close`` gives it back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import TypeVar, cast

from ..commit.group_commit import GroupCommit
from ..cursors.cursor_store import CURSOR_TOPIC
from ..errors import CatalogError
from ..run import Run, RunHeader
from ..store import LedgerStore
from ..store_core import StoreSetup
from ..store_state import ForeignCatalog, StoreState
from .catalog import Catalog
from .commit.batch_writer import BatchWriter
from .commit.checkpoint import Checkpointer
from .commit.journal import Journal
from .io.fd_cache import FdCache
from .io.files import Files
from .io.folder import CATALOG_NAME, Reserve, SegmentId, probe_folder
from .recovery import recover, remove_journal
from .segment.filer import Filer
from .segment.segment import Segment
from .segment.segment_format import SegmentHeader, new_secret

_log = logging.getLogger(__name__)
T = TypeVar("T")


class LocalLedgers(LedgerStore):
    """Ledgers in one data folder, which this process has locked."""

    metadata: Catalog
    writer: BatchWriter

    def __init__(
        self, files: Files, state: StoreState, setup: StoreSetup, reserve: Reserve, lock: ExitStack
    ) -> None:
        """Raises UnsupportedVersionError, CorruptFileError, CatalogError, OSError."""
        self._folder = folder = state.folder
        self._files = files
        self._state = state
        self._options = options = setup.options
        self._threaded = setup.threaded
        self._reserve = reserve
        self._lock = lock
        self._is_finished = False
        self._checkpointer: Checkpointer | None = None
        self._fds = FdCache(files, limit=options.fd_limit)
        with ExitStack() as on_failure:
            on_failure.callback(self._fds.close)
            self.metadata = Catalog(folder / CATALOG_NAME, files)
            on_failure.callback(self.metadata.close)
            files.sync_folder(folder)
            self.filer = Filer(files, self._fds, folder)
            """The one owner of the folder's segments."""
            last_id = recover(self.filer, self.metadata)
            self._journal = Journal(files, folder, last_id, options.sync_interval_ms)
            self.writer = BatchWriter(self.filer, self._journal, reserve)
            on_failure.pop_all()
        state.on_fork = self._forked

    def start(self, committer: GroupCommit) -> None:
        """Begin to make checkpoints."""

        def stop_store(error: CatalogError) -> None:
            _log.critical("the store stops: %s", error)
            self._state.fail(error)
            committer.wake_all()

        self.metadata.on_doubt = stop_store
        self._checkpointer = Checkpointer(
            self.filer,
            self.metadata,
            self._journal,
            self.writer,
            committer,
            self._options,
            threaded=self._threaded,
        )
        if self._threaded:
            self._checkpointer.start()

    def _forked(self) -> None:
        """In a child process: give up the folder and its lock, which are the parent's."""
        self._parents_catalog = self.metadata  # SQLite must not close it here
        self.metadata = ForeignCatalog(self._state)  # type: ignore[assignment]
        with suppress(Exception):
            self._lock.close()

    @property
    def _checkpoints(self) -> Checkpointer:
        assert self._checkpointer is not None, "the engine was not started"
        return self._checkpointer

    # Ledgers

    def create(self, header: RunHeader) -> Segment:
        """A segment to append to; its file comes with the first commit."""
        return self.filer.new(SegmentHeader(**asdict(header), secret=new_secret()))

    def open(self, name: str, topic_id: int) -> list[Run]:
        """The segments that count; files of a tail that was cut off are removed."""
        listed = self.metadata.segments(topic_id)
        counting, dropped = self.filer.open_topic(name, topic_id, listed)
        if dropped:
            self._remove_cut_off(name, topic_id, [segment.segment_id for segment in dropped])
        return list(counting)

    def _remove_cut_off(self, name: str, topic_id: int, segments: Sequence[SegmentId]) -> None:
        """Remove segments of a tail that was cut off before a crash."""
        try:
            self.metadata.remove_segments(topic_id, segments)
            self._remove_files(segments, takes_space_back=False)
        except (OSError, CatalogError) as error:
            _log.warning("%s: files of cut-off segments %s stay: %s", name, segments, error)

    def began(self, run: Run) -> None:
        """Have the next checkpoint list the segment."""
        self.filer.begin(cast("Segment", run))

    def sealed(self, run: Run) -> None:
        """Have the next checkpoint seal the segment's index."""
        self.filer.end(cast("Segment", run))

    def void(self, run: Run) -> None:
        """Have the next checkpoint remove the file that a failed write may have left."""
        self.filer.discard(cast("Segment", run))

    # Removing: first from the catalog's lists, durably, then the files

    def remove(self, topic_id: int, runs: Sequence[Run]) -> Callable[[], None]:
        """Remove them from the catalog now; the returned function removes the files."""
        mine = cast("Sequence[Segment]", runs)
        ids = [segment.segment_id for segment in mine]
        self.freeing(lambda: self.metadata.remove_segments(topic_id, ids))
        self.filer.forget(mine)
        # Cursors' segments are removed in the committer's thread, which must not make a checkpoint.
        is_of_cursors = bool(mine) and mine[0].header.topic == CURSOR_TOPIC
        return partial(self._remove_files, ids, takes_space_back=bool(mine) and not is_of_cursors)

    def remove_topic(
        self, topic_id: int, runs: Sequence[Run], note: tuple[str, str]
    ) -> Callable[[], None]:
        """Remove it from the catalog now; the returned function removes the files."""
        unlisted = [s.segment_id for s in cast("Sequence[Segment]", runs)]
        removed = self._reserve.with_space_for(
            lambda: self.metadata.delete_topic(topic_id, unlisted=unlisted, note=note)
        )
        return partial(self._remove_files, removed, takes_space_back=True)

    def _remove_files(self, segments: Sequence[SegmentId], *, takes_space_back: bool) -> None:
        """Remove files that the catalog no longer lists. On OSError the next opening does it."""
        try:
            self.filer.remove_files(segments)
            self.filer.files_removed(segments)
        finally:
            if takes_space_back and not self._reserve.is_whole:
                self._take_space_back()

    def _take_space_back(self) -> None:
        """Fill the reserve up again: removing had to use it."""
        try:
            self.checkpoint()  # until then removed files are held open
        except (OSError, CatalogError) as error:
            _log.warning("%s: checkpoint after a removal failed: %s", self._folder, error)
        self._reserve.try_to_fill_up()

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space; on a full disk it may use the reserve (see `Reserve`)."""
        done = self._reserve.with_space_for(work)
        self._reserve.try_to_fill_up()
        return done

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
        self._close_files()

    def close(self) -> None:
        """Close all files and give the folder's lock back. If everything is synced, remove the
        journal, so that the next opening needs no recovery.
        """
        with ExitStack() as at_the_end:
            at_the_end.callback(self._give_lock_back)
            at_the_end.callback(self._close_files)
            if self._is_finished:
                self._journal.close()
                if self._checkpoints.complete and not self._state.has_failed:
                    remove_journal(self._files, self._folder)
                self._reserve.try_to_fill_up()

    def _close_files(self) -> None:
        with ExitStack() as at_the_end:
            at_the_end.callback(self.metadata.close)
            at_the_end.callback(self._fds.close)
            at_the_end.callback(self._journal.close)
            if self._checkpointer is not None:
                self._checkpointer.end()

    def _give_lock_back(self) -> None:
        # From here on the descriptors' numbers may be other files': a child must not close them.
        self._state.on_fork = None
        self._lock.close()
