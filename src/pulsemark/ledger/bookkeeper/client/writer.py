"""The writer of a ledger, which created the ledger and alone adds entries to it."""

from __future__ import annotations

import asyncio

from ....metadata.crc import Buffer
from .errors import LedgerClosedError, LedgerFencedError, MetadataConflictError
from .ledger_nodes import VersionedMetadata
from .metadata import LedgerMetadata, LedgerState
from .pipeline import ConfirmedNotice, WritePipeline
from .registry import ClientCore


class LedgerWriter(WritePipeline):
    """Adds entries to a ledger. It belongs to one event loop; `BookKeeperClient` makes it.

    After a failure nothing more is confirmed, and pending entries have no known outcome. What was
    confirmed stays; `close` then ends the ledger after it, unless the ledger was fenced.
    """

    def __init__(self, core: ClientCore, created: VersionedMetadata, password: bytes) -> None:
        super().__init__(core, created.metadata, password)
        self._version = created.version
        self._notice = ConfirmedNotice(self, password)
        self._closing: asyncio.Task[LedgerMetadata] | None = None

    def append(self, *buffers: Buffer) -> asyncio.Future[int]:
        """Add an entry of these buffers, which must not change until it is done.

        Returns a future of its id, done in order when an ack quorum holds it and all before; it may
        be cancelled. Raises as `append_all`.
        """
        return self.append_all((buffers,))

    async def close(self) -> LedgerMetadata:
        """Close the ledger after its last confirmed entry; what is pending fails.

        Raises LedgerFencedError if another client recovers it, LedgerClosedError if one closed it
        after another entry, and the coordination service's errors.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> LedgerMetadata:
        await self.end(LedgerClosedError("this writer is closed", ledger_id=self.ledger_id))
        while True:
            closed = self.metadata.closed(self.last_confirmed, self.length)
            if not isinstance(self.error, LedgerFencedError):
                try:
                    self._version = await self.core.nodes.change(closed, self._version)
                except MetadataConflictError:
                    pass
                else:
                    self.metadata = closed
                    return closed
            found = await self.core.nodes.read(self.ledger_id)
            if found.metadata.is_closed:
                return self._closed_by_other(closed, found.metadata)
            self._check_still_ours(found.metadata)
            self._version = found.version

    def _closed_by_other(self, ours: LedgerMetadata, found: LedgerMetadata) -> LedgerMetadata:
        """Another client closed the ledger, after this writer's last entry or not."""
        if (found.last_entry_id, found.length) != (ours.last_entry_id, ours.length):
            reason = f"another client closed it after entry {found.last_entry_id}"
            raise LedgerClosedError(reason, ledger_id=self.ledger_id)
        self.metadata = found
        return found

    def _check_still_ours(self, found: LedgerMetadata) -> None:
        """Raise unless the ledger is open and has this writer's ensembles."""
        if found.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError("another client recovers it", ledger_id=self.ledger_id)
        if isinstance(self.error, LedgerFencedError):
            raise LedgerFencedError("another client fenced it", ledger_id=self.ledger_id)
        if found.segments != self.metadata.segments:
            reason = "its ensembles are not this writer's"
            raise MetadataConflictError(reason, ledger_id=self.ledger_id)

    async def commit_ensemble(self, changed: LedgerMetadata) -> LedgerMetadata:
        """Store a new ensemble, if the ledger is open and no other client changed it."""
        while True:
            try:
                self._version = await self.core.nodes.change(changed, self._version)
            except MetadataConflictError:
                found = await self.core.nodes.read(self.ledger_id)
            else:
                return changed
            if found.metadata.is_closed:
                reason = f"another client closed it after entry {found.metadata.last_entry_id}"
                raise LedgerClosedError(reason, ledger_id=self.ledger_id)
            self._check_still_ours(found.metadata)
            self._version = found.version
