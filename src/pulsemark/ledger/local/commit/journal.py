"""The journal: the one file that is synced per group commit, whatever the number of topics.

A block has the bytes that a group commit adds to all segments, with their offsets there. Once the
block is synced the bytes are written to the segments (page cache), and only then are the appends
acknowledged; a checkpoint syncs the segments later and frees the journal's files. So at any time
the content of a segment is durable, in the journal or in the segment.

Files are used in turn under growing journal ids. They are not truncated when freed, and a growing
file is filled with zeros before small blocks are written: overwriting in place needs no write to
the file system's own journal, which is most of an fdatasync's price.

A block whose write failed is overwritten in its place, and the file synced, so that a crash does
not bring refused entries back. A file whose sync failed is never synced again, only removed. The
next file's header says how much of it counts, and is durable before anything else is acknowledged.
So the caller first makes durable elsewhere what was written after the last good sync
(`has_unsynced`). In both cases the journal goes on in another file, as it does after a write that
an exception ended.

docs/formats.md has its bytes, and which blocks count.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ....metadata.crc import crc32c
from ....records import record
from ...errors import UnsupportedVersionError
from ..io.files import Buffer, Files, read_up_to, write_all
from ..io.folder import is_full, journal_folder, journal_path, list_journal_slots
from ..segment.segment_format import new_secret

_log = logging.getLogger(__name__)

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


@record(frozen=True)
class JournalHeader:
    """The header of a journal file: which journal it has now."""

    journal_id: int
    previous_id: int
    previous_end: int
    sync_interval_ms: int = 0
    secret: bytes = field(default=b"", repr=False)
    """The secret of the journal's blocks (see `segment_format.new_secret`); empty: a journal
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
    """Parse the header. Return None for a free file, or one never used.

    Also None if both copies are torn: they are synced together with the first block, so nothing in
    such a file was ever acknowledged. Raises UnsupportedVersionError.
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
    """A part of a block: bytes of segment (ledger_id, segment_no), from its ``offset`` on."""

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


@record
class _OpenJournal:
    """The file that is being written."""

    slot: int
    fd: int
    journal_id: int
    key: BlockKey
    header: bytes
    """The header, if it is not written yet: it is written with the first block."""
    allocated: int
    """The file's length. A write below it changes no metadata, so that a sync need not wait for
    the file system's own journal: a third of the price of small blocks."""
    end: int = JOURNAL_HEADER_SIZE
    last_block: int = JOURNAL_HEADER_SIZE
    """The offset of the last block."""
    synced_end: int = JOURNAL_HEADER_SIZE
    """The end of the synced part."""
    is_broken: bool = False
    """Set while a write or sync runs, and after its failure: the file gets no more blocks."""
    is_lost: bool = False
    """Set while a sync runs, and after its failure: the file is never synced again."""


_ZEROS = bytes(256 * 1024)
_SMALL_BLOCK_BYTES = 64 * 1024
"""For larger blocks, writing zeros first costs more than it saves."""


