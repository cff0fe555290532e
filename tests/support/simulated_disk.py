"""A disk in memory that can lose power.

It replaces the operating system as a `pulsemark.ledger.local.io.files.Files`. It keeps everything
in two states: what a running process sees (the page cache), and what is on the disk after a power
cut. It follows the rules of POSIX, in the worst case:

- Bytes and lengths are durable after fdatasync or fsync of their file returned. Before that, each
  piece of 512 bytes may have reached the disk or not, in any order, and the last piece may be
  written only in part.
- A created, renamed or removed name is durable after a sync of its folder. Before that, the old or
  the new state may be on the disk.
- A failed fdatasync drops the data that is not on the disk yet. The process still sees this data,
  and the next fdatasync of that file reports success (as on Linux). A failed sync of a folder does
  not drop names: file systems keep names in their own journal, and stop if that fails.

A seed decides which pieces survive, so that every result can be repeated. Each process has its own
access to the disk (`process()`), which fails after the process was killed or the power was cut.

The SQLite catalog is not simulated. Its commits are durable when they return, so it is a real file,
and folders are also made on the real disk. With `on_end` a test can keep the catalog as it was
when the processes ended.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

from pulsemark.ledger.local.io.files import Buffer, Files

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


class SimulatedDisk:
    """The disk. `process()` returns an object that a store takes as `files`.

    Args:
        seed: decides which data survives.
        survival: how much unsynced data survives a power cut: "none", "some" (as the seed
            decides), or "all".

    Its methods raise the OSError that a disk would: for a file that does not exist, say.
    """

    def __init__(self, seed: int = 0, *, survival: Survival = "some") -> None:
        self.random = Random(seed)
        self.survival: Survival = survival
        self.on_end: list[Callable[[], None]] = []
        """Called when all processes are ended, by a kill or a power cut."""
        self.power_cuts = 0
        self.lock = threading.RLock()
        self._root = Folder()
        self._processes: list[DiskProcess] = []
        self._made: set[Path] = set()
        self.next_fd = 1000

    def process(self) -> DiskProcess:
        """Access to the disk for one process, until that process ends."""
        with self.lock:
            process = DiskProcess(self)
            self._processes.append(process)
            return process

    def kill(self) -> None:
        """End all processes as kill -9 does: written data stays, locks are released."""
        with self.lock:
            for process in self._processes:
                process.die()
            self._processes.clear()
            for hook in self.on_end:
                hook()

    def power_off(self) -> None:
        """Cut the power: all processes end, and unsynced data is lost as the seed decides."""
        with self.lock:
            self.kill()
            self.power_cuts += 1
            self._lose(self._root)

    def _lose(self, folder: Folder) -> None:
        folder.lose(self.random, self.survival)
        folder.seen = dict(folder.disk)
        for name in sorted(folder.disk):
            entry = folder.disk[name]
            if isinstance(entry, Folder):
                self._lose(entry)
            else:
                entry.lose(self.random, self.survival)
                entry.seen = bytearray(entry.disk)

    def contents(self, path: Path) -> bytes:
        """The content of a file, as a process would see it."""
        with self.lock:
            return bytes(self.file_at(path).seen)

    def overwrite(self, path: Path, data: Buffer, offset: int = 0, *, cut: bool = False) -> None:
        """Damage a file: change bytes durably, unseen by processes. `cut`: the file ends there."""
        with self.lock:
            inode = self.file_at(path)
            inode.write(data, offset)
            if cut:
                inode.cut(offset + len(data))
            inode.sync()

    # Walking

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, not durably."""
        folder = self._root
        for place in (*reversed(path.parents), path):
            if place.parent == place:
                continue
            entry = folder.seen.get(place.name)
            if entry is None:
                entry = Folder()
                if place.is_dir() and place not in self._made:
                    # The folder exists on the real disk, so it is durable.
                    folder.seen[place.name] = folder.disk[place.name] = entry
                else:
                    folder.change({place.name: entry})
                    self._made.add(place)
                    place.mkdir(exist_ok=True)
            if not isinstance(entry, Folder):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
            folder = entry

    def folder_at(self, path: Path) -> Folder:
        """The folder of this path. Raises OSError."""
        folder = self._root
        for name in path.absolute().parts[1:]:
            entry = folder.seen.get(name)
            if entry is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if not isinstance(entry, Folder):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            folder = entry
        return folder

    def file_at(self, path: Path) -> Inode:
        """The file of this path. Raises OSError."""
        entry = self.folder_at(path.parent).seen.get(path.name)
        if entry is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(entry, Folder):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return entry


