"""A run of entries in one of BookKeeper's ledgers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ..entry import HEAD, Entry, RecordHead, stamp_ms_of
from ..position import Position
from ..run import Columns, DamagedRecordError, IoCount, Probe, Row, Rows, Run, RunHeader
from ..tail_cache import Lru
from .read_ahead import LedgerAccess, UnreadableEntryError
from .stored_entry import BadEntryError, Facts, as_given, own_facts, read_facts

if TYPE_CHECKING:
    from ..commit.batch import Group
    from .client import LedgerEntry


BLOCK_ROWS = 64
"""So many rows are read at once from the entries of a ledger that this process did not write."""
_ROWS_KEPT = 4096


def end_offset(length: int, entry_id: int) -> int:
    """The offset at which an entry would end if entries were packed, each with a head."""
    return length + HEAD.size * (entry_id + 1)


_READ_BYTES = 4 << 20


class _Known(NamedTuple):
    """What is kept of an entry that was read: its `Row`, and its append time."""

    time_ms: int
    next_message: int
    offset: int
    end_offset: int
    append_time_ms: int


class _Block(NamedTuple):
    """Some `Rows`, read from their entries."""

    first_row: int
    next_before: int
    times: Sequence[int]
    nexts: Sequence[int]
    offsets: Sequence[int]


class BookKeeperRun(Run):
    """A run in a BookKeeper ledger. Rows written by this process are in memory, others are read."""

    overhead_bytes = (HEAD.size, HEAD.size)
    entry_overhead_bytes = HEAD.size
    may_wait = True

    def __init__(
        self,
        header: RunHeader,
        access: LedgerAccess,
        cut_run: Callable[[BookKeeperRun, int], None] | None = None,
    ) -> None:
        """``cut_run`` stores durably that first rows were removed; None: the run is only read."""
        super().__init__(header)
        self._access = access
        self._cut_run = cut_run
        self.is_ready = False  # its ledger is still to be made
        self._written: Columns | None = Columns()
        self._time_max_ms = header.entry_time_floor_ms
        self._known: Lru[int, _Known] = Lru(_ROWS_KEPT)
        """By row, of the entries that were read."""
        self._cut_place: tuple[int, int] | None = None
        """Where the head is cut: the row, and the messages before it."""
        self.is_sealed = False
        """No entry follows after ``assigned_count``."""
        self.is_failed = False
        """A write failed: none may follow."""

    def show_opened(
        self, entry_count: int, next_message: int, append_time_ms: int, time_max_ms: int
    ) -> None:
        """Show the entries of a run that was opened again."""
        self._written = None
        self._time_max_ms = time_max_ms
        self.show_group(entry_count, next_message, append_time_ms)

    def forget_rows(self) -> None:
        """Free the rows of a sealed run whose entries are all visible; they can be read again."""
        written = self._written
        if written is not None and len(written):
            self._time_max_ms = written.times[-1]
            self._written = None

    @property
    def time_max_ms(self) -> int:
        written = self._written
        return written.times[-1] if written else self._time_max_ms

    @property
    def written_count(self) -> int:
        written = self._written
        return self.entry_count if written is None else len(written)

    # Appending

    def add_written(self, group: Group) -> None:
        """Add the rows of a group whose entries are acknowledged by bookies."""
        assert self._written is not None, "only an open run is written to"
        self._written.add(group.rows)

    # Rows

    def row(self, row: int, io: IoCount | None = None) -> Row:
        written = self._written
        if written is not None:
            return written.row(row)
        return Row(*self._read_rows(row, row + 1, io)[0][:-1])

    def has_row(self, row: int) -> bool:
        return self._written is not None or self._known.get(row) is not None

    def index_before(self, row: int) -> int:
        cut = self._cut_place
        if cut is not None and cut[0] == row:
            return self.first_index + cut[1]
        return super().index_before(row)

    def chunk(self, row: int, io: IoCount | None = None) -> Rows:
        """All rows that are in memory, or a block of rows, read from its entries."""
        if self._written:
            return self._written
        first = row // BLOCK_ROWS * BLOCK_ROWS
        before = self._next_before(first)
        rows = self._read_rows(first, min(first + BLOCK_ROWS, self.entry_count), io)
        times, nexts, offsets, _, _ = zip(*rows, strict=True)
        return _Block(first, before, times, nexts, offsets)

    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        """As `Run.find_time`: one small read for each step of a bisection."""
        written = self._written
        if written is not None:
            return written.find_time(time_ms, limit)
        return bisect_left(range(limit), time_ms, key=lambda row: self.row(row, io).time_ms)

    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        written = self._written
        if written is not None:
            return written.find_message(message, limit)
        return bisect_right(range(limit), message, key=lambda row: self.row(row, io).next_message)

    def _read_rows(self, row: int, end: int, io: IoCount | None = None) -> list[_Known]:
        """The rows before ``end``, of which those that are not known are read."""
        rows: list[_Known] = []
        while (at := row + len(rows)) < end:
            # The limit counts what an earlier attempt read before its WouldBlockError.
            known = self._known.get(at)
            if known is not None:
                rows.append(known)
                continue
            for number, entry in enumerate(self._fetch(at, end - 1, _READ_BYTES), at):
                if io is not None:
                    io.add(len(entry.payload))
                rows.append(self._keep(number, entry, self._facts(number, entry)))
        return rows

    def _keep(self, row: int, entry: LedgerEntry, facts: Facts) -> _Known:
        end = end_offset(entry.length, entry.entry_id)
        start = end - len(entry.payload) - HEAD.size
        next_message = facts.index + 1 - self.first_index
        kept = _Known(facts.time_max_ms, next_message, start, end, facts.append_time_ms)
        self._known.put(row, kept)
        return kept

    def _next_before(self, row: int) -> int:
        """The number of the run's messages before a row."""
        return self.row(row - 1).next_message if row else 0

    def _messages_before(self, row: int, entry: LedgerEntry, facts: Facts) -> int:
        """The number of the run's messages before a row, even if the entry before it is damaged."""
        try:
            return self._next_before(row)
        except DamagedRecordError:
            return facts.index + 1 - self.first_index - own_facts(entry.payload)[1]

    # Entries

    def _fetch(self, row: int, last: int, max_bytes: int) -> list[LedgerEntry]:
        """Read entries as bookies have them, at least one."""
        first_id = self.first_entry_id
        until = first_id + self.entry_count - 1
        try:
            return self._access.read(
                self.ledger_id, first_id + row, first_id + last, max(max_bytes, 1), until=until
            )
        except UnreadableEntryError as error:
            raise DamagedRecordError(row, str(error)) from error

    def _facts(self, row: int, entry: LedgerEntry) -> Facts:
        try:
            return read_facts(entry.payload)
        except BadEntryError as error:
            raise DamagedRecordError(row, str(error)) from error

    def _entries(self, row: int, max_entries: int, max_bytes: int) -> Iterator[tuple[int, Entry]]:
        """Read rows and entries up to a damaged one. Raises if that is the first."""
        if row >= self.entry_count or row < self.cut_rows:
            raise DamagedRecordError(row, "the entry was removed")
        last = min(row + max_entries, self.entry_count) - 1
        size, first_row, next_before = 0, row, -1
        for stored in self._fetch(row, last, max_bytes):
            try:
                facts = self._facts(row, stored)
                if next_before < 0 and facts.message_count < 0:
                    next_before = self._messages_before(row, stored, facts)
                entry = self._entry(row, stored, facts, next_before)
            except (DamagedRecordError, OSError):
                if row > first_row:
                    return
                raise
            size += len(entry.stored)
            if row > first_row and size > max_bytes:
                return
            yield row, entry
            next_before = self._keep(row, stored, facts).next_message
            row += 1

    def _entry(self, row: int, stored: LedgerEntry, facts: Facts, next_before: int) -> Entry:
        count = facts.message_count
        if count < 0:
            count = facts.index + 1 - self.first_index - next_before
            if count < 0:
                raise DamagedRecordError(row, f"index {facts.index} is below the one before")
        try:
            given, prefix_size = as_given(bytes(stored.payload))
        except BadEntryError as error:
            raise DamagedRecordError(row, str(error)) from error
        position = Position(self.ledger_id, self.first_entry_id + row)
        return Entry(
            position, facts.kind, count, facts.index, facts.append_time_ms, prefix_size, given
        )

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        return [entry for _, entry in self._entries(row, max_entries, max_bytes)]

    def read_stored(self, row: int, max_entries: int, max_bytes: int) -> list[memoryview]:
        return [entry.stored for _, entry in self._entries(row, max_entries, max_bytes)]

    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        end = min(row + count, self.entry_count)
        while row < end:
            first = row
            try:
                for found, entry in self._entries(row, end - row, _READ_BYTES):
                    io.add(len(entry.stored))
                    row = found + 1
                    yield Probe(
                        found,
                        stamp_ms_of(entry.prefix),
                        entry.append_time_ms,
                        entry.index,
                        entry.message_count,
                    )
            except DamagedRecordError:
                row = max(row, first + 1)

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        entry = self.read(row, 1, 1)[0]
        if io is not None:
            io.add(len(entry.stored))
        size = len(entry.stored)
        return RecordHead(
            entry.position,
            entry.kind,
            entry.message_count,
            entry.index,
            entry.append_time_ms,
            entry.prefix,
            size - entry.prefix_size_bytes,
            size + HEAD.size,
        )

    # Removing

    def is_gone(self, row: int) -> bool:
        return self.removed or row < self.cut_rows

    def truncate(self, entry_count: int) -> None:
        append_time_ms, self._time_max_ms, next_message = self._sums(entry_count)
        if self._written is not None:
            kept = Columns()
            kept.keep_first(self._written, entry_count)
            self._written = kept
        self._sample = self._own_times = None
        self.entry_count = min(self.entry_count, entry_count)
        self.show_group(entry_count, next_message, append_time_ms)

    def _sums(self, entry_count: int) -> tuple[int, int, int]:
        """Last append time, highest entry time and messages of the first entries."""
        header, written, last = self.header, self._written, entry_count - 1
        if not entry_count:
            return header.stamp_floor_ms, header.entry_time_floor_ms, 0
        if written is not None:
            return written.append_times[last], written.times[last], written.nexts[last]
        # Known, as `chunk` is asked for before a cut: a durable cut must not fail by reading.
        known = self._read_rows(last, entry_count)[0]
        return known.append_time_ms, known.time_ms, known.next_message

    def cut_head(self, rows: int) -> None:
        with suppress(DamagedRecordError):
            self.know_cut(rows, self._next_before(rows))
        assert self._cut_run is not None, "who only reads removes nothing"
        self._cut_run(self, rows)
        self.cut_rows = rows

    def know_cut(self, rows: int, messages_before: int) -> None:
        """Remember the number of messages before the row at which the head is cut."""
        self._cut_place = rows, messages_before
