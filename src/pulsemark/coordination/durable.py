"""A tree that outlives its process: its persistent nodes are in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from .memory import MemoryTree


class DurableTree(MemoryTree):
    """The service for brokers of one machine. A change is on disk before anyone sees it."""

    def __init__(self, file: Path) -> None:
        """Open or create the file. Raises sqlite3.Error."""
        super().__init__()
        self._database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS nodes "
            "(path TEXT PRIMARY KEY, data BLOB, version INTEGER, created INTEGER) WITHOUT ROWID"
        )
        rows = self._database.execute("SELECT path, data, version, created FROM nodes")
        for path, data, version, created in sorted(rows):
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
                    self._database.execute(
                        "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", (path, *facts)
                    )
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()
