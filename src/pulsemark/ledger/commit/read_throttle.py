"""Readers' turns while commits are under way: reading must not starve writing.

A thread that reads a log holds the interpreter's lock nearly all the time. A commit gives that
lock up at each of its system calls, and would get it back only after the interpreter's switch
interval, 5 ms: one reader alone made durable appends many times slower. So while commits are
pending, or have just been made, readers read in short slices and take turns. Before each slice
they sleep, one after another, until the commit waits for the disk: then no commit needs the
interpreter. Each reader gets an equal part of that time, and a slice at least every few
milliseconds, however long a commit takes. While nothing is written, readers do not wait at all.

The thread in which commit callbacks run (an event loop's) never waits here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SLICE_S = 0.00005
"""A reader that has read for less than this since its last pause reads on."""
PAUSE_S = 0.001
"""The shortest sleep of a reader before a slice."""
LOOK_S = 0.0001
LOOKS = 16
"""After that sleep it looks for a good moment, this often and at most this many times."""
RECENT_S = 0.02
"""Commits closer together than this count as one stream of commits."""


class _LastTurn(threading.local):
    """The time of this thread's last turn."""

    began_s = 0.0


class ReadThrottle:
    """The turns of a store's readers, except the thread ``never_waits()``, which must not sleep."""

    def __init__(
        self, is_good_moment: Callable[[], bool], never_waits: Callable[[], int] = lambda: -1
    ) -> None:
        self._is_good_moment = is_good_moment
        self._never_waits = never_waits
        self._turn = threading.Lock()
        self._last = _LastTurn()
        self._committed_s = -RECENT_S

    def committed(self) -> None:
        """Note that a batch was committed now."""
        self._committed_s = time.perf_counter()

    def are_due(self) -> bool:
        """Whether readers must take turns: a batch was committed a moment ago."""
        return time.perf_counter() - self._committed_s < RECENT_S

    def wait(self) -> None:
        """Sleep until it is this reader's turn."""
        last = self._last
        if time.perf_counter() - last.began_s < SLICE_S:
            return
        if threading.get_ident() == self._never_waits():
            return
        with self._turn:
            time.sleep(PAUSE_S)
            for _ in range(LOOKS):
                if self._is_good_moment():
                    break
                time.sleep(LOOK_S)
        last.began_s = time.perf_counter()
