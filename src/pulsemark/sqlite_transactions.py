"""Transactions of SQLite that are durable when they end, or were never made.

A COMMIT writes the transaction and the mark of its commit into the WAL, and syncs it. If the sync
fails, SQLite forgets the transaction in memory, but the file still has all of it: the next opening
would apply it. So after such a failure another commit, which changes nothing, takes its place in
the file. If that fails, too, nobody can say what the next opening finds, and the caller must not go
on as if nothing had been changed (`DoubtfulCommitError`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_UNMARKED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
"""The write failed: the mark is written last, so it is not in the file."""


class DoubtfulCommitError(sqlite3.OperationalError):
    """A commit failed, and the next opening of the database may find it made all the same."""


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The block is one transaction of a database in WAL mode with synchronous=FULL.

    Its connection must not begin transactions by itself (isolation_level None). If the block or the
    commit raises, nothing has changed, now and after the next opening; except with
    DoubtfulCommitError: then nothing has changed now. Raises sqlite3.Error.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        _roll_back(db)
        raise
    try:
        db.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(db)
        if error.sqlite_errorcode not in _UNMARKED:
            _take_its_place(db, error)
        raise


def _take_its_place(db: sqlite3.Connection, failed: sqlite3.Error) -> None:
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA user_version={version}")  # writes a page, though it changes nothing
        db.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(db)
        raise DoubtfulCommitError(
            f"{failed}; it could not be taken back ({error}), so the next opening may find it made"
        ) from failed


def _roll_back(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # nothing that was not committed counts
        if db.in_transaction:
            db.execute("ROLLBACK")
