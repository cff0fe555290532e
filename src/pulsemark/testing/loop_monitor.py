"""Finds what holds an event loop: how long, and in which handler.

    monitor = LoopMonitor(threshold_ms=50)
    monitor.start()                                  # on the loop's thread, with the loop running
    ...
    monitor.stop()
    for stall in monitor.stalls: print(stall.wall_ms, stall.handler)

A heartbeat on the loop notes the time. When it is late, a thread looks at the loop thread's stack
every few milliseconds; the handler that was seen most often has held the loop. On a busy machine
the loop may be late because others have the processor: `cpu_ms` says how long the loop's thread
worked meanwhile, and `is_held` is true where that alone is above the threshold.
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
#: A loop that is held for so long may be held for ever: it is reported while it is.
HUNG_S = 2.0
#: Where a stack passes from the event loop to what runs on it.
_LOOP_FILES = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py")
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Stall:
    """The loop did nothing else for a while."""

    wall_ms: float
    #: How long the loop's thread worked in that time.
    cpu_ms: float
    #: `file:function` that the loop called, and the innermost one of this package below it.
    handler: str
    is_held: bool


class LoopMonitor:
    """Watches one running loop.

    `report` is called on the loop with each stall, and from another thread, once, with one that
    goes on for HUNG_S.
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
        """Begin to watch the running loop, from its own thread."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._note()
        self._timer = self._loop.call_later(BEAT_S, self._beat)
        threading.Thread(target=self._watch, name="loop-monitor", daemon=True).start()

    def stop(self) -> None:
        """End; on the loop's thread."""
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
            # Half of the threshold: the rest of it is enough to be seen.
            late_ms = (time.monotonic() - self._beat_at_s - BEAT_S) * 1000
            if late_ms >= self.threshold_ms / 2:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._seen[name_of(frame)] += 1
            if late_ms >= HUNG_S * 1000 and self._hung_at_s != self._beat_at_s:
                self._hung_at_s = self._beat_at_s
                self._report(self._stall(late_ms, self._seen))


def name_of(innermost: FrameType | None) -> str:
    """What the loop called, and where that is now, from the innermost frame of a stack."""
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
