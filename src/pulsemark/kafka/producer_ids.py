"""Ids for idempotent producers, which are never given twice.

They are taken from the broker in blocks, so that most of them cost no write.
"""

from __future__ import annotations

import asyncio

from .ports import Ports

__all__ = ["ProducerIds"]

BLOCK = 1_000


class ProducerIds:
    """The producer ids of one endpoint."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._next = self._end = 0
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """An id that no producer had before. Raises LedgerError."""
        async with self._taking:
            if self._next == self._end:
                first = await self._ports.next_producer_ids(BLOCK)
                self._next, self._end = first, first + BLOCK
            self._next += 1
            return self._next - 1
