"""The groups, for as long as this broker coordinates them.

A broker alone does so from its start on. In a cluster it is the owner of the log of committed
offsets: when a broker begins to own it, it reads the log; when it owns it no more, it forgets all,
and members find the next coordinator. They join again there, and go on at the committed offsets.
"""

from __future__ import annotations

import asyncio
import logging

from ...ledger import LedgerError
from ..deadlines import Deadlines
from ..errors import Code
from ..nodes import ClusterPort
from ..options import KafkaOptions
from ..ports import Ports
from .coordinator import Coordinator
from .offsets import Offsets

__all__ = ["Residence"]

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""A log that could not be read is read again after this time."""


class Residence:
    """The coordinator and the offsets; both are empty while another broker has them."""

    def __init__(
        self, ports: Ports, options: KafkaOptions, deadlines: Deadlines, cluster: ClusterPort
    ) -> None:
        self._ports = ports
        self._options = options
        self._deadlines = deadlines
        self._cluster = cluster
        self._is_here = False
        self._loading: asyncio.Task[None] | None = None
        self._is_over = False
        self._leave()

    async def load(self) -> None:
        """Read the log, and coordinate from now on. Raises LedgerError, OSError."""
        journal = await self._ports.journal()
        run_blocking = self._ports.run_blocking
        offsets = Offsets(journal, run_blocking, self._options.max_committed_offsets)
        await run_blocking(offsets.load)
        self.offsets = offsets
        self.coordinator = Coordinator(self._options, self._deadlines, offsets)
        self._is_here = True

    def refusal(self) -> Code:
        """Why a request about a group is refused; NONE: this broker coordinates."""
        if not self._cluster.coordinates():
            self._cluster.offer()
            return Code.NOT_COORDINATOR
        return Code.NONE if self._is_here else Code.COORDINATOR_LOAD_IN_PROGRESS

    def moved(self) -> None:
        """What this broker owns has changed: begin to coordinate, or end it."""
        if not self._cluster.coordinates():
            if self._loading is not None:
                self._loading.cancel()
                self._loading = None
            if self._is_here:
                self.coordinator.close()
                self._leave()
        elif not self._is_here and self._loading is None and not self._is_over:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    def _leave(self) -> None:
        self._is_here = False
        self.offsets = Offsets(None, self._ports.run_blocking, 0)
        self.coordinator = Coordinator(self._options, self._deadlines, self.offsets)

    async def _load(self) -> None:
        try:
            await self.load()
        except (LedgerError, OSError) as error:
            log.warning("committed offsets could not be read: %s", error)
            self._deadlines.after(AGAIN_S, self.moved)
        finally:
            if self._loading is asyncio.current_task():
                self._loading = None
        if not self._cluster.coordinates() and self._is_here:
            self.coordinator.close()
            self._leave()

    def close(self) -> None:
        """The broker closes: members join again elsewhere, or after its start."""
        self._is_over = True
        if self._loading is not None:
            self._loading.cancel()
        self.coordinator.close()
