"""`pulsemark mirror`: arguments, output, exit codes, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsemark.broker import BrokerThread
from pulsemark.ledger import FolderReader, LedgerError, LocalStore, Position
from pulsemark.testing import RawClient, running_broker

Command = Any
Folder = Any
LIMIT_S = 60
TOPIC = "persistent://public/default/orders"
ONCE = ("--topics", "orders", "--once")


@pytest.fixture
def target() -> Iterator[BrokerThread]:
    """A broker that accepts every mirror."""
    with running_broker(mirror_sources=("*",)) as broker:
        yield broker


def test_the_sum_and_the_comparison(pulsemark: Command, folder: Folder, tmp_path: Path) -> None:
    """Text for people, one JSON object per topic for programs; 0 if all is there."""
    ran = pulsemark("mirror", folder.path, tmp_path / "b", *ONCE, "--verify")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[1] == f"{TOPIC}: 10 entries are equal"
    assert "entries: 10, messages: 19" in ran.out
    ran = pulsemark("mirror", folder.path, tmp_path / "c", *ONCE, "--verify", "--json")
    done, compared = ran.json()
    assert (done["topic"], done["entries"], done["messages"]) == (TOPIC, 10, 19)
    assert (done["source_index"], done["complete"], done["payloads_opened"]) == (18, True, 0)
    assert (compared["equal"], compared["source_entries"]) == (True, 10)


def test_gaps_are_exit_code_1(pulsemark: Command, folder: Folder, tmp_path: Path) -> None:
    """Missing messages of the source are a line on stderr, and exit code 1."""
    with LocalStore.open(folder.path) as store:
        first = store.open_topic(TOPIC).first_position
        assert first is not None
        store.open_topic(TOPIC).truncate_head(Position(first.ledger_id, 2))
    ran = pulsemark("mirror", folder.path, tmp_path / "b", *ONCE)
    assert (ran.status, ran.err) == (1, f"gap: {TOPIC}: indexes 0 to 2 are missing\n")
    assert pulsemark("mirror", folder.path, tmp_path / "b", *ONCE).status == 0


def test_a_difference_is_exit_code_1(pulsemark: Command, folder: Folder, tmp_path: Path) -> None:
    """If the comparison fails, the first difference is printed."""
    pulsemark("mirror", folder.path, tmp_path / "b", *ONCE)
    with LocalStore.open(tmp_path / "b") as store:
        first = store.open_topic(TOPIC).first_position
        assert first is not None
        store.open_topic(TOPIC).truncate_head(Position(first.ledger_id, 3))
    ran = pulsemark("mirror", folder.path, tmp_path / "b", *ONCE, "--verify")
    assert ran.status == 1
    assert f"{TOPIC}: entry" in ran.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{a}", "{b}"), "--topics"),
        (("{a}", "{b}", "--topics", ","), "--topics names no topic"),
        (("{a}", "{b}", "--topics", "absent", "--once"), "absent: no such topic"),
        (("{a}", "{b}", "--topics", "a/b", "--once"), "invalid topic name 'a/b'"),
        (("{a}", "{b}", "--topics", "x([", "--regex", "--once"), "not a pattern"),
        (("{a}", "{a}", "--topics", "orders"), "FROM and TO are the same"),
        (("{none}", "{b}", "--topics", "orders"), "there is no such data folder"),
        (("http://h", "{b}", "--topics", "orders"), "unknown scheme 'http'"),
        (("{a}", "amqp://h", "--topics", "orders"), "unknown scheme 'amqp'"),
        (("{a}", "kafka://127.0.0.1:1", *ONCE), "cannot connect to kafka://127.0.0.1:1"),
        (("", "{b}", "--topics", "orders"), "neither a broker's URL nor a data folder"),
        (("pulsar://h:x", "{b}", "--topics", "orders"), "not a service URL"),
        (("{a}", "pulsar://127.0.0.1:1", *ONCE), "cannot connect to pulsar://127.0.0.1:1"),
        (("{a}", "{b}", "--topics", "orders", "--verify"), "--verify needs --once"),
        (("{a}", "{b}", *ONCE, "--rate-limit", "fast"), "neither BYTES"),
        (("{a}", "{b}", *ONCE, "--progress-s", "0"), "not a number of seconds"),
        (("{a}", "{b}", *ONCE, "--source-cluster", ""), "--source-cluster"),
        (("{a}", "{b}", *ONCE, "--stampers", "no-such"), "no-such"),
        (("{a}", "{b}", *ONCE, "--source-token-file", "{none}"), "none"),
        (("{files}", "{b}", *ONCE), "files"),
        (("{a}", "{b}", *ONCE, "--source-cluster", "\udcff"), "--source-cluster '\\udcff'"),
        (("{a}", "{b}", *ONCE, "--subscription", ""), "--subscription must not be empty"),
        (("{a}", "{b}", *ONCE, "--rate-limit", "9" * 400), "is above 9223372036854775807"),
        (("{a}", "{b}", *ONCE, "--source-token-file", "{binary}"), "does not hold a token"),
        (("{a}", "{a}/../data", *ONCE, "--append"), "are the same"),
        (("pulsar://a..b:1", "{b}", *ONCE), "cannot connect to pulsar://a..b:1"),
    ],
)
def test_bad_input_is_named(
    pulsemark: Command, folder: Folder, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    """One line with the thing and its value, exit code 2, and nothing written."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "other").write_text("x")
    names = {"a": folder.path, "b": tmp_path / "b", "none": tmp_path / "none"}
    names["files"] = tmp_path / "files"
    (tmp_path / "binary").write_bytes(b"\xff")
    names["binary"] = tmp_path / "binary"
    ran = pulsemark("mirror", *(argument.format(**names) for argument in arguments))
    assert reason in ran.error()
    if (tmp_path / "b").exists():
        with FolderReader(tmp_path / "b") as reader:
            assert reader.topics() == []


