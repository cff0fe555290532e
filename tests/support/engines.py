"""The engines in files and in memory, as the conformance suite wants to see an engine."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsemark.ledger import (
    FolderLockedError,
    LocalStore,
    MemoryFolder,
    MemoryStore,
    StoreOptions,
)
from pulsemark.ledger.topic_store import TopicStore
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.faulty_files import FaultyFiles
from tests.support.simulated_store import SimulatedStore


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
