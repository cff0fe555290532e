from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    CorruptEntryError,
    FolderReader,
    LocalStore,
    Position,
    StoreOptions,
    TopicLog,
)
from pulsemark.ledger.local.io.folder import segment_path
from tests.support.simulated_store import SimulatedStore

ORDERS = "persistent://public/default/orders"

# What happens to a topic, in order: so many entries of so many messages, a roll, a new opening.
lives = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 9), st.integers(0, 3)),
        st.sampled_from(["roll", "reopen"]),
    ),
    min_size=1,
    max_size=8,
)


def live(store, simulated, life):
    """Lead a topic through its life; returns it and (position, count, body) of all."""
    topic = store.open_topic(ORDERS)
    model: list[Any] = []
    for step in life:
        if step == "roll":
            topic.roll()
        elif step == "reopen":
            simulated.close()
            store = simulated.open()
            topic = store.open_topic(ORDERS)
        else:
            for _ in range(step[0]):
                body = b"entry %d" % len(model) * 3
                appended = topic.append(body, message_count=step[1])
                model.append((appended.position, step[1], body))
            appended.commit.wait(10)
    return topic, model


@settings(max_examples=25)
@given(life=lives, segment_size=st.sampled_from([250, 600, 10_000]), entries=st.integers(1, 7))
def test_log_equals_a_list(tmp_path_factory, life, segment_size, entries):
    """Reading, moving and counting agree with a plain list, across segments and ledgers."""
    options = StoreOptions(segment_size_bytes=segment_size, ledger_entries=entries)
    simulated = SimulatedStore(tmp_path_factory.mktemp("log") / "data", options=options)
    topic, model = live(simulated.open(), simulated, life)
    try:
        check(topic, model)
        with FolderReader(simulated.folder, files=simulated.disk.process()) as reader:
            if model:
                check(reader.log(ORDERS), model)
    finally:
        simulated.close()


def check(log, model):
    """Every answer of a log, against the list of what it holds."""
    positions = [position for position, _, _ in model]
    counts = [count for _, count, _ in model]
    assert log.first_position == (positions[0] if model else None)
    assert log.last_position == (positions[-1] if model else None)
    assert log.end_position > (positions[-1] if model else EARLIEST)
    assert log.first_index == 0
    assert log.next_index == sum(counts)
    places = sorted(
        {EARLIEST, LATEST, log.end_position}
        | {Position(p.ledger_id, p.entry_id + more) for p in positions for more in (-1, 0, 1, 5)}
        | {Position(p.ledger_id + 1, 3) for p in positions}
        | {Position(p.ledger_id - 1, 10**9) for p in positions}
    )
    after = [how_many_before(positions, place) for place in places]
    for place, number in zip(places, after, strict=True):
        expected = model[number : number + 4]
        got = log.read(place, max_entries=4)
        assert [(e.position, e.message_count, bytes(e.body)) for e in got] == expected
        following = next((p for p in positions if p > place), log.end_position)
        assert log.next_position(place) == following
        before = [p for p in positions if p < place]
        if before:
            assert log.previous_position(place) == before[-1]
        elif model:
            assert log.previous_position(place) == Position(
                positions[0].ledger_id, positions[0].entry_id - 1
            )
        assert log.index_before(place) == sum(counts[:number])
    for (one, from_), (other, to) in pairwise(zip(places, after, strict=True)):
        assert log.count_entries(one, other) == to - from_
        assert log.message_count(one, other) == sum(counts[from_:to])
        assert log.count_entries(other, one) == log.message_count(other, one) == 0
    assert log.count_entries(EARLIEST, LATEST) == len(model)
    assert log.message_count(EARLIEST, LATEST) == sum(counts)


def how_many_before(positions, place):
    """How many positions stand before a place."""
    return sum(position < place for position in positions)


@pytest.fixture
def topic(open_store):
    """A topic of thirty entries of 100 bytes, in segments of a few."""
    topic = open_store(segment_size_bytes=700, ledger_entries=12).open_topic(ORDERS)
    for number in range(30):
        last = topic.append(b"%02d" % number * 50)
    last.commit.wait(10)
    return topic


