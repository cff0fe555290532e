"""A compacted topic's search agrees with the full log's, on both methods."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.compaction import view
from pulsemark.compaction import view as compacted_view
from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import claim_of, compacted_log
from pulsemark.compaction.finder import CompactedFinder
from pulsemark.finder import Finder, IndexOutOfRangeError, SearchMethod
from pulsemark.ledger import LocalStore, StoreOptions
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message

TOPIC = "persistent://public/default/prices"
STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])
METHODS = list(SearchMethod)


@dataclass
class Put:
    """An entry to append."""

    key: str | None
    count: int
    """Messages in it: 0 for an entry that counts none, more than 1 for a batch."""
    late_ms: int
    """How far the clock goes on before it."""
    published_ms: int
    """What its producer takes the time for."""
    stamped: bool


puts = st.builds(
    Put,
    st.sampled_from(["a", "b", "c", None]),
    st.sampled_from([1, 1, 1, 0, 3]),
    st.integers(0, 20),
    st.integers(900, 1300),
    st.booleans(),
)
commands = st.sampled_from(["compact", "compact", "trim"])


def append(topic, clock, put):
    """Append as `put` says, durably."""
    clock.advance(put.late_ms)
    topic.stampers = STAMPS if put.stamped else StamperChain()
    if put.count > 1:
        members = [BatchMember(payload=b"x", key=put.key)] * put.count
        body = batched_message(members, publish_time_ms=put.published_ms)
    else:
        body = unbatched_message(b"x", publish_time_ms=put.published_ms, key=put.key)
    topic.append(body, message_count=put.count).commit.wait()


def survivor(log, position):
    """The first entry of the compacted log at or after ``position``."""
    entries = log.read(position, max_entries=1)
    return entries[0] if entries else None


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(puts | puts | puts | puts | commands, max_size=30), blocks=st.integers(1, 4))
def test_agrees_with_the_full_log(steps, blocks):
    """For any time and index: the first survivor at or after what a full log's search gives."""
    clock = SettableClock(1_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(view, "BLOCK_ROWS", blocks),
        patch.object(compacted_view, "BLOCK_ROWS", blocks),
        LocalStore.open(Path(folder), clock=clock, options=StoreOptions(ledger_entries=6)) as store,
    ):
        # The same twice; only one of the two is ever trimmed.
        topic, full = store.open_topic(TOPIC), store.open_topic(TOPIC + "-full")
        places = {}
        for step in steps:
            if step == "compact":
                compact(topic)
            elif step == "trim":
                claim = claim_of(topic)
                if claim is not None:
                    topic.truncate_head(claim)
            else:
                append(full, clock, step)
                append(topic, clock, Put(**{**vars(step), "late_ms": 0}))
                places[full.last_position] = topic.last_position
        check(compacted_log(topic), full, places)


def check(log, full, places):
    """Compare all answers that can differ."""
    finder, oracle = CompactedFinder(log), Finder(full)
    for time_ms in [0, *range(895, 1320, 7), *range(1000, 1700, 11), 2**62]:
        wanted = oracle.by_time(time_ms)
        left = None if wanted.end else survivor(log, places[wanted.position])
        for method in METHODS:
            found = finder.by_time(time_ms, method=method)
            assert found.end is (left is None)
            if left is None:
                assert (found.position, found.first_index) == (log.end_position, log.next_index)
            else:
                assert (found.position, found.index) == (left.position, left.index)
                assert (found.first_index, found.message_count) == (
                    left.first_index,
                    left.message_count,
                )
    for index in range(full.next_index):
        left = survivor(log, places[oracle.by_index(index).position])
        for method in METHODS:
            place = finder.by_index(index, method=method)
            if left is None:
                assert (place.position, place.message_count) == (log.end_position, 0)
                continue
            assert (place.position, place.index) == (left.position, left.index)
            assert place.first_index + place.batch_index == max(index, left.first_index)
    for index in (-1, full.next_index):
        for method in METHODS:
            with pytest.raises(IndexOutOfRangeError):
                finder.by_index(index, method=method)


@pytest.fixture
def topic(tmp_path):
    """Sixty entries a second apart from 1000 s on, three keys, all compacted but the last ten."""
    clock = SettableClock(1_000_000)
    with LocalStore.open(tmp_path / "data", clock=clock) as store:
        ledger = store.open_topic(TOPIC)
        for number in range(60):
            append(ledger, clock, Put("abc"[number % 3], 1, 0, 1, stamped=True))
            if number == 49:
                compact(ledger)
            clock.advance(1000)
        yield ledger


