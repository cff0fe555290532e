"""Reading runs of entries out of a topic as :class:`EntryTable`s.

The quick road takes a segment's index for where records begin, reads a run of them in one call,
and takes the header fields of all of them at once. It checks what the ledger's reader checks:
marker, sizes, entry id, and that the bytes are those that were written: by the index's one sum for
4096 entries where that is in reach, else by the checksum of every header (and of every body, where
bodies are wanted). From the first record on that fails a check the ledger's own reader decides, one
entry: it knows what is damage and what is not.

Where bodies are not wanted and entries are large, only the beginnings of records are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ledger import CorruptEntryError, EntryKind, Position, Segment, TopicLog
from ...ledger.segment import DamagedRecordError
from ...ledger.segment_format import (
    BODY_CRC_OURS,
    BODY_CRC_PRODUCER,
    CHECKED_BODY_BYTES,
    CORE_OFFSET,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
)
from ...metadata import crc32c
from .entries import EntryTable, table_of_entries, table_of_heads
from .protoscan import Bools, Ints, u32_at

RUN_BYTES = 8 << 20
RUN_ENTRIES = 65_536
HEADS_RUN_ENTRIES = 16_384
HEADS_ALONE_FROM_BYTES = 16 << 10
"""From this average size on reading heads alone costs less than reading over the bodies."""
HEAD_BYTES = 128
"""Room for the header, 82 bytes of prefix (with broker time and index it has up to 28), and the
body bytes under the header's checksum. Longer ones are left to the ledger's reader."""

OnDamage = Callable[[CorruptEntryError], None]

_HEADER = np.dtype(
    [
        ("marker", "<u4"),
        ("crc", "<u4"),
        ("entry_size", "<u4"),
        ("prefix_size", "<u2"),
        ("kind", "u1"),
        ("body_check", "u1"),
        ("entry_id", "<u4"),
        ("count", "<u4"),
        ("append_time", "<u8"),
        ("index", "<i8"),
    ]
)
# The ledger's format, field by field: where it changes, this has to.
assert RECORD_HEADER.format == "<4sIIHBBIIQq"
assert _HEADER.itemsize == RECORD_HEADER.size
_OWN_CRC_BYTES = 4


def read_tables(
    log: TopicLog, start: Position, end: Position, *, bodies: bool, on_damage: OnDamage
) -> Iterator[EntryTable]:
    """The entries of ``[start, end)`` in order, in tables of up to some 8 MiB.

    Args:
        log: the topic.
        start: where to begin.
        end: where to stop.
        bodies: whether the producers' bytes are wanted, or the heads alone.
        on_damage: told of each damaged entry, which is then left out; it may raise.
    """
    for segment, first, last in log.stretches(start, end):
        row = first
        while row < last:
            try:
                table = _read_run(segment, row, last, bodies=bodies)
                if not len(table):
                    table = _read_one(log, segment, row, bodies=bodies)
            except CorruptEntryError as damage:
                on_damage(damage)
                row += 1
                continue
            except FileNotFoundError:
                if not segment.is_gone(row):
                    raise
                table = table_of_entries([])
            if len(table):
                yield table
                row += len(table)
            else:  # removed while it was read, by the folder's owner
                row = last if segment.removed else max(row + 1, segment.cut_rows)


def _read_one(log: TopicLog, segment: Segment, row: int, *, bodies: bool) -> EntryTable:
    """One entry by the ledger's own reader; none if it was removed. Raises CorruptEntryError."""
    if not bodies:
        try:
            return table_of_heads([segment.head(row)])
        except DamagedRecordError:
            pass  # the log says it with the topic's name, and where reading can go on
    position = Position(segment.ledger_id, segment.first_entry_id + row)
    entries = log.read(position, max_entries=1)
    return table_of_entries([entry for entry in entries if entry.position == position])


@dataclass(slots=True)
class _Places:
    """Where the records of a run stand in their segment."""

    offsets: Ints
    """Where each record begins, and behind that where the last one ends."""
    sums: list[tuple[int, int, int]]
    """Whole chunks of the index: first record, one past the last, CRC32C of all their bytes."""

    def first(self, count: int) -> _Places:
        return _Places(self.offsets[: count + 1], [each for each in self.sums if each[1] <= count])


