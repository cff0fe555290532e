"""File access that fails on request, and checks how the code under test handles failures.

    files = FaultyFiles()                                  # over the real disk
    files.fail("fdatasync", call=3)                        # the third fdatasync from now: EIO
    files.fail("pwritev", error=errno.ENOSPC, times=None)  # from now on, until heal()
    LocalStore.open(folder, files=files)

A failing call has the same effects as a real one. A failed write has written part of its bytes. A
failed sync has dropped the data that was not on the disk (if the disk is `Lossy`). An
interrupted call has done nothing. `Short` is not an error: the call does less than requested.

After a failed sync that descriptor and that file must never be synced again, since the kernel would
report success though data is lost. Such calls are recorded in `violations`.

SQLite makes its own calls to the operating system. What a failing one leaves is made by other means
(`FaultyConnection`), so that no file system and no other tool is needed:

- `commit_write`: a write of the commit failed. The WAL has no mark of a commit, and SQLite has
  rolled the transaction back.
- `commit_sync`: the sync failed after everything was written. The WAL has the whole transaction
  with the mark of its commit, and SQLite has forgotten it, in memory only.
- `read`: a page could not be read.

`campaigns/sqlite_fault_campaign.py` has the kernel let each real call fail, and so checks this.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from ..ledger.local.io.files import Buffer, Files

T = TypeVar("T")

OPERATIONS = (
    "open", "close", "pread", "pwritev", "fdatasync", "fsync", "ftruncate", "punch_hole",
    "size", "rename", "unlink", "mkdir", "listdir", "exists", "names_stamp", "sync_folder",
    "try_lock",
    "try_lock_folder", "hold_folder", "connect",
)  # fmt: skip
"""The operations that can fail: every method of `Files`."""

SQLITE_STEPS = ("read", "commit_write", "commit_sync")
"""What can fail in SQLite."""

_HEADERS = slice(0, 96)
"""In the shared memory beside a WAL: which frames count, twice. SQLite's "WAL-index format"."""
_COUNTING, _COPIED = slice(16, 20), slice(96, 100)
"""How many frames count, and how many of them a checkpoint has copied."""

NextError = Callable[[str], int | None]
"""The errno with which the step of that name must fail now; None: it must not fail."""


