"""The campaigns against real processes, each for some cycles."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
MAY_NOT_MOUNT = 3


@pytest.mark.parametrize(
    ("tool", "cycles"),
    [("kill_campaign", 3), ("kill_broker_campaign", 3), ("full_disk_campaign", 2)],
)
def test_a_short_campaign_finds_nothing(tool, cycles):
    """kill -9 of a store and of a broker under load, and a disk that fills up: nothing is lost."""
    done = subprocess.run(
        [sys.executable, TOOLS / f"{tool}.py", "--cycles", str(cycles)],
        check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    if done.returncode == MAY_NOT_MOUNT:
        pytest.skip("this process may not mount file systems")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["cycles"] == cycles
    assert report["acknowledged"] > 0
    assert report["problems"] == 0
