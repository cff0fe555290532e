"""What shows that the catalog's content has changed: SQLite has no checksums of its own.

SQLite notices a damaged page only if its structure is wrong. A flipped bit in a value would give
another value: another retention time, another administrator, a segment of another topic.

- Table ``checksum`` has the CRC32C of each property. Triggers remove it when a program that does
  not know the table writes a property, so that earlier versions can use the folder in between; the
  next opening adds what is missing.
- The short rows of the other tables stand a second time in an index of all their columns, which
  SQLite keeps, and compares with the table in ``PRAGMA integrity_check``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

from ....metadata import crc32c

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
    """Whether a program that knows no checksums, or not these, wrote the catalog last."""
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
    """What is wrong with the first damaged property; None if all are as they were written."""
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
    """What messages call a property."""
    texts = [repr(each.decode(errors="backslashreplace")) for each in (kind, key)]
    return f"property {texts[0]} of {texts[1]}"
