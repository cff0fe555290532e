"""Read runs of entries from a topic as :class:`EntryTable`s.

The fast method gets the places of records from a segment's index. It reads a run of records in one
call and parses all their header fields at once. It makes the same checks as the ledger's reader:
marker, sizes, entry id, and checksums. If the run holds a whole chunk of the index (1024 entries),
the chunk's one checksum is checked. Otherwise the checksum of every header is checked, and, if
bodies are wanted, of every body. A record that fails a check is read again by the ledger's own
reader, which decides whether it is damaged. So every byte is read once, and the bytes of failed
records twice.

If bodies are not wanted and entries are large, only the beginnings of records are read.

A producer's entries differ in few fields of their headers. A field that is the same in all records
is an array of one element, which numpy takes for each of them. A check of such a field costs one
comparison instead of one for each record.

Entries that are in no file are read one after another, by the log's own reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...compaction.compacted_log import CompactedLog
from ...ledger import CorruptEntryError, EntryKind, Position, Run, Segment, TopicLog
from ...ledger.limits import BODY_CRC_OURS, BODY_CRC_PRODUCER, CHECKED_BODY_BYTES
from ...ledger.local.segment.record_format import CORE_OFFSET, RECORD_HEADER, RECORD_HEADER_SIZE
from ...metadata import crc32c
from .entries import EntryTable, table_of_entries
from .octets import Bools, Ints, Words, items_at, once_if_alike, spread, u32_at

RUN_BYTES = 8 << 20
RUN_ENTRIES = 65_536
HEADS_RUN_ENTRIES = 16_384
HEADS_ALONE_FROM_BYTES = 16 << 10
"""From this average size on, reading only the heads costs less than reading the bodies too."""
HEAD_BYTES = 128
"""Enough for the header, 82 bytes of prefix (with broker time and index it has up to 28), and the
body bytes under the header's checksum. A record with more is read again, as a whole."""

_OWN_CRC_BYTES = 4


def read_tables(
    log: TopicLog | CompactedLog,
    start: Position,
    end: Position,
    *,
    bodies: bool,
    on_damage: OnDamage,
) -> Iterator[EntryTable]:
    """The entries of ``[start, end)`` in order, in tables of up to some 8 MiB.

    Args:
        log: the topic; a view is read one entry after the other.
        start: where to begin.
        end: where to stop.
        bodies: whether the producers' bytes are wanted, or only the heads.
        on_damage: called for each damaged entry, before the table in which the entry would be. It
            may raise; if it does not, the entry is left out.
    """
    if isinstance(log, CompactedLog):
        yield from _tables_of_form(log, start, end, bodies=bodies, on_damage=on_damage)
        return
    for part, first, last in log.stretches(start, end):
        if not isinstance(part, Segment):
            yield from tables_by_entries(log, part, first, last, RUN_BYTES, on_damage)
            continue
        segment, row = part, first
        while row < last:
            try:
                run = _read_run(segment, row, last, bodies=bodies)
            except FileNotFoundError:
                if not segment.is_gone(row):
                    raise
                row = _after_removed(segment, row, last)
                continue
            if not run.good.any() and segment.is_gone(row):
                row = _after_removed(segment, row, last)
                continue
            yield from _tables(log, segment, row, run, bodies=bodies, on_damage=on_damage)
            row += len(run)


def _tables_of_form(
    form: CompactedLog, start: Position, end: Position, *, bodies: bool, on_damage: OnDamage
) -> Iterator[EntryTable]:
    """The same of a cleaned topic: its view, then its log."""
    view = form.view
    while view is not None and start <= view.horizon and start < end:
        try:
            entries = form.read(start, max_entries=RUN_ENTRIES, max_bytes=RUN_BYTES)
        except CorruptEntryError as damage:
            on_damage(damage)
            start = damage.next_position
            continue
        start = entries[-1].position.following if entries else end
        entries = [entry for entry in entries if entry.position < end]
        if entries:
            yield table_of_entries(entries)
    if start < end:
        yield from read_tables(form.log, start, end, bodies=bodies, on_damage=on_damage)


def _after_removed(segment: Segment, row: int, last: int) -> int:
    """The row at which reading continues after the entry was removed during the read."""
    return last if segment.removed else max(row + 1, segment.cut_rows)


