"""A tree that outlives its process: its persistent nodes are in one SQLite file.

SQLite notices damage of a page's structure only, so each node has a CRC-32: of its path, version
and sequence number, each followed by a zero byte, and its data.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .errors import CoordinationUnavailableError
from .memory import MemoryTree


class DurableTree(MemoryTree):
    """The service for brokers of one machine. A change is on disk before anyone sees it."""

    def __init__(self, file: Path) -> None:
        """Open or create the file. Raises CoordinationUnavailableError: it cannot be used."""
        super().__init__()
        with suppress(OSError):  # it is there, or SQLite says why it cannot be made
            file.touch(0o600, exist_ok=False)
        try:
            self._database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise CoordinationUnavailableError("", f"{file}: {error}") from error
        try:
            self._load()
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._database.close()
            raise CoordinationUnavailableError("", f"{file}: {error}") from error

    def _load(self) -> None:
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        problem = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise ValueError(f"it is damaged: {problem}")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS nodes (path TEXT PRIMARY KEY, data BLOB, version INTEGER, "
            "created INTEGER, crc32 INTEGER) WITHOUT ROWID"
        )
        rows = self._database.execute("SELECT path, data, version, created, crc32 FROM nodes")
        for path, data, version, created, crc in sorted(rows):
            if crc != _checksum(path, data, version, created):
                raise ValueError(f"it is damaged: node {path} is not what was stored")
            self.restore(path, data, version, created)

    def keep(self, paths: Iterable[str]) -> None:
        """Store what became of these nodes. Raises sqlite3.Error; then nothing is stored."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for path in sorted(set(paths)):
                facts = self.facts(path)
                if facts is None:
                    self._database.execute("DELETE FROM nodes WHERE path = ?", (path,))
                else:
                    row = (path, *facts, _checksum(path, *facts))
                    self._database.execute(
                        "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", row
                    )
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _checksum(path: str, data: bytes, version: int, created: int) -> int:
    # Damaged columns may have another type: they fail here or give another checksum.
    return zlib.crc32(bytes(data), zlib.crc32(f"{path}\0{version}\0{created}\0".encode()))
