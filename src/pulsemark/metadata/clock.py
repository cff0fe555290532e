"""The broker's clock.

A stamp is not simply the clock's time. Clocks can step back (NTP, a restored snapshot, a second
machine). Stamps within a topic must not step back, because a search by time needs them in order.
So: stamp = max(now, the topic's last stamp), which the ledger computes at an append. After the
clock steps back, new entries get the same stamp until the clock has caught up. Every stamp is a
time that the clock has shown.
"""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """A source of wall-clock time. Called from any thread, once or more per entry: be quick."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May step back; callers allow for it."""
        ...


class SystemClock:
    """The operating system's wall clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, rounded down."""
        return time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        return "SystemClock()"