def test_reading_keeps_to_its_limits(topic):
    """At most so many entries and bytes, but always one; nothing for no entries."""
    for max_entries in (1, 5, 29, 30, 100):
        assert len(topic.read(EARLIEST, max_entries=max_entries)) == min(30, max_entries)
    assert topic.read(EARLIEST, max_entries=0) == []
    for max_bytes in (0, 1, 99, 100, 450, 1000, 2999, 3000):
        entries = topic.read(EARLIEST, max_bytes=max_bytes)
        size = sum(len(entry.stored) for entry in entries)
        assert len(entries) == 1 or size <= max_bytes
        assert len(entries) >= max(1, max_bytes // 100 - 5)
    assert topic.read(topic.end_position) == []
    assert topic.read(LATEST) == []


def test_entries_are_views_without_copies(topic):
    """Prefix and body share the memory of the entry as stored."""
    entry = topic.read(EARLIEST, max_entries=1)[0]
    assert isinstance(entry.stored, memoryview)
    assert entry.body.obj is entry.stored.obj
    assert entry.prefix == b""
    assert bytes(entry.prefix) + bytes(entry.body) == entry.stored


def test_damaged_entry_is_an_error_of_its_own(open_store, tmp_path):
    """A bad entry ends a read before it; read itself, it names itself and where to go on."""
    store = open_store(segment_size_bytes=700, ledger_entries=12)
    topic = store.open_topic(ORDERS)
    bodies = [b"%02d" % number * 50 for number in range(30)]
    for body in bodies:
        last = topic.append(body)
    last.commit.wait(10)
    positions = [e.position for e in topic.read(EARLIEST, max_entries=100)]
    for bad in (0, 7, 13, 29):
        position = positions[bad]
        segment = next(s for s in reversed(topic.segments()) if s.first_position <= position)
        path = segment_path(tmp_path / "data", segment.ledger_id, segment.header.segment_no)
        good = path.read_bytes()
        at = segment.row(position.entry_id - segment.first_entry_id).offset + 60
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        read, place = [], EARLIEST
        while True:
            try:
                part = topic.read(place, max_entries=100)
            except CorruptEntryError as error:
                assert (error.topic, error.position) == (ORDERS, position)
                place = error.next_position
                assert place == (topic.end_position if bad == 29 else positions[bad + 1])
                continue
            if not part:
                break
            read += part
            place = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)
        assert [bytes(e.body) for e in read] == bodies[:bad] + bodies[bad + 1 :]
        path.write_bytes(good)


def test_empty_topic_answers_everything(open_store):
    """Without entries every question has an answer."""
    topic = open_store().open_topic(ORDERS)
    assert (topic.first_position, topic.last_position) == (None, None)
    assert (topic.first_index, topic.next_index) == (0, 0)
    assert topic.read(EARLIEST) == topic.segments() == []
    assert topic.next_position(EARLIEST) == topic.end_position
    assert topic.previous_position(LATEST) < topic.end_position
    assert topic.count_entries(EARLIEST, LATEST) == topic.message_count(EARLIEST, LATEST) == 0


class LateRun:
    """A run whose entries are shown right after a reader has found none there."""

    def __init__(self, run, shown_before):
        self._run = run
        self._counts = [shown_before]

    @property
    def entry_count(self):
        """First as before, then what the run has."""
        return self._counts.pop() if self._counts else self._run.entry_count

    def __getattr__(self, name):
        return getattr(self._run, name)


@pytest.mark.parametrize("shown_before", [0, 2])
@pytest.mark.parametrize("late", [0, 1])
def test_entries_that_are_shown_while_a_reader_goes_on_are_not_passed_over(
    tmp_path, late, shown_before
):
    """The committer shows two runs between a reader's looks at the first and at the second."""
    simulated = SimulatedStore(tmp_path / "data")
    topic, model = live(simulated.open(), simulated, [(3, 1), "roll", (3, 1), "roll", (3, 1)])
    places = [position for position, _, _ in model]
    runs = list(topic.all_segments())
    start = 3 * late + shown_before

    def log():
        shown = [*runs]
        shown[late] = LateRun(runs[late], shown_before)
        return TopicLog(ORDERS, shown)

    assert log().read(places[start])[0].position == places[start]
    assert log().read_stored(places[start])[0] == places[start]
    if start:
        assert log().next_position(places[start - 1]) == places[start]
    simulated.close()


def test_a_plain_pair_is_a_position(tmp_path):
    """Whatever takes a position takes a pair of numbers, and answers the same."""
    with LocalStore.open(tmp_path, options=StoreOptions(ledger_entries=3)) as store:
        topic = store.open_topic(ORDERS)
        for _ in range(10):
            topic.append(b"x").commit.wait(10)
        middle, last = topic.read(EARLIEST)[4].position, topic.last_position
        assert last is not None
        pair: Any = tuple(middle)
        last_pair: Any = tuple(last)
        for method in (
            topic.read,
            topic.read_stored,
            topic.next_position,
            topic.previous_position,
            topic.entry_message_count,
            topic.index_before,
            topic.knows_index,
            topic.is_control,
            lambda position: topic.entry_after(position, 2),
            lambda position: topic.count_entries(position, last_pair),
            lambda position: topic.message_count(position, last_pair),
            lambda position: topic.control_positions(position, last_pair),
            lambda position: list(topic.stretches(position, last_pair)),
            lambda position: topic.cut_before(position, 3),
        ):
            assert method(pair) == method(middle)
        cursor = topic.open_cursor("s", initial=pair)
        cursor.ack(last_pair)
        cursor.ack_cumulative(pair)
        cursor.persist().wait(10)
        assert cursor.mark_delete == middle
        cursor.reset(pair)
        assert cursor.mark_delete == topic.previous_position(middle)
        assert topic.truncate_head(pair) == 4
        assert topic.first_position == middle