def _tables(
    log: TopicLog, segment: Segment, row: int, run: _Run, *, on_damage: OnDamage, bodies: bool
) -> Iterator[EntryTable]:
    """A table of the records that passed all checks; the others as the ledger's reader decides."""
    good, rescued = run.good, {}
    for bad in np.flatnonzero(~good).tolist():
        try:
            if run.is_void(bad):
                raise _gone(log, segment, row + bad)
            rescued[bad] = _read_one(log, segment, row + bad)
        except CorruptEntryError as damage:
            on_damage(damage)
    # Rare: a record was still being written when the run was read.
    first = 0
    for bad, table in [*rescued.items(), (len(run), None)]:
        rows = first + np.flatnonzero(good[first:bad])
        if len(rows):
            yield run.table(rows if len(rows) < len(run) else slice(None), bodies=bodies)
        if table is not None and len(table):
            yield table
        first = bad + 1


def _gone(log: TopicLog, segment: Segment, row: int) -> CorruptEntryError:
    position = Position(segment.ledger_id, segment.first_entry_id + row)
    following = Position(position.ledger_id, position.entry_id + 1)
    return CorruptEntryError(log.name, position, following, "its record is gone")


def _read_one(log: TopicLog, segment: Segment, row: int) -> EntryTable:
    """One entry by the ledger's own reader. Raises CorruptEntryError."""
    position = Position(segment.ledger_id, segment.first_entry_id + row)
    entries = log.read(position, max_entries=1)
    return table_of_entries([entry for entry in entries if entry.position == position])


@dataclass(slots=True)
class _Places:
    """The offsets of a run's records in their segment."""

    offsets: Ints
    """The start of each record and, as last element, the end of the last record."""
    sums: list[tuple[int, int, int]]
    """Whole chunks of the index: first record, one past the last, CRC32C of all their bytes."""

    def first(self, count: int) -> _Places:
        return _Places(self.offsets[: count + 1], [each for each in self.sums if each[1] <= count])


def _places(segment: Segment, row: int, end_row: int, max_bytes: int) -> _Places:
    """The places of records from ``row`` on, as many as fit; whole index chunks if possible."""
    parts: list[NDArray[Any]] = []
    sums = []
    count = begin = end = 0
    while row + count < end_row:
        chunk = segment.chunk(row + count)
        at, until = row + count - chunk.first_row, end_row - chunk.first_row
        begins = np.frombuffer(chunk.offsets, f"u{chunk.offsets.itemsize}")
        part_end = int(begins[until]) if until < len(begins) else chunk.end_offset
        part = begins[at:until]
        if count and part_end - begin > max_bytes:
            break
        if at == 0 and until >= len(begins) and chunk.content_known:
            sums.append((count, count + len(part), chunk.content_crc))
        begin, end = begin if count else int(part[0]), part_end
        parts.append(part)
        count += len(part)
    offsets = np.concatenate([*parts, [end]], dtype=np.int64)
    if end - begin <= max_bytes:
        return _Places(offsets, sums)
    fitting = int(np.searchsorted(offsets, begin + max_bytes, "right")) - 1
    return _Places(offsets, sums).first(max(1, fitting))


def _read_run(segment: Segment, row: int, end_row: int, *, bodies: bool) -> _Run:
    """Entries from ``row`` on, at least one, each with whether it passed all checks."""
    end_row = min(end_row, row + RUN_ENTRIES)
    places = _places(segment, row, end_row, RUN_BYTES)
    offsets = places.offsets
    if not bodies and offsets[-1] - offsets[0] >= HEADS_ALONE_FROM_BYTES * (len(offsets) - 1):
        places = _places(segment, row, min(end_row, row + HEADS_RUN_ENTRIES), 1 << 40)
        return _heads_alone(segment, row, places)
    data = _read_file(segment, [(int(offsets[0]), int(offsets[-1]))])
    run = _Run(segment, row, data, offsets[:-1] - offsets[0], np.diff(offsets))
    run.check(run.is_whole())
    run.check(run.is_sound())
    proven = run.proven(places.sums)
    run.check(proven | run.right_heads(run.good & ~proven))
    if bodies:
        run.check(proven | run.right_bodies(run.good & ~proven))
    return run


def _heads_alone(segment: Segment, row: int, places: _Places) -> _Run:
    offsets = places.offsets
    sizes = np.diff(offsets)
    heads = np.minimum(sizes, HEAD_BYTES)
    data = _read_file(segment, _spans(offsets[:-1], heads))
    run = _Run(segment, row, data, np.cumsum(heads) - heads, sizes)
    run.check(run.begins + heads <= len(data))
    run.check(run.is_sound())
    needed = run.covered_ends() - run.begins
    is_long = run.good & (needed > heads)
    if bool(is_long.any()):
        # As many as fit; the next run begins after them.
        room = np.cumsum(needed * is_long) <= RUN_BYTES
        count = max(1, int(np.argmin(np.append(room, False))))
        run.cut(count)
        is_long = is_long[:count]
        longer = _read_file(segment, _spans(offsets[:-1][:count][is_long], needed[:count][is_long]))
        run.move(is_long, needed[:count], longer)
    run.check(run.right_heads(run.good))
    return run


