"""Checkpoints: sync what the journal holds into the segments, then free the journal.

A thread of its own makes one when the journal's file has grown to its size, when some time has
passed, and at closing. The order is what makes it safe at any crash: end the journal's file,
sync the segments written until then, sync their folder, list new segments in the catalog, and
only then free the file.

Where a segment cannot be synced its ledger is fenced and the journal's files are kept: they are
the only durable copy, and the next start writes them out again. The segment is never synced again
by this process: the kernel would say yes, whatever it has lost.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from ...commit.group import Owner
from ...commit.group_commit import GroupCommit
from ...errors import CatalogError
from ...options import StoreOptions
from ..catalog.catalog import Catalog, SegmentId
from ..io.fd_cache import FdCache
from ..io.files import Files
from ..io.folder import ledgers_folder
from ..opening.recovery import remove_segment_files
from ..segment.segment import Segment
from .batch_writer import BatchWriter, Written
from .journal import Journal

_log = logging.getLogger(__name__)
_POLL_MS = 200


class Checkpointer:
    """Runs checkpoints. ``segment_began``, ``segment_ended`` are called under the store's lock."""

    def __init__(
        self,
        files: Files,
        fds: FdCache,
        folder: Path,
        catalog: Catalog,
        journal: Journal,
        writer: BatchWriter,
        committer: GroupCommit,
        options: StoreOptions,
    ) -> None:
        self._files = files
        self._fds = fds
        self._folder = folder
        self._catalog = catalog
        self._journal = journal
        self._writer = writer
        self._committer = committer
        self._options = options
        self._began: list[Segment] = []
        self._ended: list[Segment] = []
        self._void: list[Segment] = []
        self._removed: set[SegmentId] = set()
        self._kept_up_to = 0
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulsemark-checkpoint", daemon=True)

    @property
    def complete(self) -> bool:
        """Whether everything the journal ever held is synced where it belongs."""
        return self._kept_up_to == 0

    def start(self) -> None:
        """Begin to make checkpoints by size and time."""
        self._thread.start()

    def segment_began(self, segment: Segment) -> None:
        """A new segment: to be listed in the catalog."""
        self._began.append(segment)

    def segment_ended(self, segment: Segment) -> None:
        """No entry follows in this segment: its index is to be sealed."""
        self._ended.append(segment)

    def segment_void(self, segment: Segment) -> None:
        """Nothing of this segment ever counted: its file is to go, before the journal forgets it.

        Behind a journal that has, what its failed write left would look like a ledger's end.
        """
        segment.removed = True
        self._began.remove(segment)
        self._void.append(segment)

    def segments_removed(self, segments: set[SegmentId]) -> None:
        """Files were removed; the catalog may forget them once the journal has."""
        with self._committer.lock:
            self._removed |= segments
            self._began = [s for s in self._began if _id(s) not in segments]
            self._ended = [s for s in self._ended if _id(s) not in segments]

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
            _log.exception("checkpoint failed; the journal is kept")
        except Exception as error:  # noqa: BLE001 - without checkpoints the journal has no bound
            if not self._committer.state.is_over:
                _log.critical("the store stops", exc_info=error)
                self._committer.state.fail(error)
                self._committer.wake_all()

    def stop(self) -> None:
        """End the thread and make a last checkpoint, if the committer still runs."""
        self.end()
        self.checkpoint()

    def end(self) -> None:
        """End the thread; the journal is left as it is."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def checkpoint(self) -> None:
        """Make one now. Blocks; raises OSError or CatalogError when the journal must be kept."""
        with self._one_at_a_time:
            with self._committer.lock:
                # Taken before the journal's file ends: no later file speaks of these.
                removed = set(self._removed)
            with self._committer.all_durable():
                last_id, written = self._writer.rotate()
            kept_before, self._kept_up_to = self._kept_up_to, last_id  # until it is all synced
            began, ended, void = self._new_segments()
            if self._sync(written) and self._remove(void):
                self._kept_up_to = kept_before
            try:
                if began:
                    self._write_second_headers(began, set(ended))
                    self._files.sync_folder(ledgers_folder(self._folder))
                    self._catalog.add_segments(
                        (s.header.topic_id, s.ledger_id, s.header.segment_no) for s in began
                    )
            except BaseException:
                with self._committer.lock:
                    self._began += began
                    self._ended += ended
                raise
            self._seal(ended)
            try:
                self._journal.free(self._kept_up_to + 1, last_id)
            except OSError:
                self._kept_up_to = last_id
                raise
            if removed and self.complete:
                self._catalog.forget_removed(removed)
                with self._committer.lock:
                    self._removed -= removed

    def _new_segments(self) -> tuple[list[Segment], list[Segment], list[Segment]]:
        """What is to be listed, sealed, removed; what is still pending has to wait."""
        with self._committer.lock:
            began = [s for s in self._began if s.entry_count]
            self._began = [s for s in self._began if not s.entry_count]
            ended = [s for s in self._ended if s.entry_count >= s.assigned_count]
            self._ended = [s for s in self._ended if s.entry_count < s.assigned_count]
            void, self._void = self._void, []
        return began, ended, void

    def _sync(self, written: list[Written]) -> bool:
        """Make what the journal holds durable in its own place; whether that worked."""
        failed: dict[int, Owner] = {}
        synced = True
        for each in written:
            segment = each.segment
            try:
                if segment.sync_failed:
                    synced = False
                elif not segment.removed:
                    self._files.fdatasync(each.fd)
            except OSError as error:
                synced = False
                _log.error("%s: sync failed, ledger fenced: %s", segment.path, error)
                segment.sync_failed = True
                self._fds.forget(segment.path)
                failed[id(each.owner)] = each.owner
            finally:
                self._fds.release(each.fd)
        if failed:
            self._committer.fence(list(failed.values()), OSError("a file could not be synced"))
        return synced

    def _remove(self, void: list[Segment]) -> bool:
        """Remove the files of void segments, durably; whether that worked."""
        try:
            remove_segment_files(self._files, self._fds, self._folder, map(_id, void))
        except OSError as error:
            _log.error("void segments stay, and so does the journal: %s", error)
            return False
        return True

    def _write_second_headers(self, began: list[Segment], ended: set[Segment]) -> None:
        """Put headers of new segments into their index files, before the journal forgets them.

        Sealing does it for those that have ended.
        """
        for segment in began:
            try:
                if not (segment.removed or segment in ended):
                    segment.index.begin()
            except OSError as error:
                _log.warning("%s: its header has no second copy yet: %s", segment.path, error)

    def _seal(self, segments: list[Segment]) -> None:
        for segment in segments:
            index = segment.index
            to_do = not (index.sealed or index.sync_failed)
            if to_do and segment.entry_count and not segment.removed:
                try:
                    index.seal(segment.append_time_max_ms)
                except OSError as error:
                    # Only a cache: made again when the segment is next opened.
                    _log.warning("%s: index not sealed: %s", segment.path, error)


def _id(segment: Segment) -> SegmentId:
    return segment.ledger_id, segment.header.segment_no
