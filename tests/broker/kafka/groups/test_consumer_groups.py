"""Groups of the consumer protocol (KIP-848), without sockets, with a clock that the test moves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka.protocol.consumer import ConsumerProtocolSubscription

from pulsemark.broker.kafka.groups.assignors import ASSIGNORS
from pulsemark.broker.kafka.groups.consumer_group import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    Beat,
    check_beat,
)
from pulsemark.broker.kafka.groups.group import State
from pulsemark.kafka.errors import Code, KafkaError, code_of

from .test_coordinator import Groups

TOPICS = {"a": 4, "b": 3, "c": 1}


class Consumer:
    """A client of the protocol: what it has, and what it sends."""

    def __init__(self, groups, member_id, topics=("a",), **more):
        self.groups, self.more = groups, more
        self.member_id, self.topics = member_id, frozenset(topics)
        self.epoch: int = JOINS
        self.has: frozenset[Any] = frozenset()
        #: What it processes: also what it was told to let go, until it says that it has.
        self.busy: frozenset[Any] = frozenset()

    def beat(self, **changes):
        """A heartbeat that says all; `changes`: of what it says."""
        said = Beat(
            group="g",
            member_id=self.member_id,
            epoch=self.epoch,
            rebalance_timeout_ms=30_000,
            topics=self.topics,
            owned=frozenset() if self.epoch == JOINS else self.has,
            **self.more,
        )
        said = replace(said, **changes)
        check_beat(said)
        if said.owned is not None:
            self.busy = self.busy & said.owned
        coordinator = self.groups.coordinator
        if said.epoch < JOINS:
            answer = coordinator.leave_consumer(said)
        else:
            group, member = coordinator.begin_consumer(said)
            group.plan_now()
            answer = coordinator.finish_consumer(group, member, said)
        self.epoch = answer.epoch
        if answer.assigned is not None:
            self.has = answer.assigned
        self.busy |= self.has
        return answer

    def fenced(self, code, **changes):
        """It is refused with this code."""
        with pytest.raises(KafkaError) as refused:
            self.beat(**changes)
        assert refused.value.code is code


@pytest.fixture
def groups(monkeypatch):
    """A coordinator of three topics."""
    found = Groups()
    found.coordinator.partitions_of = lambda topic: TOPICS.get(topic, 0)
    return found


def settle(*consumers):
    """Heartbeats until nothing changes."""
    for _ in range(2 * len(consumers) + 2):
        for each in consumers:
            each.beat()


def partitions(*topics):
    """All partitions of topics."""
    return {(topic, index) for topic in topics for index in range(TOPICS[topic])}


def test_a_partition_goes_on_when_its_owner_has_let_it_go(groups):
    """The second member gets its part only after the first one's next heartbeat."""
    one, two = Consumer(groups, "1"), Consumer(groups, "2")
    one.beat()
    assert (one.epoch, one.has) == (1, partitions("a"))
    two.beat()
    assert (two.epoch, two.has) == (2, frozenset())
    kept = one.has
    answer = one.beat(owned=kept)
    assert (one.epoch, len(answer.assigned)) == (1, 2)
    one.beat(owned=kept, topics=None)
    assert one.epoch == 1
    two.beat()
    assert two.has == frozenset()
    one.beat()
    assert one.epoch == 2
    two.beat()
    assert one.has | two.has == partitions("a")
    assert groups.coordinator.groups["g"].state == "Stable"


def test_epochs_fence(groups):
    """An epoch ahead, one too far behind, members that are not known."""
    one = Consumer(groups, "1")
    one.fenced(Code.GROUP_ID_NOT_FOUND, epoch=1)
    one.beat()
    Consumer(groups, "2").fenced(Code.UNKNOWN_MEMBER_ID, epoch=1, owned=frozenset())
    one.fenced(Code.FENCED_MEMBER_EPOCH, epoch=2)
    settle(one, Consumer(groups, "2"))
    one.fenced(Code.FENCED_MEMBER_EPOCH, epoch=1, owned=partitions("a"))
    one.fenced(Code.FENCED_MEMBER_EPOCH, epoch=1, owned=None)
    assert one.beat(epoch=1).epoch == 2  # it has missed the last answer

    def check(*args, **named):
        return code_of(groups.coordinator.check_commit, *args, **named)

    for epoch, member_id, code in (
        (2, "1", Code.NONE),
        (1, "1", Code.STALE_MEMBER_EPOCH),
        (2, "3", Code.UNKNOWN_MEMBER_ID),
        (-1, "", Code.UNKNOWN_MEMBER_ID),
    ):
        assert check("g", epoch, member_id, None, knows_epochs=True) is code
    assert check("g", 2, "1", None) is Code.UNSUPPORTED_VERSION
    assert check("none", 2, "1", None, knows_epochs=True) is Code.GROUP_ID_NOT_FOUND


