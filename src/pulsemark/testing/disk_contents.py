"""What a simulated disk holds: files and folders in two states, as seen and as on the disk.

The rules are those of `simulated_disk`: bytes and lengths are durable once their file was synced,
names once their folder was; what is dirty when the power goes, or when a sync fails, reaches the
disk in part, by pieces of 512 bytes, as a random generator decides.
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
"""What a disk writes as a whole, or so one hopes."""

Survival = Literal["none", "some", "all"]


@dataclass(slots=True, eq=False)
class Inode:
    """A file without a name: as it is seen, and as the disk has it."""

    seen: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    """[start, end) of what was written since the last sync, in order."""
    shortest: int | None = None
    """Smallest length since the last sync, if the file was cut."""
    lock_owner: DiskProcess | None = None

    def write(self, data: Buffer, offset: int) -> None:
        """Change what is seen."""
        end = offset + len(data)
        if len(self.seen) < end:
            self.seen.extend(bytes(end - len(self.seen)))
        self.seen[offset:end] = data
        if self.dirty and self.dirty[-1][1] == offset:
            self.dirty[-1] = (self.dirty[-1][0], end)
        else:
            self.dirty.append((offset, end))

    def cut(self, size: int) -> None:
        """Cut or extend what is seen."""
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
        """Make what is seen durable."""
        if self.shortest is not None:
            del self.disk[self.shortest :]
        for start, end in self.dirty:
            self._put(start, end)
        # What an earlier failed sync lost reads as zeros.
        if len(self.disk) < len(self.seen):
            self.disk.extend(bytes(len(self.seen) - len(self.disk)))
        self._clean()

    def _clean(self) -> None:
        self.dirty.clear()
        self.shortest = None

    def lose(self, random: Random, survival: Survival) -> None:
        """Let some of what is dirty reach the disk; the rest never will."""
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
    """Names, as they are seen, and as the disk has them."""

    seen: dict[str, Inode | Folder] = field(default_factory=dict)
    disk: dict[str, Inode | Folder] = field(default_factory=dict)
    pending: list[dict[str, Inode | Folder | None]] = field(default_factory=list)
    """Changes since the last sync, oldest first; None: the name is gone."""

    def change(self, names: dict[str, Inode | Folder | None]) -> None:
        """Make, rename or remove names; None: the name is gone."""
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
