"""A clock that stands still until a test moves it.

It takes the place of `pulsemark.metadata.SystemClock` wherever a `clock` can be given. Times are
then part of a test's text, and a test of hours takes no time. It can be set back, as real clocks
are, to see that stamps never fall. Safe between threads: the broker may read it while a test
moves it.
"""

from __future__ import annotations

import threading

# An ordinary moment of 2023, so that a test which does not care gets plausible stamps.
DEFAULT_START_MS = 1_700_000_000_000


class SettableClock:
    """A `Clock` whose time is what the test says.

    Args:
        now_ms: where it starts, in milliseconds since the epoch.
    """

    __slots__ = ("_lock", "_now_ms")

    def __init__(self, now_ms: int = DEFAULT_START_MS) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The time it was last set to, in milliseconds since the epoch."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Move to this moment, forwards or backwards."""
        with self._lock:
            self._now_ms = now_ms

    def advance(self, by_ms: int) -> int:
        """Move by so many milliseconds (backwards if negative) and return the new time.

        No step is lost when several threads advance at once.
        """
        with self._lock:
            self._now_ms += by_ms
            return self._now_ms

    def __repr__(self) -> str:
        return f"SettableClock({self._now_ms})"
