"""What a job has done so far, in one line on a terminal.

Spark knows its tasks, and most jobs of this package have at least as many as there are cores. The
line is drawn again twice a second from a thread, and is gone when the job ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["line_of", "shown"]

_EVERY_S = 0.5
_CLEAR = "\r\x1b[K"


def line_of(name: str, seconds: float, done: int, active: int, total: int) -> str:
    """The line: how many tasks are done, of those that Spark knows now."""
    tasks = f"{done} of {total} tasks" if total else "planning"
    running = f", {active} running" if active else ""
    return f"{name}: {tasks}{running}, {seconds:.0f} s"


@contextmanager
def shown(
    context: SparkContext,
    name: str,
    out: TextIO | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    every_s: float = _EVERY_S,
) -> Iterator[None]:
    """Show the progress of what runs inside, if ``out`` is a terminal."""
    if out is None or not out.isatty():
        yield
        return
    ended = threading.Event()
    began_s = clock()

    def draw() -> None:
        while not ended.wait(every_s):
            with suppress(Exception):  # a line that cannot be drawn must not end the job
                counts = _tasks(context)
                out.write(_CLEAR + line_of(name, clock() - began_s, *counts))
                out.flush()

    thread = threading.Thread(target=draw, name="pulsemark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)
        with suppress(OSError, ValueError):
            out.write(_CLEAR)
            out.flush()


def _tasks(context: SparkContext) -> tuple[int, int, int]:
    """Done, active and all tasks of the stages that run now."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return (
        sum(stage.numCompletedTasks for stage in known),
        sum(stage.numActiveTasks for stage in known),
        sum(stage.numTasks for stage in known),
    )
