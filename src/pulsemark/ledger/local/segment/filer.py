"""The one owner of a folder's segments: it creates, opens, ends, seals and removes them.

Everything that happens to a segment happens here, so that its state (`Life`) is changed in one
place and each change is checked. A topic that appends calls ``begin``, ``end`` and ``discard``; the
committer has files synced; the checkpointer asks what is due (``take_due``): the segments to list
in the catalog, the index files to seal, and the files that never counted.

Readers of the folder have a filer, too, which only opens segments.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from ....records import record
from ...errors import CorruptFileError
from ...run import Link, chain_of
from ..io.fd_cache import FdCache, for_each
from ..io.files import Files
from ..io.folder import SegmentId, index_path, ledgers_folder, segment_path
from .salvage import read_headers
from .segment import GONE, Life, Segment, SegmentState
from .segment_format import SegmentHeader, cut_path
from .time_index import CHUNKS_KEPT, ChunkCache, TimeIndex, index_lost_rows

_log = logging.getLogger(__name__)


@record
class Due:
    """The segments that a checkpoint has work for."""

    began: list[Segment] = field(default_factory=list)
    """Segments to list in the catalog."""
    ended: list[Segment] = field(default_factory=list)
    """Segments whose index files are to be sealed."""
    void: list[Segment] = field(default_factory=list)
    """Segments whose files must be removed before the journal frees the blocks that it has of them.
    After that, the rest of a failed write would look like a ledger's end."""


