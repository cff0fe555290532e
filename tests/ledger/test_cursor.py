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

from pulsemark.ledger import EARLIEST, LATEST, FencedError, Position, StoreOptions
from pulsemark.testing.simulated_store import NEVER_MS, SimulatedStore, settle

ORDERS = "persistent://public/default/orders"
OPTIONS = StoreOptions(
    ledger_entries=7,
    segment_size_bytes=400,
    checkpoint_interval_ms=NEVER_MS,
    journal_size_bytes=NEVER_MS,
)


class CursorMachine(RuleBasedStateMachine):
    """A cursor beside a set of acknowledged places, over reopenings of its store."""

    folders = None

    @initialize(initial=st.sampled_from([EARLIEST, LATEST]))
    def begin(self, initial):
        """A topic with entries, and a cursor at its beginning or end."""
        self.simulated = SimulatedStore(type(self).folders.mktemp("c") / "data", options=OPTIONS)
        self.counts = {}
        self.acked = set()
        self.batches = {}
        self.open()
        self.append(3, 2)
        self.cursor = self.topic.open_cursor("s", initial=initial, properties={"p": 1})
        if initial == LATEST:
            self.acked = set(self.counts)
        settle(self.store)

    def open(self):
        """Open the store as a new process would."""
        self.store = self.simulated.open()
        self.topic = self.store.open_topic(ORDERS)
        self.cursor = self.topic.cursors.get("s")

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
        """Positions behind the end are ignored; they may come into being later."""
        end = self.topic.end_position
        more = data.draw(st.integers(0, 5))
        self.cursor.ack(Position(end.ledger_id, end.entry_id + more))
        self.cursor.ack(Position(end.ledger_id + 1, more))
        assert self.cursor.ack_batch(Position(end.ledger_id, end.entry_id + more), [1]) == []
        self.cursor.ack_cumulative(Position(end.ledger_id, end.entry_id + more))
        self.cursor.ack_cumulative(LATEST)

    @rule(data=st.data(), more=st.integers(0, 5000))
    def ack_what_never_was(self, data, more):
        """Entry ids behind the last one of an older ledger are ignored."""
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
        first = self.topic.first_position
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
        """Begin anew at any place."""
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
        CursorMachine, settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
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


def test_failed_persist_is_told_and_made_good(tmp_path):
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
    files.fail("fdatasync", times=2)
    for _ in range(2):
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
