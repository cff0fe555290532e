"""Transactions of a topic: no reader gets what is open or aborted, in every history of a log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pulsemark.audit.trail import count_log
from pulsemark.cli.records import log_rows
from pulsemark.compaction import compact, compacted_log
from pulsemark.finder.stream import ReadPlan, entry_responses
from pulsemark.ledger import (
    EARLIEST,
    Appended,
    Entry,
    EntryKind,
    FolderReader,
    LedgerError,
    LocalStore,
    ManagedLedger,
    MemoryFolder,
    MemoryStore,
    Position,
    TopicLog,
)
from pulsemark.ledger.store import TRANSACTIONS_NOTE_KIND
from pulsemark.ledger.transactions import COMMITTED, Event, event_of
from pulsemark.metadata import BrokerEntryMetadata, peek
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT
from pulsemark.testing.raw_messages import unbatched_message
from tests.ledger.test_control_positions import TOPIC, History

IDS = ("1:0", "2:0", "(0,3)")


def add(ledger: ManagedLedger, transaction: str | None, count: int = 1) -> Position:
    """Append an entry, of a transaction or of none; durable."""
    base = None if transaction is None else BrokerEntryMetadata(transaction=transaction)
    appended = ledger.append(b"x" * 20, message_count=count, base=base)
    appended.commit.wait(10)
    return appended.position


def end(ledger: ManagedLedger, transaction: str, *, commits: bool) -> Position:
    """End a transaction; durable."""
    kind = CONTROL_TXN_COMMIT if commits else CONTROL_TXN_ABORT
    appended = ledger.append_control(kind, transaction)
    appended.commit.wait(10)
    return appended.position


def everything(ledger: ManagedLedger) -> list[Entry]:
    """All entries of the log."""
    return ledger.read(EARLIEST, max_entries=100_000)


class Model:
    """What all entries of a log say, looked at one by one."""

    def __init__(self, entries: list[Entry]) -> None:
        self.open: dict[str, list[Entry]] = {}
        self.aborted: set[Position] = set()
        for entry in entries:
            event = event_of(peek(entry.prefix) if len(entry.prefix) else None)
            if event is not None and event.end is None:
                self.open.setdefault(event.transaction, []).append(entry)
            elif event is not None:
                ended = self.open.pop(event.transaction, [])
                if event.end != COMMITTED:
                    self.aborted |= {each.position for each in ended}

    @property
    def stable_end(self) -> Position | None:
        """Where the first open transaction begins; None: none is open."""
        return min((entries[0].position for entries in self.open.values()), default=None)


def check(ledger: ManagedLedger) -> None:
    """What the log says of its transactions is what a look at all entries finds."""
    entries = everything(ledger)
    model = Model(entries)
    start = entries[0].position if entries else EARLIEST
    assert max(ledger.stable_end, start) == (model.stable_end or ledger.end_position)
    controls = {entry.position for entry in entries if entry.kind is EntryKind.CONTROL}
    hidden = controls | model.aborted
    assert ledger.control_positions(EARLIEST, ledger.end_position) == sorted(hidden)
    data = [entry for entry in entries if entry.position not in hidden]
    visible = [each.position for each in data if each.position < ledger.stable_end]
    shown = ledger.read_stable(EARLIEST, max_entries=100_000)
    assert [entry.position for entry in shown if entry.kind is EntryKind.DATA] == visible
    for cursor in ledger.cursors.values():
        left = [entry for entry in data if not cursor.is_acked(entry.position)]
        assert cursor.backlog_messages == sum(entry.message_count for entry in left)
        assert cursor.backlog_entries == len(left)
    for entry in entries[:: max(1, len(entries) // 3)]:
        later = [e.message_count for e in entries if entry.position <= e.position in hidden]
        assert ledger.control_count(entry.position, ledger.end_position) == sum(later)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["data", "txn", "txn", "txn", "commit", "abort", "abort", "control", "cut", "ack",
             "trim", "roll", "close", "kill", "fail"]
        ),
        st.integers(0, 5),
    ),
    max_size=30,
)  # fmt: skip


class TransactionHistory(History):
    """A topic with transactions, in one store after another."""

    def step(self, what: str, n: int) -> None:
        """One step."""
        match what:
            case "fail":
                self.files.fail("fdatasync")
                base = BrokerEntryMetadata(transaction=IDS[n % len(IDS)])
                lost = [self.ledger.append(b"lost", base=base), self.ledger.append(b"lost")]
                if n % 2:
                    lost.append(self.ledger.append_control(CONTROL_TXN_ABORT, IDS[0]))
                for appended in lost:
                    with pytest.raises(LedgerError):
                        appended.commit.wait(10)
                self.files.heal()
            case "txn":
                for number in range(n % 3 + 1):
                    add(self.ledger, IDS[n % len(IDS)], number + 1)
            case "commit" | "abort":
                end(self.ledger, IDS[n % len(IDS)], commits=what == "commit")
            case _:
                super().step(what, n)


@settings(max_examples=30, phases=[Phase.generate])
@given(STEPS)
def test_every_history_shows_what_its_entries_say(steps):
    """After each step, whatever was rolled, cut, trimmed, closed, killed or failed before."""
    with TemporaryDirectory() as folder:
        history = TransactionHistory(Path(folder))
        for what, n in steps:
            history.step(what, n)
            check(history.ledger)
        history.step("kill", 0)
        check(history.ledger)
        history.store.close()


@pytest.fixture(params=["files", "memory"])
def opened(request, tmp_path):
    """Opens a store with the same content again and again."""
    folder = MemoryFolder()
    stores: list[LocalStore | MemoryStore] = []

    def open_again() -> ManagedLedger:
        for store in stores:
            store.close()
        is_file = request.param == "files"
        stores[:] = [LocalStore.open(tmp_path) if is_file else MemoryStore.open(folder)]
        return stores[0].open_topic(TOPIC)

    yield open_again
    for store in stores:
        store.close()


def test_an_open_transaction_hides_all_after_it_until_it_ends(opened):
    """Also entries outside of it; then a commit shows all, an abort all but its own."""
    ledger = opened()
    first = add(ledger, None)
    ours = add(ledger, "1:0", 3)
    later = add(ledger, None)
    assert [entry.position for entry in ledger.read_stable(EARLIEST)] == [first]
    assert ledger.stable_end == ours
    ledger = opened()
    assert [entry.position for entry in ledger.read_stable(EARLIEST)] == [first]
    end(ledger, "1:0", commits=False)
    shown = [e.position for e in ledger.read_stable(EARLIEST) if e.kind is EntryKind.DATA]
    assert shown == [first, later]
    theirs = add(ledger, "1:0")
    end(ledger, "1:0", commits=True)
    ledger = opened()
    shown = [e.position for e in ledger.read_stable(EARLIEST) if e.kind is EntryKind.DATA]
    assert shown == [first, later, theirs]
    assert ledger.transactions is not None
    (aborted,) = ledger.transactions.aborted_in(0, 100)
    assert (aborted.transaction, aborted.first_index, aborted.end_index) == ("1:0", 1, 5)
    assert [entry.index for entry in ledger.read(EARLIEST)] == [0, 3, 4, 5, 6, 7]


def test_a_topic_without_transactions_has_no_note(opened):
    """It knows of none, and the stamp of an entry without one is as ever."""
    ledger = opened()
    add(ledger, None)
    assert ledger.transactions is None
    assert ledger.store.catalog.items(TRANSACTIONS_NOTE_KIND) == []
    add(ledger, "1:0")
    assert len(ledger.store.catalog.items(TRANSACTIONS_NOTE_KIND)) == 1
    ledger.store.delete_topic(TOPIC)
    assert ledger.store.catalog.items(TRANSACTIONS_NOTE_KIND) == []


@pytest.mark.parametrize("note", [b"", b"[]", b'{"from": 7}', b'{"from": [1, 0], "open": []}'])
def test_a_damaged_note_costs_a_look_at_all_entries(tmp_path, note):
    """What the entries say counts."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        add(ledger, "1:0")
        end(ledger, "1:0", commits=False)
        add(ledger, "2:0")
        key = str(ledger.topic_id)
    with LocalStore.open(tmp_path) as store:
        store.catalog.put(TRANSACTIONS_NOTE_KIND, key, note)
        ledger = store.open_topic(TOPIC)
        check(ledger)
        assert ledger.transactions is not None
        assert [each.transaction for each in ledger.transactions.aborted] == ["1:0"]
        assert list(ledger.transactions.open) == ["2:0"]


