"""What opening a data folder does first: the journal is written out, and then it may go.

The order is what makes it safe to end at any point and begin again: the journal's bytes into
their segments, synced; the catalog told of every segment; only then the journal removed, and
behind it the files of segments that were removed while the journal still spoke of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ...errors import CorruptFileError
from ..catalog.catalog import Catalog
from ..commit.journal_format import GroupRef
from ..commit.journal_replay import ReplayReport, replay
from ..io.fd_cache import FdCache
from ..io.files import Files, write_all
from ..io.folder import (
    SegmentId,
    index_path,
    journal_folder,
    journal_path,
    ledgers_folder,
    list_journal_slots,
    list_segments,
    segment_path,
)
from ..segment.head_cut import cut_path
from ..segment.index_format import pack_index_header
from ..segment.salvage import read_named_header
from ..segment.segment_format import SegmentHeader
from ..segment.time_index import sealed_end
from .completion import complete_catalog, is_behind

_log = logging.getLogger(__name__)


def recover(files: Files, fds: FdCache, folder: Path, catalog: Catalog) -> int:
    """Bring a folder in order that this process has locked; the highest journal id there was.

    Raises UnsupportedVersionError, CatalogError, OSError.
    """
    removed = catalog.removed()
    report, touched = _write_out(files, fds, folder, removed)
    _drop_short_indexes(files, fds, folder, touched)
    _write_second_headers(files, folder, touched)
    _sync(files, fds, folder, touched)
    unlisted = _unlisted(files, folder, catalog, removed)
    if is_behind(files, folder, catalog) or _has_strangers(unlisted, catalog):
        complete_catalog(files, folder, catalog)
    else:
        _list(files, fds, folder, catalog, unlisted, touched)
    remove_journal(files, folder)
    removed |= catalog.removed()  # completing it may have found more
    remove_segment_files(files, fds, folder, removed)
    catalog.forget_removed(removed)
    return report.last_id


def remove_journal(files: Files, folder: Path) -> None:
    """Remove the journal's files: what they hold is synced elsewhere."""
    slots = list_journal_slots(files, folder)
    for slot in slots:
        files.unlink(journal_path(folder, slot))
    if slots:
        files.sync_folder(journal_folder(folder))


def remove_segment_files(
    files: Files, fds: FdCache, folder: Path, segments: Iterable[SegmentId]
) -> None:
    """Remove the files of segments, durably; those that are gone already do no harm."""
    gone = False
    for segment in segments:
        path = segment_path(folder, *segment)
        for each in (path, index_path(path), cut_path(path)):
            fds.forget(each)
            try:
                files.unlink(each)
                gone = True
            except FileNotFoundError:
                pass
    if gone:
        files.sync_folder(ledgers_folder(folder))


def _write_out(
    files: Files, fds: FdCache, folder: Path, removed: set[SegmentId]
) -> tuple[ReplayReport, set[SegmentId]]:
    """Write the journal's blocks into their segments; which segments those are."""
    touched: set[SegmentId] = set()

    def apply(group: GroupRef, content: memoryview) -> None:
        segment = (group.ledger_id, group.segment_no)
        if segment in removed:
            return
        touched.add(segment)
        fd = fds.acquire(segment_path(folder, *segment), create=True)
        try:
            write_all(files, fd, [content], group.offset)
        finally:
            fds.release(fd)

    report = replay(files, folder, apply)
    if report.damaged_blocks:
        blocks = report.damaged_blocks
        _log.error("%s: %d damaged blocks in the journal; run a verification", folder, blocks)
    for segment in touched & report.segment_ends.keys():
        with fds.use(segment_path(folder, *segment)) as fd:
            if files.size(fd) > report.segment_ends[segment]:
                files.ftruncate(fd, report.segment_ends[segment])
    return report, touched


def _sync(files: Files, fds: FdCache, folder: Path, touched: set[SegmentId]) -> None:
    for segment in sorted(touched):
        with fds.use(segment_path(folder, *segment)) as fd:
            files.fdatasync(fd)
    if touched:
        files.sync_folder(ledgers_folder(folder))


def _drop_short_indexes(files: Files, fds: FdCache, folder: Path, touched: set[SegmentId]) -> None:
    """Entries whose ledger was fenced may come back: an index sealed without them is wrong."""
    for segment in touched:
        path = segment_path(folder, *segment)
        end = sealed_end(files, index_path(path), *segment)
        if end is not None:
            with fds.use(path) as fd:
                is_short = files.size(fd) > end
            if is_short:
                files.unlink(index_path(path))


def _write_second_headers(files: Files, folder: Path, touched: set[SegmentId]) -> None:
    """Where a segment has no index file yet, make one with the second copy of its header.

    Not synced: opening the topic brings it to its end, and syncs it.
    """
    for segment in sorted(touched):
        path = index_path(segment_path(folder, *segment))
        if files.exists(path):
            continue
        try:
            header = read_named_header(files, folder, segment)
            if header.secret:
                fd = files.open(path, os.O_WRONLY | os.O_CREAT)
                try:
                    write_all(files, fd, [pack_index_header(*segment, header.pack())], 0)
                finally:
                    files.close(fd)
        except (CorruptFileError, OSError) as error:
            _log.warning("%s: its header has no second copy yet: %s", path, error)


def _unlisted(
    files: Files, folder: Path, catalog: Catalog, removed: set[SegmentId]
) -> dict[SegmentId, SegmentHeader]:
    """The headers of the segments that are there and that the catalog does not list."""
    known = catalog.listed_segments() | removed
    headers = {}
    for segment in list_segments(files, folder):
        if segment not in known:
            try:
                headers[segment] = read_named_header(files, folder, segment)
            except CorruptFileError as error:
                _log.error("%s", error)
    return headers


def _has_strangers(unlisted: dict[SegmentId, SegmentHeader], catalog: Catalog) -> bool:
    """Whether there are topics that the catalog never had: it is a copy from before them.

    A topic that it had and has no more was deleted.
    """
    names = {topic_id: name for name, topic_id in catalog.topics().items()}
    highest = catalog.highest_topic_id()
    return any(
        header.topic_id > highest or names.get(header.topic_id, header.topic) != header.topic
        for header in unlisted.values()
    )


def _list(
    files: Files,
    fds: FdCache,
    folder: Path,
    catalog: Catalog,
    unlisted: dict[SegmentId, SegmentHeader],
    touched: set[SegmentId],
) -> None:
    """List the segments that the journal spoke of, and those that a lost one would have named.

    What the journal wrote of deleted topics is removed.
    """
    topic_ids = set(catalog.topics().values())
    deleted = {each for each, header in unlisted.items() if header.topic_id not in topic_ids}
    remove_segment_files(files, fds, folder, sorted(deleted & touched))
    listed = sorted(unlisted.keys() - deleted)
    forgotten = [each for each in listed if each not in touched]
    if forgotten:
        _log.warning(
            "%s: the catalog is older than the folder, or a journal was lost: listed now, and "
            "should have been: %s",
            folder,
            forgotten,
        )
    if listed:
        catalog.add_segments((unlisted[each].topic_id, *each) for each in listed)
