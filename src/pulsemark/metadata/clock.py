"""The broker's clock.

A stamp is never taken straight from the clock. Clocks step back (NTP, a restored snapshot, a
second machine), stamps within a topic must not, or searching by time would have no meaning. So:
stamp = max(now, the topic's last stamp); the ledger sees to it when it appends. After a step back
stamps stand still until the clock has caught up. Nothing is written that the clock never said.
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