def flipped(data: Buffer, bit: int) -> bytes:
    """The data with one bit flipped."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


class Short:
    """A read or write that does half of the request (at least one byte), without an error."""


@runtime_checkable
class Lossy(Protocol):
    """Files that can drop what is not on the disk, as Linux does when a sync fails."""

    def lose_unsynced(self, fd: int) -> None:
        """Drop what was written to the file since its last sync."""


@dataclass(slots=True)
class _Fault:
    """Beginning with call number ``first`` of an operation, ``times`` calls fail."""

    operation: str
    first: int
    times: int | None
    error: int | type[Short]
    path_part: str

    def hits(self, call: int, path: Path | None) -> bool:
        if call < self.first or (self.times is not None and call >= self.first + self.times):
            return False
        return self.path_part in str(path or "")


class FaultyFiles(Files):
    """A `Files` that calls another one, by default the real disk's, with the faults that are due.

    Its methods raise the OSError of the fault, and those of the other `Files`.

    With `syncs` False fdatasync, fsync and sync_folder report success and do nothing. This is for
    control runs: a check of durability must report losses then.
    """

    def __init__(self, files: Files | None = None, *, syncs: bool = True) -> None:
        self._files: Files = files or Files()
        self._syncs = syncs
        self._lock = threading.RLock()
        self._faults: list[_Fault] = []
        self._at_call: dict[int, Callable[[], object]] = {}
        self._paths: dict[int, Path] = {}
        self._failed_fds: set[int] = set()
        self._failed_paths: set[Path] = set()
        self.calls: Counter[str] = Counter()
        """How often each operation was called."""
        self.total_calls = 0
        self.failed_calls = 0
        """How many calls failed or were short."""
        self.bytes_read = 0
        self.violations: list[str] = []
        """Forbidden calls: syncs after a failed sync."""
        self.trace: list[str] | None = None
        """If this is set to a list, every call is added to it, with its path."""

    def fail(
        self,
        operation: str,
        *,
        call: int = 1,
        error: int | type[Short] = errno.EIO,
        times: int | None = 1,
        path_part: str = "",
    ) -> None:
        """Let ``times`` calls of ``operation`` fail, beginning with the ``call``-th from now.

        ``operation`` is one of OPERATIONS or SQLITE_STEPS, ``error`` an errno or `Short`; ``times``
        None: until `heal`. Only calls on paths with ``path_part`` fail, but all are counted. Raises
        ValueError for an operation that does not exist.
        """
        known = OPERATIONS + SQLITE_STEPS
        if operation not in known:
            raise ValueError(f"no operation {operation!r}; use one of {', '.join(known)}")
        with self._lock:
            first = self.calls[operation] + call
            self._faults.append(_Fault(operation, first, times, error, path_part))

    def at_call(self, number: int, action: Callable[[], object]) -> None:
        """Call ``action`` at that call of all operations, after a write and before others."""
        self._at_call[number] = action

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    # One call

    def _call(
        self,
        operation: str,
        path: Path | None,
        do: Callable[[], T],
        partly: Callable[[], T] | None = None,
    ) -> T:
        """Count the call, then run it or let it fail. ``partly`` does half of the work."""
        with self._lock:
            self.calls[operation] += 1
            self.total_calls += 1
            if self.trace is not None:
                self.trace.append(f"{operation} {path.name if path else ''}")
            call = self.calls[operation]
            fault = next(
                (f for f in self._faults if f.operation == operation and f.hits(call, path)), None
            )
            action = self._at_call.pop(self.total_calls, None)
            if action is not None:
                if operation == "pwritev":
                    do()
                action()
            if fault is None:
                return do()
            self.failed_calls += 1
            if isinstance(fault.error, type):
                return partly() if partly is not None else do()
            if partly is not None and operation == "pwritev" and fault.error != errno.EINTR:
                partly()
        raise OSError(fault.error, os.strerror(fault.error), str(path or ""))

    def _next_sqlite_error(self, path: Path, step: str) -> int | None:
        """The errno with which this step of SQLite fails. It is no call: `at_call` passes it."""
        with self._lock:
            self.calls[step] += 1
            hits = [f for f in self._faults if f.operation == step]
            fault = next((f for f in hits if f.hits(self.calls[step], path)), None)
            if fault is None:
                return None
            self.failed_calls += 1
            return errno.EIO if isinstance(fault.error, type) else fault.error

    def _path(self, fd: int) -> Path | None:
        return self._paths.get(fd)

    # The operations of Files

    def hold_folder(self, path: Path) -> int:
        return self._call("hold_folder", path, lambda: self._files.hold_folder(path))

    def open(self, path: Path, flags: int) -> int:
        fd = self._call("open", path, lambda: self._files.open(path, flags))
        with self._lock:
            self._paths[fd] = path
            self._failed_fds.discard(fd)  # the system reuses descriptor numbers
        return fd

    def close(self, fd: int) -> None:
        """As `Files.close`. A failing close closes the descriptor, as on Linux."""
        path = self._paths.pop(fd, None)
        try:
            self._call("close", path, lambda: None)
        finally:
            self._files.close(fd)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        data = self._call(
            "pread",
            self._path(fd),
            lambda: self._files.pread(fd, size_bytes, offset),
            lambda: self._files.pread(fd, max(1, size_bytes // 2), offset),
        )
        self.bytes_read += len(data)
        return data

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:

        def half() -> int:
            data = b"".join(buffers)
            return self._files.pwritev(fd, [data[: max(1, len(data) // 2)]], offset)

        return self._call(
            "pwritev", self._path(fd), lambda: self._files.pwritev(fd, buffers, offset), half
        )

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd, self._files.fdatasync)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd, self._files.fsync)

    def _sync(
        self, operation: Literal["fdatasync", "fsync"], fd: int, do: Callable[[int], None]
    ) -> None:
        path = self._path(fd)
        if fd in self._failed_fds:
            self.violations.append(f"{operation} again on a descriptor whose sync failed: {path}")
        elif path in self._failed_paths:
            self.violations.append(f"{operation} again on a file whose sync failed: {path}")
        try:
            self._call(operation, path, lambda: do(fd) if self._syncs else None)
        except OSError:
            self._failed_fds.add(fd)
            if path is not None:
                self._failed_paths.add(path)
            if isinstance(self._files, Lossy):
                self._files.lose_unsynced(fd)
            raise

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        self._call("ftruncate", self._path(fd), lambda: self._files.ftruncate(fd, size_bytes))

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        self._call(
            "punch_hole", self._path(fd), lambda: self._files.punch_hole(fd, offset, size_bytes)
        )

    def size(self, fd: int) -> int:
        return self._call("size", self._path(fd), lambda: self._files.size(fd))

    def rename(self, source: Path, target: Path) -> None:
        self._call("rename", source, lambda: self._files.rename(source, target))
        self._failed_paths -= {source, target}

    def unlink(self, path: Path) -> None:
        self._call("unlink", path, lambda: self._files.unlink(path))
        self._failed_paths.discard(path)

    def mkdir(self, path: Path) -> None:
        self._call("mkdir", path, lambda: self._files.mkdir(path))

    def listdir(self, path: Path) -> list[str]:
        return self._call("listdir", path, lambda: self._files.listdir(path))

    def exists(self, path: Path) -> bool:
        return self._call("exists", path, lambda: self._files.exists(path))

    def names_stamp(self, path: Path) -> int | None:
        return self._call("names_stamp", path, lambda: self._files.names_stamp(path))

    def sync_folder(self, path: Path) -> None:
        self._call(
            "sync_folder", path, lambda: self._files.sync_folder(path) if self._syncs else None
        )

    def try_lock(self, fd: int) -> bool:
        return self._call("try_lock", self._path(fd), lambda: self._files.try_lock(fd))

    def try_lock_folder(self, path: Path) -> int | None:
        return self._call("try_lock_folder", path, lambda: self._files.try_lock_folder(path))

    def connect(self, path: Path) -> sqlite3.Connection:
        """As `Files.connect`. Its commits and reads can fail, too (SQLITE_STEPS)."""
        try:
            self._call("connect", path, lambda: None)
        except OSError as error:
            raise sqlite3.OperationalError(f"unable to open database file: {error}") from error
        return FaultyConnection(path, partial(self._next_sqlite_error, path))


class FaultyConnection(sqlite3.Connection):
    """A connection to the database `path`. `next_error` is asked at each step."""

    def __init__(self, path: Path, next_error: NextError) -> None:
        super().__init__(path, check_same_thread=False, isolation_level=None)
        self._next_error = next_error
        self._shared = Path(f"{path}-shm")
        self._shared_fd = -1

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """As `sqlite3.Connection.execute`; COMMIT and SELECT can fail."""
        if sql == "COMMIT":
            return self._commit()
        if sql.startswith("SELECT") and self._next_error("read") is not None:
            raise _error(sqlite3.SQLITE_IOERR_READ)
        return super().execute(sql, parameters)

    def _commit(self) -> sqlite3.Cursor:
        error = self._next_error("commit_write")
        if error is not None:
            super().execute("ROLLBACK")
            is_full = error == errno.ENOSPC
            raise _error(sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_IOERR_WRITE)
        if self._next_error("commit_sync") is not None:
            self._commit_and_forget()
            raise _error(sqlite3.SQLITE_IOERR_FSYNC)
        return super().execute("COMMIT")

    def _commit_and_forget(self) -> None:
        if self._shared_fd < 0:
            # It stays open: closing it would give up the locks that SQLite has on this file.
            self._shared_fd = os.open(self._shared, os.O_RDWR | os.O_CLOEXEC)
        before = os.pread(self._shared_fd, 100, 0)
        if struct.unpack("=I", before[_COUNTING]) == struct.unpack("=I", before[_COPIED]):
            super().execute("ROLLBACK")  # the WAL would begin anew: as if nothing was written
            return
        super().execute("PRAGMA wal_autocheckpoint=0")
        super().execute("COMMIT")
        os.pwrite(self._shared_fd, before[_HEADERS], 0)
        super().execute("PRAGMA wal_autocheckpoint=1000")

    def close(self) -> None:
        """Close it."""
        super().close()
        if self._shared_fd >= 0:
            os.close(self._shared_fd)
            self._shared_fd = -1


def _error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error
