"""Writing a compacted view into a ledger of its own.

Entries come in the order of the log. They are written in lots of about a megabyte; each is durable
before the next one begins, so that producers, which share the group commit, never wait for much
more than that. If one lot fails, the whole view is given up.
"""

from __future__ import annotations

from ..ledger.commit.commit import Commit
from ..ledger.entry import Entry
from ..ledger.managed_ledger import ManagedLedger
from ..ledger.position import Position
from ..ledger.view_property import ViewSummary
from ..metadata import Buffer
from .view_format import (
    BLOCK_ROWS,
    CONTINUED,
    RECORD,
    BlockPlace,
    RecordType,
    ViewRow,
    pack_block,
    pack_entry_header,
    pack_footer,
)

LOT_BYTES = 1 << 20


class ViewWriter:
    """Appends entries, their index blocks and the footer to ``ledger``.

    Args:
        ledger: empty, without stampers.
        record_max_bytes: the largest entry that the store takes.
    """

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
        """Add an entry.

        Args:
            entry: as read from the log.
            body: its new headers-and-payload; None: unchanged.
            entry_time_ms: the entry's own time.
            time_max_ms: the highest entry time in the log up to and with it.

        Raises FencedError if a lot could not be made durable, and what the ledger raises.
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
    """Counts what a `ViewWriter` would be given, without headers, index blocks and footer."""

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
