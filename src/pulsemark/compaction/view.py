"""Reading a compacted view: the entries that survived, found by position, time or index.

A view is written once and never changed. A search uses its index blocks: the footer, kept in
memory, gives the block, and one read fetches it (a few blocks are cached). If the footer or a block
is damaged, the records themselves are searched, by bisection over whole entries: slower, with the
same answers. So damage costs only the entry it hits.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from copy import copy
from enum import Enum
from itertools import accumulate
from operator import attrgetter

from ..ledger.commit.batch import Commit
from ..ledger.entry import Entry, EntryKind
from ..ledger.errors import CorruptEntryError
from ..ledger.position import Position
from ..ledger.retention import size_bytes, size_cut
from ..ledger.run import DamagedRecordError, IoCount, Run
from ..ledger.store import BadViewError, ViewSummary
from ..ledger.tail_cache import Lru
from ..ledger.topic_log import TopicLog
from ..ledger.writer import ManagedLedger
from ..metadata import Buffer
from .view_format import (
    BLOCK_ROWS,
    CONTINUED,
    ENTRY_HEADER_BYTES,
    RECORD,
    BlockPlace,
    RecordType,
    ViewBlock,
    ViewRow,
    pack_block,
    pack_entry_header,
    pack_footer,
    unpack_entry_header,
    unpack_footer,
)

_log = logging.getLogger(__name__)
_BLOCKS_KEPT = 16


class Key(Enum):
    """The keys by which a view can be searched, with their names in rows, blocks and the footer."""

    POSITION = "position"
    TIME = "time_max_ms"
    """The highest entry time in the log up to an entry: see `CompactedView.find`."""
    INDEX = "next_index"


_Value = Position | int
_POSITION = attrgetter(Key.POSITION.value)


class CompactedView:
    """One view. Safe between threads."""

    def __init__(
        self, log: TopicLog, topic: str, generation: int, summary: ViewSummary | None = None
    ) -> None:
        """Open the view of ``topic`` that is in ``log``.

        ``summary`` is the catalog's, used if the footer is damaged. Raises UnsupportedVersionError;
        CorruptEntryError if there is neither footer nor ``summary``.
        """
        self._log = log
        self.topic = topic
        self.generation = generation
        self._blocks: list[BlockPlace] | None = None
        self._cache: Lru[int, ViewBlock] = Lru(_BLOCKS_KEPT)
        self._records = _Records(log)
        try:
            self.summary, self._blocks = self._read_footer()
        except (BadViewError, CorruptEntryError) as error:
            if summary is None:
                end = log.end_position
                raise CorruptEntryError(topic, end, end, "the view has no footer") from error
            _log.error("%s: the footer is damaged; searching is slower: %s", log.name, error)
            self.summary = summary

    @property
    def name(self) -> str:
        """The name of the view's own ledger."""
        return self._log.name

    @property
    def horizon(self) -> Position:
        """The last entry of the log that the view covers."""
        return self.summary.horizon

    @property
    def after_horizon(self) -> Position:
        """The position where reading goes on in the log."""
        return self.horizon.following

    @property
    def ledger_id(self) -> int:
        """Id of the view's own ledger, its first if it has several."""
        first = self._log.first_position
        return -1 if first is None else first.ledger_id

    @property
    def size_bytes(self) -> int:
        """Bytes of the view's own records on disk."""
        return size_bytes(self._log)

    def first_index_within(self, size_bytes: int) -> int:
        """Index of the first message of the first entry in the last bytes of the view."""
        for entry in self._entries(size_cut(self._log, size_bytes), 1, 1):
            return entry.first_index
        return self.summary.next_index

    def before(self, limit: Position, limit_index: int) -> CompactedView:
        """The part of the view that is before a position of the topic's log, and an index."""
        first_out = self.find(Key.INDEX, limit_index + 1)
        end = limit if first_out is None else min(limit, first_out.position)
        last = self.find_before(end)
        part = copy(self)
        part.summary = ViewSummary(
            Position(end.ledger_id, end.entry_id - 1),
            limit_index,
            last.time_max_ms if last is not None else 0,
            last.ordinal + 1 if last is not None else 0,
            last.messages_before + last.message_count if last is not None else 0,
        )
        return part

    def _read_footer(self) -> tuple[ViewSummary, list[BlockPlace]]:
        last = self._log.last_position
        if last is None:
            raise BadViewError("it is empty")
        # A footer in several pieces ends the view: go back to its first piece.
        at = last
        while True:
            record = self._log.read(at, max_entries=1)[0].body
            if len(record) < RECORD.size or record[0] != RecordType.MORE:
                break
            if at == self._log.first_position:
                raise BadViewError("it begins in the middle of a record")
            at = self._log.previous_position(at)
        whole, _ = self._whole_record(at)
        return unpack_footer(whole, self.name)

    # Searching

    def find(
        self, key: Key, value: _Value, *, by_records: bool = False, io: IoCount | None = None
    ) -> ViewRow | None:
        """The first entry whose ``key`` is >= ``value``, or None.

        A row's time is the highest time up to it in the whole log, so the result is the first
        surviving entry at or after the log's. ``by_records`` searches the records instead of the
        index blocks.
        """
        row = self._find(key, value, by_records, io or IoCount())
        return row if row is None or row.ordinal < self.summary.entry_count else None

    def _find(self, key: Key, value: _Value, by_records: bool, io: IoCount) -> ViewRow | None:
        if self._blocks is not None and not by_records:
            try:
                return self._find_in_blocks(self._blocks, key, value, io)
            except (BadViewError, CorruptEntryError) as error:
                _log.error("%s: an index block is damaged; searching records: %s", self.name, error)
        return self._records.find(key, value, io)

    def find_before(self, position: Position) -> ViewRow | None:
        """The last entry before ``position``, or None."""
        position = min(position, self.after_horizon)
        if self._blocks is not None:
            try:
                number = bisect_left(self._blocks, position, key=_POSITION) - 1
                if number < 0:
                    return None
                block = self._block(self._blocks, number, IoCount())
                return block.row(bisect_left(block.position, position) - 1)
            except (BadViewError, CorruptEntryError) as error:
                _log.error("%s: an index block is damaged; searching records: %s", self.name, error)
        return self._records.find_before(position)

    def _find_in_blocks(
        self, blocks: list[BlockPlace], key: Key, value: _Value, io: IoCount
    ) -> ViewRow | None:
        # Rows of one time may begin in the block before the one that begins with that time.
        pick = bisect_right if key is Key.POSITION else bisect_left
        number = max(0, pick(blocks, value, key=attrgetter(key.value)) - 1)
        while number < len(blocks):
            block = self._block(blocks, number, io)
            row = bisect_left(getattr(block, key.value), value)
            if row < len(block):
                return block.row(row)
            number += 1
        return None

    def _block(self, blocks: list[BlockPlace], number: int, io: IoCount) -> ViewBlock:
        block = self._cache.get(number)
        if block is None:
            record, _ = self._whole_record(blocks[number].at)
            io.add(len(record))
            block = ViewBlock(record, number * BLOCK_ROWS)
            self._cache.put(number, block)
        return block

    # Reading

    def read(self, row: ViewRow, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``row`` on, at least one: up to ``max_entries`` in up to ``max_bytes``.

        Ends before a damaged entry. Raises CorruptEntryError, with the positions of the topic's
        log, when ``row`` itself is damaged.
        """
        entries: list[Entry] = []
        size = 0
        max_entries = min(max_entries, self.summary.entry_count - row.ordinal)
        try:
            for entry in self._entries(row.at, max_entries, max_bytes):
                size += len(entry.stored)
                if entries and size > max_bytes:
                    break
                entries.append(entry)
                if len(entries) >= max_entries or size >= max_bytes:
                    break
        except (BadViewError, CorruptEntryError) as error:
            if entries:
                return entries
            position = row.position
            following = self.find(Key.POSITION, position.following)
            raise CorruptEntryError(
                self.topic,
                position,
                following.position if following is not None else self.after_horizon,
                str(error),
            ) from error
        return entries

    def _entries(self, at: Position, max_entries: int, max_bytes: int) -> Iterator[Entry]:
        """The entries whose records stand from ``at`` on."""
        while True:
            records = self._log.read(at, max_entries=max_entries + 1, max_bytes=max_bytes)
            if not records:
                return
            for record in records:
                at = record.position.following
                body = record.body
                if len(body) < RECORD.size or body[0] != RecordType.ENTRY:
                    continue
                if body[1] & CONTINUED:
                    whole, at = self._whole_record(record.position)
                    yield _entry(whole, record.position)
                    break
                yield _entry(body, record.position)

    def _whole_record(self, at: Position) -> tuple[memoryview, Position]:
        """The record at ``at``, its pieces joined, and where the next one begins."""
        pieces: list[memoryview] = []
        while True:
            records = self._log.read(at, max_entries=1)
            if not records:
                raise BadViewError("a record is cut off")
            body, at = records[0].body, records[0].position.following
            if len(body) < RECORD.size or (body[0] == RecordType.MORE) is not bool(pieces):
                raise BadViewError("a record's pieces are not together")
            pieces.append(body[RECORD.size :] if pieces else body)
            if not body[1] & CONTINUED:
                break
        return (pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))), at


class _Records:
    """The view searched without its index: bisection over its records."""

    def __init__(self, log: TopicLog) -> None:
        self._segments: list[Run] = log.segments()
        self._ends = list(accumulate(segment.entry_count for segment in self._segments))
        self._count = self._ends[-1] if self._ends else 0

    def find(self, key: Key, value: _Value, io: IoCount) -> ViewRow | None:
        """The first entry whose ``key`` is >= ``value``."""
        return self._lower_bound(key, value, io)[1]

    def find_before(self, position: Position) -> ViewRow | None:
        """The last entry before ``position``."""
        io = IoCount()
        number, _ = self._lower_bound(Key.POSITION, position, io)
        while number > 0:
            number -= 1
            row = self._row(number, io)
            if row is not None and row.position < position:
                return row
        return None

    def _lower_bound(self, key: Key, value: _Value, io: IoCount) -> tuple[int, ViewRow | None]:
        """A record at or before the first such entry's, to search from; and the entry's row."""
        low, high = 0, self._count
        found: ViewRow | None = None
        while low < high:
            middle = (low + high) // 2
            number, row = self._first_entry(middle, high, io)
            if row is None:
                high = middle
            elif getattr(row, key.value) >= value:
                found, high = row, middle
            else:
                low = number + 1
        return low, found

    def _first_entry(self, number: int, end: int, io: IoCount) -> tuple[int, ViewRow | None]:
        """The first entry's record from ``number`` on; other and damaged records are skipped."""
        while number < end:
            row = self._row(number, io)
            if row is not None:
                return number, row
            number += 1
        return number, None

    def _row(self, number: int, io: IoCount) -> ViewRow | None:
        place = bisect_right(self._ends, number)
        segment = self._segments[place]
        row = number - (self._ends[place] - segment.entry_count)
        try:
            record = segment.read(row, 1, 0)[0]
            io.add(len(record.stored))
            return unpack_entry_header(record.body, record.position)[0]
        except (DamagedRecordError, BadViewError):
            return None


def _entry(record: memoryview, at: Position) -> Entry:
    row, prefix_size = unpack_entry_header(record, at)
    return Entry(
        row.position,
        EntryKind.DATA,
        row.message_count,
        row.next_index - 1,
        row.append_time_ms,
        prefix_size,
        record[ENTRY_HEADER_BYTES:],
    )


# Writing a compacted view into a ledger of its own.
#
# Entries come in the order of the log. They are written in lots of about a megabyte; each is
# durable before the next one begins, so that producers, which share the group commit, never wait
# for much more than that. If one lot fails, the whole view is given up.


LOT_BYTES = 1 << 20


class ViewWriter:
    """Appends entries, their index blocks and the footer to an empty ``ledger``."""

    def __init__(self, ledger: ManagedLedger, record_max_bytes: int) -> None:
        self._ledger = ledger
        self._record_max_bytes = record_max_bytes
        self._rows: list[ViewRow] = []
        self._blocks: list[BlockPlace] = []
        self._commits: list[Commit] = []
        self._lot_bytes = 0
        self.entry_count = 0
        self.message_count = 0
        self.bytes_written = 0

    def add(
        self, entry: Entry, body: Buffer | None, *, entry_time_ms: int, time_max_ms: int
    ) -> None:
        """Add an entry with a new body, or its own (None).

        ``time_max_ms`` is the log's highest entry time up to it. Raises FencedError if a lot could
        not be made durable, and what the ledger raises.
        """
        row = ViewRow(
            entry.position,
            entry.message_count,
            entry.index + 1,
            entry.append_time_ms,
            entry_time_ms,
            time_max_ms,
            self.entry_count,
            self.message_count,
        )
        header = pack_entry_header(row, entry.prefix_size_bytes)
        parts = (header, entry.stored) if body is None else (header, entry.prefix, body)
        row.at = self._append(b"".join(parts))
        self._rows.append(row)
        self.entry_count += 1
        self.message_count += entry.message_count
        if len(self._rows) == BLOCK_ROWS:
            self._end_block()

    def finish(self, horizon: Position, next_index: int, time_max_ms: int) -> ViewSummary:
        """End the view; it is durable, and whole, when this returns. Raises as `add`."""
        if self._rows:
            self._end_block()
        summary = ViewSummary(
            horizon, next_index, time_max_ms, self.entry_count, self.message_count
        )
        # A view counts once it has its footer, so everything else must be durable before that.
        self._settle()
        self._append(pack_footer(summary, self._blocks))
        self._settle()
        return summary

    def _end_block(self) -> None:
        at = self._append(pack_block(self._rows))
        self._blocks.append(BlockPlace.of(self._rows[0], at))
        self._rows.clear()

    def _append(self, record: bytes) -> Position:
        """Append a record, in pieces if it is too large for the store; returns where it begins."""
        limit = self._record_max_bytes
        if len(record) <= limit:
            return self._append_piece(record)
        piece_bytes = limit - RECORD.size
        rest = memoryview(record)[limit:]
        first = self._append_piece(bytes([record[0], CONTINUED]) + record[RECORD.size : limit])
        while rest:
            piece, rest = rest[:piece_bytes], rest[piece_bytes:]
            self._append_piece(RECORD.pack(RecordType.MORE, CONTINUED if rest else 0) + piece)
        return first

    def _append_piece(self, piece: bytes) -> Position:
        appended = self._ledger.append(piece)
        if not self._commits or self._commits[-1] is not appended.commit:
            self._commits.append(appended.commit)
        self.bytes_written += len(piece)
        self._lot_bytes += len(piece)
        if self._lot_bytes >= LOT_BYTES:
            self._settle()
        return appended.position

    def _settle(self) -> None:
        for commit in self._commits:
            commit.wait()
        self._commits.clear()
        self._lot_bytes = 0


class CountingWriter:
    """Counts the entries for a `ViewWriter`, without headers, index blocks and footer."""

    def __init__(self) -> None:
        self.entry_count = 0
        self.bytes_written = 0

    def add(
        self, entry: Entry, body: Buffer | None, *, entry_time_ms: int, time_max_ms: int
    ) -> None:
        """As `ViewWriter.add`."""
        size_bytes = len(entry.stored) if body is None else entry.prefix_size_bytes + len(body)
        self.bytes_written += size_bytes
        self.entry_count += 1
