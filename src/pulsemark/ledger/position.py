"""The place of an entry: ledger id and entry id, ordered as Pulsar orders them."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """A place in a topic. Positions compare by ledger, then by entry.

    ``entry_id`` -1 means "before the first entry of this ledger"; a position one past the
    last entry is where the next entry goes.
    """

    ledger_id: int
    entry_id: int

    @property
    def following(self) -> Position:
        """The place of the next entry of the same ledger."""
        return Position(self.ledger_id, self.entry_id + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST = Position(-1, -1)
"""Before every entry; on the wire (2^64-1, 2^64-1)."""

LATEST = Position(2**63 - 1, 2**63 - 1)
"""After every entry, as on the wire."""
