"""A backup of a data folder, also of one that a broker is writing to.

The backup is a data folder itself, with one file more: ``BACKUP.json`` (`backup_files`).

**A folder that no process owns** is locked while it is copied, as it is, with its journal.

**A folder in use** is copied beside its owner, without a lock. What makes the copy consistent:

- An entry is acknowledged after its bytes are in its segment's file. So the segments alone have
  every entry that was acknowledged before the backup began, and the journal is not needed.
- Segments only grow. What a copy has of a log is a beginning of it (a prefix), without a gap.
- The order is: the subscriptions' ledger, then the catalog, then all other ledgers. So neither a
  subscription nor a property speaks of entries that the backup does not have. A subscription may be
  older than the entries: then its last acknowledged messages are delivered again.
- Files may be removed meanwhile (retention, deleted topics, replaced views). Then everything is
  copied once more, which takes only what has changed since; until nothing was removed in between.

Only whole segments count that are in the catalog of the copy. Index files are copied if they are
sealed; others are made again when the folder is opened.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..ledger.cursors.cursor_store import CURSOR_TOPIC
from ..ledger.errors import CorruptFileError, LedgerError
from ..ledger.local.catalog import Catalog, catalog_error
from ..ledger.local.io.files import OsFiles
from ..ledger.local.io.folder import (
    CATALOG_NAME,
    LOCK_NAME,
    MARKER_NAME,
    SegmentId,
    check_marker,
    index_path,
    journal_folder,
    ledgers_folder,
    list_segments,
    segment_path,
)
from ..ledger.local.segment.headers import read_named_header
from ..ledger.local.segment.index_file import open_index
from ..ledger.local.segment.segment_format import cut_path
from ..metadata.crc import crc32c
from .backup_files import Copy, Manifest, Progress, copy_whole, listed
from .staging import TargetError, fill_at_once, sync_file
from .verify_catalog import CatalogContent, read_catalog

__all__ = ["BackupReport", "RestlessFolderError", "back_up"]

_MAX_PASSES = 100
_LEDGER_SUFFIXES = (".log", ".idx", ".cut")


class RestlessFolderError(LedgerError):
    """Files were removed during each of `passes` passes over `folder`."""

    def __init__(self, folder: Path, passes: int) -> None:
        super().__init__(
            f"{folder}: files were removed during each of {passes} passes; try again when fewer"
            " topics are deleted or cleaned"
        )
        self.folder = folder
        self.passes = passes


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of `back_up`."""

    source: Path
    target: Path
    was_in_use: bool
    topics: int
    segments: int
    size_bytes: int
    passes: int
    """How often the folder was gone through; 1 for a folder that no process used."""


def back_up(folder: Path, target: Path, *, progress: Progress = lambda _: None) -> BackupReport:
    """Copy a data folder to ``target``, which appears when the copy is complete and synced. Blocks.

    The copy has all that was acknowledged before the call.

    Raises ForeignFolderError, UnsupportedVersionError, CatalogError; TargetError: the target has
    something in it, or is inside of the folder; RestlessFolderError; OSError.
    """
    check_marker(OsFiles(), folder)
    if target.absolute().resolve().is_relative_to(folder.resolve()):
        raise TargetError(target, f"it is inside of {folder}, which it is to be a copy of")
    with fill_at_once(target) as staging, _lock_if_free(folder) as is_ours:
        ledgers_folder(staging).mkdir()
        journal_folder(staging).mkdir()
        if is_ours:
            copies, passes = _copy_unused(folder, staging, progress), 1
        else:
            running = _Running(folder, staging, progress)
            passes = running.copy()
            copies = running.finish()
        marker = copy_whole(folder / MARKER_NAME, staging / MARKER_NAME, progress)
        return _finished(folder, staging, target, [*copies, marker], not is_ours, passes)


