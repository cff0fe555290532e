"""Every example runs as its own head says, and the README leads to it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, tmp_path: Path) -> None:
    """The command in an example's head works from the root and ends well."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    said = re.search(rf"^    (python|pytest) examples/{re.escape(name)}$", text, re.MULTILINE)
    assert said, "the head gives the command"
    command = [sys.executable, f"examples/{name}"]
    if said[1] == "pytest":
        # Its own configuration would be the project's: an example stands for a stranger's test.
        command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider"]
        command += [f"--rootdir={tmp_path}", f"examples/{name}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_readme_leads_to_example(name: str) -> None:
    """The README names every example."""
    assert f"examples/{name}" in (ROOT / "README.md").read_text(encoding="utf-8")
