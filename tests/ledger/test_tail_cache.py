"""The cache of the newest entries: what it gives is what the disk has, and it is bounded."""

from __future__ import annotations

import errno
import gc
import shutil
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsemark.ledger import EARLIEST, LedgerError, LocalStore, Position, StoreOptions, TopicLog
from pulsemark.ledger.commit.batch import PIECE_BYTES
from pulsemark.ledger.tail_cache import IDLE_COMMITS, MAX_AGE_MS
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.testing.faulty_files import FaultyFiles
from pulsemark.testing.raw_messages import unbatched_message

ORDERS = "persistent://public/default/orders"
STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])


def after(entry):
    """Where to read on."""
    return Position(entry.position.ledger_id, entry.position.entry_id + 1)


def shown(entries):
    """All that an entry says."""
    return [
        (
            entry.position,
            entry.kind,
            entry.message_count,
            entry.index,
            entry.append_time_ms,
            entry.prefix_size_bytes,
            bytes(entry.stored),
        )
        for entry in entries
    ]


def walk(read):
    """All entries that a way of reading gives, from the beginning."""
    entries, position = [], EARLIEST
    while part := read(position, max_entries=3, max_bytes=400):
        entries += part
        position = after(part[-1])
    return entries


@pytest.fixture
def store(open_store):
    """A store without threads: a commit is made by the one who waits for it."""
    return open_store(threaded=False)


@pytest.fixture
def topic(store):
    """A topic that is read at its end."""
    topic = store.open_topic(ORDERS)
    assert topic.read(EARLIEST) == []
    return topic


def append(topic, *bodies):
    """Append and make durable, as the committer's thread does."""
    appended = [topic.append(body) for body in bodies]
    topic.store.committer.flush()
    return appended


