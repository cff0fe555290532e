"""Finds what blocks an event loop: for how long, and in which handler.

    monitor = LoopMonitor(threshold_ms=50)
    monitor.start()                                  # on the loop's thread, with the loop running
    ...
    monitor.stop()
    for stall in monitor.stalls: print(stall.wall_ms, stall.handler)

A heartbeat timer on the loop notes the time. When the heartbeat is late, a thread reads the stack
of the loop's thread every few milliseconds. The handler that was seen most often has blocked the
loop. On a busy machine the loop may be late because other processes use the processor. `cpu_ms`
is the processor time of the loop's thread meanwhile, and `is_held` is true if that alone is above
the threshold.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

__all__ = ["LoopMonitor", "Stall"]

BEAT_S = 0.005
LOOK_S = 0.004
#: A loop that is blocked for so long may stay blocked, so it is reported before it ends.
HUNG_S = 2.0
#: The frames of the event loop itself; frames below them are those of the handler.
_LOOP_FILES = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py")
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which one handler blocked the loop."""

    wall_ms: float
    #: Processor time of the loop's thread in that time.
    cpu_ms: float
    #: `file:function` that the loop called, and the innermost function of this package.
    handler: str
    is_held: bool


class LoopMonitor:
    """Watches one running loop.

    `report` is called on the loop after each stall. If a stall lasts for HUNG_S, `report` is also
    called once from another thread, before the stall ends.
    """

    def __init__(
        self, threshold_ms: float = 50, report: Callable[[Stall], None] | None = None
    ) -> None:
        self.threshold_ms = threshold_ms
        self.stalls: list[Stall] = []
        self._report = report or self.stalls.append
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._seen: Counter[str] = Counter()
        self._thread_id = 0
        self._clock = 0
        self._beat_at_s = self._worked_s = self._hung_at_s = 0.0

    def start(self) -> None:
        """Begin to watch the running loop. Call it on the loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._note()
        self._timer = self._loop.call_later(BEAT_S, self._beat)
        threading.Thread(target=self._watch, name="loop-monitor", daemon=True).start()

    def stop(self) -> None:
        """Stop watching. Call it on the loop's thread."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        self._worked_s = time.clock_gettime(self._clock)
        self._beat_at_s = time.monotonic()

    def _beat(self) -> None:
        wall_ms = (time.monotonic() - self._beat_at_s - BEAT_S) * 1000
        seen, self._seen = self._seen, Counter()
        if wall_ms >= self.threshold_ms:
            self._report(self._stall(wall_ms, seen))
        assert self._loop is not None
        self._note()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _stall(self, wall_ms: float, seen: Counter[str]) -> Stall:
        cpu_ms = (time.clock_gettime(self._clock) - self._worked_s) * 1000
        handler = seen.most_common(1)[0][0] if seen else "unknown"
        return Stall(wall_ms, cpu_ms, handler, cpu_ms >= self.threshold_ms)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            # Sampling starts at half of the threshold, so that there are enough samples.
            late_ms = (time.monotonic() - self._beat_at_s - BEAT_S) * 1000
            if late_ms >= self.threshold_ms / 2:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._seen[name_of(frame)] += 1
            if late_ms >= HUNG_S * 1000 and self._hung_at_s != self._beat_at_s:
                self._hung_at_s = self._beat_at_s
                self._report(self._stall(late_ms, self._seen))


def name_of(innermost: FrameType | None) -> str:
    """The function that the loop called and the innermost one, from a stack's innermost frame."""
    handler = deepest = ""
    frame = innermost
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_LOOP_FILES):
            break
        if file.startswith(_PACKAGE):
            handler = f"{file.removeprefix(_PACKAGE + '/')}:{frame.f_code.co_name}"
            deepest = deepest or handler
        elif not handler:
            handler = f"{Path(file).name}:{frame.f_code.co_name}"
        frame = frame.f_back
    if not deepest or deepest == handler:
        return handler or "the event loop"
    return f"{handler} > {deepest}"
