"""One segment file, read: rows of its index turned into entries, every checksum checked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from ....metadata.crc import crc32c
from ...entry import LAST_KIND, Entry
from ...entry_time import time_of_entry
from ...position import Position
from ..io.fd_cache import FdCache
from ..io.files import Buffer, Files, read_up_to
from .index_format import CHUNK_ROWS
from .life import Life
from .own_times import OwnTimes
from .prefix_sample import PrefixSample
from .record_format import (
    RECORD_HEADER_SIZE,
    BadRecordError,
    RecordTuple,
    split_records,
    whole_record,
)
from .rows import IoCount
from .segment_format import SegmentHeader
from .segment_rows import KINDS, DamagedRecordError, SegmentRows
from .time_index import TimeIndex

__all__ = ["DamagedRecordError", "Segment"]


class Segment(SegmentRows):
    """A run of entries in one file."""

    def __init__(
        self,
        files: Files,
        fds: FdCache,
        path: Path,
        header: SegmentHeader,
        index: TimeIndex,
        life: Life,
    ) -> None:
        super().__init__(files, fds, path, header, index, life)
        self._sample: PrefixSample | None = None
        self._own_times: OwnTimes | None = None
        self._map = memoryview(b"")

    def truncate(self, entry_count: int) -> None:
        """As SegmentRows."""
        super().truncate(entry_count)
        self._sample = self._own_times = None

    def prefix_sample(self) -> PrefixSample:
        """The sample for searching by prefixes, up to date."""
        if self._sample is None:
            self._sample = PrefixSample(self)
        self._sample.extend()
        return self._sample

    def own_times(self, time_ms: int) -> OwnTimes:
        """Running maxima of the entries that are still there, good for finding ``time_ms``."""
        own = self._own_times
        if own is None or own.max_before(self.cut_rows) >= time_ms:
            own = self._own_times = OwnTimes(self)
        return own

    def own_time_ms(self, row: int, append_time_ms: int, io: IoCount) -> int | None:
        """The time of an entry without a stamp of time, which is read; None: it is damaged."""
        entry = self.entry_or_none(row)
        if entry is None:
            return None
        io.add(len(entry.stored))
        return time_of_entry(append_time_ms, entry.stored, entry.body)

    def entry_or_none(self, row: int) -> Entry | None:
        """One entry; None if it is damaged."""
        try:
            return self.read(row, 1, 0)[0]
        except DamagedRecordError:
            return None

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``row`` on, at least one: up to ``max_entries`` in up to ``max_bytes``.

        Ends before a damaged record; raises DamagedRecordError when ``row`` itself is damaged.
        """
        ledger_id = self.ledger_id
        return [
            Entry(
                Position(ledger_id, entry_id),
                KINDS[kind],
                count,
                index,
                append_time_ms,
                prefix_size,
                view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + size],
            )
            for view, at, (
                _, _, size, prefix_size, kind, _, entry_id, count, append_time_ms, index,
            ) in self._records(row, max_entries, max_bytes)
        ]  # fmt: skip

    def read_stored(
        self, row: int, max_entries: int, max_bytes: int, *, mapped: bool = False
    ) -> list[memoryview]:
        """As ``read``, but only the stored bytes of each entry: prefix and body.

        A whole chunk of the index is checked by its one sum, which is what makes long reads of
        small entries fast; anything less record by record. ``mapped``: views on the mapped file
        instead of a copy (see ``Files.map`` for its price).
        """
        chunk = self.chunk(row)
        count = len(chunk.offsets)
        size = chunk.end_offset - chunk.offsets[0]
        whole = row == chunk.first_row and count == CHUNK_ROWS <= max_entries
        if whole and chunk.content_known and size <= max_bytes and row + count <= self.entry_count:
            data = self._bytes(chunk.offsets[0], size, mapped=mapped)
            if crc32c(data) == chunk.content_crc:
                return split_records(data, chunk.offsets)
        return [
            view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + record[2]]
            for view, at, record in self._records(row, max_entries, max_bytes, mapped=mapped)
        ]

    def _bytes(self, offset: int, size_bytes: int, *, mapped: bool = False) -> Buffer:
        with self._fds.use(self.path) as fd:
            if not mapped:
                return read_up_to(self._files, fd, size_bytes, offset)
            end = offset + size_bytes
            if len(self._map) < end:
                self._map = memoryview(self._files.map(fd, self._files.size(fd)))
            return self._map[offset:end]

    def _records(
        self, row: int, max_entries: int, max_bytes: int, *, mapped: bool = False
    ) -> Iterator[tuple[memoryview, int, RecordTuple]]:
        chunk = self.chunk(row)
        offsets = chunk.offsets
        first = row - chunk.first_row
        last = min(len(offsets), first + max_entries, self.entry_count - chunk.first_row)
        start = offsets[first]
        end = offsets[last] if last < len(offsets) else chunk.end_offset
        if end - start > max_bytes:
            # The last row that ends within the limit, but at least one.
            last = max(first + 1, bisect_right(offsets, start + max_bytes, first + 1, last) - 1)
            end = offsets[last] if last < len(offsets) else chunk.end_offset
        data = self._bytes(start, end - start, mapped=mapped)
        view = memoryview(data)
        key = self.record_key
        entry_id = self.first_entry_id + row
        for number in range(first, last):
            at = offsets[number] - start
            try:
                record = whole_record(data, view, at, key)
                if record[6] != entry_id:
                    raise BadRecordError(f"the record there is entry {record[6]}")
                if record[4] > LAST_KIND:
                    raise BadRecordError(f"its kind, {record[4]}, is not known")
            except BadRecordError as bad:
                if number > first:
                    return
                raise DamagedRecordError(row, bad.reason) from bad
            yield view, at, record
            entry_id += 1