class Filer:
    """The segments of one folder. Safe between threads."""

    def __init__(self, files: Files, fds: FdCache, folder: Path) -> None:
        self.files = files
        self.fds = fds
        self.folder = folder
        self._chunks = ChunkCache(CHUNKS_KEPT)
        self._lock = threading.Lock()
        self._due = Due()
        self._removed: set[SegmentId] = set()

    def path(self, segment_id: SegmentId) -> Path:
        """A segment's file."""
        return segment_path(self.folder, *segment_id)

    def drop_read_caches(self) -> None:
        """Drop the cached parts of index files, to measure the cost of a first search."""
        self._chunks.clear()

    # Opening

    def open(self, header: SegmentHeader) -> Segment:
        """The segment of a header; its index is not loaded yet."""
        return self._make(header, SegmentState.DURABLE)

    def _make(self, header: SegmentHeader, state: SegmentState) -> Segment:
        path = self.path(header.segment_id)
        index = TimeIndex(self.files, self.fds, index_path(path), header, self._chunks)
        return Segment(self.files, self.fds, path, header, index, Life(path.name, state))

    def open_topic(
        self, name: str, topic_id: int, listed: Iterable[SegmentId]
    ) -> tuple[list[Segment], Sequence[Segment]]:
        """A topic's segments that count, ended, in order; and the segments of a cut-off tail.

        ``listed`` are those in the catalog. Raises OSError, UnsupportedVersionError.
        """
        headers, lost = read_headers(self.files, self.folder, listed)
        for segment_id, header in list(headers.items()):
            if (header.topic, header.topic_id) != (name, topic_id):
                other = f"its header is of {header.topic!r} with the id {header.topic_id}"
                lost[segment_id] = CorruptFileError(self.path(segment_id), other)
                del headers[segment_id]
        for segment_id, reason in lost.items():
            _log.error("%s: segment %s is lost: %s", name, self.path(segment_id).name, reason)
        lost_ledgers = {ledger_id for ledger_id, _ in lost}
        lost_ledgers -= {ledger_id for ledger_id, _ in headers}
        segments = [self.open(header) for header in headers.values()]
        counting = counting_segments(segments, lost=lost_ledgers)
        for segment in counting:
            segment.life.become(SegmentState.ENDED)
        self.seal(counting)
        if lost_ledgers or not counting:
            return counting, ()
        return counting, dropped_segments(segments, counting)

    # Appending

    def new(self, header: SegmentHeader) -> Segment:
        """A new segment, to be begun before appending. The first commit creates its file."""
        return self._make(header, SegmentState.NEW)

    def begin(self, segment: Segment) -> None:
        """Begin to append to a new segment; the next checkpoint lists it in the catalog."""
        segment.life.become(SegmentState.PENDING)
        with self._lock:
            self._due.began.append(segment)

    def end(self, segment: Segment) -> None:
        """End a segment; one that was sealed and has lost its end is sealed again."""
        if segment.life.become(SegmentState.ENDED, only_if=_UNENDED):
            with self._lock:
                self._due.ended.append(segment)

    def discard(self, segment: Segment) -> None:
        """Mark a segment that has begun as void: none of its entries count."""
        segment.life.become(SegmentState.VOID)
        with self._lock:
            self._due.void.append(segment)

    # Checkpoints

    def sync(self, segment: Segment, fd: int) -> bool:
        """Sync a segment's file, once: after a failure the kernel would report success later."""
        if segment.removed:
            return True
        if segment.state is SegmentState.FAILED:
            return False
        try:
            self.files.fdatasync(fd)
        except OSError as error:
            _log.error("%s: its sync failed, so its ledger is fenced: %s", segment.path, error)
            segment.life.become(SegmentState.FAILED)
            self.fds.forget(segment.path)
            return False
        return True

    def take_due(self) -> Due:
        """Take what is due, under the appends' lock; segments with pending entries have to wait."""
        with self._lock:
            began = [s for s in self._due.began if s.state not in GONE]
            ended = [s for s in self._due.ended if s.state is SegmentState.ENDED]
            later = Due(
                began=[s for s in began if not s.entry_count],
                ended=[s for s in ended if s.entry_count < s.assigned_count],
            )
            due = Due(
                began=[s for s in began if s.entry_count],
                ended=[s for s in ended if s.entry_count >= s.assigned_count],
                void=self._due.void,
            )
            self._due = later
        return due

    def put_back(self, due: Due) -> None:
        """Put back segments that could not be listed: the next checkpoint tries again."""
        with self._lock:
            self._due.began += due.began
            self._due.ended += due.ended

    def write_second_headers(self, due: Due, *, threaded: bool) -> None:
        """Write the second headers of new segments, before the journal is freed."""
        ended = set(due.ended)
        began = [each for each in due.began if not each.removed and each not in ended]
        for_each(_write_second_header, began, threaded=threaded)

    def sync_folder(self) -> None:
        """Make the names of segments and index files durable. Raises OSError."""
        self.files.sync_folder(ledgers_folder(self.folder))

    def seal(self, segments: Iterable[Segment], *, threaded: bool = False) -> None:
        """Complete the index files of ended segments. They are caches: if it fails, the next
        opening of the segment repairs it.
        """
        ended = [s for s in segments if s.state is SegmentState.ENDED and s.entry_count]
        for_each(_seal, ended, threaded=threaded)

    # Removing

    def forget(self, segments: Iterable[Segment]) -> None:
        """Mark these as removed: the catalog no longer lists them. They stay removed."""
        for segment in segments:
            segment.mark_removed()

    def remove_void(self, due: Due) -> bool:
        """Remove the files of segments that never counted, durably; returns whether that worked."""
        try:
            self.remove_files(segment.segment_id for segment in due.void)
        except OSError as error:
            _log.error(
                "segments that do not count could not be removed, so the journal is kept: %s", error
            )
            return False
        self.forget(due.void)
        return True

    def remove_files(self, segments: Iterable[SegmentId]) -> None:
        """Remove files of segments, durably, if they are there. Raises OSError."""
        paths = [self.path(segment_id) for segment_id in segments]
        for path in paths:
            for each in (path, index_path(path), cut_path(path)):
                self.fds.forget(each)
                with suppress(FileNotFoundError):
                    self.files.unlink(each)
        if paths:
            # Also if all are gone already: a process that was killed may have removed them without
            # a sync, and a power cut would bring them back.
            self.sync_folder()

    def files_removed(self, segments: Collection[SegmentId]) -> None:
        """Note that these files were removed; once the journal is freed, the catalog forgets."""
        with self._lock:
            self._removed.update(segments)

    def removed(self) -> set[SegmentId]:
        """Segments given to ``files_removed`` and not yet to ``removal_forgotten``."""
        with self._lock:
            return set(self._removed)

    def removal_forgotten(self, segments: Collection[SegmentId]) -> None:
        """Drop these: the catalog's removal list no longer has them."""
        with self._lock:
            self._removed.difference_update(segments)


