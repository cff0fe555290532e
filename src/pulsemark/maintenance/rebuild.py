"""Rebuilding a damaged catalog, on demand: `rebuild_catalog`.

A new catalog gets what can still be read of the properties in the old one (namespaces and their
policies, partitioned topics, schemas), also the notes that topics were being deleted: their
segments are not restored. Only then it takes the old one's place, which is renamed, never removed:
a folder without policies would remove what they keep. Opening the folder fills the new catalog from
the segments (`ledger.local.recovery` says how, and what is lost); at last topics without entries
are copied.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from ..ledger.errors import CorruptCatalogError, FolderLockedError
from ..ledger.local.catalog import Catalog, checked_properties, property_name
from ..ledger.local.folder_reader import FolderReader
from ..ledger.local.io.files import Files
from ..ledger.local.io.folder import (
    CATALOG_NAME,
    NEW_CATALOG_NAME,
    Reserve,
    check_marker,
    lock_folder,
)
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


def rebuild_catalog(folder: Path) -> RebuiltCatalog:
    """Replace the catalog of a folder by a new one, made from the segments. Blocks.

    The folder must not be in use. If this fails, the folder has its old catalog; if the process
    ends, it has the old one, or the new one, which the next opening fills from the segments.

    Raises FolderLockedError, ForeignFolderError, CatalogError, OSError; UnsupportedVersionError
    where a newer version wrote the catalog or a segment: then nothing has changed.
    """
    files = Files()
    check_marker(files, folder)
    with lock_folder(files, folder):
        _check_versions(files, folder)
        made = partial(_make_new, files, folder)
        kept_properties, all_kept = Reserve(files, folder).with_space_for(made)
        moved_to = _replace(files, folder)
    try:
        return _filled(files, folder, moved_to, kept_properties, all_kept)
    except BaseException:
        _put_back(files, folder, moved_to)
        raise


def _filled(
    files: Files, folder: Path, moved_to: Path | None, kept_properties: int, all_kept: bool
) -> RebuiltCatalog:
    """Fill the new catalog from the segments, and with the old one's topics."""
    with LocalStore.open(folder, files=files) as store:
        catalog = store.catalog
        found = catalog.topics()
        all_topics = _take_topics(moved_to, catalog)
        return RebuiltCatalog(
            folder,
            moved_to,
            sum("://" in name for name in found),
            sum(len(catalog.segments(topic_id)) for topic_id in found.values()),
            len(catalog.topics()) - len(found),
            kept_properties,
            all_kept and all_topics,
        )


def _check_versions(files: Files, folder: Path) -> None:
    """Raise UnsupportedVersionError for data that would be lost, or that prevents opening."""
    with suppress(CorruptCatalogError):  # the reason for rebuilding it
        read_catalog(folder / CATALOG_NAME)
    with FolderReader(folder, files=files) as reader:
        reader.headers()
    read_journal(files, folder)


def _make_new(files: Files, folder: Path) -> tuple[int, bool]:
    """Make the new catalog beside the old. Return its number of properties, and whether all."""
    new = folder / NEW_CATALOG_NAME
    _remove(files, new)
    try:
        with closing(Catalog(new)) as catalog:
            properties, all_kept = _readable_properties(folder / CATALOG_NAME)
            catalog.write(properties)
            kept = sum(kind != DELETING_KIND for kind, _, _ in properties)
            return kept, all_kept
    except BaseException:
        _remove(files, new)
        raise


def _readable_properties(old: Path) -> tuple[list[tuple[str, str, bytes]], bool]:
    """The intact properties of the old catalog, and whether these are all."""
    if not old.exists():
        return [], False
    found: list[tuple[str, str, bytes]] = []
    all_kept = True
    try:
        with closing(connect_read_only(old)) as db:
            there = {topic_id for (topic_id,) in db.execute("SELECT id FROM topic")}
            for kind, key, value, is_whole in checked_properties(db):
                if not is_whole:
                    all_kept = False
                    _log.error("%s: %s is damaged, and left out", old, property_name(kind, key))
                elif not _is_wrong_deletion(kind, key, there):
                    found.append((kind.decode(), key.decode(), value))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        _log.warning(
            "%s: a part of the old catalog could not be read; its policies, and notes that topics "
            "were being deleted, are lost: %s",
            old,
            error,
        )
        return found, False
    return found, all_kept


def _is_wrong_deletion(kind: bytes, key: bytes, there: set[int]) -> bool:
    """Whether a note marks a topic as being deleted that the catalog still lists."""
    return kind == DELETING_KIND.encode() and (not key.isdigit() or int(key) in there)


def _replace(files: Files, folder: Path) -> Path | None:
    """Put the new catalog in the old one's place; returns where the old one is now."""
    catalog, new = folder / CATALOG_NAME, folder / NEW_CATALOG_NAME
    names = {path.name for path in folder.iterdir()}
    target = None
    if CATALOG_NAME in names:
        number = next(n for n in count(1) if f"{CATALOG_NAME}.old-{n}" not in names)
        target = folder / f"{CATALOG_NAME}.old-{number}"
        for suffix in _SQLITE_SUFFIXES:
            if catalog.name + suffix in names:
                _give_second_name(
                    files, _with_suffix(catalog, suffix), _with_suffix(target, suffix)
                )
        files.sync_folder(folder)
    # SQLite would take an old WAL for the new file's.
    for suffix in _SQLITE_SUFFIXES[1:]:
        if catalog.name + suffix in names:
            files.unlink(_with_suffix(catalog, suffix))
    files.rename(new, catalog)
    files.sync_folder(folder)
    return target


def _give_second_name(files: Files, path: Path, name: Path) -> None:
    """Link or copy a file, so that the folder always has a catalog."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copy(path, name)
        with files.opened(name, os.O_RDWR) as copied:
            files.fsync(copied)


def _put_back(files: Files, folder: Path, old: Path | None) -> None:
    """Undo `_replace`, as far as that is possible: the new catalog lacks topics."""
    if old is None:
        return
    with suppress(FolderLockedError, OSError), lock_folder(files, folder):
        _remove(files, folder / CATALOG_NAME)
        # The WAL first: SQLite would open the database without it, and so lose what is in it.
        for suffix in reversed(_SQLITE_SUFFIXES):
            if _with_suffix(old, suffix).exists():
                target = _with_suffix(folder / CATALOG_NAME, suffix)
                files.rename(_with_suffix(old, suffix), target)
        files.sync_folder(folder)


def _remove(files: Files, database: Path) -> None:
    for suffix in reversed(_SQLITE_SUFFIXES):
        if _with_suffix(database, suffix).exists():
            files.unlink(_with_suffix(database, suffix))


def _with_suffix(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)


def _take_topics(old: Path | None, catalog: Catalog) -> bool:
    """Copy the topics without entries; returns whether all could be read."""
    if old is None:
        return False
    known = catalog.topics()
    try:
        with closing(connect_read_only(old)) as db:
            for topic_id, name in db.execute("SELECT id, name FROM topic"):
                if name not in known and topic_id not in known.values():
                    catalog.create_topic(name, topic_id)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        _log.warning("%s: topics without entries could not be read, and are lost: %s", old, error)
        return False
    return True
