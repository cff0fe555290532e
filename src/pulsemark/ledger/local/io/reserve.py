"""Space that is kept back, so that a full disk can be freed.

Removing entries needs some space itself: the catalog records a removal before it happens, and a
cut inside a segment is a file. A full disk has no room for either. So the folder has a file of
zeros, ``RESERVE``. If the disk is full when entries are trimmed or deleted, or the folder or a
topic is opened, the file is made smaller by a part and the work is tried again. Nothing else may
use the space, and the file grows again as soon as the disk has room.

The file holds no data, and is never synced. If it is lost or too small, it is filled up again.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...errors import CatalogFullError
from .files import Files, write_all
from .folder import RESERVE_NAME

T = TypeVar("T")

RESERVE_BYTES = 1 << 20
_PART_BYTES = RESERVE_BYTES // 4
"""Freed at once: many times what the catalog needs for opening or for one change."""
_log = logging.getLogger(__name__)


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
        """Do ``work``. If the disk is full, free a part and do it again, until nothing is left.

        ``work`` must have changed nothing when it raises. Its last error is raised here.
        """
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
                fd = self._files.open(self._path, os.O_RDWR)
                try:
                    size = self._files.size(fd)
                    if size:
                        self._files.ftruncate(fd, max(0, size - _PART_BYTES))
                finally:
                    self._files.close(fd)
            except OSError:
                return False
            return size > 0

    def fill_up(self) -> None:
        """Let the file grow to its size. On OSError it has grown as far as it could."""
        with self._lock:
            if self._whole:
                return
            fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
            try:
                size = self._files.size(fd)
                while size < RESERVE_BYTES:
                    piece = bytes(min(_PART_BYTES // 4, RESERVE_BYTES - size))
                    size += write_all(self._files, fd, [piece], size)
            finally:
                self._files.close(fd)
            self._whole = True

    def try_to_fill_up(self) -> None:
        """As `fill_up`, where it does not matter if that fails."""
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
