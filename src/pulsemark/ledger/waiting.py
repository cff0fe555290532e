"""Waiting that an exception from a signal handler cannot break.

Python runs signal handlers in the main thread, between any two steps of the program. A condition
variable of the standard library takes and releases its lock in Python code, so that a handler that
raises can leave it locked. Here each waiting thread has a lock of its own, which is created, listed
and taken by single calls into the interpreter: an exception between them leaves at most a lock in
the list for which no thread waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_LONGEST_WAIT_S = min(threading.TIMEOUT_MAX, 1e6)


class Waiters:
    """The threads that wait until other threads make a condition true."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no thread waits."""
        return not self._locks

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block until ``is_over()`` is true. Returns its result: False after the time-out.

        ``is_over`` is called again after each ``wake``.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_over():
            turn = threading.Lock()
            turn.acquire()
            self._locks.append(turn)
            if is_over():  # it may have come true before the lock was listed
                return True
            left_s = _LONGEST_WAIT_S if until_s is None else until_s - time.monotonic()
            if not turn.acquire(timeout=min(max(left_s, 0), _LONGEST_WAIT_S)) and until_s:
                return is_over()
        return True

    def wake(self) -> None:
        """Let every thread that waits ask again. To be called after the change.

        The longest waiting first: a thread that comes meanwhile has seen the change.
        """
        for _ in range(len(self._locks)):
            try:
                turn = self._locks.popleft()
            except IndexError:  # another thread wakes them, too
                return
            turn.release()
