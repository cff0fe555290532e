import json
import logging
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.torture import cycle_seed, torture

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder():
    """In memory, where the machine has one: a catalog's syncs cost nothing there."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def test_power_cuts_and_kills_lose_nothing(folder):
    """A short campaign of crashes: nothing acknowledged is lost, nothing is given twice."""
    report = torture(1, 15, folder, faults=False)
    assert report.problems == []
    assert report.power_cuts > 15
    assert report.kills > 5
    assert report.acknowledged > 500


def test_failing_calls_lose_nothing_either(folder):
    """The same with calls that fail now and then, and no sync tried again."""
    report = torture(2, 15, folder)
    assert report.problems == []
    assert report.failed_calls > 5


def test_a_seed_gives_the_same_again(folder):
    """Everything that happens is a function of the seed; a cycle's seed alone repeats it."""
    one, other = (torture(3, 4, folder).figures() for _ in range(2))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    whole = torture(3, 2, folder)
    parts = [torture(cycle_seed(3, number), 1, folder) for number in range(2)]
    for name in ("appended", "acknowledged", "calls", "failed_calls", "power_cuts"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)


def test_in_interval_mode_cleaning_removes_nothing_that_is_needed(folder, caplog):
    """A power cut takes only what was acknowledged since the last sync, whatever was cleaned."""
    caplog.set_level(logging.CRITICAL)
    report = torture(7_000_022, 2, folder, interval=True, survival="none")
    assert report.problems == []
    assert report.power_cuts
    assert report.acknowledged


def test_control_without_syncs_must_lose(folder, caplog):
    """With syncs that do nothing the campaign reports losses: its checks bite."""
    caplog.set_level(logging.CRITICAL)
    report = torture(1, 6, folder, syncs=False, faults=False, survival="none")
    assert any("is lost" in problem for problem in report.problems)


def test_tool_prints_figures_and_seeds():
    """`campaigns/torture.py` prints a line of JSON for each campaign and succeeds."""
    done = subprocess.run(
        [sys.executable, ROOT / "campaigns" / "torture.py", "--seed", "5", "--cycles", "3"],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["problems"] for line in lines[:3]] == [0, 0, 0]
    assert lines[3]["problems"] > 0
    assert {line["seed"] for line in lines} == {5}


@pytest.mark.parametrize(
    "seed", [2023, 3019, 4021, 6019, 10203, 10339, 20555, 61101, 100433, 110325, 1004014]
)
def test_cycles_that_once_failed(folder, seed, caplog):
    """Cycles in which a campaign once found a problem."""
    caplog.set_level(logging.CRITICAL)
    assert torture(seed, 1, folder).problems == []
