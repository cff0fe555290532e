"""Reading a data folder without owning it: no lock, no catalog, also while a broker writes to it.

It reads the segments and their indexes only; a damaged segment header is salvaged (`salvage`). The
content of a segment is durable (its bytes are written there after the journal was synced), so
nothing that was read ever disappears. A record that is being written fails its checksum, and is
not visible yet.

After a power cut the newest entries may be in the journal only; they appear in the segments when
the folder is next opened for writing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, cast

from ..errors import CorruptFileError, TopicNotFoundError
from ..run import Run
from ..topic_log import LogSnapshot, TopicLog, full_topic_name
from .io.fd_cache import FdCache
from .io.files import Files, size_of
from .io.folder import (
    SegmentId,
    check_marker,
    index_path,
    ledgers_folder,
    list_segments,
    segment_path,
)
from .segment.filer import Filer, counting_segments
from .segment.salvage import read_named_header, salvage_headers
from .segment.segment import Segment
from .segment.segment_format import SegmentHeader

_log = logging.getLogger(__name__)

# The rows that a followed topic may keep in memory: by then the writer has put them into the index
# files, and a segment that is loaded again finds them there.
ROWS_IN_MEMORY_MAX = 1 << 17
_UNSEALED_MAX = 4


class FolderLog(TopicLog):
    """A topic as it stood when it was opened or last refreshed."""

    def __init__(self, reader: FolderReader, name: str, segments: Sequence[Segment]) -> None:
        super().__init__(name, segments)
        self._reader = reader
        self._refreshing = threading.Lock()

    def refresh(self) -> None:
        """Load what was added or removed since. Raises TopicNotFoundError."""
        if self._reader.refresh([self]):
            raise TopicNotFoundError(self.name)

    def renew(self, lost: Collection[int] = ()) -> bool:
        """As ``refresh``, by what the reader saw last in the folder.

        ``lost`` is as in `FolderReader.logs`. False: it has no segments any more, and stays as it
        was.
        """
        with self._refreshing:
            known = cast("Sequence[Segment]", self._segments)
            # Asked for here: what another thread has shown meanwhile is not taken back.
            segments = self._reader.open(self._reader.headers_of(self.name), known, lost)
            if segments:
                self._segments = segments
            return bool(segments)

    @property
    def topic_id(self) -> int:
        """The topic's id; a topic that is deleted and created again has another one."""
        first = self._segments[0].header
        assert isinstance(first, SegmentHeader), "a folder's runs are segments"
        return first.topic_id

    def _is_deleted(self, _: Run) -> bool:
        """False: only the next refresh brings the list of segments up to date."""
        return False

    def snapshot(self) -> LogSnapshot:
        """As in TopicLog; waits for a refresh that is under way."""
        with self._refreshing:
            return super().snapshot()

    def has_lost(self, snapshot: LogSnapshot) -> bool:
        """As in TopicLog; segments whose files are gone are left out from then on."""
        with self._refreshing:
            self._segments = tuple(s for s in self._segments if not s.is_gone(s.entry_count))
        return super().has_lost(snapshot)


