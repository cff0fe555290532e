"""The reader of a ledger: closed, or open and followed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .core import ClientCore
from .digests import digest_of
from .entries import LedgerEntry
from .entry_read import EntryReads
from .errors import BookKeeperError, EntryMissingError, InvalidRequestError
from .last_confirmed import read_last_confirmed, wait_beyond
from .ledger_nodes import VersionedMetadata
from .metadata import LedgerMetadata

_DEFAULT_MAX_BYTES = 16 * 1024 * 1024


class LedgerReader:
    """Reads entries of a ledger, and never more than its last confirmed one.

    It belongs to one event loop; `BookKeeperClient` makes it. It writes nothing and fences nothing.
    """

    def __init__(
        self, core: ClientCore, opened: VersionedMetadata, password: bytes, last_confirmed: int
    ) -> None:
        self._core = core
        self._metadata = opened.metadata
        self._digest = digest_of(opened.metadata.digest_type, password)
        self._last_confirmed = last_confirmed
        self._usual_bytes = 0
        """The mean payload of the entries that were read last; 0: none were read yet."""

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata when it was last looked at."""
        return self._metadata

    @property
    def last_confirmed(self) -> int:
        """The last entry that may be read, as far as is known; -1: none."""
        return self._last_confirmed

    def know_confirmed(self, entry_id: int) -> None:
        """The caller knows from the ledger's writer that this entry and all before it may be read.

        Bookies learn of an entry's confirmation only with the next entry.
        """
        self._last_confirmed = max(self._last_confirmed, entry_id)

    async def read(
        self, first: int, last: int, max_bytes: int = _DEFAULT_MAX_BYTES
    ) -> list[LedgerEntry]:
        """The entries from `first` to `last`, or fewer: at least one, and few above `max_bytes`.

        The entry that reaches `max_bytes` of payload is the last one returned.

        Raises EntryMissingError beyond the last confirmed entry or if no replica holds an entry,
        DigestMismatchError if no good copy is found, NotEnoughBookiesError if no replica answers.
        """
        if first < 0 or last < first or max_bytes < 1:
            raise InvalidRequestError(
                f"entries {first} to {last}, {max_bytes} bytes", ledger_id=self.ledger_id
            )
        if last > self._last_confirmed:
            reason = f"the last confirmed entry is {self._last_confirmed}"
            raise EntryMissingError(reason, ledger_id=self.ledger_id, entry_id=last)
        entries: list[LedgerEntry] = []
        size, most = 0, self._core.options.read_batch_entries
        usual = self._usual_bytes
        batch = max(1, min(most, max_bytes // usual + 1 if usual else 4))
        while first <= last and size < max_bytes:
            until = min(last, first + batch - 1)
            for entry in await self._read_batch(first, until):
                if size < max_bytes:
                    entries.append(entry)
                    size += len(entry.payload)
            first = until + 1
            # As many as should fit by the sizes seen so far, and not many more than before.
            room = (max_bytes - size) * len(entries) // max(1, size)
            batch = max(1, min(most, batch * 4, room + 1))
        self._usual_bytes = size // len(entries)
        return entries

    async def _read_batch(self, first: int, last: int) -> Sequence[LedgerEntry]:
        """Entries that are asked for at once; after a failure again by metadata as it is now."""
        try:
            return await EntryReads(self._core, self._metadata, self._digest).read(first, last)
        except BookKeeperError:
            # Another replica may have been made meanwhile, and the old one removed.
            before = self._metadata.segments
            await self.refresh_metadata()
            if self._metadata.segments == before:
                raise
        return await EntryReads(self._core, self._metadata, self._digest).read(first, last)

    async def refresh_metadata(self) -> LedgerMetadata:
        """Look at the ledger's node again. Raises LedgerMissingError."""
        found = await self._core.nodes.read(self.ledger_id)
        self._metadata = found.metadata
        if found.metadata.is_closed:
            self._last_confirmed = found.metadata.last_entry_id
        return found.metadata

    async def refresh_last_confirmed(self) -> int:
        """Ask metadata and bookies how far the ledger may be read now; returns that entry.

        Of an open ledger it can be less than the writer knows: a bookie hears of an entry's
        confirmation with the next entry. Raises NotEnoughBookiesError if no bookie answers.
        """
        metadata = await self.refresh_metadata()
        if not metadata.is_closed:
            found = await read_last_confirmed(self._core, metadata, self._digest)
            self._last_confirmed = max(self._last_confirmed, found)
        return self._last_confirmed

    async def wait_last_confirmed(self, beyond: int, timeout_ms: int) -> int:
        """Wait until an entry beyond this one may be read, or the ledger is closed.

        Returns the last confirmed entry, which is not beyond it if the time was over first.
        """
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms {timeout_ms}", ledger_id=self.ledger_id)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        while self._last_confirmed <= beyond:
            metadata = await self.refresh_metadata()
            left_ms = int((until - loop.time()) * 1000)
            if metadata.is_closed or left_ms <= 0:
                break
            found = await wait_beyond(self._core, metadata, beyond, left_ms)
            if not self._metadata.is_closed:
                self._last_confirmed = max(self._last_confirmed, found)
        return self._last_confirmed
