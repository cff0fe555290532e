"""Recovery, the first step of opening a folder: write the journal to the segments and free it.

docs/formats.md has the order of the steps, by which it may end at any point and begin again.

**The catalog.**
Fills the catalog again from the segments, if it is lost or older than the folder.

Segments name their topic, with its id, so topics and their lists of segments are restored as they
were; cursors are in a ledger and restored with it. A catalog that has less than the folder is found
by ledger ids: the catalog assigns them, so none in the folder may be above those it has assigned.
Then opening a store completes the catalog, after the journal is written out and before it is freed.

What only the catalog had is lost with it: namespaces and their policies, partitioned topics,
schemas, topics that never had an entry (their cursors have no name to belong to), and the deletion
of a topic whose files still exist. A damaged catalog is never replaced without being asked for:
`rebuild_catalog` renames it, and copies from it what can still be read.

Three choices are on the safe side. New ledger ids begin a million above the highest one found,
because ids are also assigned to topics that are opened and never written to. New topic ids begin
above all that cursors name. And of two topics of one name the newer one counts: the other was
deleted, and its files stay where they are (`verify` names them).
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from ..cursors.cursor_store import CURSOR_TOPIC, cursor_records
from ..errors import CorruptFileError, TopicNotFoundError
from ..store import VIEW_PROPERTY_KIND, VIEW_TOPIC_PREFIX
from .catalog import Catalog
from .commit.journal import GroupRef, ReplayReport, replay
from .folder_reader import FolderReader
from .io.files import Files, write_all
from .io.folder import (
    SegmentId,
    index_path,
    journal_folder,
    journal_path,
    list_journal_slots,
    list_segments,
)
from .segment.filer import Filer
from .segment.index_file import IndexFile, index_head, open_index
from .segment.salvage import read_named_header
from .segment.segment_format import SegmentHeader

_log = logging.getLogger(__name__)


def recover(filer: Filer, catalog: Catalog) -> int:
    """Recover a locked folder. Raises UnsupportedVersionError, CatalogError, OSError."""
    files, folder = filer.files, filer.folder
    started_s = time.monotonic()
    removed = catalog.removed()
    report, touched = _write_out(filer, removed)
    _drop_short_indexes(filer, touched)
    _write_second_headers(filer, touched)
    _sync(filer, touched)
    unlisted = _unlisted(files, folder, catalog, removed)
    if is_older_than_folder(files, folder, catalog) or _has_unknown_topics(unlisted, catalog):
        complete_catalog(files, folder, catalog)
    else:
        _list(filer, catalog, unlisted, touched)
    remove_journal(files, folder)
    removed |= catalog.removed()  # completing the catalog may have added some
    filer.remove_files(removed)
    catalog.forget_removed(removed)
    if report.blocks:
        _log.info(
            "%s: recovered after a stop that was not orderly: %d bytes of entries in %d "
            "blocks of the journal, for %d segments, in %.3f s",
            folder,
            report.size_bytes,
            report.blocks,
            len(touched),
            time.monotonic() - started_s,
        )
    return report.last_id


def remove_journal(files: Files, folder: Path) -> None:
    """Remove the journal's files: what they hold is synced elsewhere."""
    slots = list_journal_slots(files, folder)
    for slot in slots:
        files.unlink(journal_path(folder, slot))
    if slots:
        files.sync_folder(journal_folder(folder))


def _write_out(filer: Filer, removed: set[SegmentId]) -> tuple[ReplayReport, set[SegmentId]]:
    """Write the journal's blocks into their segments; returns those segments."""
    files, fds = filer.files, filer.fds
    touched: set[SegmentId] = set()

    def apply(group: GroupRef, content: memoryview) -> None:
        segment_id = (group.ledger_id, group.segment_no)
        if segment_id in removed:
            return
        touched.add(segment_id)
        fd = fds.acquire(filer.path(segment_id), create=True)
        try:
            write_all(files, fd, [content], group.offset)
        finally:
            fds.release(fd)

    report = replay(files, filer.folder, apply)
    if report.damaged_blocks:
        blocks = report.damaged_blocks
        _log.error("%s: the journal has %d damaged blocks; run `verify`", filer.folder, blocks)
    for segment_id in touched & report.segment_ends.keys():
        with fds.use(filer.path(segment_id)) as fd:
            if files.size(fd) > report.segment_ends[segment_id]:
                files.ftruncate(fd, report.segment_ends[segment_id])
    return report, touched


def _sync(filer: Filer, touched: set[SegmentId]) -> None:
    for segment_id in sorted(touched):
        with filer.fds.use(filer.path(segment_id)) as fd:
            filer.files.fdatasync(fd)
    if touched:
        filer.sync_folder()


def _drop_short_indexes(filer: Filer, touched: set[SegmentId]) -> None:
    """Remove sealed indexes that have too few rows: entries of a fenced ledger may be restored."""
    for segment_id in touched:
        path = filer.path(segment_id)
        with open_index(filer.files, path, segment_id) as index:
            trailer = index.trailer() if index is not None else None
        if trailer is not None:
            with filer.fds.use(path) as fd:
                is_short = filer.files.size(fd) > trailer.end_offset
            if is_short:
                filer.files.unlink(index_path(path))