def _spans(starts: Ints, sizes: Ints) -> list[tuple[int, int]]:
    return list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))


def _read_file(segment: Segment, spans: Sequence[tuple[int, int]]) -> bytes:
    """Spans of the segment's file, joined; cut off at the end of the file."""
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
    """Records of one segment, in ``data``; ``good`` says which have passed all checks so far.

    ``sizes`` are the records' sizes by the index, whether all their bytes are in ``data`` or only
    the first.
    """

    def __init__(self, segment: Segment, row: int, data: bytes, begins: Ints, sizes: Ints) -> None:
        self._segment = segment
        self._first_entry_id = segment.first_entry_id + row
        self._marker = int.from_bytes(segment.record_key.marker, "little")
        self._data = data
        self.begins = begins
        self._sizes = sizes
        self._heads = RecordHeads(data, begins)
        self.good: Bools = begins + RECORD_HEADER_SIZE <= len(data)

    def __len__(self) -> int:
        return len(self.good)

    def check(self, passed: Bools) -> None:
        """Apply the result of a check; a record that failed one check stays bad."""
        self.good &= passed

    def cut(self, count: int) -> None:
        """Keep the first ``count`` records."""
        self._heads.cut(count)
        self.good = self.good[:count]
        self.begins, self._sizes = self.begins[:count], self._sizes[:count]

    def move(self, rows: Bools, sizes: Ints, data: bytes) -> None:
        """Use these records from ``data``, where they follow each other."""
        sizes = sizes[rows]
        begins = np.cumsum(sizes) - sizes
        self.good[rows] &= begins + sizes <= len(data)
        self.begins[rows] = len(self._data) + begins
        self._data += data
        # The file may have changed since the first read, so the headers are parsed again.
        self._heads = RecordHeads(self._data, self.begins)

    def is_void(self, row: int) -> bool:
        """Whether the index gives the record too little space for any record."""
        return int(self._sizes[row]) < RECORD_HEADER_SIZE

    @property
    def _body_starts(self) -> Ints:
        return self.begins + (self._heads.prefix_sizes + RECORD_HEADER_SIZE)

    @property
    def _entry_ends(self) -> Ints:
        return self.begins + (self._heads.entry_sizes + RECORD_HEADER_SIZE)

    def is_whole(self) -> Bools:
        """Whether all bytes of each record are in ``data``."""
        whole: Bools = self.begins + self._sizes <= len(self._data)
        return whole

    def is_sound(self) -> Bools:
        """Whether markers, sizes, ids and kinds are valid."""
        heads = self._heads
        ours, theirs = heads.body_checks == BODY_CRC_OURS, heads.body_checks == BODY_CRC_PRODUCER
        sound = (ours | theirs) & (heads.kinds <= max(EntryKind))
        body_sizes = heads.entry_sizes - heads.prefix_sizes
        sound &= body_sizes >= np.where(theirs, CHECKED_BODY_BYTES, 0)
        record_sizes = heads.entry_sizes + np.where(ours, _OWN_CRC_BYTES, 0) + RECORD_HEADER_SIZE
        good: Bools = heads.markers == self._marker
        good &= sound
        good &= self._sizes == record_sizes
        good &= heads.entry_ids == self._entry_ids()
        return good

    def _entry_ids(self) -> Ints:
        return np.arange(self._first_entry_id, self._first_entry_id + len(self))

    def covered_ends(self) -> Ints:
        """The end of the bytes that each header's checksum needs."""
        return np.minimum(self._body_starts + CHECKED_BODY_BYTES, self._entry_ends)

    def proven(self, sums: Sequence[tuple[int, int, int]]) -> Bools:
        """Mark the records in a chunk whose checksum matches its bytes."""
        proven = np.zeros(len(self), np.bool_)
        view = memoryview(self._data)
        for first, last, crc in sums:
            start, end = self.begins[first], self.begins[last - 1] + self._sizes[last - 1]
            proven[first:last] = crc32c(view[start:end]) == crc
        return proven

    def right_heads(self, rows: Bools) -> Bools:
        """Whether each record has a header and prefix that match their checksum."""
        if not bool(rows.any()):
            return rows
        starts, ends = self.begins + CORE_OFFSET, self.covered_ends()
        right: Bools = rows & (
            self._crcs(rows, starts, ends, self._segment.record_key.seed) == self._heads.crcs
        )
        return right

    def right_bodies(self, rows: Bools) -> Bools:
        """Whether each record's body matches a checksum: the producer's, or ours."""
        if not bool(rows.any()):
            return rows
        octets = np.frombuffer(self._data, np.uint8)
        starts, ends = self._body_starts, self._entry_ends
        theirs = spread(self._heads.body_checks == BODY_CRC_PRODUCER, len(self))
        expected = np.empty(len(self), np.int64)
        expected[rows & theirs] = u32_at(octets, starts[rows & theirs] + 2, "big")
        expected[rows & ~theirs] = u32_at(octets, ends[rows & ~theirs], "little")
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

    def table(self, rows: Ints | slice, *, bodies: bool) -> EntryTable:
        """Make a table of some of the records, which are good."""
        heads, count = self._heads, len(self)
        starts = self.begins + RECORD_HEADER_SIZE
        sizes = heads.entry_sizes if bodies else heads.prefix_sizes
        table = EntryTable(
            data=self._data,
            ledger_ids=spread(np.array([self._segment.ledger_id], np.int64), count),
            entry_ids=self._entry_ids(),
            kinds=spread(heads.kinds, count),
            counts=spread(heads.counts, count),
            indexes=heads.indexes,
            append_times_ms=heads.append_times_ms,
            starts=starts,
            prefix_sizes=spread(heads.prefix_sizes, count),
            ends=starts + sizes,
            sizes=spread(heads.entry_sizes, count),
        )
        return table if isinstance(rows, slice) else table.select(rows)


