"""Reading and writing index files: the only place that knows their layout.

The index of an open segment, opening a folder, reading damaged headers and `verify` all read
through `IndexFile`. It checks the format of what it reads; its callers decide whether to trust the
content. `IndexWriter` writes for the segment's owner. The file is a cache, so it is synced only
where the order of its parts matters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...rows import IoCount
from ..io.files import Files, read_up_to, write_all
from ..io.folder import SegmentId, index_path
from .index_format import (
    CHUNK_HEADER_SIZE,
    CHUNK_ROWS,
    INDEX_HEADER_SIZE,
    ROW_SIZE,
    TRAILER_SIZE,
    Chunk,
    ChunkEnds,
    Trailer,
    chunk_offset,
    index_seed,
    pack_index_header,
    unpack_chunk,
    unpack_chunk_ends,
    unpack_index_version,
    unpack_trailer,
)
from .segment_format import SEGMENT_HEADER_LIMIT, SegmentHeader

CHUNK_BYTES = CHUNK_HEADER_SIZE + CHUNK_ROWS * ROW_SIZE
"""Size of a full chunk."""
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

    def version(self) -> int | None:
        """The version in the file's header; None if it has no header."""
        return unpack_index_version(read_up_to(self._files, self._fd, INDEX_HEADER_SIZE, 0))

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
        """The ends of up to 16 chunks from ``number`` on, read at once; at least one.

        Raises BadIndexError at a chunk that is damaged, after the ends of those before it.
        """
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
    fd = files.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        write_all(files, fd, [index_head(header)], 0)
    finally:
        files.close(fd)


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
        """Make the copy of the segment's header durable; create the file if there is none.

        ``number`` chunks were written. The caller syncs the folder.
        """
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
        fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if number == 0:
                write_all(self._files, fd, [self.head], 0)
            yield fd
        finally:
            self._files.close(fd)

    def _sync(self, fd: int) -> None:
        try:
            self._files.fdatasync(fd)
        except OSError:
            self._sync_failed = True
            raise


@contextmanager
def open_index(files: Files, segment: Path, segment_id: SegmentId) -> Iterator[IndexFile | None]:
    """The index file of a segment, for the length of a ``with`` block; None: there is none."""
    try:
        fd = files.open(index_path(segment), os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield IndexFile(files, fd, segment_id)
    finally:
        files.close(fd)
