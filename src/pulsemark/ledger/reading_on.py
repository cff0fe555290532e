"""Reads a log from a position to its end, past damaged entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .entry import Entry
from .errors import CorruptEntryError
from .position import Position

if TYPE_CHECKING:
    from .managed_ledger import ManagedLedger

__all__ = ["entries_from"]

READ_ENTRIES = 200


def entries_from(ledger: ManagedLedger, at: Position) -> Iterator[Entry]:
    """The durable entries from a position on. Blocks. Raises LedgerError, OSError."""
    while True:
        try:
            entries = ledger.read(at, max_entries=READ_ENTRIES)
        except CorruptEntryError as damage:
            at = damage.next_position
            continue
        if not entries:
            return
        yield from entries
        last = entries[-1].position
        at = Position(last.ledger_id, last.entry_id + 1)
