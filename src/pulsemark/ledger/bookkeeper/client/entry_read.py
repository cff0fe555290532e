"""Entries read from their replicas: the next one after a failure, and after a while beside it."""

from __future__ import annotations

import asyncio
from functools import partial

from .core import ClientCore
from .digests import Digest
from .entries import LedgerEntry, unpack_entry
from .errors import (
    BookieError,
    BookKeeperError,
    DigestMismatchError,
    EntryMissingError,
    LedgerMissingError,
    NotEnoughBookiesError,
)
from .exchange import Answer
from .frames import Outgoing, read_request
from .metadata import LedgerMetadata


class _Read:
    """One entry: the replicas not yet asked, those that were, and what they said."""

    __slots__ = ("asked", "entry", "entry_id", "errors", "replicas", "request")

    def __init__(self, entry_id: int, replicas: list[str], request: Outgoing) -> None:
        self.entry_id = entry_id
        self.replicas = replicas
        self.request = request
        self.asked = 0
        self.errors: list[BookKeeperError] = []
        self.entry: LedgerEntry | None = None


class EntryReads:
    """Entries of a ledger that are read at the same time, once."""

    def __init__(self, core: ClientCore, metadata: LedgerMetadata, digest: Digest) -> None:
        self._core = core
        self._metadata = metadata
        self._digest = digest
        self._suspected = core.bookies.suspected()
        self._missing = 0
        self._done: asyncio.Future[None] | None = None

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """These entries. Raises the error of the first one of which no good copy is found."""
        loop = asyncio.get_running_loop()
        done = self._done = loop.create_future()
        reads = [self._read_of(entry_id) for entry_id in range(first, last + 1)]
        self._missing = len(reads)
        delay_s = self._core.options.speculative_read_ms / 1000
        timer = loop.call_later(delay_s, self._speculate, reads, delay_s)
        try:
            for one in reads:
                self._ask_next(one)
            await done
        finally:
            timer.cancel()
            self._done = None
        for one in reads:
            if one.entry is None:
                raise self._error_of(one)
        return [one.entry for one in reads if one.entry is not None]

    def _read_of(self, entry_id: int) -> _Read:
        replicas = list(self._metadata.bookies_of(entry_id))
        if self._suspected:
            replicas.sort(key=lambda bookie: bookie in self._suspected)
        request = read_request(
            self._metadata.ledger_id, entry_id, timeout_ms=self._core.options.read_timeout_ms
        )
        return _Read(entry_id, replicas, request)

    def _ask_next(self, one: _Read) -> None:
        bookie = one.replicas[one.asked]
        one.asked += 1
        self._core.bookies.send(bookie, one.request, partial(self._answered, one, bookie))

    def _speculate(self, reads: list[_Read], delay_s: float) -> None:
        """Ask the next replica of what has no answer yet, and again after the same time."""
        if self._done is None or self._done.done():
            return
        for one in reads:
            if one.entry is None and one.asked < len(one.replicas):
                self._ask_next(one)
        asyncio.get_running_loop().call_later(delay_s, self._speculate, reads, delay_s)

    def _answered(self, one: _Read, bookie: str, answer: Answer) -> None:
        if one.entry is not None or self._done is None or self._done.done():
            return
        try:
            if isinstance(answer, BookKeeperError):
                raise answer
            one.entry = unpack_entry(
                self._digest,
                answer.readResponse.body,
                ledger_id=self._metadata.ledger_id,
                entry_id=one.entry_id,
                bookie=bookie,
            )
        except BookKeeperError as error:
            one.errors.append(error)
            if isinstance(error, BookieError):
                self._core.bookies.suspect(bookie)
            if one.asked < len(one.replicas):
                self._ask_next(one)
                return
            if len(one.errors) < len(one.replicas):
                return
        self._missing -= 1
        if not self._missing:
            self._done.set_result(None)

    def _error_of(self, one: _Read) -> BookKeeperError:
        """What the replicas' errors come to."""
        reason = "; ".join(str(error) for error in one.errors)
        kind: type[BookKeeperError] = NotEnoughBookiesError
        if any(isinstance(error, DigestMismatchError) for error in one.errors):
            kind = DigestMismatchError
        elif all(isinstance(e, EntryMissingError | LedgerMissingError) for e in one.errors):
            kind = EntryMissingError
        return kind(
            f"no replica has it: {reason}",
            ledger_id=self._metadata.ledger_id,
            entry_id=one.entry_id,
        )
