"""A thread that runs cleaning work, one piece after another, with pauses.

A lane is one such thread. It has two kinds of work. A job is requested, and runs before all other
work, in the order of the requests. A round visits many topics, one step at a time; jobs run between
its steps. After its steps a lane pauses as long as they took (at most `REST_MAX_S`). So a round
takes at most half of the disk's and the interpreter's time, however many topics there are. A caller
can make a lane pause longer, and go by another clock.

The thread starts with the first work, so a broker that cleans nothing does not have it.

`Claims` prevent that a topic is cleaned and compacted at the same time; `Pace` limits a
compaction's speed: bytes per second, and half of the interpreter's time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

REST_MAX_S = 1.0
#: There is no pause until the work took this time, since a pause and a wake-up have a cost.
REST_MIN_S = 0.002


class Lane:
    """The work of one thread."""

    def __init__(
        self,
        name: str,
        *,
        rests: Callable[[], float] = lambda: 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rests` says how many times as long as its steps a pause is. `clock` times the steps."""
        self._name = name
        self._rests = rests
        self._clock = clock
        self._condition = threading.Condition()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._rounds: dict[str, Iterator[None]] = {}
        self._thread: threading.Thread | None = None
        self._owed_s = 0.0
        self.is_closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a job next. The future gets its result or error; `close` cancels it."""
        future: Future[T] = Future()
        with self._condition:
            if self.is_closed:
                future.cancel()
                return future
            self._jobs.append((future, call))
            self._work_came()
        return future

    def begin_round(self, name: str, steps: Iterator[None], *, first: bool = False) -> None:
        """Run these steps. If a round of that name runs already, that one goes on instead.

        ``first``: run before the rounds that are running.
        """
        with self._condition:
            if self.is_closed or name in self._rounds:
                return
            rounds = {name: steps}
            self._rounds = {**rounds, **self._rounds} if first else {**self._rounds, **rounds}
            self._work_came()

    def _work_came(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def close(self) -> None:
        """Take no more work, and drop work that has not begun. `join` waits for the rest."""
        with self._condition:
            self.is_closed = True
            jobs, self._jobs = self._jobs, deque()
            self._rounds.clear()
            self._condition.notify_all()
        for future, _ in jobs:
            future.cancel()

    def join(self) -> None:
        """Return when the thread has ended. Blocks."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self.is_closed or self._jobs or self._rounds):
                    self._condition.wait()
                if self.is_closed:
                    return
                job = self._jobs.popleft() if self._jobs else None
                name, steps = next(iter(self._rounds.items()), ("", iter(())))
            if job is None:
                self._step(name, steps)
            elif job[0].set_running_or_notify_cancel():
                _do(*job)

    def _step(self, name: str, steps: Iterator[None]) -> None:
        began_s = self._clock()
        try:
            next(steps)
        except Exception as error:
            if not isinstance(error, StopIteration):
                log.exception("cleaning round %r failed; the timer starts the next one", name)
            with self._condition:
                self._rounds.pop(name, None)
            return
        self._owed_s += (self._clock() - began_s) * self._rests()
        if self._owed_s >= REST_MIN_S:
            self._rest(min(self._owed_s, REST_MAX_S))

    def _rest(self, rest_s: float) -> None:
        self._owed_s = 0.0
        with self._condition:
            self._condition.wait_for(lambda: self.is_closed or bool(self._jobs), rest_s)


def _do(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised for the waiting caller
        future.set_exception(error)
    else:
        future.set_result(result)


class Claims:
    """The topics that are being cleaned or compacted, by name."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def claimed(self, name: str, *, waits: bool = True) -> Iterator[bool]:
        """Claim a topic; the context's value says whether it is claimed.

        Blocks until the topic is free, unless `waits` is false: then it must be free now.
        """
        with self._condition:
            if waits:
                self._condition.wait_for(lambda: name not in self._held)
            is_claimed = name not in self._held
            self._held.add(name)
        try:
            yield is_claimed
        finally:
            if is_claimed:
                with self._condition:
                    self._held.discard(name)
                    self._condition.notify_all()

    def wait_until_free(self, name: str) -> None:
        """Return when a topic is not claimed. Blocks."""
        with self._condition:
            self._condition.wait_for(lambda: name not in self._held)


class Pace:
    """Pauses one run, so that it stays below a rate and works at most half of the time."""

    def __init__(self, bytes_per_s: int, stop: threading.Event) -> None:
        self._bytes_per_s = bytes_per_s
        self._stop = stop
        self._worked_from_s = time.monotonic()
        self._owed_s = 0.0

    def spent(self, size_bytes: int) -> None:
        """Count bytes that were read or written."""
        self._owed_s += size_bytes / self._bytes_per_s

    def rest(self) -> None:
        """Pause as long as the work since the last pause, or longer if the rate requires it."""
        worked_s = time.monotonic() - self._worked_from_s
        if max(worked_s, self._owed_s) < REST_MIN_S:
            return
        rest_s = max(min(worked_s, REST_MAX_S), self._owed_s - worked_s)
        self._owed_s = 0.0
        self._stop.wait(rest_s)
        self._worked_from_s = time.monotonic()
