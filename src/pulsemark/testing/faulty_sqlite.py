"""An SQLite connection whose commits fail as they do on a failing disk.

SQLite makes its own calls to the operating system. What a failing one leaves is made here by other
means, so that no file system and no other tool is needed:

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

SQLITE_STEPS = ("read", "commit_write", "commit_sync")
"""What can fail."""

_HEADERS = slice(0, 96)
"""In the shared memory beside a WAL: which frames count, twice. SQLite's "WAL-index format"."""
_COUNTING, _COPIED = slice(16, 20), slice(96, 100)
"""How many frames count, and how many of them a checkpoint has copied."""

NextError = Callable[[str], int | None]
"""The errno with which the step of that name must fail now; None: it must not fail."""


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