def test_what_is_not_valid_is_refused(groups):
    """With Kafka's codes."""
    one = Consumer(groups, "1")
    for changes in (
        {"group": ""},
        {"epoch": -3},
        {"member_id": "", "needs_id": True},
        {"instance_id": ""},
        {"rack_id": " "},
        {"epoch": LEAVES_FOR_NOW},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": partitions("a")},
        {"topics": None},
    ):
        one.fenced(Code.INVALID_REQUEST, **changes)
    one.fenced(Code.UNSUPPORTED_ASSIGNOR, assignor="best")
    assert groups.coordinator.groups == {}


def test_a_static_member_comes_back_to_what_it_had(groups):
    """If it has left for a moment; meanwhile nobody else gets it, and it holds its name."""
    one = Consumer(groups, "1", instance_id="i")
    other = Consumer(groups, "2")
    settle(one, other)
    had = one.has
    back = Consumer(groups, "3", instance_id="i")
    back.fenced(Code.UNRELEASED_INSTANCE_ID)
    one.beat(epoch=LEAVES_FOR_NOW)
    other.beat()
    assert other.has & had == frozenset()
    back.beat()
    settle(back, other)
    assert back.has == had
    one.epoch = 2
    one.fenced(Code.FENCED_INSTANCE_ID)
    back.beat(epoch=LEAVES)
    other.beat()
    assert other.has == partitions("a")


def test_who_is_silent_or_lets_nothing_go_is_removed(groups):
    """After the session's time, and after its time for rebalances."""
    one, two = Consumer(groups, "1"), Consumer(groups, "2")
    one.beat()
    two.beat()
    one.beat()
    for _ in range(4):
        groups.clock.move(10)
        one.beat(owned=partitions("a"), topics=None) if "1" in members(groups) else None
        two.beat()
    assert members(groups) == {"2"}
    assert two.has == partitions("a")
    groups.clock.move(45)
    assert groups.coordinator.groups == {}
    assert groups.coordinator.used_bytes == 0


def members(groups):
    """The ids of the group's members."""
    return set(groups.coordinator.groups["g"].members)


def test_new_partitions_are_found(groups, monkeypatch):
    """Also those of a topic that did not exist; they are looked for once a second."""
    one = Consumer(groups, "1", topics=("a", "later"))
    one.beat()
    assert one.has == partitions("a")
    monkeypatch.setitem(TOPICS, "later", 2)
    groups.clock.move(1)
    one.beat()
    assert one.has == partitions("a", "later")
    assert one.epoch == 2


names = st.sampled_from(["a", "b", "c", "none"])
subscriptions = st.dictionaries(st.sampled_from("123456"), st.frozensets(names), max_size=6)


@given(first=subscriptions, second=subscriptions, name=st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_with_a_reader_has_one(first, second, name):
    """Whatever the target before; all members get only what they read."""
    assign = ASSIGNORS[name]
    target: dict[str, frozenset[Any]] = {}
    for wanted in (first, second):
        target = assign({m: (m, reads) for m, reads in wanted.items()}, TOPICS, target)
        assert target.keys() == wanted.keys()
        given = [each for assigned in target.values() for each in assigned]
        read = set().union(*wanted.values()) & TOPICS.keys() if wanted else set()
        assert sorted(given) == sorted(partitions(*read))
        assert all(t in wanted[m] for m, assigned in target.items() for t, _ in assigned)


@given(
    before=st.integers(1, 9),
    after=st.integers(1, 9),
    counts=st.lists(st.integers(1, 20), min_size=1),
)
def test_uniform_is_even_and_keeps_what_it_can(before, after, counts):
    """With one subscription for all shares differ by one, and no partition moves needlessly."""
    topics = {f"t{number}": count for number, count in enumerate(counts)}
    assign = ASSIGNORS["uniform"]

    def of(count):
        return {str(m): (str(m), frozenset(topics)) for m in range(count)}

    old = assign(of(before), topics, {})
    new = assign(of(after), topics, old)
    sizes = [len(assigned) for assigned in new.values()]
    assert max(sizes) - min(sizes) <= 1
    if before <= after:
        for member, assigned in old.items():
            assert len(assigned & new[member]) == min(len(assigned), len(new[member]))


def test_what_members_take_is_bounded():
    """Members of a group, groups, the names that they read, and their memory; all is given back."""
    few = Groups(max_kafka_groups=2, max_kafka_group_members=2)
    for number in "12":
        Consumer(few, number).beat()
    Consumer(few, "3").fenced(Code.GROUP_MAX_SIZE_REACHED)
    Consumer(few, "4").beat(group="h")
    Consumer(few, "5").fenced(Code.COORDINATOR_NOT_AVAILABLE, group="i")
    small = Groups(max_kafka_group_bytes=2_500)
    Consumer(small, "1").beat()
    Consumer(small, "2").beat()
    Consumer(small, "3").fenced(Code.COORDINATOR_NOT_AVAILABLE)
    wide = Groups()
    many = frozenset(map(str, range(10_001)))
    Consumer(wide, "1").fenced(Code.INVALID_REQUEST, topics=many)
    for member in (Consumer(wide, "2", sorted(many)[:10_000]), Consumer(wide, "3", "x")):
        member.beat()
    others = frozenset(f"o{number}" for number in range(10_000))
    Consumer(wide, "4", others).fenced(Code.GROUP_MAX_SIZE_REACHED)
    for each in (few, small, wide):
        each.clock.move(46)
        assert each.coordinator.used_bytes == 0
        assert each.coordinator.groups == {}


def test_a_large_share_comes_with_several_heartbeats(groups, monkeypatch):
    """So that no heartbeat holds up the event loop."""
    monkeypatch.setitem(TOPICS, "large", 12_000)
    one = Consumer(groups, "1", topics=("large",))
    sizes = []
    for _ in range(4):
        one.beat()
        sizes.append(len(one.has))
    assert sizes == [5_000, 10_000, 12_000, 12_000]


def test_a_member_that_changes_its_protocol_gets_no_answer_of_the_former_group(groups):
    """The last member of this protocol joins as a classic one while its target is computed."""
    one = Consumer(groups, "1")
    one.beat()
    said = Beat(group="g", member_id="1", epoch=1, owned=one.has)
    group, member = groups.coordinator.begin_consumer(said)
    metadata = ConsumerProtocolSubscription(topics=["a"], user_data=b"").encode(version=0)
    groups.join("1", protocols=(("range", metadata),))
    assert groups.state() is State.PREPARING
    with pytest.raises(KafkaError) as refused:
        groups.coordinator.finish_consumer(group, member, said)
    assert refused.value.code is Code.UNKNOWN_MEMBER_ID


def test_range_gives_runs():
    """In the order of the members' names."""
    wanted = {m: (m, frozenset({"a", "b"})) for m in "12"}
    target = ASSIGNORS["range"](wanted, TOPICS, {})
    assert target["1"] == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}


