"""Reading a data folder without owning it: no lock, no catalog, also while a broker writes to it.

Everything comes from the segments and their indexes; a damaged segment header is put together
again (`salvage`). What a segment holds is durable (its bytes come there after the journal was
synced), so nothing that was read is ever taken back. A record in the middle of being written
fails its checksum and is not there yet.

After a power cut the newest entries may be in the journal only; they appear in the segments when
the folder is next opened for writing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Self, cast

from ..errors import CorruptFileError, TopicNotFoundError
from ..run import Run
from ..topic_log import TopicLog
from .io.fd_cache import FdCache
from .io.files import Files, OsFiles
from .io.folder import (
    SegmentId,
    check_marker,
    index_path,
    ledgers_folder,
    list_segments,
    segment_path,
)
from .segment.chain import counting_segments
from .segment.filer import Filer
from .segment.headers import read_named_header
from .segment.salvage import salvage_headers
from .segment.segment import Segment
from .segment.segment_format import SegmentHeader

_log = logging.getLogger(__name__)

# What a followed topic may keep in memory: by then the writer has put the rows into the index
# files, and a segment that is loaded anew finds them there.
_ROWS_IN_MEMORY_MAX = 1 << 17
_UNSEALED_MAX = 4


class FolderLog(TopicLog):
    """A topic as it stood when it was opened or last refreshed."""

    def __init__(
        self, reader: FolderReader, name: str, segments: Sequence[Segment] | None = None
    ) -> None:
        super().__init__(name, segments or ())
        self._reader = reader
        self._refreshing = threading.Lock()
        if segments is None:
            self.refresh()

    def refresh(self) -> None:
        """See what has been added (or removed) since. Raises TopicNotFoundError.

        Takes time for what is new, not for what is there; other threads may read meanwhile.
        """
        with self._refreshing:
            self._segments = self._reader.load(
                self.name, known=cast("Sequence[Segment]", self._segments)
            )

    def _is_deleted(self, _: Run) -> bool:
        """False: the list of segments is only brought up to date by the next refresh."""
        return False

    def has_lost(self, segments: Sequence[Run]) -> bool:
        """As TopicLog's; segments whose files are gone are left out from then on."""
        with self._refreshing:
            self._segments = tuple(s for s in self._segments if not s.is_gone(s.entry_count))
        return super().has_lost(segments)


