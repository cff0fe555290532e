"""The progress bar: on terminals only, and gone at the end."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pulsemark.pipeline.progress import line_of, shown


class Terminal(io.StringIO):
    """A terminal that says when something was written."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        """Whether it is one."""
        return self.is_terminal

    def write(self, text: str) -> int:
        """Remember it."""
        self.written.set()
        return super().write(text)


def context(fails: bool = False) -> Any:
    """A Spark that runs two stages."""

    def info(stage: int) -> Any:
        if fails:
            raise ConnectionError
        return SimpleNamespace(numTasks=10, numCompletedTasks=stage, numActiveTasks=2)

    tracker = SimpleNamespace(getActiveStageIds=lambda: [3, 4], getStageInfo=info)
    return SimpleNamespace(statusTracker=lambda: tracker)


def test_a_terminal_shows_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all stages together; at the end the bar is cleared."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    with shown(context(), "audit", out, every_s=0.001):
        assert out.written.wait(30)
    text = out.getvalue()
    assert "audit: " in text
    assert "7 of 20 tasks, 4 running" in text
    assert text.endswith("\x1b[2K")


def test_other_outputs_show_nothing() -> None:
    """A file, a pipe, no output at all."""
    out = Terminal(is_terminal=False)
    for where in (out, None):
        with shown(context(), "audit", where, every_s=0.001):
            pass
    assert out.getvalue() == ""


def test_a_spark_that_is_gone_does_no_harm() -> None:
    """The job ends as it would without the bar."""
    out = Terminal()
    with shown(context(fails=True), "audit", out, every_s=0.001):
        pass
    assert line_of(0, 0, 0) == "planning"
