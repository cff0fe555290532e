"""Fetches entries from bookies. One thread never waits: it gets an error and asks again later.

A fetch is one read of one ledger: from the entry that was asked for, as many as were asked for.
Callers that ask meanwhile for entries of the same read wait for it, too, so readers at one place
cost one read. Where a reader goes on at the end of an earlier fetch, the next one is begun at once:
so bookies answer while entries are sent to a client.

Fetches that a reader has passed are dropped, except for the last few: another reader may follow
closely, and memory that is used again at once costs least. Other fetches are kept up to a limit of
memory. Then the least recently used go first, and those that a reader still has to take only after
seconds. A failed fetch is kept for a moment, so that all callers learn of the failure, and is then
made again. At most `AT_ONCE` reads run; others wait for their turn.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import StoreClosedError, WouldBlockError
from .client.errors import FAILURES, DigestMismatchError, EntryMissingError, LedgerMissingError
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from .client import BookKeeperClient, LedgerEntry, LedgerReader


AT_ONCE = 64
KEPT_BYTES = 16 * 1024 * 1024
"""So much is kept for readers that may come, and at most twice as much for those that will."""
KEPT_FETCHES = 1024
PASSED_FETCHES = 1
"""So many that readers have passed are kept."""
AWAITED_S = 5.0
"""A reader that waited for a fetch, and has not taken it for so long, is not expected any more."""
FAILURE_KEPT_S = 0.2
AHEAD_FETCHES, AHEAD_MAX = 1, 8
"""So many fetches are begun before a reader that goes on asks for them; and for all readers. With
two of them the client's thread and the reader's always run at once, which costs more than it gains.
"""
AHEAD_ENTRIES, AHEAD_BYTES = 200, 4 * 1024 * 1024
"""So much is fetched at once for a reader that goes on, or as much as it asked for."""
ENTRY_COST_BYTES = 300
"""What an entry takes beside its payload."""

Entries: TypeAlias = "list[LedgerEntry]"
Begin = Callable[[Coroutine[Any, Any, Entries]], Future[Entries]]
Read = Callable[[int, int, int, int], Coroutine[Any, Any, Entries]]


class _Fetch:
    """One read of a ledger."""

    __slots__ = (
        "depth",
        "ended_s",
        "first",
        "future",
        "is_ahead",
        "is_awaited",
        "last",
        "ledger_id",
        "max_bytes",
        "max_entries",
        "size_bytes",
        "until",
    )

    def __init__(self, ledger_id: int, first: int, last: int, max_bytes: int, until: int) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.max_entries, self.max_bytes = last - first + 1, max_bytes
        self.last = last
        """The last entry that it has, or may have as long as it is under way."""
        self.until = until
        """The last entry that may be fetched after it; -1: it does not go on after another one."""
        self.future: Future[Entries] = Future()
        self.is_awaited = self.is_ahead = False
        """Whether a reader will come for it; whether none has asked for it yet."""
        self.depth = 0
        """How many fetches the reader has to take before this one."""
        self.ended_s = 0.0
        self.size_bytes = 0


class Fetches:
    """The fetches of one store. ``begin`` starts a coroutine, ``read``, on the client's loop."""

    def __init__(self, begin: Begin, read: Read) -> None:
        self._begin = begin
        self._read = read
        self._lock = threading.RLock()
        self._known: OrderedDict[tuple[int, int], _Fetch] = OrderedDict()
        """By ledger and first entry, the last used one last."""
        self._firsts: dict[int, list[int]] = {}
        """The first entries of a ledger's fetches, in order."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.size_bytes = 0
        """What all of them take."""
        self.ahead_count = 0
        """How many of them no reader has asked for yet."""
        self._passed: deque[_Fetch] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def read(
        self, ledger_id: int, first: int, last: int, max_bytes: int, until: int
    ) -> list[LedgerEntry]:
        """Fetched entries from ``first`` on: at least one, and maybe more than asked for.

        ``until`` is the last entry known to be confirmed; -1: nothing is read ahead.

        Raises WouldBlockError, StoreClosedError, and the errors of reading.
        """
        with self._lock:
            return self._read_now(ledger_id, first, last, max_bytes, until)

    def _read_now(
        self, ledger_id: int, first: int, last: int, max_bytes: int, until: int
    ) -> Entries:
        found = self._before(ledger_id, first + 1)
        if found is not None and found.last >= first:
            if not found.future.done():
                found.is_awaited = True
                self._asked_for(found)
                raise WouldBlockError(found.future)
            entries = _entries_of(found, first)
            if entries:
                self._taken(found, until)
                return entries
        goes_on = found is not None and found.last + 1 == first
        if goes_on and until >= last:
            last = max(last, min(until, first + AHEAD_ENTRIES - 1))
            max_bytes = max(max_bytes, AHEAD_BYTES)
        made = _Fetch(ledger_id, first, last, max_bytes, until if goes_on else -1)
        self._start(made)
        made.is_awaited = True
        raise WouldBlockError(made.future)

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Drop the fetches of deleted ledgers."""
        with self._lock:
            for ledger_id in ledger_ids:
                for first in tuple(self._firsts.get(ledger_id, ())):
                    self._remove(self._known[ledger_id, first])

    def _before(self, ledger_id: int, end: int) -> _Fetch | None:
        """The last fetch that begins before an entry."""
        firsts = self._firsts.get(ledger_id, ())
        number = bisect_left(firsts, end)
        return self._known[ledger_id, firsts[number - 1]] if number else None

    # Beginning: under the lock, as what follows

    def _start(self, made: _Fetch) -> None:
        place = made.ledger_id, made.first
        made.future = self._begin(self._in_turn(*place, made.last, made.max_bytes))
        known = self._known.pop(place, None)
        if known is None:
            insort(self._firsts.setdefault(made.ledger_id, []), made.first)
        else:
            self._uncount(known)
        self._known[place] = made
        made.future.add_done_callback(lambda _: self._ended(made))

    async def _in_turn(self, ledger_id: int, first: int, last: int, max_bytes: int) -> Entries:
        async with self._slots:
            return await self._read(ledger_id, first, last, max_bytes)

    def _taken(self, found: _Fetch, until: int) -> None:
        """Note that a reader takes a fetch's entries."""
        found.is_awaited = False
        self._asked_for(found)
        if self._is_known(found):
            self._known.move_to_end((found.ledger_id, found.first))
        if found.until >= 0:
            self._pass(self._before(found.ledger_id, found.first), found)
            found.depth, found.until = 0, until
            self._read_on(found)

    def _asked_for(self, fetch: _Fetch) -> None:
        self.ahead_count -= fetch.is_ahead
        fetch.is_ahead = False

    def _pass(self, fetch: _Fetch | None, now_at: _Fetch) -> None:
        """Drop the fetch that a reader has passed, if it ends where the next begins."""
        if fetch is None or fetch.last + 1 != now_at.first or fetch in self._passed:
            return
        self._passed.append(fetch)
        if len(self._passed) > PASSED_FETCHES:
            oldest = self._passed.popleft()
            if self._is_known(oldest):
                self._remove(oldest)

    def _read_on(self, found: _Fetch) -> None:
        """Begin the next fetches, as far ahead of the reader as the limits allow."""
        until = found.until
        while found.ended_s and found.depth < AHEAD_FETCHES:
            first = found.last + 1  # known since it ended
            following = self._known.get((found.ledger_id, first))
            if following is not None:
                following.depth = found.depth + 1
                found = following
                continue
            if first <= until and self.ahead_count < AHEAD_MAX:
                last = min(until, first + max(found.max_entries, AHEAD_ENTRIES) - 1)
                max_bytes = max(found.max_bytes, AHEAD_BYTES)
                made = _Fetch(found.ledger_id, first, last, max_bytes, until)
                made.depth = found.depth + 1
                with suppress(StoreClosedError):
                    made.is_ahead = True
                    self.ahead_count += 1
                    self._start(made)
            return

    # Ending

    def _ended(self, fetch: _Fetch) -> None:
        """Take a fetch's result. Runs on the client's loop, or where the fetch was begun."""
        future = fetch.future
        with self._lock:
            fetch.ended_s = time.monotonic()
            if not self._is_known(fetch):
                return
            if future.cancelled() or future.exception() is not None:
                fetch.last = fetch.first  # it says nothing about other entries
                return
            entries = future.result()
            fetch.last = entries[-1].entry_id
            fetch.size_bytes = sum(len(one.payload) + ENTRY_COST_BYTES for one in entries)
            self.size_bytes += fetch.size_bytes
            self._known.move_to_end((fetch.ledger_id, fetch.first))
            self._make_room(fetch)
            self._read_on(fetch)

    def _make_room(self, but: _Fetch) -> None:
        now_s = time.monotonic()
        for fetch in tuple(self._known.values()):
            if self.size_bytes <= KEPT_BYTES and len(self._known) <= KEPT_FETCHES:
                return
            is_wanted = fetch.is_awaited and now_s - fetch.ended_s < AWAITED_S
            if is_wanted and self.size_bytes <= 2 * KEPT_BYTES:
                continue
            if fetch is not but and fetch.ended_s:
                self._remove(fetch)

    def _is_known(self, fetch: _Fetch) -> bool:
        return self._known.get((fetch.ledger_id, fetch.first)) is fetch

    def _remove(self, fetch: _Fetch) -> None:
        del self._known[fetch.ledger_id, fetch.first]
        firsts = self._firsts[fetch.ledger_id]
        firsts.remove(fetch.first)
        if not firsts:
            del self._firsts[fetch.ledger_id]
        self._uncount(fetch)

    def _uncount(self, fetch: _Fetch) -> None:
        self.size_bytes -= fetch.size_bytes
        self.ahead_count -= fetch.is_ahead
        fetch.is_ahead = False


