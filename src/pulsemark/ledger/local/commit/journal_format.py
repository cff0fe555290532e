r"""Bytes of a journal file: one header, twice, then blocks, one per group commit.

All integers are little-endian. Header::

     0  magic "PMKJRNL\n"    8
     8  version              u16
    10  features             u16
    12  sync interval        u32   0: each block was synced before the next one was written; else
                                   milliseconds within which blocks were synced, several at once
    16  journal id           u64   1, 2, 3 ...; files are used again under a new id
    24  previous id          u64   the journal before this one; 0: none
    32  previous end         u64   how much of that one counts; nothing after it does
    40  secret               8     random, drawn whenever a file is brought into use
    48  CRC32C of all before u32
    52  zero                 12

In version 1 there is no secret: byte 40 to 44 are zero, and the CRC32C stands at byte 44.

The header is there twice, because a file whose header is lost is taken for one that was never used:
damage to one copy does no harm. If both copies are all zeros, the file is free. A block::

     0  marker               4     the secret's first four bytes; "PMKB" in version 1
     4  CRC32C               u32   seeded with the journal id, this block's offset and the secret's
                                   last four bytes: bytes of the file's last use are not a block
     8  group count          u32
    12  content size         u32
    16  groups               24 x count
        content

Blocks carry what clients sent, and a reused file still has old content after its last block. But
the secret was drawn after those bytes were written, and no client ever sees it, so they contain the
marker only by chance. A reader that looks for the next block therefore reads each byte only once.

A group says where its part of the content belongs; replaying it is one write::

     0  ledger id            u64
     8  segment number       u32
    12  size                 u32
    16  offset               u64   in the segment file
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ....metadata.crc import crc32c
from ...errors import UnsupportedVersionError
from ..io.files import Buffer

JOURNAL_MAGIC = b"PMKJRNL\n"
JOURNAL_VERSION = 2
_HEADER = struct.Struct("<8sHHIQQQ8s")
_VERSION_1_HEADER = struct.Struct("<8sHHIQQQI")
_U16 = struct.Struct("<H")
_VERSION_AT = 8
_U32 = struct.Struct("<I")
_COPY_SIZE = 64
JOURNAL_HEADER_SIZE = 2 * _COPY_SIZE
_LEAD = struct.Struct("<4sI")
_BLOCK = struct.Struct("<II")
BLOCK_HEADER_SIZE = _LEAD.size + _BLOCK.size
_GROUP = struct.Struct("<QIIQ")
GROUP_SIZE = _GROUP.size
VERSION_1_MARKER = b"PMKB"
"""The marker of every block in journals of version 1."""
_SEED = struct.Struct("<QQ")
MAX_GROUPS = 1 << 20
assert (_HEADER.size + 4, BLOCK_HEADER_SIZE, GROUP_SIZE) == (52, 16, 24)


class BlockKey(NamedTuple):
    """The marker and checksum seed that only the blocks of one journal have."""

    marker: bytes
    """The first four bytes of each block."""
    journal_id: int
    salt: bytes
    """The part of the checksums' seed that comes from the secret."""

    def seed(self, block_offset: int) -> int:
        """The start value of the checksum of the block at that offset."""
        return crc32c(_SEED.pack(self.journal_id, block_offset) + self.salt)


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The header of a journal file: which journal it has now."""

    journal_id: int
    previous_id: int
    previous_end: int
    sync_interval_ms: int = 0
    secret: bytes = field(default=b"", repr=False)
    """What makes the journal's blocks its own (see `segment_format.new_secret`); empty: a journal
    of version 1."""

    @property
    def block_key(self) -> BlockKey:
        """The key of the journal's blocks."""
        marker = self.secret[:4] or VERSION_1_MARKER
        return BlockKey(marker, self.journal_id, self.secret[4:])

    def pack(self) -> bytes:
        """The header's bytes."""
        layout = _HEADER if self.secret else _VERSION_1_HEADER
        body = layout.pack(
            JOURNAL_MAGIC, 2 if self.secret else 1, 0, self.sync_interval_ms,
            self.journal_id, self.previous_id, self.previous_end, self.secret or 0,
        )  # fmt: skip
        return 2 * (body + _U32.pack(crc32c(body))).ljust(_COPY_SIZE, b"\0")


def unpack_journal_header(data: bytes, path: Path) -> JournalHeader | None:
    """The header, or None if there is none: a free file, or one never used.

    If both copies are torn, the result is None too: they are synced together with the first block,
    so nothing in such a file was ever acknowledged. Raises UnsupportedVersionError.
    """
    copies = data[:_COPY_SIZE], data[_COPY_SIZE:JOURNAL_HEADER_SIZE]
    return _unpack_copy(copies[0], path) or _unpack_copy(copies[1], path)


def _unpack_copy(data: bytes, path: Path) -> JournalHeader | None:
    if len(data) < _COPY_SIZE or data[:8] != JOURNAL_MAGIC:
        return None
    is_version_1 = _U16.unpack_from(data, _VERSION_AT)[0] == 1
    layout = _VERSION_1_HEADER if is_version_1 else _HEADER
    (_, version, features, sync_interval_ms,
     journal_id, previous_id, previous_end, secret) = layout.unpack_from(data)  # fmt: skip
    (expected,) = _U32.unpack_from(data, layout.size)
    if crc32c(data[: layout.size]) != expected:
        return None
    if version > JOURNAL_VERSION or features:
        raise UnsupportedVersionError(path, "journal version", version, JOURNAL_VERSION)
    secret = secret or b""
    return JournalHeader(journal_id, previous_id, previous_end, sync_interval_ms, secret)


class GroupRef(NamedTuple):
    """The place of a part of a block's content."""

    ledger_id: int
    segment_no: int
    size_bytes: int
    offset: int


def pack_block_head(
    key: BlockKey, block_offset: int, groups: Sequence[GroupRef], content: Sequence[Buffer]
) -> bytes:
    """Block header and group table; ``content`` follows it unchanged."""
    size = sum([group.size_bytes for group in groups])
    table = b"".join([_GROUP.pack(*group) for group in groups])
    core = _BLOCK.pack(len(groups), size) + table
    crc = crc32c(core, key.seed(block_offset))
    for buffer in content:
        crc = crc32c(buffer, crc)
    return _LEAD.pack(key.marker, crc) + core


def unpack_block_sizes(data: bytes, key: BlockKey) -> tuple[int, int] | None:
    """Group count and content size from a block's first 16 bytes; None: this is not a block."""
    if len(data) < BLOCK_HEADER_SIZE or data[:4] != key.marker:
        return None
    count, size = _BLOCK.unpack_from(data, _LEAD.size)
    return (count, size) if 0 < count <= MAX_GROUPS else None


def unpack_block(
    data: Buffer, key: BlockKey, block_offset: int
) -> list[tuple[GroupRef, memoryview]] | None:
    """A whole block's groups with their bytes, or None where its checksum does not match."""
    view = memoryview(data)
    _, crc = _LEAD.unpack_from(view)
    if crc32c(view[_LEAD.size :], key.seed(block_offset)) != crc:
        return None
    count, _ = _BLOCK.unpack_from(view, _LEAD.size)
    at = BLOCK_HEADER_SIZE + count * GROUP_SIZE
    parts = []
    for number in range(count):
        group = GroupRef(*_GROUP.unpack_from(view, BLOCK_HEADER_SIZE + number * GROUP_SIZE))
        parts.append((group, view[at : at + group.size_bytes]))
        at += group.size_bytes
    return parts