class Journal:
    """Appends blocks. The committer's thread uses it; the checkpoint's thread calls ``free``."""

    def __init__(
        self, files: Files, folder: Path, last_id: int = 0, sync_interval_ms: int = 0
    ) -> None:
        self._sync_interval_ms = sync_interval_ms
        self._files = files
        self._folder = folder
        self._next_id = last_id + 1
        self._previous = (0, 0)
        self._slots = set(list_journal_slots(files, folder))
        """Slots whose file has a durable name."""
        self._in_use: dict[int, int] = {}
        self._failed: set[int] = set()
        """Slots whose file must not be synced again."""
        self._open: _OpenJournal | None = None
        self.is_syncing = False
        """Whether the thread that writes is waiting for the disk."""

    @property
    def size_bytes(self) -> int:
        """Size of the current file's blocks and header, in bytes."""
        return self._open.end - JOURNAL_HEADER_SIZE if self._open else 0

    @property
    def journal_id(self) -> int:
        """The journal of the last block; 0: the next block begins one."""
        return self._open.journal_id if self._open and not self._open.is_broken else 0

    def write(
        self, groups: Sequence[GroupRef], content: Sequence[Buffer], *, sync: bool = True
    ) -> None:
        """Append one block and sync it. After an exception see `take_back`.

        Without ``sync`` the block is durable after the next ``sync``. Without groups no block
        follows: the journal ends.
        """
        if self._open is not None and self._open.is_broken:  # an exception ended the write before
            self._leave(self._open)
        journal = self._open or self._begin()
        start = journal.end
        if groups:
            head = pack_block_head(journal.key, start, groups, content)
            size = len(head) + sum([group.size_bytes for group in groups])
        else:
            head, size = bytes(BLOCK_HEADER_SIZE), 0
        end = start + size
        block = [journal.header, head, *content] if journal.header else [head, *content]
        allocated = max(journal.allocated, end)
        journal.is_broken = True  # until it is written and synced
        try:
            if end > journal.allocated and size <= _SMALL_BLOCK_BYTES:
                allocated = end + self._write_and_grow(journal, block)
            else:
                write_all(self._files, journal.fd, block, 0 if journal.header else start)
            if sync:
                self.is_syncing = True
                journal.is_lost = True  # until it is synced
                self._files.fdatasync(journal.fd)
        finally:
            self.is_syncing = False
        # No call from here on, so that no exception can come in between.
        if sync:
            journal.synced_end = end
        journal.header = b""
        journal.last_block, journal.end = start, end
        journal.allocated = allocated
        journal.is_broken = journal.is_lost = False

    def _write_and_grow(self, journal: _OpenJournal, block: list[Buffer]) -> int:
        """Write a block and, if there is room, zeros after it; returns how many zeros."""
        at = 0 if journal.header else journal.end
        try:
            write_all(self._files, journal.fd, [*block, _ZEROS], at)
            return len(_ZEROS)
        except OSError as error:
            if not is_full(error):
                raise
        write_all(self._files, journal.fd, block, at)
        return 0

    def rewrite(self, groups: Sequence[GroupRef], content: Sequence[Buffer]) -> None:
        """Write a part of the last block again in its place, and sync it. Needs no more space.

        After an exception see `take_back`: then nothing of the block counts.
        """
        journal = self._open
        assert journal is not None, "there is no last block"
        journal.end = journal.last_block
        journal.synced_end = min(journal.synced_end, journal.end)
        self.write(groups, content)

    @property
    def is_plain(self) -> bool:
        """Whether the next block goes to the open file, without beginning a new one."""
        journal = self._open
        return journal is not None and not (journal.header or journal.is_broken)

    def take_back(self) -> bool:
        """After an exception of ``write``: overwrite its block, durably, and leave the file.

        False: it is not possible, as after a failed sync. Then `begin` must be called, once what
        `has_unsynced` names is durable elsewhere; the block is overwritten all the same, against a
        kill.
        """
        journal = self._open
        if journal is None or not journal.is_broken:  # nothing was written
            return True
        try:
            if journal.header:  # it has no blocks
                self._leave(journal)
                return journal.slot not in self._in_use
            size_bytes = self._files.size(journal.fd)
            if _block_at(self._files, journal.fd, journal.key, journal.end, size_bytes):
                write_all(self._files, journal.fd, [bytes(BLOCK_HEADER_SIZE)], journal.end)
            if journal.is_lost:
                return False
            journal.is_lost = True  # until it is synced
            self._files.fdatasync(journal.fd)
        except OSError as error:
            _log.error("the journal goes on in another file: %s", error)
            return False
        journal.synced_end = journal.end
        self._leave(journal)
        return True

    @property
    def has_unsynced(self) -> bool:
        """Whether blocks were written that no sync has made durable."""
        return self._open is not None and self._open.synced_end < self._open.end

    def begin(self) -> None:
        """Begin the next file, with a durable header: of the file before, what was synced counts.

        Raises OSError. Until a repetition succeeds it is not known what counts.
        """
        if self._open is not None:
            self._leave(self._open)
        self.write((), ())

    def sync(self) -> None:
        """Make written blocks durable. After an OSError `begin` must be called."""
        journal = self._open
        if journal is None or journal.synced_end == journal.end:
            return
        journal.is_broken = journal.is_lost = True
        self._files.fdatasync(journal.fd)
        journal.synced_end = journal.end
        journal.is_broken = journal.is_lost = False

    def rotate(self) -> int:
        """End the current file; returns the highest journal id that ended. Raises OSError.

        With a sync interval the next header is written before ended files are freed: else recovery
        would take an older one that is kept for the last, and cut off what segments got after it.
        """
        if self._open is not None:
            self._leave(self._open)
        ended = self._next_id - 1
        if self._sync_interval_ms:
            self.begin()
        return ended

    def _begin(self) -> _OpenJournal:
        slot = next(n for n in count() if n not in self._in_use and n not in self._failed)
        path = journal_path(self._folder, slot)
        fd = self._files.open(path, os.O_RDWR | os.O_CREAT)
        try:
            if slot not in self._slots:
                self._files.sync_folder(journal_folder(self._folder))
                self._slots.add(slot)
            size = self._files.size(fd)
        except OSError:
            self._close(fd)
            raise
        header = JournalHeader(self._next_id, *self._previous, self._sync_interval_ms, new_secret())
        self._in_use[slot] = self._next_id
        self._open = _OpenJournal(slot, fd, self._next_id, header.block_key, header.pack(), size)
        self._next_id += 1
        return self._open

    def _leave(self, journal: _OpenJournal) -> None:
        self._open = None
        self._close(journal.fd)
        if journal.is_broken:
            self._failed.add(journal.slot)
        if not journal.header:
            end = journal.synced_end if journal.is_broken else journal.end
            self._previous = (journal.journal_id, end)
        elif journal.is_broken:
            with suppress(OSError):  # it has no blocks; if it cannot be removed now, it is later
                self._remove(journal.slot)
                del self._in_use[journal.slot]

    def _close(self, fd: int) -> None:
        with suppress(OSError):  # it is closed all the same, and what counts is synced
            self._files.close(fd)

    def free(self, first_id: int, last_id: int) -> None:
        """Free ended journals that are synced elsewhere. Raises OSError if some could not be."""
        error: OSError | None = None
        for slot, journal_id in list(self._in_use.items()):
            if not first_id <= journal_id <= last_id:
                continue
            try:
                self._free(slot)
                del self._in_use[slot]
            except OSError as failure:
                error = failure
        if error is not None:
            raise error

    def _free(self, slot: int) -> None:
        if slot not in self._failed:
            try:
                free_journal(self._files, journal_path(self._folder, slot))
                return
            except OSError:
                self._failed.add(slot)
        self._remove(slot)

    def _remove(self, slot: int) -> None:
        """Remove a slot's file, durably; the slot can be used again then."""
        with suppress(FileNotFoundError):
            self._files.unlink(journal_path(self._folder, slot))
        self._slots.discard(slot)
        self._files.sync_folder(journal_folder(self._folder))
        self._failed.discard(slot)

    def close(self) -> None:
        """Close the current file, keeping what it holds."""
        if self._open is not None:
            self._leave(self._open)