def test_compaction_takes_committed_entries_only(opened):
    """Its horizon is before the first open transaction."""
    ledger = opened()

    def put(value: bytes, transaction: str | None) -> Position:
        base = None if transaction is None else BrokerEntryMetadata(transaction=transaction)
        body = unbatched_message(value, publish_time_ms=1, key="k")
        appended: Appended = ledger.append(body, base=base)
        appended.commit.wait(10)
        return appended.position

    kept = put(b"kept", None)
    put(b"aborted", "1:0")
    marker = end(ledger, "1:0", commits=False)
    put(b"open", "2:0")
    report = compact(ledger)
    assert report.horizon == marker
    shown = [e for e in compacted_log(ledger).read_stable(EARLIEST) if e.kind is EntryKind.DATA]
    assert [entry.position for entry in shown] == [kept]


@pytest.mark.parametrize("is_live", [True, False])
def test_tools_show_nothing_that_is_open_or_aborted_unless_asked(tmp_path, is_live):
    """Dump, ReadEntries and the audit, over an open topic and over its folder."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        first = add(ledger, None)
        aborted = add(ledger, "1:0", 3)
        later = add(ledger, None)
        ends = end(ledger, "1:0", commits=False)
        opened = add(ledger, "2:0")
        last = add(ledger, None)
        store.engine.checkpoint()
        with FolderReader(tmp_path) as reader:
            log: TopicLog = ledger if is_live else reader.log(TOPIC)
            for asked, expected in (
                (False, [first, later, ends]),
                (True, [first, aborted, later, ends, opened, last]),
            ):
                rows = log_rows(log, None, has_all=asked)
                assert [row.position for row in rows] == expected
                for heads_only in (False, True):
                    plan = ReadPlan(EARLIEST, None, None, heads_only, uncommitted=asked)
                    pieces = [p for r in entry_responses(log, plan) for p in r.pieces]
                    found = [(p.position.ledger_id, p.position.entry_id) for p in pieces]
                    assert found == expected
            end(ledger, "2:0", commits=True)
            if not is_live:
                log = reader.log(TOPIC)
            trail = count_log(log, (), 60_000)
            tallies = [each for bucket in trail.counts.buckets.values() for each in bucket.values()]
            assert sum(each.count for each in tallies) == 4
            assert sum(each.control_count for each in tallies) == 5


def test_others_append_while_one_asks():
    """Control entries are appended in threads; the event loop asks what is open meanwhile."""
    with MemoryStore.open(MemoryFolder()) as store:
        ledger = store.open_topic(TOPIC)
        add(ledger, "1:0")
        assert ledger.transactions is not None
        append = partial(ledger.transactions.add, log=ledger)

        class Slow(str):
            """An id whose comparison takes so long that others append."""

            __slots__ = ()

            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                append(Event("2:0", None), ledger.end_position, 9, 9)
                return str.__eq__(self, other)

        for _ in range(2):
            append(Event(Slow("3:0"), None), ledger.end_position, 9, 9)
        assert not ledger.transactions.is_open("4:0", ledger)


def test_what_was_acknowledged_before_its_transaction_was_aborted_counts_no_more(tmp_path):
    """An entry that is acknowledged alone, and hidden later, is not taken off the backlog twice."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic(TOPIC)
        cursor = ledger.open_cursor("s", initial=EARLIEST)
        add(ledger, None)
        acked = add(ledger, IDS[0], 3)
        add(ledger, None, 5)
        cursor.ack(acked)
        assert cursor.backlog_messages == 6
        end(ledger, IDS[0], commits=False)
        assert cursor.backlog_messages == 6
        check(ledger)