def _places(segment: Segment, row: int, end_row: int, max_bytes: int) -> _Places:
    """As many records from ``row`` on as fit, at least one; whole chunks of the index if any do."""
    offsets, sums = np.empty(0, np.int64), []
    count = 0
    while row + count < end_row:
        chunk = segment.chunk(row + count)
        ends = np.append(np.frombuffer(chunk.offsets, f"u{chunk.offsets.itemsize}"), [0])
        ends[-1] = chunk.end_offset
        at = row + count - chunk.first_row
        part = ends.astype(np.int64)[at : end_row - chunk.first_row + 1]
        if count and part[-1] - offsets[0] > max_bytes:
            break
        if len(part) == len(ends) and chunk.content_known:
            sums.append((count, count + len(part) - 1, chunk.content_crc))
        offsets = np.concatenate([offsets[:-1], part])
        count += len(part) - 1
    fitting = int(np.searchsorted(offsets, offsets[0] + max_bytes, "right")) - 1
    return _Places(offsets, sums).first(max(1, fitting))


def _read_run(segment: Segment, row: int, end_row: int, *, bodies: bool) -> EntryTable:
    """Entries from ``row`` on, as far as all checks pass; empty where the first one fails one."""
    end_row = min(end_row, row + RUN_ENTRIES)
    places = _places(segment, row, end_row, RUN_BYTES)
    offsets = places.offsets
    if not bodies and offsets[-1] - offsets[0] >= HEADS_ALONE_FROM_BYTES * (len(offsets) - 1):
        places = _places(segment, row, min(end_row, row + HEADS_RUN_ENTRIES), 1 << 40)
        return _heads_alone(segment, row, places)
    data = _read_file(segment, [(int(offsets[0]), int(offsets[-1]))])
    whole = int(np.searchsorted(offsets, offsets[0] + len(data), "right")) - 1
    places = places.first(max(0, whole))
    run = _Run(segment, row, data, places.offsets[:-1] - offsets[0], np.diff(places.offsets))
    run.keep(run.sound())
    proven = run.proven(places.sums)
    run.keep(proven | run.right_heads(~proven))
    if bodies:
        proven = proven[: len(run)]
        run.keep(proven | run.right_bodies(~proven))
    return run.table(bodies=True)


def _heads_alone(segment: Segment, row: int, places: _Places) -> EntryTable:
    starts = places.offsets[:-1].tolist()
    ends = np.minimum(places.offsets[:-1] + HEAD_BYTES, places.offsets[1:])
    data = _read_file(segment, list(zip(starts, ends.tolist(), strict=True)))
    sizes = ends - places.offsets[:-1]
    begins = np.cumsum(sizes) - sizes
    count = int(np.searchsorted(begins + sizes, len(data), "right"))
    run = _Run(segment, row, data, begins[:count], np.diff(places.offsets)[:count])
    run.keep(run.sound() & run.is_short())
    run.keep(run.right_heads(np.ones(len(run), np.bool_)))
    return run.table(bodies=False)


