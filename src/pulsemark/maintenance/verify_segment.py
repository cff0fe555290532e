"""Reading one segment completely: every record with both checksums, and its index file.

`scan` and `chain` say what the log's owner and readers do about damage. This follows the same
rules, so it reports as damaged exactly what they report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ledger.entry import LAST_KIND, EntryKind
from ..ledger.local.io.files import Files, read_up_to
from ..ledger.local.io.folder import index_path
from ..ledger.local.segment.record_format import RECORD_HEADER_SIZE, ScannedRecord, scan_records
from ..ledger.local.segment.segment_format import NO_CUT, HeadCut, SegmentHeader
from ..ledger.position import Position
from ..ledger.run import Link
from .finding import Finding
from .findings import (
    DamagedEntries,
    DamagedIndex,
    IndexGap,
    LostEntries,
    MissingIndex,
    TornTail,
    VoidEntries,
    WrongRecord,
)
from .verify_index import IndexCheck
from .verify_prefix import contradiction

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The facts about a segment that are known before its records are read."""

    path: Path
    link: Link[SegmentHeader]
    """Its header, and where its entries end."""
    is_ended: bool
    """Whether it has ended, so that its index file should be complete."""
    salvaged: bool = False
    """Whether the header was salvaged."""
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
        plan = self._plan
        fd = self._files.open(plan.path, os.O_RDONLY)
        try:
            index = IndexCheck(
                self._files,
                index_path(plan.path),
                plan.link.header,
                cut=plan.cut,
                exact_floor=not plan.salvaged,
            )
            try:
                yield from self._records(fd, index)
                counting_rows = self._expected_id - plan.link.header.first_entry_id
                index.finish(0 if plan.is_in_journal else counting_rows)
                yield from self._end(fd, index)
                yield from self._index(index)
            finally:
                index.close()
        finally:
            self._files.close(fd)

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
                yield VoidEntries(
                    **self._where,
                    position=self._position(record.fields.entry_id),
                )
                return
            if record.fields.entry_id > self._expected_id:
                yield from self._gap(record, index)
            yield from self._record(record, index)

    def _is_beyond(self, record: ScannedRecord) -> bool:
        """Whether this record and all after it do not count."""
        plan, fields = self._plan, record.fields
        if plan.link.end_entry_id is not None:
            return fields.entry_id >= plan.link.end_entry_id
        return plan.link.end_index is not None and fields.index >= plan.link.end_index

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

    # What follows the last record

    def _end(self, fd: int, index: IndexCheck) -> Iterator[Finding]:
        plan = self._plan
        end_id = plan.link.end_entry_id
        evidence = "a later header counts them"
        if end_id is None and plan.link.end_index is None:
            end_id = plan.link.header.first_entry_id + index.stated_rows()
            evidence = "the index file has them"
        if end_id is not None and self._expected_id < end_id:
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
        for problem in index.problems:
            yield DamagedIndex(
                topic=self._plan.link.header.topic,
                path=path,
                row=problem.row,
                sealed=index.sealed,
                reason=problem.reason,
            )