def _write_second_header(segment: Segment) -> None:
    try:
        segment.index.begin()
    except OSError as error:
        _log.warning("%s: the second copy of its header was not written: %s", segment.path, error)


def _seal(segment: Segment) -> None:
    with segment.index.writing:  # a tail may be cut off meanwhile: before the seal, or after it
        try:
            if not segment.index.sealed:
                segment.index.seal(segment.append_time_max_ms)
        except OSError as error:
            _log.warning("%s: its index file could not be completed: %s", segment.path, error)
        if segment.index.sealed:
            segment.life.become(SegmentState.SEALED, only_if=(SegmentState.ENDED,))


_UNENDED = (SegmentState.PENDING, SegmentState.DURABLE, SegmentState.SEALED)


def counting_segments(
    segments: Sequence[Segment], *, known: Collection[Segment] = (), lost: Collection[int] = ()
) -> list[Segment]:
    """Load and show the segments that count, in order; ``known`` ones load only what is new."""
    by_header = {segment.header: segment for segment in segments}
    shown: list[Segment] = []
    for link in chain_of(by_header, lost):
        segment = by_header[link.header]
        _load(segment, link, is_known=segment in known)
        if segment.entry_count:
            if shown and segment not in known:
                _check_follows(shown[-1], segment)
            shown.append(segment)
    if shown:
        shown[0].load_cut()
    return shown


def _check_follows(before: Segment, segment: Segment) -> None:
    """Log an error if a segment does not begin at the index at which the one before it ends."""
    if before.next_index != segment.first_index:
        _log.error(
            "%s begins at index %d, but %s ends at %d: entries are lost, or one of the two files"
            " is of another data folder; run `verify`",
            segment.path,
            segment.first_index,
            before.path.name,
            before.next_index,
        )


def dropped_segments(segments: Sequence[Segment], counting: Sequence[Segment]) -> list[Segment]:
    """A topic's segments that a newer header skips, as after a cut tail; not unreachable ones."""
    heads = [segment.header for segment in counting if segment.first_entry_id == 0]
    dropped = []
    for segment in segments:
        newer = next((h for h in heads if h.ledger_id > segment.ledger_id), None)
        if newer is None or segment in counting:
            continue
        before, count = newer.previous_ledger_id, newer.previous_entry_count
        if before < segment.ledger_id or (
            before == segment.ledger_id and count <= segment.first_entry_id
        ):
            dropped.append(segment)
    return dropped


def _load(segment: Segment, link: Link[SegmentHeader], *, is_known: bool) -> None:
    """Load a segment's rows and show those that count."""
    index = segment.index
    count = None if link.end_entry_id is None else link.end_entry_id - segment.first_entry_id
    is_shown = is_known and index.sealed and segment.entry_count == index.count
    if is_shown and count in (None, index.count):
        return  # the usual case when a topic of many segments is refreshed
    if not is_known:
        segment.load_index()
    elif not index.sealed and (count is None or index.count < count):
        segment.read_new_records()
    if count is not None and index.count < count:
        if index.sealed:  # the end of the segment, or the next segment, is gone
            index.reopen()
            segment.read_new_records()
        _log.error(
            "%s: the last %d entries are lost; run `verify`", segment.path, count - index.count
        )
        stated = index.next_message
        if link.end_index is not None:
            stated = link.end_index - segment.first_index
        index_lost_rows(index, count, stated)
    if count is not None and count < index.count:
        segment.truncate(count)  # what never counted must not be counted by the next header
    else:
        segment.show(index.count)
