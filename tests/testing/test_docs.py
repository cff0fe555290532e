"""docs/testing.md: its examples are run as a test module of a user's."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pulsemark
from pulsemark.testing import plugin
from pulsemark.testing.faults import Faults

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text()
SOURCES = str(Path(pulsemark.__file__).parents[1])


def test_the_examples_pass(tmp_path):
    """All blocks together are one module; each test in it passes, without a warning."""
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_app.py").write_text("\n\n".join(blocks))
    tests = sum(block.count("\ndef test_") + block.startswith("def test_") for block in blocks)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider",
         "-p", "pulsemark.testing.plugin"],
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert tests >= 8
    assert f"{tests} passed" in result.stdout, result.stdout + result.stderr


def test_every_fixture_and_fault_is_described():
    """The tables name all of them, and no others."""
    fixtures = set(re.findall(r"^\| `(\w+)` \| (?:session|function)", TEXT, re.MULTILINE))
    assert fixtures == set(plugin.__all__)
    faults = set(re.findall(r"faults\.(\w+)\(", TEXT))
    public = {name for name, _ in inspect.getmembers(Faults, inspect.isfunction)}
    assert faults == {name for name in public if not name.startswith("_")}
