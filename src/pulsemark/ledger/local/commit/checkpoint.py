"""Checkpoints: sync what the journal holds into the segments, then free the journal.

A thread of its own makes a checkpoint when the journal's file has reached its size, when some time
has passed, and at closing. The order of the steps makes it safe to crash between any two: end the
journal's file, sync the segments written until then, sync their folder, list new segments in the
catalog, and only then free the file.

If a segment cannot be synced, its ledger is fenced and the journal's files are kept: they are the
only durable copy, and the next start writes them to the segments again. This process never syncs
that segment again: the kernel would report success, whatever data it has lost.
"""

from __future__ import annotations

import logging
import threading

from ...commit.batch import Owner
from ...commit.group_commit import GroupCommit
from ...errors import CatalogError
from ...store_core import StoreOptions
from ..catalog import Catalog
from ..io.fd_cache import for_each
from ..segment.filer import Due, Filer
from ..segment.segment import SegmentState
from .batch_writer import BatchWriter, Written
from .journal import Journal

_log = logging.getLogger(__name__)
_POLL_MS = 200


class Checkpointer:
    """Makes checkpoints; the `Filer` knows what is due."""

    def __init__(
        self,
        filer: Filer,
        catalog: Catalog,
        journal: Journal,
        writer: BatchWriter,
        committer: GroupCommit,
        options: StoreOptions,
        *,
        threaded: bool,
    ) -> None:
        self._filer = filer
        self._catalog = catalog
        self._journal = journal
        self._writer = writer
        self._committer = committer
        self._options = options
        self._threaded = threaded
        self._kept_up_to = 0
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulsemark-checkpoint", daemon=True)

    @property
    def complete(self) -> bool:
        """Whether everything that was ever in the journal is synced in the segments."""
        return self._kept_up_to == 0

    def start(self) -> None:
        """Start making checkpoints by size and time."""
        self._thread.start()

    def _run(self) -> None:
        waited_ms = 0
        while not self._stop.wait(_POLL_MS / 1000):
            waited_ms += _POLL_MS
            size = self._journal.size_bytes
            due = size >= self._options.journal_size_bytes or (
                size and waited_ms >= self._options.checkpoint_interval_ms
            )
            if due:
                self._checkpoint_or_fail()
                waited_ms = 0

    def _checkpoint_or_fail(self) -> None:
        try:
            self.checkpoint()
        except (OSError, CatalogError):
            _log.exception("checkpoint failed; the journal is kept until one succeeds")
        except Exception as error:  # noqa: BLE001 - without checkpoints the journal has no limit
            if not self._committer.state.is_over:
                _log.critical("checkpoint failed; the store stops", exc_info=error)
                self._committer.state.fail(error)
                self._committer.wake_all()

    def stop(self) -> None:
        """End the thread and make a last checkpoint, unless the store has failed."""
        self.end()
        if not self._committer.state.has_failed:
            self.checkpoint()

    def end(self) -> None:
        """End the thread, and leave the journal as it is."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def checkpoint(self) -> None:
        """Make one now. Blocks; raises OSError or CatalogError if the journal must be kept, and
        StoreFailedError.
        """
        filer = self._filer
        with self._one_at_a_time:
            # Taken before the journal's file ends: no later file has blocks of these.
            removed = filer.removed()
            with self._committer.all_durable():
                last_id, written = self._writer.rotate()
            kept_before, self._kept_up_to = self._kept_up_to, last_id  # until everything is synced
            with self._committer.lock:
                due = filer.take_due()
            if self._sync(written) and filer.remove_void(due):
                self._kept_up_to = kept_before
            try:
                self._list(due)
            except BaseException:
                filer.put_back(due)
                raise
            filer.seal(due.ended, threaded=self._threaded)
            try:
                self._journal.free(self._kept_up_to + 1, last_id)
            except OSError:
                self._kept_up_to = last_id
                raise
            if removed and self.complete:
                self._catalog.forget_removed(removed)
                filer.removal_forgotten(removed)

    def _list(self, due: Due) -> None:
        """List new segments in the catalog, once their names and headers are durable."""
        if due.began:
            self._filer.write_second_headers(due, threaded=self._threaded)
            self._filer.sync_folder()
            self._catalog.add_segments((s.header.topic_id, *s.segment_id) for s in due.began)

    def _sync(self, written: list[Written]) -> bool:
        """Sync the written segments. Return whether all are durable."""
        failed_before = {id(w) for w in written if w.segment.state is SegmentState.FAILED}
        failed_now: dict[int, Owner] = {}

        def sync(each: Written) -> None:
            if not self._filer.sync(each.segment, each.fd) and id(each) not in failed_before:
                failed_now[id(each.owner)] = each.owner
            self._filer.fds.release(each.fd)

        for_each(sync, written, threaded=self._threaded)
        if failed_now:
            self._committer.fence(list(failed_now.values()), OSError("a file could not be synced"))
        return not (failed_before or failed_now)
