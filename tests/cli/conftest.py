"""A data folder with known contents, and running the command as a user does."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pulsemark.cli import main
from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.metadata.crc import crc32c
from pulsemark.proto.pulsar_api_pb2 import MessageMetadata

TOPIC = "persistent://public/default/orders"
START_MS = 1_762_945_500_000
STEP_MS = 1_000


@pytest.fixture(autouse=True)
def no_broker_here(monkeypatch):
    """`seek` and `dump` ask the broker on this machine; a test's machine may have one."""
    monkeypatch.setattr("pulsemark.cli.stores.DEFAULT_ADMIN_URL", "http://127.0.0.1:1")


class StepClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        """The present, as the test wants it."""
        return self.time_ms


def message_body(
    payload: bytes, *, sequence_id: int, publish_time_ms: int, count: int = 1
) -> bytes:
    """Headers-and-payload as a producer sends them, checksum included."""
    metadata = MessageMetadata(
        producer_name="till-1", sequence_id=sequence_id, publish_time=publish_time_ms
    )
    if count > 1:
        metadata.num_messages_in_batch = count
    packed = metadata.SerializeToString()
    checked = len(packed).to_bytes(4, "big") + packed + payload
    return b"\x0e\x01" + crc32c(checked).to_bytes(4, "big") + checked


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with ten entries of `TOPIC`, one second apart; entry n holds n % 3 + 1 messages."""

    path: Path
    bodies: tuple[bytes, ...]
    counts: tuple[int, ...]
    topic: str = TOPIC
    start_ms: int = START_MS
    step_ms: int = STEP_MS

    @property
    def first_indexes(self) -> list[int]:
        """Index of each entry's first message."""
        return [sum(self.counts[:number]) for number in range(len(self.counts))]

    def damage(self, number: int) -> None:
        """Turn a bit in the payload of one entry."""
        path, body = self.segment(), self.bodies[number]
        data = bytearray(path.read_bytes())
        data[data.index(body) + len(body) - 1] ^= 1
        path.write_bytes(data)

    def segment(self) -> Path:
        """The topic's one segment file."""
        (path,) = (
            path for path in self.path.glob("ledgers/*.log") if TOPIC.encode() in path.read_bytes()
        )
        return path


def fill(path: Path, *, entries: int = 10, stamps: bool = True) -> Folder:
    """Write a folder of that many entries, closed in order."""
    clock = StepClock()
    store = LocalStore.open(path, clock=clock)
    bodies, counts = [], []
    try:
        ledger = store.open_topic(TOPIC)
        if stamps:
            ledger.stampers = StamperChain.from_names(["broker-time", "index"])
        for number in range(entries):
            count = number % 3 + 1
            # The producer's clock is an hour late.
            body = message_body(
                b"order %d" % number,
                sequence_id=number,
                publish_time_ms=clock.time_ms - 3_600_000,
                count=count,
            )
            ledger.append(body, message_count=count).commit.wait(10)
            bodies.append(body)
            counts.append(count)
            clock.time_ms += STEP_MS
    finally:
        store.close()
    return Folder(path, tuple(bodies), tuple(counts))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A filled data folder."""
    return fill(tmp_path / "data")


@pytest.fixture
def bare_folder(tmp_path: Path) -> Folder:
    """A filled data folder whose entries carry no stamps."""
    return fill(tmp_path / "bare", stamps=False)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    def json(self) -> list[Any]:
        """The objects it printed, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def error(self) -> str:
        """The one line of a refusal; fails the test if it was none."""
        assert self.status == 2
        assert self.out == ""
        assert self.err.startswith("pulsemark: error: ")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("pulsemark: error: ").rstrip("\n")


class Pulsemark:
    """The command, run inside this process (fast) or as a process of its own (as users do)."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Ran:
        """Run `pulsemark ARGUMENTS` in this process."""
        self._capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    def process(self, *arguments: str | Path, cwd: Path | None = None) -> Ran:
        """Run `pulsemark ARGUMENTS` in a new process."""
        command = [sys.executable, "-m", "pulsemark", *map(str, arguments)]
        ran = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=200
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def pulsemark(capsys: pytest.CaptureFixture[str]) -> Pulsemark:
    """The command."""
    return Pulsemark(capsys)


class Terminal(io.StringIO):
    """A terminal that keeps what was written."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Terminal]]:
    """How to make standard output or standard error a terminal of so many characters."""
    with ExitStack() as stack:

        def become(stream: str, columns: int = 80, rows: int = 24) -> Terminal:
            for name, value in (("COLUMNS", columns), ("LINES", rows), ("TERM", "xterm")):
                monkeypatch.setenv(name, str(value))
            for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
                monkeypatch.delenv(name, raising=False)
            shown = Terminal()
            redirected = redirect_stdout if stream == "stdout" else redirect_stderr
            stack.enter_context(redirected(shown))
            return shown

        yield become
