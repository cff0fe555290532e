"""The Python of Spark's workers: the installed pyspark instead of the archive of its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsemark.pipeline.session import worker_python

_SHOW = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable, sys.argv[1:])"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("/s/lib/pyspark.zip:/s/lib/py4j-0.10-src.zip:/j/core.jar:/a b", "/j/core.jar:/a b"),
        ("/own/x-src.zip:/a", "/own/x-src.zip:/a"),
        ("", ""),
    ],
)  # fmt: skip
def test_only_sparks_archives_are_taken_off_the_path(given: str, left: str) -> None:
    """What Spark puts first goes, what users have stays; it is this Python, with all arguments."""
    done = subprocess.run(
        [worker_python(), "-c", _SHOW, "a b", "$x"],
        env={**os.environ, "PYTHONPATH": given},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [left, f"{sys.executable} ['a b', '$x']"]


def test_a_folder_that_runs_nothing_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the script could not be run, workers start as Spark has it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda name, _: not str(name).startswith(str(tmp_path)))
    assert worker_python.__wrapped__() == sys.executable
