"""One segment file, read: rows of its index turned into entries, every checksum checked."""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from ....metadata.crc import crc32c
from ...entry import LAST_KIND, Entry, EntryKind, RecordHead
from ...limits import BODY_CRC_OURS, BODY_CRC_PRODUCER, CHECKED_BODY_BYTES, MAX_PREFIX_BYTES
from ...position import Position
from ...rows import DamagedRecordError, IoCount, Probe, Row
from ...run import Run
from ..io.fd_cache import FdCache
from ..io.files import Buffer, Files, read_up_to
from .head_cut import HeadCut, read_cut, write_cut
from .index_format import CHUNK_ROWS, BadIndexError, Chunk
from .indexing import index_from_records, index_lost_rows
from .segment_format import (
    BODY_CRC_SIZE,
    BROKER_TIMESTAMP_TAG,
    FIRST_TAG_AT,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_LIMIT,
    BadRecordError,
    RecordTuple,
    SegmentHeader,
    pack_body_crc,
    pack_record_head,
    record_size_bytes,
    split_records,
    unpack_segment_header,
    whole_head,
    whole_record,
)
from .time_index import TimeIndex

_PROBE_BYTES = 64
"""Header, prefix with broker time and index below 2^28, the body bytes the checksum covers."""
_LONGEST_HEAD_BYTES = RECORD_HEADER_SIZE + MAX_PREFIX_BYTES + CHECKED_BODY_BYTES
_log = logging.getLogger(__name__)


