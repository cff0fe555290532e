"""What a job has done so far, as a bar on a terminal.

Spark knows its tasks, and most jobs of this package have at least as many as there are cores. The
bar is drawn by rich, twice a second, in a thread; it is gone when the job ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pyspark import SparkContext
    from rich.console import Console, RenderableType
    from rich.progress import Progress

__all__ = ["line_of", "shown"]

_EVERY_S = 0.5


def line_of(done: int, active: int, total: int) -> str:
    """How many tasks are done, of those that Spark knows now."""
    tasks = f"{done} of {total} tasks" if total else "planning"
    return f"{tasks}, {active} running" if active else tasks


@contextmanager
def shown(
    context: SparkContext, name: str, out: TextIO | None, *, every_s: float = _EVERY_S
) -> Iterator[None]:
    """Show the progress of what runs inside, if ``out`` is a terminal."""
    if out is None or not out.isatty():
        yield
        return
    from rich.console import Console

    console = Console(file=out, markup=False, highlight=False)
    with _bar(context, name, console, every_s):
        console.show_cursor(True)  # a killed process could not show it again
        yield


def _bar(context: SparkContext, name: str, console: Console, every_s: float) -> Progress:
    from rich import progress

    class Asking(progress.Progress):
        """Asks Spark whenever it is drawn."""

        def get_renderables(self) -> list[RenderableType]:
            with suppress(Exception):  # a bar that cannot be drawn must not end the job
                done, active, total = _tasks(context)
                for task in self.tasks:
                    counts = line_of(done, active, total)
                    self.update(task.id, completed=done, total=total or None, counts=counts)
            return list(super().get_renderables())

    bar = Asking(
        progress.TextColumn("{task.description}:", markup=False),
        progress.BarColumn(20),
        progress.TextColumn("{task.fields[counts]}", markup=False),
        progress.TimeElapsedColumn(),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        refresh_per_second=1 / every_s,
    )  # fmt: skip
    bar.add_task(name, total=None, counts=line_of(0, 0, 0))
    return bar


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
