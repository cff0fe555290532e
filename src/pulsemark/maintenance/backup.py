"""Backups of data folders, also of one that a broker is writing to, and restoring them.

The backup is a data folder itself, with one file more: ``BACKUP.json``, one JSON object, UTF-8:
``what`` ("pulsemark backup"), ``version`` (1), ``made_at_ms``, ``source`` (the folder's path), and
``files``: path, size_bytes and crc32c (8 hex digits) of every other file.

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

**Restoring** checks every file against the list while it is copied.

Backup and restored folder appear under their names at once, when all of them is on the disk. They
are filled under another name beside it, ``.NAME.unfinished``, and renamed at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..ledger.cursors.cursor_store import CURSOR_TOPIC
from ..ledger.errors import CorruptFileError, LedgerError, UnsupportedVersionError
from ..ledger.local.catalog import Catalog, catalog_error
from ..ledger.local.io.files import Files
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
    make_folder_durably,
    segment_path,
)
from ..ledger.local.recovery import LEDGER_IDS_SKIPPED
from ..ledger.local.segment.index_file import open_index
from ..ledger.local.segment.salvage import read_named_header
from ..ledger.local.segment.segment_format import cut_path
from ..metadata.crc import crc32c
from .verify_catalog import CatalogContent, read_catalog

_MAX_PASSES = 100
_LEDGER_SUFFIXES = (".log", ".idx", ".cut")


class RestlessFolderError(
    LedgerError,
    text="{folder}: files were removed during each of {passes} passes; try again when fewer topics "
    "are deleted or cleaned",
):
    """Files were removed during each of `passes` passes over `folder`."""

    folder: Path
    passes: int


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
    check_marker(Files(), folder)
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
    """Lock the folder for the block, if no process has it. Yields whether it was locked."""
    with ExitStack() as held:
        is_ours = True
        try:
            folder_fd = Files().try_lock_folder(folder)
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
    files: Files = field(default_factory=Files)
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
        """Copy what is new. Return whether all files are still there."""
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
        """Copy the new part of a segment, and its cut file."""
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
        """Make the copied catalog list the copied segments. Return all copies."""
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
        """Copy a sealed index file that fits the copied segment; none if it does not."""
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


#: A folder that holds only these counts as empty.
# -- a folder that appears at once --

_TOLERATED = frozenset({"lost+found"})


class TargetError(LedgerError, text="{folder}: {reason}"):
    """The target `folder` cannot be made: `reason`."""

    folder: Path
    reason: str


@contextmanager
def fill_at_once(target: Path) -> Iterator[Path]:
    """An empty folder to fill in the ``with`` block; after the block it is ``target``.

    Its files must be synced by the block; folders are synced here. If the block fails, nothing is
    left. Raises TargetError: ``target`` has something in it, or another process fills it; OSError.
    """
    target = target.absolute()
    check_empty(target)
    make_folder_durably(Files(), target.parent)
    staging = target.with_name(f".{target.name}.unfinished")
    lock_fd = _claim(staging, target)
    try:
        yield staging
        for folder, _, names in os.walk(staging, topdown=False):
            for name in names:
                Path(folder, name).chmod(0o600)
            Path(folder).chmod(0o700)
            Files().sync_folder(Path(folder))
        check_empty(target)
        _move(staging, target)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)  # a write that fails does not name its file
        raise
    finally:
        os.close(lock_fd)


def check_empty(target: Path) -> None:
    """Raise TargetError unless the folder is missing or empty."""
    if target.is_symlink() and not target.exists():
        raise TargetError(target, "it is a link to something that does not exist")
    if not target.exists():
        return
    if not target.is_dir():
        raise TargetError(target, "it is not a folder")
    found = sorted(set(os.listdir(target)) - _TOLERATED)  # noqa: PTH208 - names are enough
    if found:
        raise TargetError(target, f"it is not empty ({found[0]}): name a new folder")
    if target.is_mount():
        raise TargetError(target, "it is a mount point: name a folder below it")


def _claim(staging: Path, target: Path) -> int:
    """Make the staging folder, empty, and lock it while the descriptor is open."""
    staging.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in staging.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    except BlockingIOError:
        os.close(descriptor)
        raise TargetError(target, "another process is filling it now") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _move(staging: Path, target: Path) -> None:
    if target.exists():
        for left in _TOLERATED:
            if (target / left).exists():
                (target / left).rmdir()
    staging.rename(target)
    Files().sync_folder(target.parent)


def sync_file(path: Path) -> None:
    """Have a file's content on the disk. Raises OSError."""
    with Files().opened(path) as descriptor:
        os.fsync(descriptor)


# -- the files and their list --

MANIFEST_NAME = "BACKUP.json"
MANIFEST_VERSION = 1
_WHAT = "pulsemark backup"
_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)

Progress = Callable[[int], None]
"""Called with the number of bytes that were copied since the last call."""


class BackupDamagedError(LedgerError, text="{path}: {reason}"):
    """A folder is no finished backup, or a file in it (`path`) is damaged (`reason`)."""

    path: Path
    reason: str


