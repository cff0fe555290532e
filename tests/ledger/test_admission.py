"""An entry that must not be stored without the one before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsemark.ledger import EARLIEST, Appended, Batch, Commit, FencedError, StoreOptions
from pulsemark.ledger.writer import Tail, check_place
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

TOPIC = "persistent://public/default/t"
OPTIONS = StoreOptions(checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS)


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[SimulatedStore]:
    """A store on a simulated disk."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS, threaded=True)
    yield simulated
    simulated.close()


def test_what_follows_a_failed_entry_is_refused(simulated: SimulatedStore) -> None:
    """After a failed sync the entry that was to follow is not stored; others are."""
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(TOPIC)
    first = topic.append(b"first")
    settle(store)
    files.fail("fdatasync")
    with store.committer.lock:
        failed = topic.append(b"failed", follows=first)
        also = topic.append(b"also", follows=failed)
    settle(store)
    for earlier in (failed, also):
        with pytest.raises(FencedError, match="the entry before it failed"):
            topic.append(b"a hole before it", follows=earlier)
    topic.append(b"other").commit.wait(5)
    topic.append(b"last", follows=first).commit.wait(5)
    assert [bytes(e.body) for e in topic.read(EARLIEST)] == [b"first", b"other", b"last"]


def tail_of(ledger_id: int) -> Tail:
    """The tail of a log whose next entry goes to this ledger."""
    return Tail(ledger_id, None, 0, 0, 0, 0, 0, 0, 0, 0, epoch=0)


def test_a_failure_that_is_not_yet_known_is_seen_by_the_ledger() -> None:
    """A pending entry must be in the ledger that goes on; a stored one may be in any."""
    commit = Commit(None, Batch(None))
    commit.done = False
    pending = Appended(4, 0, 0, 0, commit)
    check_place(TOPIC, tail_of(ledger_id=4), None, pending)
    with pytest.raises(FencedError, match="a new ledger began"):
        check_place(TOPIC, tail_of(ledger_id=5), None, pending)
    commit.done = True
    check_place(TOPIC, tail_of(ledger_id=5), None, pending)
