"""Where tests stand: the test tree mirrors the packages, as CONTRIBUTING.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pulsemark"


def modules_below(tests: Path) -> list[Path]:
    """The test modules below a folder, relative to it."""
    return sorted(path.relative_to(tests) for path in tests.rglob("test_*.py"))


def homes_of(subject: str, test: Path, package: Path) -> set[Path]:
    """The folders where the test of a subject may stand, relative to the tests' root.

    These are the folders of the modules and packages of that name in the test's own part of the
    package (ledger, broker...). There are none if the subject is a scenario.
    """
    part = package / test.parts[0] if len(test.parts) > 1 else package
    search = part.rglob if len(test.parts) > 1 else part.glob
    modules = {path.parent for path in search(f"{subject}.py")}
    packages = {path.parent for path in search(f"{subject}/__init__.py")}
    return {path.relative_to(package) for path in modules | packages}


def misplaced(tests: Path, package: Path) -> list[str]:
    """What is wrong with the place of each test module, one line for each that is wrong."""
    wrong = []
    for test in modules_below(tests):
        if not (package / test.parent / "__init__.py").is_file():
            wrong.append(f"{test}: there is no package {test.parent}")
            continue
        homes = homes_of(test.stem.removeprefix("test_"), test, package)
        if homes and test.parent not in homes:
            wrong.append(f"{test}: belongs into {' or '.join(sorted(map(str, homes)))}")
    return wrong


def test_tests_mirror_the_packages() -> None:
    """Each test module stands in the folder of the module, package or scenario it is about."""
    assert misplaced(ROOT / "tests", PACKAGE) == []


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        ("store/disk/test_blocks.py", None),
        ("store/disk/test_power_cuts.py", None),
        ("store/disk/test_disk.py", None),
        ("store/test_power_cuts.py", None),
        ("net/test_blocks.py", None),
        ("test_demo.py", None),
        ("test_blocks.py", None),
        ("store/test_blocks.py", "store/test_blocks.py: belongs into store/disk"),
        ("store/test_disk.py", "store/test_disk.py: belongs into store/disk"),
        ("disk/test_power_cuts.py", "disk/test_power_cuts.py: there is no package disk"),
        ("store/data/test_power_cuts.py", "store/data/test_power_cuts.py: there is no package"),
    ],
)
def test_misplaced_tests_are_noticed(tmp_path: Path, test: str, wrong: str | None) -> None:
    """A test beside its module's folder, or in a folder of no package, is named; others are not."""
    for module in ("", "store/", "store/disk/", "net/"):
        (tmp_path / "src" / module).mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / module / "__init__.py").touch()
    (tmp_path / "src" / "store" / "disk" / "blocks.py").touch()
    (tmp_path / "tests" / test).parent.mkdir(parents=True)
    (tmp_path / "tests" / test).touch()
    found = misplaced(tmp_path / "tests", tmp_path / "src")
    assert [line.startswith(wrong or "") for line in found] == [True] * (wrong is not None)


def test_tests_that_documents_name_exist() -> None:
    """Every path of a test that a document or the Makefile names is a file or folder."""
    documents = [ROOT / "Makefile", *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = 0
    for document in documents:
        for path in re.findall(r"\btests/[\w./-]*\w", document.read_text(encoding="utf-8")):
            named += 1
            assert (ROOT / path).exists(), f"{document.name}: {path}"
    assert named > 20


def rows_of_changes() -> list[list[str]]:
    """The rows of the table in CONTRIBUTING.md that says where things are changed."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Where is X changed?")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def unknown_paths(cell: str) -> list[str]:
    """The paths of a cell that are no file or folder, from the package or from the root."""
    paths = [name for name in re.findall(r"`([^`]+)`", cell) if re.search(r"/|\.\w+$", name)]
    return [path for path in paths if not any((home / path).exists() for home in (PACKAGE, ROOT))]


def test_where_things_are_changed() -> None:
    """Every kind of change has a row of three cells, whose paths are files and folders."""
    rows = rows_of_changes()
    assert len(rows) > 10
    for row in rows:
        assert len(row) == 3, row
        assert re.search(r"`[^`]+/[^`]*`", row[1]), row
        assert unknown_paths(row[1]) + unknown_paths(row[2]) == [], row[0]


def test_unknown_paths_are_noticed() -> None:
    """A path that leads nowhere is named; names of other things are not looked for."""
    cell = "`ledger/errors.py`, `docs/formats.md`, `COMMANDS`, `ledger/nowhere/`, `Nowhere.md`"
    assert unknown_paths(cell) == ["ledger/nowhere/", "Nowhere.md"]
