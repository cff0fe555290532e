"""The catalog: data that seldom changes, in SQLite.

It has the topics with their ids, the list of each topic's segments, the segments waiting to be
removed, and a small key-value part for the broker (namespaces, partitioned topics, schemas). Every
change is one transaction, durable when the call returns (WAL, synchronous=FULL). Calls block, so
the broker makes them outside its loop. If SQLite fails, CatalogError is raised and nothing has
changed, also after the next opening. If the disk leaves that in doubt, ``on_doubt`` is called, and
the catalog takes no more changes (`sqlite_transactions`).

Each segment names its own topic; the lists here only save reading every header at start. New
segments that are not listed yet are found in the journal. A catalog that is lost, or older than the
folder, is filled again from the segments (`recovery`).

**Checksums** (docs/formats.md, "Catalog") show that the content has changed: SQLite notices a
damaged page only if its structure is wrong.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...metadata import crc32c
from ...sqlite_transactions import DoubtfulCommitError, transaction
from ..errors import CatalogError, CatalogFullError, CorruptCatalogError, UnsupportedVersionError
from ..store import DELETING_KIND, MetadataStore
from .io.files import Files, shared_with
from .io.folder import SegmentId

CATALOG_VERSION = 1

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE topic (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE segment (
    topic_id INTEGER NOT NULL, ledger_id INTEGER NOT NULL, segment_no INTEGER NOT NULL,
    PRIMARY KEY (topic_id, ledger_id, segment_no)) WITHOUT ROWID;
CREATE TABLE removed (
    ledger_id INTEGER NOT NULL, segment_no INTEGER NOT NULL,
    PRIMARY KEY (ledger_id, segment_no)) WITHOUT ROWID;
CREATE TABLE property (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""

_NO_SHARED_MEMORY = (
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
)
"""SQLite's message if the disk has no room for the shared-memory file next to its WAL."""


