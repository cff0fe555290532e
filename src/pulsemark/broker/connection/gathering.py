"""Gathers the publishes of a client that sends without waiting for receipts.

A message that is handled alone is expensive. It needs a commit with its sync and its thread
switches, a turn of the event loop for the receipt, and one write. At a few thousand messages a
second this is most of a message's cost. A client that sends more while its publishes are in
flight does not need each receipt at once. So the broker waits a short time and then handles all
commands that arrived, as if the network had been slower by that time. Pulsar's bookies wait in
the same way for a group of entries (``journalMaxGroupWaitInMillis``, 1 ms).

A client that does wait for its receipts would become slower, since it sends nothing until it has
them. So a wait counts as useless if nothing arrived in its second half. After a useless wait the
next reads are handled at once, and their number doubles with each useless wait (up to RESTS_MAX).
The broker also does not wait if the time between two reads is longer than the wait, or if enough
bytes have arrived or enough publishes are in flight already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Gathering"]

#: With so many unhandled bytes, or so many publishes in flight, waiting brings nothing.
ENOUGH_BYTES = 4 * 1024
ENOUGH_ENTRIES = 16
#: The most reads that are handled at once after useless waits.
RESTS_MAX = 1024


class Gathering:
    """Decides for one connection when to wait. `take` handles what has arrived."""

    __slots__ = (
        "_began_at_s",
        "_clock",
        "_last_read_at_s",
        "_loop",
        "_next_rests",
        "_rests",
        "_take",
        "_timer",
        "_wait_s",
    )

    def __init__(
        self,
        wait_s: float,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._loop = loop
        self._take = take
        # The loop's own clock is set once for each turn, which is too coarse here.
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._began_at_s = self._last_read_at_s = 0.0
        #: Reads still to be handled at once, and how many follow the next useless wait.
        self._rests = 0
        self._next_rests = 1

    def waits(self, unhandled_bytes: int, entries_in_flight: int) -> bool:
        """Called after a read. Return whether to wait for more; `take` is then called later."""
        now_s = self._clock()
        previous_read_at_s, self._last_read_at_s = self._last_read_at_s, now_s
        if self._timer is not None:
            if unhandled_bytes < ENOUGH_BYTES:
                return True
            self.stop()
            self._next_rests = 1
            return False
        if now_s - previous_read_at_s >= self._wait_s:
            return False
        if self._rests:
            self._rests -= 1
            return False
        if unhandled_bytes >= ENOUGH_BYTES or entries_in_flight >= ENOUGH_ENTRIES:
            return False
        self._began_at_s = now_s
        self._timer = self._loop.call_later(self._wait_s, self._over)
        return True

    def close(self) -> None:
        """The connection has ended: handle nothing more, and drop the reference to `take`."""
        self.stop()
        self._take = _nothing

    def end(self) -> None:
        """Handle now what has arrived."""
        if self._timer is not None:
            self.stop()
            self._take()

    def stop(self) -> None:
        """Stop waiting, without handling what has arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        waited_s = self._clock() - self._began_at_s
        if self._last_read_at_s - self._began_at_s >= waited_s / 2:
            self._next_rests = 1
        elif waited_s >= self._wait_s / 2:
            self._rests = self._next_rests
            self._next_rests = min(2 * self._next_rests, RESTS_MAX)
        self._take()


def _nothing() -> None:
    """Replaces `take` after the connection has ended."""
