"""Rebuilding a damaged catalog, on demand: `rebuild_catalog`.

The damaged catalog is renamed, never removed; opening the folder fills a new one from the segments
(`completion` says how, and what is lost). What can still be read of the old one is copied: topics
without entries, and properties (namespaces and their policies, partitioned topics, schemas). So is
the note that a topic was being deleted: its segments are not restored.
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
from ..ledger.store import DELETING_KIND
from .verify_catalog import connect_read_only, read_catalog
from .verify_journal import read_journal

_log = logging.getLogger(__name__)
_SQLITE_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class RebuiltCatalog:
    """The result of `rebuild_catalog`."""

    folder: Path
    moved_to: Path | None
    """The path of the old catalog now; None: there was none."""
    topics: int
    """How many topics were found by their segments."""
    segments: int
    """How many segments, including those of cursors and compacted views."""
    kept_topics: int
    """How many topics without entries were copied from the old catalog."""
    kept_properties: int
    """How many namespaces, schemas and the like were copied from it."""
    all_kept: bool
    """Whether the old catalog's topics and properties could all be read."""


def rebuild_catalog(folder: Path, *, files: Files | None = None) -> RebuiltCatalog:
    """Rename the catalog of a folder and make a new one from the segments. Blocks.

    The folder must not be in use. If this is interrupted, the next opening of the folder goes on:
    it finds no catalog, and makes one.

    Raises FolderLockedError, ForeignFolderError, CatalogError, OSError; UnsupportedVersionError
    where a newer version wrote the catalog or a segment: then nothing has changed.
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
    """Raise UnsupportedVersionError for data that would be lost, or that prevents opening."""
    with suppress(CorruptCatalogError):  # the reason for rebuilding it
        read_catalog(folder / CATALOG_NAME)
    with FolderReader(folder, files=files) as reader:
        reader.headers()
    read_journal(files, folder)


def _move_aside(files: Files, folder: Path) -> Path | None:
    """Rename the catalog, with SQLite's files next to it, to a free name."""
    catalog = folder / CATALOG_NAME
    names = {path.name for path in folder.iterdir()}
    if CATALOG_NAME not in names:
        return None
    number = next(n for n in count(1) if f"{CATALOG_NAME}.old-{n}" not in names)
    target = folder / f"{CATALOG_NAME}.old-{number}"
    # The WAL first: SQLite would open the database without it, and so lose what is in it.
    for suffix in reversed(_SQLITE_SUFFIXES):
        if catalog.name + suffix in names:
            catalog.with_name(catalog.name + suffix).rename(target.with_name(target.name + suffix))
    files.sync_folder(folder)
    return target


def _keep_deletions(old: Path | None, folder: Path) -> None:
    """Copy the notes of topics that were being deleted, so that their segments are not restored.

    Only for topics that the old catalog notes as being deleted and no longer lists: an id changed
    by damage is most unlikely to be both.
    """
    if old is None:
        return
    try:
        with closing(connect_read_only(old)) as db:
            there = {topic_id for (topic_id,) in db.execute("SELECT id FROM topic")}
            noted = db.execute("SELECT key FROM property WHERE kind=?", (DELETING_KIND,)).fetchall()
    except sqlite3.Error as error:
        _log.warning(
            "%s: the old catalog cannot be read, so topics that were being deleted may "
            "exist again: %s",
            old,
            error,
        )
        return
    deleted = [key for (key,) in noted if key.isdecimal() and int(key) not in there]
    if deleted:
        with closing(Catalog(folder / CATALOG_NAME)) as catalog:
            catalog.write((DELETING_KIND, key, b"") for key in deleted)


def _take_over(old: Path | None, catalog: Catalog) -> tuple[int, bool]:
    """Copy the readable topics and properties; returns how many properties, and if it got all."""
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
        _log.warning(
            "%s: a part of the old catalog could not be read, and its policies are lost: %s",
            old,
            error,
        )
        return properties, False
    return properties, True
