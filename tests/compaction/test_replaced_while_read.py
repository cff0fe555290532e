"""Readers of a compacted topic during compaction and retention."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsemark.compaction.compaction import compact
from pulsemark.compaction.current_view import claim_kept, compacted_log, current_view
from pulsemark.compaction.finder import CompactedFinder
from pulsemark.compaction.view import CompactedView
from pulsemark.ledger import EARLIEST, LocalStore, ManagedLedger, Position
from pulsemark.ledger.retention import apply_retention
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain, payload_of
from pulsemark.testing.raw_messages import unbatched_message

TOPIC = "persistent://public/default/prices"


def put(topic: ManagedLedger, key: str, value: bytes) -> Position:
    """One message, durably."""
    appended = topic.append(unbatched_message(value, publish_time_ms=1, key=key))
    appended.commit.wait()
    return appended.position


def replace(topic: ManagedLedger) -> None:
    """A newer view, and nothing left of the log that went into it."""
    compact(topic)
    remove_all_that_may_go(topic)


def remove_all_that_may_go(topic: ManagedLedger) -> int:
    """Retention without any time; how many entries it removed."""
    with claim_kept(topic) as claim:
        return apply_retention(
            topic, now_ms=1 << 40, retention_time_ms=0, retention_size_bytes=None, claim=claim
        )


def content(topic: ManagedLedger) -> list[bytes]:
    """Payloads of the compacted topic, oldest first. One read may return a part of them."""
    log, start, payloads = compacted_log(topic), EARLIEST, []
    while entries := log.read(start, max_entries=1000):
        payloads += [bytes(payload_of(entry.body)) for entry in entries]
        last = entries[-1].position
        start = Position(last.ledger_id, last.entry_id + 1)
    return payloads


@pytest.fixture(params=[True, False], ids=["has a view", "first compaction"])
def topic(request, open_store: Callable[..., LocalStore]) -> ManagedLedger:
    """One key in the old view, where there is one; two more, one of them twice, after it."""
    ledger = open_store(ledger_entries=3).open_topic(TOPIC)
    ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    put(ledger, "a", b"a1")
    if request.param:
        replace(ledger)
    put(ledger, "b", b"b1")
    put(ledger, "c", b"c1")
    put(ledger, "b", b"b2")
    return ledger


QUESTIONS: dict[str, Callable[[ManagedLedger], object]] = {
    "read": content,
    "first": lambda topic: compacted_log(topic).first_position,
    "last": lambda topic: compacted_log(topic).last_position,
    "count": lambda topic: compacted_log(topic).count_entries(EARLIEST, Position(1 << 40, 0)),
    "messages": lambda topic: compacted_log(topic).message_count(EARLIEST, Position(1 << 40, 0)),
    "next": lambda topic: compacted_log(topic).next_position(EARLIEST),
    "previous": lambda topic: compacted_log(topic).previous_position(Position(1 << 40, 0)),
    "index": lambda topic: compacted_log(topic).index_before(EARLIEST),
    "by time": lambda topic: CompactedFinder(compacted_log(topic)).by_time(0).position,
    "by index": lambda topic: CompactedFinder(compacted_log(topic)).by_index(1).position,
}
STEPS = [
    "segments", "first_position", "last_position", "end_position", "read", "next_position",
    "previous_position", "count_entries", "index_before", "cut_before", "snapshot",
]  # fmt: skip
VIEW_STEPS = ["find", "find_before", "read"]


@pytest.fixture
def at_step(monkeypatch, topic) -> Iterator[Callable[[int], None]]:
    """Let the view be replaced before the n-th question that is put to the log or to a view.

    A snapshot is one question: it holds the lock without which nothing is replaced.
    """
    left = [-1]
    in_snapshot = [False]

    def watch(kind: type, name: str) -> None:
        real = getattr(kind, name)
        ask: Any = real.fget if isinstance(real, property) else real

        def watched(self, *args, **options):
            if threading.current_thread() is threading.main_thread() and not in_snapshot[0]:
                left[0] -= 1
                if left[0] == 0:
                    replace(topic)
            if name != "snapshot":
                return ask(self, *args, **options)
            in_snapshot[0] = True
            try:
                return ask(self, *args, **options)
            finally:
                in_snapshot[0] = False

        monkeypatch.setattr(kind, name, property(watched) if ask is not real else watched)

    for name in STEPS:
        watch(ManagedLedger, name)
    for name in VIEW_STEPS:
        watch(CompactedView, name)

    def arm(step: int) -> None:
        left[0] = step

    yield arm
    left[0] = -1


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("step", range(1, 14))
def test_view_is_replaced_at_each_step(topic, at_step, question, step):
    """Whenever the view is replaced and the log trimmed, the answer is one of before or after."""
    ask = QUESTIONS[question]
    before = ask(topic)
    at_step(step)
    answer = ask(topic)
    at_step(-1)
    replace(topic)
    assert answer in (before, ask(topic))


def test_readers_beside_compaction_and_retention_miss_nothing(open_store):
    """Four keys that are written over and over: each read has the latest, or a later one."""
    topic = open_store(ledger_entries=5).open_topic(TOPIC)
    keys = [b"k%d" % number for number in range(4)]
    written = 0
    rounds = 25
    failed: list[object] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            known = written
            latest = {each[:2]: int(each[2:]) for each in content(topic)}
            if set(latest) != set(keys) or min(latest.values()) < known:
                failed.append((known, latest))

    for key in keys:
        put(topic, key.decode(), key + b"0")
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, rounds):
            for key in keys:
                put(topic, key.decode(), key + b"%d" % number)
            written = number
            replace(topic)
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert failed == []


# A horizon that is no longer in the log


def lose(
    topic: ManagedLedger, open_store: Callable[..., LocalStore], ledger_id: int
) -> ManagedLedger:
    """The topic after a restart, without a ledger's files."""
    store = topic.store
    assert isinstance(store, LocalStore)
    store.close()
    for path in (store.folder / "ledgers").glob(f"{ledger_id:016x}-*"):
        path.unlink()
    return open_store(ledger_entries=2).open_topic(TOPIC)