def test_times_are_the_entries_own(topic):
    """A found entry's time is its own; one read of the index is enough to find it."""
    finder = CompactedFinder(compacted_log(topic))
    found = finder.by_time(1_020_000)
    assert (found.index, found.time_ms, found.reads) == (47, 1_047_000, 1)
    found = finder.by_time(1_020_000, method=SearchMethod.PREFIXES)
    assert (found.index, found.time_ms) == (47, 1_047_000)
    assert finder.by_time(1_050_000).time_ms == 1_050_000
    assert finder.by_index(20).time_ms == 1_047_000
    assert finder.by_index(55).time_ms == 1_055_000


def test_range(topic):
    """A range goes from the first survivor to the first one that no longer belongs to it."""
    finder = CompactedFinder(compacted_log(topic))
    for method in METHODS:
        found = finder.range(1_048_000, 1_052_500, method=method)
        assert (found.first_index, found.end_index, found.count) == (48, 53, 5)
    with pytest.raises(ValueError, match="is before"):
        finder.range(2, 1)


def test_without_a_view(topic):
    """A topic that was never compacted is searched as a log."""
    other = topic.store.open_topic(TOPIC + "-2")
    other.append(unbatched_message(b"x", publish_time_ms=7, key="a")).commit.wait()
    finder = CompactedFinder(compacted_log(other))
    assert finder.by_time(5) == Finder(other).by_time(5)
    assert finder.by_index(0) == Finder(other).by_index(0)


def test_rows_of_one_time_across_blocks(topic):
    """Where many entries share a time the first of them is found, whichever block it is in."""
    other = topic.store.open_topic(TOPIC + "-3")
    other.stampers = STAMPS
    for number in range(8):
        body = unbatched_message(b"x", publish_time_ms=1, key=f"k{number}")
        other.append(body).commit.wait()
    with (
        patch.object(view, "BLOCK_ROWS", 3),
        patch.object(compacted_view, "BLOCK_ROWS", 3),
    ):
        compact(other)
        finder = CompactedFinder(compacted_log(other))
        for method in METHODS:
            assert finder.by_time(1_060_000, method=method).index == 0


def test_time_maximum_of_a_removed_entry_outlives_two_compactions(topic):
    """A high time whose entry is gone still decides, also after the view was made again."""
    clock = SettableClock(1)
    folder = topic.store.folder.parent / "other"
    with LocalStore.open(folder, clock=clock) as store:
        other = store.open_topic(TOPIC)
        append(other, clock, Put("gone", 1, 0, 900, stamped=False))
        append(other, clock, Put("kept", 1, 0, 100, stamped=False))
        append(other, clock, Put("gone", 1, 0, 200, stamped=False))
        compact(other)
        append(other, clock, Put("more", 1, 0, 50, stamped=False))
        compact(other)
        finder = CompactedFinder(compacted_log(other))
        for method in METHODS:
            assert finder.by_time(800, method=method).index == 1


def test_index_that_was_trimmed_behind_the_horizon(topic):
    """An index beyond the horizon whose entry the log lost gives the first one it still has."""
    topic.truncate_head(topic.previous_position(topic.last_position))
    finder = CompactedFinder(compacted_log(topic))
    for method in METHODS:
        place = finder.by_index(52, method=method)
        assert (place.index, place.batch_index) == (58, 0)


def test_damaged_entry_behind_the_horizon(topic):
    """The first entry after the horizon is found, also if it is damaged."""
    compact(topic)
    log = compacted_log(topic)
    topic.append(unbatched_message(None, publish_time_ms=1, key="a")).commit.wait()
    topic.append(unbatched_message(None, publish_time_ms=1, key="b")).commit.wait()
    topic.append(unbatched_message(None, publish_time_ms=1, key="c")).commit.wait()
    compact(topic)
    behind = topic.append(unbatched_message(b"x", publish_time_ms=1, key="c"))
    behind.commit.wait()
    topic.store.checkpoint()
    segment = topic.segments()[-1]
    content = bytearray(segment.path.read_bytes())
    content[-1] ^= 1
    segment.path.write_bytes(content)
    found = CompactedFinder(log).by_time(0)
    assert (found.position, found.index, found.message_count) == (behind.position, 63, 1)
    assert not found.end
