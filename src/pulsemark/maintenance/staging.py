"""A folder that appears under its name at once, when all of it is on the disk.

It is filled under another name beside it, ``.NAME.unfinished``, and renamed at the end. So a
process that is killed leaves no folder that looks finished; the next one that fills the same folder
removes what the killed one left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..ledger.errors import LedgerError
from ..ledger.local.io.files import OsFiles
from ..ledger.local.io.folder import make_folder_durably

__all__ = ["TargetError", "fill_at_once", "sync_file", "sync_folder"]

#: A folder that holds only these counts as empty.
_TOLERATED = frozenset({"lost+found"})


class TargetError(LedgerError):
    """The folder to be made cannot be made: `folder` and `reason`."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}")
        self.folder = folder
        self.reason = reason


@contextmanager
def fill_at_once(target: Path) -> Iterator[Path]:
    """An empty folder to fill in the ``with`` block; after the block it is ``target``.

    The files in it must be synced by the block; the folders are synced here, new parents of the
    target included. If the block fails, nothing is left.

    Raises TargetError: ``target`` has something in it, or another process fills it now. OSError.
    """
    target = target.absolute()
    check_empty(target)
    make_folder_durably(OsFiles(), target.parent)
    staging = target.with_name(f".{target.name}.unfinished")
    lock_fd = _claim(staging, target)
    try:
        yield staging
        for folder, _, _ in os.walk(staging, topdown=False):
            sync_folder(Path(folder))
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
    staging.mkdir(exist_ok=True)
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
    sync_folder(target.parent)


def sync_file(path: Path) -> None:
    """Have a file's content on the disk. Raises OSError."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
