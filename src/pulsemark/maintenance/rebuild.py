"""The catalog filled again from the segments, where it is lost, damaged or older than the folder.

Segments name their topic, with its id, so topics and their lists of segments come back as they
were; cursors are a ledger and come back by themselves. That a catalog knows less than the folder
shows in the ledger ids: it gives them out, so none in the folder can be above those it has given.
Then opening a store completes it, once the journal is written out and before it is freed.

What only the catalog held is lost with it: namespaces and their policies, partitioned topics,
schemas, and topics that never had an entry (their cursors have no name to belong to). A damaged
catalog is never replaced unasked: `rebuild_catalog` moves it aside, and takes over from it what
can still be read.

Three things are rather too careful than not. New ledger ids begin a million above the highest
one found, since ids are also given to topics that are opened and never written to. New topic ids
begin above all that cursors name. And of two topics of one name the newer one counts: the other
was deleted, and its files stay where they are (`verify` names them).
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from google.protobuf.message import DecodeError

from ..compaction.view_format import VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX
from ..ledger.cursors.cursor_store import CURSOR_TOPIC
from ..ledger.errors import CorruptCatalogError, CorruptEntryError, TopicNotFoundError
from ..ledger.local.catalog.catalog import Catalog
from ..ledger.local.folder_reader import FolderReader
from ..ledger.local.io.files import Files, OsFiles
from ..ledger.local.io.folder import CATALOG_NAME, check_marker, list_segments, lock_folder
from ..ledger.position import EARLIEST, Position
from ..proto.cursor_pb2 import CursorRecord
from .verify_catalog import connect_read_only, read_catalog
from .verify_journal import read_journal

_log = logging.getLogger(__name__)
LEDGER_IDS_SKIPPED = 1 << 20
"""Between the highest ledger id found and the first new one."""
_SQLITE_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Completed:
    """What a catalog was filled with."""

    topics: int
    segments: int
    next_ledger_id: int


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


def is_behind(files: Files, folder: Path, catalog: Catalog) -> bool:
    """Whether the folder has ledgers that the catalog never gave an id for."""
    present = list_segments(files, folder)
    return bool(present) and present[-1][0] >= catalog.next_ledger_id()


def complete_catalog(files: Files, folder: Path, catalog: Catalog) -> Completed:
    """Take the folder's topics and segments into a catalog that does not know them.

    Raises CatalogError, UnsupportedVersionError, OSError; nothing is changed then.
    """
    removed = catalog.removed()
    with FolderReader(folder, files=files) as reader:
        headers = [h for h in reader.headers() if (h.ledger_id, h.segment_no) not in removed]
        highest_topic_id = _highest_topic_id(reader)
    topics: dict[str, int] = {}
    for header in headers:
        topics[header.topic] = max(header.topic_id, topics.get(header.topic, 0))
    segments = [
        (h.topic_id, h.ledger_id, h.segment_no)
        for h in headers
        if topics[h.topic] == h.topic_id and topics[h.topic] >= catalog.topics().get(h.topic, 0)
    ]
    highest = max((ledger_id for ledger_id, _ in list_segments(files, folder)), default=-1)
    next_ledger_id = highest + 1 + LEDGER_IDS_SKIPPED
    catalog.skip_topic_ids(highest_topic_id)
    _let_views_count(catalog, topics)
    # Last, and in one transaction: behind it the catalog no longer looks older than the folder.
    catalog.adopt(topics, segments, next_ledger_id)
    _log.error(
        "%s: the catalog was lost, or older than the folder; %d topics with %d segments were "
        "found again. Namespaces, policies, schemas, partitioned topics and topics without "
        "entries that only the catalog knew are lost",
        folder,
        len(topics),
        len(segments),
    )
    return Completed(len(topics), len(segments), next_ledger_id)


def _highest_topic_id(reader: FolderReader) -> int:
    """The highest id of a topic that has, or had, a cursor."""
    highest, position = 0, EARLIEST
    try:
        log = reader.log(CURSOR_TOPIC)
    except TopicNotFoundError:
        return 0
    while True:
        try:
            entries = log.read(position, max_entries=1000)
        except CorruptEntryError as error:
            position = error.next_position
            continue
        if not entries:
            return highest
        for entry in entries:
            with suppress(DecodeError):
                record = CursorRecord.FromString(bytes(entry.body))
                highest = max(highest, record.topic_id)
        last = entries[-1].position
        position = Position(last.ledger_id, last.entry_id + 1)


def _let_views_count(catalog: Catalog, topics: dict[str, int]) -> None:
    """Of a compacted topic the catalog knew which view counts; now any that was finished does."""
    for name in topics:
        if name.startswith(VIEW_TOPIC_PREFIX):
            topic_id = name.removeprefix(VIEW_TOPIC_PREFIX).partition("/")[0]
            if catalog.get(VIEW_PROPERTY_KIND, topic_id) is None:
                catalog.put(VIEW_PROPERTY_KIND, topic_id, b"")


# On demand


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
    finally:
        files.close(lock_fd)
    from ..ledger.local.store import LocalStore

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
            for kind, key, value in db.execute("SELECT kind, key, value FROM property"):
                catalog.put(kind, key, value)
                properties += 1
    except sqlite3.Error as error:
        _log.warning("%s: %s", old, error)
        return properties, False
    return properties, True
