"""What an append returns."""

from __future__ import annotations

from dataclasses import dataclass

from .commit.commit import Commit
from .position import Position


@dataclass(slots=True)
class Appended:
    """Position and index of a new entry. It is stored once ``commit`` is done without error."""

    ledger_id: int
    entry_id: int
    index: int
    """Index of the entry's LAST message (PIP-70)."""
    time_ms: int
    commit: Commit

    @property
    def position(self) -> Position:
        """The entry's position."""
        return Position(self.ledger_id, self.entry_id)
