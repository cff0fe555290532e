import mmap
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pulsemark.ledger import (
    EARLIEST,
    AlreadyStampedError,
    EntryKind,
    EntryTooLargeError,
    InvalidEntryError,
    LocalStore,
    MemoryStore,
    Position,
    StoreClosedError,
    StoreOptions,
)
from pulsemark.ledger.topic_log import read_on
from pulsemark.metadata import (
    BrokerTimeStamper,
    ChecksumError,
    IndexStamper,
    StamperChain,
    pack,
    pack_stamp,
    peek,
)
from pulsemark.proto.broker_entry_pb2 import BrokerEntryMetadata
from pulsemark.testing.raw_messages import unbatched_message
from tests.support.simulated_store import SimulatedStore

ORDERS = "persistent://public/default/orders"
STAMPS = StamperChain([BrokerTimeStamper(), IndexStamper()])


@pytest.fixture
def topic(open_store):
    """An empty topic, stamps off."""
    return open_store().open_topic(ORDERS)


def everything(topic):
    """All entries of a topic."""
    return [entry for lot in read_on(topic, EARLIEST) for entry in lot]


def append_all(topic, bodies, **more):
    """Append and wait."""
    appended = [topic.append(body, **more) for body in bodies]
    appended[-1].commit.wait(10)
    return appended


def test_append_answers_at_once_and_becomes_durable(topic, clock):
    """Position, index and time are known at once; the entry is readable once it is durable."""
    appended = topic.append(b"one", message_count=3)
    assert (appended.position.entry_id, appended.index) == (0, 2)
    assert appended.time_ms == clock.now_ms()
    appended.commit.wait(10)
    assert appended.commit.done
    assert appended.commit.error is None
    (entry,) = everything(topic)
    assert (entry.position, entry.index, entry.first_index) == (appended.position, 2, 0)
    assert (entry.append_time_ms, entry.message_count) == (appended.time_ms, 3)
    assert (entry.kind, bytes(entry.body)) == (EntryKind.DATA, b"one")


def test_callbacks_and_listeners_are_called_after_commits(open_store):
    """Callbacks are run by ``notify``, in order of appending; listeners once per commit."""
    notified: list[Callable[[], None]] = []
    received: list[Any] = []
    store = open_store(notify=notified.append)
    topic = store.open_topic(ORDERS)
    topic.on_confirmed.append(lambda: received.append("confirmed"))
    with store.committer.lock:
        for number in range(3):
            commit = topic.append(b"%d" % number).commit
            commit.add_done_callback(lambda error, n=number: received.append((n, error)))
    commit.wait(10)
    store.committer.flush()
    assert received == []
    for call in notified:
        call()
    assert received == [(0, None), (1, None), (2, None), "confirmed"]
    commit.add_done_callback(lambda error: received.append(("late", error)))
    assert received[-1] == ("late", None)


def test_failing_callback_does_not_stop_commits(topic, caplog):
    """An exception in a callback or listener is logged, and commits go on."""

    def fail(*_):
        raise RuntimeError("a callback that is not ours")

    def fail_to_hear():
        raise RuntimeError("a listener that is not ours")

    topic.on_confirmed.append(fail_to_hear)
    called = threading.Event()
    with topic.store.committer.lock:
        commit = topic.append(b"one").commit
        commit.add_done_callback(fail)
        assert not commit.done
    commit.wait(10)
    append_all(topic, [b"two", b"three"])
    assert len(everything(topic)) == 3
    topic.on_confirmed.append(called.set)
    topic.append(b"four")
    assert called.wait(10)
    assert "a callback that is not ours" in caplog.text
    assert "a listener that is not ours" in caplog.text


def test_stamps_on_and_off_mix_without_a_gap(topic, clock):
    """Entries while stamps are off have no prefix and count all the same."""
    for number in range(6):
        topic.stampers = STAMPS if number % 2 else StamperChain()
        clock.advance(by_ms=10)
        topic.append(b"entry", message_count=2).commit.wait(10)
    for number, entry in enumerate(everything(topic)):
        assert entry.index == 2 * number + 1
        stamp = peek(entry.prefix)
        if number % 2:
            assert stamp is not None
            assert (stamp.index, stamp.broker_timestamp) == (entry.index, entry.append_time_ms)
        else:
            assert stamp is None
        assert bytes(entry.stored) == bytes(entry.prefix) + b"entry"


