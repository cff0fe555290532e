"""Reading entries of ledgers, for threads that wait for them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .client.errors import (
    DigestMismatchError,
    EntryMissingError,
    LedgerMissingError,
)
from .failures import FAILURES
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from .client import BookKeeperClient, LedgerEntry, LedgerReader

_READERS_MAX = 1024


class UnreadableEntryError(Exception):
    """The first entry asked for is damaged, or no bookie has it."""


class LedgerAccess:
    """Readers of ledgers, which are kept open. Never recovers or fences a ledger."""

    def __init__(self, thread: LoopThread, client: BookKeeperClient) -> None:
        self._thread = thread
        self._client = client
        self._readers: dict[int, LedgerReader] = {}

    def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
        """Entries from ``first`` to ``last``, which are known to be confirmed; at least one.

        Raises UnreadableEntryError, FileNotFoundError (the ledger was deleted), OSError.
        """
        return self._thread.run(self.entries(ledger_id, first, last, max_bytes))

    async def entries(
        self, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[LedgerEntry]:
        """As ``read``, on the client's loop."""
        is_kept = ledger_id in self._readers
        try:
            reader = await self._reader(ledger_id)
            try:
                return await _read(reader, first, last, max_bytes)
            except FAILURES:
                if not is_kept:
                    raise
            # The ledger may have got other bookies since, or have been deleted: look again.
            self._readers.pop(ledger_id, None)
            return await _read(await self._reader(ledger_id), first, last, max_bytes)
        except LedgerMissingError as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        except (EntryMissingError, DigestMismatchError) as error:
            raise UnreadableEntryError(str(error)) from error
        except FAILURES as error:
            raise OSError(errno.EIO, str(error)) from error

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = await self._client.open_ledger_no_recovery(ledger_id)
            if len(self._readers) >= _READERS_MAX:
                self._readers.pop(next(iter(self._readers)))
            self._readers[ledger_id] = reader
        return reader

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """These ledgers were deleted."""
        for ledger_id in ledger_ids:
            self._readers.pop(ledger_id, None)


async def _read(reader: LedgerReader, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
    reader.know_confirmed(last)
    return await reader.read(first, last, max_bytes=max_bytes)
