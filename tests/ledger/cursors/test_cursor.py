import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    EntryTooLargeError,
    FencedError,
    Position,
    StoreOptions,
)
from pulsemark.ledger.commit.batch import DONE
from pulsemark.ledger.cursors import ack_state
from pulsemark.ledger.cursors.cursor import Cursor
from tests.support.simulated_store import NEVER_MS, SimulatedStore, settle

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(
    ledger_entries=7,
    segment_size_bytes=400,
    checkpoint_interval_ms=NEVER_MS,
    journal_size_bytes=NEVER_MS,
)


class CursorMachine(RuleBasedStateMachine):
    """A cursor beside a set of acknowledged places, over reopenings of its store."""

    folders: pytest.TempPathFactory

    @initialize(initial=st.sampled_from([EARLIEST, LATEST]))
    def begin(self, initial):
        """A topic with entries, and a cursor at its beginning or end."""
        self.simulated = SimulatedStore(type(self).folders.mktemp("c") / "data", options=OPTIONS)
        self.counts: dict[Position, int] = {}
        self.acked = set()
        self.batches = {}
        self.store = self.simulated.open()
        self.topic = self.store.open_topic(ORDERS)
        self.append(3, 2)
        self.cursor = self.topic.open_cursor("s", initial=initial, properties={"p": 1})
        if initial == LATEST:
            self.acked = set(self.counts)
        settle(self.store)

    def open(self):
        """Open the store as a new process would."""
        self.store = self.simulated.open()
        self.topic = self.store.open_topic(ORDERS)
        cursor = self.topic.cursors.get("s")
        assert cursor is not None
        self.cursor = cursor

    @rule(entries=st.integers(1, 6), messages=st.sampled_from([0, 1, 2, 3, 70, 130]))
    def append(self, entries, messages):
        """More entries."""
        for _ in range(entries):
            appended = self.topic.append(b"x" * 50, message_count=messages)
            self.counts[appended.position] = messages
        settle(self.store)

    def places(self):
        """Positions of all entries, in order."""
        return sorted(self.counts)

    @rule(data=st.data())
    def ack(self, data):
        """One entry."""
        position = data.draw(st.sampled_from(self.places()))
        self.cursor.ack(position)
        self.acked.add(position)
        self.batches.pop(position, None)

    @rule(data=st.data())
    def ack_several(self, data):
        """Several entries, in any order, some again."""
        for position in data.draw(st.lists(st.sampled_from(self.places()), max_size=8)):
            self.cursor.ack(position)
            self.acked.add(position)
            self.batches.pop(position, None)

    @rule(data=st.data(), before=st.integers(0, 3), more=st.integers(0, 9))
    def ack_run(self, data, before, more):
        """Entries that follow one another, also some that are not there."""
        ledger_id, middle = data.draw(st.sampled_from(self.places()))
        first, last = max(middle - before, 0), middle + more
        self.cursor.ack_run(ledger_id, first, last)
        run = {p for p in self.counts if p[0] == ledger_id and first <= p[1] <= last}
        self.acked |= run
        self.batches = {p: w for p, w in self.batches.items() if p not in run}

    @rule(data=st.data())
    def ack_cumulative(self, data):
        """All up to an entry."""
        position = data.draw(st.sampled_from(self.places()))
        self.cursor.ack_cumulative(position)
        # Backwards changes nothing, since all before is acknowledged.
        self.acked |= {p for p in self.counts if p <= position}
        self.batches = {p: w for p, w in self.batches.items() if p > position}

    @rule(data=st.data(), size=st.integers(1, 130))
    def ack_batch(self, data, size):
        """Some messages of a batch; those acknowledged before stay so."""
        position = data.draw(st.sampled_from(self.places()))
        remaining = data.draw(st.integers(0, 2**size - 1))
        words = [(remaining >> (64 * n)) & (2**64 - 1) for n in range(-(-size // 64))]
        signed = [word - 2**64 if word >= 2**63 else word for word in words]
        # Bits beyond the batch mean nothing.
        remaining &= 2 ** max(self.counts[position], 1) - 1
        got = self.cursor.ack_batch(position, signed)
        if position in self.acked:
            assert got == []
            return
        left = self.batches.get(position, remaining) & remaining
        assert sum(word << (64 * n) for n, word in enumerate(got)) == left
        if left:
            self.batches[position] = left
        else:
            self.batches.pop(position, None)
            self.acked.add(position)

    @rule(data=st.data())
    def ack_what_is_not_there(self, data):
        """Positions after the end are ignored; they may come into being later."""
        end = self.topic.end_position
        more = data.draw(st.integers(0, 5))
        self.cursor.ack(Position(end.ledger_id, end.entry_id + more))
        self.cursor.ack(Position(end.ledger_id + 1, more))
        assert self.cursor.ack_batch(Position(end.ledger_id, end.entry_id + more), [1]) == []
        self.cursor.ack_cumulative(Position(end.ledger_id, end.entry_id + more))
        self.cursor.ack_cumulative(LATEST)

    @rule(data=st.data(), more=st.integers(0, 5000))
    def ack_what_never_was(self, data, more):
        """Entry ids after the last one of an older ledger are ignored."""
        ledger_id = data.draw(st.sampled_from(self.places())).ledger_id
        last = max(p.entry_id for p in self.places() if p.ledger_id == ledger_id)
        position = Position(ledger_id, last + 1 + more)
        self.cursor.ack(position)
        assert self.cursor.ack_batch(position, [1]) == []

    @rule(data=st.data())
    def truncate_head(self, data):
        """The oldest entries are removed, acknowledged or not."""
        settle(self.store)
        position = data.draw(st.sampled_from(self.places()))
        self.topic.truncate_head(position)
        first = self.topic.first_position or self.topic.end_position
        self.counts = {p: n for p, n in self.counts.items() if p >= first}
        self.acked = {p for p in self.acked if p >= first}
        self.batches = {p: w for p, w in self.batches.items() if p >= first}

    @rule(data=st.data(), count=st.integers(1, 30))
    def skip(self, data, count):
        """The entry to skip to is the one that counting would find."""
        unacked = [p for p in self.places() if p not in self.acked]
        found = self.cursor.nth_unacked(count)
        if count <= len(unacked):
            assert found == unacked[count - 1]
        else:
            assert found == self.places()[-1]

    @rule(data=st.data())
    def reset(self, data):
        """Begin again at any place."""
        places = [*self.places(), self.topic.end_position, EARLIEST]
        position = data.draw(st.sampled_from(places))
        self.cursor.reset(position)
        self.acked = {p for p in self.counts if p < position}
        self.batches = {}

    @rule(how=st.sampled_from(["close", "kill", "power_off"]))
    def persist_and_reopen(self, how):
        """What was persisted is there again, however the process ended."""
        self.cursor.persist()
        settle(self.store)
        getattr(self.simulated, how)()
        self.open()
        assert self.cursor.properties == {"p": 1}

    @rule()
    def persist(self):
        """Write the state."""
        self.cursor.persist()

    @rule()
    def roll(self):
        """End the ledger."""
        self.topic.roll()

    @invariant()
    def agrees(self):
        """Every answer of the cursor, against the model."""
        places = self.places()
        unacked = [p for p in places if p not in self.acked]
        for position in places:
            assert self.cursor.is_acked(position) == (position in self.acked)
            left = self.cursor.remaining_in_batch(position)
            words = self.batches.get(position)
            assert (left is None) == (words is None)
            if left is not None:
                assert sum(word << (64 * n) for n, word in enumerate(left)) == words
            following = [p for p in unacked if p > position]
            expected = following[0] if following else self.topic.end_position
            assert self.cursor.next_unacked(position) == expected
        assert self.cursor.first_unacked == (unacked[0] if unacked else self.topic.end_position)
        assert self.cursor.backlog_messages == sum(self.counts[p] for p in unacked)

    def teardown(self):
        """Close the store."""
        self.simulated.close()


def test_cursor_equals_a_set(tmp_path_factory):
    """Acknowledgements in any order agree with a plain set, also over crashes and resets."""
    CursorMachine.folders = tmp_path_factory
    run_state_machine_as_test(
        CursorMachine, settings=settings(max_examples=20, stateful_step_count=25)
    )


def test_unchanged_cursor_writes_nothing(open_store):
    """Persisting again without a change is the commit before; nothing new is written."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    topic.append(b"x").commit.wait(10)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    first = cursor.persist()
    first.wait(10)
    assert cursor.persist() is first
    cursor.ack(topic.first_position)
    second = cursor.persist()
    assert second is not first
    cursor.ack(topic.first_position)
    assert cursor.persist() is second


def test_failed_persist_is_reported_and_repeated(tmp_path):
    """A state that could not be written is a failed commit; the next persist writes all of it."""
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS)
    files = simulated.files()
    store = simulated.open(files)
    topic = store.open_topic(ORDERS)
    positions = [topic.append(b"x", message_count=3).position for _ in range(6)]
    settle(store)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    settle(store)
    cursor.ack(positions[2])
    cursor.ack_batch(positions[4], [5])
    for _ in range(2):
        files.fail("fdatasync")
        commit = cursor.persist()
        with pytest.raises(FencedError):
            commit.wait(10)
        settle(store)
    cursor.ack(positions[0])
    cursor.persist().wait(10)
    simulated.power_off()
    again = simulated.open().open_topic(ORDERS).cursors["s"]
    assert [again.is_acked(p) for p in positions] == [True, False, True, False, False, False]
    assert again.remaining_in_batch(positions[4]) == [5]
    simulated.close()


@pytest.fixture
def make_topic(tmp_path):
    """A topic with so many entries, in a store of its own."""
    stores: list[SimulatedStore] = []

    def make(entries, messages=1, **options):
        limits = {"checkpoint_interval_ms": NEVER_MS, "journal_size_bytes": NEVER_MS, **options}
        folder = tmp_path / f"data{len(stores)}"
        simulated = SimulatedStore(folder, options=StoreOptions(**limits))
        stores.append(simulated)
        topic = simulated.open().open_topic(ORDERS)
        positions = [topic.append(b"x", message_count=messages).position for _ in range(entries)]
        settle(topic.store)
        return simulated, topic, positions

    yield make
    for simulated in stores:
        simulated.close()


def test_acknowledging_in_a_hostile_order_costs_no_more_per_entry(make_topic, steps_of):
    """Every second entry, then the others: four times the entries, four times the steps."""
    steps = []
    for count in (500, 2000):
        _, topic, positions = make_topic(count)
        cursor = topic.open_cursor("s", initial=EARLIEST)

        def ack_all(cursor=cursor, positions=positions):
            for position in positions[1::2] + positions[::2]:
                cursor.ack(position)

        steps.append(steps_of(ack_all))
        assert cursor.mark_delete == positions[-1]
    assert steps[1] < 4.5 * steps[0]


def test_figures_of_a_cursor_do_not_cost_more_with_more_holes(make_topic, steps_of):
    """The backlog of a cursor with 2000 holes is known in as many steps as with 200."""
    steps = []
    for count in (400, 4000):
        _, topic, positions = make_topic(count)
        cursor = topic.open_cursor("s", initial=EARLIEST)
        for position in positions[1::2]:
            cursor.ack(position)
        steps.append(steps_of(lambda cursor=cursor: cursor.backlog_messages))
        assert cursor.backlog_messages == count // 2
    assert steps[1] < 1.5 * steps[0]


def test_skipping_goes_over_blocks_not_entries(make_topic, steps_of):
    """Skipping ten times the entries takes a few steps more, for the blocks in between."""
    steps = []
    for count in (500, 5000):
        _, topic, positions = make_topic(count)
        cursor = topic.open_cursor("s", initial=EARLIEST)
        for position in positions[1::2]:
            cursor.ack(position)
        skipped = count // 2 - 40
        steps.append(steps_of(lambda c=cursor, n=skipped: c.ack_cumulative(c.nth_unacked(n))))
        assert cursor.backlog_messages == 40
    assert steps[1] < 4 * steps[0]


def test_acknowledging_entries_that_do_not_exist_changes_nothing(make_topic):
    """Ids after the end of an older ledger: nothing is kept in memory, and nothing is written."""
    _, topic, positions = make_topic(10)
    topic.roll()
    topic.append(b"y").commit.wait(10)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    first = cursor.persist()
    for entry_id in range(11, 5000, 2):
        cursor.ack(Position(positions[0].ledger_id, entry_id))
        cursor.ack_batch(Position(positions[0].ledger_id, entry_id), [1])
    assert cursor.persist() is first
    assert cursor.record(snapshot=True).acked == []
    assert cursor.backlog_messages == 11


def test_a_cumulative_acknowledgement_after_the_end_acknowledges_nothing(make_topic):
    """As in Pulsar: the mark delete position stays where it is."""
    _, topic, positions = make_topic(5)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    cursor.ack_cumulative(positions[1])
    for beyond in (topic.end_position, Position(positions[0].ledger_id, 2**62), LATEST):
        cursor.ack_cumulative(beyond)
    assert cursor.mark_delete == positions[1]


def test_ranges_beyond_the_limit_are_redelivered_after_a_restart(make_topic):
    """The first so many ranges and the mark delete position outlive a power cut, the rest not."""
    simulated, topic, positions = make_topic(60, max_unacked_ranges_to_persist=4)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    cursor.ack(positions[0])
    for position in positions[2::2]:
        cursor.ack(position)
    cursor.persist().wait(10)
    simulated.power_off()
    cursor = simulated.open().open_topic(ORDERS).cursors["s"]
    assert cursor.mark_delete == positions[0]
    assert [n for n, p in enumerate(positions) if cursor.is_acked(p)] == [0, 2, 4, 6, 8]


def test_ranges_that_were_left_out_are_stored_later(make_topic):
    """When the mark delete position has moved on, a new snapshot has the next ranges."""
    simulated, topic, positions = make_topic(60, max_unacked_ranges_to_persist=4)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    for position in positions[1::2]:
        cursor.ack(position)
    cursor.persist()
    for position in positions[0:20:2]:
        cursor.ack(position)
        cursor.persist().wait(10)
    simulated.power_off()
    cursor = simulated.open().open_topic(ORDERS).cursors["s"]
    acked = [n for n, p in enumerate(positions) if cursor.is_acked(p)]
    assert acked[:20] == list(range(20))
    assert {21, 23} <= set(acked)


def test_a_cursor_can_be_stored_however_many_holes_it_has(make_topic):
    """A record never exceeds the entry limit; the mark delete position outlives a power cut."""
    simulated, topic, positions = make_topic(3000, max_entry_size_bytes=4096)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    cursor.ack(positions[0])
    for number, position in enumerate(positions[2::2]):
        cursor.ack(position)
        if number == 700:
            cursor.persist().wait(10)
    cursor.persist().wait(10)
    simulated.power_off()
    assert simulated.open().open_topic(ORDERS).cursors["s"].mark_delete == positions[0]


def test_a_record_that_is_refused_is_a_failed_commit(make_topic, monkeypatch):
    """persist() does not raise: its commit fails, and the next persist writes the whole state."""
    _, topic, positions = make_topic(5)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    cursor.persist().wait(10)
    cursor.ack(positions[2])
    ledger = topic.store.cursors.ledger
    refusal = EntryTooLargeError("cursors", 2, 1)

    def refuse(*_, **__):
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "append", refuse)
        commit = cursor.persist()
    with pytest.raises(EntryTooLargeError):
        commit.wait(10)
    cursor.persist().wait(10)
    assert len(ledger.read(EARLIEST)) == 2


def test_partly_acknowledged_batches_load_in_linear_time(make_topic, steps_of):
    """Four times the batches and four times the changes take four times the steps to load."""
    steps = []
    for batches, changes in ((200, 150), (800, 600)):
        _, topic, positions = make_topic(batches + changes, messages=3)
        cursor = topic.open_cursor("s", initial=EARLIEST)
        for position in positions[changes:]:
            cursor.ack_batch(position, [5])
        records = [cursor.record(snapshot=True)]
        cursor.persist()
        for position in positions[:changes]:
            cursor.ack(position)
            records.append(cursor.record(snapshot=False))
            cursor.persist()
        loaded = Cursor(topic, topic.topic_id, "s", EARLIEST, lambda _: DONE)

        def load(loaded=loaded, records=records):
            for record in records:
                loaded.apply(record)

        steps.append(steps_of(load))
        assert loaded.mark_delete == positions[changes - 1]
        assert loaded.remaining_in_batch(positions[-1]) == [5]
    assert steps[1] < 5 * steps[0]


def test_what_is_kept_of_batches_is_limited(make_topic, monkeypatch):
    """Above the limit a further batch stays unacknowledged as a whole; known ones still change."""
    monkeypatch.setattr(ack_state, "MAX_BYTES", 1000)
    _, topic, positions = make_topic(20, messages=3)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    found = [cursor.ack_batch(position, [6]) for position in positions]
    kept = found.index([7])
    assert 3 < kept < 10
    assert found == [[6]] * kept + [[7]] * (20 - kept)
    assert cursor.ack_batch(positions[0], [3]) == [2]
    assert cursor.ack_batch(positions[19], [0]) == []
    assert cursor.is_acked(positions[19])
    cursor.ack_cumulative(positions[19])
    assert cursor.backlog_messages == 0


def test_an_ack_set_longer_than_its_batch_counts_the_batch_only(make_topic):
    """Bits beyond the batch's last message are dropped."""
    _, topic, positions = make_topic(3, messages=5)
    cursor = topic.open_cursor("s", initial=EARLIEST)
    assert cursor.ack_batch(positions[1], [-1] * 80_000) == [31]
    assert cursor.ack_batch(positions[1], [-32] * 80_000) == []
    assert cursor.is_acked(positions[1])


def test_impossible_range_in_a_record_is_left_out(make_topic):
    """Ranges that are reversed, below zero or endless do not stop a cursor from being loaded."""
    _, topic, positions = make_topic(3)
    cursor = Cursor(topic, topic.topic_id, "s", EARLIEST, lambda _: DONE)
    record = cursor.record(snapshot=True)
    for first, last in ((5, 4), (-7, -3), (0, 2**62), (1, 1)):
        ledger_id = positions[0].ledger_id
        record.acked.add(ledger_id=ledger_id, first_entry_id=first, last_entry_id=last)
    cursor.apply(record)
    assert [cursor.is_acked(p) for p in positions] == [False, True, False]