def test_entry_without_messages_takes_no_index(topic):
    """A count of 0 (or less) takes no index and gets no prefix, as in Pulsar."""
    topic.stampers = STAMPS
    first = topic.append(b"nothing", message_count=0)
    append_all(topic, [b"one"])
    append_all(topic, [b"nothing"], message_count=-1)
    append_all(topic, [b"two"])
    assert first.index == -1
    entries = everything(topic)
    assert [(e.message_count, e.index) for e in entries] == [(0, -1), (1, 0), (0, 0), (1, 1)]
    assert [bool(e.prefix) for e in entries] == [False, True, False, True]
    assert topic.next_index == 2


def test_time_never_goes_back(topic, clock):
    """While the clock is earlier than the last stamp, stamps stand still: time = max(now, last)."""
    topic.stampers = STAMPS
    random = Random(1)
    last = 0
    for _ in range(200):
        clock.advance(by_ms=random.choice([5, 1, 0, -300_000, 86_400_000, -86_400_000]))
        appended = topic.append(b"x")
        assert appended.time_ms == max(clock.now_ms(), last)
        last = appended.time_ms
    appended.commit.wait(10)
    times = [entry.append_time_ms for entry in everything(topic)]
    assert times == sorted(times)
    stamps = [peek(entry.prefix) for entry in everything(topic)]
    assert times == [stamp and stamp.broker_timestamp for stamp in stamps]


def test_time_never_goes_back_over_a_restart(open_store, clock):
    """A restart with a clock that is far too early goes on from the last stamp, rolls or not."""
    clock.set(2_000_000_000_000)
    store = open_store()
    last = append_all(store.open_topic(ORDERS), [b"x", b"y"])[-1].time_ms
    for roll in (False, True, False):
        store.close()
        clock.set(1_000_000_000_000)
        store = open_store()
        topic = store.open_topic(ORDERS)
        if roll:
            topic.roll()
        assert topic.append(b"z").time_ms == last


@pytest.mark.parametrize("broken", [b"\x0e\x02", pack_stamp(1, 2) + b"forged", b"\x0e\x02\xff"])
def test_forged_stamp_is_refused(topic, broken):
    """A body that begins like the broker's prefix is refused, stamps on or off; nothing is kept."""
    for chain in (StamperChain(), STAMPS):
        topic.stampers = chain
        with pytest.raises(AlreadyStampedError) as caught:
            topic.append(broken)
        assert caught.value.topic == ORDERS
    assert topic.next_index == 0
    assert topic.append(b"next").index == 0


def test_wrong_producer_checksum_is_refused(topic):
    """A message whose CRC32C does not match is refused; a right one is kept as it is."""
    message = unbatched_message(b"payload", publish_time_ms=5)
    with pytest.raises(ChecksumError):
        topic.append(message[:-1] + b"?")
    append_all(topic, [message])
    assert [bytes(entry.body) for entry in everything(topic)] == [message]


def test_too_large_entry_is_refused(open_store):
    """The limit is on the entry as it is stored, prefix included."""
    topic = open_store(max_entry_size_bytes=100).open_topic(ORDERS)
    append_all(topic, [bytes(100)])
    with pytest.raises(EntryTooLargeError) as caught:
        topic.append(bytes(101))
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (101, 100)
    topic.stampers = STAMPS
    with pytest.raises(EntryTooLargeError):
        topic.append(bytes(100))
    assert topic.append(bytes(10)).index == 1


def test_prefix_beyond_the_record_is_refused(topic):
    """A prefix that no record header can describe is refused; the topic goes on."""
    base = BrokerEntryMetadata()
    tag = base.application_tags.add()
    tag.key, tag.value = "tag", bytes(65_520)
    assert len(pack(base)) > 65_535
    with pytest.raises(EntryTooLargeError):
        topic.append(b"x", base=base)
    tag.value = bytes(65_000)
    topic.append(b"y", base=base).commit.wait(10)
    assert topic.append(b"z").index == 1


