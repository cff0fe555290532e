"""The journal's blocks, and the segments as they will be after recovery writes the blocks out.

After a power cut a segment may lack what the journal has; that is not damage. `JournalOverlay`
shows segment files with the journal's bytes in their places, without changing anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..ledger.local.commit.journal import (
    BLOCK_HEADER_SIZE,
    GROUP_SIZE,
    JournalBlock,
    journal_blocks,
    journals,
)
from ..ledger.local.io.files import Files, read_up_to
from ..ledger.local.io.folder import SegmentId, segment_path
from .findings import DamagedJournal


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a segment that are in the journal."""

    offset: int
    size_bytes: int
    journal: Path
    journal_offset: int


@dataclass(slots=True)
class JournalContent:
    """The content of the journal."""

    blocks: int = 0
    size_bytes: int = 0
    damaged: list[DamagedJournal] = field(default_factory=list)
    pieces: dict[SegmentId, list[_Piece]] = field(default_factory=dict)
    """The pieces by segment, oldest first; later ones overwrite earlier ones."""
    ends: dict[SegmentId, int] = field(default_factory=dict)
    """The ends at which the next opening cuts segments off (`ReplayReport.segment_ends`)."""

    def end_offset(self, segment_id: SegmentId) -> int:
        """The least size of the segment after the journal is written out; 0: no block has it."""
        pieces = self.pieces.get(segment_id, ())
        return max((piece.offset + piece.size_bytes for piece in pieces), default=0)


def read_journal(files: Files, folder: Path) -> JournalContent:
    """Read every block that counts. Raises UnsupportedVersionError, OSError.

    While a broker writes, a block may be read half written, or its file may be freed and reused. So
    if something looks damaged, everything is read a second time.
    """
    content = _read(files, folder)
    if content.damaged:
        again = _read(files, folder)
        again.damaged = [each for each in again.damaged if each in content.damaged]
        return again
    return content


def _read(files: Files, folder: Path) -> JournalContent:
    content = JournalContent()
    try:
        found = journals(files, folder)
    except FileNotFoundError:
        return content
    for journal in found:
        content.ends.clear()
        try:
            for block in journal_blocks(files, journal):
                _add(content, block, is_cut=journal.header.sync_interval_ms > 0)
        except FileNotFoundError:
            continue  # its store was closed meanwhile
    return content


def _add(content: JournalContent, block: JournalBlock, *, is_cut: bool) -> None:
    if block.groups is None:
        content.damaged.append(
            DamagedJournal(path=block.path, offset=block.offset, end_offset=block.end_offset)
        )
        return
    content.blocks += 1
    content.size_bytes += block.end_offset - block.offset
    at = block.offset + BLOCK_HEADER_SIZE + len(block.groups) * GROUP_SIZE
    for group, _ in block.groups:
        piece = _Piece(group.offset, group.size_bytes, block.path, at)
        segment_id = group.ledger_id, group.segment_no
        content.pieces.setdefault(segment_id, []).append(piece)
        if is_cut:
            content.ends[segment_id] = group.offset + group.size_bytes
        at += group.size_bytes


class JournalOverlay(Files):
    """The segments' files as recovery will leave them; ``ends`` are cut off by it."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        content: JournalContent,
        ends: Mapping[SegmentId, int] | None = None,
    ) -> None:
        self._files = files
        self._ends = {segment_path(folder, *each): end for each, end in (ends or {}).items()}
        self._pieces = {
            segment_path(folder, *segment_id): pieces
            for segment_id, pieces in content.pieces.items()
        }
        self._paths: dict[int, Path] = {}
        self._without_file = 0
        """Descriptors of segments that exist only in the journal are negative."""

    def open(self, path: Path, flags: int) -> int:
        try:
            fd = self._files.open(path, flags)
        except FileNotFoundError:
            if path not in self._pieces:
                raise
            self._without_file -= 1
            fd = self._without_file - 1
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        if fd >= 0:
            self._files.close(fd)

    def size(self, fd: int) -> int:
        if self._paths[fd] in self._ends:
            return self._ends[self._paths[fd]]
        pieces = self._pieces.get(self._paths[fd], ())
        there = self._files.size(fd) if fd >= 0 else 0
        return max([there, *(piece.offset + piece.size_bytes for piece in pieces)])

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        end = min(offset + size_bytes, self.size(fd))
        if end <= offset:
            return b""
        data = bytearray(self._files.pread(fd, end - offset, offset) if fd >= 0 else b"")
        data.extend(bytes(end - offset - len(data)))
        for piece in self._pieces.get(self._paths[fd], ()):
            first = max(offset, piece.offset)
            last = min(end, piece.offset + piece.size_bytes)
            if first < last:
                at = piece.journal_offset + first - piece.offset
                data[first - offset : last - offset] = self._read_piece(piece, at, last - first)
        return bytes(data)

    def _read_piece(self, piece: _Piece, offset: int, size_bytes: int) -> bytes:
        with self._files.opened(piece.journal) as fd:
            return read_up_to(self._files, fd, size_bytes, offset).ljust(size_bytes, b"\0")
