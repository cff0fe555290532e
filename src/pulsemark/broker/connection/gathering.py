"""Letting the commands of a client gather that sends on without waiting for its receipts.

Whatever comes alone costs the broker most: a commit with its sync and its changes of threads, a
turn of the event loop for the receipt and one write. At some thousands of messages a second that is
nearly all of the price of a message. A client that sends on while its publishes are under way does
not need each receipt at once. So what it sends is handled a moment later, with what comes
meanwhile, as if the network had taken so much longer. Pulsar's bookies wait in the same way for a
group of entries (``journalMaxGroupWaitInMillis``, 1 ms).

Clients that do wait for their receipts would lose by this: they send nothing more until they have
them. So a wait whose second half brought nothing was in vain. After that nothing waits for some
reads, twice as many each time. Where reads come further apart than the wait, or enough is there
or under way already, nothing waits either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Gathering"]

#: How much is handled at once, and how many publishes under way are enough for a commit.
ENOUGH_BYTES = 4 * 1024
ENOUGH_ENTRIES = 16
#: For how many reads nothing waits, at most, after waits that were in vain.
RESTS_MAX = 1024


class Gathering:
    """Of one connection. `take` handles what has gathered."""

    __slots__ = (
        "_began_at_s",
        "_clock",
        "_heard_at_s",
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
        # The loop's own time stands still while it works: too coarse for this.
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._began_at_s = self._heard_at_s = 0.0
        #: Reads that are still to be handled at once, and how many that are after a wait in vain.
        self._rests = 0
        self._next_rests = 1

    def waits(self, unhandled_bytes: int, entries_in_flight: int) -> bool:
        """After a read: whether it is to wait for more. Then `take` will be called."""
        now_s = self._clock()
        was_heard_at_s, self._heard_at_s = self._heard_at_s, now_s
        if self._timer is not None:
            if unhandled_bytes < ENOUGH_BYTES:
                return True
            self.stop()
            self._next_rests = 1
            return False
        if now_s - was_heard_at_s >= self._wait_s:
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
        """The connection has ended: nothing is handled any more, and its method is let go."""
        self.stop()
        self._take = _nothing

    def end(self) -> None:
        """Handle what has gathered now."""
        if self._timer is not None:
            self.stop()
            self._take()

    def stop(self) -> None:
        """Wait no longer, and leave what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        waited_s = self._clock() - self._began_at_s
        if self._heard_at_s - self._began_at_s >= waited_s / 2:
            self._next_rests = 1
        elif waited_s >= self._wait_s / 2:
            self._rests = self._next_rests
            self._next_rests = min(2 * self._next_rests, RESTS_MAX)
        self._take()


def _nothing() -> None:
    """What a connection that has ended handles."""