def test_more_messages_than_a_segment_can_count(topic):
    """The largest counts add up beyond 32 bits without harm."""
    for number in range(5000):
        appended = topic.append(b"x", message_count=2**20)
        assert appended.index == (number + 1) * 2**20 - 1
    appended.commit.wait(10)
    assert [e.index for e in everything(topic)] == [n * 2**20 - 1 for n in range(1, 5001)]
    assert len(topic.segments()) == 2


@pytest.mark.parametrize("count", [2**20 + 1, 2**31 - 1, 2**31])
def test_more_messages_than_a_batch_can_hold_are_refused(topic, count):
    """Such a count is a typed error that names it; the topic goes on with no number lost."""
    with pytest.raises(InvalidEntryError, match=str(count)):
        topic.append(b"x", message_count=count)
    assert topic.append(b"x", message_count=-5).index == -1
    assert topic.append(b"x").index == 0


def test_index_beyond_64_bits_is_refused(topic):
    """The highest index can be given; the next one is a typed error."""
    topic.append(b"x").commit.wait(10)
    topic.tail = replace(topic.tail, next_index=2**63 - 1, run=None)
    topic.append(b"last").commit.wait(10)
    with pytest.raises(InvalidEntryError, match=str(2**63)):
        topic.append(b"one more")
    assert topic.append(b"none", message_count=0).index == 2**63 - 1


def bodies_of_the_same_bytes():
    """Buffers of all kinds, each of the bytes 0 to 7."""
    eight = bytes(range(8))
    yield bytearray(eight)
    yield memoryview(eight)
    yield array("I", eight)
    yield memoryview(array("I", eight))
    yield memoryview(array("d", eight))
    yield memoryview(eight).cast("B", (2, 4))
    yield mmap_of(eight)


def mmap_of(content):
    """A memory map of these bytes."""
    mapped = mmap.mmap(-1, len(content))
    mapped[:] = content
    return mapped


def test_bodies_are_stored_byte_by_byte_whatever_their_items_are(open_store):
    """A body's size is its bytes, not its items, and it reads back the same after a restart."""
    store = open_store()
    topic, other = store.open_topic(ORDERS), store.open_topic(f"{ORDERS}-other")
    with store.committer.lock:
        for body in bodies_of_the_same_bytes():
            topic.append(body)
            last = other.append(b"beside")
    last.commit.wait(10)
    assert [bytes(e.body) for e in everything(topic)] == [bytes(range(8))] * 7
    store.close()
    topic = open_store().open_topic(ORDERS)
    assert [bytes(e.body) for e in everything(topic)] == [bytes(range(8))] * 7


@pytest.mark.parametrize(
    "body",
    [memoryview(bytes(8))[::2], memoryview(bytes(8))[::-1], "text", 5, None, [1, 2], object()],
)
def test_body_that_is_no_contiguous_buffer_is_refused(topic, body):
    """It is a typed error before anything is stored, and the topic goes on."""
    with pytest.raises(InvalidEntryError, match=r"orders: a .* is not contiguous bytes"):
        topic.append(body)
    topic.append(b"x").commit.wait(10)
    assert [bytes(e.body) for e in everything(topic)] == [b"x"]


def test_body_cannot_be_resized_or_closed_while_it_is_pending(open_store):
    """Its caller gets the error; the entry is stored as it was."""
    topic = open_store().open_topic(ORDERS)
    topic.append(b"first").commit.wait(10)
    body, view = bytearray(b"resized"), memoryview(b"released")
    with topic.store.committer.lock:
        topic.append(body)
        with pytest.raises(BufferError):
            body.clear()
        last = topic.append(view)
        view.release()
    last.commit.wait(10)
    assert [bytes(e.body) for e in everything(topic)] == [b"first", b"resized", b"released"]


