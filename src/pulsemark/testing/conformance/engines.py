"""The interface that the suite needs of an engine, and its two implementations."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from ...ledger import FolderLockedError, LocalStore, MemoryFolder, MemoryStore, StoreOptions
from ...ledger.topic_store import TopicStore
from ..clock import A_TIME_MS, SettableClock
from ..faulty_files import FaultyFiles
from ..simulated_store import SimulatedStore


class Engine(Protocol):
    """An engine with its stored data, which stays over the lives of several stores."""

    clock: SettableClock
    """The clock of every store that is opened."""

    def open(self, *, threaded: bool = True) -> TopicStore:
        """A new owner opens a store on what is kept, once the one before was closed or killed."""
        ...

    def kill(self) -> None:
        """End the owner as a crash does: pending entries may be lost."""
        ...

    def take_over(self) -> TopicStore | None:
        """Open a store while another owner has one open; None: the engine refuses that."""
        ...

    def failing(self) -> AbstractContextManager[None]:
        """In this context, writes of entries fail in the open store."""
        ...

    def end(self) -> None:
        """End all open stores, and remove the stored data."""
        ...


MakeEngine = Callable[[StoreOptions], Engine]
"""Makes an engine that keeps nothing yet."""


class FileEngine:
    """Ledgers in files, on a simulated disk.

    Args:
        folder: does not exist yet.
        options: of every store.
    """

    def __init__(self, folder: Path, options: StoreOptions) -> None:
        self.clock = SettableClock(A_TIME_MS)
        self._simulated = SimulatedStore(folder, options=options, clock=self.clock)
        self._files: FaultyFiles | None = None
        self._folder = folder

    def open(self, *, threaded: bool = True) -> TopicStore:
        """As `Engine.open`."""
        self._simulated.threaded = threaded
        self._files = self._simulated.files()
        return self._simulated.open(self._files)

    def kill(self) -> None:
        """As `Engine.kill`."""
        self._simulated.kill()

    def take_over(self) -> TopicStore | None:
        """A folder that is locked is refused."""
        try:
            return LocalStore.open(self._folder, clock=self.clock, files=self._simulated.files())
        except FolderLockedError:
            return None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """The disk gives errors."""
        files = self._files
        assert files is not None, "no store is open"
        files.fail("pwritev", error=errno.EIO, times=None)
        try:
            yield
        finally:
            files.heal()

    def end(self) -> None:
        """As `Engine.end`."""
        self._simulated.end()


class MemoryEngine:
    """Ledgers in memory.

    Args:
        options: of every store.
    """

    def __init__(self, options: StoreOptions) -> None:
        self.clock = SettableClock(A_TIME_MS)
        self.memory = MemoryFolder()
        self._options = options
        self._stores: list[MemoryStore] = []

    def open(self, *, threaded: bool = True) -> TopicStore:
        """As `Engine.open`."""
        store = MemoryStore.open(
            self.memory, clock=self.clock, options=self._options, threaded=threaded
        )
        self._stores.append(store)
        return store

    def kill(self) -> None:
        """The owner loses its memory, and so whatever it has not written."""
        self.memory.take_over(self)
        while self._stores:
            self._stores.pop().close()

    def take_over(self) -> TopicStore | None:
        """The owner there is loses the ownership."""
        return self.open()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Writes are refused."""
        self.memory.refusal = OSError(errno.EIO, "writes are refused")
        try:
            yield
        finally:
            self.memory.refusal = None

    def end(self) -> None:
        """As `Engine.end`."""
        self.kill()
