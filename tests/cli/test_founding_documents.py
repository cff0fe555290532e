"""docs/founding-documents.md: every statement has its row, and what a row names is there."""

from __future__ import annotations

import ast
import json
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Command = Any
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pulsemark"
DOCS = ROOT / "docs"
TEXT = (DOCS / "founding-documents.md").read_text(encoding="utf-8")
ADMIN_URL = "http://127.0.0.1:8080"
WAIT_S = 60
STATEMENTS = {"A": 32, "B": 22, "C": 8, "D": 46, "E": 15}
STATES = {"works", "declined"}
ID, STATE, WHERE, TEST, TRY = 0, 2, 3, 4, 5
#: Commands of these programs are run here; those of the others are run by other tests.
PROGRAMS = {"pulsemark", "curl", "python", "pytest", "make"}


def tables() -> list[list[str]]:
    """The cells of all rows of all tables."""
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in rows if not set(row[0]) <= {"-", "|", " "}]


STATEMENT_ROWS = [row for row in tables() if re.fullmatch(r"[A-E]\d+", row[ID])]
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
    """All statements, in order, each with a state; the page counts them."""
    expected = [
        f"{part}{number + 1}" for part, count in STATEMENTS.items() for number in range(count)
    ]
    assert [row[ID] for row in STATEMENT_ROWS] == expected
    assert {len(row) for row in STATEMENT_ROWS} == {6}
    assert {row[STATE] for row in STATEMENT_ROWS} <= STATES
    assert len(FEATURE_ROWS) > 10
    counts = Counter(row[STATE] for row in STATEMENT_ROWS)
    assert (
        f"Of {counts.total()} statements {counts['works']} work, and {counts['declined']} are "
        f"declined." in TEXT
    )


@pytest.mark.parametrize("row", STATEMENT_ROWS, ids=lambda row: row[ID])
def test_a_row_names_what_is_there(row: list[str]) -> None:
    """Its paths and tests exist; what works has a place, a test and a command, else a reason."""
    paths = [name for name in code(row[WHERE]) if "/" in name]
    assert [path for path in paths if not is_path(path)] == []
    named = code(row[TEST])
    assert [name for name in named if not is_test(name)] == []
    if row[STATE] == "works":
        assert paths
        assert named
        assert code(row[TRY])
    else:
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


class Shown(NamedTuple):
    """What a command has to print, by the words it begins with."""

    command: str
    patterns: tuple[str, ...]


ENTRIES = (
    r"2:0 +0 +1 data .*message_count=1 has_keys=True raw_size_bytes=4 region=eu producer_name=",
    r"2:0 .*producer_name=\S+ send_time_ms=\d+ broker_name=\S+",
    r"3:0 +1 +1 control .*control_type=CONTROL_LEADER_CHANGE",
    r"3:2 +3 +1 data .*source_format=SOURCE_KAFKA_MAGIC_2 relative_offset_honoured=True ",
    r"3:2 .*has_keys=True raw_size_bytes=\d{3} producer_name=kafka-python",
)
PLACE = (r"position +2:0\n", r"index +0\n", r"time +\d{4}-")
CONTROL = (r"3:0 +1 \S+ +1 leader-change +other", r"3:1 +2 \S+ +1 checkpoint +17")
KAFKA_SETS = r"pulsemark_kafka_topic_sets_total\{.*orders.*request="
SHOWN = (
    Shown("dump orders --data-dir pulsemark-data --json", (
        r'"index":0,.*"broker_timestamp_ms":\d{13},.*"prefix":\{"broker_timestamp":\d{13}',
        r'"prefix_size_bytes":\d{2},.*"application_tags":\{"region":"eu"\}',
    )),
    Shown("dump orders --data-dir pulsemark-data --control", CONTROL),
    Shown("dump orders --data-dir pulsemark-data", ENTRIES),
    Shown("dump orders --data-dir copied", (
        r"1:0 .*source_index=0 ", r"1:1 .*source_index=3 ",
    )),
    Shown("dump orders --data-dir followed --control", CONTROL),
    Shown("control list", CONTROL),
    Shown("control epochs", (r" 0 +0 +1 +2 +0", r" 1 +1 +4 +3 +0 +other")),
    Shown("audit", (r"broker +standalone-\S+ +1 +0 ", r"broker +kafka-python-\S+ +1 +0 ")),
    Shown("follow", (r"entries: [1-9]\d*, .*truncated: 0; lag: 0 entries",)),
    Shown("promote", (r"promoted followed: .* leads \d+ topics?",)),
    Shown("control epochs orders --data-dir followed", (r"^ +1 .*",)),
    Shown("mirror", (r"entries: 2, messages: 2,.* headers parsed: 1, payloads opened: 0",)),
    Shown("verify", (r"^1 topic, .* 2 messages, 2 control entries, .*: (clean|1 note)$",)),
    Shown("seek orders --index 3", (r"position +3:2\n", r"message +1 of 1\n")),
    Shown("seek", PLACE),
    Shown("subscriptions create", ("^created europe on ",)),
    Shown("subscriptions list", (r"^europe ", r"^shop ")),
    Shown("GET getMessageIdByIndex?index=3", (r'"ledgerId":3,"entryId":2,',)),
    Shown("policies get orders brokerEntryMetadata --applied", (
        "^broker-time,index,property-tags:region$", "^delivered: application_tags$",
    )),
    Shown("policies get public/default entryFormat", (r"^message\.format\.version=0\.10\.0$",)),
    Shown("GET stamp", (
        r'"index":0,"messageCount":1,"appendTime":\d{13},"brokerTimestamp":\d{13},.*"region":"eu"',
    )),
    Shown("GET epochs", (r'"epoch":1,"firstIndex":1,"ledgerId":3,"entryId":0', r'"nextIndex":4')),
    Shown("GET metrics", (
        r"pulsemark_message_headers_parsed_total\{.*\} [1-9]",
        r"pulsemark_kafka_sets_in_place\{.*\} 1\n",
        r"pulsemark_kafka_compressions\{.*\} 0\n",
        r"pulsemark_kafka_decompressions\{.*\} 1\n",
        KAFKA_SETS + r'"produce",version="8",handling="as_is"\} 1\n',
        KAFKA_SETS + r'"fetch",version="11",handling="as_is"\} 1\n',
        r"pulsemark_cleaning_rounds_total\{.*\} [1-9]",
    )),
    Shown("GET compaction", (r'"status":"SUCCESS"',)),
)  # fmt: skip