def free_journal(files: Files, path: Path) -> None:
    """Mark the file as free, durably."""
    with files.opened(path, os.O_RDWR) as fd:
        write_all(files, fd, [bytes(JOURNAL_HEADER_SIZE)], 0)
        files.fdatasync(fd)


@record
class ReplayReport:
    """The result of a replay."""

    last_id: int = 0
    """Highest journal id seen; new journals get higher ids."""
    blocks: int = 0
    size_bytes: int = 0
    """Bytes of entries in the blocks that were read."""
    damaged_blocks: int = 0
    """Blocks that were durable and cannot be read. Their bytes may still be in their segments."""
    segment_ends: dict[tuple[int, int], int] = field(default_factory=dict)
    """The ends of the segments (ledger id, segment number) that the last journal has, if it has a
    sync interval. Bytes after that may be on the disk without those before them."""


@record(frozen=True)
class JournalFile:
    """A journal that counts."""

    path: Path
    header: JournalHeader
    end: int | None
    """The end of what counts, by a later journal's header; None: the last whole block's."""


@record(frozen=True)
class JournalBlock:
    """A block, or the place of a damaged one."""

    path: Path
    offset: int
    end_offset: int
    groups: list[tuple[GroupRef, memoryview]] | None
    """None: there is no whole block from ``offset`` to ``end_offset``."""


