"""Where tests stand: the test tree mirrors the packages, as CONTRIBUTING.md says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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
        for path in re.findall(
            r"(?<!rust_application/)\btests/[\w./-]*\w", document.read_text(encoding="utf-8")
        ):
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
    """The paths of a cell that are not a file or folder, from the package or from the root."""
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


def section(document: str, title: str) -> str:
    """A second-level section of a document at the root, without its title."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def walks_of(text: str) -> dict[str, list[tuple[int, list[str]]]]:
    """The walks of a section by title: of each step its number and the modules that it names."""
    walks = {}
    for part in text.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        steps = re.findall(r"^(\d+)\. (.*(?:\n +\S.*)*)", body, re.MULTILINE)
        walks[title] = [(int(no), re.findall(r"`([\w/]+\.py)`", step)) for no, step in steps]
    return walks


def wrong_in_walk(steps: list[tuple[int, list[str]]], package: Path) -> list[str]:
    """What is wrong with a walk: steps out of order, modules not there, or named twice."""
    wrong, named = [], set()
    for expected, (number, modules) in enumerate(steps, 1):
        if number != expected or not modules:
            wrong.append(f"step {number}: number {expected} should name a module")
        for module in modules:
            if not (package / module).is_file():
                wrong.append(f"step {number}: {module} is not there")
            if module in named:
                wrong.append(f"step {number}: {module} is named twice")
            named.add(module)
    return wrong


def test_walks_name_each_module_once() -> None:
    """Each walk of the documents goes through modules that exist, each named once."""
    walks = walks_of(section("ARCHITECTURE.md", "Two walks"))
    walks |= walks_of(section("docs/internals.md", "Two more walks"))
    assert len(walks) == 4
    for title, steps in walks.items():
        assert len(steps) > 10, title
        assert wrong_in_walk(steps, PACKAGE) == [], title


def test_wrong_walks_are_noticed() -> None:
    """A module that is not there, one named twice and a step without number or module show."""
    text = (
        "\n### A walk\n\n1. `ledger/run.py` does it, after\n   `ledger/nowhere.py`.\n"
        "3. `ledger/run.py` again.\n3. Nothing.\n"
    )
    assert wrong_in_walk(walks_of(text)["A walk"], PACKAGE) == [
        "step 1: ledger/nowhere.py is not there",
        "step 3: number 2 should name a module",
        "step 3: ledger/run.py is named twice",
        "step 3: number 3 should name a module",
    ]


def test_each_folder_has_its_row() -> None:
    """The table of folders in docs/internals.md has one row of three cells for each package."""
    rows = re.findall(
        r"^\| `([^`]+)` \|(.+)\|(.+)\|$", section("docs/internals.md", "Folders"), re.MULTILINE
    )
    packages = {
        path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")
    }
    assert sorted(folder for folder, _, _ in rows) == sorted(packages - {"."})
    assert all(subject.strip() and unknown.strip() for _, subject, unknown in rows)


def paths_of_modules(text: str) -> list[str]:
    """The modules and folders below the package that a document names in code style."""
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    return [path for path in paths if path.partition("/")[0] in rooms]


def test_modules_that_documents_name_exist() -> None:
    """Every module and folder of the package that a document names by its path is there."""
    named = 0
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for path in paths_of_modules(document.read_text(encoding="utf-8")):
            named += 1
            assert (PACKAGE / path).exists() or (ROOT / path).exists(), f"{document.name}: {path}"
    assert named > 100


#: Words in backticks that are names of others: of formats, programs and settings.
FOREIGN_NAMES = {
    "abfs", "archive", "await", "dataclass", "endpoint", "gs", "hdfs", "header_size", "jku", "jwk",
    "kid", "process_", "pulsemark_", "python3", "s3", "startingtime", "warehouse", "x5u",
}  # fmt: skip
NAMED = re.compile(r"`([a-z_][a-z_0-9]*(?:\.\w+)*)(?:\(\))?`")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def names_in(module: ast.Module) -> Iterator[str]:
    """The names that a module's code has, also as words of its texts, without its docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield from re.findall(r"\w+", node.value)
        else:
            for _, value in ast.iter_fields(node):
                if isinstance(value, str):
                    yield from value.split(".")


def unknown_names(modules: dict[Path, ast.Module]) -> list[str]:
    """Names in the backticks of docstrings that no module has, each with its module."""
    known = FOREIGN_NAMES | {name for module in modules.values() for name in names_in(module)}
    known |= {part for path in modules for part in path.with_suffix("").parts}
    return [
        f"{path}: {name}"
        for path, module in modules.items()
        if "_pb2" not in path.name
        for node in ast.walk(module)
        if isinstance(node, DOCUMENTED)
        for name in re.findall(
            r"`([a-z_][a-z_0-9]*(?:\.\w+)*)(?:\(\))?`", ast.get_docstring(node) or ""
        )
        if not known.issuperset(name.split("."))
    ]


def test_names_in_docstrings_exist() -> None:
    """What a docstring names in backticks is a module, or a name that some module has."""
    modules = {
        path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert unknown_names(modules) == []


def test_unknown_names_in_docstrings_are_noticed() -> None:
    """A module that was renamed, and a method that is gone."""
    text = (
        """def f(count):\n    "See `ledger.run`, `count`, `gone_module`, and `f.gone()`."\n    """
    )
    modules = {Path("ledger/run.py"): ast.parse(text + "return count")}
    assert unknown_names(modules) == ["ledger/run.py: gone_module", "ledger/run.py: f.gone"]