class FolderReader:
    """Read-only access to all topics of a data folder."""

    def __init__(self, path: Path | str, *, files: Files | None = None) -> None:
        """Raises ForeignFolderError, UnsupportedVersionError."""
        self._folder = Path(path)
        self._files = files or OsFiles()
        check_marker(self._files, self._folder)
        self._fds = FdCache(self._files, flags=os.O_RDONLY)
        self._filer = Filer(self._files, self._fds, self._folder)
        self._lock = threading.Lock()
        self._headers: dict[tuple[int, int], SegmentHeader] = {}
        self._beyond_help: dict[tuple[int, int], int] = {}
        """Segments without a usable header, and how long their files were."""
        self._by_topic: dict[str, list[SegmentHeader]] = {}
        self._stamp: int | None = None
        """Of the folder's names, as the headers are of; None: they may have changed."""

    def topics(self) -> list[str]:
        """Full names of the topics with entries, sorted."""
        with self._lock:
            self._scan_headers()
            return sorted(name for name in self._by_topic if "://" in name)

    def headers(self) -> list[SegmentHeader]:
        """The headers of all segments, also of topics that the store has for itself."""
        with self._lock:
            self._scan_headers()
            return [self._headers[each] for each in sorted(self._headers)]

    def log(self, topic: str) -> FolderLog:
        """One topic, as it stands now. Raises TopicNotFoundError when it has no entries."""
        return FolderLog(self, topic)

    def load(self, topic: str, *, known: Sequence[Segment] = ()) -> tuple[Segment, ...]:
        """The segments of a topic that count. Raises TopicNotFoundError.

        Segments of an earlier answer (``known``) are used again and brought up to date.
        """
        with self._lock:
            if known or not self._is_as_scanned():
                self._scan_headers()
            mine = self._by_topic.get(topic)
        if not mine:
            raise TopicNotFoundError(topic)
        return self._load(mine, known, set())

    def logs(self, topics: Iterable[str], *, lost: Collection[int] = ()) -> dict[str, FolderLog]:
        """Several topics as they stand now, by one look into the folder.

        Args:
            topics: their names; those without a readable segment are left out of the answer.
            lost: ledgers that should be there and are not: a topic's older ledgers are then
                shown too, where else the gap would be taken for the end of what was trimmed.
        """
        with self._lock:
            self._scan_headers()
            headers = {t: self._by_topic[t] for t in topics if t in self._by_topic}
        return {
            topic: FolderLog(self, topic, self._load(mine, (), set(lost)))
            for topic, mine in headers.items()
        }

    def damaged_segments(self) -> list[tuple[int, int]]:
        """Segments whose header is damaged and could not be put together again, in order."""
        with self._lock:
            self._scan_headers()
            return sorted(self._beyond_help)

    def _load(
        self, mine: Sequence[SegmentHeader], known: Sequence[Segment], lost: set[int]
    ) -> tuple[Segment, ...]:
        """The segments of one topic that count, of those with these headers."""
        # A deleted topic's files may still be there beside those of its namesake.
        newest = max(h.topic_id for h in mine)
        kept = {s.header: s for s in known if s.index.sealed}
        for segment in known[-_UNSEALED_MAX:]:
            if segment.index.rows_in_memory < _ROWS_IN_MEMORY_MAX:
                kept[segment.header] = segment
        segments = [kept.get(h) or self._filer.open(h) for h in mine if h.topic_id == newest]
        lost |= {ledger_id for ledger_id, _ in self._beyond_help}
        return tuple(counting_segments(segments, known=set(kept.values()), lost=lost))

    def _is_as_scanned(self) -> bool:
        """Whether no segment came or went since the last look: opening one topic after another
        then lists the folder once.
        """
        if self._stamp is None:
            return False
        try:
            return self._files.names_stamp(ledgers_folder(self._folder)) == self._stamp
        except FileNotFoundError:
            return False

    def _scan_headers(self) -> None:
        try:
            stamp = self._files.names_stamp(ledgers_folder(self._folder))
        except FileNotFoundError:
            stamp = None
        rotten = self._read_headers()
        if rotten:
            self._salvage(rotten)
        self._stamp = None if rotten else stamp  # a header may just be under way
        self._by_topic = {}
        for header in self._headers.values():
            self._by_topic.setdefault(header.topic, []).append(header)

    def _read_headers(self) -> list[SegmentId]:
        """Read the headers of new segments, forget those that are gone; which are damaged."""
        present = list_segments(self._files, self._folder)
        for gone in self._headers.keys() - set(present):
            del self._headers[gone]
            path = segment_path(self._folder, *gone)
            self._fds.forget(path)  # an open file takes its space on the disk, removed or not
            self._fds.forget(index_path(path))
        rotten = []
        for segment_id in present:
            if segment_id in self._headers:
                continue
            try:
                self._headers[segment_id] = read_named_header(self._files, self._folder, segment_id)
            except FileNotFoundError:
                continue
            except CorruptFileError as error:
                # Either damaged, or its first write is under way.
                _log.debug("%s", error)
                rotten.append(segment_id)
        return rotten

    def _salvage(self, rotten: Sequence[tuple[int, int]]) -> None:
        sizes = {each: self._size(segment_path(self._folder, *each)) for each in rotten}
        tried = [each for each in rotten if self._beyond_help.get(each) != sizes[each]]
        self._headers |= salvage_headers(self._files, self._folder, tried, self._headers.values())
        self._beyond_help = {e: size for e, size in sizes.items() if e not in self._headers}

    def _size(self, path: Path) -> int:
        try:
            fd = self._files.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return -1
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def close(self) -> None:
        """Close all files."""
        self._fds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