class Here:
    """The broker of the page, in a folder of its own, and its commands with its addresses."""

    def __init__(self, pulsemark: Command, folder: Path) -> None:
        self._pulsemark = pulsemark
        shell, program = (
            re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
            for language in ("sh", "python")
        )
        (folder / "token").write_text("secret")
        _, start = shell[0].splitlines()
        assert shell[0].startswith("echo secret > token\n")
        words = [re.sub(r"\A(6680|9092)\Z", "0", word) for word in shlex.split(start)[1:]]
        ports = ["--port", "0", "--http-port", "0", "--json"]
        command = [sys.executable, "-m", "pulsemark", *words, *ports]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._urls: dict[str, str] = json.loads(self.process.stdout.readline())
        for line in shell[1].splitlines():
            assert self.run(shlex.split(line)), line
        exec(self._at_home(program[0]), {})

    def _at_home(self, text: str) -> str:
        for address, name in (
            ("http://127.0.0.1:8080", "http_url"),
            ("127.0.0.1:6680", "grpc_url"),
            ("127.0.0.1:9092", "kafka_url"),
        ):
            text = text.replace(address, self._urls[name])
        return text

    def run(self, words: list[str]) -> str:
        """What a command prints. One that changes a policy is asked for what it changed."""
        arguments = [self._at_home(word) for word in words[1:]]
        if not {"--url", "--data-dir"} & set(arguments):
            if arguments[0] in ("policies", "topics", "subscriptions", "seek"):
                arguments += ["--url", self._urls["http_url"]]
            elif arguments[0] == "produce":
                arguments += ["--url", self._urls["service_url"]]
        ran = self._pulsemark(*arguments)
        assert (ran.status, ran.err) == (0, ""), words
        if words[1] == "policies" and words[2] != "get":
            return self.run(["pulsemark", "policies", "get", *words[3:5]])
        return str(ran.out)

    def ask(self, method: str, url: str) -> str:
        """The answer to a request of the page."""
        assert url.startswith(ADMIN_URL), url
        request = urllib.request.Request(self._at_home(url), method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status in (200, 204)
            return str(answer.read().decode())

    def close(self) -> None:
        """End the broker."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


@pytest.fixture
def here(pulsemark: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """The set-up of the page."""
    monkeypatch.chdir(tmp_path)
    made = Here(pulsemark, tmp_path)
    yield made
    made.close()


def values_of(words: list[str]) -> list[str]:
    """What a policy shows after it was set with these words."""
    at = 5
    given = words[at:]
    if words[2] == "unset":
        return ["not set"]
    if given in (["--enable"], ["--off"]):
        return [{"--enable": "on", "--off": "off"}[given[0]]]
    if words[4] == "retention":
        return ["time: 10080 minutes", f"size: {given[-1]} MB"]
    return [word for word in given if not word.startswith("--")]


def missing(command: str, words: list[str], printed: str) -> list[str]:
    """What a command had to print and did not; every command has something to print."""
    patterns = next((one.patterns for one in SHOWN if command.startswith(one.command)), None)
    if patterns is None:
        assert command.startswith(("policies set", "policies unset", "PUT", "POST")), command
        patterns = tuple(map(re.escape, values_of(words))) if words[0] == "pulsemark" else ()
    return [each for each in patterns if not re.search(each, printed, re.MULTILINE)]


def check(here: Here, words: list[str]) -> None:
    """One command of the page: it works, and prints what it is there for."""
    program, *arguments = words
    if program == "pytest":
        assert is_test(arguments[0]), arguments
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), arguments
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), arguments
    elif program == "curl":
        _, method, url = arguments
        command = f"{method} {url.rsplit('/', 1)[1]}"
        until_s = time.monotonic() + WAIT_S
        # What runs beside the requests, as a compaction, ends later.
        while lacks := missing(command, words, answer := here.ask(method, url)):
            assert time.monotonic() < until_s, (words, lacks, answer)
            time.sleep(0.05)
    elif arguments[0] == "pipeline":
        # A Spark session takes long; tests/cli/test_pipeline.py runs the jobs.
        assert "usage: pulsemark pipeline" in here.run([*words[:3], "--help"])
    else:
        printed = here.run(words)
        assert missing(" ".join(arguments), words, printed) == [], (words, printed)


def test_its_commands_show_what_they_are_there_for(here: Here) -> None:
    """In their order, as a user types them; what other tests run is there to be run."""
    found = [shlex.split(command) for command in commands()]
    assert {words[0] for words in found} <= PROGRAMS
    for words in found:
        check(here, words)


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
