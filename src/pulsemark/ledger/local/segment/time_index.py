"""Address and time of every entry of one segment: in memory while fresh, then in the index file.

Rows are in chunks of 1024. Full chunks of durable rows are moved to the index file. One time and
one message count per chunk stay in memory, enough to find the right chunk of a segment of any size
with one bisect. A chunk that is read back is checked and kept in a small shared cache.
Row times are running maxima of entry times (PIP-70's entry time: broker time, else publish
time): the first row whose running maximum is >= t is exactly the first entry whose own time is
>= t, in whatever order the times come.

Appending is done under the store's lock; reading needs none: chunks are replaced whole, and a
reader passes ``limit``, the number of rows that are durable.
"""

from __future__ import annotations

import logging
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ....metadata.crc import crc32c
from ...entry import LAST_KIND, time_of_entry
from ...limits import MAX_ENTRY_ID
from ...run import IoCount, Row
from ...tail_cache import Lru
from ..io.fd_cache import FdCache
from ..io.files import Buffer, Files, read_up_to
from ..io.folder import SegmentId
from .index_file import (
    CHUNK_ROWS,
    BadIndexError,
    Chunk,
    IndexFile,
    Trailer,
    index_head,
)
from .record_format import (
    BROKER_TIMESTAMP_TAG,
    FIRST_TAG_AT,
    RECORD_HEADER_SIZE,
    BadRecordError,
    record_size,
    whole_record,
)
from .scan import scan_records
from .segment_format import NO_CUT, HeadCut, SegmentHeader, read_cut

_log = logging.getLogger(__name__)

ChunkCache = Lru[tuple[SegmentId, int], Chunk]
"""The chunks that were read last, for all segments of a store: by segment and number. A chunk has
16 KiB."""
CHUNKS_KEPT = 1024


