"""Progress of long work: a bar on standard error where that is a terminal, nothing elsewhere.

The work counts for itself, and the bar asks for its count some times a second. So the work is as
fast as without a bar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from .tables import error_console, output_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress


def size_text(size_bytes: float) -> str:
    """A size for people: 1.5 MiB."""
    if size_bytes < 1024:
        return f"{size_bytes:,.0f} bytes"
    units = ["KiB", "MiB", "GiB", "TiB"]
    while (size_bytes := size_bytes / 1024) >= 1024 and len(units) > 1:
        del units[0]
    return f"{size_bytes:,.1f} {units[0]}"


class ByteCount:
    """Bytes so far."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count more bytes."""
        self.size_bytes += size_bytes


class Progress:
    """A bar during the block; it disappears at the block's end.

    Args:
        what: what is done, a few words.
        done: how much is done so far. It is called from another thread.
        total: how much there is; None, or an OSError: not known. It is called only where a bar is
            shown, and may take a while.
        in_bytes: whether these are bytes, not pieces of something.
    """

    def __init__(
        self,
        what: str,
        done: Callable[[], int],
        *,
        total: Callable[[], int | None] = lambda: None,
        in_bytes: bool = True,
    ) -> None:
        self._bar: RichProgress | None = None
        self._what, self._done, self._total, self._in_bytes = what, done, total, in_bytes

    def say(self, text: str) -> None:
        """Print a line of results; on the same terminal it stands above the bar."""
        if self._bar is None or output_console() is None:
            print(text)
            return
        self._bar.stop()
        print(text, flush=True)
        self._bar.start()

    def __enter__(self) -> Self:
        console = error_console()
        if console is None:
            return self
        try:
            total = self._total()
        except OSError:  # the work itself will say so, if it needs what cannot be read
            total = None
        self._bar = _bar(console, self._what, self._done, total, in_bytes=self._in_bytes)
        self._bar.start()
        console.show_cursor(True)  # a killed process could not show it again
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar(
    console: Console, what: str, done: Callable[[], int], total: int | None, *, in_bytes: bool
) -> RichProgress:
    from rich import progress
    from rich.table import Column
    from rich.text import Text

    class Figures(progress.ProgressColumn):
        """How much of how much, and how much in a second."""

        def render(self, task: progress.Task) -> Text:
            def shown(number: float) -> str:
                return size_text(number) if in_bytes else f"{number:,.0f}"

            of = "" if task.total is None else f" of {shown(task.total)}"
            rate = f", {shown(task.completed / task.elapsed)}/s" if task.elapsed else ""
            return Text(f"{shown(task.completed)}{of}{rate}")

    class Asking(progress.Progress):
        """Asks for the count whenever it is drawn."""

        def get_renderables(self) -> list[RenderableType]:
            for task in self.tasks:
                self.update(task.id, completed=done())
            return list(super().get_renderables())

    cut, whole = Column(no_wrap=True, overflow="ellipsis"), Column(no_wrap=True, min_width=8)
    bar = Asking(
        progress.TextColumn("{task.description}", markup=False, table_column=cut),
        progress.BarColumn(20),
        Figures(table_column=whole),
        progress.TimeRemainingColumn(table_column=whole),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        refresh_per_second=5,
    )  # fmt: skip
    bar.add_task(what, total=total)
    return bar
