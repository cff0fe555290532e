"""A store in memory: for tests, fixtures, and data that need not outlive the process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...metadata import Clock, SystemClock
from ..commit.group_commit import Notify
from ..store_core import StoreOptions, StoreSetup
from ..store_state import StoreState, make_uninterrupted
from ..topic_store import TopicStore
from .folder import MemoryFolder
from .ledgers import MemoryLedgers

_NAME = Path("memory")


class MemoryStore(TopicStore):
    """Topics in memory. Make one with ``MemoryStore.open``.

    Raises what a `TopicStore` does. Its content is in ``memory``: another store can be opened on
    that, after this one was closed, or in its place.
    """

    engine: MemoryLedgers

    @classmethod
    def open(
        cls,
        memory: MemoryFolder | None = None,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        notify: Notify | None = None,
        threaded: bool = True,
    ) -> MemoryStore:
        """Open the content of ``memory``; without ``memory`` an empty store. Blocks.

        A store that has ``memory`` open already loses it: its appends and changes fail from now on
        (OwnershipLostError, then StoreFailedError), and it can only be closed. ``notify`` and
        ``threaded`` mean the same as in `StoreSetup`. Raises CatalogError, OSError.
        """
        setup = StoreSetup(clock or SystemClock(), options or StoreOptions(), notify, threaded)
        opening = partial(cls._open, MemoryFolder() if memory is None else memory, setup)
        return make_uninterrupted(opening, cls.close) if threaded else opening()

    @classmethod
    def _open(cls, memory: MemoryFolder, setup: StoreSetup) -> MemoryStore:
        engine = MemoryLedgers(memory)
        try:
            return cls(engine, StoreState(_NAME), setup)
        except BaseException:
            engine.close()
            raise

    @property
    def memory(self) -> MemoryFolder:
        """The store's content."""
        return self.engine.folder
