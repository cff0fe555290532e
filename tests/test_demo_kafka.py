"""The demo's Kafka round: its checks refuse wrong answers, and it runs from end to end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.checks import CheckError
from demo_kafka import checks
from demo_kafka.__main__ import main
from demo_kafka.story import KafkaRound

ROOT = Path(__file__).resolve().parent.parent
ROWS = [(0, b"p/a/0"), (1, b"p/a/1"), (3, b"k/a/0"), (4, b"k/a/0")]


def test_right_answers_pass() -> None:
    """No check refuses what is right."""
    checks.offsets_are_unbroken("r", ROWS, [2])
    checks.readers_agree("r", ROWS, "s", list(ROWS))
    checks.acknowledged_is_there({b"p/a/1": 1, b"k/a/0": 4, b"p/a/0": None}, ROWS)
    assert checks.nothing_is_doubled(ROWS, "k") == 1
    checks.stored_format_is("t", 0, 1, 1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: checks.offsets_are_unbroken("r", ROWS, []), "r got offset 3 where 2"),
        (lambda: checks.offsets_are_unbroken("r", ROWS[1:], []), "offset 1 where 0"),
        (lambda: checks.offsets_are_unbroken("r", [ROWS[0], ROWS[0]], []), "offset 0 where 1"),
        (lambda: checks.readers_agree("r", ROWS, "s", ROWS[:3]), "r got 4 messages, s 3"),
        (lambda: checks.readers_agree("r", ROWS[:2], "s", ROWS[1:3]), "r got"),
        (lambda: checks.acknowledged_is_there({b"x": 1}, ROWS), "cannot be read"),
        (lambda: checks.acknowledged_is_there({b"p/a/1": 0}, ROWS), "acknowledged at 0"),
        (lambda: checks.nothing_is_doubled(ROWS, "p"), "stored twice"),
        (lambda: checks.stored_format_is("t", 5, 0, 1), "magic 0 at offset 5, not 1"),
    ],
)
def test_wrong_answers_fail(wrong: Callable[[], object], named: str) -> None:
    """Each check refuses what is wrong, and says what it is."""
    with pytest.raises(CheckError, match=named):
        wrong()


def test_a_failed_check_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exit code 1."""

    def fail(_: KafkaRound) -> None:
        raise CheckError("a consumer got offset 3 where 2 was to come")

    monkeypatch.setattr(KafkaRound, "run", fail)
    assert main(["--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said == "\ndemo-kafka: FAILED: a consumer got offset 3 where 2 was to come\n"


@pytest.mark.timeout(240)
def test_whole_round(tmp_path: Path) -> None:
    """Old and new clients write and read in every phase: 1 and 2, back, forward, after a kill."""
    command = [sys.executable, "-m", "demo_kafka", "--folder", str(tmp_path), "--messages", "2400"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), *sys.path])}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(re.findall(r"400 messages, read by 3 Kafka consumers and Pulsar's", ran.stdout)) == 6
    assert "offsets unbroken but for 1 mark" in ran.stdout
    assert "every check passed" in ran.stdout
