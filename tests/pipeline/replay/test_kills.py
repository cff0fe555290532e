"""kill -9 of a replay and of its target: each entry arrives once, in order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import FolderReader, LedgerError
from pulsemark.pipeline.errors import ReplayError

from .conftest import BrokerProcess

LIMIT_S = 60
ENTRIES = 600
TOPIC = "persistent://public/default/a"

PROGRAM = """
import sys
from pathlib import Path
from tests.pipeline.replay.conftest import replayed
replayed(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), messages_per_s=float(sys.argv[4]))
"""


def filled(folder: Any) -> Any:
    """A topic of single messages, some of them equal to others."""
    topic = folder.topic("a")
    for number in range(ENTRIES):
        topic.single(b"%d" % (number // 3), publish_time_ms=1000)
    return topic


def stored(folder: Path) -> int:
    """Messages of the target; 0 while there is none."""
    try:
        with FolderReader(folder) as reader:
            return reader.log(TOPIC).next_index
    except (LedgerError, OSError):
        return 0


def wait_for(reached: Callable[[], bool], what: str) -> None:
    """Wait until something has happened, for a limited time."""
    end_s = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < end_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.02)


def values(tools: Any, folder: Path) -> list[bytes]:
    """The values of the topic."""
    return [row["value"] for row in tools.rows_of(folder, topic="a", columns="value")]


def test_a_killed_replay_goes_on(
    folder: Any, tools: Any, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    """Driver and tasks are killed again and again, the target too; nothing is doubled."""
    topic = filled(folder)
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", PROGRAM, str(folder.path), broker_process.url]
    command.append(str(tmp_path / "cp"))
    for reached in (50, 180, 310):
        process = subprocess.Popen([*command, "150"], cwd=root)
        try:
            wait_for(lambda seen=reached: stored(tmp_path / "target") >= seen, f"{reached}")  # type: ignore[misc]
        finally:
            process.kill()
            process.wait(timeout=LIMIT_S)
        if reached == 180:
            broker_process.kill()
            broker_process.start()
    assert stored(tmp_path / "target") < ENTRIES
    subprocess.run([*command, "100000"], cwd=root, check=True, timeout=LIMIT_S)
    assert values(tools, tmp_path / "target") == [row["value"] for row in topic.rows]


def test_a_killed_target_is_waited_for(
    folder: Any, tools: Any, kit: Any, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    """The target is killed twice in the middle of one run, which goes on by itself."""
    topic = filled(folder)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            kit.replayed(folder.path, broker_process.url, tmp_path / "cp", messages_per_s=250.0)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    for reached in (100, 300):
        wait_for(lambda seen=reached: stored(tmp_path / "target") >= seen, f"{reached}")  # type: ignore[misc]
        broker_process.kill()
        broker_process.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert failed == []
    assert values(tools, tmp_path / "target") == [row["value"] for row in topic.rows]


def test_a_target_that_stays_away(
    folder: Any, kit: Any, broker_process: BrokerProcess, tmp_path: Path
) -> None:
    """After the time that was given the replay fails; the next run goes on."""
    filled(folder)
    run = (folder.path, broker_process.url, tmp_path / "cp")

    def stop() -> None:
        wait_for(lambda: stored(tmp_path / "target") >= 20, "20 messages")
        broker_process.kill()

    killer = threading.Thread(target=stop)
    killer.start()
    with pytest.raises(ReplayError, match=r"did not take it for 0\.5 s"):
        kit.replayed(*run, messages_per_s=200.0, reconnect_s=0.5)
    killer.join(LIMIT_S)
    broker_process.start()
    assert kit.replayed(*run).messages == ENTRIES
    assert stored(tmp_path / "target") == ENTRIES
