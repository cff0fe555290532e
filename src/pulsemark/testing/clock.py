"""A clock that a test moves.

It can replace `pulsemark.metadata.SystemClock` wherever a `clock` can be given. Then a test chooses
its times, and a test about hours does not take hours. The clock can be set back, as real clocks
are, to check that stamps never decrease. It is thread-safe: the broker may read it while a test
moves it.

    clock = SettableClock()                              # stands still, at the present time
    clock.advance(hours=1)
    clock.set(datetime(2026, 3, 1, 14, 5, tzinfo=UTC))

A clock that is `running` goes on with the machine's clock between the steps of the test. The broker
of a fixture has such a clock; when the test moves it, everything that is then due is done before
`advance` and `set` return (see `testing.broker`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ..ledger.limits import MAX_TIME_MS

#: A fixed time in 2023, for tests whose bytes must be the same in each run.
A_TIME_MS = 1_700_000_000_000


class ClockWatcher(Protocol):
    """An object whose work depends on the clock. Called in the thread of the test."""

    def before_move(self) -> None:
        """Called before the clock is moved."""

    def after_move(self) -> None:
        """Called after the clock was moved, before `advance` and `set` return."""


class MovableClock(ABC):
    """A clock that a test reads and moves."""

    __slots__ = ()

    @abstractmethod
    def now_ms(self) -> int:
        """The clock's time, in milliseconds since the epoch."""

    @abstractmethod
    def _set_ms(self, now_ms: int) -> None: ...

    @abstractmethod
    def _advance_ms(self, step_ms: int) -> None: ...

    def now(self) -> datetime:
        """The clock's time, in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.now_ms())

    def set(self, now: int | datetime) -> None:
        """Set the time. Raises TypeError, or ValueError: no time zone, or beyond 2^63 ms."""
        self._set_ms(_time_ms(now))

    def advance(
        self,
        by: timedelta = timedelta(0),
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        by_ms: int = 0,
    ) -> int:
        """Move the clock (backwards if negative), and return the new time in milliseconds.

        All arguments are added up. No step is lost if several threads advance at the same time.
        Raises TypeError: `by` is no timedelta, or `by_ms` no whole number; ValueError as `set`.
        """
        if not isinstance(by, timedelta):
            raise TypeError(f"advance({by!r}) has no unit: write seconds={by!r} or by_ms={by!r}")
        if isinstance(by_ms, bool) or not isinstance(by_ms, int):
            raise TypeError(f"by_ms must be whole milliseconds, not {by_ms!r}")
        try:
            step = by + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
            step += timedelta(milliseconds=by_ms)
        except (OverflowError, ValueError) as error:
            raise ValueError(f"the step is no timedelta: {error}") from error
        step_ms = step // timedelta(milliseconds=1)
        self._advance_ms(step_ms)
        return self.now_ms()


class SettableClock(MovableClock):
    """A `Clock` that the test sets. `running` it goes on with the machine's clock.

    `now` is the first time, in milliseconds or a datetime with a time zone; None: the present one.
    Raises TypeError for another type, ValueError as `set`.
    """

    __slots__ = ("_lock", "_now_ms", "_running", "watchers")

    def __init__(self, now: int | datetime | None = None, *, running: bool = False) -> None:
        self._lock = threading.Lock()
        self._running = running
        #: Called after each move.
        self.watchers: list[ClockWatcher] = []
        first_ms = _machine_ms() if now is None else _checked(_time_ms(now))
        #: The time; for a running clock, its difference from the machine's clock.
        self._now_ms = first_ms - self._base_ms()

    def now_ms(self) -> int:
        """The clock's time, in milliseconds since the epoch."""
        return self._now_ms + self._base_ms()

    def _set_ms(self, now_ms: int) -> None:
        self._move(lambda: now_ms - self._base_ms())

    def _advance_ms(self, step_ms: int) -> None:
        self._move(lambda: self._now_ms + step_ms)

    def _move(self, to: Callable[[], int]) -> None:
        _checked(to() + self._base_ms())
        watchers = tuple(self.watchers)
        for watcher in watchers:
            watcher.before_move()
        with self._lock:
            self._now_ms = to()
        for watcher in watchers:
            watcher.after_move()

    def _base_ms(self) -> int:
        return _machine_ms() if self._running else 0

    def __repr__(self) -> str:
        return f"SettableClock({self.now_ms()}{', running=True' if self._running else ''})"


def _machine_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked(now_ms: int) -> int:
    if abs(now_ms) > MAX_TIME_MS:
        raise ValueError(f"{now_ms} ms since 1970: a broker takes times up to {MAX_TIME_MS} ms")
    return now_ms


def _time_ms(time: object) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"{time!r} has no time zone: use datetime(..., tzinfo=UTC)")
        return (time - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    if isinstance(time, bool) or not isinstance(time, int):
        raise TypeError(f"a time must be milliseconds since 1970 or a datetime, not {time!r}")
    return time
