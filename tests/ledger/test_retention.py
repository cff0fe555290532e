"""Retention and expiry against looking at every entry."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import claim_kept, compacted_log
from pulsemark.ledger import EARLIEST, LATEST, LocalStore, StoreOptions
from pulsemark.ledger.retention import apply_retention, expire_position, retention_cut
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing import SettableClock
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/prices"
STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])

puts = st.lists(
    st.tuples(
        st.integers(0, 40),  # how far the clock goes on
        st.integers(800, 2200),  # the producer's clock
        st.booleans(),  # stamped
        st.integers(0, 60),  # payload size
    ),
    max_size=25,
)
options = st.sampled_from([StoreOptions(ledger_entries=6), StoreOptions(segment_size_bytes=700)])


def fill(topic, clock, entries):
    """Append the entries, durably."""
    for late_ms, published_ms, stamped, size in entries:
        clock.advance(by_ms=late_ms)
        topic.stampers = STAMPS if stamped else StamperChain()
        topic.append(unbatched_message(b"x" * size, publish_time_ms=published_ms))
    topic.store.committer.flush()


def sizes(topic):
    """Bytes on disk of each entry that is there."""
    return [
        segment.row(row).end_offset - segment.row(row).offset
        for segment in topic.segments()
        for row in range(segment.cut_rows, segment.entry_count)
    ]


@settings(max_examples=25)
@given(entries=puts, cut_before=st.integers(0, 25), options=options, data=st.data())
def test_retention_equals_looking_at_every_entry(entries, cut_before, options, data):
    """Cut and expiry are the same as by looking at every entry, also after the head was cut."""
    clock = SettableClock(1_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalStore.open(Path(folder), clock=clock, options=options) as store,
    ):
        topic = store.open_topic(TOPIC)
        fill(topic, clock, entries)
        there = topic.read(EARLIEST, max_entries=100)
        if there:
            topic.truncate_head(there[min(cut_before, len(there) - 1)].position)
        there = topic.read(EARLIEST, max_entries=100)
        end = topic.end_position
        positions = [entry.position for entry in there]
        on_disk = sizes(topic)
        for _ in range(6):
            now_ms = data.draw(st.integers(900, 2500))
            time_ms = data.draw(st.none() | st.integers(0, 1200))
            size = data.draw(st.none() | st.integers(0, sum(on_disk) + 10))
            acked = data.draw(st.none() | st.sampled_from([EARLIEST, *positions, LATEST]))
            cut = retention_cut(
                topic,
                now_ms=now_ms,
                retention_time_ms=time_ms,
                retention_size_bytes=size,
                acked=acked,
            )

            def goes(number, now=now_ms, time=time_ms, limit=size, ack=acked):
                entry = there[number]
                too_old = time is not None and (time == 0 or now - entry.append_time_ms > time)
                too_much = limit is not None and sum(on_disk[number:]) > limit
                return (ack is None or entry.position <= ack) and (too_old or too_much)

            kept = [p for number, p in enumerate(positions) if not goes(number)]
            assert cut == (kept[0] if kept else end)
            ttl_ms = data.draw(st.integers(1, 1200))
            alive = [entry.position for entry in there if entry.append_time_ms >= now_ms - ttl_ms]
            dead = [p for p in positions if not alive or p < alive[0]]
            found = expire_position(topic, now_ms=now_ms, ttl_ms=ttl_ms)
            assert found == (dead[-1] if dead else None)


@pytest.fixture
def topic(open_store, clock):
    """Ten entries, 10 ms apart from 1000 ms on, in two ledgers."""
    clock.set(1_000)
    ledger = open_store(ledger_entries=6).open_topic(TOPIC)
    for number in range(10):
        fill(ledger, clock, [(0, 1, True, number)])
        clock.advance(by_ms=10)
    return ledger


def apply(topic, *, now_ms=1_100, **limits):
    """Apply retention, without limits but those given; compaction keeps what it needs."""
    every = {"retention_time_ms": None, "retention_size_bytes": None, **limits}
    with claim_kept(topic) as claim:
        return apply_retention(topic, now_ms=now_ms, claim=claim, **every)


def left(log):
    """Positions of what is still there."""
    return [entry.position for entry in log.read(EARLIEST, max_entries=100)]


def test_without_limits_nothing_is_removed(topic):
    """None means no limit, however old and large the topic is."""
    assert apply(topic) == 0
    assert len(left(topic)) == 10


def test_retention_by_time(topic):
    """Entries older than the retention time are removed, also inside the open ledger."""
    before = left(topic)
    assert apply(topic, retention_time_ms=70) == 3
    assert left(topic) == before[3:]
    assert apply(topic, retention_time_ms=25) == 5
    assert left(topic) == before[8:]
    assert apply(topic, retention_time_ms=25) == 0


def test_retention_limit_of_zero(topic):
    """A limit of 0 removes everything that is acknowledged, up to the last entry."""
    assert apply(topic, retention_time_ms=0) == 10
    assert topic.first_position is None
    assert apply(topic, retention_time_ms=0) == 0
    assert topic.append(unbatched_message(b"", publish_time_ms=1)).index == 10


def test_retention_by_size(topic):
    """The newest entries that fit into the retention size stay."""
    before, on_disk = left(topic), sizes(topic)
    assert apply(topic, retention_size_bytes=sum(on_disk[7:])) == 7
    assert left(topic) == before[7:]
    assert apply(topic, retention_size_bytes=sum(on_disk[8:]) - 1) == 2
    assert left(topic) == before[9:]


def test_durable_subscriptions_keep_entries(topic):
    """Entries that a durable subscription has not acknowledged stay; one in memory keeps none."""
    before = left(topic)
    slow = topic.open_cursor("slow", initial=EARLIEST)
    fast = topic.open_cursor("fast", initial=EARLIEST)
    topic.open_cursor("reader", initial=EARLIEST, durable=False)
    fast.ack_cumulative(before[8])
    assert apply(topic, retention_time_ms=0) == 0
    slow.ack_cumulative(before[1])
    slow.ack(before[4])
    assert apply(topic, retention_time_ms=0) == 2
    assert left(topic) == before[2:]
    topic.delete_cursor("slow").wait()
    assert apply(topic, retention_time_ms=0) == 7


def test_compaction_keeps_entries(topic, clock):
    """Once a topic is compacted, entries that the view does not have yet stay; so does the view."""
    fill(topic, clock, [(0, 1, True, 1)])
    body = unbatched_message(b"v", publish_time_ms=1, key="a")
    topic.append(body).commit.wait()
    kept = topic.last_position
    compact(topic)
    topic.append(body).commit.wait()
    after = topic.last_position
    assert apply(topic, retention_time_ms=0) == 12
    assert left(topic) == [after]
    assert left(compacted_log(topic)) == [kept, after]


def test_running_compaction_keeps_all_entries(topic):
    """While a topic is compacted for the first time, nothing is removed."""
    body = unbatched_message(b"v", publish_time_ms=1, key="a")
    topic.append(body).commit.wait()
    removed = []
    report = compact(topic, check=lambda: removed.append(apply(topic, retention_time_ms=0)))
    assert removed
    assert not any(removed)
    assert report.entries_kept == 1


def test_wrong_producer_clock(topic, clock):
    """A producer's clock, fast or slow, does not change when its entries are removed."""
    before = left(topic)
    fill(topic, clock, [(0, 2**50, False, 1), (10, 0, False, 1), (10, 2**50, False, 1)])
    assert apply(topic, now_ms=1_200, retention_time_ms=85) == len(before) + 2
    assert expire_position(topic, now_ms=1_500, ttl_ms=10) == topic.last_position


