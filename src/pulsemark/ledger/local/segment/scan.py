"""Reading a segment's records one after another, from bytes alone.

Because of it the index file can be lost, and damage stays limited. The rules:

- A record is whole if its header's checksum (which includes the ledger id) and its body's checksum
  match.
- If the bytes are not a whole record, the scan looks for the next marker that begins a whole
  record of this ledger with a higher entry id. If there is one, the entries between are damaged:
  a record is only written after everything before it was durable, so these entries were durable.
  They keep their entry ids and their place in the index; reading them raises CorruptEntryError.
- If there is none, the rest is a torn tail: it was never acknowledged, and is not part of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...entry import time_of_entry
from ...limits import CHECKED_BODY_BYTES
from ..io.files import Files, read_up_to
from .record_format import (
    RECORD_HEADER_SIZE,
    BadRecordError,
    RecordFields,
    RecordKey,
    body_damage,
    unpack_record_head,
)
from .segment_format import SegmentHeader

_WINDOW_BYTES = 1 << 20


@dataclass(slots=True)
class ScannedRecord:
    """A record found at ``offset``."""

    offset: int
    fields: RecordFields
    entry_time_ms: int
    """0 if it is inside a damaged body: a wrong time could hide later entries from searches."""
    data: memoryview
    """The record's bytes."""
    damaged: str | None = None
    """Why its body is damaged; None: the record is whole."""

    @property
    def end_offset(self) -> int:
        """The offset at which the next record should begin."""
        return self.offset + self.fields.record_size_bytes


class _Window:
    """A part of the file in memory, moved forward when needed."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self.size = files.size(fd)
        self._start = 0
        self._data = b""

    def view(self, offset: int, size: int) -> memoryview:
        """``size`` bytes at ``offset``, fewer if the file ends."""
        size = max(0, min(size, self.size - offset))
        if offset < self._start or offset + size > self._start + len(self._data):
            self._data = read_up_to(self._files, self._fd, max(size, _WINDOW_BYTES), offset)
            self._start = offset
        at = offset - self._start
        return memoryview(self._data)[at : at + size]

    def forget(self) -> None:
        """Drop what is in memory: the next access reads the file again."""
        self._data = b""

    def find(self, needle: bytes, offset: int) -> int:
        """The next place of ``needle``, or -1. What is in memory already is not read again."""
        while len(self.view(offset, len(needle))) == len(needle):
            at = self._data.find(needle, offset - self._start)
            if at >= 0:
                return self._start + at
            offset = self._start + len(self._data) - len(needle) + 1
        return -1


def scan_records(
    files: Files,
    fd: int,
    header: SegmentHeader,
    offset: int,
    next_entry_id: int,
) -> Iterator[ScannedRecord]:
    """Every record from ``offset`` on with a good header, with growing entry ids.

    One with a damaged body is returned (``damaged``), but not as the last one: that is a torn tail.
    Entry ``next_entry_id`` is, or was, at ``offset``. So a record after damage is accepted only if
    there is room for the lost entries: not what a payload makes look like one.
    """
    window = _Window(files, fd)
    key = header.record_key
    held: list[ScannedRecord] = []
    sound, looked_again = (offset, next_entry_id), -1
    while 0 <= offset < window.size:
        record = _record_at(window, offset, key)
        if record is None or not _follows(record, offset, next_entry_id, held, sound[0]):
            offset = window.find(key.marker, offset + 1)
            continue
        next_entry_id = record.fields.entry_id + 1
        held.append(record)
        if record.damaged is None:
            damage = held[0].offset != sound[0] or held[0].damaged is not None
            if damage and looked_again != sound[0]:
                # A writer may have been in the middle of writing it; read it again.
                looked_again = sound[0]
                offset, next_entry_id = sound
                held.clear()
                window.forget()
                continue
            yield from held
            held.clear()
            offset = record.end_offset
            sound = (offset, next_entry_id)
        elif record.end_offset <= window.size:
            offset = record.end_offset
        else:
            offset += RECORD_HEADER_SIZE


def _follows(
    record: ScannedRecord,
    offset: int,
    next_entry_id: int,
    held: list[ScannedRecord],
    start: int,
) -> bool:
    """Whether ``record`` can be at ``offset``: without a gap, or with room for the lost entries."""
    expected = held[-1].end_offset if held else start
    lost = record.fields.entry_id - next_entry_id
    if offset == expected:
        return lost == 0
    return 0 < lost * RECORD_HEADER_SIZE <= offset - expected


def _record_at(window: _Window, offset: int, key: RecordKey) -> ScannedRecord | None:
    head = window.view(offset, RECORD_HEADER_SIZE + 1024)
    try:
        fields = unpack_record_head(head, 0, key)
    except BadRecordError as bad:
        if not bad.short:
            return None
        # The prefix is larger than the first guess: read again with the largest possible size.
        head = window.view(offset, RECORD_HEADER_SIZE + (1 << 16) + CHECKED_BODY_BYTES)
        try:
            fields = unpack_record_head(head, 0, key)
        except BadRecordError:
            return None
    record = window.view(offset, fields.record_size_bytes)
    entry = record[RECORD_HEADER_SIZE : RECORD_HEADER_SIZE + fields.entry_size_bytes]
    damage = body_damage(fields, record)
    time_ms = 0
    if damage is None or fields.prefix_size_bytes:  # the header's checksum covers the prefix
        time_ms = time_of_entry(fields.append_time_ms, entry, entry[fields.prefix_size_bytes :])
    return ScannedRecord(offset, fields, time_ms, record, damage)
