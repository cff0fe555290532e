"""The guide to tests of Spark's jobs: its example passes as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "testing-frameworks.md").read_text(encoding="utf-8")


@pytest.mark.timeout(240)
def test_the_example_for_spark_passes(tmp_path: Path) -> None:
    """A session, a job that reads a broker's folder, and a test of it."""
    section = GUIDE.partition("\n## Spark\n")[2]
    (block,) = re.findall(r"^```py\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_job.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_job.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        timeout=220,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