def _write_second_headers(filer: Filer, touched: set[SegmentId]) -> None:
    """Make missing index files with second headers; opening the topic completes and syncs them."""
    for segment_id in sorted(touched):
        path = index_path(filer.path(segment_id))
        if filer.files.exists(path):
            continue
        try:
            header = read_named_header(filer.files, filer.folder, segment_id)
            if header.secret:
                with filer.files.opened(path, os.O_WRONLY | os.O_CREAT) as fd:
                    IndexFile(filer.files, fd, segment_id, index_head(header)).write_head()
        except (CorruptFileError, OSError) as error:
            _log.warning("%s: the second copy of its header is not written yet: %s", path, error)


def _unlisted(
    files: Files, folder: Path, catalog: Catalog, removed: set[SegmentId]
) -> dict[SegmentId, SegmentHeader]:
    """The headers of the segments that have a file and are not in the catalog."""
    known = catalog.listed_segments() | removed
    headers = {}
    for segment in list_segments(files, folder):
        if segment not in known:
            try:
                headers[segment] = read_named_header(files, folder, segment)
            except CorruptFileError as error:
                _log.error("%s", error)
    return headers


def _has_unknown_topics(unlisted: dict[SegmentId, SegmentHeader], catalog: Catalog) -> bool:
    """Whether there are topics that the catalog never had, so that it is an old copy."""
    names = {topic_id: name for name, topic_id in catalog.topics().items()}
    highest = catalog.highest_topic_id()
    return any(
        header.topic_id > highest or names.get(header.topic_id, header.topic) != header.topic
        for header in unlisted.values()
    )


def _list(
    filer: Filer,
    catalog: Catalog,
    unlisted: dict[SegmentId, SegmentHeader],
    touched: set[SegmentId],
) -> None:
    """List the segments in the journal and of a lost one; remove those of deleted topics."""
    topic_ids = set(catalog.topics().values())
    deleted = {each for each, header in unlisted.items() if header.topic_id not in topic_ids}
    filer.remove_files(sorted(deleted & touched))
    listed = sorted(unlisted.keys() - deleted)
    forgotten = [each for each in listed if each not in touched]
    if forgotten:
        _log.warning(
            "%s: the catalog did not list segments %s, because it is older than the folder or a "
            "journal was lost; it lists them now",
            filer.folder,
            forgotten,
        )
    if listed:
        catalog.add_segments((unlisted[each].topic_id, *each) for each in listed)


LEDGER_IDS_SKIPPED = 1 << 20
"""Ids left unused between the highest ledger id found and the first new one."""


def is_older_than_folder(files: Files, folder: Path, catalog: Catalog) -> bool:
    """Whether the folder has ledgers whose ids the catalog never assigned."""
    present = list_segments(files, folder)
    return bool(present) and present[-1][0] >= catalog.next_ledger_id()


def complete_catalog(files: Files, folder: Path, catalog: Catalog) -> None:
    """Add what the catalog lacks. Raises CatalogError, UnsupportedVersionError, OSError."""
    removed, deleted = catalog.removed(), catalog.deleted_topics()
    with FolderReader(folder, files=files) as reader:
        present = [h for h in reader.headers() if (h.ledger_id, h.segment_no) not in removed]
        highest_topic_id = _highest_topic_id(reader)
    headers = [h for h in present if h.topic_id not in deleted]
    removed = {(h.ledger_id, h.segment_no) for h in present if h.topic_id in deleted}
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
    catalog.skip_topic_ids(max(highest_topic_id, *deleted, 0))
    _choose_views(catalog, topics)
    # Last, and in one transaction: after it the catalog no longer looks older than the folder.
    catalog.adopt(topics, segments, removed, next_ledger_id)
    _log.error(
        "%s: the catalog was lost, or older than the folder; %d topics with %d segments were "
        "found again. Namespaces, policies, schemas, partitioned topics and topics without "
        "entries that only the catalog knew are lost",
        folder,
        len(topics),
        len(segments),
    )


def _highest_topic_id(reader: FolderReader) -> int:
    """The highest id of a topic that has, or had, a cursor."""
    try:
        log = reader.log(CURSOR_TOPIC)
    except TopicNotFoundError:
        return 0
    return max((record.topic_id for record in cursor_records(log)), default=0)


def _choose_views(catalog: Catalog, topics: dict[str, int]) -> None:
    """Mark compacted topics, so that the newest finished view of each counts again."""
    for name in topics:
        if name.startswith(VIEW_TOPIC_PREFIX):
            topic_id = name.removeprefix(VIEW_TOPIC_PREFIX).partition("/")[0]
            if catalog.get(VIEW_PROPERTY_KIND, topic_id) is None:
                catalog.put(VIEW_PROPERTY_KIND, topic_id, b"")
