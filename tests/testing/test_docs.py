"""The tutorial, the guides to testing and the README's part on it: their examples are run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pulsemark
from pulsemark.testing import plugin
from pulsemark.testing.faults import Faults

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text()
FRAMEWORKS = (ROOT / "docs" / "testing-frameworks.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
README = (ROOT / "README.md").read_text()
SOURCES = str(Path(pulsemark.__file__).parents[1])


@pytest.mark.parametrize(
    ("text", "least"),
    [
        (TEXT, 8),
        (TUTORIAL, 2),
        (FRAMEWORKS, 3),
        (README[: README.index("### In your program")], 1),
    ],
)
def test_the_examples_pass(tmp_path, text, least):
    """All blocks together are one module; each test in it passes, without a warning."""
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    tests = len(re.findall(r"^ *def test_", "\n".join(blocks), re.MULTILINE))
    assert tests >= least
    passes_with_warnings_as_errors(tmp_path, "\n\n".join(blocks), tests)


def passes_with_warnings_as_errors(folder: Path, content: str, tests: int) -> None:
    """Run a module as an application's test run does, where every warning is an error."""
    (folder / "test_app.py").write_text(content)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider",
         "-p", "pulsemark.testing.plugin"],
        cwd=folder,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert f"{tests} passed" in result.stdout, result.stdout + result.stderr


def test_the_faststream_example_passes(tmp_path):
    """FastStream's application uses the Kafka address, and Pulsar's side sees its result."""
    pytest.importorskip("faststream", reason="faststream is not installed (the extra `test`)")
    (block,) = re.findall(r"^```py\n(import asyncio\n\nfrom faststream.*?)^```", FRAMEWORKS,
                          re.MULTILINE | re.DOTALL)  # fmt: skip
    passes_with_warnings_as_errors(tmp_path, block, 1)


def test_the_kafka_fixture_warns_of_nothing(tmp_path):
    """kafka-python reads its schemas in a way that newer Pythons call deprecated."""
    pytest.importorskip("kafka")
    test = "def test_it(kafka_bootstrap_servers):\n    assert ':' in kafka_bootstrap_servers\n"
    passes_with_warnings_as_errors(tmp_path, test, 1)


def test_every_fixture_and_fault_is_described():
    """The tables name all of them, and no others."""
    fixtures = set(re.findall(r"^\| `(\w+)` \| (?:session|function)", TEXT, re.MULTILINE))
    source = inspect.getsource(plugin)
    assert fixtures == set(re.findall(r"^@pytest\.fixture.*\ndef (\w+)", source, re.MULTILINE))
    faults = set(re.findall(r"faults\.(\w+)\(", TEXT))
    public = {name for name, _ in inspect.getmembers(Faults, inspect.isfunction)}
    assert faults == {name for name in public if not name.startswith("_")}