def test_expiry_by_append_time_without_stamps(topic, clock):
    """Publish times neither hurry expiry nor hold it up, also where there are no stamps."""
    before = left(topic)
    fill(topic, clock, [(0, 500, False, 1), (0, 9_099, False, 1), (0, 500, False, 1)])
    after_the_stamped = left(topic)[10:]
    assert expire_position(topic, now_ms=1_110, ttl_ms=15) == before[-1]
    assert expire_position(topic, now_ms=1_116, ttl_ms=15) == after_the_stamped[2]


def test_damaged_entries_do_not_stop_retention(topic):
    """Entries that cannot be read are removed, and expire, with those around them."""
    topic.store.checkpoint()
    before = left(topic)
    segment = topic.segments()[0]
    content = bytearray(segment.path.read_bytes())
    for row in (1, 2, 3):
        content[segment.row(row).offset + 20] ^= 0xFF
    segment.path.write_bytes(content)
    assert expire_position(topic, now_ms=1_100, ttl_ms=55) == before[4]
    assert apply(topic, retention_time_ms=55) == 5
    assert topic.first_position == before[5]


@pytest.mark.parametrize("limits", [{"retention_time_ms": -1}, {"retention_size_bytes": -1}])
def test_negative_retention_limits_are_refused(topic, limits):
    """Pulsar's -1 is None here; a negative number is a mistake."""
    with pytest.raises(ValueError, match="None, 0 or more"):
        apply(topic, **limits)


