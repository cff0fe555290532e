"""A store on a simulated disk, which a test can end at any moment and open again.

The store's files are on a `SimulatedDisk`. Its SQLite catalog is a real file, whose commits are
durable when they return. When the processes end (a kill or a power cut), the catalog is kept as it
was at that moment: later commits by threads of the dead process do not count.

Everything depends only on the seed. There is no committer thread: a batch is made when a thread
waits for a commit or calls `settle`. Checkpoints are made only on request.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from pulsemark.ledger import LocalStore, StoreOptions
from pulsemark.ledger.local.io.folder import CATALOG_NAME
from pulsemark.ledger.store_core import StoreCore
from pulsemark.metadata import Clock
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.faulty_files import FaultyFiles
from tests.support.simulated_disk import SimulatedDisk, Survival

NEVER_MS = 2**40


class SimulatedStore:
    """One data folder and its disk.

    Args:
        folder: must not exist yet; a real folder is made there, for the catalog.
        seed: decides which data survives power cuts and failed syncs.
        syncs: False: every sync reports success and does nothing, for control runs.
        options: the store's options. By default checkpoints are made only on request.
        threaded: whether there is a committer thread, which interval mode needs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        survival: Survival = "some",
        syncs: bool = True,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        threaded: bool = False,
    ) -> None:
        self.folder = folder
        self.disk = SimulatedDisk(seed, survival=survival)
        self.disk.on_end.append(self._keep_catalog)
        self.clock = clock or SettableClock(A_TIME_MS)
        self.options = options or StoreOptions(
            checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS
        )
        self._syncs = syncs
        self.threaded = threaded
        self._catalog: dict[str, bytes] = {}
        self._ended = False
        self.store: LocalStore | None = None
        """The open store."""

    def files(self) -> FaultyFiles:
        """A new process's access to the disk."""
        return FaultyFiles(self.disk.process(), syncs=self._syncs)

    def open(self, files: FaultyFiles | None = None) -> LocalStore:
        """Open the store as a new process would; the previous process must have ended."""
        self._bury()
        files = files or self.files()
        self.store = LocalStore.open(
            self.folder,
            clock=self.clock,
            options=self.options,
            files=files,
            threaded=self.threaded,
        )
        return self.store

    def close(self) -> None:
        """Close the store, in order."""
        if self.store is not None:
            store, self.store = self.store, None
            store.close()

    def kill(self) -> None:
        """End the process as kill -9 does."""
        self.disk.kill()
        self._bury()

    def power_off(self) -> None:
        """Cut the power."""
        self.disk.power_off()
        self._bury()

    @property
    def ended(self) -> bool:
        """Whether the process has ended since the store was last opened."""
        return self._ended

    def end(self) -> None:
        """End all processes and remove the real folder."""
        self.disk.kill()
        self._bury()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _keep_catalog(self) -> None:
        self._ended = True
        self._catalog = {}
        path = self.folder / CATALOG_NAME
        if path.exists():
            # The files' bytes, not what a connection sees: after a commit that failed, the WAL may
            # have more. While this connection reads, no checkpoint changes them.
            with closing(sqlite3.connect(path)) as reading:
                reading.execute("BEGIN")
                reading.execute("SELECT 1 FROM sqlite_master").fetchall()
                for name in (path.name, f"{path.name}-wal"):
                    with suppress(FileNotFoundError):
                        self._catalog[name] = path.with_name(name).read_bytes()

    def _bury(self) -> None:
        """End the threads of a store whose process has ended, and restore the catalog."""
        if self.store is not None:
            store, self.store = self.store, None
            with suppress(Exception), _silence():
                store.close()
        if self._ended:
            self._ended = False
            path = self.folder / CATALOG_NAME
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            for name, content in self._catalog.items():
                path.with_name(name).write_bytes(content)


@contextmanager
def _silence() -> Iterator[None]:
    """Do not log while a dead process' store is closed."""
    log = logging.getLogger("pulsemark.ledger")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def settle(store: StoreCore) -> None:
    """Commit all pending entries."""
    store.committer.flush()
