"""The README's programs run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
PART = README[README.index("### In your program") : README.index("### Over gRPC")]
PROGRAMS = re.findall(r"```python\n(.*?)```", PART, re.DOTALL)
EMBED, LEDGER = PROGRAMS


def run(program, folder):
    """What a program prints; it must end well, and without warnings."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("program", "shown"), [(EMBED, "pulsar://"), (LEDGER, "1:0")])
def test_embedding_runs_when_copied(program, shown, tmp_path):
    """In an empty folder, without a line more."""
    assert shown in run(program, tmp_path)


def test_it_is_short():
    """A reader sees all of it in a few minutes; what is left is in docs."""
    assert len(README.splitlines()) <= 180
