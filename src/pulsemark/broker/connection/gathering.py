"""Gathers the publishes of a client that sends without waiting for receipts.

A message that is handled alone is expensive. It needs a commit with its sync and its thread
switches, turns of the event loop for its read and its receipt, and one write. At a few thousand
messages a second this is most of a message's cost. A client that sends more while its publishes
are in flight does not need each receipt at once. So the broker handles such a client's publishes
some at a time, as if the network had been slower by that time. Pulsar's bookies wait in the same
way for a group of entries (``journalMaxGroupWaitInMillis``, 1 ms).

A client that does wait for its receipts would become slower, since it sends nothing until it has
them. So the broker first finds out what the client does, and it does so again and again:

- **Wait**: what was read is not handled for `wait_s`, while the broker reads on. The wait was
  useless if nothing arrived in its second half. After a useless wait the next reads are handled at
  once, and their number doubles with each useless wait (up to RESTS_MAX).
- **Pause**: after a useful wait, each of the next PACED_READS reads is handled at once, and then
  the connection is not read for `wait_s`, or until ENOUGH_BYTES have arrived (the socket's
  low-water mark, SO_RCVLOWAT). What arrives meanwhile stays in the socket and costs one read and
  one turn of the loop, however many messages it is. Then comes a wait again.

The broker does neither if the time between two reads is longer than it would wait, or if enough
bytes arrive or enough publishes are in flight already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Gathering"]

#: With so many unhandled bytes, or so many publishes in flight, waiting brings nothing.
ENOUGH_BYTES = 8 * 1024
ENOUGH_ENTRIES = 16
#: The most reads that are handled at once after useless waits.
RESTS_MAX = 1024
#: Reads that are followed by a pause, after each useful wait.
PACED_READS = 16


class Gathering:
    """Decides for one connection when to wait, and when to pause.

    Args:
        wait_s: how long one wait or pause takes; 0: there is none.
        loop: has the timers.
        take: handles what has arrived.
        set_low_water: says how many bytes must have arrived before the connection is read.
        clock: in seconds. The loop's own clock is set once for each turn, which is too coarse.
    """

    __slots__ = (
        "_began_at_s",
        "_clock",
        "_last_read_at_s",
        "_loop",
        "_next_rests",
        "_paced_reads",
        "_rests",
        "_set_low_water",
        "_take",
        "_timer",
        "_wait_s",
        "is_pausing",
    )

    def __init__(
        self,
        wait_s: float,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[], None],
        set_low_water: Callable[[int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._loop = loop
        self._take = take
        self._set_low_water = set_low_water
        self._clock = clock
        #: Ends the wait or the pause.
        self._timer: asyncio.TimerHandle | None = None
        #: Whether it is a pause that the timer ends.
        self.is_pausing = False
        self._began_at_s = self._last_read_at_s = 0.0
        #: Reads still to be handled at once, and how many follow the next useless wait.
        self._rests = 0
        self._next_rests = 1
        #: Reads still to be followed by a pause.
        self._paced_reads = 0

    def waits(self, unhandled_bytes: int, entries_in_flight: int) -> bool:
        """Called after a read. Return whether to wait for more; `take` is then called later."""
        now_s = self._clock()
        previous_read_at_s, self._last_read_at_s = self._last_read_at_s, now_s
        if self.is_pausing:
            # The client sends so fast that pauses are not needed, or it has ended.
            self.stop()
            self._paced_reads = 0
            return False
        if self._timer is not None:
            if unhandled_bytes < ENOUGH_BYTES:
                return True
            self.stop()
            self._next_rests = 1
            return False
        if self._paced_reads:
            if now_s - previous_read_at_s >= 2 * self._wait_s:
                self._paced_reads = 0
            return False
        if now_s - previous_read_at_s >= self._wait_s:
            return False
        if self._rests:
            self._rests -= 1
            return False
        if unhandled_bytes >= ENOUGH_BYTES or entries_in_flight >= ENOUGH_ENTRIES:
            return False
        self._began_at_s = now_s
        self._timer = self._loop.call_later(self._wait_s, self._wait_over)
        return True

    def handled(self) -> None:
        """All that had arrived was read and handled at once: pause, if the client is paced."""
        if self._paced_reads and self._timer is None:
            self._paced_reads -= 1
            self.is_pausing = True
            self._set_low_water(ENOUGH_BYTES)
            self._timer = self._loop.call_later(self._wait_s, self._pause_over)

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
        """Stop waiting or pausing, without handling what has arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self.is_pausing:
                self._pause_over()

    def _pause_over(self) -> None:
        self._timer = None
        self.is_pausing = False
        self._set_low_water(1)

    def _wait_over(self) -> None:
        self._timer = None
        waited_s = self._clock() - self._began_at_s
        if self._last_read_at_s - self._began_at_s >= waited_s / 2:
            self._next_rests = 1
            self._paced_reads = PACED_READS
        elif waited_s >= self._wait_s / 2:
            self._rests = self._next_rests
            self._next_rests = min(2 * self._next_rests, RESTS_MAX)
        self._take()


def _nothing() -> None:
    """Replaces `take` after the connection has ended."""
