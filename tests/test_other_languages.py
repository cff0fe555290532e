"""Applications in Go, Java, Node.js and Rust are tested as docs/other-languages.md says.

The tests use no network: what Go, Maven, npm and cargo need has to be in their caches. The guide's
commands, run once, bring it there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pulsemark.pipeline.session import BRIEF_JVM

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
GUIDE = (ROOT / "docs" / "other-languages.md").read_text(encoding="utf-8")
LIMIT_S = 240

BROKER = """\
#!/bin/sh
PYTHONPATH={path} exec {python} -m pulsemark "$@"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment with the program `pulsemark` of this checkout, as `PULSEMARK`."""
    program = tmp_path / "pulsemark"
    path = os.pathsep.join(filter(None, sys.path))
    program.write_text(BROKER.format(path=path, python=sys.executable))
    program.chmod(0o755)
    return {**os.environ, "PULSEMARK": str(program)}


def program(name: str, *other_places: str) -> str:
    """Where a program is; the test is skipped without it."""
    found = shutil.which(name) or next((p for p in other_places if Path(p).exists()), None)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


def run(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, and return what it printed."""
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_go_application_is_tested(tmp_path: Path, environment: dict[str, str]) -> None:
    """`go test` starts a broker of its own, publishes, moves the clock and makes faults."""
    go = program("go", "/usr/local/go/bin/go")
    folder = shutil.copytree(EXAMPLES / "go_application", tmp_path / "application")
    environment |= {"GOPROXY": "off", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    listed = run([go, "list", "-test", "-deps", "./..."], folder, environment)
    if listed.returncode != 0:
        pytest.skip("Go's modules are not in its cache: `go mod download` in the example's folder")
    tested = run([go, "test", "-count=1", "-v", "./..."], folder, environment)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert tested.stdout.count("--- PASS: Test") == 4


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_java_application_is_tested(tmp_path: Path, environment: dict[str, str]) -> None:
    """`mvn test` does the same with JUnit."""
    maven = program("mvn")
    program("javac")
    ignore = shutil.ignore_patterns("target")
    folder = shutil.copytree(EXAMPLES / "java_application", tmp_path / "application", ignore=ignore)
    environment |= {"MAVEN_OPTS": BRIEF_JVM}
    command = [maven, "--offline", "--batch-mode", f"-DargLine={BRIEF_JVM}", "test"]
    tested = run(command, folder, environment)
    if re.search(r"in offline mode|has not been downloaded", tested.stdout):
        pytest.skip("Maven's artifacts are not in its cache: `mvn test` in the example's folder")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "Tests run: 4, Failures: 0" in tested.stdout


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_node_application_is_tested(tmp_path: Path, environment: dict[str, str]) -> None:
    """`npm test` does the same with a client of Kafka's protocol."""
    npm = program("npm")
    folder = shutil.copytree(EXAMPLES / "node_application", tmp_path / "application")
    if run([npm, "install", "--offline", "--no-audit"], folder, environment).returncode != 0:
        pytest.skip("Node's packages are not in its cache: `npm install` in the example's folder")
    tested = run([npm, "test"], folder, environment)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert re.search(r"pass 5\b", tested.stdout)


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_rust_application_is_tested(tmp_path: Path, environment: dict[str, str]) -> None:
    """`cargo test` does the same; what it builds is kept in the example's folder."""
    if "PULSEMARK_COMPILES" not in os.environ:
        pytest.skip("it compiles for minutes: `make other-languages`")
    cargo = program("cargo", str(Path.home() / ".cargo" / "bin" / "cargo"))
    program("protoc")
    ignore = shutil.ignore_patterns("target")
    folder = shutil.copytree(EXAMPLES / "rust_application", tmp_path / "application", ignore=ignore)
    environment.setdefault("CARGO_TARGET_DIR", str(EXAMPLES / "rust_application" / "target"))
    built = run([cargo, "test", "--offline", "--locked", "--no-run"], folder, environment)
    if re.search(r"--offline was specified|unable to update registry", built.stderr):
        pytest.skip("Rust's crates are not in its cache: `cargo fetch` in the example's folder")
    tested = run([cargo, "test", "--offline", "--locked"], folder, environment)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "4 passed; 0 failed" in tested.stdout


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("go_application/broker_test.go", "go"),
        ("java_application/src/test/java/orders/Broker.java", "java"),
        ("node_application/orders.test.js", "js"),
        ("rust_application/tests/orders.rs", "rust"),
    ],
)
def test_the_guide_shows_what_is_run(path: str, language: str) -> None:
    """The pieces of code in the guide are lines of the examples."""
    folder = (EXAMPLES / path).parent
    files = [each.read_text(encoding="utf-8") for each in folder.iterdir() if each.is_file()]
    lines = {line.strip() for text in files for line in text.splitlines()}
    blocks = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert blocks
    shown = {line.strip() for block in blocks for line in block.splitlines() if line.strip()}
    assert shown - lines == set()