class Segment(Run):
    """A run of entries in one file. ``entry_count`` is what readers may see."""

    def __init__(
        self,
        files: Files,
        fds: FdCache,
        path: Path,
        header: SegmentHeader,
        index: TimeIndex,
    ) -> None:
        super().__init__(header)
        self._files = files
        self._fds = fds
        self.path = path
        self._header = header
        self.index = index
        self.record_key = header.record_key
        self.sync_failed = False
        """A sync of the file failed: it must never be synced again."""
        self._map = memoryview(b"")
        self._mending = threading.Lock()

    @property
    def header(self) -> SegmentHeader:
        """What its file begins with."""
        return self._header

    @property
    def time_max_ms(self) -> int:
        """As ``Run.time_max_ms``."""
        return self.index.time_max_ms

    @property
    def written_count(self) -> int:
        """As ``Run.written_count``."""
        return self.index.count

    overhead_bytes = (RECORD_HEADER_SIZE + BODY_CRC_SIZE, RECORD_HEADER_SIZE)

    def first_bytes(self) -> bytes:
        """The segment's header."""
        return self._header.pack()

    def pack(
        self,
        entry_id: int,
        kind: EntryKind,
        message_count: int,
        append_time_ms: int,
        index: int,
        prefix: bytes,
        body: Buffer,
        body_check: int,
    ) -> tuple[Buffer, ...]:
        """The entry's record, in parts: header and prefix, body, and its checksum if it is ours."""
        head = pack_record_head(
            self.record_key,
            entry_id,
            kind,
            message_count,
            append_time_ms,
            index,
            prefix,
            body,
            body_check,
        )
        if body_check == BODY_CRC_OURS:
            return head, body, pack_body_crc(body)
        return head, body

    def unpacker(self) -> Callable[[bytes], list[Entry]]:
        """As `Run.unpacker`."""
        return partial(_unpack_entries, self.ledger_id)

    def truncate(self, entry_count: int) -> None:
        """Forget all entries from ``entry_count`` on: they no longer count, or never did.

        Raises OSError before anything has changed, never behind that.
        """
        was_shown = self.entry_count
        if entry_count < self.index.count:
            self.chunk(entry_count)  # the one part that may have to be read or mended first
        self._sample = self._own_times = None
        to_digest = self.index.truncate(entry_count)
        self.show(entry_count)
        if to_digest is not None:
            self._digest(*to_digest)
        if entry_count < was_shown:
            floor_ms, self.append_time_max_ms = self.append_time_max_ms, self.header.stamp_floor_ms
            try:
                self._learn_last_append_time()
            except (OSError, DamagedRecordError):
                self.append_time_max_ms = floor_ms  # too late at worst: time never goes back

    def _digest(self, start: int, end: int) -> None:
        """Sum up these bytes for the index; where they cannot be read, no sum vouches for them."""
        try:
            with self._fds.use(self.path) as fd:
                data = read_up_to(self._files, fd, end - start, start)
        except OSError:
            data = b""
        if len(data) == end - start:
            self.index.digest(data, start)
        else:
            self.index.content_unknown()

    def show(self, entry_count: int) -> None:
        """Let readers see the first ``entry_count`` entries: they are durable now."""
        self._next_message = self.index.next_before(entry_count)
        self.entry_count = entry_count

    # Bringing the index in line with the file

    def load_index(self) -> None:
        """Take the index from its file as far as it is good, the rest from the records."""
        trailer = self.index.load()
        if trailer is not None:
            self.append_time_max_ms = trailer.append_time_max_ms
        else:
            self.read_new_records()
            self._learn_last_append_time()
        self.show(self.index.count)

    def _learn_last_append_time(self) -> None:
        """From the last record: rows of the index do not tell."""
        last = self.index.count - 1
        if last >= self.cut_rows:
            for probe in self.probes(last, self.row(last).offset, 1, IoCount()):
                self.append_time_max_ms = max(self.append_time_max_ms, probe.append_time_ms)

    def load_cut(self) -> None:
        """Learn how many of the first entries were removed. Raises UnsupportedVersionError."""
        self.cut_rows = min(self._read_cut().rows, self.entry_count)

    def is_gone(self, row: int) -> bool:
        """Whether the entry of ``row`` was removed: asked when it could not be read.

        This process's own removals are known here; those of the folder's owner are looked for.
        Raises UnsupportedVersionError, OSError.
        """
        if not self.removed and row >= self.cut_rows and self._fds.read_only:
            self.cut_rows = max(self.cut_rows, min(self._read_cut().rows, self.entry_count))
            self.removed = not self._files.exists(self.path)
        return self.removed or row < self.cut_rows

    def _read_cut(self) -> HeadCut:
        return read_cut(self._files, self.path, self.ledger_id, self.header.segment_no)

    def cut_head(self, rows: int) -> None:
        """Remove the first ``rows`` entries: durable before they disappear. Gives back space."""
        last = self.row(rows - 1)
        cut = HeadCut(
            rows, last.next_message, last.end_offset, last.time_ms, self.append_time_max_ms
        )
        write_cut(self._files, self.path, self.ledger_id, self.header.segment_no, cut)
        self.cut_rows = rows
        start, end = self.header.size_bytes, last.end_offset
        with self._fds.use(self.path) as fd, suppress(OSError):  # not every file system can
            self._files.punch_hole(fd, start, end - start)

    def read_new_records(self) -> None:
        """Add rows for the records behind the last one known."""
        cut = self._read_cut()
        with self._fds.use(self.path) as fd:
            self.append_time_max_ms = index_from_records(
                self._files, fd, self.header, self.index, self.append_time_max_ms, cut=cut
            )

    def _mend_index(self, row: int) -> None:
        """The index file went bad at ``row``: make that chunk again from the records."""
        number = row // CHUNK_ROWS
        _log.warning("%s: the index is damaged at row %d and made again", self.path, row)
        cut = self._read_cut()
        with self._mending, self._fds.use(self.path) as fd:
            fresh = self.index.before_chunk(number)
            if number == 0:
                fresh.end_offset = self.header.size_bytes
            limit = min((number + 1) * CHUNK_ROWS, self.index.count)
            index_from_records(self._files, fd, self.header, fresh, 0, cut=cut, row_limit=limit)
            index_lost_rows(fresh, limit, self.index.next_behind(number))
            self.index.mend(number, fresh)

    def row(self, row: int, io: IoCount | None = None) -> Row:
        """One entry's row of the index."""
        chunk = self.chunk(row, io)
        at = row - chunk.first_row
        return Row(chunk.times[at], chunk.nexts[at], chunk.offsets[at], chunk.end_of(at))

    def chunk(self, row: int, io: IoCount | None = None) -> Chunk:
        """The chunk of the index that holds ``row``; made again where its file went bad."""
        try:
            return self.index.chunk_of(row, io)
        except BadIndexError:
            self._mend_index(row)
            return self.index.chunk_of(row, io)

    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        """As ``TimeIndex.find_time``."""
        try:
            return self.index.find_time(time_ms, limit, io)
        except BadIndexError as bad:
            self._mend_index(bad.row)
            return self.index.find_time(time_ms, limit, io)

    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        """As ``TimeIndex.find_message``."""
        try:
            return self.index.find_message(message, limit, io)
        except BadIndexError as bad:
            self._mend_index(bad.row)
            return self.index.find_message(message, limit, io)

    # Entries

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``row`` on, at least one: up to ``max_entries`` in up to ``max_bytes``.

        Ends before a damaged record; raises DamagedRecordError when ``row`` itself is damaged.
        """
        ledger_id = self.ledger_id
        return [
            Entry(
                Position(ledger_id, record[6]),
                _KINDS[record[4]],
                record[7],
                record[9],
                record[8],
                record[3],
                view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + record[2]],
            )
            for view, at, record in self._records(row, max_entries, max_bytes)
        ]

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

    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        """What up to ``count`` records from ``row`` on say of themselves, one small read each.

        ``offset`` is where the first one begins; each tells where the next does. Header and
        prefix are checked; no payload is read. Damaged records are left out.
        """
        pread, key = self._files.pread, self.record_key
        first_entry_id = self.first_entry_id
        with self._fds.use(self.path) as fd:
            for number in range(row, row + count):
                data = pread(fd, _PROBE_BYTES, offset)
                io.add(len(data))
                try:
                    record: RecordTuple | None = whole_head(data, key)
                except BadRecordError:
                    record, data = self._long_head(fd, offset, io)
                if record is None or record[6] != first_entry_id + number:
                    if number + 1 < self.entry_count:
                        offset = self.row(number + 1, io).offset
                    continue
                stamped = record[3] and data[FIRST_TAG_AT] == BROKER_TIMESTAMP_TAG
                yield Probe(number, record[8] if stamped else -1, record[8], record[9], record[7])
                offset += record_size_bytes(record)

    def _long_head(self, fd: int, offset: int, io: IoCount) -> tuple[RecordTuple | None, bytes]:
        """A record whose prefix is longer than usual, or which is damaged."""
        data = read_up_to(self._files, fd, _LONGEST_HEAD_BYTES, offset)
        io.add(len(data))
        try:
            return whole_head(data, self.record_key), data
        except BadRecordError:
            return None, data

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        """Record header and prefix of one entry, without its payload. Raises DamagedRecordError."""
        io = io or IoCount()
        offset = self.row(row, io).offset
        with self._fds.use(self.path) as fd:
            data = self._files.pread(fd, _PROBE_BYTES, offset)
            io.add(len(data))
            try:
                record: RecordTuple | None = whole_head(data, self.record_key)
            except BadRecordError:
                record, data = self._long_head(fd, offset, io)
        if record is None or record[6] != self.first_entry_id + row:
            raise DamagedRecordError(row, "there is no record header that matches its checksum")
        if record[4] > LAST_KIND:
            raise DamagedRecordError(row, f"its kind, {record[4]}, is not known")
        return RecordHead(
            Position(self.ledger_id, record[6]),
            _KINDS[record[4]],
            record[7],
            record[9],
            record[8],
            memoryview(data)[RECORD_HEADER_SIZE : RECORD_HEADER_SIZE + record[3]],
            record[2] - record[3],
            record_size_bytes(record),
        )


_KINDS = tuple(EntryKind)


def _unpack_entries(ledger_id: int, data: bytes) -> list[Entry]:
    """The entries whose records ``data`` is, as views on it."""
    view = memoryview(data)
    unpack, size = RECORD_HEADER.unpack_from, len(data)
    entries = []
    at = 0
    while at < size:
        record = unpack(data, at)
        _, _, stored_size, prefix_size, kind, body_check, entry_id, count, time_ms, index = record
        start = at + RECORD_HEADER_SIZE
        end = start + stored_size
        entries.append(
            Entry(
                Position(ledger_id, entry_id),
                _KINDS[kind],
                count,
                index,
                time_ms,
                prefix_size,
                view[start:end],
            )
        )
        at = end if body_check == BODY_CRC_PRODUCER else end + BODY_CRC_SIZE
    return entries


def as_segment(run: Run) -> Segment:
    """A run of the local engine, for code that goes to its file. Raises TypeError."""
    if not isinstance(run, Segment):
        raise TypeError(f"a {type(run).__name__} has no file")
    return run


def read_segment_header(files: Files, path: Path) -> SegmentHeader:
    """A segment file's header. Raises CorruptFileError, UnsupportedVersionError, OSError."""
    fd = files.open(path, os.O_RDONLY)
    try:
        return unpack_segment_header(read_up_to(files, fd, SEGMENT_HEADER_LIMIT, 0), path)
    finally:
        files.close(fd)
