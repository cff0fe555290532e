"""Limits a compaction's speed: bytes per second, and half of the interpreter's time."""

from __future__ import annotations

import threading
import time

__all__ = ["Pace"]

REST_MAX_S = 1.0
#: There is no pause until the work took this time, since a pause and a wake-up have a cost.
WORK_MIN_S = 0.002


class Pace:
    """Pauses one run, so that it stays below a rate and works at most half of the time."""

    def __init__(self, bytes_per_s: int, stop: threading.Event) -> None:
        self._bytes_per_s = bytes_per_s
        self._stop = stop
        self._worked_from_s = time.monotonic()
        self._owed_s = 0.0

    def spent(self, size_bytes: int) -> None:
        """Count bytes that were read or written."""
        self._owed_s += size_bytes / self._bytes_per_s

    def rest(self) -> None:
        """Pause as long as the work since the last pause, or longer if the rate requires it."""
        worked_s = time.monotonic() - self._worked_from_s
        if max(worked_s, self._owed_s) < WORK_MIN_S:
            return
        rest_s = max(min(worked_s, REST_MAX_S), self._owed_s - worked_s)
        self._owed_s = 0.0
        self._stop.wait(rest_s)
        self._worked_from_s = time.monotonic()
