"""What is shipped and how the house is kept: wheel, layers, links, tracked files, commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from pulsemark.cli import COMMANDS
from pulsemark.extras import install_command

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pulsemark"
LINKS = ("finder", "ledger", "metadata", "proto")


def tracked_files() -> list[Path]:
    """The files git knows, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [Path(name) for name in listed.split("\0") if name]


def package_tree(folder: Path) -> set[str]:
    """The files of the package that belong into a wheel, relative to the folder it lies in."""
    return {
        str(path.relative_to(folder))
        for path in (folder / "pulsemark").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def write_man_page(path: Path) -> str:
    """Have the manual page made, as `.ci/dist` does; its text."""
    tool = ROOT / "tools" / "write_references.py"
    subprocess.run([sys.executable, str(tool), "--man", str(path)], check=True)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that no test writes into the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignore)
    for link in LINKS:
        shutil.copy(ROOT / link, source, follow_symlinks=False)
    write_man_page(source / "pulsemark.1")
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return zipfile.ZipFile(next(dist.glob("*.whl")))


def test_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """The wheel's files are exactly those of src/pulsemark, generated code and types included,
    and the manual page.
    """
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    (page,) = shipped - package_tree(ROOT / "src")
    assert page.endswith(".data/data/share/man/man1/pulsemark.1")
    assert shipped - {page} == package_tree(ROOT / "src")
    for name in ("pulsar_api", "broker_entry", "seek"):
        for ending in (".proto", "_pb2.py", "_pb2.pyi"):
            assert f"pulsemark/proto/{name}{ending}" in shipped
    assert "pulsemark/py.typed" in shipped


