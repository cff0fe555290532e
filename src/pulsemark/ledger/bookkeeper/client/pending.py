"""Entries on their way to their bookies: how many of them each one holds.

Only the first entries up to one that is not answered count as held. So what a quorum holds of the
entries is a number, too, and what is confirmed has no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ....metadata.buffers import Buffer


class PendingEntries:
    """Consecutive entries with the same write set, not all of which are confirmed."""

    __slots__ = ("bodies", "confirmed", "ends", "first_id", "future", "held", "size_bytes")

    def __init__(
        self,
        first_id: int,
        ends: Sequence[int],
        bodies: Sequence[Sequence[Buffer]],
        ensemble_size: int,
    ) -> None:
        self.first_id = first_id
        self.ends = ends
        """The ledger's length with each of them."""
        self.bodies = bodies
        self.held = [0] * ensemble_size
        """Of each place in the ensemble: how many of the first entries its bookie holds."""
        self.confirmed = 0
        """How many of the first entries are confirmed."""
        self.size_bytes = 0
        self.future: asyncio.Future[int] | None = None
        """Done when all of them are confirmed."""

    def held_by(self, quorum: int) -> int:
        """How many of the first entries so many bookies hold."""
        return sorted(self.held)[-quorum]
