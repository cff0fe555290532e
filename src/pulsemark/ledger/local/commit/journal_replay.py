"""Reading the journal: for recovery, which writes its blocks to segments, and for verification.

The headers alone say which journals count: each names the previous one that had durable blocks, and
how much of that one counts. Within a journal a block is written only after the previous one was
synced. So if a whole block follows bytes that are not a block, those bytes were a block once: that
is damage. Bytes after the last whole block are a torn write, or from the file's earlier use.

In interval mode several blocks are synced at once, and a power cut may keep a later one and lose an
earlier one. Then the journal counts up to the first block that is not whole. What was acknowledged
within the last interval may be lost, as that mode says, but no segment gets a hole: bytes of
segments after their last block are cut off (``ReplayReport.segment_ends``).

Each block begins with a marker that was drawn at random for the journal. What clients sent, now or
in the file's earlier use, therefore does not look like a block: looking for the next block reads
each byte once, and only what was a block of this journal is read and checked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..io.files import Files, read_up_to
from ..io.folder import journal_path, list_journal_slots
from .journal import (
    BLOCK_HEADER_SIZE,
    GROUP_SIZE,
    JOURNAL_HEADER_SIZE,
    BlockKey,
    GroupRef,
    JournalHeader,
    unpack_block,
    unpack_block_sizes,
    unpack_journal_header,
)


@dataclass(slots=True)
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
    """The ends of segments (ledger id, segment number) that were written to in interval mode since
    the last checkpoint. Bytes after that may be on the disk without those before them."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal that counts."""

    path: Path
    header: JournalHeader
    end: int | None
    """How much of it counts, by a later journal's header; None: up to the last whole block."""


@dataclass(frozen=True, slots=True)
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
    """Give ``apply`` every group of every block that counts, oldest first.

    Replaying is idempotent: it writes the same bytes to the same places.
    """
    found = _headers(files, folder)
    report = ReplayReport(last_id=max(found, default=0))
    chain = _chain(found)
    for number, journal in enumerate(chain):
        if journal.header.sync_interval_ms == 0 or _is_gone(chain[: number + 1]):
            report.segment_ends.clear()
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


def _is_gone(chain: list[JournalFile]) -> bool:
    """Whether the last journal names a previous one that is not here."""
    named = chain[-1].header.previous_id
    return named != (chain[-2].header.journal_id if len(chain) > 1 else 0)


def journals(files: Files, folder: Path) -> list[JournalFile]:
    """The journals that count, oldest first. Raises UnsupportedVersionError."""
    return _chain(_headers(files, folder))


def journal_blocks(files: Files, journal: JournalFile) -> Iterator[JournalBlock]:
    """Every block that counts in a journal, in order, and the place of every damaged one."""
    path, key, end = journal.path, journal.header.block_key, journal.end
    fd = files.open(path, os.O_RDONLY)
    try:
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
    finally:
        files.close(fd)


def _headers(files: Files, folder: Path) -> dict[int, tuple[Path, JournalHeader]]:
    found = {}
    for slot in list_journal_slots(files, folder):
        path = journal_path(folder, slot)
        fd = files.open(path, os.O_RDONLY)
        try:
            header = unpack_journal_header(read_up_to(files, fd, JOURNAL_HEADER_SIZE, 0), path)
        finally:
            files.close(fd)
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
