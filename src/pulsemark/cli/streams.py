"""The standard streams of a process, as its caller left them.

A caller may have closed one of them (`>&-`). Then the first file or socket that is opened gets its
number, and what a C library writes to "standard error" would go into that file, be it a segment. So
closed streams become /dev/null before anything else is opened. What an output's encoding has no
letter for is written as an escape.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from .errors import CliError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Output(io.FileIO):
    """Standard output. If it cannot be written, the error says that it is the output.

    Otherwise "No space left on device" could also mean the folder that a command works on.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _discard(self.fileno())
            raise CliError(f"the output cannot be written: {error.strerror}") from error


def _discard(number: int) -> None:
    """What is written later, as by the interpreter at its end, must not fail a second time."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, number)
    os.close(nothing)


def prepare_streams() -> None:
    """Open what is closed, and let outputs take any text."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open(number)
            mode = "w" if number else "r"
            opened = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, opened)
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        before = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(before.fileno(), "w", closefd=False)),
            encoding=before.encoding,
            errors="backslashreplace",
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
