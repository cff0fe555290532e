"""All calls to the operating system.

Everything the ledger does to files goes through a `Files`, so that tests can put a faulty disk in
its place. (SQLite makes its own calls, through a connection that comes from here.)
Methods are thin: one system call each, raising ``OSError`` as the kernel gives it. What needs
more than one call (short reads and writes, interrupted calls) is a function below.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

Buffer = bytes | bytearray | memoryview

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
"""fallocate(2): FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE."""

IOV_MAX = 1024
"""Most buffers one gather write takes (Linux, macOS)."""


_SETTLED_NS = 2_000_000_000
"""Once a folder's time is this old, each further change gives it another time."""

_LOCKS_NO_FOLDERS = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
)
"""How flock(2) fails on a folder where only files that can be written may be locked (NFS)."""


class Files:
    """The system calls the ledger uses. Tests put a subclass in its place."""

    _held: Mapping[int, str] = MappingProxyType({})
    """Folders that are held, by their descriptors. Replaced as a whole."""
    _group_bits = 0

    def _at(self, path: Path) -> tuple[str, int | None]:
        """The path, and the descriptor of the folder from which it is looked up."""
        text = str(path)
        for fd, folder in self._held.items():
            if text == folder:
                return ".", fd
            if text.startswith(folder + "/"):
                return text[len(folder) + 1 :], fd
        return text, None

    def hold_folder(self, path: Path) -> int:
        """Open a folder. Until the descriptor is closed, names below ``path``, which is absolute,
        are those in this folder: also after it was moved, and another took its name.
        """
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._held = {**self._held, fd: str(path)}
        self._group_bits = shared_with(os.fstat(fd).st_mode)
        return fd

    def open(self, path: Path, flags: int) -> int:
        """Open; the descriptor is not inherited by child processes. A new file, as a new folder of
        `mkdir`, is for this user only, or for those who may read the held folder (`shared_with`).
        """
        name, folder_fd = self._at(path)
        return os.open(
            name, flags | os.O_CLOEXEC, 0o600 | self._group_bits & 0o040, dir_fd=folder_fd
        )

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        if fd in self._held:
            self._held = {each: folder for each, folder in self._held.items() if each != fd}
        os.close(fd)

    @contextmanager
    def opened(self, path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open for the length of a ``with`` block."""
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            self.close(fd)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read up to ``size_bytes`` at ``offset``; b"" at the end."""
        return os.pread(fd, size_bytes, offset)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers one after another at ``offset``; how much was written."""
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes and length durable."""
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Make the file durable with all its metadata."""
        os.fsync(fd)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        """Cut or extend the file."""
        os.ftruncate(fd, size_bytes)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        """Free the space of a range; it reads as zeros. OSError where the file system cannot."""
        import ctypes  # a start does not need it

        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "fallocate64"):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        place = (ctypes.c_int64(offset), ctypes.c_int64(size_bytes))
        if libc.fallocate64(fd, _PUNCH_HOLE_KEEP_SIZE, *place) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def size(self, fd: int) -> int:
        """The file's length in bytes."""
        return os.fstat(fd).st_size

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target``."""
        (old, old_fd), (new, new_fd) = self._at(source), self._at(target)
        os.rename(old, new, src_dir_fd=old_fd, dst_dir_fd=new_fd)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        name, folder_fd = self._at(path)
        os.unlink(name, dir_fd=folder_fd)

    def mkdir(self, path: Path) -> None:
        """Make a folder and its parents, unless they are there."""
        try:
            self._mkdir(path)
        except FileNotFoundError:
            self.mkdir(path.parent)
            self._mkdir(path)

    def _mkdir(self, path: Path) -> None:
        name, folder_fd = self._at(path)
        try:
            os.mkdir(name, 0o700 | self._group_bits, dir_fd=folder_fd)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder_fd).st_mode):
                raise

    def listdir(self, path: Path) -> list[str]:
        """Names in a folder."""
        with self.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            return os.listdir(fd)  # noqa: PTH208 - of held folders

    def exists(self, path: Path) -> bool:
        """Whether a file or folder has that name."""
        name, folder_fd = self._at(path)
        try:
            os.stat(name, dir_fd=folder_fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names_stamp(self, path: Path) -> int | None:
        """A number that changes when names in a folder change; None: not known, because names
        have changed just now.
        """
        # Two changes within one tick of the kernel's clock have the same time.
        name, folder_fd = self._at(path)
        changed_ns = os.stat(name, dir_fd=folder_fd).st_mtime_ns
        return changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else None

    def sync_folder(self, path: Path) -> None:
        """Make the folder's entries (new, renamed, removed files) durable."""
        with self.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock of an open file, until the process ends; False: it is taken."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def try_lock_folder(self, path: Path) -> int | None:
        """Lock a folder; None: its file system cannot. Raises BlockingIOError: it is taken."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close(fd)
            if error.errno in _LOCKS_NO_FOLDERS:
                return None
            raise
        return fd

    def connect(self, path: Path) -> sqlite3.Connection:
        """A connection to an SQLite database, for all threads, which begins no transaction by
        itself. Raises sqlite3.Error.
        """
        return sqlite3.connect(path, check_same_thread=False, isolation_level=None)


def shared_with(mode: int) -> int:
    """The permission bits of a group that a folder's owner lets read it: 0o050, else 0.

    Only a folder that is closed to all others counts: 0750 is a decision, 0755 is what most umasks
    make of any folder.
    """
    return 0o050 if mode & 0o057 == 0o050 else 0


WRITE_BYTES = 1 << 20
"""The most that one call writes. For larger writes ext4 needs large pieces of memory, which a
virtual machine often has to get from its host first: seven times slower (bench_append.py)."""


def write_all(files: Files, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all ``buffers`` at ``offset``, in as many calls as it takes; returns the size."""
    start, size = offset, sum(map(len, buffers))
    for portion in _portions(buffers, size):
        part = portion
        while part:
            try:
                written = files.pwritev(fd, part, offset)
            except InterruptedError:
                continue
            if written <= 0:
                raise OSError(5, "write made no progress")
            offset += written
            if offset - start == size:
                return size
            part = _after(part, written)
    return offset - start


def _portions(buffers: Sequence[Buffer], size: int) -> Iterable[Sequence[Buffer]]:
    """The buffers in lists for one call each: each list limited in number and in bytes."""
    if len(buffers) <= IOV_MAX and size <= WRITE_BYTES:
        return (buffers,) if size else ()
    return _cut(buffers)


def _cut(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    portion: list[Buffer] = []
    size = 0
    for buffer in buffers:
        for at in range(0, len(buffer), WRITE_BYTES):
            large = len(buffer) > WRITE_BYTES
            piece = memoryview(buffer)[at : at + WRITE_BYTES] if large else buffer
            if size + len(piece) > WRITE_BYTES or len(portion) == IOV_MAX:
                yield portion
                portion, size = [], 0
            portion.append(piece)
            size += len(piece)
    if portion:
        yield portion


def _after(buffers: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    """The rest of ``buffers`` after ``written`` bytes were written."""
    for number, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[number + 1 :]]
        written -= len(buffer)
    return []


def read_up_to(files: Files, fd: int, size_bytes: int, offset: int) -> bytes:
    """Read ``size_bytes`` at ``offset``; shorter only where the file ends."""
    parts: list[bytes] = []
    while size_bytes > 0:
        try:
            part = files.pread(fd, size_bytes, offset)
        except InterruptedError:
            continue
        if not part:
            break
        if len(part) == size_bytes and not parts:
            return part
        parts.append(part)
        size_bytes -= len(part)
        offset += len(part)
    return b"".join(parts)


def read_file(files: Files, path: Path, limit_bytes: int = 1 << 20) -> bytes:
    """A whole small file."""
    with files.opened(path) as fd:
        return read_up_to(files, fd, min(files.size(fd), limit_bytes), 0)


def size_of(files: Files, path: Path) -> int:
    """A file's size in bytes; 0 for a missing file."""
    with suppress(FileNotFoundError), files.opened(path) as fd:
        return files.size(fd)
    return 0


def write_file_durably(files: Files, path: Path, content: bytes) -> None:
    """Write a small file as a whole: after a crash all of it is there, or nothing."""
    temporary = path.with_name(path.name + ".new")
    with files.opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_all(files, fd, [content], 0)
        files.fsync(fd)
    files.rename(temporary, path)
    files.sync_folder(path.parent)
