"""The files of jobs: written as a whole or not at all, and a lock for one run at a time.

What is written stays after a power cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ..ledger.local.io.files import Files
from ..ledger.local.io.folder import make_folder_durably
from .errors import OptionError


@contextlib.contextmanager
def run_lock(folder: Path, option: str, value: Path, taken: str) -> Iterator[None]:
    """Hold the file `lock` in a folder, which is made if it is missing.

    The lock ends with the process that holds it.

    Args:
        folder: where the file is.
        option: the option that an error names.
        value: the option's value.
        taken: the reason of the error if another run holds the lock.

    Raises OptionError: the folder cannot be written, or another run holds the lock.
    """
    try:
        make_folder_durably(Files(), folder)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except (OSError, ValueError) as error:
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise OptionError(option, str(value), reason) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise OptionError(option, str(value), taken) from error
    try:
        yield
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file under another name, sync it, rename it, and sync its folder. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable. Raises OSError."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_written(folder: Path) -> None:
    """Make durable what a library has written to a folder without syncing it. Raises OSError.

    So are the names of the folder and of those above it that this user may read.
    """
    for path in folder.iterdir():
        if path.is_file():
            _sync(path, os.O_RDONLY)
    for each in (folder, *folder.parents):
        with contextlib.suppress(PermissionError):
            sync_folder(each)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
