"""An entry as bookies keep it: ledger, entry, last confirmed entry, length, digest, payload.

Bookies check nothing of it, so readers must. Source: BookKeeper's DigestManager.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from ....metadata.crc import Buffer, crc32c
from .errors import STATUS_IO_ERROR, BookieRefusedError, BookKeeperError, DigestMismatchError

log = logging.getLogger(__name__)

# Digests of entries and master keys of ledgers.
#
# A digest is over the 32 bytes of an entry's header and its payload. The key of a ledger, which
# bookies compare, comes from its password in the same way for every type of digest. Source:
# BookKeeper's DigestManager and MacDigestManager.


class DigestType(IntEnum):
    """The type of an entry's digest, with BookKeeper's numbers."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


Compute = Callable[[Sequence[Buffer]], bytes]


class Digest(NamedTuple):
    """A digest function with its key, if it has one."""

    digest_type: DigestType
    size_bytes: int
    compute: Compute
    """The digest of buffers that follow one another."""


_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def _crc32c(parts: Sequence[Buffer]) -> bytes:
    value = 0
    for part in parts:
        value = crc32c(part, value)
    return _U32.pack(value)


def _crc32(parts: Sequence[Buffer]) -> bytes:
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return _U64.pack(value)


def _nothing(parts: Sequence[Buffer]) -> bytes:
    return b""


def _hmac_sha1(password: bytes) -> Compute:
    keyed = hmac.new(hashlib.sha1(b"mac" + password, usedforsecurity=False).digest(), b"", "sha1")

    def compute(parts: Sequence[Buffer]) -> bytes:
        mac = keyed.copy()
        for part in parts:
            mac.update(part)
        return mac.digest()

    return compute


def digest_of(digest_type: DigestType, password: bytes) -> Digest:
    """The digest of a ledger with that type and password."""
    if digest_type is DigestType.HMAC:
        return Digest(digest_type, 20, _hmac_sha1(password))
    size, compute = {
        DigestType.CRC32: (8, _crc32),
        DigestType.CRC32C: (4, _crc32c),
        DigestType.DUMMY: (0, _nothing),
    }[digest_type]
    return Digest(digest_type, size, compute)


def master_key(password: bytes) -> bytes:
    """The 20 bytes that a client must send to write to a ledger."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


HEADER = struct.Struct(">qqqq")
_EXPLICIT = struct.Struct(">qq")

NO_ENTRY = -1
"""The id that stands for no entry: the last one of an empty ledger."""


class LedgerEntry(NamedTuple):
    """An entry that was read, and whose digest was checked."""

    entry_id: int
    payload: bytes
    length: int
    """The ledger's bytes of payload, including this entry's."""
    last_confirmed: int
    """The last entry that was known to be confirmed when this copy was packed; -1: none."""


def pack_entry(
    digest: Digest,
    ledger_id: int,
    entry_id: int,
    last_confirmed: int,
    length: int,
    payload: Sequence[Buffer],
) -> list[Buffer]:
    """The buffers of an entry's body, one after another; those of the payload are not copied."""
    return pack_entries(digest, ledger_id, entry_id, last_confirmed, (length,), (payload,))[0]


def pack_entries(
    digest: Digest,
    ledger_id: int,
    first_entry_id: int,
    last_confirmed: int,
    ends: Sequence[int],
    payloads: Sequence[Sequence[Buffer]],
) -> list[list[Buffer]]:
    """The bodies of consecutive entries, as of `pack_entry`; `ends` has the length of each."""
    compute, pack = digest.compute, HEADER.pack
    bodies: list[list[Buffer]] = []
    for entry_id, (length, payload) in enumerate(zip(ends, payloads, strict=True), first_entry_id):
        header = pack(ledger_id, entry_id, last_confirmed, length)
        bodies.append([header + compute((header, *payload)), *payload])
    return bodies


