"""The store in real processes: killed, traced, short of space."""

import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    FencedError,
    LocalStore,
    Position,
    StoreOptions,
)
from tests.support.kill_store import KillCampaign

TRACED = """
import os, sys, threading
from pathlib import Path
from pulsemark.ledger import LocalStore
store = LocalStore.open(Path(sys.argv[1]))
topic = store.open_topic("persistent://public/default/orders")
cursor = topic.open_cursor("s", initial=(-1, -1))
for number in range(5):
    appended = topic.append(b"body-%d" % number)
    acked, kept = threading.Event(), threading.Event()
    appended.commit.add_done_callback(
        lambda error: (os.write(1, b"acked-%d" % number), acked.set()))
    acked.wait()
    cursor.ack_cumulative(appended.position)
    cursor.persist().add_done_callback(
        lambda error: (os.write(1, b"kept-%d" % number), kept.set()))
    kept.wait()
store.close()
"""

STRACE = ["strace", "-f", "-y", "-s", "4000", "-e", "trace=pwritev,pwritev2,fdatasync,write", "-o"]


def test_killed_process_loses_nothing(tmp_path):
    """kill -9 under load, then again on the same folder: nothing acknowledged is lost."""
    campaign = KillCampaign(tmp_path / "data")
    results = [campaign.cycle(seed) for seed in range(4)]
    assert [problem for result in results for problem in result.problems] == []
    assert sum(result.acknowledged for result in results) > 20


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_receipt_comes_after_the_sync_of_its_bytes(tmp_path):
    """In the order of system calls: bytes into the journal, sync returned, then the receipt."""
    trace = tmp_path / "trace"
    done = subprocess.run(
        [*STRACE, str(trace), sys.executable, "-c", TRACED, str(tmp_path / "data")],
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip("this process may not trace others")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text().splitlines()

    def first(pattern, start=0):
        return next(n for n, line in enumerate(lines) if n > start and re.search(pattern, line))

    for number in range(5):
        written = first(rf"pwritev2?\(.*\.journal>.*body-{number}")
        receipt = first(rf'write\(1.*"acked-{number}"')
        synced = first(r"fdatasync\(.*\.journal>\) += 0|fdatasync resumed.*= 0", written)
        in_place = first(rf"pwritev2?\(.*\.log>.*body-{number}")
        assert written < synced < in_place < receipt
        kept = first(rf'write\(1.*"kept-{number}"', receipt)
        assert any(
            receipt < n < kept and re.search(r"fdatasync.*= 0", line)
            for n, line in enumerate(lines)
        )


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)],
        check=False, capture_output=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("this process may not mount file systems")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_full_disk_is_an_error_and_passes(small_disk):
    """Without space appends fail cleanly and reads go on; with space again, so do appends."""
    options = StoreOptions(segment_size_bytes=300_000, checkpoint_interval_ms=500)
    ballast = small_disk / "ballast"
    bodies, number = [], 0
    with LocalStore.open(small_disk / "data", options=options) as store:
        topic = store.open_topic("persistent://public/default/orders")
        for full in (False, True, False, True, False):
            if full:
                with suppress(OSError):
                    ballast.write_bytes(bytes(4 << 20))
            else:
                ballast.unlink(missing_ok=True)
            outcomes = []
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                number += 1
                body = b"%06d" % number * 800
                try:
                    topic.append(body).commit.wait(10)
                    bodies.append(body)
                    outcomes.append("stored")
                except (FencedError, CatalogError) as error:
                    outcomes.append(type(error).__name__)
                if outcomes.count("stored") > 4 or len(outcomes) > 60:
                    break
            assert ("stored" not in outcomes[-20:]) if full else (outcomes[-1] == "stored")
            assert [b for b in read_bodies(topic) if b in bodies] == bodies
    with LocalStore.open(small_disk / "data", options=options) as store:
        topic = store.open_topic("persistent://public/default/orders")
        assert [b for b in read_bodies(topic) if b in bodies] == bodies


def read_bodies(topic):
    """The bodies of all entries."""
    got, place = [], EARLIEST
    while part := topic.read(place):
        got += [bytes(entry.body) for entry in part]
        place = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)
    return got