@dataclass(slots=True)
class Copy:
    """A file's copy, which grows as the file does: only what was added is copied again."""

    source: Path
    target: Path
    size_bytes: int = 0
    crc: int = 0

    def extend(self, progress: Progress) -> None:
        """Copy what the file has by now. Raises FileNotFoundError, OSError."""
        with self.source.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            if size < self.size_bytes:  # recovery cut off what was not synced
                self.size_bytes = self.crc = 0
            if size == self.size_bytes and self.target.exists():
                return
            with self.target.open("r+b" if self.size_bytes else "wb") as target:
                self._append(source, target, size, progress)

    def _append(self, source: Any, target: Any, size: int, progress: Progress) -> None:
        source.seek(self.size_bytes)
        target.seek(self.size_bytes)
        while self.size_bytes < size:
            chunk = source.read(min(_CHUNK_BYTES, size - self.size_bytes))
            if not chunk:
                break
            if chunk == _ZEROS:  # a hole, or as good as one
                target.seek(len(chunk), os.SEEK_CUR)
            else:
                target.write(chunk)
            self.crc = crc32c(chunk, self.crc)
            self.size_bytes += len(chunk)
            progress(len(chunk))
        target.truncate(self.size_bytes)


def copy_whole(source: Path, target: Path, progress: Progress) -> Copy:
    """Copy a file that does not change. Raises OSError."""
    copy = Copy(source, target)
    copy.extend(progress)
    return copy


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a backup; its path is relative to the backup."""

    path: str
    size_bytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of the files of a finished backup."""

    made_at_ms: int
    source: str
    files: tuple[ListedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(each.size_bytes for each in self.files)

    def write(self, folder: Path) -> None:
        """Write it; only its name is not durable yet. Raises OSError."""
        fields = {"what": _WHAT, "version": MANIFEST_VERSION, **asdict(self)}
        with (folder / MANIFEST_NAME).open("w", encoding="utf-8") as file:
            json.dump(fields, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())


def listed(folder: Path, copies: Iterable[Copy]) -> tuple[ListedFile, ...]:
    """The manifest of these copies, sorted by path."""
    files = (
        ListedFile(str(each.target.relative_to(folder)), each.size_bytes, f"{each.crc:08x}")
        for each in copies
    )
    return tuple(sorted(files, key=lambda file: file.path))


def read_manifest(folder: Path) -> Manifest:
    """A backup's manifest. Raises BackupDamagedError, UnsupportedVersionError, OSError."""
    path = folder / MANIFEST_NAME
    try:
        fields = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        reason = "it does not exist" if not folder.exists() else f"it has no {MANIFEST_NAME}"
        raise BackupDamagedError(folder, f"this is not a finished backup: {reason}") from None
    except ValueError as error:
        raise BackupDamagedError(path, f"it is not JSON: {error}") from error
    try:
        if fields["what"] != _WHAT:
            raise BackupDamagedError(path, "it is not of a pulsemark backup")
        if fields["version"] > MANIFEST_VERSION:
            raise UnsupportedVersionError(
                path, "backup version", fields["version"], MANIFEST_VERSION
            )
        files = tuple(ListedFile(**each) for each in fields["files"])
        for each in files:
            _check_path(each.path)
        return Manifest(int(fields["made_at_ms"]), str(fields["source"]), files)
    except (LookupError, TypeError, ValueError) as error:
        raise BackupDamagedError(path, f"a field is missing or wrong: {error}") from error


def _check_path(text: str) -> None:
    path = Path(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the path {text} leaves the backup")


# -- restoring --


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of `restore`."""

    backup: Path
    target: Path
    made_at_ms: int
    files: int
    size_bytes: int


def restore(backup: Path, target: Path, *, progress: Progress = lambda _: None) -> RestoreReport:
    """Make ``target`` a data folder with what a backup has. Blocks.

    Raises BackupDamagedError: it is no finished backup, or a file is not as it was made;
    ForeignFolderError, UnsupportedVersionError: a newer version made it; TargetError: the target
    has something in it; CatalogError, OSError. Then there is no target.
    """
    manifest = read_manifest(backup)
    check_marker(Files(), backup)
    if target.absolute().resolve().is_relative_to(backup.resolve()):
        raise TargetError(target, f"it is inside of the backup {backup}")
    with fill_at_once(target) as staging:
        ledgers_folder(staging).mkdir()
        journal_folder(staging).mkdir()
        for each in manifest.files:
            _copy_checked(backup, staging, each, progress)
        if (staging / CATALOG_NAME).exists():
            with closing(Catalog(staging / CATALOG_NAME)) as catalog:
                catalog.reserve_ledger_ids(LEDGER_IDS_SKIPPED)
        for path in staging.rglob("*"):
            if path.is_file():
                sync_file(path)
    return RestoreReport(
        backup, target, manifest.made_at_ms, len(manifest.files), manifest.size_bytes
    )


def _copy_checked(backup: Path, staging: Path, each: ListedFile, progress: Progress) -> None:
    source = backup / each.path
    try:
        copy = copy_whole(source, staging / each.path, progress)
    except FileNotFoundError:
        raise BackupDamagedError(source, "the file is missing") from None
    if copy.size_bytes != each.size_bytes:
        reason = f"it has {copy.size_bytes} bytes; {each.size_bytes} were backed up"
        raise BackupDamagedError(source, reason)
    if f"{copy.crc:08x}" != each.crc32c:
        raise BackupDamagedError(source, "its content is not what was backed up (CRC32C)")
