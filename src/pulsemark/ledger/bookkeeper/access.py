"""Reading entries of ledgers: for threads that wait for them, and for one that never does."""

from __future__ import annotations

import errno
import threading
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
from .fetches import Fetches
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
        self._held: dict[int, list[LedgerEntry]] = {}
        """By ledger: the last entry of the last read, since the next may begin with it, and those
        that were read and not asked for."""
        self.fetches = Fetches(thread.begin, self.entries)
        self._never_waits = -1

    def never_wait_here(self) -> None:
        """From now on ``read`` in the calling thread raises BeingReadError instead of waiting."""
        self._never_waits = threading.get_ident()

    def read(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, until: int = -1
    ) -> list[LedgerEntry]:
        """Entries from ``first`` to ``last``, which are known to be confirmed; at least one.

        ``until`` is the last one that is known to be confirmed; -1: nothing is read ahead.

        Raises UnreadableEntryError, FileNotFoundError (the ledger was deleted), OSError; in a
        thread that never waits BeingReadError.
        """
        if threading.get_ident() == self._never_waits:
            fetched = self.fetches.read(ledger_id, first, last, max_bytes, until)
            return _fitting(fetched, last, max_bytes)
        held = self._held.get(ledger_id)
        if held and held[0].entry_id <= first <= held[-1].entry_id:
            return _fitting(held[first - held[0].entry_id :], last, max_bytes)
        is_next = held is not None and held[-1].entry_id + 1 == first
        ahead = self._ahead.pop(ledger_id, None)
        found: list[LedgerEntry] = []
        if ahead is not None and ahead.first == first:
            # What failed is read again, and fails again if it has to.
            with suppress(Exception, CancelledError):
                found = ahead.entries.result()
        if not found:
            found = self._thread.run(self.entries(ledger_id, first, last, max_bytes))
        fitting = _fitting(found, last, max_bytes)
        self._hold(ledger_id, found[len(fitting) - 1 :])
        begin = found[-1].entry_id + 1
        if is_next and begin <= until:
            self._read_ahead(ledger_id, begin, min(until, begin + last - first), max_bytes)
        return fitting

    def _hold(self, ledger_id: int, entries: list[LedgerEntry]) -> None:
        self._held.pop(ledger_id, None)
        self._held[ledger_id] = entries
        for other in tuple(self._held)[:-AHEAD_MAX]:
            self._held.pop(other, None)

    def _read_ahead(self, ledger_id: int, first: int, last: int, max_bytes: int) -> None:
        with suppress(StoreClosedError):
            work = self._thread.begin(self.entries(ledger_id, first, last, max_bytes))
            self._ahead[ledger_id] = _Ahead(first, work)
        for other in tuple(self._ahead)[:-AHEAD_MAX]:
            self._ahead.pop(other, None)

    async def entries(
        self, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[LedgerEntry]:
        """As ``read``, on the client's loop."""
        try:
            return await self._entries(ledger_id, first, last, max_bytes)
        except UnreadableEntryError:
            if last == first:
                raise
        # It may be any of them: of those that are read at once a later one may be lost.
        return await self._entries(ledger_id, first, first, max_bytes)

    async def _entries(
        self, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[LedgerEntry]:
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
        self.fetches.forget(ledger_ids)
        for ledger_id in ledger_ids:
            for known in (self._readers, self._ahead, self._held):
                known.pop(ledger_id, None)


def _fitting(entries: list[LedgerEntry], last: int, max_bytes: int) -> list[LedgerEntry]:
    """The first ones, up to ``last``; the one that reaches ``max_bytes`` is the last."""
    fitting: list[LedgerEntry] = []
    for entry in entries:
        if entry.entry_id > last or max_bytes <= 0:
            break
        fitting.append(entry)
        max_bytes -= len(entry.payload)
    return fitting


async def _read(reader: LedgerReader, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
    reader.know_confirmed(last)
    return await reader.read(first, last, max_bytes=max_bytes)
