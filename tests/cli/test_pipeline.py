"""`pulsemark pipeline`: the jobs with this command's manners."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pulsemark.cli import pipeline
from pulsemark.pipeline import JOBS

Folder = Any
Command = Any


@pytest.mark.timeout(240)
def test_audit(folder: Folder, pulsemark: Command) -> None:
    """The audit of a folder counts its messages and misses none."""
    ran = pulsemark.process("pipeline", "audit", "--data-dir", folder.path, "--topic", folder.topic)
    assert ran.status == 0, ran.err
    heading, row = ran.out.splitlines()
    assert "missing" in heading
    assert folder.topic in row
    assert str(sum(folder.counts)) in row.split()


NAMES = ["topic", "bucket_start", "count", "missing"]
ROWS = [
    dict(zip(NAMES, row, strict=True))
    for row in (
        ("persistent://public/default/a\x1b[2Jb", "2026-03-01T14:05:00.000Z", 12_345, None),
        ("persistent://public/default/b", None, 7, 0),
    )
]


@pytest.fixture
def job_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has these rows, without Spark."""

    def run_job(*_: object, show: Any, **__: object) -> int:
        show(NAMES, ROWS)
        return 0

    monkeypatch.setattr(pipeline, "run_job", run_job)


@pytest.mark.usefixtures("job_with_rows")
def test_a_pipe_gets_lines(pulsemark: Command) -> None:
    """A row is a line with plain digits, ISO times and no control character; null is a dash."""
    ran = pulsemark("pipeline", "audit", "data")
    assert [re.split(" {2,}", line.strip()) for line in ran.out.splitlines()] == [
        NAMES,
        [r"persistent://public/default/a\x1b[2Jb", "2026-03-01T14:05:00.000Z", "12345", "-"],
        ["persistent://public/default/b", "-", "7", "0"],
    ]


@pytest.mark.usefixtures("job_with_rows")
def test_a_terminal_gets_a_table(pulsemark: Command, terminal: Any) -> None:
    """It fits the terminal's width, as the tables of the other commands do."""
    shown = terminal("stdout", 100)
    assert pulsemark("pipeline", "audit", "data").status == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).splitlines()
    assert "\x1b[1m" in shown.getvalue()
    assert "12,345" in lines[1]
    assert max(map(len, lines)) <= 100
    shown = terminal("stdout", 25)
    pulsemark("pipeline", "audit", "data")
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).startswith("topic         persistent:")


@pytest.mark.parametrize("job", JOBS)
def test_every_job_explains_itself(job: str, pulsemark: Command) -> None:
    """`pulsemark pipeline JOB --help` shows the job's own options."""
    ran = pulsemark("pipeline", job, "--help")
    assert ran.status == 0
    assert f"usage: pulsemark pipeline {job}" in ran.out


@pytest.mark.timeout(240)
def test_bad_input(folder: Folder, pulsemark: Command, tmp_path: Path) -> None:
    """Unknown jobs and options and unusable folders are one line each."""
    for arguments, named in [
        (["frobnicate"], "frobnicate"),
        (["audit"], "pulsemark-data"),
        (["audit", folder.path], f"unrecognized arguments: {folder.path}"),
        (["audit", "--data-dir", folder.path, "--frobnicate"], "--frobnicate"),
        (["audit", "--data-dir", folder.path, "--cores", "-1"], "--cores"),
        (["audit", "--data-dir", folder.path, "--html", "/proc/nowhere/out"], "cannot be"),
    ]:
        assert named in pulsemark("pipeline", *arguments).error()
    assert (
        "nowhere"
        in pulsemark.process("pipeline", "audit", "--data-dir", tmp_path / "nowhere").error()
    )
