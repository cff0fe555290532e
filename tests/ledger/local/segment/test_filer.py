"""The states that segments come to as a store works, and what a failing disk makes of them."""

from __future__ import annotations

import pytest

from pulsemark.ledger import EARLIEST, FencedError, LocalStore, Position
from pulsemark.ledger.local.segment.life import SegmentState, SegmentStateError
from pulsemark.testing.faulty_files import FaultyFiles

TOPIC = "persistent://public/default/orders"
PENDING, DURABLE, ENDED, SEALED = (
    SegmentState.PENDING, SegmentState.DURABLE, SegmentState.ENDED, SegmentState.SEALED,
)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    """A store whose batches and checkpoints are made on demand."""
    with LocalStore.open(tmp_path / "data", threaded=False) as store:
        yield store


def states(topic):
    """Of all segments of a topic."""
    return [segment.state for segment in topic.all_segments()]


def append(topic, count=1):
    """Append entries that become durable."""
    for number in range(count):
        last = topic.append(b"entry %d" % number)
    last.commit.wait()


def test_from_the_first_entry_to_the_seal(store):
    """Pending, durable, ended by a roll, sealed by the next checkpoint, sealed after reopening."""
    topic = store.open_topic(TOPIC)
    commit = topic.append(b"first").commit
    assert states(topic) == [PENDING]
    commit.wait()
    assert states(topic) == [DURABLE]
    topic.roll()
    assert states(topic) == [ENDED]
    append(topic)
    assert states(topic) == [ENDED, DURABLE]
    store.checkpoint()
    assert states(topic) == [SEALED, DURABLE]
    store.close()
    with LocalStore.open(store.folder, threaded=False) as again:
        assert states(again.open_topic(TOPIC)) == [SEALED, SEALED]


def test_a_ledger_that_ends_before_its_first_commit(store):
    """What is still pending when its ledger ends is sealed only once it is durable."""
    topic = store.open_topic(TOPIC)
    commit = topic.append(b"first").commit
    topic.roll()
    assert states(topic) == [ENDED]
    due = store.engine.filer.take_due()
    assert (due.began, due.ended) == ([], [])
    commit.wait()
    store.checkpoint()
    assert states(topic) == [SEALED]


def test_removed_and_cut(store):
    """Trimmed segments are removed, those of a cut tail too; a shortened one is sealed anew."""
    topic = store.open_topic(TOPIC)
    for _ in range(4):
        append(topic, 3)
        topic.roll()
    store.checkpoint()
    first, second, third, fourth = topic.all_segments()
    topic.trim(Position(second.ledger_id, 0))
    assert first.state is SegmentState.REMOVED
    topic.truncate_tail(third.first_index + 1, epoch=1)
    assert [s.state for s in (second, third, fourth)] == [SEALED, ENDED, SegmentState.REMOVED]
    store.checkpoint()
    assert third.state is SEALED
    segments = topic.all_segments()
    store.delete_topic(TOPIC)
    assert {segment.state for segment in segments} == {SegmentState.REMOVED}


def test_segment_without_a_durable_entry_is_void(tmp_path):
    """Its file goes at the next checkpoint; the topic goes on in another ledger."""
    files = FaultyFiles()
    with LocalStore.open(tmp_path / "data", files=files, threaded=False) as store:
        topic = store.open_topic(TOPIC)
        append(topic)
        topic.roll()
        commit = topic.append(b"refused").commit
        (_, refused) = topic.all_segments()
        files.fail("fdatasync", path_part=".journal")
        with pytest.raises(FencedError):
            commit.wait()
        assert refused.state is SegmentState.VOID
        append(topic)
        store.checkpoint()
        assert refused.state is SegmentState.REMOVED
        assert not refused.path.exists()
        assert len(topic.read(EARLIEST)) == 2


def test_failed_sync_is_for_good(tmp_path):
    """A segment whose sync failed is never synced again, and the journal is kept for it."""
    files = FaultyFiles()
    with LocalStore.open(tmp_path / "data", files=files, threaded=False) as store:
        topic = store.open_topic(TOPIC)
        append(topic)
        (segment,) = topic.all_segments()
        files.fail("fdatasync", path_part=".log")
        store.checkpoint()
        assert segment.state is SegmentState.FAILED
        append(topic)
        topic.roll()
        store.checkpoint()
        assert segment.state is SegmentState.FAILED
        assert not store.engine.filer.sync(segment, -1)
        assert len(topic.read(EARLIEST)) == 2
    with LocalStore.open(tmp_path / "data", threaded=False) as again:
        assert len(again.open_topic(TOPIC).read(EARLIEST)) == 2


def test_what_the_filer_is_told_out_of_turn(store):
    """A segment that never began cannot be discarded, nor one begin twice."""
    topic = store.open_topic(TOPIC)
    append(topic)
    segment = store.engine.filer.new(topic.all_segments()[0].header)
    with pytest.raises(SegmentStateError):
        store.engine.filer.discard(segment)
    store.engine.filer.begin(segment)
    with pytest.raises(SegmentStateError):
        store.engine.filer.begin(segment)
    store.engine.filer.discard(segment)
    assert segment.removed
