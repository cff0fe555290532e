"""The terminals of a command: standard output and standard error, where they are one.

On a terminal, tables and progress are drawn by rich, which knows its width, its colours and
NO_COLOR. Elsewhere rich is not even imported: what goes into a pipe or a file is plain lines.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["error_console", "output_console"]


def output_console() -> Console | None:
    """That of standard output; None if it is no terminal."""
    return _console(sys.stdout)


def error_console() -> Console | None:
    """That of standard error; None if it is no terminal."""
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
