"""Checks one segment completely: every record with both checksums, its stamp, its index file.

`scan` and `ledger.run.chain_of` say what the log's owner and readers do about damage. This follows
the same rules, so it reports as damaged exactly what they report.

A stamped entry has time and index twice: in the record's header, which the ledger reads, and in the
prefix, which readers of entries get (clients, mirrors, Pulsar's own tools). One append writes both
from the same numbers. So a difference means that bytes were joined which do not belong together,
though each part has a good checksum.

Every number of the index file can be computed from the records, but for the times of entries that
are damaged now. After such a place times are only checked to be possible: never falling, and never
below an entry's own time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ledger.entry import LAST_KIND
from ..ledger.local.io.files import Files, read_up_to
from ..ledger.local.io.folder import index_path
from ..ledger.local.segment.index_file import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    BadIndexError,
    Chunk,
    IndexFile,
    Trailer,
    index_head,
    open_index,
)
from ..ledger.local.segment.record_format import RECORD_HEADER_SIZE, RecordFields
from ..ledger.local.segment.scan import ScannedRecord, scan_records
from ..ledger.local.segment.segment_format import NO_CUT, HeadCut, SegmentHeader
from ..ledger.position import Position
from ..ledger.run import Link
from ..metadata import Buffer, PrefixError, peek
from ..metadata.crc import crc32c
from ..proto.broker_entry_pb2 import EntryKind
from .findings import (
    DamagedEntries,
    DamagedIndex,
    Finding,
    IndexGap,
    LostEntries,
    MissingIndex,
    TornTail,
    VoidEntries,
    WrongRecord,
)

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The facts about a segment that are known before its records are read."""

    path: Path
    link: Link[SegmentHeader]
    """Its header, and where its entries end."""
    is_ended: bool
    """Whether it has ended, so that its index file should be complete."""
    cut: HeadCut = NO_CUT
    """The first entries that were removed."""
    is_in_journal: bool = False
    """The next opening writes journal blocks to it, and may remake its index file."""


class SegmentCheck:
    """The check of one segment. Run it once; then its attributes have the result."""

    def __init__(self, files: Files, plan: SegmentPlan) -> None:
        self._files = files
        self._plan = plan
        header = plan.link.header
        self._where: dict[str, Any] = {"topic": header.topic, "path": plan.path}
        self._expected_id = header.first_entry_id + plan.cut.rows
        """Id of the entry that should come next."""
        self.next_index: int | None = header.first_index + plan.cut.message_count
        """Index that should come next; None after entries without records."""
        self._append_time_ms = 0
        self.end_offset = plan.cut.end_offset or header.size_bytes
        """The end of the last record that counts."""
        self.is_void = False
        """Whether records follow that do not count."""
        self.entries = 0
        """How many whole entries count."""
        self.messages = 0
        """Those of producers: control entries are counted apart."""
        self.control_entries = 0
        self.size_bytes = 0

    def run(self) -> Iterator[Finding]:
        """Read everything. Raises OSError, and FileNotFoundError if it was removed meanwhile."""
        plan, header = self._plan, self._plan.link.header
        head = index_head(header)
        with (
            self._files.opened(plan.path) as fd,
            open_index(self._files, plan.path, header.segment_id, head) as file,
        ):
            index = IndexCheck(file, plan)
            yield from self._records(fd, index)
            counting_rows = self._expected_id - header.first_entry_id
            index.finish(0 if plan.is_in_journal else counting_rows)
            yield from self._end(fd, index)
            yield from self._index(index)

    def _position(self, entry_id: int) -> Position:
        return Position(self._plan.link.header.ledger_id, entry_id)

    # Records

    def _records(self, fd: int, index: IndexCheck) -> Iterator[Finding]:
        self.size_bytes = self._files.size(fd)
        for record in scan_records(
            self._files, fd, self._plan.link.header, self.end_offset, self._expected_id
        ):
            if self._is_beyond(record):
                self.is_void = True
                yield VoidEntries(**self._where, position=self._position(record.fields.entry_id))
                return
            if record.fields.entry_id > self._expected_id:
                yield from self._gap(record, index)
            yield from self._record(record, index)

    def _is_beyond(self, record: ScannedRecord) -> bool:
        """Whether this record and all after it do not count."""
        end_id = self._plan.link.end_entry_id
        return end_id is not None and record.fields.entry_id >= end_id

    def _gap(self, record: ScannedRecord, index: IndexCheck) -> Iterator[Finding]:
        """Entries before ``record`` that have no record."""
        end_id = record.fields.entry_id
        yield DamagedEntries(
            **self._where,
            first=self._position(self._expected_id),
            end=self._position(end_id),
            offset=self.end_offset,
            reason=f"no whole record before byte {record.offset}",
        )
        for _ in range(self._expected_id, end_id):
            index.lose(self.end_offset, record.offset)
        self._expected_id, self.next_index = end_id, None

    def _record(self, record: ScannedRecord, index: IndexCheck) -> Iterator[Finding]:
        fields = record.fields
        position = self._position(fields.entry_id)
        reason = record.damaged
        if reason is None and fields.kind > LAST_KIND:
            reason = f"entry kind {fields.kind}"
        if reason is None:
            self.entries += 1
            if fields.kind == EntryKind.CONTROL:
                self.control_entries += 1
            else:
                self.messages += fields.message_count
            wrong = contradiction(fields, record.data[RECORD_HEADER_SIZE:])
            if wrong is not None:
                yield WrongRecord(**self._where, position=position, reason=wrong)
        else:
            yield DamagedEntries(
                **self._where,
                first=position,
                end=self._position(fields.entry_id + 1),
                offset=record.offset,
                reason=reason,
            )
        yield from self._continuity(record, position)
        index.add(record)
        self._expected_id = fields.entry_id + 1
        self.end_offset = record.end_offset

    def _continuity(self, record: ScannedRecord, position: Position) -> Iterator[Finding]:
        """Check that the record's index and time continue those of the record before."""
        fields = record.fields
        first_index = fields.index + 1 - fields.message_count
        if self.next_index is not None and first_index != self.next_index:
            yield IndexGap(
                **self._where,
                position=position,
                expected_index=self.next_index,
                found_index=first_index,
            )
        self.next_index = fields.index + 1
        if fields.append_time_ms < self._append_time_ms:
            yield WrongRecord(
                **self._where,
                position=position,
                reason=f"append time {fields.append_time_ms} is below that of the entry before, "
                f"{self._append_time_ms}",
            )
        self._append_time_ms = max(self._append_time_ms, fields.append_time_ms)

    # After the last record

    def _end(self, fd: int, index: IndexCheck) -> Iterator[Finding]:
        plan = self._plan
        end_id = plan.link.end_entry_id
        evidence = "a later header counts them"
        if end_id is None:
            end_id = plan.link.header.first_entry_id + index.stated_rows()
            evidence = "the index file has them"
        if self._expected_id < end_id:
            lost = None
            if plan.link.end_index is not None and self.next_index is not None:
                lost = plan.link.end_index - self.next_index
            yield LostEntries(
                **self._where,
                first=self._position(self._expected_id),
                end=self._position(end_id),
                message_count=lost,
                reason=f"no whole record from byte {self.end_offset} on, though {evidence}",
            )
            self._expected_id, self.next_index = end_id, plan.link.end_index
        elif not self.is_void:
            yield from self._tail(fd)

    def _tail(self, fd: int) -> Iterator[Finding]:
        size = self._files.size(fd)
        for at in range(self.end_offset, size, _READ_BYTES):
            if any(read_up_to(self._files, fd, min(_READ_BYTES, size - at), at)):
                yield TornTail(
                    **self._where,
                    position=self._position(self._expected_id),
                    offset=self.end_offset,
                    size_bytes=size - self.end_offset,
                )
                return

    # The index file

    def _index(self, index: IndexCheck) -> Iterator[Finding]:
        path = index_path(self._plan.path)
        if not index.sealed and not index.problems and self._plan.is_ended:
            reason = index.missing or "it was not completed"
            yield MissingIndex(topic=self._plan.link.header.topic, path=path, reason=reason)
        yield from index.problems


