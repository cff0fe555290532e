"""A data folder, open for writing.

Opening: check the folder, take its lock, recover it (`ledgers`). A topic is opened when it is first
asked for.

Closing: refuse appends, commit what is pending, make a checkpoint, seal every index, remove the
journal's files, release the lock. A store that was closed needs no recovery.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from ...metadata import Clock, SystemClock
from ..commit.group_commit import Notify
from ..errors import FollowerFolderError
from ..store import FOLLOWS_KIND, FOLLOWS_PLACE
from ..store_core import LEDGER_IDS_AT_ONCE, StoreOptions, StoreSetup
from ..store_state import StoreState, make_uninterrupted
from ..topic_store import TopicStore
from .catalog import Catalog
from .io.files import Files
from .io.folder import Reserve, lock_folder, prepare_folder, warn_if_public
from .ledgers import LocalLedgers


class LocalStore(TopicStore):
    """Topics in local files, opened with ``LocalStore.open``. Raises what a `TopicStore` does."""

    engine: LocalLedgers

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        notify: Notify | None = None,
        files: Files | None = None,
        threaded: bool = True,
    ) -> LocalStore:
        """Open a data folder; a missing or empty one becomes one. Blocks.

        The store stays with the folder that it has opened, also if that is moved. ``notify``
        schedules commit callbacks (``loop.call_soon_threadsafe``); without it they run in a thread
        of the store and may call every method. ``threaded`` False is for simulations: callers that
        wait make the commits, and checkpoints are made only on demand.

        Raises FolderLockedError, ForeignFolderError, UnsupportedVersionError, CorruptFileError
        (the catalog), CatalogError, OSError. An exception from a signal handler ends the waiting:
        the store is then closed again as soon as it is open.
        """
        setup = StoreSetup(clock or SystemClock(), options or StoreOptions(), notify, threaded)
        opening = partial(cls._open, Path(folder).absolute(), files or Files(), setup)
        return make_uninterrupted(opening, cls.close) if threaded else opening()

    @classmethod
    def _open(cls, folder: Path, files: Files, setup: StoreSetup) -> LocalStore:
        prepare_folder(files, folder)
        lock = lock_folder(files, folder)
        warn_if_public(folder)
        reserve = Reserve(files, folder)

        def opened() -> LocalStore:
            state = StoreState(folder)
            engine = LocalLedgers(files, state, setup, reserve, lock)
            try:
                return cls(engine, state, setup)
            except BaseException:
                engine.abandon()
                raise

        try:
            store = reserve.with_space_for(opened)
        except BaseException:
            lock.close()
            raise
        reserve.try_to_fill_up()
        return store

    @property
    def folder(self) -> Path:
        """The data folder."""
        return self.state.folder

    @property
    def catalog(self) -> Catalog:
        """The folder's catalog; its calls block."""
        return self.engine.metadata

    def skip_ledger_ids(self, at_least: int) -> None:
        """Ledgers that begin from now on have ids from this on. Raises CatalogError."""
        with self._ids_lock:
            self._keep_ids(self.catalog.reserve_ledger_ids(LEDGER_IDS_AT_ONCE, at_least))
        for ledger in self._ledgers.values():
            ledger.take_new_ledger_id()

    @property
    def followed_place(self) -> str | None:
        """The place that the folder follows (`pulsemark follow`); None: it is a leader's."""
        value = self.catalog.get(FOLLOWS_KIND, FOLLOWS_PLACE)
        return None if value is None else value.decode()

    def check_is_leader(self) -> None:
        """Raise FollowerFolderError, after closing the store, if the folder follows another."""
        place = self.followed_place
        if place is not None:
            self.close()
            raise FollowerFolderError(self.folder, place)

    def drop_read_caches(self) -> None:
        """Drop the cached parts of index files, to measure the cost of a first search."""
        self.engine.filer.drop_read_caches()