class Reconciliation(RuleBasedStateMachine):
    """Members join, leave, fall silent, and let go late: nobody has what another has."""

    def __init__(self):
        super().__init__()
        self.groups = Groups()
        self.groups.coordinator.partitions_of = lambda topic: TOPICS.get(topic, 0)
        self.live: dict[str, Consumer] = {}
        self.made = 0

    @rule(topics=st.frozensets(st.sampled_from("abc"), min_size=1))
    def join(self, topics):
        """A new member."""
        self.made += 1
        if len(self.live) < 6:
            self.live[str(self.made)] = Consumer(self.groups, str(self.made), topics)

    @rule(data=st.data(), says=st.booleans())
    def beat(self, data, says):
        """A heartbeat; a client that has not let go yet says nothing of what it has."""
        if self.live:
            each = data.draw(st.sampled_from(sorted(self.live)))
            self.beat_once(each, says=says)

    def beat_once(self, name, *, says=True):
        """A heartbeat of one member."""
        each = self.live[name]
        try:
            each.beat() if says or each.epoch == JOINS else each.beat(owned=None, topics=None)
        except KafkaError as error:
            assert error.code in (Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND)
            each.has, each.busy, each.epoch = frozenset(), frozenset(), JOINS

    @rule(data=st.data())
    def change(self, data):
        """Another subscription."""
        if self.live:
            each = self.live[data.draw(st.sampled_from(sorted(self.live)))]
            each.topics = data.draw(st.frozensets(st.sampled_from("abc"), min_size=1))

    @rule(data=st.data())
    def leave(self, data):
        """A member leaves."""
        if self.live:
            each = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
            if each.epoch > 0:
                with suppress(KafkaError):
                    each.beat(epoch=LEAVES)

    @rule(data=st.data())
    def vanish(self, data):
        """A client dies: its session ends, and it processes nothing any more."""
        if self.live:
            del self.live[data.draw(st.sampled_from(sorted(self.live)))]

    @rule(by_s=st.sampled_from([1, 10, 31]))
    def wait(self, by_s):
        """Time passes; a member that was removed meanwhile stops by its own clock."""
        self.groups.clock.move(by_s)
        group = self.groups.coordinator.groups.get("g")
        for each in self.live.values():
            if group is None or each.member_id not in group.members:
                each.has, each.busy, each.epoch = frozenset(), frozenset(), JOINS

    @invariant()
    def nobody_shares(self):
        """No partition has two members that process it."""
        held = [p for each in self.live.values() for p in each.busy]
        assert len(held) == len(set(held))

    def teardown(self):
        """In the end everything that is read is assigned."""
        self.groups.clock.move(50)
        self.wait(0)
        for _ in range(3):
            settle_all(self)
        held = {p for each in self.live.values() for p in each.has}
        read = {topic for each in self.live.values() for topic in each.topics}
        assert held == partitions(*read)
        if not self.live:
            assert self.groups.coordinator.used_bytes == 0


def settle_all(machine):
    """Heartbeats of all live members, often enough."""
    for _ in range(2 * len(machine.live) + 2):
        for name in sorted(machine.live):
            machine.beat_once(name)


Reconciliation.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestReconciliation = Reconciliation.TestCase