def _finished(
    folder: Path, staging: Path, target: Path, copies: list[Copy], was_in_use: bool, passes: int
) -> BackupReport:
    for each in copies:
        sync_file(each.target)
    manifest = Manifest(time.time_ns() // 1_000_000, str(folder.resolve()), listed(staging, copies))
    manifest.write(staging)
    catalog = read_catalog(staging / CATALOG_NAME)
    for left in (staging / f"{CATALOG_NAME}{end}" for end in ("-wal", "-shm")):
        if str(left.name) not in {each.path for each in manifest.files}:
            left.unlink(missing_ok=True)  # reading the catalog made them
    topics = 0 if catalog is None else sum("://" in name for name in catalog.topics)
    segments = sum(each.target.suffix == ".log" for each in copies)
    return BackupReport(folder, target, was_in_use, topics, segments, manifest.size_bytes, passes)


@contextmanager
def _lock_if_free(folder: Path) -> Iterator[bool]:
    """Take the folder's lock for the block, if no process has it; whether it was taken."""
    with ExitStack() as held:
        is_ours = True
        try:
            folder_fd = OsFiles().try_lock_folder(folder)
            if folder_fd is not None:
                held.callback(os.close, folder_fd)
            descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:  # no process ever had it open, or it was removed
            pass
        except BlockingIOError:
            is_ours = False
        yield is_ours


def _copy_unused(folder: Path, staging: Path, progress: Progress) -> list[Copy]:
    """Copy a folder that no process uses, with its journal."""
    names = [CATALOG_NAME, f"{CATALOG_NAME}-wal"]
    for inner in (journal_folder(folder), ledgers_folder(folder)):
        suffixes = (".journal",) if inner.name == "journal" else _LEDGER_SUFFIXES
        with suppress(FileNotFoundError):
            found = sorted(path.name for path in inner.iterdir() if path.suffix in suffixes)
            names += [f"{inner.name}/{name}" for name in found]
    copies = []
    for name in names:
        with suppress(FileNotFoundError):
            copies.append(copy_whole(folder / name, staging / name, progress))
    return copies


@dataclass(slots=True)
class _Running:
    """The backup of a folder that its owner writes to."""

    folder: Path
    staging: Path
    progress: Progress
    files: OsFiles = field(default_factory=OsFiles)
    _copies: dict[SegmentId, Copy] = field(default_factory=dict)
    _topics: dict[SegmentId, tuple[int, str]] = field(default_factory=dict)
    """The topic of each segment: id and name."""

    def copy(self) -> int:
        """Go through the folder until nothing was removed meanwhile; returns how often."""
        for number in range(1, _MAX_PASSES + 1):
            if self._pass():
                return number
        raise RestlessFolderError(self.folder, _MAX_PASSES)

    def _pass(self) -> bool:
        """Copy what is new; whether all of it is still there."""
        present = list_segments(self.files, self.folder)
        cursors = [each for each in present if self._topic(each)[1] == CURSOR_TOPIC]
        for each in cursors:
            self._extend(each)
        self._copy_catalog()
        catalog = self._catalog()
        ids = set(catalog.topics.values())
        wanted = set(cursors)
        for each in list_segments(self.files, self.folder):
            topic_id, name = self._topic(each)
            if name == CURSOR_TOPIC or topic_id not in ids or each in catalog.removed:
                continue
            self._extend(each)
            wanted.add(each)
        for gone in self._copies.keys() - wanted:
            self._drop(gone)
        return wanted <= set(list_segments(self.files, self.folder))

    def _topic(self, segment: SegmentId) -> tuple[int, str]:
        known = self._topics.get(segment)
        if known is None:
            try:
                header = read_named_header(self.files, self.folder, segment)
            except (CorruptFileError, FileNotFoundError):
                # Being written, removed, or damaged: whether it counts, the catalog says.
                listed = self._catalog_of_source().segments.get(segment)
                return (-1 if listed is None else listed), ""
            known = self._topics[segment] = header.topic_id, header.topic
        return known

    def _catalog_of_source(self) -> CatalogContent:
        return read_catalog(self.folder / CATALOG_NAME) or CatalogContent()

    def _catalog(self) -> CatalogContent:
        return read_catalog(self.staging / CATALOG_NAME) or CatalogContent()

    def _extend(self, segment: SegmentId) -> None:
        """Copy what is new of a segment, and its cut file."""
        source = segment_path(self.folder, *segment)
        copy = self._copies.setdefault(segment, Copy(source, segment_path(self.staging, *segment)))
        try:
            while True:
                # The cut file is read again after the bytes: what it says is removed may be zeros.
                cut = _content(cut_path(source))
                copy.extend(self.progress)
                if _content(cut_path(source)) == cut:
                    break
        except FileNotFoundError:  # removed; the end of the pass finds that
            return
        if cut is not None:
            cut_path(copy.target).write_bytes(cut)

    def _drop(self, segment: SegmentId) -> None:
        target = self._copies.pop(segment).target
        for path in (target, cut_path(target), index_path(target)):
            path.unlink(missing_ok=True)

    def _copy_catalog(self) -> None:
        target = self.staging / CATALOG_NAME
        target.unlink(missing_ok=True)
        try:
            with (
                closing(_connect(self.folder / CATALOG_NAME)) as source,
                closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.Error as error:
            raise catalog_error(self.folder / CATALOG_NAME, error) from error

    def finish(self) -> list[Copy]:
        """Make the copied catalog list the copied segments; returns all copies."""
        copies = list(self._copies.values())
        for segment, copy in self._copies.items():
            copies += self._sealed_index(segment, copy)
            cut = cut_path(copy.target)
            if cut.exists():
                copies.append(_measured(cut))
        self._correct_catalog()
        copies.append(_measured(self.staging / CATALOG_NAME))
        return copies

    def _sealed_index(self, segment: SegmentId, copy: Copy) -> list[Copy]:
        """The copy of an index file that fits what was copied; none if it does not."""
        target = index_path(copy.target)
        try:
            made = copy_whole(index_path(copy.source), target, self.progress)
        except FileNotFoundError:
            return []
        with open_index(self.files, copy.target, segment) as index:
            trailer = None if index is None else index.trailer()
        if trailer is None or trailer.end_offset != copy.size_bytes:
            target.unlink()
            return []
        return [made]

    def _correct_catalog(self) -> None:
        path = self.staging / CATALOG_NAME
        with closing(Catalog(path)) as catalog:
            listed = self._catalog().segments
            gone: dict[int, list[SegmentId]] = {}
            for segment, topic_id in listed.items():
                if segment not in self._copies:
                    gone.setdefault(topic_id, []).append(segment)
            for topic_id, segments in gone.items():
                catalog.remove_segments(topic_id, segments)
            catalog.forget_removed(catalog.removed())
            new = self._copies.keys() - listed.keys()
            catalog.add_segments((self._topic(each)[0], *each) for each in sorted(new))
            highest = max((ledger_id for ledger_id, _ in self._copies), default=-1)
            catalog.reserve_ledger_ids(0, highest + 1)
        try:
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.Error as error:  # such as a full disk
            raise catalog_error(path, error) from error


def _connect(path: Path) -> sqlite3.Connection:
    """A connection to a catalog that its owner may change at any moment."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _measured(path: Path) -> Copy:
    """A file that was made in the backup, with its checksum."""
    content = path.read_bytes()
    return Copy(path, path, len(content), crc32c(content))
