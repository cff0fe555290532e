"""The campaigns against real processes, each for a few cycles."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import histories
import histories_clients
import pytest

from pulsemark.testing.histories import History

CAMPAIGNS = Path(__file__).parents[2] / "campaigns"
MAY_NOT_MOUNT = 3


@pytest.mark.parametrize(
    ("tool", "cycles"),
    [("kill_campaign", 3), ("full_disk_campaign", 2)],
)
def test_a_short_campaign_finds_nothing(tool, cycles):
    """kill -9 of a store, and a disk that fills up: nothing is lost."""
    done = subprocess.run(
        [sys.executable, CAMPAIGNS / f"{tool}.py", "--cycles", str(cycles)],
        check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    if done.returncode == MAY_NOT_MOUNT:
        pytest.skip("this process may not mount file systems")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["cycles"] == cycles
    assert report["acknowledged"] > 0
    assert report["problems"] == 0


@pytest.mark.parametrize(("campaign", "cycles"), [("kill", 2), ("full-disk", 1)])
def test_a_short_campaign_with_kafkas_clients_finds_nothing(campaign, cycles):
    """Idempotent producers and a consumer that commits: all is there, once and in order."""
    done = run("kafka_campaigns", campaign, "--cycles", str(cycles))
    if done.returncode == MAY_NOT_MOUNT:
        pytest.skip("this process may not mount file systems")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["problems"], report["failed_sends"]) == (0, 0)
    assert report["acknowledged"] > 0


def test_a_short_history_is_clean_and_judges_something(tmp_path):
    """Official clients under faults see nothing that cannot be, on every kind of lane."""
    done = run(
        "histories", "--times", "3", "--faults", "kill,drop,receipts", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| lost-write | 0 |" in done.stdout
    history = History.load(tmp_path / "broker-1.jsonl")
    assert len(history.faults) == 3
    topics = {step.topic for step in history.steps if step.topic}
    assert topics >= {"chunks", "both-partition-0", "kafka", "parts-partition-1", "moved"}
    assert "commands were used; not: " in done.stdout


def test_a_client_that_does_not_end_is_named_and_the_rest_is_judged(monkeypatch):
    """A library's close that hangs, and a thread: neither keeps a history from being judged."""
    monkeypatch.setattr(histories_clients, "CLOSED_S", 0.1)
    monkeypatch.setattr(histories, "ENDED_S", 0.1)
    run = histories_clients.Run("", "", (), Random(1), has_moved_clock=False, has_transactions=True)
    hanging = threading.Event()

    def hang(_lane):
        hanging.wait()

    (lane,) = (each for each in histories_clients.LANES if each.name == "kafka")
    try:
        for topic in ("kafka", "shared"):
            run.note_send(f"{topic}/0", client="one", topic=topic)
            run.note("drained", 0, client="two", topic=topic, subscription="s")
        run.close("three", hanging.wait)
        histories.join(run, [histories_clients.start(hang, lane)])
    finally:
        hanging.set()
    closed, left = run.left
    assert (closed.client, closed.call, closed.topic) == ("three", "Event.wait", "")
    assert (left.client, left.topic) == ("hang kafka", "kafka")
    assert left.call.endswith("in wait")
    seen = {(step.what, step.topic, step.ok) for step in run.seen()}
    assert seen == {("send", "kafka", None), ("send", "shared", None), ("drained", "shared", True)}


def test_every_mutant_finds_what_it_changes():
    """Each of them replaces functions that are there."""
    program = (
        f"import sys; sys.path.insert(0, {str(CAMPAIGNS)!r}); sys.argv += ['--data-dir', 'data']\n"
        "from mutants import MUTANTS, note_use\n"
        "note_use('used')\n"
        "for make in MUTANTS.values(): make()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [("skips_an_index", "index-gap"), ("shows_what_was_aborted", "aborted-read")],
)
def test_a_mutant_is_found_in_virtual_time(mutant, rule):
    """The same rules, without sockets and sleeping: an index that no message has, and a message of
    a transaction that was aborted.
    """
    done = run("histories", "--virtual", "1", "--mutant", mutant)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rule in done.stdout


def test_a_short_fuzz_campaign_finds_nothing():
    """Hostile clients over two lives of a broker: it answers, and no client holds anything."""
    done = run("fuzz_broker", "--seed", "1", "--cycles", "2", "--steps", "40")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["steps"], report["problems"]) == (80, 0)


def test_hostile_clients_stay_within_their_bounds():
    """Some of the attacks, on a small scale: the tool measures, and no bound is passed."""
    done = run("hostile_clients", "--scale", "0.1", "--only", "announced_frames", "long_names")
    assert done.returncode == 0, done.stdout
    results = json.loads(done.stdout.splitlines()[-1])
    assert [each["attack"] for each in results] == ["announced_frames", "long_names"]
    assert results[1]["note"].startswith("10 ")


def run(tool, *arguments):
    """A tool's run to its end."""
    return subprocess.run(
        [sys.executable, CAMPAIGNS / f"{tool}.py", *arguments],
        check=False, capture_output=True, text=True, timeout=110,
    )  # fmt: skip


def test_a_short_campaign_of_the_pipeline_finds_nothing():
    """Offload and compact, killed at seeded points and repeated: the same tables, nothing left."""
    done = run("pipeline_kill_campaign", "--cycles", "6", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["cycles"], report["problems"]) == (6, 0)
    assert report["died"] > 0
