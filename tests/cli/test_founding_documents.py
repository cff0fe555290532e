"""docs/founding-documents.md: every statement has its row, and what a row names is there."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.testing import RawClient, running_broker

Command = Any
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pulsemark"
DOCS = ROOT / "docs"
TEXT = (DOCS / "founding-documents.md").read_text(encoding="utf-8")
TOPIC = "persistent://public/default/orders"
ADMIN_URL = "http://127.0.0.1:8080"
GRPC = "127.0.0.1:6680"
STATEMENTS = {"A": 32, "B": 22, "C": 8, "D": 46}
STATES = {"works", "part", "not yet", "declined"}
ID, STATE, WHERE, TEST, TRY = 0, 2, 3, 4, 5
#: Commands of these programs are run here; those of the others are run by other tests.
PROGRAMS = {"pulsemark", "curl", "python", "pytest", "make"}


def tables() -> list[list[str]]:
    """The cells of all rows of all tables."""
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in rows if not set(row[0]) <= {"-", "|", " "}]


STATEMENT_ROWS = [row for row in tables() if re.fullmatch(r"[A-D]\d+", row[ID])]
FEATURE_ROWS = [row for row in tables() if len(row) == 3 and "](" in row[1]]


def code(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def commands() -> list[str]:
    """All commands of the page, each once, in their order."""
    cells = [row[-1] for row in FEATURE_ROWS] + [row[TRY] for row in STATEMENT_ROWS]
    return list(dict.fromkeys(command for cell in cells for command in code(cell)))


@cache
def names_of_tests(module: Path) -> frozenset[str]:
    """The tests of a module, as pytest names them."""
    names: set[str] = set()

    def walk(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{before}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(before + node.name)

    walk(ast.parse(module.read_text(encoding="utf-8")).body, "")
    return frozenset(names)


def is_test(name: str) -> bool:
    """Whether there is such a test module, or such a test in it."""
    path, _, function = name.partition("::")
    module = ROOT / path
    if not path.startswith("tests/") or not module.exists():
        return False
    return not function or function in names_of_tests(module)


def is_path(name: str) -> bool:
    """Whether a file or folder has this path, from the package or from the root."""
    return any((home / name).exists() for home in (PACKAGE, ROOT))


def test_every_statement_has_one_row() -> None:
    """All statements of the four documents, in order, each with a state."""
    expected = [
        f"{part}{number + 1}" for part, count in STATEMENTS.items() for number in range(count)
    ]
    assert [row[ID] for row in STATEMENT_ROWS] == expected
    assert {len(row) for row in STATEMENT_ROWS} == {6}
    assert {row[STATE] for row in STATEMENT_ROWS} <= STATES
    assert len(FEATURE_ROWS) > 10


@pytest.mark.parametrize("row", STATEMENT_ROWS, ids=lambda row: row[ID])
def test_a_row_names_what_is_there(row: list[str]) -> None:
    """Its paths and tests exist; what works has a place, a test and a command, else a reason."""
    paths = [name for name in code(row[WHERE]) if "/" in name]
    assert [path for path in paths if not is_path(path)] == []
    named = code(row[TEST])
    assert [name for name in named if not is_test(name)] == []
    if row[STATE] in ("works", "part"):
        assert paths
        assert named
        assert code(row[TRY])
    if row[STATE] in ("not yet", "declined"):
        assert re.search(r"[a-z]{2,} [a-z0-9]{1,}|[a-z]+ [A-Z]\d+", row[WHERE])


@pytest.mark.parametrize("name", ["tests/cli/test_none.py", "tests/cli/test_dump.py::test_none"])
def test_missing_tests_are_noticed(name: str) -> None:
    """Neither a module nor a test that is not there passes."""
    assert not is_test(name)
    assert is_test("tests/cli/test_dump.py::test_tags")
    assert is_test("tests/metadata/test_docs.py::TestRegistry::test_ranges")
    assert not is_path("ledger/nowhere.py")


def anchors(document: Path) -> set[str]:
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_its_links_lead_somewhere() -> None:
    """Every linked page has the linked heading."""
    links = re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", TEXT)
    assert len(links) > 15
    for page, anchor in links:
        assert (DOCS / page).is_file(), page
        assert not anchor or anchor in anchors(DOCS / page), f"{page}#{anchor}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker as the page describes it, with some messages in the topic."""
    folder = tmp_path_factory.mktemp("here") / "pulsemark-data"
    with (
        running_broker(data_dir=folder, grpc_port=0) as running,
        RawClient.from_url(running.service_url) as client,
    ):
        producer = client.create_producer(TOPIC, properties={"region": "eu"})
        for number in range(3):
            producer.send(b"order %d" % number, key=f"k{number}")
        client.subscribe(TOPIC, "shop", earliest=True).close()
        yield running


def ask(broker: BrokerThread, method: str, url: str) -> int:
    """The status of the answer to a request of the page."""
    assert url.startswith(ADMIN_URL), url
    request = urllib.request.Request(url.replace(ADMIN_URL, broker.http_url), method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def run(pulsemark: Command, broker: BrokerThread, words: list[str]) -> None:
    """One command of the page, in the folder of the page."""
    program, *arguments = words
    if program == "curl":
        _, method, url = arguments
        assert ask(broker, method, url) in (200, 204)
    elif program == "pytest":
        assert is_test(arguments[0]), arguments
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), arguments
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), arguments
    elif arguments[0] == "pipeline":
        # A Spark session takes long; tests/cli/test_pipeline.py runs the jobs.
        assert pulsemark(*arguments[:2], "--help").status == 0
    elif arguments[0] == "policies":
        ran = pulsemark(*arguments, "--admin-url", broker.http_url)
        assert (ran.status, ran.err) == (0, ""), words
    else:
        ran = pulsemark(*(broker.grpc_url if word == GRPC else word for word in arguments))
        assert (ran.status, ran.err) == (0, ""), words


def test_its_commands_run(
    pulsemark: Command, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, as a user types them; what other tests run is there to be run."""
    assert broker.data_dir is not None
    monkeypatch.chdir(broker.data_dir.parent)
    found = [shlex.split(command) for command in commands()]
    assert {words[0] for words in found} <= PROGRAMS
    for words in found:
        run(pulsemark, broker, words)


@pytest.mark.parametrize(
    "program", sorted({c.split()[1] for c in commands() if c.startswith("python bench/")})
)
def test_its_benches_explain_themselves(program: str) -> None:
    """Every program of bench/ that the page names starts, and says what it measures."""
    ran = subprocess.run(
        [sys.executable, ROOT / program, "--help"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, "usage:" in ran.stdout) == (0, True), ran.stderr
