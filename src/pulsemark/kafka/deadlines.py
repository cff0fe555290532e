"""Many deadlines with one timer: waiting fetches, members' sessions, rebalances.

A deadline that was cancelled, or moved to later, stays in the heap until its old time. So a
heartbeat, which moves a member's deadline, only changes a field.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

log = logging.getLogger(__name__)

#: Cancelled deadlines are dropped once the heap has doubled, but not below this size.
SWEEP_AT_LEAST = 1_000


class Deadline:
    """One deadline. `at_s` None: cancelled."""

    __slots__ = ("at_s", "call")

    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s: float | None = at_s
        self.call = call

    def cancel(self) -> None:
        """Do not call."""
        self.at_s = None
        self.call = _nothing


def _nothing() -> None:
    """What a cancelled deadline calls."""


class Deadlines:
    """The deadlines of one endpoint, on the event loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Deadline]] = []
        self._sweep_at = SWEEP_AT_LEAST
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        """The event loop's time."""
        return self._loop.time()

    @property
    def entered(self) -> int:
        """How many deadlines are kept, cancelled ones included."""
        return len(self._heap)

    def after(self, delay_s: float, call: Callable[[], None]) -> Deadline:
        """Call `call` after `delay_s`; not before the loop's next turn, even if that is 0."""
        at_s = self._loop.time() + delay_s
        deadline = Deadline(at_s, call)
        if len(self._heap) >= self._sweep_at:
            self._heap = [item for item in self._heap if item[2].at_s is not None]
            heapify(self._heap)
            self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self._heap))
        heappush(self._heap, (at_s, next(self._numbers), deadline))
        if self._heap[0][2] is deadline:
            self._set_timer()
        return deadline

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._due) if self._heap else None

    def _due(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        while self._heap and self._heap[0][0] <= now_s:
            _, _, deadline = heappop(self._heap)
            if deadline.at_s is None:
                continue
            if deadline.at_s > now_s:
                heappush(self._heap, (deadline.at_s, next(self._numbers), deadline))
                continue
            call, deadline.at_s = deadline.call, None
            try:
                call()
            except Exception:
                # An error in one must not stop the others.
                log.exception("a call at its deadline failed")
        self._set_timer()

    def close(self) -> None:
        """Call nothing any more."""
        self._heap.clear()
        self._set_timer()
