"""Reading one segment file: from rows of its index to entries, with every checksum checked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ....metadata.crc import crc32c
from ...entry import LAST_KIND, Entry, EntryKind
from ...limits import BODY_CRC_OURS
from ...position import Position
from ...rows import DamagedRecordError
from ...run import Run
from ..io.files import Buffer, read_up_to
from .index_format import CHUNK_ROWS
from .record_format import (
    BODY_CRC_SIZE,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    BadRecordError,
    RecordTuple,
    pack_body_crc,
    pack_record_head,
    pack_records,
    record_size,
    split_records,
    whole_record,
)
from .segment_rows import KINDS, SegmentRows


class Segment(SegmentRows):
    """A run of entries in one file."""

    overhead_bytes = (RECORD_HEADER_SIZE + BODY_CRC_SIZE, RECORD_HEADER_SIZE)

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
