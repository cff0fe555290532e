"""Files and folders of a simulated disk, each in two states: as processes see it, and as on disk.

The rules are those of `simulated_disk`. Bytes and lengths are durable after a sync of their file,
names after a sync of their folder. If the power is cut or a sync fails, a random part of the dirty
data reaches the disk, in pieces of 512 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Literal

from ..ledger.local.io.files import Buffer

if TYPE_CHECKING:
    from .simulated_disk import DiskProcess

__all__ = ["PIECE_BYTES", "Folder", "Inode", "Survival"]

PIECE_BYTES = 512
"""The unit that a disk is expected to write completely or not at all."""

Survival = Literal["none", "some", "all"]


@dataclass(slots=True, eq=False)
class Inode:
    """A file without its name: as processes see it, and as it is on the disk."""

    seen: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    """[start, end) of each range written since the last sync, in order."""
    shortest: int | None = None
    """The smallest length since the last sync, if the file was truncated."""
    lock_owner: DiskProcess | None = None

    def write(self, data: Buffer, offset: int) -> None:
        """Write, as processes see it."""
        end = offset + len(data)
        if len(self.seen) < end:
            self.seen.extend(bytes(end - len(self.seen)))
        self.seen[offset:end] = data
        if self.dirty and self.dirty[-1][1] == offset:
            self.dirty[-1] = (self.dirty[-1][0], end)
        else:
            self.dirty.append((offset, end))

    def cut(self, size: int) -> None:
        """Truncate or extend the file, as processes see it."""
        if size < len(self.seen):
            del self.seen[size:]
            self.shortest = size if self.shortest is None else min(size, self.shortest)
        elif size > len(self.seen):
            self.write(bytes(size - len(self.seen)), len(self.seen))

    def _put(self, start: int, end: int) -> None:
        end = min(end, len(self.seen))
        if start < end:
            if len(self.disk) < end:
                self.disk.extend(bytes(end - len(self.disk)))
            self.disk[start:end] = self.seen[start:end]

    def sync(self) -> None:
        """Make the seen content durable."""
        if self.shortest is not None:
            del self.disk[self.shortest :]
        for start, end in self.dirty:
            self._put(start, end)
        # Data lost by an earlier failed sync reads as zeros.
        if len(self.disk) < len(self.seen):
            self.disk.extend(bytes(len(self.seen) - len(self.disk)))
        self._clean()

    def _clean(self) -> None:
        self.dirty.clear()
        self.shortest = None

    def lose(self, random: Random, survival: Survival) -> None:
        """Let some of the dirty data reach the disk; the rest is lost."""
        if self.shortest is not None and (survival == "all" or random.random() < 0.5):
            del self.disk[self.shortest :]
        share = {"none": 0.0, "some": random.random(), "all": 1.0}[survival]
        for number, (first, end) in enumerate(self.dirty):
            last = number == len(self.dirty) - 1
            edges = [
                first,
                *range(first - first % PIECE_BYTES + PIECE_BYTES, end, PIECE_BYTES),
                end,
            ]
            for start, stop in pairwise(edges):
                if random.random() < share:
                    torn = last and stop == end and survival == "some"
                    self._put(start, random.randint(start, stop) if torn else stop)
        self._clean()


@dataclass(slots=True, eq=False)
class Folder:
    """Names, as processes see them, and as they are on the disk."""

    seen: dict[str, Inode | Folder] = field(default_factory=dict)
    disk: dict[str, Inode | Folder] = field(default_factory=dict)
    pending: list[dict[str, Inode | Folder | None]] = field(default_factory=list)
    """Changes since the last sync, oldest first; None: the name was removed."""

    def change(self, names: dict[str, Inode | Folder | None]) -> None:
        """Create, rename or remove names; None removes a name."""
        _apply(self.seen, names)
        self.pending.append(names)

    def sync(self) -> None:
        """Make the names durable."""
        for names in self.pending:
            _apply(self.disk, names)
        self.pending.clear()

    def lose(self, random: Random, survival: Survival) -> None:
        """Let some of the changed names reach the disk, and forget the others."""
        share = {"none": 0.0, "some": random.random(), "all": 1.0}[survival]
        for names in self.pending:
            if random.random() < share:
                _apply(self.disk, names)
        self.pending.clear()


def _apply(entries: dict[str, Inode | Folder], names: dict[str, Inode | Folder | None]) -> None:
    for name, entry in names.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
