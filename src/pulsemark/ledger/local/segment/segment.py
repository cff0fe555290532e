"""One segment file: from rows of its index to entries, with every checksum checked.

The index is kept in step with the file.

**States.**
The states of a segment, and which of them may follow which.

A segment has one state. Only the `Filer` changes it (and a reader, which finds a file gone), and
each change is checked against `FOLLOWING`: any other change is a mistake in this program.

::

    NEW ──► PENDING ──► DURABLE ──► ENDED ──► SEALED

A ledger that is fenced has no state of its own: of its segments those with durable entries end,
those without are void.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path

from ....metadata.crc import crc32c
from ....records import FactsError
from ...entry import KINDS, LAST_KIND, Entry, EntryKind, RecordHead
from ...limits import BODY_CRC_OURS, CHECKED_BODY_BYTES, MAX_PREFIX_BYTES
from ...position import Position
from ...run import DamagedRecordError, IoCount, Probe, Row, Run
from ..io.fd_cache import FdCache
from ..io.files import Buffer, Files, read_up_to
from ..io.folder import SegmentId
from .index_file import CHUNK_ROWS, Chunk
from .record_format import (
    BODY_CRC_SIZE,
    BROKER_TIMESTAMP_TAG,
    FIRST_TAG_AT,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    BadRecordError,
    RecordFields,
    RecordTuple,
    pack_body_crc,
    pack_record_head,
    pack_records,
    record_size,
    split_records,
    unpack_record_head,
    whole_record,
)
from .segment_format import HeadCut, SegmentHeader, read_cut, write_cut
from .time_index import TimeIndex, index_from_records

_PROBE_BYTES = 64
"""Size of the usual head: header, prefix (broker time, index below 2^28) and six body bytes."""
_LONGEST_HEAD_BYTES = RECORD_HEADER_SIZE + MAX_PREFIX_BYTES + CHECKED_BODY_BYTES


class SegmentState(Enum):
    """The state of a segment."""

    NEW = "new"
    """A topic is about to begin it. It has no file, and nothing else refers to it."""
    PENDING = "pending"
    """Entries are appended to it, and none of them is durable yet."""
    DURABLE = "durable"
    """It has durable entries, and more may follow."""
    ENDED = "ended"
    """No entry follows. Entries may still be pending; once they are durable it can be sealed."""
    SEALED = "sealed"
    """Ended, and its index file is complete and synced."""
    FAILED = "failed"
    """A sync of its file failed. The file is never synced again; the journal is kept."""
    VOID = "void"
    """None of its entries ever counted. Its file is removed before the journal is freed."""
    REMOVED = "removed"
    """Its entries were removed, durably; the file is removed or about to be."""


_S = SegmentState
FOLLOWING: dict[SegmentState, set[SegmentState]] = {
    _S.NEW: {_S.PENDING},
    # Ended: the ledger rolled before the first commit.
    _S.PENDING: {_S.DURABLE, _S.ENDED, _S.FAILED, _S.VOID},
    # Void: a cut's control entry was written whole, though its write failed.
    _S.DURABLE: {_S.ENDED, _S.FAILED, _S.VOID, _S.REMOVED},
    # Void: all entries that were still pending failed.
    _S.ENDED: {_S.SEALED, _S.FAILED, _S.VOID, _S.REMOVED},
    # Ended: its tail was cut off. Failed: sealed between two checkpoints; the second one failed.
    _S.SEALED: {_S.ENDED, _S.FAILED, _S.REMOVED},
    _S.FAILED: {_S.VOID, _S.REMOVED},
    _S.VOID: {_S.REMOVED},
    _S.REMOVED: set(),
}
"""The legal transitions; every other one raises SegmentStateError."""

GONE = frozenset({_S.VOID, _S.REMOVED})
"""The file is removed or about to be: it needs no sync, and failing to read it is not damage."""


class SegmentStateError(
    FactsError, text="segment {name} is {old.value} and cannot become {new.value}"
):
    """A transition that is not in `FOLLOWING`: a mistake in this program."""

    name: str
    old: SegmentState
    new: SegmentState


_changing = threading.Lock()


class Life:
    """The state of one segment. Safe between threads."""

    __slots__ = ("_name", "state")

    def __init__(self, name: str, state: SegmentState = SegmentState.NEW) -> None:
        self._name = name
        self.state = state
        """Anyone may read it; only ``become`` changes it."""

    def become(self, new: SegmentState, *, only_if: Collection[SegmentState] = ()) -> bool:
        """Change the state, if it is in ``only_if``; returns whether. Raises SegmentStateError."""
        with _changing:
            if only_if and self.state not in only_if:
                return False
            if new not in FOLLOWING[self.state]:
                raise SegmentStateError(self._name, self.state, new)
            self.state = new
            return True


_NOT_REMOVED = frozenset(SegmentState) - {SegmentState.REMOVED}


class Segment(Run):
    """A run of entries in one file."""

    overhead_bytes = (RECORD_HEADER_SIZE + BODY_CRC_SIZE, RECORD_HEADER_SIZE)
    entry_overhead_bytes = RECORD_HEADER_SIZE

    header: SegmentHeader

    def __init__(
        self,
        files: Files,
        fds: FdCache,
        path: Path,
        header: SegmentHeader,
        index: TimeIndex,
        life: Life,
    ) -> None:
        super().__init__(header)
        self._files = files
        self._fds = fds
        self.path = path
        self.index = index
        self.record_key = header.record_key
        self.life = life
        """Its state, which the `Filer` changes."""

    @property
    def time_max_ms(self) -> int:
        return self.index.time_max_ms

    @property
    def written_count(self) -> int:
        return self.index.count

    @property
    def segment_id(self) -> SegmentId:
        return self.header.segment_id

    @property
    def state(self) -> SegmentState:
        return self.life.state

    @property
    def removed(self) -> bool:
        """As ``Run.removed``: its file is removed or about to be, or it never counted."""
        return self.life.state in GONE

    def mark_removed(self) -> None:
        """As ``Run.mark_removed``. A removed segment stays removed."""
        self.life.become(SegmentState.REMOVED, only_if=_NOT_REMOVED)

    def truncate(self, entry_count: int) -> None:
        with self.index.writing:
            was_shown = self.entry_count
            to_digest = self.index.truncate(entry_count)
            self.show(entry_count)
            if to_digest is not None:
                self._digest(*to_digest)
            self._sample = self._own_times = None
            if entry_count >= was_shown:
                return
            known_ms, self.append_time_max_ms = self.append_time_max_ms, self.header.stamp_floor_ms
            try:
                self._learn_last_append_time()
            except (OSError, DamagedRecordError):
                self.append_time_max_ms = known_ms  # at worst it is too high: times never go back

    def _digest(self, start: int, end: int) -> None:
        """Add these bytes to the index's checksum; if they cannot be read, the chunk gets none."""
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

    def show_group(self, entry_count: int, next_message: int, append_time_ms: int) -> None:
        """As ``Run.show_group``: the first entries make a pending segment durable."""
        if self.life.state is SegmentState.PENDING:
            self.life.become(SegmentState.DURABLE, only_if=(SegmentState.PENDING,))
        super().show_group(entry_count, next_message, append_time_ms)

    # Keeping the index in step with the file

    def load_index(self) -> None:
        """Load the index from its file as far as that is good, the rest from the records."""
        trailer = self.index.load()
        if trailer is not None:
            self.append_time_max_ms = trailer.append_time_max_ms
        else:
            self.read_new_records()
            self._learn_last_append_time()
        self.show(self.index.count)

    def _learn_last_append_time(self) -> None:
        """Read it from the last record: the index has no append times."""
        last = self.index.count - 1
        if last >= self.cut_rows:
            for probe in self.probes(last, self.row(last).offset, 1, IoCount()):
                self.append_time_max_ms = max(self.append_time_max_ms, probe.append_time_ms)

    def load_cut(self) -> None:
        """Load how many of the first entries were removed. Raises UnsupportedVersionError."""
        self.cut_rows = min(self._read_cut().rows, self.entry_count)

    def is_gone(self, row: int) -> bool:
        """Whether the entry of ``row`` was removed: asked when it could not be read.

        This process's removals are in memory; for others' it reads the cut file.
        Raises UnsupportedVersionError, OSError.
        """
        if not self.removed and row >= self.cut_rows and self._fds.read_only:
            self.cut_rows = max(self.cut_rows, min(self._read_cut().rows, self.entry_count))
            if not self._files.exists(self.path):
                self.life.become(SegmentState.REMOVED, only_if=(SegmentState.DURABLE,))
        return self.removed or row < self.cut_rows

    def _read_cut(self) -> HeadCut:
        return read_cut(self._files, self.path, self.ledger_id, self.header.segment_no)

    def cut_head(self, rows: int) -> None:
        """Remove the first ``rows`` entries: durable before they disappear. Frees their space."""
        last = self.row(rows - 1)
        cut = HeadCut(
            last.time_ms, self.append_time_max_ms, last.end_offset, rows, last.next_message
        )
        write_cut(self._files, self.path, self.ledger_id, self.header.segment_no, cut)
        self.cut_rows = rows
        start, end = self.header.size_bytes, last.end_offset
        with self._fds.use(self.path) as fd, suppress(OSError):  # not every file system can
            self._files.punch_hole(fd, start, end - start)

    def read_new_records(self) -> None:
        """Add rows for the records after the last one known."""
        cut = self._read_cut()
        with self._fds.use(self.path) as fd:
            self.append_time_max_ms = index_from_records(
                self._files, fd, self.header, self.index, self.append_time_max_ms, cut=cut
            )

    def row(self, row: int, io: IoCount | None = None) -> Row:
        return self.index.chunk_of(row, io).row(row)

    def chunk(self, row: int, io: IoCount | None = None) -> Chunk:
        """The chunk of the index that holds ``row``."""
        return self.index.chunk_of(row, io)

    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        return self.index.find_time(time_ms, limit, io)

    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        return self.index.find_message(message, limit, io)

    # Heads of records

    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        """The facts of up to ``count`` records from ``row`` on, with one small read each.

        ``offset`` is where the first one begins; each says where the next one begins. Header and
        prefix are checked; no payload is read. Damaged records are left out.
        """
        pread, key = self._files.pread, self.record_key
        first_entry_id = self.first_entry_id
        with self._fds.use(self.path) as fd:
            for number in range(row, row + count):
                data = pread(fd, _PROBE_BYTES, offset)
                io.add(len(data))
                try:
                    record: RecordFields | None = unpack_record_head(data, 0, key)
                except BadRecordError:
                    record, data = self._long_head(fd, offset, io)
                if record is None or record[6] != first_entry_id + number:
                    if number + 1 < self.entry_count:
                        offset = self.row(number + 1, io).offset
                    continue
                _, _, size, prefix_size, _, check, _, messages, time_ms, index = record
                stamped = prefix_size and data[FIRST_TAG_AT] == BROKER_TIMESTAMP_TAG
                yield Probe(number, time_ms if stamped else -1, time_ms, index, messages)
                offset += record_size(size, check)

    def _long_head(self, fd: int, offset: int, io: IoCount) -> tuple[RecordFields | None, bytes]:
        """A record whose prefix is longer than usual, or which is damaged."""
        data = read_up_to(self._files, fd, _LONGEST_HEAD_BYTES, offset)
        io.add(len(data))
        try:
            return unpack_record_head(data, 0, self.record_key), data
        except BadRecordError:
            return None, data

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        io = io or IoCount()
        offset = self.row(row, io).offset
        with self._fds.use(self.path) as fd:
            data = self._files.pread(fd, _PROBE_BYTES, offset)
            io.add(len(data))
            try:
                record: RecordFields | None = unpack_record_head(data, 0, self.record_key)
            except BadRecordError:
                record, data = self._long_head(fd, offset, io)
        if record is None or record.entry_id != self.first_entry_id + row:
            raise DamagedRecordError(row, "no record header there matches its checksum")
        if record.kind > LAST_KIND:
            raise DamagedRecordError(row, f"its kind, {record.kind}, is not known")
        return RecordHead(
            Position(self.ledger_id, record.entry_id),
            KINDS[record.kind],
            record.message_count,
            record.index,
            record.append_time_ms,
            memoryview(data)[RECORD_HEADER_SIZE : RECORD_HEADER_SIZE + record.prefix_size_bytes],
            record.entry_size_bytes - record.prefix_size_bytes,
            record.record_size_bytes,
        )

    # Entries

    def first_bytes(self) -> bytes:
        """The segment's header."""
        return self.header.pack()

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
        """The entry's record, in parts: header and prefix, body, and our checksum, if any."""
        head = pack_record_head(
            self.record_key, entry_id, kind, message_count, append_time_ms, index, prefix, body,
            body_check,
        )  # fmt: skip
        if body_check == BODY_CRC_OURS:
            return head, body, pack_body_crc(body)
        return head, body

    def pack_run(
        self,
        first_entry_id: int,
        kind: EntryKind,
        message_counts: Sequence[int],
        append_time_ms: int,
        next_index: int,
        prefixes: Sequence[bytes],
        bodies: Sequence[Buffer],
        body_check: int,
        offset: int,
    ) -> tuple[list[Buffer], list[int]]:
        """As ``Run.pack_run``, with one loop over the records."""
        return pack_records(
            self.record_key, first_entry_id, kind, message_counts, append_time_ms, next_index,
            prefixes, bodies, body_check, offset,
        )  # fmt: skip

    def unpacker(self) -> Callable[[bytes], list[Entry]]:
        return partial(_unpack_entries, self.ledger_id)

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
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

    def read_stored(self, row: int, max_entries: int, max_bytes: int) -> list[memoryview]:
        """As ``read``, but only the stored bytes of each entry: prefix and body.

        A whole chunk of the index is checked by its single checksum, which makes long reads of
        small entries fast; anything less is checked record by record.

        Raises DamagedRecordError, OSError.
        """
        chunk = self.chunk(row)
        count = len(chunk.offsets)
        size = chunk.end_offset - chunk.offsets[0]
        whole = row == chunk.first_row and count == CHUNK_ROWS <= max_entries
        if whole and chunk.content_known and size <= max_bytes and row + count <= self.entry_count:
            data = self._bytes(chunk.offsets[0], size)
            if crc32c(data) == chunk.content_crc:
                return split_records(data, chunk.offsets)
        return [
            view[at + RECORD_HEADER_SIZE : at + RECORD_HEADER_SIZE + record[2]]
            for view, at, record in self._records(row, max_entries, max_bytes)
        ]

    def _bytes(self, offset: int, size_bytes: int) -> bytes:
        with self._fds.use(self.path) as fd:
            return read_up_to(self._files, fd, size_bytes, offset)

    def _records(
        self, row: int, max_entries: int, max_bytes: int
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
        data = self._bytes(start, end - start)
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


def _unpack_entries(ledger_id: int, data: bytes) -> list[Entry]:
    """The entries of the records in ``data``, as views on it."""
    view = memoryview(data)
    unpack, size = RECORD_HEADER.unpack_from, len(data)
    entries = []
    at = 0
    while at < size:
        record = unpack(data, at)
        _, _, stored_size, prefix_size, kind, body_check, entry_id, count, time_ms, index = record
        start = at + RECORD_HEADER_SIZE
        entries.append(
            Entry(
                Position(ledger_id, entry_id),
                KINDS[kind],
                count,
                index,
                time_ms,
                prefix_size,
                view[start : start + stored_size],
            )
        )
        at += record_size(stored_size, body_check)
    return entries


def as_segment(run: Run) -> Segment:
    """The run as a Segment, for code that reads its file. Raises TypeError."""
    if not isinstance(run, Segment):
        raise TypeError(f"a {type(run).__name__} has no file")
    return run
