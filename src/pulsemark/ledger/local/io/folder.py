"""Layout of a data folder, its marker file and its lock.

docs/formats.md names its files. No name a client chooses ever becomes part of a path.

**The reserve.**
Space that is kept back, so that a full disk can be freed.

Removing entries needs some space itself: the catalog records a removal before it happens, and a
cut inside a segment is a file. A full disk has no room for either. So the folder has a file of
zeros, ``RESERVE``. If the disk is full when entries are trimmed or deleted, or the folder or a
topic is opened, the file is made smaller by a part and the work is tried again. Nothing else may
use the space, and the file grows again as soon as the disk has room.

The file holds no data, and is never synced. If it is lost or too small, it is filled up again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from ...errors import (
    CatalogFullError,
    FolderLockedError,
    ForeignFolderError,
    UnsupportedVersionError,
)
from .files import Files, read_file, read_up_to, write_all, write_file_durably

FOLDER_VERSION = 1
MARKER_NAME = "PULSEMARK"
LOCK_NAME = "LOCK"
CATALOG_NAME = "catalog.sqlite"
NEW_CATALOG_NAME = CATALOG_NAME + ".new"
PROBE_NAME = "PROBE"
RESERVE_NAME = "RESERVE"
_PROBE_BYTES = 1 << 20
_SEGMENT_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.log")
_JOURNAL_NAME = re.compile(r"([0-9a-f]{8})\.journal")


_log = logging.getLogger(__name__)

SegmentId = tuple[int, int]
"""(ledger id, segment number)."""


def ledgers_folder(folder: Path) -> Path:
    """The folder of segments and their indexes."""
    return folder / "ledgers"


def journal_folder(folder: Path) -> Path:
    """The folder of the journal's files."""
    return folder / "journal"


def segment_path(folder: Path, ledger_id: int, segment_no: int) -> Path:
    """The file of one segment."""
    return ledgers_folder(folder) / f"{ledger_id:016x}-{segment_no:08x}.log"


def index_path(segment: Path) -> Path:
    """The index file of a segment."""
    return segment.with_suffix(".idx")


def journal_path(folder: Path, slot: int) -> Path:
    """One of the journal's files, which take turns."""
    return journal_folder(folder) / f"{slot:08x}.journal"


def list_segments(files: Files, folder: Path) -> list[SegmentId]:
    """Every segment that has a file, in order."""
    try:
        names = files.listdir(ledgers_folder(folder))
    except FileNotFoundError:
        return []
    found = (_SEGMENT_NAME.fullmatch(name) for name in names)
    return sorted((int(m[1], 16), int(m[2], 16)) for m in found if m)


def list_journal_slots(files: Files, folder: Path) -> list[int]:
    """The slots that have a file."""
    names = files.listdir(journal_folder(folder))
    return sorted(int(m[1], 16) for m in map(_JOURNAL_NAME.fullmatch, names) if m)


def check_marker(files: Files, folder: Path) -> None:
    """Raise ForeignFolderError or UnsupportedVersionError unless this is a data folder."""
    try:
        text = read_file(files, folder / MARKER_NAME)
    except FileNotFoundError as error:
        raise ForeignFolderError(folder, _without_marker(files, folder)) from error
    except NotADirectoryError as error:
        raise ForeignFolderError(folder, "it is not a folder") from error
    try:
        version = json.loads(text)["version"]
    except (ValueError, KeyError, TypeError) as error:
        reason = (
            f"its {MARKER_NAME} file is not valid JSON. If that is damage, write "
            f'{{"version": {FOLDER_VERSION}}} into that file'
        )
        raise ForeignFolderError(folder, reason) from error
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ForeignFolderError(folder, f"its {MARKER_NAME} file says version {version!r}")
    if version > FOLDER_VERSION:
        raise UnsupportedVersionError(folder, "data folder version", version, FOLDER_VERSION)


def _without_marker(files: Files, folder: Path) -> str:
    """Why a folder without marker is refused; a folder of several workers has markers one below."""
    if not files.exists(folder):
        return "it does not exist"
    inner = [name for name in files.listdir(folder) if files.exists(folder / name / MARKER_NAME)]
    reason = f"it has no {MARKER_NAME} file"
    if not inner:
        return reason
    return f"{reason}, but there are data folders in it: name one of them, such as {min(inner)}"


def prepare_folder(files: Files, folder: Path) -> None:
    """Make an empty or missing ``folder`` a data folder. Raises ForeignFolderError for others."""
    try:
        make_folder_durably(files, folder)
        held = files.hold_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise ForeignFolderError(folder, "it is not a folder") from error
    try:
        _prepare_held(files, folder)
    finally:
        files.close(held)


def _prepare_held(files: Files, folder: Path) -> None:
    names = set(files.listdir(folder))
    if MARKER_NAME not in names:
        foreign = names - {MARKER_NAME + ".new", "ledgers", "journal", "lost+found"}
        if foreign or _has_files(files, folder, names):
            example = min(foreign) if foreign else "ledgers"
            raise ForeignFolderError(folder, f"it has no {MARKER_NAME} file, but {example!r} in it")
        import uuid

        files.mkdir(ledgers_folder(folder))
        files.mkdir(journal_folder(folder))
        content = {"what": "pulsemark data folder", "version": FOLDER_VERSION,
                   "id": str(uuid.uuid4())}  # fmt: skip
        write_file_durably(files, folder / MARKER_NAME, json.dumps(content).encode() + b"\n")
        files.sync_folder(folder.absolute().parent)
    check_marker(files, folder)
    files.mkdir(ledgers_folder(folder))
    files.mkdir(journal_folder(folder))


