"""The writer of a ledger: it created the ledger, and only it adds entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ....metadata.crc import Buffer
from .errors import BookKeeperError, LedgerClosedError, LedgerFencedError, MetadataConflictError
from .ledger_nodes import VersionedMetadata
from .metadata import LedgerMetadata, LedgerState
from .pipeline import WritePipeline
from .registry import ClientCore


class LedgerWriter:
    """Adds entries to a ledger. It belongs to one event loop; `BookKeeperClient` makes it.

    After a failure nothing more is confirmed, and pending entries have no known outcome. What was
    confirmed stays; `close` then ends the ledger after it, unless the ledger was fenced.
    """

    def __init__(self, core: ClientCore, created: VersionedMetadata, password: bytes) -> None:
        self._core = core
        self._version = created.version
        self._pipeline = WritePipeline(core, created.metadata, password, self._commit_ensemble)
        self._closing: asyncio.Task[LedgerMetadata] | None = None

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer knows it."""
        return self._pipeline.metadata

    @property
    def last_confirmed(self) -> int:
        """The last entry that is confirmed, and all before it; -1: none."""
        return self._pipeline.confirmed

    @property
    def length(self) -> int:
        """Bytes of payload up to and with the last confirmed entry."""
        return self._pipeline.confirmed_length

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of entries that are not confirmed, requests' own bytes with them."""
        return self._pipeline.in_flight_bytes

    @property
    def error(self) -> BookKeeperError | None:
        """Why this writer takes no more entries; None while it does."""
        return self._pipeline.error

    def append(self, *buffers: Buffer) -> asyncio.Future[int]:
        """Add an entry of these buffers, which must not change until it is done.

        Returns a future of its id, done in order when an ack quorum holds it and all before; it may
        be cancelled. Raises the writer's error (LedgerFencedError, LedgerClosedError...),
        BackPressureError or EntryTooLargeError. Nothing was sent then.
        """
        return self._pipeline.append((buffers,))

    def append_all(self, payloads: Sequence[Sequence[Buffer]]) -> asyncio.Future[int]:
        """Add one or more entries, each given by its buffers: cheaper than one by one.

        Returns a future of the last one's id, which is done when all are confirmed. If it fails,
        the first of them may be confirmed. What this raises is as of `append`; nothing was sent.
        """
        return self._pipeline.append(payloads)

    async def ready(self) -> None:
        """Wait until `append` takes an entry again. Raises the writer's error."""
        await self._pipeline.ready()

    async def close(self) -> LedgerMetadata:
        """Close the ledger after its last confirmed entry; what is pending fails.

        Raises LedgerFencedError if another client recovers it, LedgerClosedError if one closed it
        after another entry, and the coordination service's errors.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> LedgerMetadata:
        pipeline = self._pipeline
        await pipeline.end(LedgerClosedError("this writer is closed", ledger_id=self.ledger_id))
        while True:
            closed = pipeline.metadata.closed(pipeline.confirmed, pipeline.confirmed_length)
            if not isinstance(pipeline.error, LedgerFencedError):
                try:
                    self._version = await self._core.nodes.change(closed, self._version)
                except MetadataConflictError:
                    pass
                else:
                    pipeline.metadata = closed
                    return closed
            found = await self._core.nodes.read(self.ledger_id)
            if found.metadata.is_closed:
                return self._closed_by_other(closed, found.metadata)
            self._check_still_ours(found.metadata)
            self._version = found.version

    def _closed_by_other(self, ours: LedgerMetadata, found: LedgerMetadata) -> LedgerMetadata:
        """Another client closed the ledger: as this writer would have, or after another entry."""
        if (found.last_entry_id, found.length) != (ours.last_entry_id, ours.length):
            reason = f"another client closed it after entry {found.last_entry_id}"
            raise LedgerClosedError(reason, ledger_id=self.ledger_id)
        self._pipeline.metadata = found
        return found

    def _check_still_ours(self, found: LedgerMetadata) -> None:
        """Raises unless the ledger is open, with the ensembles that this writer gave it."""
        if found.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError("another client recovers it", ledger_id=self.ledger_id)
        if isinstance(self._pipeline.error, LedgerFencedError):
            raise LedgerFencedError("another client fenced it", ledger_id=self.ledger_id)
        if found.segments != self.metadata.segments:
            reason = "its ensembles are not this writer's"
            raise MetadataConflictError(reason, ledger_id=self.ledger_id)

    async def _commit_ensemble(self, changed: LedgerMetadata) -> LedgerMetadata:
        """Write a new ensemble, allowed while the ledger is open and no other client changed it."""
        while True:
            try:
                self._version = await self._core.nodes.change(changed, self._version)
            except MetadataConflictError:
                found = await self._core.nodes.read(self.ledger_id)
            else:
                return changed
            if found.metadata.is_closed:
                reason = f"another client closed it after entry {found.metadata.last_entry_id}"
                raise LedgerClosedError(reason, ledger_id=self.ledger_id)
            self._check_still_ours(found.metadata)
            self._version = found.version
