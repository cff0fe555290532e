"""Reading a catalog, and its notes of transactions, that its owner may have open."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ledger.errors import CorruptCatalogError, UnsupportedVersionError
from ..ledger.local.catalog import CATALOG_VERSION, catalog_damage, catalog_error
from ..ledger.local.io.folder import CATALOG_NAME, SegmentId
from ..ledger.store import TRANSACTIONS_NOTE_KIND
from ..ledger.transactions import Transactions

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader


@dataclass(slots=True)
class CatalogContent:
    """A catalog's topics and segments, at one moment."""

    topics: dict[str, int] = field(default_factory=dict)
    segments: dict[SegmentId, int] = field(default_factory=dict)
    """The topic id of every listed segment."""
    removed: set[SegmentId] = field(default_factory=set)
    next_ledger_id: int = 0


def read_catalog(path: Path) -> CatalogContent | None:
    """The content; None: no catalog. Raises CatalogError, UnsupportedVersionError."""
    if not path.exists():
        return None
    try:
        with closing(connect_read_only(path)) as db:
            db.execute("BEGIN")
            return _content(path, db)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise catalog_error(path, error) from error


def read_property(path: Path, kind: str, key: str) -> bytes | None:
    """A value; None if it has none, or there is no catalog. Raises CatalogError."""
    return read_properties(path, kind, [key]).get(key)


def read_properties(path: Path, kind: str, keys: Collection[str]) -> dict[str, bytes]:
    """Existing values of one kind, by key. Raises CatalogError."""
    if not path.exists():
        return {}
    query = "SELECT value FROM property WHERE kind=? AND key=?"
    found = {}
    try:
        with closing(connect_read_only(path)) as db:
            for key in keys:
                row = db.execute(query, (kind, key)).fetchone()
                if row is not None:
                    found[key] = bytes(row[0])
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise catalog_error(path, error) from error
    return found


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Raises sqlite3.Error."""
    wal = path.with_name(path.name + "-wal")
    # After a proper close there is no WAL. Then the file has everything, and no other is made.
    alone = not (wal.exists() and wal.stat().st_size)
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def _content(path: Path, db: sqlite3.Connection) -> CatalogContent:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > CATALOG_VERSION:
        raise UnsupportedVersionError(path, "catalog version", version, CATALOG_VERSION)
    problem = catalog_damage(db, version)
    if problem is not None:
        raise CorruptCatalogError(path, problem)
    if version == 0:
        return CatalogContent()
    row = db.execute("SELECT value FROM meta WHERE key='next_ledger_id'").fetchone()
    return CatalogContent(
        dict(db.execute("SELECT name, id FROM topic")),
        {
            (ledger_id, number): topic_id
            for topic_id, ledger_id, number in db.execute(
                "SELECT topic_id, ledger_id, segment_no FROM segment"
            )
        },
        {(ledger, number) for ledger, number in db.execute("SELECT * FROM removed")},
        row[0] if row else 0,
    )


def follow_transactions(place: Path | BookKeeperReader, logs: Iterable[Any]) -> None:
    """Let logs of a folder or store know their transactions, as far as the logs reach.

    A topic's note is stored before its first entry of a transaction, so it is read after the log.
    Topics without one cost no more than to look for it. Raises CatalogError, OSError.
    """
    new = {}
    for log in logs:
        if log.transactions is None:
            new[str(log.topic_id)] = log
        else:
            log.transactions.follow(log)
    if isinstance(place, Path):
        notes = read_properties(place / CATALOG_NAME, TRANSACTIONS_NOTE_KIND, new)
    else:
        notes = place.transactions_notes(new)
    for key, note in notes.items():
        transactions = Transactions()
        transactions.load(note, new[key])
        new[key].transactions = transactions
