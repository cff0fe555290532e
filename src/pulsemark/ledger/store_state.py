"""Whether a store can be used: not after it was closed or failed, and not in a child process.

A store belongs to the process that opened it. After a fork the child has a copy of its memory
without its threads, and its locks are in any state. There every method raises ForkedStoreError
before it takes a lock or touches a file; ``close`` does nothing. The child's copy of the folder's
lock is closed at once, so that only the parent holds it.

**Uninterrupted work.**
Runs work that must not be left half done in a thread where no signal handler can raise.

Python runs signal handlers in the main thread only. So where the main thread changes a store in
several steps, a thread of the store does the work and the main thread waits. A KeyboardInterrupt
or a time-out then ends the waiting, and the work still runs to its end. Other threads do such work
themselves, and so does the main thread of a store without threads (a simulation).

A handler may raise any exception, also an OSError such as TimeoutError, and also in the middle of a
call to the operating system. It says nothing about the disk then: `is_of_handler` finds it out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

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


_T = TypeVar("_T")
_PACKAGE = __name__.partition(".")[0] + "."
_ALIVE_POLL_S = 0.2
_TAKEN_POLL_S = 0.01


class _Job(Generic[_T]):
    """A piece of work, and its result or error."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._claim = threading.Lock()
        self.done = threading.Lock()
        self.done.acquire()
        self.is_taken = False
        """The thread that asked for the work has its result."""

    def run(self) -> None:
        """Do the work, once."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
            self._error = error
        self.done.release()

    @property
    def has_failed(self) -> bool:
        """Whether the work raised."""
        return self._error is not None

    def result(self) -> _T:
        """Return or raise what the work returned or raised."""
        if self._error is not None:
            raise self._error
        return cast("_T", self._result)


def make_uninterrupted(make: Callable[[], _T], end: Callable[[_T], object]) -> _T:
    """The result of ``make()``. For the main thread, another thread makes it.

    An exception from a signal handler ends the waiting. That thread then runs to its end, and
    passes the result to ``end``, because no caller will use it.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    job = _Job(make)
    given_up = threading.Lock()
    given_up.acquire()

    def run() -> None:
        job.run()
        while not given_up.acquire(timeout=_TAKEN_POLL_S):
            if job.is_taken:
                return
        if not job.has_failed:
            end(job.result())

    try:
        threading.Thread(target=run, name="pulsemark-opening", daemon=True).start()
        job.done.acquire()
        made = job.result()
        # No call from here on, so that no exception can come in between.
        job.is_taken = True
        return made
    except BaseException:
        given_up.release()
        raise


class UninterruptedWork:
    """The thread that works for the main thread, if it is ``threaded``.

    A main thread that holds the store's ``lock`` works itself: the other one would wait for it.
    """

    def __init__(self, state: StoreState, lock: threading.RLock, *, threaded: bool) -> None:
        self._state = state
        self._lock = lock
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Not `Thread.is_alive`: an exception within it marks a running thread as stopped.
        self._has_ended = not threaded
        if threaded:
            self._thread = threading.Thread(
                target=self._run, name="pulsemark-uninterrupted", daemon=True
            )
            self._thread.start()

    def run(self, function: Callable[[], _T]) -> _T:
        """Call ``function()`` where no signal handler runs. Raises ForkedStoreError."""
        self._state.check_process()
        if (
            self._has_ended  # the store was closed: the work raises that itself
            or threading.current_thread() is not threading.main_thread()
            or holds(self._lock)
        ):
            return function()
        job = _Job(function)
        self._jobs.put(cast("_Job[object]", job))
        while not job.done.acquire(timeout=_ALIVE_POLL_S):
            if self._has_ended:  # the store was closed meanwhile
                job.run()
        return job.result()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
        self._has_ended = True

    def stop(self) -> None:
        """End the thread once its pending work is done."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def holds(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def is_of_handler(error: BaseException) -> bool:
    """Whether an error that left one of the store's calls was raised by a signal handler.

    It goes by the function that raised: a handler is not of this package, what calls the operating
    system is. An engine's own code outside of this package counts as a handler, too.
    """
    raised = error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    if raised is None:
        return False
    return not str(raised.tb_frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