def _read_file(segment: Segment, spans: Sequence[tuple[int, int]]) -> bytes:
    """Spans of the segment's file behind each other; cut off where the file ends."""
    parts: list[bytes] = []
    fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end in spans:
            at = start
            while at < end:
                part = os.pread(fd, end - at, at)
                parts.append(part)
                if not part:
                    return b"".join(parts)
                at += len(part)
    finally:
        os.close(fd)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Run:
    """Records of one segment, in ``data``; ``keep`` cuts off what a check refused.

    ``sizes`` are the records' sizes by the index, whether all their bytes are in ``data`` or only
    the first.
    """

    def __init__(self, segment: Segment, row: int, data: bytes, begins: Ints, sizes: Ints) -> None:
        self._segment = segment
        self._first_entry_id = segment.first_entry_id + row
        self._marker = int.from_bytes(segment.record_key.marker, "little")
        self._data = data
        self._begins = begins
        self._sizes = sizes
        count = len(begins) if len(data) >= RECORD_HEADER_SIZE else 0
        # Every place of the buffer seen as the beginning of a header: picking is then one call.
        places = np.ndarray(
            (max(0, len(data) - RECORD_HEADER_SIZE + 1),), _HEADER, buffer=data, strides=(1,)
        )
        self._headers: NDArray[np.void] = places[np.minimum(begins[:count], len(places) - 1)]
        self._cut(count)

    def __len__(self) -> int:
        return len(self._headers)

    def keep(self, good: Bools) -> None:
        """Keep the records before the first one that is not good."""
        self._cut(int(np.argmin(np.append(good, False))))

    def _cut(self, count: int) -> None:
        self._headers = self._headers[:count]
        self._begins, self._sizes = self._begins[:count], self._sizes[:count]

    def _field(self, name: str) -> Ints:
        return self._headers[name].astype(np.int64)

    @property
    def _body_starts(self) -> Ints:
        return self._begins + RECORD_HEADER_SIZE + self._field("prefix_size")

    @property
    def _entry_ends(self) -> Ints:
        return self._begins + RECORD_HEADER_SIZE + self._field("entry_size")

    def sound(self) -> Bools:
        """Whether markers, sizes, ids and kinds are what they must be."""
        check, body_sizes = self._headers["body_check"], self._entry_ends - self._body_starts
        own_crc = np.where(check == BODY_CRC_OURS, _OWN_CRC_BYTES, 0)
        good: Bools = self._headers["marker"] == self._marker
        good &= (check == BODY_CRC_OURS) | (check == BODY_CRC_PRODUCER)
        good &= body_sizes >= np.where(check == BODY_CRC_PRODUCER, CHECKED_BODY_BYTES, 0)
        good &= self._entry_ends + own_crc == self._begins + self._sizes
        good &= self._field("entry_id") == self._first_entry_id + np.arange(len(self))
        good &= self._headers["kind"] <= max(EntryKind)
        return good

    def is_short(self) -> Bools:
        """Whether all that the header's checksum covers is within the first bytes."""
        short: Bools = self._covered_ends() - self._begins <= HEAD_BYTES
        return short

    def _covered_ends(self) -> Ints:
        return np.minimum(self._body_starts + CHECKED_BODY_BYTES, self._entry_ends)

    def proven(self, sums: Sequence[tuple[int, int, int]]) -> Bools:
        """Which records are in a chunk whose one sum matches its bytes."""
        proven = np.zeros(len(self), np.bool_)
        view = memoryview(self._data)
        for first, last, crc in sums:
            if last <= len(self):
                start, end = self._begins[first], self._begins[last - 1] + self._sizes[last - 1]
                proven[first:last] = crc32c(view[start:end]) == crc
        return proven

    def right_heads(self, rows: Bools) -> Bools:
        """Which of these records have the header and prefix that their checksum covers."""
        starts, ends = self._begins + CORE_OFFSET, self._covered_ends()
        right: Bools = rows & (
            self._crcs(rows, starts, ends, self._segment.record_key.seed) == self._field("crc")
        )
        return right

    def right_bodies(self, rows: Bools) -> Bools:
        """Which of these records have the body that a checksum covers: the producer's, or ours."""
        octets = np.frombuffer(self._data, np.uint8)
        starts, ends = self._body_starts, self._entry_ends
        theirs = self._headers["body_check"] == BODY_CRC_PRODUCER
        expected = np.empty(len(self), np.int64)
        expected[theirs] = u32_at(octets, starts[theirs] + 2, "big")
        expected[~theirs] = u32_at(octets, ends[~theirs], "little")
        covered = starts + np.where(theirs, CHECKED_BODY_BYTES, 0)
        right: Bools = rows & (self._crcs(rows, covered, ends, 0) == expected)
        return right

    def _crcs(self, rows: Bools, starts: Ints, ends: Ints, seed: int) -> Ints:
        """CRC32C of the spans of these records; -1 for the others."""
        view = memoryview(self._data)
        spans = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
        crcs = np.full(len(self), -1, np.int64)
        crcs[rows] = [crc32c(view[start:end], seed) for start, end in spans]
        return crcs

    def table(self, *, bodies: bool) -> EntryTable:
        """What is left."""
        count = len(self)
        return EntryTable(
            data=self._data,
            ledger_ids=np.full(count, self._segment.ledger_id, np.int64),
            entry_ids=self._first_entry_id + np.arange(count),
            kinds=self._field("kind"),
            counts=self._field("count"),
            indexes=self._field("index"),
            append_times_ms=self._field("append_time"),
            starts=self._begins + RECORD_HEADER_SIZE,
            prefix_sizes=self._field("prefix_size"),
            ends=self._entry_ends if bodies else self._body_starts,
            sizes=self._field("entry_size"),
        )
