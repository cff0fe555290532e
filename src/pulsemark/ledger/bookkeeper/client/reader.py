"""The reader of a ledger, closed or open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from .bookies import ask_all
from .connection import Answer
from .entries import (
    Digest,
    LedgerEntry,
    bad_copies,
    digest_of,
    unpack_entry,
    unpack_last_confirmed,
)
from .errors import (
    BookieError,
    BookKeeperError,
    DigestMismatchError,
    EntryMissingError,
    InvalidRequestError,
    LedgerMissingError,
    NotEnoughBookiesError,
)
from .frames import Outgoing, read_lac_request, read_request
from .ledger_nodes import VersionedMetadata
from .metadata import LedgerMetadata, enough_answers
from .registry import ClientCore

# How far an open ledger may be read, without fencing it: asked of its last ensemble.


async def read_last_confirmed(core: ClientCore, metadata: LedgerMetadata, digest: Digest) -> int:
    """Ask the last ensemble for the last confirmed entry. Raises NotEnoughBookiesError."""
    request = read_lac_request(metadata.ledger_id, timeout_ms=core.options.read_timeout_ms)
    bookies = metadata.last_segment.bookies
    answers = ask_all(core.bookies, dict(enumerate(bookies)), request)
    # Entries before the last segment were confirmed when it began.
    best = metadata.last_segment.first_entry_id - 1
    answered: set[int] = set()
    errors: list[BookKeeperError] = []
    for _ in bookies:
        place, answer = await answers.get()
        try:
            best = max(best, _known_in(answer, metadata, digest, bookies[place]))
        except (EntryMissingError, LedgerMissingError):
            pass
        except BookKeeperError as error:
            errors.append(error)
            continue
        answered.add(place)
        if enough_answers(metadata, answered):
            return best
    if not answered:
        reason = "; ".join(map(str, errors))
        raise NotEnoughBookiesError(reason, ledger_id=metadata.ledger_id)
    return best


def _known_in(answer: Answer, metadata: LedgerMetadata, digest: Digest, bookie: str) -> int:
    """The last confirmed entry in a bookie's answer; -1: none. Raises the answer's error."""
    if isinstance(answer, BookKeeperError):
        raise answer
    part, best = answer.readLacResponse, -1
    if part.lacBody:
        best = unpack_last_confirmed(
            digest, part.lacBody, ledger_id=metadata.ledger_id, bookie=bookie
        )
    if part.lastEntryBody:
        entry = unpack_entry(
            digest, part.lastEntryBody, ledger_id=metadata.ledger_id, entry_id=None, bookie=bookie
        )
        best = max(best, entry.last_confirmed)
    return best


def entry_in(
    answer: Answer, digest: Digest, metadata: LedgerMetadata, entry_id: int | None, bookie: str
) -> LedgerEntry:
    """The entry in a bookie's answer (None: its last one). Raises the answer's error, or
    DigestMismatchError.
    """
    if isinstance(answer, BookKeeperError):
        bad_copies.note(answer)
        raise answer
    body = answer.readResponse.body
    return unpack_entry(
        digest, body, ledger_id=metadata.ledger_id, entry_id=entry_id, bookie=bookie
    )


# Entries read from their replicas: the next one after a failure, and after a while beside it.


class _Read:
    """The state of one entry's read: replicas asked and not asked, and their answers."""

    __slots__ = ("asked", "entry", "entry_id", "errors", "replicas", "request")

    def __init__(self, entry_id: int, replicas: list[str], request: Outgoing) -> None:
        self.entry_id = entry_id
        self.replicas = replicas
        self.request = request
        self.asked = 0
        self.errors: list[BookKeeperError] = []
        self.entry: LedgerEntry | None = None


class EntryReads:
    """Reads entries of a ledger, all at the same time."""

    def __init__(self, core: ClientCore, metadata: LedgerMetadata, digest: Digest) -> None:
        self._core = core
        self._metadata = metadata
        self._digest = digest
        self._suspected = core.bookies.suspected()
        self._missing = 0
        self._done: asyncio.Future[None] | None = None

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Read these entries. Raises the error of the first entry without a good copy."""
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
        """Ask the next replica, at intervals; later reads ask a silent replica last."""
        if self._done is None or self._done.done():
            return
        for one in reads:
            if one.entry is None:
                self._core.bookies.suspect(one.replicas[one.asked - 1])
                if one.asked < len(one.replicas):
                    self._ask_next(one)
        asyncio.get_running_loop().call_later(delay_s, self._speculate, reads, delay_s)

    def _answered(self, one: _Read, bookie: str, answer: Answer) -> None:
        if one.entry is not None or self._done is None or self._done.done():
            return
        try:
            one.entry = entry_in(answer, self._digest, self._metadata, one.entry_id, bookie)
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
        """The error for an entry that no replica could give."""
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


_DEFAULT_MAX_BYTES = 16 * 1024 * 1024


class LedgerReader:
    """Reads a ledger's entries up to the last confirmed one. Writes and fences nothing.

    It belongs to one event loop. `BookKeeperClient` makes it.
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
        """The ledger's metadata, as it was read last."""
        return self._metadata

    @property
    def last_confirmed(self) -> int:
        """The last entry known to be confirmed; -1: none."""
        return self._last_confirmed

    def know_confirmed(self, entry_id: int) -> None:
        """Take from the ledger's writer that entries up to this one are confirmed."""
        self._last_confirmed = max(self._last_confirmed, entry_id)

    async def read(
        self, first: int, last: int, max_bytes: int = _DEFAULT_MAX_BYTES
    ) -> list[LedgerEntry]:
        """The entries from `first` on, up to `last` or until they reach `max_bytes`; at least one.

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
        """Read entries at the same time. After a failure, read the metadata and try again."""
        try:
            return await EntryReads(self._core, self._metadata, self._digest).read(first, last)
        except BookKeeperError:
            # A replica may have been moved to another bookie meanwhile.
            before = self._metadata.segments
            self._metadata = (await self._core.nodes.read(self.ledger_id)).metadata
            if self._metadata.segments == before:
                raise
        return await EntryReads(self._core, self._metadata, self._digest).read(first, last)
