"""Space that is kept back, so that a full disk can be freed.

Removing entries takes some space itself: the catalog notes what goes before it goes, and a cut
inside a segment is a file. On a full disk neither could be written. So the folder has a file of
zeros, ``RESERVE``. Where trimming, deleting, or opening the folder or a topic finds the disk full,
the file is made smaller by a part and the same is tried again. Nothing else may use the space, and
the file grows again as soon as there is room.

The file holds nothing, and is never synced: lost, or smaller than it should be, it is filled up.
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
"""Given back at once: what the catalog needs for opening or for a change, many times over."""
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
        """Whether nothing has been given back since it was filled up."""
        return self._whole

    def with_space_for(self, work: Callable[[], T]) -> T:
        """Do ``work``; where the disk is full, give space back and do it again, while there is any.

        ``work`` has changed nothing when it raises. What it raises at last passes.
        """
        while True:
            try:
                return work()
            except (OSError, CatalogFullError) as error:
                if not is_full(error) or not self._give_back():
                    raise
                _log.warning("the disk is full: a part of %s is used: %s", self._path, error)

    def _give_back(self) -> bool:
        """Make the file smaller by a part; False: there is nothing left, or it cannot be done."""
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
        """Let the file grow to its size. Raises OSError; it has grown as far as it could then."""
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
            _log.warning("%s is not whole: %s", self._path, error)


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or what one may use of it, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, CatalogFullError)
