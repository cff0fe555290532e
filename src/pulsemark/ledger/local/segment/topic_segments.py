"""The segments of a topic, from the catalog's list: headers read, indexes brought to their end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ...errors import CorruptFileError
from ..catalog.catalog import Catalog
from ..io.fd_cache import FdCache
from ..io.files import Files
from ..io.folder import SegmentId, index_path, segment_path
from .chain import counting_segments, dropped_segments
from .chunk_cache import ChunkCache
from .salvage import read_named_header, salvage_headers
from .segment import Segment
from .segment_format import SegmentHeader
from .time_index import TimeIndex

_log = logging.getLogger(__name__)


def make_segment(
    files: Files, fds: FdCache, folder: Path, header: SegmentHeader, chunks: ChunkCache
) -> Segment:
    """The segment of a header, with an index that has nothing loaded yet."""
    path = segment_path(folder, header.ledger_id, header.segment_no)
    index = TimeIndex(
        files,
        fds,
        index_path(path),
        header.ledger_id,
        header.segment_no,
        header.entry_time_floor_ms,
        chunks,
        header.pack() if header.secret else b"",
    )
    return Segment(files, fds, path, header, index)


class TopicSegments:
    """Loads the segments of the topics of one folder, which this process owns."""

    def __init__(
        self, files: Files, fds: FdCache, folder: Path, catalog: Catalog, chunks: ChunkCache
    ) -> None:
        self._files = files
        self._fds = fds
        self._folder = folder
        self._catalog = catalog
        self._chunks = chunks

    def of_topic(self, name: str, topic_id: int) -> tuple[list[Segment], Sequence[Segment]]:
        """The segments that count, sealed and in order; and those of a tail that was cut off.

        Raises CatalogError, OSError, UnsupportedVersionError.
        """
        headers, lost = self._read_headers(name, topic_id)
        segments = [
            make_segment(self._files, self._fds, self._folder, header, self._chunks)
            for header in headers
        ]
        counting = counting_segments(segments, lost=lost)
        for segment in counting:
            if not segment.index.sealed:
                _seal(segment)
        if lost or not counting:
            return counting, ()
        return counting, dropped_segments(segments, counting)

    def _read_headers(self, name: str, topic_id: int) -> tuple[list[SegmentHeader], set[int]]:
        """The headers of a topic's segments, and the ledgers that have none any more."""
        headers: dict[SegmentId, SegmentHeader] = {}
        unread: dict[SegmentId, Exception] = {}
        for segment_id in self._catalog.segments(topic_id):
            try:
                headers[segment_id] = read_named_header(self._files, self._folder, segment_id)
            except (FileNotFoundError, CorruptFileError) as error:
                unread[segment_id] = error
        if unread:
            headers |= salvage_headers(
                self._files, self._folder, unread, headers.values(), (name, topic_id)
            )
        for segment_id, reason in unread.items():
            if segment_id not in headers:
                _log.error("%s: a segment is lost: %s", name, reason)
        lost = {ledger_id for ledger_id, _ in unread} - {ledger_id for ledger_id, _ in headers}
        return list(headers.values()), lost


def _seal(segment: Segment) -> None:
    try:
        segment.index.seal(segment.append_time_max_ms)
    except OSError as error:
        _log.warning("%s: index not sealed: %s", segment.path, error)