def test_a_folder_in_use_cannot_be_a_target(
    pulsemark: Command, folder: Folder, target: BrokerThread
) -> None:
    """A folder that a broker has open is refused; as a source it may be in use."""
    assert "in use by process" in pulsemark("mirror", folder.path, target.data_dir, *ONCE).error()
    with running_broker(data_dir=folder.path) as source:
        with RawClient.from_url(source.service_url) as client:
            client.create_producer(TOPIC).send(b"more")
        ran = pulsemark("mirror", folder.path, target.service_url, *ONCE, "--verify")
    assert (ran.status, ran.err) == (0, "")
    assert "11 entries are equal" in ran.out


def running_mirror(*arguments: object) -> subprocess.Popen[str]:
    """The command in the background."""
    command = [sys.executable, "-m", "pulsemark", "mirror", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something has happened; fails with what the process said."""
    end_s = time.monotonic() + LIMIT_S
    while not reached():
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.02)


def count_in(path: Path) -> int:
    """Messages in a folder's topic."""
    try:
        with FolderReader(path) as reader:
            return reader.log(TOPIC).next_index
    except (LedgerError, OSError):
        return 0


@pytest.mark.parametrize(("once", "status"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(
    folder: Folder, tmp_path: Path, once: bool, status: int, number: signal.Signals
) -> None:
    """What was sent is stored and counted; a following mirror has done its work, --once has not."""
    more = ("--once",) if once else ()
    process = running_mirror(
        folder.path, tmp_path / "b", "--topics", TOPIC, "--rate-limit", "1msg", "--json", *more
    )
    wait_for(lambda: count_in(tmp_path / "b") > 0, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (status, "")
    said = json.loads(out)
    assert (said["complete"], said["messages"]) == (False, count_in(tmp_path / "b"))


def test_a_broker_that_stays_away_is_exit_code_1(tmp_path: Path) -> None:
    """A mirror that follows gives up after --reconnect-s: then it has not done its work."""
    with running_broker() as source:
        with RawClient.from_url(source.service_url) as client:
            client.create_producer(TOPIC).send(b"one")
        process = running_mirror(
            source.service_url, tmp_path / "b", "--topics", TOPIC, "--reconnect-s", "0.2"
        )
        wait_for(lambda: count_in(tmp_path / "b") == 1, process)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out.split(",")[1]) == (1, " entries: 1")
    assert "no connection for" in err


def test_progress_is_said(folder: Folder, tmp_path: Path) -> None:
    """A mirror that follows says how far it is, and brings what is added."""
    process = running_mirror(folder.path, tmp_path / "b", "--topics", TOPIC, "--progress-s", "0.05")
    wait_for(lambda: count_in(tmp_path / "b") == 19, process)
    with LocalStore.open(folder.path) as store:
        store.open_topic(TOPIC).append(folder.bodies[0]).commit.wait()
    wait_for(lambda: count_in(tmp_path / "b") == 20, process)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("topics: 1, ")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out.split(",")[1]) == (0, " entries: 11")