class Catalog(MetadataStore):
    """The catalog's one connection; threads use it one after another."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """Open or create it. Raises CorruptCatalogError, UnsupportedVersionError, CatalogError."""
        self._path = path
        self._lock = threading.RLock()
        self._doubt: DoubtfulCommitError | None = None
        self.on_doubt: Callable[[CatalogError], None] = lambda _: None
        """Called when a change failed that the next opening may find made."""
        # SQLite would let everybody read a new file; what it makes beside it gets the same mode.
        with suppress(OSError):  # it is there, or SQLite says why it cannot be made
            group_bits = shared_with(path.parent.stat().st_mode) & 0o040
            path.touch(0o600 | group_bits, exist_ok=False)
        try:
            self.db = (files or Files()).connect(path)
        except sqlite3.Error as error:
            raise catalog_error(path, error) from error
        try:
            self._prepare()
        except BaseException:
            self.db.close()
            raise

    def _prepare(self) -> None:
        try:
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=FULL")
            version = self.db.execute("PRAGMA user_version").fetchone()[0]
            if version > CATALOG_VERSION:
                what = "catalog version"
                raise UnsupportedVersionError(self._path, what, version, CATALOG_VERSION)
            problem = catalog_damage(self.db, version)
            is_current = version > 0 and (problem is not None or not lacks_checksums(self.db))
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._error(error) from error
        if problem is not None:
            raise CorruptCatalogError(self._path, problem)
        if version == 0:
            self._create()
        if not is_current:
            with self._transaction() as db:
                add_checksums(db)

    def _create(self) -> None:
        with self._transaction() as db:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={CATALOG_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._doubt is not None:
                raise self._error(self._doubt)
            try:
                with transaction(self.db):
                    yield self.db
            except (sqlite3.Error, UnicodeDecodeError) as error:
                failure = self._error(error)
                if isinstance(error, DoubtfulCommitError):
                    self._doubt = error
                    self.on_doubt(failure)
                raise failure from error

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._lock:
            try:
                return self.db.execute(query, values).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._error(error) from error

    def _error(self, error: Exception) -> CatalogError:
        return catalog_error(self._path, error)

    def close(self) -> None:
        """Close the connection; SQLite writes its WAL back into the file."""
        with self._lock:
            self.db.close()

    # Ids

    def reserve_ledger_ids(self, count: int, at_least: int = 0) -> int:
        """Reserve ``count`` new ledger ids, all >= ``at_least``; returns the first."""
        with self._transaction() as db:
            return _reserve(db, count, at_least)

    def next_ledger_id(self) -> int:
        """Every ledger id that was ever reserved is below this."""
        rows = self._rows("SELECT value FROM meta WHERE key='next_ledger_id'")
        return int(rows[0][0]) if rows else 0

    def highest_topic_id(self) -> int:
        """The highest id that any topic has or had; 0: there never was a topic."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name='topic'")
        return int(rows[0][0]) if rows else 0

    def skip_topic_ids(self, highest: int) -> None:
        """Never give topic ids up to ``highest`` to new topics."""
        with self._transaction() as db:
            row = db.execute("SELECT max(id) FROM topic").fetchone()
            if highest > (row[0] or 0):
                # SQLite itself keeps the highest id that was ever used.
                db.execute("INSERT INTO topic(id, name) VALUES (?, '')", (highest,))
                db.execute("DELETE FROM topic WHERE id=?", (highest,))

    # Topics and their segments

    def topics(self) -> dict[str, int]:
        """Every topic's id by name."""
        return dict(self._rows("SELECT name, id FROM topic"))

    def create_topic(self, name: str, topic_id: int | None = None) -> int:
        """Add a topic and return its id; if it exists, its existing id."""
        with self._transaction() as db:
            row = db.execute("SELECT id FROM topic WHERE name=?", (name,)).fetchone()
            if row:
                return int(row[0])
            return int(
                db.execute("INSERT INTO topic(id, name) VALUES (?, ?)",
                           (topic_id, name)).lastrowid or 0
            )  # fmt: skip

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        """As `create_topic` for many names, in one transaction; their ids by name."""
        with self._transaction() as db:
            # An ignored row would use an id up.
            new = [
                (name,)
                for name in dict.fromkeys(names)
                if not db.execute("SELECT 1 FROM topic WHERE name=?", (name,)).fetchone()
            ]
            db.executemany("INSERT INTO topic(name) VALUES (?)", new)
            find = "SELECT id FROM topic WHERE name=?"
            return {name: int(db.execute(find, (name,)).fetchone()[0]) for name in names}

    def delete_topic(
        self,
        topic_id: int,
        *,
        unlisted: Iterable[SegmentId] = (),
        note: tuple[str, str] | None = None,
    ) -> list[SegmentId]:
        """Remove a topic; returns its segments, which are listed for removal.

        ``unlisted`` are its segments that may not be listed yet. ``note`` is the (kind, key) of
        a property that is stored with it.
        """
        with self._transaction() as db:
            if note is not None:
                _put(db, *note, b"")
            listed = _delete_topic(db, topic_id)
            others = sorted(set(unlisted) - set(listed))
            db.executemany("INSERT OR IGNORE INTO removed VALUES (?, ?)", others)
            return listed + others

    def segments(self, topic_id: int) -> list[SegmentId]:
        """A topic's segments, oldest first."""
        return self._rows(
            "SELECT ledger_id, segment_no FROM segment WHERE topic_id=? ORDER BY 1, 2", topic_id
        )

    def deleted_topics(self) -> set[int]:
        """Ids of deleted topics of which files or other data may still exist."""
        noted = {int(key) for key, _ in self.items(DELETING_KIND) if key.isdecimal()}
        return noted - set(self.topics().values())

    def listed_segments(self) -> set[SegmentId]:
        """The segments of all topics."""
        return set(self._rows("SELECT ledger_id, segment_no FROM segment"))

    def add_segments(self, segments: Iterable[tuple[int, int, int]]) -> None:
        """List segments: (topic id, ledger id, number) each; known and removed ones are ignored."""
        with self._transaction() as db:
            _add_segments(db, segments)

    def adopt(
        self,
        topics: Mapping[str, int],
        segments: Iterable[tuple[int, int, int]],
        removed: Iterable[SegmentId],
        next_ledger_id: int,
    ) -> None:
        """Add what the folder has, in one transaction: ids by topic name, and segments.

        Of a name with an older id the older topic was deleted: its segments are listed for removal,
        as those in ``removed``. Ledger ids below ``next_ledger_id`` are never given again.
        """
        with self._transaction() as db:
            for name, topic_id in topics.items():
                row = db.execute("SELECT id FROM topic WHERE name=?", (name,)).fetchone()
                if row and row[0] < topic_id:
                    _delete_topic(db, row[0])
                db.execute("INSERT OR IGNORE INTO topic(id, name) VALUES (?, ?)", (topic_id, name))
            db.executemany("INSERT OR IGNORE INTO removed VALUES (?, ?)", removed)
            _add_segments(db, segments)
            _reserve(db, 0, next_ledger_id)

    def remove_segments(self, topic_id: int, segments: Iterable[SegmentId]) -> None:
        """Take segments off a topic's list; their files are to be removed."""
        with self._transaction() as db:
            for ledger_id, segment_no in segments:
                db.execute("DELETE FROM segment WHERE topic_id=? AND ledger_id=? AND segment_no=?",
                           (topic_id, ledger_id, segment_no))  # fmt: skip
                db.execute("INSERT OR IGNORE INTO removed VALUES (?, ?)", (ledger_id, segment_no))

    def removed(self) -> set[SegmentId]:
        """Segments whose files are to be removed, and must not come back from the journal."""
        return set(self._rows("SELECT ledger_id, segment_no FROM removed"))

    def forget_removed(self, segments: Iterable[SegmentId]) -> None:
        """Drop these from the removal list: file and journal blocks of each are gone."""
        with self._transaction() as db:
            db.executemany("DELETE FROM removed WHERE ledger_id=? AND segment_no=?", segments)

    # Properties

    def write(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Store several values, or remove them (None), in one transaction: (kind, key, value)."""
        with self._transaction() as db:
            for kind, key, value in changes:
                if value is None:
                    db.execute("DELETE FROM property WHERE kind=? AND key=?", (kind, key))
                else:
                    _put(db, kind, key, value)

    def get(self, kind: str, key: str) -> bytes | None:
        """The value stored under (kind, key), or None."""
        rows = self._rows("SELECT value FROM property WHERE kind=? AND key=?", kind, key)
        return bytes(rows[0][0]) if rows else None

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        """All (key, value) pairs of a kind, ordered by key."""
        rows = self._rows("SELECT key, value FROM property WHERE kind=? ORDER BY key", kind)
        return [(key, bytes(value)) for key, value in rows]


def _put(db: sqlite3.Connection, kind: str, key: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO property VALUES (?, ?, ?)", (kind, key, value))
    write_checksum(db, kind, key, value)


def _reserve(db: sqlite3.Connection, count: int, at_least: int) -> int:
    row = db.execute("SELECT value FROM meta WHERE key='next_ledger_id'").fetchone()
    first = max(row[0] if row else 0, at_least)
    db.execute("INSERT OR REPLACE INTO meta VALUES ('next_ledger_id', ?)", (first + count,))
    return first


def _delete_topic(db: sqlite3.Connection, topic_id: int) -> list[SegmentId]:
    query = "SELECT ledger_id, segment_no FROM segment WHERE topic_id=?"
    rows = db.execute(query, (topic_id,)).fetchall()
    db.executemany("INSERT OR IGNORE INTO removed VALUES (?, ?)", rows)
    db.execute("DELETE FROM segment WHERE topic_id=?", (topic_id,))
    db.execute("DELETE FROM topic WHERE id=?", (topic_id,))
    return rows


def _add_segments(db: sqlite3.Connection, segments: Iterable[tuple[int, int, int]]) -> None:
    # Without numbers: some Pythons 3.12 call ?1 a named parameter, and warn.
    db.executemany(
        "INSERT OR IGNORE INTO segment SELECT ?, ?, ? WHERE NOT EXISTS"
        " (SELECT 1 FROM removed WHERE ledger_id=? AND segment_no=?)",
        ((*segment, *segment[1:]) for segment in segments),
    )


def catalog_damage(db: sqlite3.Connection, version: int) -> str | None:
    """The damage to a catalog's pages or content, or None. Raises sqlite3.Error."""
    # Not quick_check: it does not compare a table with its indexes, and so misses changed rows.
    problem = " ".join(db.execute("PRAGMA integrity_check(1)").fetchone()[0].split())
    if problem != "ok":
        return problem
    if version < 1:
        has_tables = db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0]
        return f"its version is {version}, but it has tables" if has_tables else None
    both = db.execute(
        "SELECT ledger_id, segment_no FROM segment JOIN removed USING (ledger_id, segment_no)"
    ).fetchone()
    if both is not None:  # to remove the file could be to remove entries
        return f"segment {both[0]}:{both[1]} is listed, and listed as removed"
    return damage_of_properties(db)


