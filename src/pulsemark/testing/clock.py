"""A clock that stands still until a test moves it.

It can replace `pulsemark.metadata.SystemClock` wherever a `clock` can be given. Then a test chooses
its times, and a test about hours does not take hours. The clock can be set back, as real clocks
are, to check that stamps never decrease. It is thread-safe: the broker may read it while a test
moves it.
"""

from __future__ import annotations

import threading

# A time in 2023, so that tests which set no time get plausible stamps.
DEFAULT_START_MS = 1_700_000_000_000


class SettableClock:
    """A `Clock` whose time is set by the test.

    Args:
        now_ms: the first time, in milliseconds since the epoch.
    """

    __slots__ = ("_lock", "_now_ms")

    def __init__(self, now_ms: int = DEFAULT_START_MS) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The time it was last set to, in milliseconds since the epoch."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Set the time, forwards or backwards."""
        with self._lock:
            self._now_ms = now_ms

    def advance(self, by_ms: int) -> int:
        """Move by `by_ms` milliseconds (backwards if negative) and return the new time.

        No step is lost if several threads advance at the same time.
        """
        with self._lock:
            self._now_ms += by_ms
            return self._now_ms

    def __repr__(self) -> str:
        return f"SettableClock({self._now_ms})"
