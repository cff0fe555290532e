"""`pulsemark pipeline`: the jobs with this command's manners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsemark.pipeline import JOBS

Folder = Any
Command = Any


@pytest.mark.timeout(240)
def test_audit(folder: Folder, pulsemark: Command) -> None:
    """The audit of a folder counts its messages and misses none."""
    ran = pulsemark.process("pipeline", "audit", folder.path, "--topic", folder.topic)
    assert ran.status == 0, ran.err
    heading, row = ran.out.splitlines()
    assert "missing" in heading
    assert folder.topic in row
    assert str(sum(folder.counts)) in row.split()


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
        (["audit"], "path"),
        (["audit", folder.path, "--frobnicate"], "--frobnicate"),
        (["audit", folder.path, "--cores", "-1"], "--cores"),
        (["audit", folder.path, "--out", tmp_path], "exists already"),
        (["audit", folder.path, "--out", "/proc/nowhere/out"], "cannot be written"),
    ]:
        assert named in pulsemark("pipeline", *arguments).error()
    assert "nowhere" in pulsemark.process("pipeline", "audit", tmp_path / "nowhere").error()