def replay(
    files: Files, folder: Path, apply: Callable[[GroupRef, memoryview], None]
) -> ReplayReport:
    """Give ``apply`` every group of every block that counts, oldest first. May be repeated."""
    found = _headers(files, folder)
    report = ReplayReport(last_id=max(found, default=0))
    for journal in _chain(found):
        report.segment_ends.clear()  # all before the last one were synced
        for block in journal_blocks(files, journal):
            if block.groups is None:
                report.damaged_blocks += 1
                continue
            report.blocks += 1
            for group, content in block.groups:
                apply(group, content)
                report.size_bytes += group.size_bytes
                if journal.header.sync_interval_ms:
                    segment = group.ledger_id, group.segment_no
                    report.segment_ends[segment] = group.offset + group.size_bytes
    return report


def journals(files: Files, folder: Path) -> list[JournalFile]:
    """The journals that count, oldest first. Raises UnsupportedVersionError."""
    return _chain(_headers(files, folder))


def journal_blocks(files: Files, journal: JournalFile) -> Iterator[JournalBlock]:
    """Every block that counts in a journal, in order, and the place of every damaged one."""
    path, key, end = journal.path, journal.header.block_key, journal.end
    with files.opened(path) as fd:
        size = files.size(fd) if end is None else end
        at = JOURNAL_HEADER_SIZE
        while at < size:
            groups = _block_at(files, fd, key, at, size)
            if groups is not None:
                after = at + BLOCK_HEADER_SIZE + len(groups) * GROUP_SIZE
                after += sum(group.size_bytes for group, _ in groups)
            elif end is None and journal.header.sync_interval_ms:
                return  # none counts: later blocks may have reached the disk before this one
            else:
                following = _next_block(files, fd, key, at + 1, size)
                if following is None and end is None:
                    return
                after = size if following is None else following
            yield JournalBlock(path, at, after, groups)
            at = after


def _headers(files: Files, folder: Path) -> dict[int, tuple[Path, JournalHeader]]:
    """Each journal's path and header, by its id."""
    found = {}
    for slot in list_journal_slots(files, folder):
        path = journal_path(folder, slot)
        with files.opened(path) as fd:
            header = unpack_journal_header(read_up_to(files, fd, JOURNAL_HEADER_SIZE, 0), path)
        if header is not None:
            found[header.journal_id] = path, header
    return found


def _chain(found: dict[int, tuple[Path, JournalHeader]]) -> list[JournalFile]:
    """The journals that count, oldest first.

    A journal that is not in the chain had no durable block, because a later one took its place.
    Journals in the middle may be gone: freed while an older one had to be kept.
    """
    chain: list[JournalFile] = []
    for journal_id in sorted(found):
        later = [found[other][1] for other in found if other > journal_id]
        if any(header.previous_id < journal_id for header in later):
            continue
        ends = [header.previous_end for header in later if header.previous_id == journal_id]
        chain.append(JournalFile(*found[journal_id], min(ends, default=None)))
    return chain


def _block_at(
    files: Files, fd: int, key: BlockKey, at: int, size: int
) -> list[tuple[GroupRef, memoryview]] | None:
    sizes = unpack_block_sizes(read_up_to(files, fd, BLOCK_HEADER_SIZE, at), key)
    if sizes is None:
        return None
    length = BLOCK_HEADER_SIZE + sizes[0] * GROUP_SIZE + sizes[1]
    if at + length > size:
        return None
    return unpack_block(read_up_to(files, fd, length, at), key, at)


def _next_block(files: Files, fd: int, key: BlockKey, at: int, size: int) -> int | None:
    window = 1 << 20
    while at < size:
        data = read_up_to(files, fd, min(window, size - at), at)
        found = data.find(key.marker)
        while found >= 0:
            if _block_at(files, fd, key, at + found, size) is not None:
                return at + found
            found = data.find(key.marker, found + 1)
        if len(data) < window:
            return None
        at += len(data) - len(key.marker) + 1
    return None