def unpack_entry(
    digest: Digest, body: bytes, *, ledger_id: int, entry_id: int | None, bookie: str | None = None
) -> LedgerEntry:
    """Parse and check an entry (`entry_id` None: the last one). Raises DigestMismatchError."""
    damaged = partial(_damaged, ledger_id, entry_id, bookie)
    start = HEADER.size + digest.size_bytes
    if len(body) < start:
        raise damaged(f"{len(body)} bytes are less than header and digest, {start}")
    view = memoryview(body)
    header, payload = view[: HEADER.size], view[start:]
    if digest.compute((header, payload)) != view[HEADER.size : start]:
        raise damaged("the digest is wrong")
    of_ledger, entry, last_confirmed, length = HEADER.unpack(header)
    if of_ledger != ledger_id:
        raise damaged(f"it belongs to ledger {of_ledger}")
    if entry_id is not None and entry != entry_id:
        raise damaged(f"it is entry {entry}")
    # The payload is part of the length. AutoRecovery's copies say what was confirmed when they were
    # made (BookKeeper's LedgerFragmentReplicator): that can be this entry, or one after it.
    if entry < 0 or last_confirmed < NO_ENTRY or length < len(payload):
        raise damaged(f"impossible values: entry {entry}, {last_confirmed=}, {length=}")
    return LedgerEntry(entry, body[start:], length, last_confirmed)


def _damaged(
    ledger_id: int, entry_id: int | None, bookie: str | None, reason: str
) -> DigestMismatchError:
    """The error for a damaged copy, which is noted."""
    error = DigestMismatchError(reason, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
    bad_copies.note(error)
    return error


def pack_last_confirmed(digest: Digest, ledger_id: int, last_confirmed: int) -> bytes:
    """Pack the last confirmed entry, which a writer sends without an entry (WRITE_LAC)."""
    record = _EXPLICIT.pack(ledger_id, last_confirmed)
    return record + digest.compute((record,))


def unpack_last_confirmed(
    digest: Digest, body: bytes, *, ledger_id: int, bookie: str | None = None
) -> int:
    """Unpack the last confirmed entry that a writer sent without an entry (WRITE_LAC)."""
    size = _EXPLICIT.size + digest.size_bytes
    damaged = partial(_damaged, ledger_id, None, bookie)
    if len(body) < size or digest.compute((body[: _EXPLICIT.size],)) != body[_EXPLICIT.size : size]:
        raise damaged("the record of the last confirmed entry is damaged")
    of_ledger, last_confirmed = _EXPLICIT.unpack_from(body)
    if of_ledger != ledger_id:
        raise damaged(f"the last confirmed entry is one of ledger {of_ledger}")
    return int(last_confirmed)


# Which bookies sent damaged copies, or could not read what they have. Readers take another
# bookie's copy, so that nobody else would notice that a disk rots.


MAX_LOGGED = 10_000
"""Pairs of bookie and ledger whose damage is logged; later ones are only counted."""


class BadCopies:
    """Damaged copies by bookie. Thread-safe, since each store has an event loop of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: set[tuple[str, int | None]] = set()

    def counts(self) -> dict[str, int]:
        """The number of damaged or unreadable copies of each bookie."""
        with self._lock:
            return dict(self._counts)

    def note(self, error: BookKeeperError) -> None:
        """Count a damaged copy; the first one of each bookie and ledger is logged."""
        is_bad = isinstance(error, DigestMismatchError) or (
            isinstance(error, BookieRefusedError) and error.status == STATUS_IO_ERROR
        )
        if not is_bad or error.bookie is None:
            return
        pair = error.bookie, error.ledger_id
        with self._lock:
            self._counts[error.bookie] += 1
            is_first = pair not in self._logged and len(self._logged) < MAX_LOGGED
            if is_first:
                self._logged.add(pair)
        if is_first:
            log.error(
                "bookie %s has a damaged copy of ledger %s: %s. Copies of other bookies are read; "
                "more of this bookie and ledger are counted, not logged",
                *(error.bookie, error.ledger_id, error),
            )


bad_copies = BadCopies()
"""Those of this process."""