@pytest.mark.parametrize("engine", [LocalStore, MemoryStore])
def test_a_run_of_bodies_is_checked_as_one_body_is(engine, tmp_path):
    """Bodies of a run are taken as bytes, and are held; what no entry can be is refused by name."""
    wrong = [
        (["text"], [1], {}), ([None], [1], {}), ([memoryview(bytes(8))[::2]], [1], {}),
        ([b"x"], ["1"], {}), ([b"x"], [2**31], {}), ([b"x"], [1], {"kind": 99}),
        ([], [], {}), ([b"x", b"y"], [1], {}), ([b"x"], [1, 1], {}),
    ]  # fmt: skip
    with engine.open(*([tmp_path] if engine is LocalStore else [])) as store:
        topic = store.open_topic(ORDERS)
        topic.append(b"first").commit.wait(10)
        for bodies, counts, others in wrong:
            with pytest.raises(InvalidEntryError, match=ORDERS):
                topic.append_run(bodies, counts, **others)
        numbers, held = array("I", range(2)), bytearray(b"held")
        with store.committer.lock:
            sent = [
                topic.append_run(bodies, [True] * len(bodies))
                for bodies in ([numbers, b"left"], [held, "text"])
            ]
            with pytest.raises(BufferError):
                held.clear()
        sent[-1][0].commit.wait(10)
        assert [added for _, added in sent] == [1, 1]
        assert [bytes(e.body) for e in everything(topic)] == [b"first", bytes(numbers), b"held"]


def test_closed_store_refuses_reads_and_opens_no_file_again(open_store):
    """Reading after closing is a typed error."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    topic.append(b"x").commit.wait(10)
    store.close()
    with pytest.raises(StoreClosedError):
        topic.read(EARLIEST)
    with pytest.raises(StoreClosedError):
        topic.read_stored(EARLIEST)
    assert len(store.engine.filer.fds) == 0


def test_ledgers_end_by_age_after_the_clock_jumped_ahead_and_back(open_store, clock):
    """While stamps do not advance, a ledger's age still grows with the clock."""
    store = open_store(ledger_age_ms=1000)
    topic = store.open_topic(ORDERS)
    clock.advance(by_ms=86_400_000)
    ledgers = [topic.append(b"x").position.ledger_id]
    clock.advance(by_ms=-86_400_000)
    for _ in range(20):
        clock.advance(by_ms=300)
        ledgers.append(topic.append(b"x").position.ledger_id)
    assert len(set(ledgers)) == 5


def test_ledgers_end_by_entries_size_and_age(open_store, clock):
    """A ledger ends by its entries, its bytes, and the age of its first stamp."""
    topic = open_store(ledger_entries=4).open_topic(ORDERS)
    ids = [topic.append(b"x").position.ledger_id for _ in range(9)]
    assert [ids.count(each) for each in sorted(set(ids))] == [4, 4, 1]
    store = open_store(folder=topic.store.folder.with_name("size"), ledger_size_bytes=1000)
    ids = [store.open_topic(ORDERS).append(bytes(200)).position.ledger_id for _ in range(9)]
    assert [ids.count(each) for each in sorted(set(ids))] == [4, 4, 1]
    store = open_store(folder=topic.store.folder.with_name("age"), ledger_age_ms=60_000)
    topic = store.open_topic(ORDERS)
    first = topic.append(b"x").position.ledger_id
    clock.advance(by_ms=59_999)
    assert topic.append(b"x").position.ledger_id == first
    clock.advance(by_ms=1)
    second = topic.append(b"x").position.ledger_id
    assert second > first
    clock.advance(by_ms=-(10**9))
    assert topic.append(b"x").position.ledger_id == second


def test_segments_end_by_size_within_a_ledger(open_store, tmp_path):
    """Segments stay within their size, unless one entry alone is larger."""
    topic = open_store(segment_size_bytes=1000).open_topic(ORDERS)
    append_all(topic, [bytes(300)] * 7 + [bytes(5000)] + [bytes(300)] * 2)
    assert len({entry.position.ledger_id for entry in everything(topic)}) == 1
    sizes = [s.path.stat().st_size for s in topic.segments()]
    assert [s.entry_count for s in topic.segments()] == [2, 2, 2, 1, 1, 2]
    assert [size > 1000 for size in sizes] == [False] * 4 + [True, False]


