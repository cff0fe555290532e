"""A disk in memory that can lose power.

It takes the place of the operating system behind `pulsemark.ledger.local.io.files.Files` and keeps
two states of everything: what a running process sees (the page cache), and what would be there
after a power cut. The rules are those of POSIX, at their worst:

- Bytes and lengths are durable once fdatasync or fsync of their file returned. Until then every
  piece of 512 bytes may have reached the disk or not, in any order, and the last piece may be torn
  in its middle.
- A name that was made, renamed or removed is durable once its folder was synced; until then
  either state may be found.
- A failed fdatasync drops what was not yet on the disk, though the process goes on seeing it, and
  the next fdatasync of that file says that all is well (as Linux does). Names are not dropped by
  a failed sync of their folder: file systems keep them in a journal of their own, and stop when
  that fails.

Which pieces survive is drawn from a seed, so that every outcome can be had again. Processes reach
the disk through doors (`process()`): a door is dead once its process was killed or the power went.

The SQLite catalog is not simulated. Its commits are durable when they return, so it keeps a real
file: folders are made on the real disk as well. `on_end` lets a harness keep the catalog as it
was when the processes ended.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from ..ledger.local.io.files import Buffer
from .disk_contents import Folder, Inode, Survival


class SimulatedDisk:
    """The disk. `process()` gives what a store takes as `files`.

    Args:
        seed: decides what survives.
        survival: of what was not synced, what a power cut leaves: "none" of it, "some" of it by
            the seed, or "all" of it.
    """

    def __init__(self, seed: int = 0, *, survival: Survival = "some") -> None:
        self.random = Random(seed)  # noqa: S311 - drawn again the same is what it is for
        self.survival: Survival = survival
        self.on_end: list[Callable[[], None]] = []
        """Called when all processes are ended, by a kill or a power cut."""
        self.power_cuts = 0
        self._lock = threading.RLock()
        self._root = Folder()
        self._processes: list[DiskProcess] = []
        self._made: set[Path] = set()
        self._next_fd = 1000

    def process(self) -> DiskProcess:
        """A door to the disk for one process; it dies with it."""
        with self._lock:
            process = DiskProcess(self)
            self._processes.append(process)
            return process

    def kill(self) -> None:
        """End all processes as kill -9 does: nothing written is lost, locks are given back."""
        with self._lock:
            for process in self._processes:
                process._die()
            self._processes.clear()
            for hook in self.on_end:
                hook()

    def power_off(self) -> None:
        """Cut the power: all processes end, and of what was not synced the seed's share is lost."""
        with self._lock:
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
        """What a file holds, as a process would see it."""
        with self._lock:
            return bytes(self._file(path).seen)

    def overwrite(self, path: Path, data: Buffer, offset: int = 0, *, cut: bool = False) -> None:
        """Change bytes behind everyone's back, durably: rot. `cut`: the file ends behind them."""
        with self._lock:
            inode = self._file(path)
            inode.write(data, offset)
            if cut:
                inode.cut(offset + len(data))
            inode.sync()

    # Walking

    def _make_folder(self, path: Path) -> None:
        folder = self._root
        for place in (*reversed(path.parents), path):
            if place.parent == place:
                continue
            entry = folder.seen.get(place.name)
            if entry is None:
                entry = Folder()
                if place.is_dir() and place not in self._made:
                    # It was on the real disk before: it is durable.
                    folder.seen[place.name] = folder.disk[place.name] = entry
                else:
                    folder.change({place.name: entry})
                    self._made.add(place)
                    place.mkdir(exist_ok=True)
            if not isinstance(entry, Folder):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
            folder = entry

    def _folder(self, path: Path) -> Folder:
        folder = self._root
        for name in path.absolute().parts[1:]:
            entry = folder.seen.get(name)
            if entry is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if not isinstance(entry, Folder):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            folder = entry
        return folder

    def _file(self, path: Path) -> Inode:
        entry = self._folder(path.parent).seen.get(path.name)
        if entry is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(entry, Folder):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return entry


class DiskProcess:
    """One process's access to a SimulatedDisk: a `Files`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._lock = disk._lock
        self._fds: dict[int, Inode] = {}
        self._dead = False

    def _die(self) -> None:
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

    def open(self, path: Path, flags: int) -> int:
        """Open a file; O_CREAT and O_TRUNC are understood."""
        with self._lock:
            disk = self._alive()
            folder = disk._folder(path.parent)
            if path.name not in folder.seen and flags & os.O_CREAT:
                folder.change({path.name: Inode()})
            inode = disk._file(path)
            if flags & os.O_TRUNC:
                inode.cut(0)
            disk._next_fd += 1
            self._fds[disk._next_fd] = inode
            return disk._next_fd

    def close(self, fd: int) -> None:
        """Close a descriptor; without a word when the process is dead."""
        with self._lock:
            if self._dead:
                return
            inode = self._inode(fd)
            del self._fds[fd]
            if inode.lock_owner is self and inode not in self._fds.values():
                inode.lock_owner = None

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read what is seen."""
        with self._lock:
            return bytes(self._inode(fd).seen[offset : offset + size_bytes])

    def map(self, fd: int, size_bytes: int) -> bytes:
        """What is seen at this moment."""
        return self.pread(fd, size_bytes, 0)

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
        """What a failed sync does: part of what is dirty reaches the disk, the rest never will."""
        with self._lock:
            self._inode(fd).lose(self._disk.random, self._disk.survival)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        """Cut or extend, not durably."""
        with self._lock:
            self._inode(fd).cut(size_bytes)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        """Make a range zeros, not durably; the length stays."""
        with self._lock:
            inode = self._inode(fd)
            size_bytes = min(size_bytes, len(inode.seen) - offset)
            if size_bytes > 0:
                inode.write(bytes(size_bytes), offset)

    def size(self, fd: int) -> int:
        """The length that is seen."""
        with self._lock:
            return len(self._inode(fd).seen)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a folder, replacing; both names change together or not at all."""
        with self._lock:
            disk = self._alive()
            if source.parent != target.parent:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            inode = disk._file(source)
            disk._folder(source.parent).change({source.name: None, target.name: inode})

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        with self._lock:
            disk = self._alive()
            disk._file(path)
            disk._folder(path.parent).change({path.name: None})

    def mkdir(self, path: Path) -> None:
        """Make a folder and its parents, here and (for the catalog) on the real disk."""
        with self._lock:
            self._alive()._make_folder(path.absolute())

    def listdir(self, path: Path) -> list[str]:
        """Names in a folder, in no particular order."""
        with self._lock:
            return list(self._alive()._folder(path).seen)

    def exists(self, path: Path) -> bool:
        """Whether there is something of that name."""
        with self._lock:
            try:
                return path.name in self._alive()._folder(path.parent).seen
            except (FileNotFoundError, NotADirectoryError):
                return False

    def names_stamp(self, _: Path) -> int | None:
        """None: never known."""
        return None

    def sync_folder(self, path: Path) -> None:
        """Make a folder's names durable."""
        with self._lock:
            self._alive()._folder(path).sync()

    def try_lock(self, fd: int) -> bool:
        """Take a file's lock; False if another process, or another opening, has it."""
        with self._lock:
            inode = self._inode(fd)
            if inode.lock_owner is not None:
                return False
            inode.lock_owner = self
            return True
