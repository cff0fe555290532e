"""Bytes of a compacted view. No other module computes their offsets.

A view is a ledger of its own in the same store (`compaction` says when it is made and which one
counts), so each record here is the body of one of its entries, and the ledger gives headers,
checksums and recovery. docs/formats.md has the tables of all fields. A record larger than the
store's largest entry is cut into pieces; each but the first begins with type and flags only. After
every `BLOCK_ROWS` entries and after the last one there is an index block, in columns. The footer
ends the view; without it the view was not finished.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..ledger.errors import UnsupportedVersionError
from ..ledger.position import EARLIEST, Position
from ..ledger.store import VIEW_VERSION, BadViewError, ViewSummary
from ..metadata import Buffer

BLOCK_ROWS = 512

RECORD = struct.Struct("<BB")
_ENTRY = struct.Struct("<BBHIQQQQQQQQ")
ENTRY_HEADER_BYTES = _ENTRY.size
_BLOCK = struct.Struct("<BBHI")
_SUMMARY = struct.Struct("<6Q")
_BLOCK_PLACE = struct.Struct("<6Q")
CONTINUED = 1


class RecordType(IntEnum):
    """The first byte of a record."""

    ENTRY = 1
    BLOCK = 2
    FOOTER = 3
    MORE = 4


@dataclass(slots=True)
class ViewRow:
    """One entry of a view."""

    position: Position
    """Its position in the topic's log."""
    message_count: int
    next_index: int
    append_time_ms: int
    entry_time_ms: int
    time_max_ms: int
    """Highest entry time in the log up to and with this entry."""
    ordinal: int
    messages_before: int
    at: Position = EARLIEST
    """The position of its record, in the view's own ledger."""


def pack_entry_header(row: ViewRow, prefix_size_bytes: int) -> bytes:
    """The bytes before an entry's stored bytes."""
    return _ENTRY.pack(
        RecordType.ENTRY,
        0,
        prefix_size_bytes,
        row.message_count,
        *row.position,
        row.next_index,
        row.append_time_ms,
        row.entry_time_ms,
        row.time_max_ms,
        row.ordinal,
        row.messages_before,
    )


def unpack_entry_header(record: Buffer, at: Position) -> tuple[ViewRow, int]:
    """An entry's row and the size of its prefix. Raises BadViewError."""
    if len(record) < ENTRY_HEADER_BYTES or record[0] != RecordType.ENTRY:
        raise BadViewError("the record is not an entry")
    (_, _, prefix_size, count, ledger_id, entry_id, next_index, append_time, entry_time,
     time_max, ordinal, messages_before) = _ENTRY.unpack_from(record)  # fmt: skip
    row = ViewRow(
        Position(ledger_id, entry_id),
        count,
        next_index,
        append_time,
        entry_time,
        time_max,
        ordinal,
        messages_before,
        at,
    )
    return row, prefix_size


_COLUMNS = (
    ("I", attrgetter("message_count")),
    ("Q", attrgetter("position.ledger_id")),
    ("Q", attrgetter("position.entry_id")),
    ("Q", attrgetter("next_index")),
    ("Q", attrgetter("append_time_ms")),
    ("Q", attrgetter("entry_time_ms")),
    ("Q", attrgetter("at.ledger_id")),
    ("Q", attrgetter("at.entry_id")),
    ("Q", attrgetter("time_max_ms")),
    ("Q", attrgetter("messages_before")),
)


def pack_block(rows: Sequence[ViewRow]) -> bytes:
    """An index block."""
    parts = [_BLOCK.pack(RecordType.BLOCK, 0, 0, len(rows))]
    parts += [struct.pack(f"<{len(rows)}{kind}", *map(get, rows)) for kind, get in _COLUMNS]
    return b"".join(parts)


class ViewBlock:
    """An index block, unpacked for searching: three columns have the names of a row's fields."""

    def __init__(self, record: Buffer, first_ordinal: int) -> None:
        """Raises BadViewError."""
        try:
            kind, _, _, count = _BLOCK.unpack_from(record)
            at = _BLOCK.size
            columns: list[tuple[int, ...]] = []
            for letter, _ in _COLUMNS:
                column = struct.Struct(f"<{count}{letter}")
                columns.append(column.unpack_from(record, at))
                at += column.size
        except struct.error as error:
            raise BadViewError("an index block is cut off") from error
        if kind != RecordType.BLOCK or at != len(record) or not count:
            raise BadViewError("the record is not an index block")
        (counts, ledgers, entries, self.next_index, append_times, entry_times,
         at_ledgers, at_entries, self.time_max_ms, messages_before) = columns  # fmt: skip
        self.position = list(map(Position, ledgers, entries))
        ordinals = range(first_ordinal, first_ordinal + count)
        ats = list(map(Position, at_ledgers, at_entries))
        self._fields: tuple[Sequence[Any], ...] = (
            self.position, counts, self.next_index, append_times, entry_times, self.time_max_ms,
            ordinals, messages_before, ats,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.position)

    def row(self, number: int) -> ViewRow:
        """One row."""
        return ViewRow(*[field[number] for field in self._fields])


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The footer's fields of an index block: its first row, and its place in the view."""

    position: Position
    next_index: int
    time_max_ms: int
    at: Position

    @classmethod
    def of(cls, first: ViewRow, at: Position) -> BlockPlace:
        """The place of a block that begins with ``first``."""
        return cls(first.position, first.next_index, first.time_max_ms, at)


def pack_footer(summary: ViewSummary, blocks: Sequence[BlockPlace]) -> bytes:
    """The record that ends a view."""
    parts = [
        _BLOCK.pack(RecordType.FOOTER, 0, VIEW_VERSION, len(blocks)),
        _SUMMARY.pack(*summary.numbers()),
    ]
    parts += [
        _BLOCK_PLACE.pack(*block.position, block.next_index, block.time_max_ms, *block.at)
        for block in blocks
    ]
    return b"".join(parts)


def unpack_footer(record: Buffer, name: str) -> tuple[ViewSummary, list[BlockPlace]]:
    """The footer. Raises BadViewError, UnsupportedVersionError."""
    try:
        kind, _, version, count = _BLOCK.unpack_from(record)
        if kind == RecordType.FOOTER and version > VIEW_VERSION:
            raise UnsupportedVersionError(
                Path(name), "compacted view version", version, VIEW_VERSION
            )
        numbers = _SUMMARY.unpack_from(record, _BLOCK.size)
        places = list(_BLOCK_PLACE.iter_unpack(record[_BLOCK.size + _SUMMARY.size :]))
    except struct.error as error:
        raise BadViewError("the footer is cut off") from error
    if kind != RecordType.FOOTER or len(places) != count:
        raise BadViewError("the record is not a footer")
    return ViewSummary.of(numbers), [
        BlockPlace(Position(ledger, entry), next_index, time_max, Position(at_ledger, at_entry))
        for ledger, entry, next_index, time_max, at_ledger, at_entry in places
    ]
