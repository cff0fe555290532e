"""Reading and writing index files: the only place that knows their layout.

The index of an open segment, opening a folder, reading damaged headers and `verify` all read
through `IndexFile`. It checks the format of what it reads; its callers decide whether to trust the
content. `IndexWriter` writes for the segment's owner. The file is a cache, so it is synced only
where the order of its parts matters.

docs/formats.md has its bytes: address and time of every entry, 16 bytes each, in chunks of exactly
1024 rows; only the last one of a sealed segment may have fewer. A chunk's numbers are columns, so
that a search bisects one without reading the others. If the file is missing or fails a check, it is
made again from the segment: every byte comes out the same, except in the rows of entries that were
removed or lost since. It also has the second copy of the segment's header.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from ....metadata.crc import crc32c
from ....records import FactsError, record
from ...run import IoCount, Row
from ..io.files import Buffer, Files, read_up_to, write_all
from ..io.folder import SegmentId, index_path
from .segment_format import SEGMENT_HEADER_LIMIT, SegmentHeader

_CHUNKS_AT_ONCE = 16
"""So many chunks, 256 KiB, stay in the processor's cache while they are checked."""


class IndexFile:
    """An index file by a descriptor, which the caller closes. All methods raise OSError."""

    def __init__(self, files: Files, fd: int, segment_id: SegmentId) -> None:
        self._files = files
        self._fd = fd
        self._seed = index_seed(*segment_id)

    @property
    def size_bytes(self) -> int:
        """The file's size now."""
        return self._files.size(self._fd)

    def begins_with(self, head: bytes) -> bool:
        """Whether the file begins with these bytes."""
        return read_up_to(self._files, self._fd, len(head), 0) == head

    def second_header(self) -> bytes:
        """The bytes at the place of the second copy of the segment's header, unchecked."""
        return read_up_to(self._files, self._fd, SEGMENT_HEADER_LIMIT, INDEX_HEADER_SIZE)

    def trailer(self) -> Trailer | None:
        """The trailer; None if the file has none, or a damaged one."""
        size = self.size_bytes
        if size < INDEX_HEADER_SIZE + TRAILER_SIZE:
            return None
        data = read_up_to(self._files, self._fd, TRAILER_SIZE, size - TRAILER_SIZE)
        return unpack_trailer(data, self._seed)

    def chunk(self, number: int, head_size: int, io: IoCount | None = None) -> Chunk:
        """Chunk ``number``; ``head_size`` is the size of all before. Raises BadIndexError."""
        data = read_up_to(self._files, self._fd, CHUNK_BYTES, chunk_offset(number, head_size))
        if io is not None:
            io.add(len(data))
        return unpack_chunk(data, self._seed, number * CHUNK_ROWS)

    def ends(self, number: int, head_size: int) -> Iterator[ChunkEnds]:
        """The ends of up to 16 chunks from ``number`` on, or BadIndexError at a damaged one."""
        size = _CHUNKS_AT_ONCE * CHUNK_BYTES
        data = read_up_to(self._files, self._fd, size, chunk_offset(number, head_size))
        view = memoryview(data)
        for at in range(0, max(1, len(data)), CHUNK_BYTES):
            yield unpack_chunk_ends(view[at : at + CHUNK_BYTES], self._seed, number * CHUNK_ROWS)
            number += 1


def index_head(header: SegmentHeader) -> bytes:
    """All bytes before the chunks of a segment's index file. In version 1 it has no copy of the
    segment's header.
    """
    return pack_index_header(*header.segment_id, header.pack() if header.secret else b"")


def write_head(files: Files, path: Path, header: SegmentHeader) -> None:
    """Create an index file with its header only, which has the copy of the segment's header."""
    with files.opened(path, os.O_WRONLY | os.O_CREAT) as fd:
        write_all(files, fd, [index_head(header)], 0)