@pytest.mark.parametrize("ttl_ms", [0, -1])
def test_expiry_time_must_be_positive(topic, ttl_ms):
    """A time to live must be positive: 0 is how policies switch it off."""
    with pytest.raises(ValueError, match="must be positive"):
        expire_position(topic, now_ms=1, ttl_ms=ttl_ms)


def test_empty_topic(open_store):
    """An empty topic has nothing to remove and nothing that expires."""
    topic = open_store().open_topic(TOPIC)
    assert apply(topic, retention_time_ms=0, retention_size_bytes=0) == 0
    assert expire_position(topic, now_ms=1 << 40, ttl_ms=1) is None


@pytest.mark.parametrize("how", ["restart", "roll", "neither"])
def test_open_ledger_is_trimmed_after_a_restart_or_roll(topic, open_store, how):
    """What is removed is gone, and counted, also where no entry follows in a newer ledger."""
    if how == "restart":
        topic.store.close()
        topic = open_store(ledger_entries=6).open_topic(TOPIC)
    elif how == "roll":
        topic.roll()
    assert topic.truncate_head(left(topic)[7]) == 7
    assert len(left(topic)) == 3
    assert topic.truncate_head(topic.end_position) == 3
    assert left(topic) == []
    assert topic.truncate_head(topic.end_position) == 0
    topic.store.close()
    again = open_store(ledger_entries=6).open_topic(TOPIC)
    assert (left(again), again.next_index) == ([], 10)


def test_retention_after_a_restart(topic, open_store):
    """Retention at once empties a topic that was opened again, and says so."""
    topic.store.close()
    topic = open_store(ledger_entries=6).open_topic(TOPIC)
    assert apply(topic, retention_time_ms=0) == 10
    assert topic.first_position is None


def test_appended_meanwhile_is_kept(topic, clock):
    """An entry that becomes durable while retention looks at the log is not too old."""
    old = len(left(topic))
    read_segments = topic.segments

    def segments_then_append():
        found = read_segments()
        if topic.next_index == old:
            clock.set(5_000)
            topic.append(unbatched_message(b"new", publish_time_ms=1)).commit.wait()
        return found

    topic.segments = segments_then_append
    removed = apply(topic, now_ms=5_000, retention_time_ms=100)
    del topic.segments
    assert removed == old
    assert len(left(topic)) == 1


DAY_MS = 86_400_000


def test_clock_that_was_ahead_does_not_hold_entries(topic, open_store, clock):
    """After a step of the clock, a day ahead and back, entries go after the retention time."""
    now_ms = 1_100
    fill(topic, clock, [(DAY_MS, 1, True, 1)])
    clock.set(now_ms)
    fill(topic, clock, [(0, 1, True, 1), (0, 1, True, 1)])
    assert left(topic)[-1] == topic.last_position

    def apply_at(at_ms):
        return apply(topic, now_ms=at_ms, retention_time_ms=5_000)

    assert apply_at(now_ms) == 0
    clock.set(now_ms + 3_000)
    fill(topic, clock, [(0, 1, True, 1)])  # younger than the note
    topic.store.close()
    topic = open_store(ledger_entries=6).open_topic(TOPIC)
    assert apply_at(now_ms + 5_000) == 10  # those from before the step, by their own times
    assert apply_at(now_ms + 5_001) == 3
    assert len(left(topic)) == 1
    assert apply_at(now_ms + 5_002) == 0  # a new note, of the one that is left
    assert apply_at(now_ms + 10_004) == 1
    topic.store.delete_topic(TOPIC)
    assert topic.store.catalog.items("retention-seen") == []


@pytest.mark.parametrize("now_ms", [-1, 2**63])
def test_a_time_that_cannot_be_is_refused_by_its_name(tmp_path, now_ms):
    """ValueError names the time; nothing is removed, and nothing is noted."""
    clock = SettableClock(10_000_000)
    with LocalStore.open(tmp_path, clock=clock) as store:
        topic = store.open_topic(TOPIC)
        fill(topic, clock, [(1, 800, True, 5)] * 3)
        with pytest.raises(ValueError, match=f"now_ms must be from 0 to .*, not {now_ms}"):
            apply_retention(
                topic, now_ms=now_ms, retention_time_ms=5, retention_size_bytes=None, claim=None
            )
        assert len(topic.read(EARLIEST)) == 3
