"""Reading and writing index files: the only place that knows their layout.

The index of an open segment, opening a folder, reading damaged headers and `verify` all read
through `IndexFile`, and the segment's owner writes through it. It checks the format of what it
reads; its callers decide whether to trust the content.

docs/formats.md has its bytes: address and time of every entry, 16 bytes each, in chunks of exactly
1024 rows; only the last one of a sealed segment may have fewer. A chunk's numbers are columns, so
that a search bisects one without reading the others. If the file is missing or fails a check, it is
made again from the segment: every byte comes out the same, except in the rows of entries that were
removed or lost since. It also has the second copy of the segment's header.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ....metadata.crc import crc32c
from ....records import FactsError, record
from ...run import IoCount, Row
from ..io.files import Buffer, Files, read_up_to, write_all
from ..io.folder import SegmentId, index_path
from .segment_format import SEGMENT_HEADER_LIMIT, SegmentHeader

_CHUNKS_AT_ONCE = 16
"""So many chunks, 256 KiB, stay in the processor's cache while they are checked."""


class IndexFile:
    """An index file by a descriptor, which the caller closes. All methods raise OSError.

    ``head`` is all before the chunks (`index_head`), for what needs to know where they are.
    """

    def __init__(self, files: Files, fd: int, segment_id: SegmentId, head: bytes = b"") -> None:
        self._files = files
        self._fd = fd
        self._seed = index_seed(*segment_id)
        self._head = head

    @property
    def size_bytes(self) -> int:
        """The file's size now."""
        return self._files.size(self._fd)

    def begins_with_head(self) -> bool:
        """Whether the file begins with the segment's head."""
        return read_up_to(self._files, self._fd, len(self._head), 0) == self._head

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

    def chunk(self, number: int, io: IoCount | None = None) -> Chunk:
        """Chunk ``number``. Raises BadIndexError."""
        data = read_up_to(self._files, self._fd, CHUNK_BYTES, self.chunk_at(number))
        if io is not None:
            io.add(len(data))
        return unpack_chunk(data, self._seed, number * CHUNK_ROWS)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, or BadIndexError at a damaged one; a trailer is no chunk."""
        number, size = 0, _CHUNKS_AT_ONCE * CHUNK_BYTES
        while (at := self.chunk_at(number)) < self.size_bytes:
            view = memoryview(read_up_to(self._files, self._fd, size, at))
            for start in range(0, len(view), CHUNK_BYTES):
                part = view[start : start + CHUNK_BYTES]
                yield unpack_chunk(part, self._seed, number * CHUNK_ROWS)
                number += 1

    def chunk_at(self, number: int) -> int:
        """The offset of a chunk."""
        return chunk_offset(number, len(self._head))

    # Writing, without a sync

    def write_head(self) -> None:
        """Write what is before the chunks."""
        write_all(self._files, self._fd, [self._head], 0)

    def write_chunk(self, number: int, chunk: Chunk) -> int:
        """Write a chunk in its place. Return its end."""
        at = self.chunk_at(number)
        return at + write_all(self._files, self._fd, [chunk.pack(self._seed)], at)

    def write_trailer(self, trailer: Trailer, end: int) -> None:
        """Write the trailer at the end of the last chunk."""
        write_all(self._files, self._fd, [trailer.pack(self._seed)], end)

    def cut(self, number: int) -> bool:
        """Cut the file off before a chunk; False: it ends there already."""
        end = self.chunk_at(number)
        if is_longer := self.size_bytes > end:
            self._files.ftruncate(self._fd, end)
        return is_longer

    def sync(self) -> None:
        """Make durable what was written."""
        self._files.fdatasync(self._fd)


def index_head(header: SegmentHeader) -> bytes:
    """All bytes before the chunks of a segment's index file. In version 1 it has no copy of the
    segment's header.
    """
    return pack_index_header(*header.segment_id, header.pack() if header.secret else b"")


@contextmanager
def open_index(
    files: Files, segment: Path, segment_id: SegmentId, head: bytes = b""
) -> Iterator[IndexFile | None]:
    """The index file of a segment, for the length of a ``with`` block; None: it is missing."""
    with ExitStack() as opened:
        try:
            fd = opened.enter_context(files.opened(index_path(segment)))
        except FileNotFoundError:
            yield None
        else:
            yield IndexFile(files, fd, segment_id, head)


INDEX_MAGIC = b"PMKINDX\n"
INDEX_VERSION = 2
CHUNK_ROWS = 1024
ROW_SIZE = 16

_HEADER = struct.Struct("<8sHHIQI")
_U32 = struct.Struct("<I")
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


def unpack_chunk(data: Buffer, seed: int, first_row: int) -> Chunk:
    """Parse the chunk that begins with row ``first_row``; raises BadIndexError."""
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
    times_end = CHUNK_HEADER_SIZE + 8 * count
    nexts_end = times_end + 4 * count
    return Chunk(
        first_row,
        time_before,
        next_before,
        end,
        _column("Q", view[CHUNK_HEADER_SIZE:times_end]),
        _column("I", view[times_end:nexts_end]),
        _column("I", view[nexts_end:size]),
        content_crc,
        content_known == 1,
    )


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