def test_the_manual_page_has_every_command(tmp_path: Path) -> None:
    """pulsemark(1) has the commands and their options, and troff has nothing to complain of."""
    text = write_man_page(tmp_path / "pulsemark.1")
    titles = {line.replace("\\-", "-") for line in text.splitlines() if line.startswith(".SS ")}
    assert {f".SS pulsemark {name}" for name in COMMANDS} <= titles
    for command in (["mandoc", "-T", "lint", "-W", "warning"], ["groff", "-man", "-ww", "-z"]):
        if shutil.which(command[0]) is None:
            continue
        checked = subprocess.run(
            [*command, tmp_path / "pulsemark.1"], capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_wheel_names_its_licence_and_doors(wheel: zipfile.ZipFile) -> None:
    """The wheel carries the licence, the console script and the pytest plugin."""
    meta = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    assert wheel.read(f"{meta}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    entry_points = wheel.read(f"{meta}/entry_points.txt").decode()
    assert "[console_scripts]\npulsemark = pulsemark.cli:main" in entry_points
    assert "[pytest11]\npulsemark = pulsemark.testing.plugin" in entry_points


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package below `folder`/src with the repository's contracts."""
    code = (
        f"import sys; sys.path.insert(0, {str(folder / 'src')!r}); sys.argv = ['lint-imports']\n"
        "from importlinter.cli import lint_imports_command\n"
        "lint_imports_command(['--no-cache', '--config', 'pyproject.toml'])"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def copy_of_the_source(folder: Path) -> Path:
    """A copy of the package and its contracts that a test may break."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_layers_are_kept() -> None:
    """No package uses one above it."""
    linted = lint_imports(ROOT)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("ledger/astray.py", "from pulsemark.broker import Broker", "Layers"),
        ("pipeline/astray.py", "from ..broker import Broker", "Layers"),
        ("mirror/astray.py", "from ..broker import Broker", "Layers"),
        ("client/astray.py", "from ..finder import Finder", "Layers"),
        ("audit/astray.py", "from ..finder import Finder", "Layers"),
        ("wire/astray.py", "import asyncio", "no I/O"),
        ("finder/astray.py", "from ..wire import Connection", "without the wire protocol"),
        ("metadata/astray.py", "import grpc", "neither gRPC"),
        ("ledger/commit/astray.py", "from ..topic_store import TopicStore", "Rooms of the ledger"),
        ("ledger/local/io/astray.py", "from ..segment.segment import Segment", "local engine"),
        ("ledger/local/segment/astray.py", "from .filer import Filer", "Modules of segments"),
        (
            "broker/subscriptions/astray.py",
            "from ..topics.topic import Topic",
            "Rooms of the broker",
        ),
        ("kafka/astray.py", "from ..broker import Broker", "Layers"),
        ("kafka/protocol.py", "import socket", "Kafka's protocol does no I/O"),
        (
            "pipeline/astray.py",
            "from ..kafka.protocol import Connection",
            "Spark knows nothing of Kafka",
        ),
        ("unheard_of/__init__.py", '"""A package no contract names."""', "Layers"),
    ],
)
def test_layer_contract_is_live(tmp_path: Path, module: str, line: str, broken: str) -> None:
    """Each contract breaks when a module goes against it."""
    source = copy_of_the_source(tmp_path)
    astray = source / "src" / "pulsemark" / module
    astray.parent.mkdir(exist_ok=True)
    astray.write_text(line + "\n")
    linted = lint_imports(source)
    assert linted.returncode != 0
    assert re.search(rf"{broken}.*BROKEN", linted.stdout) or "exhaustive" in linted.stdout.lower()


def tracked_links() -> set[Path]:
    """The symbolic links git knows, also where a clone has them as files of text."""
    listed = subprocess.run(
        ["git", "ls-files", "-s", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    entries = (entry.partition("\t") for entry in listed.split("\0") if entry)
    return {Path(name) for facts, _, name in entries if facts.startswith("120000 ")}


def target_of(link: Path) -> str:
    """Where a link leads, also where git made a file of text of it."""
    return str(link.readlink()) if link.is_symlink() else link.read_text(encoding="utf-8")


def test_links_at_the_root_are_the_four_rooms() -> None:
    """The only links are the storage plugin's four, relative, into src/pulsemark."""
    assert sorted(map(str, tracked_links())) == list(LINKS)
    assert {path.name for path in ROOT.iterdir() if path.is_symlink()} <= set(LINKS)
    for name in LINKS:
        assert target_of(ROOT / name) == f"src/pulsemark/{name}"


def test_nothing_imports_through_the_links() -> None:
    """No tracked source imports a room by its link's name."""
    stray = re.compile(rf"^\s*(?:from|import)\s+(?:{'|'.join(LINKS)})\b", re.MULTILINE)
    assert stray.search("from ledger import LocalStore")
    offenders = [
        str(path)
        for path in tracked_files()
        if path.suffix in {".py", ".pyi"} and not (ROOT / path).is_symlink()
        if stray.search((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert offenders == []


@pytest.mark.parametrize("room", LINKS)
def test_import_through_a_link_fails_at_once(tmp_path: Path, room: str) -> None:
    """From the root, `import ledger` and its like raise instead of giving every class a twin."""
    # What a link leads to, under the link's name: a clone may have no links.
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / room, tmp_path / room, ignore=ignore)
    command = [sys.executable, "-c", f"import {room}"]
    tried = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tried.returncode == 1
    assert "\nImportError: " in tried.stderr


# A letter in brackets matches itself, but keeps this file from finding itself.
FOREIGN = {
    "a registry's host": r"py[p]i\.org|python[h]osted|maven[.]org|index[-]url|find[-]links",
    "a machine's path": r"(?<![\w.~-])/(?:[r]oot|[w]ork|[h]ome/\w+|[o]pt/\w+|[U]sers)/",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_tracked_files_know_no_machine(what: str) -> None:
    """No tracked file names a package registry's host or an absolute path of somebody's machine."""
    pattern = re.compile(FOREIGN[what].encode())
    found = []
    for path in tracked_files():
        if (ROOT / path).is_symlink() or not (ROOT / path).is_file():
            continue
        found += [
            f"{path}: {hit.group()!r}" for hit in pattern.finditer((ROOT / path).read_bytes())
        ]
    assert found == []


def make_targets() -> dict[str, str]:
    """The Makefile's public targets and what each says of itself."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z-]+):.*## (.+)$", text, re.MULTILINE))


def test_documented_make_commands_exist() -> None:
    """Every `make x` of the documents is a target, and the house's targets are all there."""
    wanted = {"setup", "demo", "test", "lint", "types", "proto", "bench", "clean", "help"}
    wanted |= {"demo-kafka"}
    assert wanted <= make_targets().keys()
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        commands = set(re.findall(r"(?:^|`|&& )make ([a-z-]+)", text, re.MULTILINE))
        assert commands <= make_targets().keys(), name
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^make demo$", readme, re.MULTILINE)
    assert re.search(r"^make test$", readme, re.MULTILINE)


def packages_of(extra: str) -> set[str]:
    """The names that an extra installs beside the package's own dependencies."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = set()
    for text in extras["optional-dependencies"][extra]:
        name, _, inner = re.split(r"[<>=;]", text)[0].strip().partition("[")
        if name == "pulsemark":
            found |= set().union(*map(packages_of, inner.rstrip("]").split(",")))
        else:
            found.add(name)
    return found


def test_the_demos_install_what_they_use() -> None:
    """Neither tools for development, nor a Java that most machines have, nor each other's."""
    spark = {"pyspark", "pyarrow", "numpy", "cramjam", "fastavro"}
    assert packages_of("demo") == {*spark, "matplotlib", "pulsar-client"}
    kafka = {"kafka-python", "cramjam", "confluent-kafka", "google-re2"}
    assert packages_of("demo-kafka") == {*kafka, "pulsar-client"}
    assert packages_of("demo") | packages_of("demo-kafka") | {"pytest", "ruff"} <= packages_of(
        "dev"
    )
    for target, extra in (("demo", "demo"), ("demo-kafka", "demo-kafka"), ("test", "dev")):
        command = ["make", "--dry-run", "--always-make", target, "VENV=nowhere/.venv"]
        shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert set(re.findall(r"-e '\.\[([a-z-]+)\]'", shown.stdout)) == {extra}


def test_setup_says_what_it_needs(tmp_path: Path) -> None:
    """Without a Python that is new enough `make setup` says so in one line, and fails."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--silent", "setup", "PYTHON="]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert made.stderr.startswith("pulsemark needs Python 3.11")
    assert not (tmp_path / ".venv").exists()


def test_help_lists_every_target() -> None:
    """`make help` names each target with what it does."""
    command = ["make", "--silent", "help"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for target, what in make_targets().items():
        assert re.search(rf"^  make {target} +{re.escape(what)}$", text, re.MULTILINE)


def test_check_script_runs_what_developers_run() -> None:
    """`.ci/run` can be executed, reads no input, and goes through the same make targets."""
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert "set -euo pipefail" in text
    for target in ("setup", "lint", "types", "test"):
        assert re.search(rf"^ *step {target} make {target}$", text, re.MULTILINE)


def test_document_links_lead_somewhere() -> None:
    """Every relative link and picture in the documents names a file of the repository."""
    for document in (path for path in tracked_files() if path.suffix == ".md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not re.match(r"[a-z]+:", target):
                assert (ROOT / document.parent / target).exists(), f"{document}: {target}"


def test_exact_versions_cover_all_dependencies() -> None:
    """Every dependency and extra of the package is pinned, and pinned once, in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        asked += extra
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = [re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins]
    assert len(pinned) == len(set(pinned))
    names = {re.match(r"[\w.-]+", line).group().lower() for line in asked}  # type: ignore[union-attr]
    assert names - {"pulsemark"} <= set(pinned)


def handwritten() -> list[Path]:
    """The package's modules that no program has written."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "_pb2" not in path.name)


def test_every_module_has_its_essay() -> None:
    """Each module begins with what it is for."""
    for path in handwritten():
        assert path.read_text(encoding="utf-8").lstrip().startswith(('"""', 'r"""')), path


def test_nothing_tells_to_install_from_an_index() -> None:
    """pulsemark is on no index, so every text names a checkout, as `install_command` does."""
    texts = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    for folder, kinds in (("src", "*.py"), ("docs", "*.md"), ("examples", "*")):
        texts += [path for path in (ROOT / folder).rglob(kinds) if path.suffix in {".py", ".md"}]
    wrong = re.compile(r"pulsemark\[|pip install ['\"]?pulsemark")
    told = [str(path) for path in texts if wrong.search(path.read_text(encoding="utf-8"))]
    assert told == []
    assert install_command("kafka") == "pip install '/path/to/checkout[kafka]'"
