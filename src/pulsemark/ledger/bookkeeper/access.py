"""Reading entries of ledgers, for threads that wait for them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ..errors import StoreClosedError
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
AHEAD_MAX = 8
"""Of so many ledgers the next entries are read ahead, each as many bytes as one read takes."""


class UnreadableEntryError(Exception):
    """The first entry asked for is damaged, or no bookie has it."""


class _Ahead(NamedTuple):
    """Entries that are asked for before a reader wants them."""

    first: int
    max_bytes: int
    entries: Future[list[LedgerEntry]]


class LedgerAccess:
    """Readers of ledgers, which are kept open. Never recovers or fences a ledger.

    Where a read begins at the end of the one before, the next one is begun at once: so bookies
    answer while the entries are sent to a client. Confirmed entries never change.
    """

    def __init__(self, thread: LoopThread, client: BookKeeperClient) -> None:
        self._thread = thread
        self._client = client
        self._readers: dict[int, LedgerReader] = {}
        self._ahead: dict[int, _Ahead] = {}
        self._next: dict[int, int] = {}
        """By ledger: the entry after the last one of the last read."""

    def read(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, until: int = -1
    ) -> list[LedgerEntry]:
        """Entries from ``first`` to ``last``, which are known to be confirmed; at least one.

        ``until`` is the last one that is known to be confirmed; -1: nothing is read ahead.

        Raises UnreadableEntryError, FileNotFoundError (the ledger was deleted), OSError.
        """
        ahead = self._ahead.pop(ledger_id, None)
        found: list[LedgerEntry] = []
        if ahead is not None and (ahead.first, ahead.max_bytes) == (first, max_bytes):
            # What failed is read again, and fails again if it has to.
            with suppress(Exception, CancelledError):
                found = [one for one in ahead.entries.result() if one.entry_id <= last]
        if not found:
            found = self._thread.run(self.entries(ledger_id, first, last, max_bytes))
        self._read_ahead(ledger_id, first, last, max_bytes, found[-1].entry_id + 1, until)
        return found

    def _read_ahead(
        self, ledger_id: int, first: int, last: int, max_bytes: int, begin: int, until: int
    ) -> None:
        is_next = self._next.pop(ledger_id, -1) == first
        self._next[ledger_id] = begin
        if len(self._next) > _READERS_MAX:
            self._next.pop(next(iter(tuple(self._next))), None)
        if not is_next or begin > until:
            return
        end = min(until, begin + last - first)
        with suppress(StoreClosedError):
            work = self._thread.begin(self.entries(ledger_id, begin, end, max_bytes))
            self._ahead[ledger_id] = _Ahead(begin, max_bytes, work)
        for other in tuple(self._ahead)[:-AHEAD_MAX]:
            self._ahead.pop(other, None)

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
            for known in (self._readers, self._ahead, self._next):
                known.pop(ledger_id, None)


async def _read(reader: LedgerReader, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
    reader.know_confirmed(last)
    return await reader.read(first, last, max_bytes=max_bytes)
