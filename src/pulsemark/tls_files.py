"""Objects made of TLS files, which are made again when the files are renewed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Renewed(Generic[T]):
    """The object that ``make`` makes of the files, up to date. Call it for each new connection.

    Changes are looked for once in ``interval_s``. If changed files cannot be used (``make`` raises
    ``refusal``), the old object stays in use until a later look: files may be replaced one after
    the other. ``whose`` names the owner in the log.
    """

    def __init__(
        self,
        whose: str,
        paths: Iterable[str | os.PathLike[str] | None],
        make: Callable[[], T],
        refusal: type[Exception],
        interval_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises what ``make`` does."""
        self._whose = whose
        self._paths = [path for path in paths if path is not None]
        self._make = make
        self._refusal = refusal
        self._interval_s = interval_s
        self._now_s = now_s
        self._marks = look_at_files(self._paths)
        self._made = make()
        self._looked_s = now_s()

    def __call__(self) -> T:
        """Return the present object."""
        now_s = self._now_s()
        if now_s - self._looked_s >= self._interval_s:
            self._looked_s = now_s
            marks = look_at_files(self._paths)
            if marks != self._marks:
                self._renew(marks)
        return self._made

    def _renew(self, marks: object) -> None:
        try:
            self._made = self._make()
        except self._refusal as error:
            what = "the new TLS certificate is not used, the old one stays"
            _log.warning("%s: %s: %s", self._whose, what, error)
            return
        self._marks = marks
        _log.info("%s: the TLS certificate was renewed from %s", self._whose, self._paths[0])


def look_at_files(paths: Iterable[str | os.PathLike[str]]) -> object:
    """A value that differs when a file changes: each file's time, size and inode number."""
    marks: list[object] = []
    for path in paths:
        try:
            found = Path(path).stat()
            marks.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            marks.append(None)
    return marks
