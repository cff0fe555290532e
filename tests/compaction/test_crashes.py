"""Compaction ended at any call, by kill, power cut or failing disk: the old view, or the new one.

A few calls are tried unless PULSEMARK_EVERY_CALL is set.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from unittest.mock import patch

import pytest

from pulsemark.compaction import view as writer
from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import compacted_log
from pulsemark.ledger import EARLIEST, LedgerError, ManagedLedger, StoreOptions
from pulsemark.ledger.store_core import StoreCore
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain, payload_of
from pulsemark.testing.faulty_files import FaultyFiles, Short
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message
from tests.support.simulated_store import NEVER_MS, SimulatedStore

TOPIC = "persistent://public/default/prices"
OPTIONS = StoreOptions(
    segment_size_bytes=900,
    ledger_entries=9,
    checkpoint_interval_ms=NEVER_MS,
    journal_size_bytes=NEVER_MS,
)
KEYS = 12
EVERY_CALL = "PULSEMARK_EVERY_CALL" in os.environ


def fill(topic: ManagedLedger, value: bytes, numbers: range) -> None:
    """One message for each key, alone and in batches, durably."""
    topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    for number in numbers:
        topic.append(unbatched_message(value, publish_time_ms=1, key=f"k{number}"))
        members = [BatchMember(payload=value, key=f"b{number}"), BatchMember(payload=b"x")]
        topic.append(batched_message(members, publish_time_ms=1), message_count=2)
    topic.store.committer.flush()


def prepare(simulated: SimulatedStore, files: FaultyFiles) -> ManagedLedger:
    """A topic with a view, whose log was trimmed up to the horizon, and newer messages after."""
    topic = simulated.open(files).open_topic(TOPIC)
    fill(topic, b"old", range(KEYS))
    compact(topic)
    topic.truncate_head(topic.end_position)
    fill(topic, b"new", range(0, KEYS, 3))
    return topic


def look(topic: ManagedLedger) -> tuple[int, list[tuple[int, bytes]]]:
    """The view's generation, and index and payload of what the compacted topic holds."""
    log = compacted_log(topic)
    assert log.view is not None
    entries = log.read(EARLIEST, max_entries=1000)
    assert len(entries) == log.count_entries(EARLIEST, log.end_position)
    return log.view.generation, [(e.index, bytes(payload_of(e.body))) for e in entries]


def views(store: StoreCore) -> list[str]:
    """Names of all views in the store, also of those that do not count."""
    return [name for name in store.catalog.topics() if name.startswith("compacted/")]


@pytest.fixture(autouse=True)
def _small_lots():
    with patch.object(writer, "LOT_BYTES", 400), patch.object(writer, "BLOCK_ROWS", 5), patch(
        "pulsemark.compaction.view.BLOCK_ROWS", 5
    ):  # fmt: skip
        yield


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What the topic holds before and after an undisturbed compaction, and its calls in number."""
    with (
        patch.object(writer, "LOT_BYTES", 400),
        patch.object(writer, "BLOCK_ROWS", 5),
        patch("pulsemark.compaction.view.BLOCK_ROWS", 5),
    ):
        simulated = SimulatedStore(tmp_path_factory.mktemp("sound") / "data", options=OPTIONS)
        files = simulated.files()
        topic = prepare(simulated, files)
        before = look(topic)
        first = files.total_calls
        by_operation = dict(files.calls)
        compact(topic)
        calls = files.total_calls - first
        operations = {name: files.calls[name] - by_operation.get(name, 0) for name in files.calls}
        after = look(topic)
        simulated.close()
    assert before[0] == 1
    assert after[0] == 2
    assert before[1] != after[1]
    return before, after, calls, operations


def some(count: int, tries: int) -> list[int]:
    """Numbers from 1 to ``count``, the last ones included: all, or so many."""
    stride = 1 if EVERY_CALL else max(1, -(-count // tries))
    return list(range(count, 0, -stride))


def check_after(simulated: SimulatedStore, outcomes) -> int:
    """Opened again, the topic has its old view or its new one, and can be compacted."""
    before, after, _, _ = outcomes
    topic = simulated.open().open_topic(TOPIC)
    found = look(topic)
    assert found in (before, after)
    report = compact(topic)
    assert report.changed is (found == before)
    assert look(topic)[1] == after[1]
    assert len(views(topic.store)) == 1
    simulated.close()
    return found[0]


@pytest.mark.parametrize("end", ["kill", "power_off"])
def test_ended_at_any_call(tmp_path, outcomes, end):
    """Wherever the process ends, the old view or the new one is there, whole."""
    found = set()
    for number in sorted({*some(outcomes[2], 12), 1}):
        simulated = SimulatedStore(tmp_path / f"{end}{number}", seed=number, options=OPTIONS)
        files = simulated.files()
        topic = prepare(simulated, files)
        files.at_call(files.total_calls + number, getattr(simulated.disk, end))
        with suppress(OSError, LedgerError):
            compact(topic)
        getattr(simulated, end)()
        found.add(check_after(simulated, outcomes))
    assert found == {1, 2}


FAULTS = {
    "open": errno.EMFILE,
    "pread": errno.EIO,
    "pwritev": errno.ENOSPC,
    "fdatasync": errno.EIO,
    "sync_folder": errno.EIO,
    "unlink": errno.EIO,
}


@pytest.mark.parametrize("operation", FAULTS)
def test_any_call_fails(tmp_path, outcomes, operation):
    """Where a call fails, compaction is done or says that it is not; either way a view counts."""
    before, after, _, operations = outcomes
    for call in some(operations.get(operation, 0), 3):
        simulated = SimulatedStore(tmp_path / f"{operation}{call}", seed=call, options=OPTIONS)
        files = simulated.files()
        topic = prepare(simulated, files)
        files.fail(operation, call=call, error=FAULTS[operation])
        try:
            report = compact(topic)
        except (OSError, LedgerError):
            report = None
        files.heal()
        assert look(topic) == (before if report is None else after)
        simulated.close()
        check_after(simulated, outcomes)


def test_short_writes(tmp_path, outcomes):
    """Calls that do half of what was asked are gone on with."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS)
    files = simulated.files()
    topic = prepare(simulated, files)
    for operation in ("pread", "pwritev"):
        files.fail(operation, error=Short, times=None)
    compact(topic)
    assert look(topic) == outcomes[1]
    simulated.close()
