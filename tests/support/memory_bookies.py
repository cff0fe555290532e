"""BookKeeper's client over ledgers in memory: for tests of what is built on the client.

It promises what real bookies do (ids in order, fencing, closing at the last confirmed entry), and
fails when a test says so. `tests/ledger/bookkeeper/client` has what tests the client itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsemark.ledger.bookkeeper.client.entries import LedgerEntry
from pulsemark.ledger.bookkeeper.client.errors import (
    EntryMissingError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerFencedError,
    LedgerMissingError,
    NotEnoughBookiesError,
)
from pulsemark.metadata import Buffer


@dataclass(slots=True)
class _Ledger:
    custom_metadata: Mapping[str, bytes]
    entries: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    is_fenced: bool = False
    is_closed: bool = False


class MemoryBookies:
    """Ledgers in memory, shared by clients. Safe between threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledgers: dict[int, _Ledger] = {}
        self.fails = False
        """While it is set, no bookie takes anything."""
        self.stopped: set[int] = set()
        """Ledgers whose bookies do not answer reads."""
        self.waiting_reads = 0
        """How many reads wait for them now."""
        self.next_id = 1 << 30
        """The next id of a ledger whose creator asks for none."""

    def client(self) -> MemoryBookKeeperClient:
        """A new client."""
        return MemoryBookKeeperClient(self)

    def ledger(self, ledger_id: int) -> _Ledger:
        """One ledger. Raises LedgerMissingError."""
        found = self.ledgers.get(ledger_id)
        if found is None:
            raise LedgerMissingError(ledger_id=ledger_id)
        return found

    async def answering(self, ledger_id: int) -> None:
        """Return once the ledger's bookies answer."""
        if ledger_id in self.stopped:
            self.waiting_reads += 1
            try:
                while ledger_id in self.stopped:  # noqa: ASYNC110 - any thread changes it
                    await asyncio.sleep(0.001)
            finally:
                self.waiting_reads -= 1

    def check(self) -> None:
        """Raise NotEnoughBookiesError while nothing is taken."""
        if self.fails:
            raise NotEnoughBookiesError("no bookie is writable")


class MemoryBookKeeperClient:
    """As `BookKeeperClient`, for one owner; once it is closed nothing of it has an effect."""

    def __init__(self, bookies: MemoryBookies) -> None:
        self._bookies = bookies
        self.is_closed = False

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
    ) -> MemoryLedgerWriter:
        """As `BookKeeperClient.create_ledger`."""
        await asyncio.sleep(0)
        with self._bookies.lock:
            self._bookies.check()
            if ledger_id is None:
                ledger_id, self._bookies.next_id = self._bookies.next_id, self._bookies.next_id + 1
            if ledger_id in self._bookies.ledgers:
                raise LedgerExistsError(ledger_id=ledger_id)
            self._bookies.ledgers[ledger_id] = _Ledger(custom_metadata or {})
        return MemoryLedgerWriter(self, self._bookies, ledger_id)

    async def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> MemoryLedgerReader:
        """As `BookKeeperClient.open_ledger`."""
        await asyncio.sleep(0)
        with self._bookies.lock:
            ledger = self._bookies.ledger(ledger_id)
            ledger.is_fenced = ledger.is_closed = True
        return MemoryLedgerReader(self._bookies, ledger_id)

    async def open_ledger_no_recovery(
        self, ledger_id: int, *, password: bytes = b""
    ) -> MemoryLedgerReader:
        """As `BookKeeperClient.open_ledger_no_recovery`."""
        await asyncio.sleep(0)
        self._bookies.ledger(ledger_id)
        return MemoryLedgerReader(self._bookies, ledger_id)

    async def has_any(self, ledger_ids: Iterable[int]) -> bool:
        """As `BookKeeperClient.has_any`."""
        await asyncio.sleep(0)
        return any(each in self._bookies.ledgers for each in ledger_ids)

    async def delete_ledger(self, ledger_id: int) -> None:
        """As `BookKeeperClient.delete_ledger`."""
        await asyncio.sleep(0)
        with self._bookies.lock:
            self._bookies.ledger(ledger_id)
            del self._bookies.ledgers[ledger_id]

    async def close(self) -> None:
        """As `BookKeeperClient.close`."""
        self.is_closed = True


class MemoryLedgerWriter:
    """As `LedgerWriter`."""

    def __init__(
        self, client: MemoryBookKeeperClient, bookies: MemoryBookies, ledger_id: int
    ) -> None:
        self._client = client
        self._bookies = bookies
        self.ledger_id = ledger_id

    def append(self, *buffers: Buffer) -> asyncio.Future[int]:
        """As `LedgerWriter.append`."""
        return self.append_all((buffers,))

    def append_all(self, payloads: Sequence[Sequence[Buffer]]) -> asyncio.Future[int]:
        """As `LedgerWriter.append_all`."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with self._bookies.lock:
            try:
                self._bookies.check()
                ledger = self._bookies.ledger(self.ledger_id)
                if self._client.is_closed or ledger.is_closed:
                    raise LedgerFencedError(ledger_id=self.ledger_id)
            except (NotEnoughBookiesError, LedgerFencedError, LedgerMissingError) as error:
                future.set_exception(error)
                return future
            for data in map(b"".join, payloads):
                ledger.lengths.append((ledger.lengths[-1] if ledger.lengths else 0) + len(data))
                ledger.entries.append(data)
            future.set_result(len(ledger.entries) - 1)
        return future

    async def ready(self) -> None:
        """As `LedgerWriter.ready`."""

    async def close(self) -> None:
        """As `LedgerWriter.close`."""
        await asyncio.sleep(0)
        with self._bookies.lock:
            self._bookies.check()
            ledger = self._bookies.ledger(self.ledger_id)
            if ledger.is_fenced:
                raise LedgerClosedError("another one recovered it", ledger_id=self.ledger_id)
            ledger.is_closed = True


class MemoryLedgerReader:
    """As `LedgerReader`."""

    def __init__(self, bookies: MemoryBookies, ledger_id: int) -> None:
        self._bookies = bookies
        self.ledger_id = ledger_id

    @property
    def last_confirmed(self) -> int:
        """As `LedgerReader.last_confirmed`."""
        return len(self._bookies.ledger(self.ledger_id).entries) - 1

    def know_confirmed(self, entry_id: int) -> None:
        """As `LedgerReader.know_confirmed`: everything here is confirmed."""

    async def read(
        self, first: int, last: int, max_bytes: int = 16 * 1024 * 1024
    ) -> list[LedgerEntry]:
        """As `LedgerReader.read`."""
        await asyncio.sleep(0)
        await self._bookies.answering(self.ledger_id)
        with self._bookies.lock:
            ledger = self._bookies.ledger(self.ledger_id)
            found: list[LedgerEntry] = []
            size = 0
            for entry_id in range(first, last + 1):
                if entry_id >= len(ledger.entries) or entry_id in ledger.lost:
                    raise EntryMissingError(ledger_id=self.ledger_id, entry_id=entry_id)
                payload = ledger.entries[entry_id]
                found.append(LedgerEntry(entry_id, payload, ledger.lengths[entry_id], last))
                size += len(payload)
                if size >= max_bytes:
                    break
            return found