@pytest.mark.parametrize("followed", ["at once", "after the loss"])
def test_lost_ledger_at_the_horizon_keeps_the_view(open_store, followed):
    """Keys that live only in the view survive the loss of the ledger at its horizon."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    put(topic, "only", b"o1")
    put(topic, "x", b"x1")
    replace(topic)  # the log has nothing of these any more
    put(topic, "y", b"y1")
    horizon = put(topic, "z", b"z1")
    compact(topic)
    if followed == "at once":
        put(topic, "y", b"y2")
    topic = lose(topic, open_store, horizon.ledger_id)
    view = current_view(topic)
    assert view is not None
    assert view.horizon == horizon
    if followed == "after the loss":
        assert topic.next_index == 4  # no index is given twice
        put(topic, "y", b"y2")
    assert topic.next_index == 5
    report = compact(topic)
    assert report.changed
    assert (report.messages_missing, report.view_lost) == (0, False)
    assert sorted(content(topic)) == [b"o1", b"x1", b"y2", b"z1"]


def test_indexes_go_on_where_a_failed_append_follows_the_loss(open_store, monkeypatch):
    """A fenced ledger does not bring back indexes that the lost one had."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    put(topic, "a", b"1")
    horizon = put(topic, "b", b"1")
    compact(topic)
    topic = lose(topic, open_store, horizon.ledger_id)
    assert topic.first_position is None
    with topic.store.committer.lock:
        topic.append(unbatched_message(b"", publish_time_ms=1, key="c"))
        topic.fence()
    assert topic.next_index == 2


def test_missing_messages_are_reported(open_store):
    """A ledger that was lost before it was compacted shows in the report."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    places = [put(topic, key, b"1") for key in "abcdef"]
    topic = lose(topic, open_store, places[2].ledger_id)
    assert compact(topic).messages_missing == 2
    assert content(topic) == [b"1"] * 4


def test_what_is_missing_of_the_view_is_reported(open_store):
    """A view that lost one of its files does not lose keys without a word."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    for key in "abcdef":
        put(topic, key, b"1")
    replace(topic)
    view = current_view(topic)
    assert view is not None
    log = topic.store.open_view(view.name)
    lost = [s for s in log.segments() if s.entry_count == 2][1]
    topic = lose(topic, open_store, lost.ledger_id)
    put(topic, "g", b"1")
    report = compact(topic)
    assert report.messages_missing == 2
    assert content(topic) == [b"1"] * 5


def test_lost_view_is_reported(open_store):
    """A view of which nothing can be opened does not vanish without a word."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    put(topic, "a", b"a1")
    replace(topic)
    view = current_view(topic)
    assert view is not None
    topic.store.close()
    store = open_store(ledger_entries=2)
    store.delete_view(view.name)
    topic = store.open_topic(TOPIC)
    put(topic, "b", b"b1")
    report = compact(topic)
    assert report.view_lost
    put(topic, "b", b"b2")
    assert not compact(topic).view_lost


@pytest.mark.parametrize("restart", [False, True])
def test_cut_tail_keeps_what_only_the_view_has(open_store, restart):
    """Where a new leader cuts the tail before the horizon, keys from before the log's head stay."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    places = [put(topic, key, b"%d" % number) for number, key in enumerate("abcdea")]
    compact(topic)
    assert content(topic) == [b"1", b"2", b"3", b"4", b"5"]
    topic.truncate_head(places[3])
    topic.truncate_tail(4, epoch=1)
    for _ in range(2):
        # "a" was replaced by what is cut off now, "e" is cut off; "d" and the mark are in the log.
        log = compacted_log(topic)
        entries = log.read(EARLIEST, max_entries=100)
        assert [entry.position for entry in entries[:3]] == places[1:4]
        assert log.count_entries(EARLIEST, log.end_position) == len(entries) == 4
        assert log.first_position == places[1]
        assert log.previous_position(places[3]) == places[2]
        assert log.next_position(places[2]) == places[3]
        assert log.index_before(EARLIEST) == 1
        assert CompactedFinder(log).by_index(2).position == places[2]
        assert remove_all_that_may_go(topic) == 0
        if restart:
            topic.store.close()
            topic = open_store(ledger_entries=2).open_topic(TOPIC)
    put(topic, "b", b"new")
    report = compact(topic)
    assert (report.messages_missing, report.view_lost) == (0, False)
    replace(topic)
    assert content(topic) == [b"2", b"3", b"new"]


def test_cut_tail_of_a_log_that_has_everything(open_store):
    """If nothing was trimmed, the log alone says which entries there are after a cut tail."""
    topic = open_store(ledger_entries=2).open_topic(TOPIC)
    for key in "abcd":
        put(topic, key, b"1")
    compact(topic)
    topic.truncate_tail(3, epoch=1)
    assert len(compacted_log(topic).read(EARLIEST)) == 4  # three, and the leader's mark
    compact(topic)
    assert content(topic) == [b"1"] * 3