def warn_if_public(folder: Path) -> None:
    """Log a warning if every user of the machine may read a folder. Earlier versions made such
    folders; their modes stay as they are.
    """
    with suppress(OSError):
        modes = folder.stat().st_mode, (folder / MARKER_NAME).stat().st_mode
        if modes[0] & 0o005 == 0o005 and modes[1] & 0o004:
            _log.warning(
                "%s: all users of this machine may read it; `chmod -R o= %s` ends that",
                folder,
                folder,
            )


def make_folder_durably(files: Files, folder: Path) -> None:
    """Make a folder and its parents durably, for this user only. Raises OSError."""
    folder = folder.absolute()
    missing = []
    while not files.exists(folder) and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    if missing:
        files.mkdir(missing[0])
    for made in missing:
        files.sync_folder(made.parent)


def _has_files(files: Files, folder: Path, names: set[str]) -> bool:
    return any(files.listdir(folder / name) for name in names & {"ledgers", "journal"})


def lock_folder(files: Files, folder: Path) -> ExitStack:
    """Take the folder's lock, of the folder itself and of its file `LOCK`, until it is closed or
    its owner's process ends. Raises FolderLockedError.

    The file alone can be removed and made again. Earlier versions lock only it, and so do file
    systems that lock no folders.
    """
    with ExitStack() as lock:
        lock.callback(files.close, files.hold_folder(folder))
        try:
            folder_fd = files.try_lock_folder(folder)
        except BlockingIOError as error:
            raise FolderLockedError(folder, _owner(files, folder)) from error
        if folder_fd is not None:
            lock.callback(files.close, folder_fd)
        check_marker(files, folder)  # it may have been moved before it was held
        fd = files.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        lock.callback(files.close, fd)
        if not files.try_lock(fd):
            raise FolderLockedError(folder, _owner_in(files, fd))
        _write_owner(files, fd)
        return lock.pop_all()


def _owner(files: Files, folder: Path) -> int | None:
    """The process that has the folder locked; None: the file that names it was removed."""
    with suppress(FileNotFoundError), files.opened(folder / LOCK_NAME) as fd:
        return _owner_in(files, fd)
    return None


def _owner_in(files: Files, fd: int) -> int | None:
    owner = read_up_to(files, fd, 20, 0).strip()
    return int(owner) if owner.isdigit() else None


def _write_owner(files: Files, fd: int) -> None:
    """Write this process's id into the lock file. A full disk is no reason not to open."""
    owner = str(os.getpid()).encode() + b"\n"
    try:
        write_all(files, fd, [owner], 0)
        files.ftruncate(fd, len(owner))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def probe_folder(files: Files, folder: Path) -> None:
    """Write a file of 1 MiB, sync it and remove it. Raises OSError where that cannot be done."""
    path = folder / PROBE_NAME
    try:
        with files.opened(path, os.O_RDWR | os.O_CREAT) as fd:
            write_all(files, fd, [bytes(_PROBE_BYTES)], 0)
            files.fdatasync(fd)
    finally:
        with suppress(FileNotFoundError):
            files.unlink(path)


T = TypeVar("T")

RESERVE_BYTES = 1 << 20
_PART_BYTES = RESERVE_BYTES // 4
"""Freed at once: many times what the catalog needs for opening or for one change."""


class Reserve:
    """A data folder's reserve. Safe between threads."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._path = folder / RESERVE_NAME
        self._lock = threading.Lock()
        self._whole = False

    @property
    def is_whole(self) -> bool:
        """Whether the file has its full size: nothing was freed since it was filled up."""
        return self._whole

    def with_space_for(self, work: Callable[[], T]) -> T:
        """Do ``work``; while the disk is full, free a part of the reserve and do it again."""
        while True:
            try:
                return work()
            except (OSError, CatalogFullError) as error:
                if not is_full(error) or not self._give_back():
                    raise
                _log.warning(
                    "the disk is full; a part of the reserve %s is freed; free some disk space: %s",
                    self._path,
                    error,
                )

    def _give_back(self) -> bool:
        """Make the file smaller by a part; False: nothing is left, or the disk refuses."""
        with self._lock:
            self._whole = False
            try:
                with self._files.opened(self._path, os.O_RDWR) as fd:
                    size = self._files.size(fd)
                    if size:
                        self._files.ftruncate(fd, max(0, size - _PART_BYTES))
            except OSError:
                return False
            return size > 0

    def fill_up(self) -> None:
        """Let the file grow to its size. On OSError it has grown as far as it could."""
        with self._lock:
            if self._whole:
                return
            with self._files.opened(self._path, os.O_RDWR | os.O_CREAT) as fd:
                size = self._files.size(fd)
                while size < RESERVE_BYTES:
                    piece = bytes(min(_PART_BYTES // 4, RESERVE_BYTES - size))
                    size += write_all(self._files, fd, [piece], size)
            self._whole = True

    def try_to_fill_up(self) -> None:
        """Call `fill_up`, and ignore an OSError."""
        try:
            self.fill_up()
        except OSError as error:
            _log.warning(
                "the reserve %s could not be filled up; free some disk space: %s", self._path, error
            )


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or this user's quota, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, CatalogFullError)
