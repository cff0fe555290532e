"""A follower: it cuts its log back to the highest common point, and goes on with its leader's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.finder import Finder
from pulsemark.ledger import (
    EARLIEST,
    LATEST,
    Entry,
    EpochHistory,
    EpochStart,
    LocalStore,
    ManagedLedger,
    MemoryStore,
    Position,
    StaleEpochError,
    TopicLog,
    TopicStore,
    common_point,
)
from pulsemark.metadata import BrokerEntryMetadata, control_of, peek
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_COMMIT

TOPIC = "persistent://public/default/orders"


def content(log: TopicLog) -> list[tuple[object, ...]]:
    """What two logs must agree on: all but positions and times, which are each broker's own."""
    return [
        (e.first_index, e.index, e.kind, bytes(e.body), control_of(e.prefix))
        for e in log.read(EARLIEST, max_entries=100_000)
    ]


def lead(ledger: ManagedLedger, epoch: int, leader: str) -> None:
    """Become the leader."""
    ledger.begin_epoch(epoch, leader=leader).commit.wait(10)


def write(ledger: ManagedLedger, text: str, entries: int) -> None:
    """Accept batches of one to three messages, as the leader."""
    for number in range(entries):
        body = f"{text} {number}".encode()
        ledger.append(body, message_count=number % 3 + 1).commit.wait(10)


def fields_of(entry: Entry) -> BrokerEntryMetadata | None:
    """The prefix fields that go with an entry to another log: not time and index."""
    metadata = peek(entry.prefix)
    if metadata is None:
        return None
    metadata.ClearField("broker_timestamp")
    metadata.ClearField("index")
    return metadata


def replace_tail(follower: ManagedLedger, index: int, entry: Entry, epoch: int) -> None:
    """Drop everything from an index on, and put an entry there, in a ledger of the follower's."""
    follower.roll()
    cut = Finder(follower).by_index(index).position
    place = Position(follower.ledger_id, 0)
    follower.follow_from(cut, replace(entry, position=place), epoch)


def follow(follower: ManagedLedger, leader: TopicLog, entries: int = 100_000) -> int:
    """What the proposal asks of a follower: cut the log at the common point, fetch the rest."""
    at = common_point(follower.epoch_history(), leader.epoch_history())
    assert at is not None
    start = Finder(leader).by_index(at).position if at < leader.next_index else LATEST
    for entry in leader.read(start, max_entries=entries):
        epoch = max(e.epoch for e in leader.epochs if e.first_index <= entry.first_index)
        base, control = fields_of(entry), control_of(entry.prefix)
        if entry.first_index < follower.next_index:
            replace_tail(follower, at, entry, epoch)
        elif epoch > follower.epoch:
            assert control is not None
            follower.begin_epoch(epoch, leader=control.name).commit.wait(10)
        else:
            follower.append(
                entry.body, message_count=entry.message_count, kind=entry.kind, base=base
            ).commit.wait(10)
    return at


