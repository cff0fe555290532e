"""Runs work that must not be left half done in a thread where no signal handler can raise.

Python runs signal handlers in the main thread only. So where the main thread changes a store in
several steps, a thread of the store does the work and the main thread waits. A KeyboardInterrupt
or a time-out then ends the waiting, and the work still runs to its end. Other threads do such work
themselves, and so does the main thread of a store without threads (a simulation).

A handler may raise any exception, also an OSError such as TimeoutError, and also in the middle of a
call to the operating system. It says nothing about the disk then: `is_of_handler` finds it out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

from .store_state import StoreState

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
        """What the work returned; raises what it raised."""
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
    """The thread that works for the main thread.

    Args:
        state: the store's state.
        lock: the store's lock. A main thread that holds it does its work itself: the other thread
            would have to wait for it.
        threaded: False: every thread does its work itself.
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
        """Call ``function()`` where no signal handler runs, and return its result.

        Raises ForkedStoreError in a child process, which does not have that thread.
        """
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