class IndexWriter:
    """The index file of one segment, written by its owner. All methods raise OSError."""

    def __init__(self, files: Files, path: Path, header: SegmentHeader) -> None:
        """``header`` is the segment's."""
        self._files = files
        self._path = path
        self._seed = index_seed(*header.segment_id)
        self.head = index_head(header)
        """All that is before the chunks."""
        self._sync_failed = False
        """A sync of the file failed: it must never be synced again."""

    def write(self, number: int, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Write full chunks from ``number`` on, one per step of the iterator. Not synced."""
        with self._to_write(number) as fd:
            for chunk in chunks:
                write_all(self._files, fd, [chunk.pack(self._seed)], self._chunk_at(number))
                yield chunk
                number += 1

    def seal(self, number: int, rest: Chunk | None, trailer: Trailer) -> bool:
        """Write the last chunk, number ``number``, then the trailer, each synced; False: not done.

        The chunks are durable before the trailer is written. So if there is a trailer and a chunk
        does not match its checksum, that is damage, and not a write torn by a power cut.
        """
        if self._sync_failed:
            return False
        end = at = self._chunk_at(number)
        with self._to_write(number) as fd:
            if self._files.size(fd) > at:  # it was sealed before, with other rows
                self._files.ftruncate(fd, at)
                self._sync(fd)
            if rest is not None:
                end += write_all(self._files, fd, [rest.pack(self._seed)], at)
            self._sync(fd)
            write_all(self._files, fd, [trailer.pack(self._seed)], end)
            self._sync(fd)
        return True

    def begin(self, number: int) -> None:
        """Make the second header durable, after ``number`` chunks. The caller syncs the folder."""
        if not self._sync_failed:
            with self._to_write(number) as fd:
                self._sync(fd)

    def repair(self, number: int, chunk: Chunk) -> None:
        """Write the header and one chunk again. Not synced."""
        with self._to_write(0) as fd:
            write_all(self._files, fd, [chunk.pack(self._seed)], self._chunk_at(number))

    def _chunk_at(self, number: int) -> int:
        return chunk_offset(number, len(self.head))

    @contextmanager
    def _to_write(self, number: int) -> Iterator[int]:
        """Open the file; write its header if no chunk was written yet."""
        with self._files.opened(self._path, os.O_RDWR | os.O_CREAT) as fd:
            if number == 0:
                write_all(self._files, fd, [self.head], 0)
            yield fd

    def _sync(self, fd: int) -> None:
        try:
            self._files.fdatasync(fd)
        except OSError:
            self._sync_failed = True
            raise


@contextmanager
def open_index(files: Files, segment: Path, segment_id: SegmentId) -> Iterator[IndexFile | None]:
    """The index file of a segment, for the length of a ``with`` block; None: there is none."""
    with ExitStack() as opened:
        try:
            fd = opened.enter_context(files.opened(index_path(segment)))
        except FileNotFoundError:
            yield None
        else:
            yield IndexFile(files, fd, segment_id)


INDEX_MAGIC = b"PMKINDX\n"
INDEX_VERSION = 2
CHUNK_ROWS = 1024
ROW_SIZE = 16

_HEADER = struct.Struct("<8sHHIQI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
INDEX_HEADER_SIZE = _HEADER.size + _U32.size
_CHUNK_LEAD = struct.Struct("<4sI")
_CHUNK = struct.Struct("<IIQIIII")
CHUNK_HEADER_SIZE = _CHUNK_LEAD.size + _CHUNK.size
CHUNK_BYTES = CHUNK_HEADER_SIZE + CHUNK_ROWS * ROW_SIZE
"""Size of a full chunk."""
_TRAILER = struct.Struct("<IIIIQQ")
TRAILER_SIZE = _CHUNK_LEAD.size + _TRAILER.size
_CHUNK_MARKER = b"PMKC"
_TRAILER_MARKER = b"PMKE"
_SEED = struct.Struct("<QI")
assert (INDEX_HEADER_SIZE, CHUNK_HEADER_SIZE, TRAILER_SIZE) == (32, 40, 40)


class BadIndexError(FactsError, text="{reason}"):
    """The index file is damaged at ``row``; that part is made again from the segment."""

    reason: str
    row: int


def index_seed(ledger_id: int, segment_no: int) -> int:
    """Start value of the checksums, so that another segment's index does not match."""
    return crc32c(_SEED.pack(ledger_id, segment_no))


def chunk_offset(number: int, head_size: int = INDEX_HEADER_SIZE) -> int:
    """The offset of chunk ``number``; ``head_size`` is the size of all before the first chunk."""
    return head_size + number * (CHUNK_HEADER_SIZE + CHUNK_ROWS * ROW_SIZE)


def pack_index_header(ledger_id: int, segment_no: int, segment_header: bytes = b"") -> bytes:
    """All bytes before the chunks; without ``segment_header`` those of version 1."""
    version = INDEX_VERSION if segment_header else 1
    size = len(segment_header)
    body = _HEADER.pack(INDEX_MAGIC, version, 0, segment_no, ledger_id, size)
    return body + _U32.pack(crc32c(body)) + segment_header


Column: TypeAlias = "array[int] | memoryview"
"""One number per row."""


@dataclass(slots=True)
class Chunk:
    """Up to 1024 rows, as three columns. Columns read from a file are views and cannot grow."""

    first_row: int
    time_before_ms: int
    next_before: int
    end_offset: int
    times: Column
    nexts: Column
    offsets: Column
    content_crc: int = 0
    content_known: bool = True

    def row(self, row: int) -> Row:
        """One row, by its number in the segment."""
        at, offsets = row - self.first_row, self.offsets
        end = offsets[at + 1] if at + 1 < len(offsets) else self.end_offset
        return Row(self.times[at], self.nexts[at], offsets[at], end)

    def pack(self, seed: int) -> bytes:
        """The chunk's bytes."""
        core = b"".join(
            (
                _CHUNK.pack(
                    self.first_row,
                    len(self.times),
                    self.time_before_ms,
                    self.next_before,
                    self.end_offset,
                    self.content_crc,
                    self.content_known,
                ),
                _little_endian(self.times),
                _little_endian(self.nexts),
                _little_endian(self.offsets),
            )
        )
        return _CHUNK_LEAD.pack(_CHUNK_MARKER, crc32c(core, seed)) + core


class ChunkEnds(NamedTuple):
    """The facts of a chunk for loading an index: its predecessors' sums, and its last row."""

    row_count: int
    time_before_ms: int
    next_before: int
    end_offset: int
    last_time_ms: int
    last_next: int


def unpack_chunk_ends(data: Buffer, seed: int, first_row: int) -> ChunkEnds:
    """As `unpack_chunk`, with the same checks, without making columns."""
    count, time_before, next_before, end, _, _ = _checked_chunk(data, seed, first_row)
    times_end = CHUNK_HEADER_SIZE + 8 * count
    (last_time,) = _U64.unpack_from(data, times_end - 8)
    (last_next,) = _U32.unpack_from(data, times_end + 4 * (count - 1))
    return ChunkEnds(count, time_before, next_before, end, last_time, last_next)


def unpack_chunk(data: Buffer, seed: int, first_row: int) -> Chunk:
    """Parse the chunk that begins with row ``first_row``; raises BadIndexError."""
    count, time_before, next_before, end, content_crc, content_known = _checked_chunk(
        data, seed, first_row
    )
    view = memoryview(data)
    times_end = CHUNK_HEADER_SIZE + 8 * count
    nexts_end = times_end + 4 * count
    return Chunk(
        first_row,
        time_before,
        next_before,
        end,
        _column("Q", view[CHUNK_HEADER_SIZE:times_end]),
        _column("I", view[times_end:nexts_end]),
        _column("I", view[nexts_end : CHUNK_HEADER_SIZE + count * ROW_SIZE]),
        content_crc,
        content_known == 1,
    )


def _checked_chunk(data: Buffer, seed: int, first_row: int) -> tuple[int, int, int, int, int, int]:
    """The header's fields from the row count on, after all checks; raises BadIndexError."""
    if len(data) < CHUNK_HEADER_SIZE:
        raise BadIndexError("chunk header is cut off", first_row)
    marker, crc = _CHUNK_LEAD.unpack_from(data)
    (found_row, count, time_before, next_before, end,
     content_crc, content_known) = _CHUNK.unpack_from(data, _CHUNK_LEAD.size)  # fmt: skip
    size = CHUNK_HEADER_SIZE + count * ROW_SIZE
    if marker != _CHUNK_MARKER or not 0 < count <= CHUNK_ROWS or len(data) < size:
        raise BadIndexError("the chunk is cut off or out of place", first_row)
    view = memoryview(data)
    if crc32c(view[_CHUNK_LEAD.size : size], seed) != crc or found_row != first_row:
        raise BadIndexError("chunk checksum does not match", first_row)
    return count, time_before, next_before, end, content_crc, content_known


@record(frozen=True)
class Trailer:
    """The sums over a sealed segment."""

    row_count: int
    message_count: int
    end_offset: int
    entry_time_max_ms: int
    append_time_max_ms: int

    def pack(self, seed: int) -> bytes:
        """The trailer's bytes."""
        rows, messages, end, *maxima = astuple(self)
        core = _TRAILER.pack(rows, messages, end, 0, *maxima)
        return _CHUNK_LEAD.pack(_TRAILER_MARKER, crc32c(core, seed)) + core


def unpack_trailer(data: bytes, seed: int) -> Trailer | None:
    """The trailer, or None if these bytes are not a trailer."""
    if len(data) != TRAILER_SIZE:
        return None
    marker, crc = _CHUNK_LEAD.unpack_from(data)
    if marker != _TRAILER_MARKER or crc32c(data[_CHUNK_LEAD.size :], seed) != crc:
        return None
    rows, messages, end, _, *maxima = _TRAILER.unpack_from(data, _CHUNK_LEAD.size)
    return Trailer(rows, messages, end, *maxima)


def _little_endian(column: Column) -> bytes:
    if sys.byteorder == "big":
        column = array("Q" if column.itemsize == 8 else "I", column)
        column.byteswap()
    return column.tobytes()


def _column(typecode: Literal["Q", "I"], data: memoryview) -> Column:
    if sys.byteorder == "little":
        return data.cast(typecode)
    column: array[int] = array(typecode)
    column.frombytes(data)
    column.byteswap()
    return column