def catalog_error(path: Path, error: Exception) -> CatalogError:
    """The CatalogError for an SQLite error: the file is damaged, or cannot be used now."""
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptCatalogError(path, str(error))
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return CorruptCatalogError(path, f"a text in it is not UTF-8: {error}")
    if code == sqlite3.SQLITE_FULL or extended in _NO_SHARED_MEMORY:
        return CatalogFullError(path, str(error))
    return CatalogError(path, str(error))


INDEXES = {
    "segment_copy": "segment (ledger_id, segment_no, topic_id)",
    "removed_copy": "removed (segment_no, ledger_id)",
    "meta_copy": "meta (value, key)",
}
"""By name of an index: the table and columns it has a copy of."""

TABLES = (
    """CREATE TABLE IF NOT EXISTS checksum (
    kind TEXT NOT NULL, key TEXT NOT NULL, crc32c INTEGER NOT NULL,
    PRIMARY KEY (kind, key)) WITHOUT ROWID""",
    """CREATE TRIGGER IF NOT EXISTS property_written AFTER INSERT ON property BEGIN
    DELETE FROM checksum WHERE kind = NEW.kind AND key = NEW.key; END""",
    """CREATE TRIGGER IF NOT EXISTS property_removed AFTER DELETE ON property BEGIN
    DELETE FROM checksum WHERE kind = OLD.kind AND key = OLD.key; END""",
)

