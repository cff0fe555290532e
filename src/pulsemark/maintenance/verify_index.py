"""Comparing a segment's index file with its records, row by row as they are read.

Every number of the file can be computed from the records, with two exceptions: the running maximum
of times before a segment whose header was damaged, and the times of entries that are damaged now.
After such a place times are only checked to be possible: never falling, and never below an entry's
own time.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass
from pathlib import Path

from ..ledger.local.io.files import Files
from ..ledger.local.segment.index_file import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    BadIndexError,
    Chunk,
    IndexFile,
    Trailer,
    index_head,
)
from ..ledger.local.segment.record_format import ScannedRecord
from ..ledger.local.segment.segment_format import NO_CUT, HeadCut, SegmentHeader
from ..metadata.crc import crc32c

_MAX_PROBLEMS = 20
"""The most problems reported for one file."""


@dataclass(frozen=True, slots=True)
class IndexProblem:
    """Something wrong with an index file, first seen at ``row``."""

    row: int
    reason: str


class _Rows(Chunk):
    """The rows of one chunk, as computed from the records."""

    times: array[int]
    nexts: array[int]
    offsets: array[int]

    def __init__(self, first_row: int, time_max_ms: int, next_message: int) -> None:
        columns = array("Q"), array("I"), array("I")
        super().__init__(first_row, time_max_ms, next_message, 0, *columns)
        self.damaged: set[int] = set()
        """The rows without a whole record."""


class IndexCheck:
    """Checks one index file. Give it every row, in order, then read ``problems``."""

    def __init__(
        self,
        files: Files,
        path: Path,
        header: SegmentHeader,
        *,
        cut: HeadCut = NO_CUT,
        exact_floor: bool = True,
    ) -> None:
        """``exact_floor``: the header was not salvaged. Raises OSError."""
        self._files = files
        self._path = path
        self._header = header
        self._head = index_head(header)
        self._exact_times = exact_floor
        self._time_max_ms = header.entry_time_floor_ms
        self._append_time_max_ms = 0
        self._next_message = 0
        self._end_offset = header.size_bytes
        self._count = 0
        self._rows = _Rows(0, self._time_max_ms, 0)
        self.trailer: Trailer | None = None
        self.missing: str | None = None
        """Why there is no file to compare; None: there is one."""
        self.problems: list[IndexProblem] = []
        self._fd = -1
        try:
            self._fd = files.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self.missing = "there is no such file"
            return
        self._index = IndexFile(files, self._fd, header.segment_id)
        self._size = self._index.size_bytes
        self._open()
        self._remove(cut)

    def _open(self) -> None:
        self.trailer = self._index.trailer()
        if not self._index.begins_with(self._head):
            self._report(0, "it does not begin with this segment's index header")
            self.missing = "unusable"

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            self._files.close(self._fd)

    @property
    def sealed(self) -> bool:
        """Whether the file says that the segment has ended."""
        return self.trailer is not None

    def stated_rows(self) -> int:
        """How many entries the file has; all of them were durable."""
        if self.missing is not None:
            return 0
        if self.trailer is not None:
            return self.trailer.row_count
        number = 0
        while self._chunk(number) is not None:
            number += 1
        return number * CHUNK_ROWS

    # Rows

    def add(self, record: ScannedRecord) -> None:
        """Add the row of this record, whole or not."""
        fields = record.fields
        rows = self._rows
        self._append_time_max_ms = max(self._append_time_max_ms, fields.append_time_ms)
        if record.damaged is None:
            self._time_max_ms = max(self._time_max_ms, record.entry_time_ms)
            rows.content_crc = crc32c(record.data, rows.content_crc)
        else:
            rows.damaged.add(self._count - rows.first_row)
            self._exact_times = False
        next_message = fields.index + 1 - self._header.first_index
        self._append(next_message, record.offset, record.end_offset)

    def lose(self, offset: int, end_offset: int) -> None:
        """Add a row that has no whole record."""
        self._rows.damaged.add(self._count - self._rows.first_row)
        self._exact_times = False
        self._append(self._next_message, offset, end_offset)

    def _remove(self, cut: HeadCut) -> None:
        """Add the rows of removed entries, whose content does not matter."""
        for _ in range(cut.rows):
            self._rows.damaged.add(self._count - self._rows.first_row)
            if self._count == cut.rows - 1:
                self._time_max_ms = max(self._time_max_ms, cut.entry_time_max_ms)
                self._next_message = cut.message_count
            self._append(self._next_message, self._end_offset, cut.end_offset)

    def _append(self, next_message: int, offset: int, end_offset: int) -> None:
        rows = self._rows
        rows.times.append(self._time_max_ms)
        # `SegmentCheck` reports records that contradict their header.
        rows.nexts.append(max(0, min(next_message, 2**32 - 1)))
        rows.offsets.append(offset)
        rows.end_offset = self._end_offset = end_offset
        self._next_message = next_message
        self._count += 1
        if self._count % CHUNK_ROWS == 0:
            self._compare()
            self._rows = _Rows(self._count, self._time_max_ms, next_message)

    def finish(self, counting_rows: int) -> None:
        """End the check; a sealed file must have at least ``counting_rows`` rows."""
        if self.missing is None and self.trailer is not None:
            if self._rows.times:
                self._compare()
            if self.trailer.row_count < counting_rows:
                reason = f"it ends there, but {counting_rows} entries count"
                self._report(self.trailer.row_count, reason)
            elif self.trailer.row_count == self._count and self._exact_times:
                self._compare_trailer(self.trailer)

    def _compare_trailer(self, trailer: Trailer) -> None:
        stated = trailer.message_count, trailer.end_offset, trailer.entry_time_max_ms
        if stated != (self._next_message, self._end_offset, self._time_max_ms):
            self._report(self._count, "the trailer's numbers differ from the records'")
        elif trailer.append_time_max_ms < self._append_time_max_ms:
            self._report(self._count, "the trailer's append time is below a record's")

    # Comparing

    def _report(self, row: int, reason: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(IndexProblem(row, reason))

    def _chunk(self, number: int) -> Chunk | None:
        """A chunk of the file, if it is good; in a file without trailer it must be full, too."""
        try:
            chunk = self._index.chunk(number, len(self._head))
        except BadIndexError:
            return None
        return chunk if self.sealed or len(chunk.times) == CHUNK_ROWS else None

    def _compare(self) -> None:
        rows = self._rows
        if self.missing is not None or rows.first_row >= self._rows_there():
            return
        chunk = self._chunk(rows.first_row // CHUNK_ROWS)
        if chunk is None:
            self._report(rows.first_row, "the chunk does not match its checksum")
            return
        exact = self._exact_times and not rows.damaged
        if not (exact and self._equal(chunk)):
            self._compare_rows(chunk)
        same_end = len(chunk.times) == len(rows.times) and not rows.damaged
        if same_end and chunk.content_known and chunk.content_crc != rows.content_crc:
            self._report(rows.first_row, "the checksum over the chunk's records differs")

    def _rows_there(self) -> int:
        """The number of rows by the file's size; without a trailer they may be incomplete."""
        if self.trailer is not None:
            return self.trailer.row_count
        return (self._size - len(self._head)) // CHUNK_BYTES * CHUNK_ROWS

    def _equal(self, chunk: Chunk) -> bool:
        rows = self._rows
        return (
            memoryview(rows.times) == memoryview(chunk.times)
            and memoryview(rows.nexts) == memoryview(chunk.nexts)
            and memoryview(rows.offsets) == memoryview(chunk.offsets)
            and chunk.end_offset == rows.end_offset
            and chunk.time_before_ms == rows.time_before_ms
            and chunk.next_before == rows.next_before
        )

    def _compare_rows(self, chunk: Chunk) -> None:
        rows = self._rows
        exact = self._exact_times and not rows.damaged
        time_before = chunk.time_before_ms
        for at in range(min(len(chunk.times), len(rows.times))):
            time_ms = chunk.times[at]
            if time_ms < time_before or time_ms < rows.times[at]:
                self._report(rows.first_row + at, "the time is below that of an entry")
                return
            time_before = time_ms
            if at in rows.damaged:
                continue
            if (chunk.nexts[at], chunk.offsets[at]) != (rows.nexts[at], rows.offsets[at]):
                self._report(rows.first_row + at, "address or message count differs")
                return
            if exact and time_ms != rows.times[at]:
                self._report(rows.first_row + at, "the time differs from the record")
                return
        if exact and (chunk.time_before_ms, chunk.next_before) != (
            rows.time_before_ms,
            rows.next_before,
        ):
            self._report(rows.first_row, "time or messages before the chunk differ")
        if exact and len(chunk.times) == len(rows.times) and chunk.end_offset != rows.end_offset:
            self._report(rows.first_row, "the chunk's last record ends at another byte")