class TimeIndex:
    """The rows of one segment. Row number = entry id - the segment's first entry id."""

    def __init__(
        self, files: Files, fds: FdCache, path: Path, header: SegmentHeader, cache: ChunkCache
    ) -> None:
        """``path`` is the index file's, ``header`` the segment's."""
        self._files = files
        self._fds = fds
        self._path = path
        self._header = header
        self._id = header.segment_id
        self._cache = cache
        self._head = index_head(header)
        self._sync_failed = False
        """A sync of the file failed: it must never be synced again."""
        self.writing = threading.RLock()
        """Held while the file is written, and while rows are cut off."""
        self._chunks: dict[int, Chunk] = {}
        self._last: Chunk
        """The chunk that still grows, and its columns."""
        self._times: array[int]
        self._nexts: array[int]
        self._offsets: array[int]
        self._time_before: array[int] = array("Q")
        self._next_before: array[int] = array("I")
        self._end_before: array[int] = array("I")
        self._in_file = 0
        self._digesting = 0
        self.digested_end = 0
        """The segment's bytes up to here are in their chunks' checksums."""
        self.count = 0
        self.time_max_ms = header.entry_time_floor_ms
        self.next_message = 0
        self.end_offset = header.size_bytes
        self.sealed = False
        """The file is complete, with a trailer."""

    # Appending

    def append(self, time_ms: int, next_message: int, offset: int, end_offset: int) -> None:
        """Add the row of the next entry; a time below the maximum counts as the maximum."""
        if self.count % CHUNK_ROWS == 0:
            self._begin_chunk()
        if time_ms > self.time_max_ms:
            self.time_max_ms = time_ms
        self._times.append(self.time_max_ms)
        self._nexts.append(next_message)
        self._offsets.append(offset)
        self._last.end_offset = self.end_offset = end_offset
        self.next_message = next_message
        self.count += 1

    def append_many(
        self, times_ms: Sequence[int], nexts: Sequence[int], ends: Sequence[int]
    ) -> None:
        """Add rows from ``end_offset`` on, with running maxima, chunk by chunk."""
        done, count = 0, len(ends)
        while done < count:
            rows = self.count % CHUNK_ROWS
            if rows == 0:
                self._begin_chunk()
            # Cut off what an exception left.
            del self._times[rows:], self._nexts[rows:], self._offsets[rows:]
            until = min(count, done + CHUNK_ROWS - rows)
            # Making an array of the list and adding that is faster than extending by the list.
            self._times.extend(array("Q", times_ms[done:until]))
            self._nexts.extend(array("I", nexts[done:until]))
            self._offsets.append(self.end_offset)
            self._offsets.extend(array("I", ends[done : until - 1]))
            # No call from here on: so these change together.
            self._last.end_offset = self.end_offset = ends[until - 1]
            self.time_max_ms = times_ms[until - 1]
            self.next_message = nexts[until - 1]
            self.count += until - done
            done = until

    def _begin_chunk(self) -> None:
        self._times, self._nexts, self._offsets = array("Q"), array("I"), array("I")
        self._last = Chunk(
            self.count,
            self.time_max_ms,
            self.next_message,
            self.end_offset,
            self._times,
            self._nexts,
            self._offsets,
        )
        self._chunks[self.count // CHUNK_ROWS] = self._last
        self._time_before.append(self.time_max_ms)
        self._next_before.append(self.next_message)
        self._end_before.append(self.end_offset)

    def digest(self, data: Buffer, offset: int) -> None:
        """Add bytes of the segment, in order and after their rows, to the chunks' checksums."""
        while data and (chunk := self._chunks.get(self._digesting)) is not None:
            start = chunk.offsets[0]
            if offset < start:  # the segment's header, or a gap
                data, offset = memoryview(data)[start - offset :], start
            elif len(chunk.offsets) < CHUNK_ROWS:  # it still grows: all these bytes are its own
                end, crc = offset + len(data), crc32c(data, chunk.content_crc)
                chunk.content_crc, self.digested_end = crc, end
                return
            else:
                part = memoryview(data)[: chunk.end_offset - offset]
                chunk.content_crc = crc32c(part, chunk.content_crc)
                data, offset = memoryview(data)[len(part) :], offset + len(part)
                self.digested_end = offset
                if offset == chunk.end_offset:
                    self._digesting += 1

    def content_unknown(self) -> None:
        """The last row's chunk has a damaged record: readers must not rely on its checksum."""
        self._chunks[(self.count - 1) // CHUNK_ROWS].content_known = False

    def truncate(self, count: int) -> tuple[int, int] | None:
        """Drop all rows from ``count`` on, also those in the file.

        If the checksum of the chunk that is now the last one covered more, it begins again: pass
        the returned bytes [start, end) of the segment to ``digest``.
        """
        if count >= self.count:
            return None
        number, keep = divmod(count, CHUNK_ROWS)
        cut = self.chunk_of(number * CHUNK_ROWS)
        self.end_offset = cut.offsets[keep]
        for later in [n for n in self._chunks if n >= number]:
            del self._chunks[later]
        del self._time_before[number:], self._next_before[number:], self._end_before[number:]
        self._cache.forget(lambda key: key[0] == self._id)
        self._in_file = min(self._in_file, number)
        self._digesting = min(self._digesting, number)
        self.sealed = False
        self.count = number * CHUNK_ROWS
        self.time_max_ms, self.next_message = cut.time_before_ms, cut.next_before
        covered, self.digested_end = self.digested_end, min(self.digested_end, self.end_offset)
        if keep:
            end = self.end_offset
            self._begin_chunk()
            self._times.extend(cut.times[:keep])
            self._nexts.extend(cut.nexts[:keep])
            self._offsets.extend(cut.offsets[:keep])
            self.count = count
            self.time_max_ms, self.next_message = self._times[-1], self._nexts[-1]
            self._last.end_offset = self.end_offset = end
            self._last.content_crc, self._last.content_known = cut.content_crc, cut.content_known
            if covered > end:
                self._last.content_crc = 0
                return self._offsets[0], end
        return None

    # The index file: a cache, synced only where the order of its parts matters

    def flush(self, durable: int) -> None:
        """Move full chunks of durable rows to the file. Not synced."""
        last = durable // CHUNK_ROWS
        if last <= self._in_file:
            return
        with self.writing, self._to_write() as file:
            for number in range(self._in_file, last):
                self._move(number, file)

    def _move(self, number: int, file: IndexFile) -> None:
        chunk = self._chunks[number]
        file.write_chunk(number, chunk)
        self._in_file = number + 1
        self._cache.put((self._id, number), chunk)
        del self._chunks[number]

    def seal(self, append_time_max_ms: int) -> None:
        """Write what is left, then the trailer: the segment has ended. Raises OSError.

        The chunks are durable before the trailer is written. So if there is a trailer and a chunk
        does not match its checksum, that is damage, and not a write torn by a power cut.
        """
        self.flush(self.count)
        if self._sync_failed:
            return
        trailer = Trailer(
            self.count, self.next_message, self.end_offset, self.time_max_ms, append_time_max_ms
        )
        with self._to_write() as file:
            number = self._in_file
            if file.cut(number):  # it was sealed before, with other rows
                self._sync(file)
            rest, end = self._chunks.get(number), file.chunk_at(number)
            if rest is not None:
                end = file.write_chunk(number, rest)
            self._sync(file)
            file.write_trailer(trailer, end)
            self._sync(file)
        self.sealed = True
        if rest is not None:
            self._cache.put((self._id, number), rest)
            del self._chunks[number]
            self._in_file = number + 1

    def begin(self) -> None:
        """Write the second header durably. The caller syncs the folder. Raises OSError."""
        if self._header.secret and not self.sealed and not self._sync_failed:
            with self._to_write() as file:
                self._sync(file)

    @contextmanager
    def _to_write(self) -> Iterator[IndexFile]:
        """Open the file; write its head if no chunk was written yet."""
        with self._files.opened(self._path, os.O_RDWR | os.O_CREAT) as fd:
            file = self._opened(fd)
            if not self._in_file:
                file.write_head()
            yield file

    def _opened(self, fd: int) -> IndexFile:
        return IndexFile(self._files, fd, self._id, self._head)

    def _sync(self, file: IndexFile) -> None:
        try:
            file.sync()
        except OSError:
            self._sync_failed = True
            raise

    def load(self) -> Trailer | None:
        """Load the good part of the file, without BadIndexError; the trailer if it is sealed."""
        with suppress(FileNotFoundError), self._files.opened(self._path) as fd:
            file = self._opened(fd)
            if not file.begins_with_head():
                return None
            trailer = file.trailer()
            with suppress(BadIndexError):
                self._take_over(file, trailer)
                if trailer is not None and trailer.row_count == self.count:
                    self.sealed = True
                    return trailer
            self.reopen()
        return None

    def reopen(self) -> None:
        """Allow adding rows after a trailer: drops the rows of its last, smaller chunk, which
        cannot grow in its place.
        """
        self.truncate(self.count - self.count % CHUNK_ROWS)
        self.sealed = False

    def _take_over(self, file: IndexFile, trailer: Trailer | None) -> None:
        """Take over the file's chunks up to its end. Raises BadIndexError."""
        last = trailer.row_count if trailer is not None else None
        for chunk in file.chunks() if last != 0 else ():
            if trailer is None and len(chunk.times) < CHUNK_ROWS:
                return  # a last chunk without its trailer is read from the segment again
            self._time_before.append(chunk.time_before_ms)
            self._next_before.append(chunk.next_before)
            self._end_before.append(self.end_offset)
            self._in_file += 1
            self._digesting = self._in_file
            self.count += len(chunk.times)
            self.time_max_ms, self.next_message = chunk.times[-1], chunk.nexts[-1]
            self.end_offset = self.digested_end = chunk.end_offset
            if self.count == last:
                return

    def _remade(self, number: int) -> Chunk:
        """Make a chunk again from the records; write it to the file if that may be written."""
        segment = self._path.with_suffix(".log")
        _log.warning("%s: index damaged at row %d; making it again", segment, number * CHUNK_ROWS)
        fresh = TimeIndex(self._files, self._fds, self._path, self._header, self._cache)
        with self.writing, self._fds.use(segment) as fd:
            fresh.time_max_ms = self._time_before[number]
            fresh.count = number * CHUNK_ROWS
            fresh.next_message = self._next_before[number]
            fresh.end_offset = self._end_before[number]
            fresh._digesting = number
            limit = min((number + 1) * CHUNK_ROWS, self.count)
            cut = read_cut(self._files, segment, *self._id)
            index_from_records(self._files, fd, self._header, fresh, 0, cut=cut, row_limit=limit)
            following = self._next_before[number + 1 : number + 2]
            index_lost_rows(fresh, limit, following[0] if following else self.next_message)
            chunk = fresh._chunks[number]
            if not self._fds.read_only:
                self._rewrite(number, chunk)
        return chunk

    def _rewrite(self, number: int, chunk: Chunk) -> None:
        """Write a chunk and the head again. Readers have the chunk also if the disk is full."""
        try:
            with self._to_write() as file:
                file.write_head()
                file.write_chunk(number, chunk)
        except OSError as error:
            _log.warning("%s: the chunk is not written yet: %s", self._path, error)

    # Looking up

    @property
    def rows_in_memory(self) -> int:
        """How many rows are not in the index file, when it was last read."""
        return max(0, self.count - self._in_file * CHUNK_ROWS)

    def chunk_of(self, row: int, io: IoCount | None = None) -> Chunk:
        """The chunk that holds ``row``; made again if the file was damaged since."""
        number = row // CHUNK_ROWS
        chunk = self._chunks.get(number)
        if chunk is not None:
            return chunk
        key = (self._id, number)
        chunk = self._cache.get(key)
        if chunk is None:
            try:
                with self._fds.use(self._path) as fd:
                    chunk = self._opened(fd).chunk(number, io)
            except (BadIndexError, FileNotFoundError):
                chunk = self._remade(number)
            self._cache.put(key, chunk)
        return chunk

    def row(self, row: int, io: IoCount | None = None) -> Row:
        """One row; ``row`` must be below ``count``."""
        return self.chunk_of(row, io).row(row)

    def next_before(self, row: int) -> int:
        """Messages of the segment before ``row``; ``row`` may be ``count``."""
        return self.row(row - 1).next_message if row else 0

    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        """The first row below ``limit`` whose running maximum is >= ``time_ms``; else ``limit``."""
        number = bisect_left(self._time_before, time_ms) - 1
        if number < 0 or limit == 0:
            return 0
        chunk = self.chunk_of(min(number * CHUNK_ROWS, limit - 1), io)
        return min(chunk.first_row + bisect_left(chunk.times, time_ms), limit)

    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        """The row of the entry that holds the segment's message ``message`` (from 0)."""
        number = bisect_right(self._next_before, message) - 1
        if number < 0 or limit == 0:
            return 0
        # A chunk may end with entries without messages: step to the chunk that has it.
        chunk = self.chunk_of(min(number * CHUNK_ROWS, limit - 1), io)
        return min(chunk.first_row + bisect_right(chunk.nexts, message), limit)


_WINDOW_BYTES = 1 << 20


def index_from_records(
    files: Files,
    fd: int,
    header: SegmentHeader,
    index: TimeIndex,
    append_time_ms: int,
    *,
    cut: HeadCut = NO_CUT,
    row_limit: int = MAX_ENTRY_ID,
) -> int:
    """Add to ``index`` every record after those it already has; returns the last append time.

    ``cut`` says what was removed from the segment's head. Stops before row ``row_limit``.

    Entries lost to damage get rows as well (at the offset where the damage begins; the last of
    them counts all their messages), so that ids and indexes after them stay right.
    """
    _add_unreadable(
        index, cut.rows, cut.message_count, cut.end_offset, row_limit, cut.entry_time_max_ms
    )
    append_time_ms = _index_whole_records(files, fd, header, index, append_time_ms, row_limit)
    for record in scan_records(
        files, fd, header, index.end_offset, header.first_entry_id + index.count
    ):
        fields = record.fields
        row = fields.entry_id - header.first_entry_id
        next_message = fields.index + 1 - header.first_index
        damage = index.end_offset
        before = next_message - fields.message_count
        _add_unreadable(index, row, before, record.offset, row_limit)
        if row >= row_limit:
            break
        index.append(record.entry_time_ms, next_message, record.offset, record.end_offset)
        index.digest(record.data, record.offset)
        if record.damaged is not None or record.offset != damage or fields.kind > LAST_KIND:
            index.content_unknown()
        append_time_ms = max(append_time_ms, fields.append_time_ms)
    return max(append_time_ms, cut.append_time_max_ms)


def _add_unreadable(
    index: TimeIndex,
    count: int,
    next_message: int,
    end_offset: int,
    row_limit: int = MAX_ENTRY_ID,
    time_ms: int = 0,
) -> None:
    """Add rows up to ``count`` for entries without a record; the last has ``next_message``."""
    start, last = index.end_offset, count - 1
    while index.count < min(count, row_limit):
        known = next_message if index.count == last else index.next_message
        index.append(time_ms, max(known, index.next_message), start, end_offset)
        index.content_unknown()


def index_lost_rows(index: TimeIndex, count: int, next_message: int) -> None:
    """Add rows up to ``count`` for entries lost at the end; the last has ``next_message``."""
    _add_unreadable(index, count, next_message, index.end_offset)


def _index_whole_records(
    files: Files,
    fd: int,
    header: SegmentHeader,
    index: TimeIndex,
    append_time_ms: int,
    row_limit: int,
) -> int:
    """Index whole and small records, three times as fast; returns the last append time."""
    key = header.record_key
    while index.count < row_limit:
        start = index.end_offset
        data = read_up_to(files, fd, _WINDOW_BYTES, start)
        view = memoryview(data)
        at, entry_id = 0, header.first_entry_id + index.count
        while index.count < row_limit:
            try:
                record = whole_record(data, view, at, key)
            except BadRecordError:
                break
            _, _, size, prefix_size, kind, check, found_id, _, append_ms, index_of_last = record
            if found_id != entry_id or kind > LAST_KIND:
                break
            end = at + record_size(size, check)
            append_time_ms = append_ms
            if prefix_size and data[at + FIRST_TAG_AT] == BROKER_TIMESTAMP_TAG:
                time_ms = append_time_ms
            else:
                stored = view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + size]
                time_ms = time_of_entry(append_time_ms, stored, stored[prefix_size:])
            next_message = index_of_last + 1 - header.first_index
            index.append(time_ms, next_message, start + at, start + end)
            at, entry_id = end, entry_id + 1
        if at == 0:
            break
        index.digest(view[:at], start)
    return append_time_ms
