"""Open files of a store: a limited number at once; the least recently used is closed first.

A descriptor in use is pinned, so that no thread reads from one that another thread has closed. The
committer keeps the files it wrote pinned until the checkpoint has synced them: the kernel reports
a failed write-back only to descriptors that were open when it happened.

A file that is removed, or must not be synced again, is forgotten at once. Its descriptor is closed
when its last user releases it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...limits import default_fd_limit
from .files import Files


@dataclass(slots=True)
class _Open:
    fd: int
    path: Path
    pins: int = 0
    forgotten: bool = False


class _Use:
    """A context manager; as a generator it would make each search a tenth slower."""

    __slots__ = ("_cache", "_fd", "_path")

    def __init__(self, cache: FdCache, path: Path) -> None:
        self._cache = cache
        self._path = path

    def __enter__(self) -> int:
        self._fd = self._cache.acquire(self._path)
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._cache.release(self._fd)


class FdCache:
    """Descriptors by path, opened when first used."""

    def __init__(self, files: Files, flags: int = os.O_RDWR, limit: int | None = None) -> None:
        self._files = files
        self._flags = flags
        self._limit = limit if limit is not None else default_fd_limit()
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, _Open] = OrderedDict()
        self._by_fd: dict[int, _Open] = {}

    @property
    def read_only(self) -> bool:
        """Whether files are opened for reading only."""
        return self._flags & os.O_ACCMODE == os.O_RDONLY

    @property
    def limit(self) -> int:
        """How many stay open at most, not counting pinned ones."""
        return self._limit

    def __len__(self) -> int:
        return len(self._by_fd)

    def acquire(self, path: Path, *, create: bool = False) -> int:
        """An open descriptor, pinned until ``release``."""
        with self._lock:
            opened = self._by_path.get(path)
            if opened is None:
                flags = self._flags | (os.O_CREAT if create else 0)
                opened = _Open(self._files.open(path, flags), path)
                self._by_path[path] = self._by_fd[opened.fd] = opened
                opened.pins = 1
                self._evict()
            else:
                self._by_path.move_to_end(path)
                opened.pins += 1
            return opened.fd

    def release(self, fd: int) -> None:
        """Give back one pin."""
        with self._lock:
            opened = self._by_fd.get(fd)
            if opened is not None:
                opened.pins -= 1
                if opened.forgotten and opened.pins <= 0:
                    self._close(opened)

    def use(self, path: Path) -> _Use:
        """An open descriptor for the length of a ``with`` block."""
        return _Use(self, path)

    def forget(self, path: Path) -> None:
        """Never use this descriptor again: the file is being removed, or its sync failed."""
        with self._lock:
            opened = self._by_path.pop(path, None)
            if opened is not None:
                opened.forgotten = True
                if opened.pins <= 0:
                    self._close(opened)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            self._by_path.clear()
            for opened in list(self._by_fd.values()):
                self._close(opened)

    def _close(self, opened: _Open) -> None:
        del self._by_fd[opened.fd]
        with suppress(OSError):  # it is closed all the same, and a sync made it durable
            self._files.close(opened.fd)

    def _evict(self) -> None:
        if len(self._by_fd) <= self._limit:
            return
        unused = [opened for opened in self._by_path.values() if opened.pins == 0]
        for opened in unused[: 1 + self._limit // 16]:
            del self._by_path[opened.path]
            self._close(opened)


T = TypeVar("T")

THREADS = 8
FEW = 16
"""For fewer items no thread is started."""


def for_each(work: Callable[[T], object], items: Iterable[T], *, threaded: bool) -> None:
    """Call ``work`` with each item, in any order; returns when all calls have returned.

    Without ``threaded``, or for few items, the calling thread does everything, in order. With
    threads, all items are worked on even if a call raises; then one of the exceptions is raised.
    """
    left = deque(items)
    if not threaded or len(left) < FEW:
        for item in left:
            work(item)
        return
    errors: list[BaseException] = []

    def run() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                errors.append(error)

    helpers = []
    for number in range(THREADS - 1):
        helper = threading.Thread(target=run, name=f"pulsemark-sync-{number}", daemon=True)
        try:
            helper.start()
        except RuntimeError:  # no thread can be started: the calling thread does it alone
            break
        helpers.append(helper)
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