# As bytes: a damaged text may not be UTF-8.
_ALL = """SELECT CAST(p.kind AS BLOB), CAST(p.key AS BLOB), CAST(p.value AS BLOB), c.crc32c,
    typeof(p.kind) = 'text' AND typeof(p.key) = 'text' AND typeof(p.value) = 'blob'
    FROM property p LEFT JOIN checksum c ON c.kind = p.kind AND c.key = p.key"""
_ORPHANS = """SELECT CAST(kind AS BLOB), CAST(key AS BLOB) FROM
    (SELECT kind, key FROM checksum EXCEPT SELECT kind, key FROM property)"""


def add_checksums(db: sqlite3.Connection) -> None:
    """Make table and indexes, and add what is missing, inside the caller's transaction."""
    for statement in TABLES:
        db.execute(statement)
    for name, content in INDEXES.items():
        db.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {content}")
    missing = db.execute("SELECT kind, key FROM property EXCEPT SELECT kind, key FROM checksum")
    for kind, key in missing.fetchall():
        query = "SELECT value FROM property WHERE kind=? AND key=?"
        (value,) = db.execute(query, (kind, key)).fetchone()
        write_checksum(db, kind, key, bytes(value))


def lacks_checksums(db: sqlite3.Connection) -> bool:
    """Whether the last writer knew no checksums: table, indexes or rows are missing."""
    indexes = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='index'")}
    if not _has_table(db) or not indexes.issuperset(INDEXES):
        return True
    query = "SELECT EXISTS (SELECT kind, key FROM property EXCEPT SELECT kind, key FROM checksum)"
    return bool(db.execute(query).fetchone()[0])


def write_checksum(db: sqlite3.Connection, kind: str, key: str, value: bytes) -> None:
    """Store the checksum of a property that was just written."""
    crc = _checksum(kind.encode(), key.encode(), value)
    db.execute("INSERT OR REPLACE INTO checksum VALUES (?, ?, ?)", (kind, key, crc))


def damage_of_properties(db: sqlite3.Connection) -> str | None:
    """Describe the first damaged property; None: all are as they were written."""
    for kind, key, _, is_whole in checked_properties(db):
        if not is_whole:
            return f"{property_name(kind, key)} is not what was stored"
    if _has_table(db):
        for kind, key in db.execute(_ORPHANS):
            return f"{property_name(kind, key)} is gone"
    return None


def checked_properties(db: sqlite3.Connection) -> Iterator[tuple[bytes, bytes, bytes, bool]]:
    """Each property's kind, key and value, and whether they are as they were written.

    One without a checksum was written by an earlier version, unless a checksum has no property:
    then its kind or key may have been changed.
    """
    if not _has_table(db):
        query = "SELECT CAST(kind AS BLOB), CAST(key AS BLOB), CAST(value AS BLOB) FROM property"
        for kind, key, value in db.execute(query):
            yield kind, key, value, is_text(kind) and is_text(key)
        return
    has_orphans = db.execute(_ORPHANS).fetchone() is not None
    for kind, key, value, crc, has_types in db.execute(_ALL):
        if crc is None:
            is_whole = not has_orphans and is_text(kind) and is_text(key)
        else:
            is_whole = crc == _checksum(kind, key, value)
        yield kind, key, value, is_whole and bool(has_types)


def is_text(value: bytes) -> bool:
    """Whether these bytes are UTF-8."""
    with suppress(UnicodeDecodeError):
        value.decode()
        return True
    return False


def _has_table(db: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type='table' AND name='checksum'"
    return db.execute(query).fetchone() is not None


def _checksum(kind: bytes, key: bytes, value: bytes) -> int:
    return crc32c(b"\0".join((kind, key, value)))


def property_name(kind: bytes, key: bytes) -> str:
    """The name of a property in error texts."""
    texts = [repr(each.decode(errors="backslashreplace")) for each in (kind, key)]
    return f"property {texts[0]} of {texts[1]}"