class DiskProcess(Files):
    """One process's access to a SimulatedDisk: a `Files`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._lock = disk.lock
        self._fds: dict[int, Inode] = {}
        self._dead = False

    def die(self) -> None:
        """End: its calls fail from now on, and its locks are free."""
        self._dead = True
        for inode in self._fds.values():
            if inode.lock_owner is self:
                inode.lock_owner = None
        self._fds.clear()

    def _alive(self) -> SimulatedDisk:
        if self._dead:
            raise OSError(errno.EIO, "this process has ended")
        return self._disk

    def _inode(self, fd: int) -> Inode:
        self._alive()
        if fd not in self._fds:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fds[fd]

    def hold_folder(self, path: Path) -> int:
        """A descriptor of the folder. Folders are never moved here."""
        with self._lock:
            disk = self._alive()
            disk.folder_at(path)
            disk.next_fd += 1
            self._fds[disk.next_fd] = Inode()
            return disk.next_fd

    def open(self, path: Path, flags: int) -> int:
        """Open a file; of the flags, O_CREAT and O_TRUNC have an effect."""
        with self._lock:
            disk = self._alive()
            folder = disk.folder_at(path.parent)
            if path.name not in folder.seen and flags & os.O_CREAT:
                folder.change({path.name: Inode()})
            inode = disk.file_at(path)
            if flags & os.O_TRUNC:
                inode.cut(0)
            disk.next_fd += 1
            self._fds[disk.next_fd] = inode
            return disk.next_fd

    def close(self, fd: int) -> None:
        """Close a descriptor; does nothing after the process has ended."""
        with self._lock:
            if self._dead:
                return
            inode = self._inode(fd)
            del self._fds[fd]
            if inode.lock_owner is self and inode not in self._fds.values():
                inode.lock_owner = None

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read the content as processes see it."""
        with self._lock:
            return bytes(self._inode(fd).seen[offset : offset + size_bytes])

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write, not durably."""
        with self._lock:
            data = b"".join(buffers)
            self._inode(fd).write(data, offset)
            return len(data)

    def fdatasync(self, fd: int) -> None:
        """Make a file's bytes and length durable."""
        with self._lock:
            self._inode(fd).sync()

    def fsync(self, fd: int) -> None:
        """As fdatasync: there is no other metadata."""
        self.fdatasync(fd)

    def lose_unsynced(self, fd: int) -> None:
        """The effect of a failed sync: some dirty data reaches the disk, the rest is lost."""
        with self._lock:
            self._inode(fd).lose(self._disk.random, self._disk.survival)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        """Truncate or extend, not durably."""
        with self._lock:
            self._inode(fd).cut(size_bytes)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        """Fill a range with zeros, not durably; the length does not change."""
        with self._lock:
            inode = self._inode(fd)
            size_bytes = min(size_bytes, len(inode.seen) - offset)
            if size_bytes > 0:
                inode.write(bytes(size_bytes), offset)

    def size(self, fd: int) -> int:
        """The length as processes see it."""
        with self._lock:
            return len(self._inode(fd).seen)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a folder, replacing the target; both names change atomically."""
        with self._lock:
            disk = self._alive()
            if source.parent != target.parent:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            inode = disk.file_at(source)
            disk.folder_at(source.parent).change({source.name: None, target.name: inode})

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        with self._lock:
            disk = self._alive()
            disk.file_at(path)
            disk.folder_at(path.parent).change({path.name: None})

    def mkdir(self, path: Path) -> None:
        """Make a folder and its parents, also on the real disk (for the catalog)."""
        with self._lock:
            self._alive().make_folder(path.absolute())

    def listdir(self, path: Path) -> list[str]:
        """Names in a folder, in no particular order."""
        with self._lock:
            return list(self._alive().folder_at(path).seen)

    def exists(self, path: Path) -> bool:
        """Whether a file or folder has this name."""
        with self._lock:
            try:
                return path.name in self._alive().folder_at(path.parent).seen
            except (FileNotFoundError, NotADirectoryError):
                return False

    def names_stamp(self, _: Path) -> int | None:
        """None: never known."""
        return None

    def sync_folder(self, path: Path) -> None:
        """Make a folder's names durable."""
        with self._lock:
            self._alive().folder_at(path).sync()

    def try_lock(self, fd: int) -> bool:
        """Take a file's lock; False if another process or descriptor holds it."""
        with self._lock:
            inode = self._inode(fd)
            if inode.lock_owner is not None:
                return False
            inode.lock_owner = self
            return True

    def try_lock_folder(self, path: Path) -> None:
        """None: this disk locks no folders."""

    def connect(self, path: Path) -> sqlite3.Connection:
        """A connection to a real file: SQLite is not simulated."""
        self._alive()
        return Files().connect(path)
