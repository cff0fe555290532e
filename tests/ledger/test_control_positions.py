"""Where control entries are: backlogs leave them out, in every history of a log."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsemark.ledger import (
    EARLIEST,
    CatalogError,
    EntryKind,
    LocalStore,
    ManagedLedger,
    MemoryFolder,
    MemoryStore,
    Position,
    Run,
    StoreOptions,
)
from pulsemark.ledger.store import CONTROL_NOTE_KIND
from pulsemark.ledger.topic_log import MAX_NOTED_ENTRIES, ControlPositions
from pulsemark.metadata import ControlError
from pulsemark.proto.broker_entry_pb2 import CONTROL_CHECKPOINT, CONTROL_LEADER_CHANGE
from tests.ledger.test_following import replace_tail
from tests.support.simulated_store import NEVER_MS, SimulatedStore

TOPIC = "persistent://public/default/orders"
OPTIONS = StoreOptions(
    checkpoint_interval_ms=NEVER_MS, journal_size_bytes=NEVER_MS, segment_size_bytes=600
)


def checkpoint(ledger: ManagedLedger, count: int = 1) -> None:
    """Append control entries, durably."""
    for number in range(count):
        ledger.append_control(CONTROL_CHECKPOINT, f"c{number}").commit.wait(10)


def check(ledger: ManagedLedger) -> None:
    """Each cursor's backlog, and the entry after some, are what a look at all entries finds."""
    entries = ledger.read(EARLIEST, max_entries=100_000)
    controls = [e.position for e in entries if e.kind is EntryKind.CONTROL]
    assert ledger.control_positions(EARLIEST, ledger.end_position) == controls
    for cursor in ledger.cursors.values():
        left = [e for e in entries if e.kind is EntryKind.DATA and not cursor.is_acked(e.position)]
        assert cursor.backlog_messages == sum(e.message_count for e in left)
        assert cursor.backlog_entries == len(left)
        for count in (1, 3):
            if len(left) >= count:
                assert cursor.nth_unacked(count) == left[count - 1].position


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["data", "data", "control", "epoch", "cut", "ack", "ack all", "trim", "seek", "roll",
             "close", "kill", "fail"]
        ),
        st.integers(0, 5),
    ),
    max_size=30,
)  # fmt: skip


class History:
    """A topic in one store after another."""

    def __init__(self, folder: Path) -> None:
        self.simulated = SimulatedStore(folder, options=OPTIONS)
        self.open()

    def open(self) -> None:
        """The next owner."""
        self.files = self.simulated.files()
        self.store = self.simulated.open(self.files)
        self.ledger = self.store.open_topic(TOPIC)
        for name in "ab":
            if name not in self.ledger.cursors:
                self.ledger.open_cursor(name, initial=EARLIEST).persist().wait(10)

    def step(self, what: str, n: int) -> None:
        """One step."""
        ledger, cursor = self.ledger, self.ledger.cursors["ab"[n % 2]]
        entries = ledger.read(EARLIEST, max_entries=100_000)
        match what:
            case "data":
                for number in range(n):
                    ledger.append(b"%d" % number, message_count=number + 1).commit.wait(10)
            case "control":
                checkpoint(ledger, n)
            case "epoch":
                ledger.begin_epoch(ledger.epoch + 1, leader="x").commit.wait(10)
            case "cut" if entries:
                cut = entries[-min(n + 1, len(entries))]
                if n % 2:
                    ledger.truncate_tail(cut.first_index, epoch=ledger.epoch + 1)
                else:
                    replace_tail(ledger, cut.first_index, cut, ledger.epoch)
            case "ack" if entries:
                for entry in entries[n::3]:
                    cursor.ack(entry.position)
                cursor.persist().wait(10)
            case "ack all" if entries:
                cursor.ack_cumulative(entries[-1 - n % len(entries)].position)
            case "trim" if entries:
                ledger.truncate_head(entries[min(n, len(entries) - 1)].position)
            case "seek" if entries:
                cursor.reset(entries[n % len(entries)].position)
            case "roll":
                ledger.roll()
            case "close":
                self.store.close()
                self.open()
            case "kill":
                self.simulated.kill()
                self.open()
            case "fail":
                self.fail(n)

    def fail(self, n: int) -> None:
        """Appends that do not become durable."""
        self.files.fail("fdatasync")
        commits = [
            self.ledger.append_control(CONTROL_CHECKPOINT, "lost").commit,
            self.ledger.append(b"lost").commit,
        ][: 1 + n % 2]
        for commit in commits:
            with pytest.raises(Exception, match=r"\w"):
                commit.wait(10)
        self.files.heal()