@pytest.fixture(params=["files", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[TopicStore]]:
    """Two brokers' stores, on either engine."""
    made: list[TopicStore] = [
        MemoryStore.open() if request.param == "memory" else LocalStore.open(tmp_path / name)
        for name in "ab"
    ]
    yield made
    for store in made:
        store.close()


def test_a_follower_ends_with_its_leaders_log(stores: list[TopicStore]) -> None:
    """Diverging logs, truncation to the common point, continuing, and equal logs afterwards."""
    one, other = (store.open_topic(TOPIC) for store in stores)
    write(one, "first", 5)
    follow(other, one)
    assert content(other) == content(one)
    # `one` goes on alone, and so does `other`: the election was unclean.
    write(one, "lost", 4)
    lead(other, 1, "b")
    write(other, "second", 3)
    common = other.epochs[1].first_index
    assert follow(one, other) == common
    assert content(one) == content(other)
    assert [(e.epoch, e.first_index, e.leader) for e in one.epochs] == [
        (0, 0, ""), (1, common, "b")
    ]  # fmt: skip
    # They change places again, and the old leader's last entries are in no other log.
    lead(one, 2, "a")
    one.append_control(CONTROL_TXN_COMMIT, "7", tags={"by": b"coordinator"}).commit.wait(10)
    write(other, "also lost", 2)
    write(one, "third", 2)
    follow(other, one)
    assert content(other) == content(one)
    assert [e[:2] for e in starts(one)] == [e[:2] for e in starts(other)]


def starts(log: TopicLog) -> list[tuple[int, int, str]]:
    """The epochs without their positions, which are each store's own."""
    return [(e.epoch, e.first_index, e.leader) for e in log.epochs]


def test_a_follower_keeps_the_entries_of_an_older_epoch_than_its_own(
    stores: list[TopicStore],
) -> None:
    """Where it led an epoch that was lost, it goes back to the epoch before, whose end it lacks."""
    one, other = (store.open_topic(TOPIC) for store in stores)
    write(one, "first", 4)
    follow(other, one)
    write(one, "second", 2)  # epoch 0 goes on here
    lead(other, 1, "b")
    write(other, "lost", 5)
    lead(one, 2, "a")
    write(one, "third", 1)
    cut = follow(other, one)
    assert cut == 4 * 1 + 3  # batches of 1, 2, 3 and 1 messages
    assert content(other) == content(one)
    assert [e.epoch for e in other.epochs] == [0, 2]


def test_what_a_follower_dropped_stays_removed(tmp_path: Path) -> None:
    """After a restart the log is the same, and an entry of an epoch before the log's is refused."""
    leader = MemoryStore.open().open_topic(TOPIC)
    write(leader, "first", 3)
    with LocalStore.open(tmp_path) as store:
        follower = store.open_topic(TOPIC)
        follow(follower, leader)
        lead(follower, 5, "b")
        write(follower, "lost", 3)
        write(leader, "first, too", 2)
        follow(follower, leader)
        expected = content(follower)
        assert expected == content(leader)
        assert follower.epoch == 0
        lead(follower, 3, "b")
        mark = follower.read(EARLIEST, max_entries=100)[-1]
        with pytest.raises(StaleEpochError):
            follower.follow([replace(mark, position=mark.position.following)], 2)
    with LocalStore.open(tmp_path) as store:
        assert content(store.open_topic(TOPIC))[:-1] == expected


def history(*starts: tuple[int, int, str] | tuple[int, int], end: int) -> EpochHistory:
    """A log's epochs: (epoch, first index) and perhaps the leader."""
    made = (EpochStart(s[0], s[1], Position(0, 0), *s[2:]) for s in starts)
    return EpochHistory(tuple(made), end)


@pytest.mark.parametrize(
    ("one", "other", "point"),
    [
        (history(end=0), history(end=0), 0),
        (history(end=0), history((0, 0), (3, 9), end=20), 0),
        (history((0, 0), end=7), history((0, 0), end=5), 5),
        (history((0, 0), (1, 8), end=12), history((0, 0), (2, 10), end=11), 8),
        (history((0, 0), (1, 8), end=12), history((0, 0), (1, 10), end=11), 8),
        (history((0, 0), (1, 5), (2, 8), end=9), history((0, 0), (1, 5), (4, 7), end=30), 7),
        (history((0, 0), (1, 5, "a"), end=9), history((0, 0), (1, 5, "b"), end=30), 5),
        (history((0, 0), (1, 5, "a"), end=9), history((0, 0), (1, 5), end=30), 9),
        # Heads that were removed.
        (history((0, 3), (2, 8), end=9), history((0, 0), (2, 8), end=30), 9),
        (history((2, 9), end=12), history((0, 0), (2, 8), end=10), 10),
        (history((1, 100), end=120), history((0, 0), end=50), None),
        (history((1, 0), end=120), history((2, 0), end=50), 0),
        # Logs of which all entries were removed.
        (history(end=7), history(end=7), 7),
        (history(end=7), history(end=9), None),
        (history(end=7), history((0, 0), (4, 3), end=10), None),
        (history(end=7), history((0, 0), end=5), None),
        (history(end=7), history(end=0), None),
    ],
)
def test_the_highest_common_point(
    one: EpochHistory, other: EpochHistory, point: int | None
) -> None:
    """The rule, case by case, and the same from both sides."""
    assert common_point(one, other) == point
    assert common_point(other, one) == point


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lead"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("follow"), st.integers(0, 2), st.integers(1, 8)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_history_of_leaders_ends_in_equal_logs(steps: list[tuple[str, int, int]]) -> None:
    """The common point is exactly where the logs begin to differ, for every order of leaders.

    Each replica may take the lead at any time with the next number it knows of, even a number that
    another one has taken, too; only the leader of the moment accepts entries.
    """
    stores = [MemoryStore.open(threaded=False) for _ in range(3)]
    replicas = [store.open_topic(TOPIC) for store in stores]
    leader = 0
    for number, (what, who, count) in enumerate(steps):
        if what == "lead":
            leader = who
            lead(replicas[who], replicas[who].epoch + 1, f"replica {who} at {number}")
            write(replicas[who], f"{number}", count)
        elif what == "write":
            write(replicas[leader], f"{number}", count)
        elif who != leader:
            logs = content(replicas[who]), content(replicas[leader])
            same = [a for a, b in zip(*logs, strict=False) if a == b]
            agreed = int(str(same[-1][1])) + 1 if same else 0
            assert follow(replicas[who], replicas[leader], count) == agreed
            now = content(replicas[who])
            assert now == content(replicas[leader])[: len(now)]
    for replica in replicas:
        if replica is not replicas[leader]:
            follow(replica, replicas[leader])
            assert content(replica) == content(replicas[leader])
            assert starts(replica) == starts(replicas[leader])
    for store in stores:
        store.close()


def test_a_backlog_after_a_cut_in_the_same_epoch(stores: list[TopicStore]) -> None:
    """Acknowledgements of what was dropped no longer count, though the epoch is the same."""
    ledger = stores[0].open_topic(TOPIC)
    cursor = ledger.open_cursor("s", initial=EARLIEST)
    appended = [ledger.append(b"%d" % number) for number in range(6)]
    appended[-1].commit.wait(10)
    for one in appended[3:]:
        cursor.ack(one.position)
    assert cursor.backlog_messages == 3
    replace_tail(ledger, 4, ledger.read(EARLIEST)[4], 0)
    assert cursor.backlog_messages == 4