def _entries_of(fetch: _Fetch, first: int) -> list[LedgerEntry]:
    """The entries of an ended fetch; [] to repeat it. Raises its error for a moment."""
    future = fetch.future
    if future.cancelled():
        return []
    error = future.exception()
    if error is None:
        return future.result()[first - fetch.first :]
    is_old = fetch.ended_s and time.monotonic() - fetch.ended_s > FAILURE_KEPT_S
    if fetch.first != first or is_old:
        return []
    raise error


_READERS_MAX = 1024


class UnreadableEntryError(Exception):
    """The first entry asked for is damaged, or no bookie has it."""


class LedgerAccess:
    """Readers of ledgers, which are kept open. Never recovers or fences a ledger."""

    def __init__(self, thread: LoopThread, client: BookKeeperClient) -> None:
        self._thread = thread
        self._client = client
        self._readers: dict[int, LedgerReader] = {}
        self.fetches = Fetches(thread.begin, self.entries)
        self._never_waits = -1

    def never_wait_here(self) -> None:
        """Let ``read`` in the calling thread raise WouldBlockError instead of waiting."""
        self._never_waits = threading.get_ident()

    def read(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, until: int = -1
    ) -> list[LedgerEntry]:
        """Read confirmed entries from ``first`` to ``last``; at least one.

        ``until`` is the last entry known to be confirmed; -1: nothing is read ahead.

        Raises UnreadableEntryError, FileNotFoundError (the ledger was deleted), OSError; in a
        thread that never waits WouldBlockError.
        """
        while True:
            try:
                found = self.fetches.read(ledger_id, first, last, max_bytes, until)
                return _fitting(found, last, max_bytes)
            except WouldBlockError as error:
                if threading.get_ident() == self._never_waits:
                    raise
                with suppress(CancelledError):  # the client was closed, as the next turn finds
                    error.done.exception()

    async def entries(
        self, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> list[LedgerEntry]:
        """As ``read``, on the client's loop."""
        try:
            return await self._entries(ledger_id, first, last, max_bytes)
        except UnreadableEntryError:
            if last == first:
                raise
        # Any of them may have failed: of entries read together a later one may be lost.
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
        """Drop readers and fetches of deleted ledgers."""
        self.fetches.forget(ledger_ids)
        for ledger_id in ledger_ids:
            self._readers.pop(ledger_id, None)


def _fitting(entries: list[LedgerEntry], last: int, max_bytes: int) -> list[LedgerEntry]:
    """The first entries up to ``last``, until they reach ``max_bytes``."""
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
