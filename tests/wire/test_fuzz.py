"""The fuzzer's cases, a fixed part of them; campaigns/fuzz_wire.py runs as many as one likes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pulsemark.wire import Connection, Role

TOOL = Path(__file__).resolve().parents[2] / "campaigns" / "fuzz_wire.py"


@pytest.fixture(scope="module")
def fuzzer() -> ModuleType:
    """campaigns/fuzz_wire.py as a module."""
    spec = importlib.util.spec_from_file_location("fuzz_wire", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_damaged_sessions_hold_every_claim(fuzzer: ModuleType) -> None:
    """Mutated sessions give events or ProtocolErrors, however they are cut."""
    frames = fuzzer.corpus()

    for seed in range(1500):
        fuzzer.run_case(seed, frames)


def test_cases_are_neither_all_good_nor_all_bad(fuzzer: ModuleType) -> None:
    """The sessions reach both ends: violations, and whole sessions with payloads."""
    frames = fuzzer.corpus()
    ends = set()
    payloads = 0
    for seed in range(100):
        chance = fuzzer.random.Random(seed)
        stream = fuzzer.make_session(chance, Role.SERVER, frames[Role.SERVER])
        events, end = fuzzer.receive(Role.SERVER, stream, None)
        ends.add(end)
        payloads += sum(event[0] == "Send" for event in events)

    violations = {re.sub(r"\d+", "N", end) for end in ends if end.startswith("ProtocolError: ")}
    assert len(violations) >= 4
    assert "0 pending" in ends
    assert payloads >= 10


def test_another_exception_is_caught_with_its_seed(
    fuzzer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser that lets something else out is found out."""

    def broken(self: Connection) -> Any:
        raise IndexError("beyond the end")

    monkeypatch.setattr(Connection, "events", broken)

    with pytest.raises(fuzzer.FuzzError, match="IndexError") as caught:
        fuzzer.run_case(7, fuzzer.corpus())
    assert caught.value.seed == 7


def test_the_program_reports_its_seed(
    fuzzer: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line runs one named case and says that it held."""
    assert fuzzer.main(["--seed", "5"]) == 0
    assert capsys.readouterr().out == "1 cases from seed 5: all held\n"