_WORD_BYTES = 8
_WORDS = RECORD_HEADER_SIZE // _WORD_BYTES
# The ledger's format, word by word. If that format changes, this must change too.
assert RECORD_HEADER.format == "<4sIIHBBIIQq"


class RecordHeads:
    """The headers of the records that begin at the offsets ``begins`` of ``data``.

    The fields of a header that does not fit into ``data`` mean nothing.
    """

    def __init__(self, data: bytes, begins: Ints) -> None:
        self._words = _words_at(data, begins)
        self._parse()

    def _parse(self) -> None:
        lead, sizes, ids, times, indexes = self._words
        self.markers = _bits(lead, 0, 32)
        self.crcs = _bits(lead, 32, 32)
        sizes = once_if_alike(sizes)
        self.entry_sizes = _bits(sizes, 0, 32)
        self.prefix_sizes = _bits(sizes, 32, 16)
        self.kinds = _bits(sizes, 48, 8)
        self.body_checks = _bits(sizes, 56, 8)
        self.entry_ids = _bits(ids, 0, 32)
        self.counts = once_if_alike(_bits(ids, 32, 32))
        self.append_times_ms: Ints = times.view(np.int64)
        self.indexes: Ints = indexes.view(np.int64)

    def cut(self, count: int) -> None:
        """Keep the headers of the first ``count`` records."""
        self._words = self._words[:, :count]
        self._parse()


def _words_at(data: bytes, begins: Ints) -> Words:
    """The headers' words: the first of each header, the second of each, and so on."""
    last = len(data) - RECORD_HEADER_SIZE
    if last < 0 or not len(begins):
        return np.zeros((_WORDS, len(begins)), np.uint64)
    if int(begins.max()) > last:
        begins = np.minimum(begins, last)
    octets = np.frombuffer(data, np.uint8)
    heads = np.ascontiguousarray(items_at(octets, f"V{RECORD_HEADER_SIZE}", begins))
    words: Words = heads.view("<u8").reshape(len(begins), _WORDS).T.astype(np.uint64, order="C")
    return words


def _bits(words: Words, first: int, count: int) -> Ints:
    """A field of ``count`` bits of each word, from bit ``first`` on."""
    shifted = words >> np.uint64(first) if first else words
    if first + count < 64:
        shifted = shifted & np.uint64((1 << count) - 1)
    return shifted.view(np.int64)


OnDamage = Callable[[CorruptEntryError], None]


def tables_by_entries(
    log: TopicLog, run: Run, row: int, last: int, max_bytes: int, on_damage: OnDamage
) -> Iterator[EntryTable]:
    """As `read_tables`, for a run that is in no file: its own reader makes all checks."""
    while row < last:
        start = run.position(row)
        try:
            entries = log.read(start, max_entries=last - row, max_bytes=max_bytes)
        except CorruptEntryError as damage:
            on_damage(damage)
            row += 1
            continue
        # If entries were removed meanwhile, the log goes on after them.
        here = [
            entry
            for entry in entries
            if entry.position.ledger_id == run.ledger_id
            and entry.position.entry_id < run.first_entry_id + last
        ]
        if not here:
            return
        yield table_of_entries(here)
        row = here[-1].position.entry_id + 1 - run.first_entry_id
