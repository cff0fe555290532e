"""The catalog made again on demand, where it is damaged: `rebuild_catalog`.

The damaged one is moved aside, never removed; opening the folder fills a new one from the
segments (`completion` says how, and what is lost). What can still be read of the old one is taken
over: topics without entries, and properties (namespaces and their policies, partitioned topics,
schemas). So is the note that a topic was being deleted: its segments do not come back.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ..ledger.errors import CorruptCatalogError
from ..ledger.local.catalog.catalog import Catalog
from ..ledger.local.folder_reader import FolderReader
from ..ledger.local.io.files import Files, OsFiles
from ..ledger.local.io.folder import CATALOG_NAME, check_marker, lock_folder
from ..ledger.local.store import LocalStore
from ..ledger.property_kinds import DELETING_KIND
from .verify_catalog import connect_read_only, read_catalog
from .verify_journal import read_journal

_log = logging.getLogger(__name__)
_SQLITE_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class RebuiltCatalog:
    """What came of `rebuild_catalog`."""

    folder: Path
    moved_to: Path | None
    """Where the old catalog is now; None: there was none."""
    topics: int
    """Found by their segments."""
    segments: int
    """Those of cursors and compacted views included."""
    kept_topics: int
    """Topics without entries that could still be read from the old catalog."""
    kept_properties: int
    """Namespaces, schemas and the like that could still be read from it."""
    all_kept: bool
    """Whether the old catalog's topics and properties could all be read."""


def rebuild_catalog(folder: Path, *, files: Files | None = None) -> RebuiltCatalog:
    """Move the catalog of a folder aside and make a new one from the segments. Blocks.

    The folder must not be in use. Whatever happens in between, the next opening of the folder
    goes on: it finds no catalog, and makes one.

    Raises FolderLockedError, ForeignFolderError, CatalogError, OSError; UnsupportedVersionError
    where a newer version wrote the catalog or a segment: nothing is changed then.
    """
    files = files or OsFiles()
    check_marker(files, folder)
    lock_fd = lock_folder(files, folder)
    try:
        _check_versions(files, folder)
        moved_to = _move_aside(files, folder)
        _keep_deletions(moved_to, folder)
    finally:
        files.close(lock_fd)

    with LocalStore.open(folder, files=files) as store:
        catalog = store.catalog
        found = catalog.topics()
        kept_properties, all_kept = _take_over(moved_to, catalog)
        return RebuiltCatalog(
            folder,
            moved_to,
            sum("://" in name for name in found),
            sum(len(catalog.segments(topic_id)) for topic_id in found.values()),
            len(catalog.topics()) - len(found),
            kept_properties,
            all_kept,
        )


def _check_versions(files: Files, folder: Path) -> None:
    """Raise UnsupportedVersionError for what would be lost, or keep the folder from opening."""
    with suppress(CorruptCatalogError):  # that is what it is rebuilt for
        read_catalog(folder / CATALOG_NAME)
    with FolderReader(folder, files=files) as reader:
        reader.headers()
    read_journal(files, folder)


def _move_aside(files: Files, folder: Path) -> Path | None:
    """Rename the catalog, with what SQLite keeps beside it, to a name that is free."""
    catalog = folder / CATALOG_NAME
    names = {path.name for path in folder.iterdir()}
    if CATALOG_NAME not in names:
        return None
    number = next(n for n in count(1) if f"{CATALOG_NAME}.old-{n}" not in names)
    target = folder / f"{CATALOG_NAME}.old-{number}"
    # The WAL first: without its database it is nothing, but the database would do without it.
    for suffix in reversed(_SQLITE_SUFFIXES):
        if catalog.name + suffix in names:
            catalog.with_name(catalog.name + suffix).rename(target.with_name(target.name + suffix))
    files.sync_folder(folder)
    return target


def _keep_deletions(old: Path | None, folder: Path) -> None:
    """Have a new catalog know which topics were deleted, so that their segments stay gone.

    Only of topics that the old one notes as being deleted, and does not list any more: a number
    that damage changed is most unlikely to be both.
    """
    if old is None:
        return
    try:
        with closing(connect_read_only(old)) as db:
            there = {topic_id for (topic_id,) in db.execute("SELECT id FROM topic")}
            noted = db.execute("SELECT key FROM property WHERE kind=?", (DELETING_KIND,)).fetchall()
    except sqlite3.Error as error:
        _log.warning("%s: topics that were just being deleted may be back: %s", old, error)
        return
    deleted = [key for (key,) in noted if key.isdecimal() and int(key) not in there]
    if deleted:
        with closing(Catalog(folder / CATALOG_NAME)) as catalog:
            catalog.write((DELETING_KIND, key, b"") for key in deleted)


def _take_over(old: Path | None, catalog: Catalog) -> tuple[int, bool]:
    """Take over topics and properties that can still be read: how many properties, and if all."""
    if old is None:
        return 0, False
    known = catalog.topics()
    properties = 0
    try:
        with closing(connect_read_only(old)) as db:
            for topic_id, name in db.execute("SELECT id, name FROM topic"):
                if name not in known and topic_id not in known.values():
                    catalog.create_topic(name, topic_id)
            query = "SELECT kind, key, value FROM property WHERE kind != ?"
            for kind, key, value in db.execute(query, (DELETING_KIND,)):
                catalog.put(kind, key, value)
                properties += 1
    except sqlite3.Error as error:
        _log.warning("%s: %s", old, error)
        return properties, False
    return properties, True