def test_roll_begins_a_ledger_with_the_next_entry(topic):
    """Rolling twice, or an empty topic, makes no empty ledger; index and positions go on."""
    topic.roll()
    one = append_all(topic, [b"one"])[0]
    topic.roll()
    topic.roll()
    assert topic.end_position > one.position
    two = append_all(topic, [b"two"])[0]
    assert two.position.ledger_id > one.position.ledger_id
    assert (two.position.entry_id, two.index) == (0, 1)
    assert len(topic.segments()) == 2


def test_index_has_no_gap_over_many_openings(open_store):
    """Every opening begins a ledger; positions grow and the index goes on, empty openings too."""
    seen: list[Any] = []
    for number in range(6):
        store = open_store()
        topic = store.open_topic(ORDERS)
        assert topic.next_index == len(seen)
        seen += append_all(topic, [b"%d" % n for n in range(number)]) if number % 2 else []
        store.close()
    topic = open_store().open_topic(ORDERS)
    entries = everything(topic)
    assert [e.index for e in entries] == list(range(9)) == [a.index for a in seen]
    assert [e.position for e in entries] == [a.position for a in seen]


@pytest.fixture
def thirty(open_store):
    """A store and a topic of thirty entries in ledgers of ten, segments of a few."""
    store = open_store(ledger_entries=10, segment_size_bytes=700)
    topic = store.open_topic(ORDERS)
    return store, topic, append_all(topic, [b"%02d" % n * 50 for n in range(30)])


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 15, 29])
def test_trim_removes_whole_segments_before(thirty, open_store, cut):
    """Trimming removes segments wholly before the position, and never what stands after it."""
    store, topic, appended = thirty
    files_before = {s.path for s in topic.segments()}
    removed = topic.trim(appended[cut].position)
    left = everything(topic)
    assert left[-1].position == appended[-1].position
    assert left[0].position <= appended[cut].position
    gone = [a.position for a in appended if a.position < left[0].position]
    assert len(gone) <= cut
    assert cut < 8 or removed
    assert topic.first_index == left[0].first_index == topic.segments()[0].first_index
    there = {path for path in files_before if path.exists()}
    assert there == {s.path for s in topic.segments()}
    assert topic.append(b"next").index == 30
    store.close()
    again = open_store().open_topic(ORDERS)
    assert [e.position for e in everything(again)][:-1] == [e.position for e in left]
    assert again.first_index == left[0].first_index


def test_trim_keeps_the_last_segment(thirty):
    """However far the log is trimmed, the segment whose header carries the index on stays."""
    _, topic, appended = thirty
    topic.trim(Position(10**6, 0))
    assert topic.last_position == appended[-1].position
    assert len(topic.segments()) == 1
    assert topic.append(b"next").index == 30


def test_trimmed_entries_do_not_come_back(thirty, open_store):
    """What was trimmed before it was ever checkpointed stays trimmed, also after a checkpoint."""
    store, topic, appended = thirty
    topic.trim(appended[20].position)
    left = [e.position for e in everything(topic)]
    store.checkpoint()
    topic.append(b"next").commit.wait(10)
    store.close()
    again = open_store().open_topic(ORDERS)
    assert [e.position for e in everything(again)][:-1] == left


def test_tail_cut_twice_over_a_restart(open_store):
    """After a second cut at the same index, the entries that the first one dropped stay dropped."""
    bodies = [b"%d" % n for n in range(6)]
    store = open_store()
    append_all(store.open_topic(ORDERS), bodies)
    for epoch in (1, 2, 3):
        store.close()
        store = open_store()
        topic = store.open_topic(ORDERS)
        topic.truncate_tail(4, epoch=epoch)
        assert topic.next_index == 5
        append_all(topic, [b"new"])
    store.close()
    topic = open_store().open_topic(ORDERS)
    entries = everything(topic)
    assert [bytes(e.body) for e in entries] == [*bodies[:4], b"", b"new"]
    assert [e.index for e in entries] == list(range(6))


