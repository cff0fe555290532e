"""Whether a store can be used: not after it was closed or failed, and not in a child process.

A store belongs to the process that opened it. After a fork the child has a copy of its memory
without its threads, and its locks are in any state. There every method raises ForkedStoreError
before it takes a lock or touches a file; ``close`` does nothing. The child's copy of the folder's
lock is closed at once, so that only the parent holds it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path

from .errors import ForkedStoreError, LedgerError, StoreClosedError, StoreFailedError

_states: weakref.WeakSet[StoreState] = weakref.WeakSet()


class StoreState:
    """The state of one store. ``on_fork`` is called in a child process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The store's folder, or what names it in errors."""
        self._failure: BaseException | None = None
        self.is_over = False
        """Nothing may be done any more; ``check`` says why."""
        self.is_closed = False
        """The store was closed, or this is a child process."""
        self.is_foreign = False
        """This is a child of the process that opened the store."""
        self.on_fork: Callable[[], None] | None = None
        _states.add(self)

    def close(self) -> None:
        """The store is closed."""
        self.is_over = self.is_closed = True

    def fail(self, error: BaseException) -> None:
        """Mark the store as failed: it cannot go on."""
        if self._failure is None:
            self._failure = error
        self.is_over = True

    @property
    def name(self) -> str:
        """The store's name in errors: its folder."""
        return str(self.folder)

    @property
    def has_failed(self) -> bool:
        """Whether something failed that cannot be repaired."""
        return self._failure is not None

    def error(self) -> LedgerError:
        """The error that says why the store cannot be used."""
        if self.is_foreign:
            return ForkedStoreError(self.folder)
        if self._failure is not None:
            return StoreFailedError(self.folder, repr(self._failure))
        return StoreClosedError(self.name)

    def check(self) -> None:
        """Raise ForkedStoreError, StoreFailedError or StoreClosedError unless it can be used."""
        if self.is_over:
            raise self.error()

    def check_not_closed(self) -> None:
        """Raise StoreClosedError, or ForkedStoreError in a child process, if it was closed."""
        if self.is_closed:
            raise self.error()

    def check_process(self) -> None:
        """Raise ForkedStoreError in a child of the process that opened the store."""
        if self.is_foreign:
            raise self.error()

    def _disown(self) -> None:
        self.is_over = self.is_closed = self.is_foreign = True
        if self.on_fork is not None:
            self.on_fork()


class ForeignCatalog:
    """Takes the catalog's place in a child process: SQLite's connections must not cross a fork."""

    def __init__(self, state: StoreState) -> None:
        self._state = state

    def __getattr__(self, name: str) -> object:
        raise self._state.error()


def _after_fork() -> None:
    for state in list(_states):
        state._disown()


os.register_at_fork(after_in_child=_after_fork)
