"""Results as a table for people, as lines for other programs, or as JSON.

On a terminal the table fits its width: long names are folded over several lines, never cut off.
Where that leaves too little of them, each row is a block of lines with one value each. Elsewhere
columns are separated by spaces, lines are as long as they need to be, and numbers are plain digits.
rich draws on terminals, and is not even imported elsewhere: it knows width, colours and NO_COLOR.

`Progress` is a bar on standard error where that is a terminal, and nothing elsewhere. The work
counts for itself, and the bar asks for its count some times a second. So it is as fast as without.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress


def json_line(fields: object) -> str:
    """One line of JSON; paths are texts. Only what the output's encoding cannot show is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return json.dumps(fields, ensure_ascii=not is_utf8, separators=(",", ":"), default=os.fspath)


def escaped(text: str) -> str:
    """Text for people, in one line: what a terminal would act on is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, what: str) -> str:
    """A count for people: 1 entry, 2,000 entries."""
    if number != 1:
        what = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{number:,} {what}"


def tags_text(tags: Mapping[str, object]) -> str:
    """Tags for people, in one line."""
    return " ".join(escaped(f"{name}={value}") for name, value in tags.items())


_GAP = 2
_FOLDED_FROM = 12
"""A column of text is never narrower, unless its values are."""


class Table:
    """Headings and cells; a column of numbers is aligned to the right."""

    def __init__(
        self, headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool]
    ) -> None:
        self.headings = [escaped(text) for text in headings]
        self.rows = [[escaped(text) for text in row] for row in rows]
        self.numbers = list(numbers)

    def lines(self) -> list[str]:
        """The table as plain text."""
        lines = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return [
            (" " * _GAP).join(
                text.rjust(width) if is_number else text.ljust(width)
                for text, width, is_number in zip(line, widths, self.numbers, strict=True)
            ).rstrip()
            for line in lines
        ]  # fmt: skip

    def print_on(self, console: Console) -> None:
        """Print it on a terminal."""
        # Blocks are wrapped by the terminal itself, so that a name can be copied in one piece.
        is_grid = self._widths(console.width) is not None
        console.print(self.rendered(console.width), soft_wrap=not is_grid)

    def rendered(self, width: int) -> RenderableType:
        """The table for a terminal of this width, in characters."""
        found = self._widths(width)
        return self._blocks() if found is None else self._grid(*found)

    def _widths(self, width: int) -> tuple[list[int], int] | None:
        """The widths of the columns, and of the gap between them; None if they do not fit."""
        from rich.cells import cell_len

        columns = list(zip(self.headings, *self.rows, strict=True))
        widths = [max(map(cell_len, column)) for column in columns]
        least = []
        for (heading, *cells), natural, is_number in zip(
            columns, widths, self.numbers, strict=True
        ):
            words = [0, *map(cell_len, heading.split())]
            kept = map(cell_len, cells) if is_number else [min(natural, _FOLDED_FROM)]
            least.append(max(*words, *kept))
        for gap in (_GAP, 1):
            room = width - gap * (len(columns) - 1)
            if sum(least) <= room:
                return _narrowed(widths, least, room), gap
        return None

    def _grid(self, widths: list[int], gap: int) -> RenderableType:
        from rich import table
        from rich.text import Text

        grid = table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        for heading, width, is_number in zip(self.headings, widths, self.numbers, strict=True):
            grid.add_column(
                Text(heading), width=width, overflow="fold",
                justify="right" if is_number else "left",
            )  # fmt: skip
        for row in self.rows:
            grid.add_row(*map(Text, row))
        return grid

    def _blocks(self) -> RenderableType:
        from rich.text import Text

        wide = max(map(len, self.headings)) + _GAP
        found = Text(overflow="fold")
        for number, row in enumerate(self.rows):
            found.append("\n" if number else "")
            for heading, text in zip(self.headings, row, strict=True):
                found.append(heading.ljust(wide), style="bold")
                found.append(f"{text}\n")
        found.rstrip()
        return found


def _narrowed(widths: list[int], least: list[int], room: int) -> list[int]:
    """The widths, with the widest columns narrowed until they fit."""
    widths = list(widths)
    while sum(widths) > room:
        wide = (at for at in range(len(widths)) if widths[at] > least[at])
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def table_of(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, for_people: bool
) -> Table:
    """The table of rows; for people with separators in large numbers."""
    texts = [[_text(row.get(column), for_people) for column in columns] for row in rows]
    numbers = [all(_is_number(row.get(name)) for row in rows) for name in columns]
    return Table(columns, texts, numbers)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table as it suits standard output. ``console``: that of a terminal, if known."""
    console = console or output_console()
    if console is None:
        print("".join(f"{line}\n" for line in table.lines()), end="")
    else:
        table.print_on(console)


def print_rows(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], *, as_json: bool
) -> None:
    """Print rows: with a line of headings, or with `as_json` one object per line.

    A single column has no heading, so that its values can be used by other programs.
    """
    if as_json:
        for row in rows:
            print(json_line(row))
        return
    rows = list(rows)
    if len(columns) == 1:
        texts = [_text(row.get(columns[0]), for_people=False) for row in rows]
        print("".join(f"{escaped(text)}\n" for text in texts), end="")
        return
    console = output_console()
    print_table(table_of(rows, columns, for_people=console is not None), console)


def print_done(what: str, fields: Mapping[str, object], *, as_json: bool) -> None:
    """Print that something was done: a sentence, or its facts as JSON."""
    print(json_line(fields) if as_json else what)


def _text(value: object, for_people: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if for_people else f"{value:.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if for_people else str(value)
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def output_console() -> Console | None:
    """The console of standard output; None if it is no terminal."""
    return _console(sys.stdout)


def error_console() -> Console | None:
    """The console of standard error; None if it is no terminal."""
    return _console(sys.stderr)


def _console(stream: TextIO | None) -> Console | None:
    try:
        if stream is None or not stream.isatty():
            return None
    except ValueError:  # it is closed
        return None
    from rich.console import Console

    # Topics and tags are text, not rich's markup, emoji codes or Python values to colour.
    return Console(file=stream, markup=False, emoji=False, highlight=False)


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
        """The figures of a progress bar: done, total, and rate per second."""

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