@settings(max_examples=60, deadline=None)
@given(STEPS)
@example([("data", 3), ("ack", 1), ("cut", 1)])
@example([("data", 3), ("ack", 1), ("cut", 1), ("kill", 0)])
def test_any_history(steps: list[tuple[str, int]]) -> None:
    """Appends, cuts at both ends, failures, crashes and seeks: backlogs count messages only."""
    with TemporaryDirectory() as folder:
        history = History(Path(folder) / "data")
        try:
            for step in steps:
                history.step(*step)
                check(history.ledger)
        finally:
            history.simulated.close()


def test_a_log_without_control_entries_has_no_note(tmp_path: Path) -> None:
    """Nothing is stored for it and nothing is read."""
    with LocalStore.open(tmp_path) as store:
        store.open_topic(TOPIC).append(b"x").commit.wait(10)
        assert store.catalog.items(CONTROL_NOTE_KIND) == []


def test_a_note_lists_ledgers_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an orderly end no entry is read; after a crash only those of the last such ledger."""
    read: list[int] = []

    def note(segment: Run) -> list[int]:
        read.append(segment.ledger_id)
        return []

    monkeypatch.setattr("pulsemark.ledger.topic_log._read", note)
    simulated = SimulatedStore(tmp_path / "data", options=OPTIONS)
    for _ in range(3):
        store = simulated.open()
        ledger = store.open_topic(TOPIC)
        checkpoint(ledger)
        last = ledger.ledger_id
        ledger.append(b"x").commit.wait(10)
        store.close()
    assert read == []
    store = simulated.open()
    checkpoint(store.open_topic(TOPIC))
    crashed = store.open_topic(TOPIC).ledger_id
    simulated.kill()
    ledger = simulated.open().open_topic(TOPIC)
    assert read == [crashed]
    assert len(ledger.control_positions(EARLIEST, Position(crashed, 0))) == 3
    assert last < crashed
    simulated.close()


def test_a_note_of_a_removed_ledger_goes(tmp_path: Path) -> None:
    """It lists only ledgers that are there, and goes with its topic."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        for _ in range(4):
            checkpoint(ledger)
            ledger.roll()
        checkpoint(ledger)
        ledger.trim(Position(ledger.ledger_id, 0))
        ledger.roll()
        checkpoint(ledger)
        ((_, note),) = store.catalog.items(CONTROL_NOTE_KIND)
        assert sorted(map(int, json.loads(note))) == sorted(
            {s.ledger_id for s in ledger.segments()}
        )
        store.delete_topic(TOPIC)
        assert store.catalog.items(CONTROL_NOTE_KIND) == []


@pytest.mark.parametrize("note", [b"", b"[]", b"{", b'{"a": 1}', b'{"0": ["x"]}', b'{"0": {}}'])
def test_a_damaged_note_says_nothing(tmp_path: Path, note: bytes) -> None:
    """The topic opens; its backlog counts the control entries until they are passed."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        checkpoint(ledger)
        key = str(ledger.topic_id)
        ledger.open_cursor("s", initial=EARLIEST).persist().wait(10)
    with LocalStore.open(tmp_path) as store:
        store.catalog.put(CONTROL_NOTE_KIND, key, note)
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        assert ledger.cursors["s"].backlog_messages == 1
        checkpoint(ledger)


def test_more_entries_than_a_note_lists() -> None:
    """Their ledger is read again, and only theirs."""
    stored: list[bytes] = []
    positions = ControlPositions(stored.append)
    positions.note(1, 1, [])
    for number in range(MAX_NOTED_ENTRIES + 1):
        positions.add(Position(1, number))
    positions.close()
    assert json.loads(stored[-1]) == {"1": None}
    positions.drop_before(Position(1, 1))
    positions.close()
    assert len(json.loads(stored[-1])["1"]) == MAX_NOTED_ENTRIES


def test_nothing_is_appended_if_the_note_cannot_be_stored() -> None:
    """A typed error, and the same index again; messages are not concerned."""
    memory = MemoryFolder()
    with MemoryStore.open(memory) as store:
        ledger = store.open_topic(TOPIC)
        ledger.append(b"x").commit.wait(10)
        memory.refusal = OSError(28, "full")
        with pytest.raises(CatalogError):
            ledger.append_control(CONTROL_CHECKPOINT, "c")
        with pytest.raises(CatalogError):
            ledger.begin_epoch(1)
        assert ledger.epoch == 0
        memory.refusal = None
        checkpoint(ledger)
        assert ledger.next_index == 2


def test_a_change_of_leader_is_no_plain_entry() -> None:
    """It begins an epoch, so `begin_epoch` writes it."""
    with MemoryStore.open() as store, pytest.raises(ControlError, match="begin_epoch"):
        store.open_topic(TOPIC).append_control(CONTROL_LEADER_CHANGE, "me")
