"""A lock file, so that only one run at a time works on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import OptionError

__all__ = ["run_lock"]


@contextlib.contextmanager
def run_lock(
    folder: Path, option: str, value: Path, taken: str, *, make: str = ""
) -> Iterator[None]:
    """Hold the file `lock` in a folder, which is made if it is missing.

    The lock ends with the process that holds it.

    Args:
        folder: where the file is.
        option: the option that an error names.
        value: the option's value.
        taken: the reason of the error if another run holds the lock.
        make: a folder in `folder` that is made, too.

    Raises:
        OptionError: the folder cannot be written, or another run holds the lock.
    """
    try:
        (folder / make).mkdir(parents=True, exist_ok=True)
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