class TailMachine(RuleBasedStateMachine):
    """Reading through the cache equals reading from the disk, whatever happens to the log."""

    def __init__(self):
        super().__init__()
        self.folder = Path(mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.files = FaultyFiles()
        self.clock = SettableClock(A_TIME_MS)
        self.store = LocalStore.open(
            self.folder / "data",
            files=self.files,
            clock=self.clock,
            threaded=False,
            options=StoreOptions(
                tail_cache_bytes=15_000, segment_size_bytes=900, ledger_entries=30
            ),
        )
        self.number = 0
        self.sent = []
        self.acknowledged = set()
        self.readers = [EARLIEST] * 3
        self.open()

    def open(self):
        """Open the topic and its cursor."""
        self.topic = self.store.open_topic(ORDERS)
        self.topic.stampers = STAMPS
        self.cursor = self.topic.open_cursor("s", initial=EARLIEST)

    def teardown(self):
        """Close the store."""
        with suppress(LedgerError, OSError):
            self.store.close()
        shutil.rmtree(self.folder)

    def settle(self):
        """Commit what is pending, and note what was acknowledged."""
        self.store.committer.flush()
        for body, appended in self.sent:
            assert appended.commit.done
            if appended.commit.error is None:
                self.acknowledged.add(body)
        self.sent.clear()

    @rule(sizes=st.lists(st.sampled_from([0, 5, 90, 400]), min_size=1, max_size=5))
    def append(self, sizes):
        """Entries wait for a commit."""
        for size in sizes:
            self.number += 1
            body = b"%d " % self.number + bytes(size)
            self.sent.append((body, self.topic.append(body, message_count=self.number % 3)))

    @rule()
    def commit(self):
        """They become durable."""
        self.settle()

    @rule(call=st.sampled_from(["pwritev", "fdatasync"]), path=st.sampled_from([".seg", ""]))
    def commit_fails(self, call, path):
        """The journal, or the segment, cannot be written or synced."""
        self.files.fail(call, error=errno.EIO, path_part=path)
        self.append([5, 90])
        self.settle()
        self.files.heal()

    @rule(number=st.integers(0, 2), most=st.integers(1, 7), size=st.sampled_from([1, 300, 1 << 20]))
    def read(self, number, most, size):
        """A reader goes on: what it gets is what the disk has."""
        start = self.readers[number]
        cached = self.topic.read(start, max_entries=most, max_bytes=size)
        direct = TopicLog.read(self.topic, start, max_entries=most, max_bytes=size)
        assert bool(cached) == bool(direct)
        assert len(cached) <= most
        assert len(cached) == 1 or sum(len(entry.stored) for entry in cached) <= size
        same = min(len(cached), len(direct))
        assert shown(cached)[:same] == shown(direct)[:same]
        if cached:
            self.readers[number] = after(cached[-1])

    @rule(number=st.integers(0, 2))
    def read_from_the_beginning(self, number):
        """A reader begins again."""
        self.readers[number] = EARLIEST

    def check_places(self, entries):
        """From where entries stood, gone or not, both ways of reading go on alike."""
        for entry in entries:
            cached = self.topic.read(entry.position, max_entries=1)
            assert shown(cached) == shown(TopicLog.read(self.topic, entry.position, max_entries=1))

    @rule(share=st.floats(0, 1))
    def truncate_tail(self, share):
        """A new leader cuts off the end."""
        self.settle()
        before = walk(self.topic.read)
        starts = [e.first_index for e in before if e.message_count]
        if starts:
            index = starts[int(share * (len(starts) - 1))]
            self.topic.truncate_tail(index, epoch=self.topic.epoch + 1)
        self.check_places(before)

    @rule()
    def truncate_tail_fails(self):
        """It could not be made durable."""
        self.settle()
        starts = [e.first_index for e in walk(self.topic.read) if e.message_count]
        self.files.fail("fdatasync", error=errno.EIO)
        with suppress(LedgerError):
            at = starts[-1] if starts else self.topic.next_index
            self.topic.truncate_tail(at, epoch=self.topic.epoch + 1)
        self.files.heal()

    @rule(share=st.floats(0, 1), whole=st.booleans())
    def remove_from_the_head(self, share, whole):
        """Whole segments, or entries, are removed."""
        entries = walk(self.topic.read)
        if entries:
            before = entries[int(share * (len(entries) - 1))].position
            (self.topic.trim if whole else self.topic.truncate_head)(before)
        self.check_places(entries)

    @rule()
    def roll(self):
        """A ledger ends."""
        self.topic.roll()

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share):
        """The cursor moves on."""
        entries = walk(self.topic.read)
        if entries:
            self.cursor.ack_cumulative(entries[int(share * (len(entries) - 1))].position)

    @rule(ms=st.sampled_from([1, MAX_AGE_MS // 2, MAX_AGE_MS + 1]))
    def time_passes(self, ms):
        """Entries grow old."""
        self.clock.advance(by_ms=ms)
        self.store.tail_cache.evict_old()

    @precondition(lambda self: self.number % 4 == 0)
    @rule()
    def delete(self):
        """The topic goes, and one of the same name comes."""
        self.settle()
        old = self.topic
        self.store.delete_topic(ORDERS)
        assert old.recent.read(EARLIEST, 10, 1 << 20) == []
        self.open()
        self.readers = [EARLIEST] * 3

    @invariant()
    def all_is_as_on_disk(self):
        """From the beginning to the end, through the cache and past it."""
        through = walk(self.topic.read)
        assert shown(through) == shown(
            walk(lambda *at, **most: TopicLog.read(self.topic, *at, **most))
        )

    @invariant()
    def what_failed_is_not_kept(self):
        """The cache has no entry whose sender was given an error."""
        for entry in walk(self.topic.read):
            for kept in self.topic.recent.read(entry.position, 1, 1 << 20):
                assert not kept.body or bytes(kept.body) in self.acknowledged | {
                    body for body, _ in self.sent
                }

    @invariant()
    def it_is_bounded(self):
        """In bytes, and its counts fit together."""
        cache = self.store.tail_cache
        assert 0 <= cache.used_size_bytes <= cache.max_size_bytes
        assert 0 <= cache.entry_count <= cache.inserted_entries


class TestTail(TailMachine.TestCase):  # type: ignore[misc, valid-type]
    """What is read through the cache is what is on disk, and no more than may be kept is."""

    settings = settings(max_examples=30, stateful_step_count=30)


def test_readers_share_what_was_written(open_store):
    """Readers at the end get the same entries, with the written bytes, and no file is read."""
    files = FaultyFiles()
    topic = open_store(threaded=False, files=files).open_topic(ORDERS)
    topic.stampers = STAMPS
    assert topic.read(EARLIEST) == []
    message = unbatched_message(b"m", publish_time_ms=1, producer_name="p", sequence_id=1)
    first = append(topic, message, b"own checksum", b"")[0].position
    read_before = files.calls["pread"]
    one, other = topic.read(first), topic.read(first)
    assert files.calls["pread"] == read_before
    assert [id(entry) for entry in one] == [id(entry) for entry in other]
    assert shown(one) == shown(TopicLog.read(topic, first))
    assert [bytes(entry.body) for entry in one] == [message, b"own checksum", b""]


def test_a_read_begins_and_ends_where_it_is_asked_to(topic):
    """Over several commits, from any entry on, within both limits; at least one entry."""
    first = append(topic, *[b"a" * 100] * 4)[0].position
    append(topic, *[b"b" * 100] * 4)
    third = Position(first.ledger_id, 2)
    recent = topic.recent
    assert [e.position.entry_id for e in recent.read(third, 4, 1 << 20)] == [2, 3, 4, 5]
    assert [e.position.entry_id for e in recent.read(third, 9, 300)] == [2, 3, 4]
    assert [e.position.entry_id for e in recent.read(third, 9, 1)] == [2]
    assert recent.read(third, 0, 1 << 20) == []
    for absent in ((first.ledger_id, 8), (first.ledger_id + 1, 0), EARLIEST):
        assert recent.read(Position(*absent), 9, 1 << 20) == []


@pytest.mark.parametrize(
    ("remove", "gone", "there"),
    [
        (lambda topic, at: topic.trim(at), [0, 1, 2], [8, 9]),
        (lambda topic, at: topic.truncate_head(at), [0, 4, 7], [8, 9]),
        (lambda topic, at: topic.truncate_tail(at.entry_id, epoch=1), [8, 9], []),
        (lambda topic, at: topic.store.delete_topic(ORDERS), range(10), []),
    ],
    ids=["trim", "truncate_head", "truncate_tail", "delete"],
)
def test_removed_entries_are_not_kept(open_store, remove, gone, there):
    """Before a removal returns its entries have left the cache; others may stay."""
    topic = open_store(threaded=False, segment_size_bytes=600).open_topic(ORDERS)
    assert topic.read(EARLIEST) == []
    places = [append(topic, b"%d" % number * 100)[0].position for number in range(10)]
    assert all(topic.recent.read(place, 1, 1) for place in places)
    assert len(topic.segments()) > 2
    remove(topic, places[8])
    assert [number for number in gone if topic.recent.read(places[number], 1, 1)] == []
    assert [number for number in there if topic.recent.read(places[number], 1, 1)] == there


def test_what_a_waiting_thread_commits_is_kept(open_store):
    """A thread that appends and waits commits by itself, and readers at the end share that, too."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    topic.append(b"first").commit.wait()
    position = after(topic.read(EARLIEST)[-1])

    def write():
        for number in range(20):
            topic.append(b"%d" % number).commit.wait()

    for _ in range(3):
        assert topic.read(position) == []
        writing = threading.Thread(target=write)
        writing.start()
        writing.join(60)
        entries = topic.read(position, max_entries=100)
        assert [bytes(entry.body) for entry in entries] == [b"%d" % n for n in range(20)]
        position = after(entries[-1])
    assert store.tail_cache.hit_entries == 60


def test_topic_without_a_reader_at_its_end_keeps_nothing(store):
    """Such a topic takes no memory, nor does one whose reader has left."""
    topic, cache = store.open_topic(ORDERS), store.tail_cache
    append(topic, b"x")
    assert topic.read(EARLIEST)
    append(topic, b"x")
    assert cache.inserted_entries == 0
    assert topic.read(topic.end_position) == []
    for _ in range(IDLE_COMMITS + 20):
        append(topic, b"x")
    assert cache.inserted_entries == IDLE_COMMITS
    end = topic.end_position
    assert topic.read(end) == []
    append(topic, b"y")  # a new run: what was missed in between is on disk only
    assert cache.entry_count == 1
    assert [bytes(entry.body) for entry in topic.read(end)] == [b"y"]


def test_the_limit_holds_over_all_topics(open_store):
    """Beyond it the oldest entries go, of whatever topic; they are then read from the disk."""
    store = open_store(threaded=False, tail_cache_bytes=40_000)
    topics = [store.open_topic(f"{ORDERS}-{number}") for number in range(4)]
    first = []
    for topic in topics:
        topic.read(EARLIEST)
        first.append(append(topic, b"first")[0].position)
    cache = store.tail_cache
    for number in range(40):
        topic = topics[number % 3]
        append(topic, b"x" * 2_000)
        assert cache.used_size_bytes <= 40_000
        topic.read(topic.end_position)
    assert cache.used_size_bytes > 30_000
    assert cache.evicted_entries == cache.inserted_entries - cache.entry_count > 20
    missed = cache.missed_entries
    assert [bytes(topic.read(at)[0].body) for topic, at in zip(topics, first, strict=True)] == [
        b"first"
    ] * 4
    assert cache.missed_entries > missed


def test_counted_size_covers_the_memory_used(open_store):
    """What the cache counts is at least what it takes in memory, its objects included."""
    store = open_store(threaded=False)
    topic = store.open_topic(ORDERS)
    topic.stampers = STAMPS
    topic.read(EARLIEST)
    append(topic, b"warm")
    gc.collect()
    tracemalloc.start()
    before, counted_before = tracemalloc.get_traced_memory()[0], store.tail_cache.used_size_bytes
    for _ in range(40):
        start = append(topic, *[b"%d" % n * 20 for n in range(1000, 1050)])[0].position
        topic.read(start)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = store.tail_cache.used_size_bytes - counted_before
    assert store.tail_cache.entry_count == 40 * 50 + 1
    # The index's rows and what the catalog holds are in it, too.
    assert 0.7 * counted < taken < 1.1 * counted


def test_a_view_keeps_no_large_batch_in_memory(topic):
    """A large commit is kept in pieces, so that one entry keeps little else in memory."""
    bodies = [b"%4d" % number * 500 for number in range(400)]
    first = append(topic, *bodies)[0].position
    entries = topic.recent.read(first, 1_000, 1 << 30)
    assert [bytes(entry.body) for entry in entries] == bodies
    assert max(len(entry.stored.obj) for entry in entries) <= PIECE_BYTES


def test_large_entries_are_kept_one_by_one(topic):
    """Entries that are written without joining them are whole, and hold nothing but themselves."""
    bodies = [b"%d" % number * 100_000 for number in range(5)]
    blocks = [bytearray(1 << 20) for _ in bodies]
    views = []
    for block, body in zip(blocks, bodies, strict=True):
        block[: len(body)] = body
        views.append(memoryview(block)[: len(body)])
    first = append(topic, *views)[0].position
    for block in blocks:  # the sender's memory is used again for other bytes
        block[:] = bytes(len(block))
    entries = topic.recent.read(first, 10, 1 << 30)
    assert [bytes(entry.body) for entry in entries] == bodies
    assert max(len(entry.stored.obj) for entry in entries) < 101_000


def test_old_entries_are_dropped(topic, store, clock):
    """After a second nothing is kept; nor is anything kept after the clock was set back."""
    append(topic, b"old")
    clock.advance(by_ms=MAX_AGE_MS)
    store.tail_cache.evict_old()
    assert store.tail_cache.entry_count == 1
    clock.advance(by_ms=1)
    store.tail_cache.evict_old()
    assert store.tail_cache.entry_count == 0
    append(topic, b"new")
    clock.set(clock.now_ms() - 10)
    store.tail_cache.evict_old()
    assert (store.tail_cache.entry_count, store.tail_cache.used_size_bytes) == (0, 0)


def test_entries_that_all_cursors_have_passed_are_dropped(topic, store):
    """The slowest cursor decides: what all have acknowledged is dropped as more comes."""
    cursors = [topic.open_cursor(name, initial=EARLIEST) for name in ("a", "b")]
    for _ in range(20):
        last = append(topic, b"x" * 50_000)[-1].position
        topic.read(last)
        cursors[0].ack_cumulative(last)
    assert store.tail_cache.evicted_entries == 0
    cursors[1].ack_cumulative(last)
    for _ in range(8):
        append(topic, b"x" * 50_000)
    assert store.tail_cache.entry_count <= 8
    assert [len(entry.body) for entry in topic.read(last)] == [50_000] * 9


def test_size_zero_switches_the_cache_off(open_store):
    """Nothing is kept, and everything is read as before; a negative size is refused."""
    store = open_store(threaded=False, tail_cache_bytes=0)
    topic = store.open_topic(ORDERS)
    assert topic.read(EARLIEST) == []
    first = append(topic, b"x")[0].position
    assert [bytes(entry.body) for entry in topic.read(first)] == [b"x"]
    assert (store.tail_cache.inserted_entries, store.tail_cache.missed_entries) == (0, 1)
    with pytest.raises(ValueError, match="tail_cache_bytes must be from 0"):
        StoreOptions(tail_cache_bytes=-1)


def test_a_closed_store_keeps_nothing(topic, store):
    """Its memory is free again, also while a caller still has the topic."""
    append(topic, b"x")
    assert store.tail_cache.used_size_bytes
    store.close()
    assert (store.tail_cache.used_size_bytes, store.tail_cache.entry_count) == (0, 0)


def test_readers_in_threads_follow_the_tail(open_store):
    """While one thread appends and the cache evicts, each reader gets all entries in order."""
    store = open_store(tail_cache_bytes=20_000)
    topic = store.open_topic(ORDERS)
    got: list[list[bytes]] = [[], [], []]
    failures = []

    def follow(bodies):
        position = EARLIEST
        try:
            while len(bodies) < 2_000:
                for entry in topic.read(position, max_entries=7):
                    bodies.append(bytes(entry.body))
                    position = after(entry)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=follow, args=(bodies,), daemon=True) for bodies in got]
    for thread in threads:
        thread.start()
    sent = [b"%d" % number for number in range(2_000)]
    for start in range(0, 2_000, 5):
        appended = [topic.append(body) for body in sent[start : start + 5]]
        appended[-1].commit.wait(30)
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert got == [sent] * 3
    assert store.tail_cache.hit_entries > 0
