"""Digests of entries and master keys of ledgers.

A digest is over the 32 bytes of an entry's header and its payload. The key of a ledger, which
bookies compare, comes from its password in the same way for every type of digest. Source:
BookKeeper's DigestManager and MacDigestManager.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from ....metadata.buffers import Buffer
from ....metadata.crc import crc32c


class DigestType(IntEnum):
    """How entries are protected, with BookKeeper's numbers in ledger metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


Compute = Callable[[Sequence[Buffer]], bytes]


class Digest(NamedTuple):
    """A type of digest with its key, if it has one."""

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
