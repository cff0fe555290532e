"""Recovery: fences, completes and closes a ledger that its writer left open.

Entries that any ack quorum held are kept, and so are entries that no reader can distinguish from
them, if a copy is found. Source: BookKeeper's LedgerRecoveryOp, and its TLA+ specification where
they differ: the fence goes with every read, and a ledger that is already in recovery gets a new
version.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from .bookies import ask_all
from .entries import NO_ENTRY, Digest, LedgerEntry, digest_of, master_key
from .errors import (
    BookieError,
    BookKeeperError,
    DigestMismatchError,
    EntryMissingError,
    LedgerMissingError,
    MetadataConflictError,
    NotEnoughBookiesError,
    RecoveryFailedError,
    WrongKeyError,
)
from .frames import Outgoing, read_request
from .ledger_nodes import VersionedMetadata
from .metadata import enough_answers
from .pipeline import WritePipeline
from .reader import EntryReads, entry_in
from .registry import ClientCore

log = logging.getLogger(__name__)


class RecoveryRules(NamedTuple):
    """Rules of recovery. Control runs of the simulation break one each, to see entries lost."""

    fence: bool = True
    """Recovery fences the ledger."""
    fence_reads: bool = True
    """Reads of entries fence the ledger, not only those of the last confirmed entry."""
    floor_of_segment: bool = True
    """Entries before the last segment count as confirmed, whatever bookies say."""


async def recover(
    core: ClientCore, ledger_id: int, password: bytes, rules: RecoveryRules
) -> VersionedMetadata:
    """Close a ledger, so that nothing is added any more. Return its metadata.

    A closed ledger is left alone. Raises LedgerMissingError, WrongKeyError, or RecoveryFailedError
    if too few bookies answer: then the ledger stays in recovery, and a later call can go on.
    """
    for attempt in range(core.options.recovery_attempts):
        found = await core.nodes.read(ledger_id)
        if found.metadata.is_closed:
            return found
        if found.metadata.password != password:
            # Never sent: a bookie that has not seen the ledger yet would take it for the right one.
            raise WrongKeyError("the metadata has another password", ledger_id=ledger_id)
        try:
            return await _Recovery(core, found, password, rules).run()
        except MetadataConflictError:
            # Another client recovers the ledger, or has closed it: wait for a moment.
            delay_ms = min(5_000, 50 << attempt)
            await asyncio.sleep(core.random.uniform(0.5, 1) * delay_ms / 1000)
    raise RecoveryFailedError("others recover it all the time", ledger_id=ledger_id)


class _Recovery:
    """One attempt of recovery. Raises MetadataConflictError if another client recovers, too."""

    def __init__(
        self, core: ClientCore, found: VersionedMetadata, password: bytes, rules: RecoveryRules
    ) -> None:
        self._core = core
        self._metadata = found.metadata.in_recovery()
        self._version = found.version
        self._rules = rules
        self._password = password
        self._digest: Digest = digest_of(found.metadata.digest_type, password)
        self._key = master_key(password)

    async def run(self) -> VersionedMetadata:
        """Run all steps."""
        nodes = self._core.nodes
        self._version = await nodes.change(self._metadata, self._version, must_be_ours=True)
        start = await self._fence()
        if self._rules.floor_of_segment:
            start = max(start, self._metadata.last_segment.first_entry_id - 1)
        length = await self._length_at(start)
        pipeline = WritePipeline(
            self._core, self._metadata, self._password,
            confirmed=start, length=length, recovery=True,
        )  # fmt: skip
        try:
            await self._write_again(pipeline, start + 1)
        except NotEnoughBookiesError as error:
            raise self._failed(str(error)) from error
        finally:
            await pipeline.end(self._failed("it ended early"))
        closed = pipeline.metadata.closed(pipeline.last_confirmed, pipeline.length)
        version = await nodes.change(closed, self._version)
        return VersionedMetadata(closed, version)

    def _failed(self, reason: str) -> RecoveryFailedError:
        return RecoveryFailedError(reason, ledger_id=self._metadata.ledger_id)

    # -- what is there ----------------------------------------------------------------------------

    async def _fence(self) -> int:
        """Fence the last ensemble. Return the last confirmed entry that its bookies know."""
        metadata = self._metadata
        bookies = metadata.last_segment.bookies
        # A fence without an entry number answers with the bookie's last entry.
        request = self._request(NO_ENTRY, fence=True)
        answered: set[int] = set()
        best, errors = NO_ENTRY, []
        answers = ask_all(self._core.bookies, dict(enumerate(bookies)), request)
        for _ in bookies:
            place, answer = await answers.get()
            try:
                entry = entry_in(answer, self._digest, metadata, None, bookies[place])
                best = max(best, entry.last_confirmed)
            except (EntryMissingError, LedgerMissingError, DigestMismatchError):
                pass  # it is fenced, whatever its last entry is
            except BookieError as error:
                errors.append(error)
                continue
            answered.add(place)
            if enough_answers(metadata, answered):
                return best
        raise self._failed("too few bookies can be fenced: " + "; ".join(map(str, errors)))

    def _request(self, entry_id: int, *, fence: bool) -> Outgoing:
        return read_request(
            self._metadata.ledger_id,
            entry_id,
            timeout_ms=self._core.options.read_timeout_ms,
            master_key=self._key,
            fence=fence and self._rules.fence,
            high_priority=True,
        )

    async def _length_at(self, entry_id: int) -> int:
        """The ledger's length in bytes after a confirmed entry."""
        if entry_id == NO_ENTRY:
            return 0
        try:
            reads = EntryReads(self._core, self._metadata, self._digest)
            return (await reads.read(entry_id, entry_id))[0].length
        except BookKeeperError as error:
            raise self._failed(str(error)) from error

    async def _read(self, entry_id: int) -> LedgerEntry | None:
        """Read an entry with a good copy; None if it was surely never confirmed.

        None also for a last entry that is torn on all its bookies: bookies have no checksum over
        their journals, so after a power cut a partly written record comes back as an entry.
        """
        metadata = self._metadata
        ensemble = metadata.segment_of(entry_id).bookies
        bookies = {place: ensemble[place] for place in metadata.write_set(entry_id)}
        request = self._request(entry_id, fence=self._rules.fence_reads)
        needed = metadata.write_quorum_size - metadata.ack_quorum_size + 1
        missing, damaged, errors = 0, 0, []
        answers = ask_all(self._core.bookies, bookies, request)
        for _ in bookies:
            place, answer = await answers.get()
            try:
                return entry_in(answer, self._digest, metadata, entry_id, bookies[place])
            except (EntryMissingError, LedgerMissingError):
                missing += 1
                if missing >= needed:
                    return None
            except (BookieError, DigestMismatchError) as error:
                damaged += isinstance(error, DigestMismatchError)
                errors.append(error)
        if damaged + missing == len(bookies) and await self._read(entry_id + 1) is None:
            causes = "; ".join(map(str, errors))
            text = "ledger %d ends before entry %d, which is torn: %s"
            log.warning(text, metadata.ledger_id, entry_id, causes)
            return None
        raise self._failed(f"entry {entry_id}: " + "; ".join(map(str, errors)))

    # -- what is written --------------------------------------------------------------------------

    async def _write_again(self, pipeline: WritePipeline, first: int) -> None:
        """Write the entries from `first` on again, up to the first missing one."""
        batch = self._core.options.recovery_batch_entries
        more = True
        while more:
            reads = [asyncio.ensure_future(self._read(first + i)) for i in range(batch)]
            written: list[asyncio.Future[int]] = []
            try:
                for read in reads:
                    entry = await read
                    if entry is None:
                        more = False
                        break
                    await pipeline.ready()
                    before = entry.length - len(entry.payload)
                    written.append(pipeline.append_all(((entry.payload,),), before))
                await asyncio.gather(*written)
            finally:
                begun: list[asyncio.Future[Any]] = [*reads, *written]
                for one in begun:
                    one.cancel()
                await asyncio.gather(*begun, return_exceptions=True)
            first += batch