def contradiction(fields: RecordFields, entry: Buffer) -> str | None:
    """How the prefix of ``entry`` contradicts its record, as text; None: it does not."""
    if not fields.prefix_size_bytes:
        return None
    try:
        metadata = peek(entry)
    except PrefixError as error:
        return str(error)
    if metadata is None:
        return f"no stamp, though the record header states {fields.prefix_size_bytes} bytes of it"
    for name, field, recorded in (
        ("index", "index", fields.index),
        ("broker time", "broker_timestamp", fields.append_time_ms),
        ("message count", "message_count", fields.message_count),
    ):
        stamped = getattr(metadata, field)
        if metadata.HasField(field) and stamped != recorded:
            return f"the stamp has {name} {stamped}, the record {recorded}"
    if metadata.entry_kind != fields.kind:
        kind = EntryKind.Name(metadata.entry_kind)
        return f"the stamp says {kind}, the record has kind {fields.kind}"
    return None


_MAX_PROBLEMS = 20
"""The most problems reported for one file."""


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

    def __init__(self, file: IndexFile | None, plan: SegmentPlan) -> None:
        """``file`` is that of the segment's index; None: it is missing. Raises OSError."""
        self._file = file
        self._path = index_path(plan.path)
        self._header = header = plan.link.header
        self._exact_times = True
        self._time_max_ms = header.entry_time_floor_ms
        self._append_time_max_ms = 0
        self._next_message = 0
        self._end_offset = header.size_bytes
        self._count = 0
        self._rows = _Rows(0, self._time_max_ms, 0)
        self.trailer = file.trailer() if file is not None else None
        self.missing: str | None = None
        """Why there is no file to compare; None: there is one."""
        self.problems: list[DamagedIndex] = []
        if file is None:
            self.missing = "there is no such file"
            return
        self._size = file.size_bytes
        if not file.begins_with_head():
            self._report(0, "it does not begin with this segment's index header")
            self.missing = "unusable"
        self._remove(plan.cut)

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
            self.problems.append(
                DamagedIndex(
                    topic=self._header.topic,
                    path=self._path,
                    row=row,
                    sealed=self.sealed,
                    reason=reason,
                )
            )

    def _chunk(self, number: int) -> Chunk | None:
        """A chunk of the file, if it is good; in a file without trailer it must be full, too."""
        assert self._file is not None, "the file is compared only if it is there"
        try:
            chunk = self._file.chunk(number)
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
        return (self._size - len(index_head(self._header))) // CHUNK_BYTES * CHUNK_ROWS

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