def test_closed_topic_refuses_appends(topic):
    """What was pending at closing becomes durable; later appends are refused."""
    last = topic.append(b"x")
    topic.close()
    last.commit.wait(10)
    with pytest.raises(StoreClosedError):
        topic.append(b"y")
    assert len(everything(topic)) == 1


def test_many_threads_append_without_gap_or_double(open_store):
    """Appends from many threads to many topics: every index once, all durable."""
    store = open_store(segment_size_bytes=20_000, ledger_entries=500)
    topics = [store.open_topic(f"{ORDERS}-{n}") for n in range(3)]
    results: list[list[Any]] = [[] for _ in topics]

    def work(seed):
        random = Random(seed)
        for _ in range(200):
            number = random.randrange(len(topics))
            body = b"%d" % seed * random.randint(1, 50)
            appended = topics[number].append(body, message_count=random.randint(0, 3))
            results[number].append((appended.position, appended.index, body))
            if random.random() < 0.1:
                appended.commit.wait(10)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.committer.flush()
    for topic, expected in zip(topics, results, strict=True):
        entries = everything(topic)
        assert sorted(expected) == [(e.position, e.index, bytes(e.body)) for e in entries]
        index = 0
        for entry in entries:
            assert entry.first_index == index
            index = entry.index + 1


def test_appends_wait_while_too_much_is_pending(open_store):
    """Memory is bounded: beyond the limit an append waits for the disk."""
    store = open_store(max_pending_bytes=1000)
    topic = store.open_topic(ORDERS)
    for _ in range(50):
        topic.append(bytes(400))
        assert store.committer.pending.size_bytes <= 1000 + 600
    store.committer.flush()
    assert len(everything(topic)) == 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_entry_size_bytes", 0),
        ("segment_size_bytes", 2**32),
        ("ledger_entries", 0),
        ("ledger_age_ms", -1),
        ("max_pending_bytes", 2**33),
    ],
)
def test_impossible_options_are_refused(field, value):
    """Options that cannot work name the field."""
    with pytest.raises(ValueError, match=field):
        StoreOptions(**{field: value})


def test_topic_name_beyond_the_header_is_refused(open_store):
    """A name that no segment header can hold is refused before anything is stored under it."""
    store: LocalStore = open_store()
    with pytest.raises(ValueError, match="4096"):
        store.open_topic("persistent://public/default/" + "x" * 5000)
    assert store.topic_names() == []


@pytest.mark.parametrize("left", [0, 1])
def test_indexes_and_times_go_on_after_a_removed_head(memory_folder, clock, left):
    """Also when the removed entries were all there were, and the index file is lost."""
    simulated = SimulatedStore(memory_folder / "data", clock=clock)
    topic = simulated.open().open_topic(ORDERS)
    topic.stampers = STAMPS
    clock.advance(by_ms=1000)
    last = append_all(topic, [b"a", b"b", b"c"], message_count=4)[-1]
    assert topic.truncate_head(Position(last.position.ledger_id, 3 - left)) == 3 - left
    simulated.kill()
    clock.advance(by_ms=-10_000)
    topic = simulated.open().open_topic(ORDERS)
    assert [bytes(entry.body) for entry in topic.read(EARLIEST)] == [b"c"][:left]
    assert (topic.first_index, topic.next_index) == (12 - 4 * left, 12)
    again = append_all(topic, [b"d"])[0]
    assert again.index == 12
    assert again.time_ms == last.time_ms
    simulated.close()


@pytest.mark.parametrize(
    "wrong", [{"kind": 9}, {"kind": -1}, {"message_count": 1.5}, {"message_count": "1"}]
)
def test_invalid_kind_or_count_is_refused(tmp_path, wrong):
    """A typed error, and nothing is stored."""
    with LocalStore.open(tmp_path) as store:
        topic = store.open_topic("persistent://public/default/orders")
        with pytest.raises(InvalidEntryError):
            topic.append(b"x", **wrong)
        assert topic.append(b"y").entry_id == 0