class FolderReader:
    """Read-only access to all topics of a data folder."""

    def __init__(self, path: str | os.PathLike[str], *, files: Files | None = None) -> None:
        """Raises ForeignFolderError, UnsupportedVersionError.

        The reader stays with the folder that it has opened: also if that is moved, or if ``path``
        is relative and the process changes its working directory.
        """
        self._folder = Path(path).absolute()
        self._files = files or Files()
        check_marker(self._files, self._folder)
        self._folder_fd = self._files.hold_folder(self._folder)
        self._fds = FdCache(self._files, flags=os.O_RDONLY)
        self._filer = Filer(self._files, self._fds, self._folder)
        self._lock = threading.Lock()
        self._headers: dict[tuple[int, int], SegmentHeader] = {}
        self._unsalvageable: dict[tuple[int, int], int] = {}
        """Segments without a usable header, with the sizes of their files."""
        self._by_topic: dict[str, list[SegmentHeader]] = {}
        self._stamp: int | None = None
        """The stamp of the folder's names when headers were read; None: they may have changed."""

    @property
    def folder(self) -> Path:
        """The data folder."""
        return self._folder

    def topics(self) -> list[str]:
        """Full names of the topics with entries, sorted."""
        with self._lock:
            self._scan_headers()
            return sorted(name for name in self._by_topic if "://" in name)

    def headers(self) -> list[SegmentHeader]:
        """The headers of all segments, also of the store's own topics."""
        with self._lock:
            if not self._is_as_scanned():
                self._scan_headers()
            return [self._headers[each] for each in sorted(self._headers)]

    def headers_of(self, topic: str) -> Sequence[SegmentHeader]:
        """The headers of a topic's segments, as the reader saw them last."""
        with self._lock:
            return self._by_topic.get(topic, ())

    def log(self, topic: str) -> FolderLog:
        """One topic, as it is now; a short name is completed as by `TopicStore.open_topic`.

        Raises TopicNotFoundError when it has no entries, ValueError for a name that none can have.
        """
        with self._lock:
            if not self._is_as_scanned():
                self._scan_headers()
            name = topic if topic in self._by_topic else full_topic_name(topic)
            headers = self._by_topic.get(name, ())
        segments = self.open(headers, ())
        if not segments:
            raise TopicNotFoundError(name)
        return FolderLog(self, name, segments)

    def logs(self, topics: Iterable[str], *, lost: Collection[int] = ()) -> dict[str, FolderLog]:
        """Several topics as they are now, without those that have no readable segment.

        ``lost`` are missing ledgers: such a gap is not taken for the end of a trimmed log.
        """
        with self._lock:
            self._scan_headers()
            headers = {t: self._by_topic[t] for t in topics if t in self._by_topic}
        opened = {topic: self.open(mine, (), lost) for topic, mine in headers.items()}
        return {t: FolderLog(self, t, segments) for t, segments in opened.items() if segments}

    def refresh(self, logs: Iterable[FolderLog], *, lost: Collection[int] = ()) -> list[str]:
        """Bring several topics up to date; the folder is listed once, however many they are.

        ``lost`` is as in `logs`. Returns the names of those that have no entries any more; their
        logs stay as they were.
        """
        with self._lock:
            self._scan_headers()
        return [log.name for log in logs if not log.renew(lost)]

    def logs_of(
        self, segments: Mapping[str, Iterable[SegmentId]], *, lost: Collection[int] = ()
    ) -> dict[str, FolderLog]:
        """Topics with only these of their segments, by topic; the folder is not listed.

        Segments whose files are gone are left out, and so are topics without any. If a header is
        damaged, the topics have all of their segments: salvaging it takes all of the folder.
        """
        try:
            return self._named(segments, lost)
        except CorruptFileError as error:
            _log.debug("%s", error)
            return self.logs(segments, lost=lost)

    def _named(
        self, segments: Mapping[str, Iterable[SegmentId]], lost: Collection[int]
    ) -> dict[str, FolderLog]:
        found = {}
        for topic, wanted in segments.items():
            headers = []
            for each in wanted:
                try:
                    headers.append(read_named_header(self._files, self._folder, each))
                except FileNotFoundError:
                    continue
            opened = self.open(headers, (), lost)
            if opened:
                found[topic] = FolderLog(self, topic, opened)
        return found

    def damaged_segments(self) -> list[tuple[int, int]]:
        """Segments whose header is damaged and could not be salvaged, in order."""
        with self._lock:
            self._scan_headers()
            return sorted(self._unsalvageable)

    def open(
        self, mine: Sequence[SegmentHeader], known: Sequence[Segment], lost: Collection[int] = ()
    ) -> tuple[Segment, ...]:
        """The segments of one topic that count and still exist, of those with these headers."""
        while mine:
            try:
                return self._opened(mine, known, lost)
            except FileNotFoundError:
                path = self._filer.path
                left = [each for each in mine if self._files.exists(path(each.segment_id))]
                if len(left) == len(mine):
                    raise
                mine = left
        return ()

    def _opened(
        self, mine: Sequence[SegmentHeader], known: Sequence[Segment], lost: Collection[int]
    ) -> tuple[Segment, ...]:
        # A deleted topic's files may still exist next to those of a new topic of the same name.
        newest = max(h.topic_id for h in mine)
        kept = {s.header: s for s in known if s.index.sealed}
        for segment in known[-_UNSEALED_MAX:]:
            if segment.index.rows_in_memory < ROWS_IN_MEMORY_MAX:
                kept[segment.header] = segment
        segments = [kept.get(h) or self._filer.open(h) for h in mine if h.topic_id == newest]
        gaps = {*lost, *(ledger_id for ledger_id, _ in self._unsalvageable)}
        return tuple(counting_segments(segments, known=set(kept.values()), lost=gaps))

    def names_stamp(self) -> int | None:
        """A number that changes when a segment comes or goes; None: one may have just now."""
        try:
            return self._files.names_stamp(ledgers_folder(self._folder))
        except FileNotFoundError:
            return None

    def _is_as_scanned(self) -> bool:
        """Whether no segment came or went since the last look. If so, asking for one topic after
        another lists the folder only once.
        """
        return self._stamp is not None and self.names_stamp() == self._stamp

    def _scan_headers(self) -> None:
        stamp = self.names_stamp()
        damaged = self._read_headers()
        if damaged:
            self._salvage(damaged)
        self._stamp = None if damaged else stamp  # a header may be half written
        self._by_topic = {}
        for header in self._headers.values():
            self._by_topic.setdefault(header.topic, []).append(header)

    def _read_headers(self) -> list[SegmentId]:
        """Read headers of new segments, drop those of removed ones; returns damaged segments."""
        present = list_segments(self._files, self._folder)
        for gone in self._headers.keys() - set(present):
            del self._headers[gone]
            path = segment_path(self._folder, *gone)
            self._fds.forget(path)  # an open file takes its space on the disk, removed or not
            self._fds.forget(index_path(path))
        damaged = []
        for segment_id in present:
            if segment_id in self._headers:
                continue
            try:
                self._headers[segment_id] = read_named_header(self._files, self._folder, segment_id)
            except FileNotFoundError:
                continue
            except CorruptFileError as error:
                # Either damaged, or half written.
                _log.debug("%s", error)
                damaged.append(segment_id)
        return damaged

    def _salvage(self, damaged: Sequence[tuple[int, int]]) -> None:
        sizes = {each: size_of(self._files, self._filer.path(each)) for each in damaged}
        tried = [each for each in damaged if self._unsalvageable.get(each) != sizes[each]]
        self._headers |= salvage_headers(self._files, self._folder, tried)
        self._unsalvageable = {e: size for e, size in sizes.items() if e not in self._headers}

    def close(self) -> None:
        """Close all files. A second call does nothing."""
        self._fds.close()
        if self._folder_fd >= 0:
            fd, self._folder_fd = self._folder_fd, -1
            self._files.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
