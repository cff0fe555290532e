"""The state machine of groups, without sockets and with a clock that the test moves."""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import ConsumerProtocolSubscription

from pulsemark.broker import BrokerConfig
from pulsemark.broker.kafka.groups.coordinator import Coordinator
from pulsemark.broker.kafka.groups.group import Joining, JoinResult, Member, State, SyncResult
from pulsemark.kafka.errors import Code, code_of


class Clock:
    """Time by hand."""

    def __init__(self):
        self.now_s = 0.0
        self._heap = []
        self._numbers = count()
        self._calls = {}

    def time(self):
        """The present time."""
        return self.now_s

    def call_later(self, delay_s, call, *arguments):
        """Call after a time."""
        number = next(self._numbers)
        heappush(self._heap, (self.now_s + delay_s, number))
        self._calls[number] = partial(call, *arguments)
        return SimpleNamespace(cancel=lambda: self._calls.pop(number, None))

    def move(self, by_s):
        """Let time pass, and what is due happen in its order."""
        until_s = self.now_s + by_s
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, number = heappop(self._heap)
            if call := self._calls.pop(number, None):
                call()
        self.now_s = until_s


class NoOffsets:
    """Groups without committed offsets."""

    def __init__(self):
        self.types = {}
        self.stored = {}

    def unstable_of(self, group):
        """Nothing."""
        return set()

    def of_group(self, group):
        """What the test says is stored."""
        return self.stored.get(group, {})


class Groups:
    """A coordinator, and what its members were answered."""

    def __init__(self, delay_ms=0, **limits):
        self.clock = Clock()
        config = BrokerConfig(
            data_dir=Path("unused"), kafka_group_initial_rebalance_delay_ms=delay_ms, **limits
        )
        self.offsets = NoOffsets()
        offsets: Any = self.offsets
        loop: Any = self.clock
        self.coordinator = Coordinator(config, loop, offsets, lambda _: 0)

    def join(self, member_id="", name="g", **changes):
        """A JoinGroup; returns the list that its answers go to."""
        answers: list[Any] = []
        fields = {
            "group": name,
            "member_id": member_id,
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", b"m"),),
            "needs_id": False,
            "reply": answers.append,
        }
        code = code_of(self.coordinator.join, Joining(**(fields | changes)))
        return [JoinResult(member_id, code)] if code else answers

    def sync(self, member_id, generation, assignments=None, name="g", instance_id=None):
        """A SyncGroup; returns the list that its answer goes to."""
        answers: list[Any] = []
        asked = name, generation, member_id, instance_id, assignments or {}
        code = code_of(self.coordinator.sync, *asked, answers.append)
        return [SyncResult(code=code)] if code else answers

    def beat(self, member_id, generation, name="g", instance_id=None):
        """A Heartbeat's error code."""
        return code_of(self.coordinator.heartbeat, name, generation, member_id, instance_id)

    def leave(self, member_id, instance_id=None):
        """The error code of a LeaveGroup."""
        return code_of(self.coordinator.leave, "g", member_id, instance_id)

    def state(self, name="g"):
        """A group's state; None if there is none."""
        group = self.coordinator.groups.get(name)
        return None if group is None else group.state

    def stable(self, members=2):
        """A stable group; returns the members' ids, the leader first."""
        joins = [self.join() for _ in range(members)]
        self.clock.move(0)
        joined = [answers[0] for answers in joins]
        ids = [result.member_id for result in joined]
        leader = joined[0].leader
        for member_id in ids:
            if member_id != leader:
                self.sync(member_id, joined[0].generation)
        self.sync(leader, joined[0].generation, {each: each.encode() for each in ids})
        return sorted(ids, key=lambda each: each != leader)


def test_a_group_becomes_stable_when_its_leader_has_assigned():
    """Empty, Preparing, Completing, Stable: members for the leader only, then each its part."""
    groups = Groups()
    first, second = groups.join(), groups.join()
    assert groups.state() is State.PREPARING
    assert first == second == []
    groups.clock.move(0)
    assert groups.state() is State.COMPLETING
    leader, other = first[0], second[0]
    assert leader.member_id == leader.leader == other.leader
    assert [member for member, _, _ in leader.members] == [leader.member_id, other.member_id]
    assert other.members == ()
    assert (leader.generation, leader.protocol) == (1, "range")
    waiting = groups.sync(other.member_id, 1)
    assert waiting == []
    own = groups.sync(leader.member_id, 1, {leader.member_id: b"1", other.member_id: b"2"})
    assert (own[0].assignment, waiting[0].assignment) == (b"1", b"2")
    assert groups.state() is State.STABLE
    assert groups.sync(other.member_id, 1)[0].assignment == b"2"


def test_the_first_generation_waits_for_its_delay_and_again_for_late_members():
    """A member that comes during the delay prolongs it, up to the rebalance timeout."""
    groups = Groups(delay_ms=3_000)
    first = groups.join(rebalance_timeout_ms=7_000)
    groups.clock.move(2)
    second = groups.join(rebalance_timeout_ms=7_000)
    groups.clock.move(2)
    assert first == second == []
    groups.clock.move(2)
    assert (first[0].generation, second[0].generation) == (1, 1)
    late = Groups(delay_ms=3_000)
    alone = late.join(rebalance_timeout_ms=7_000)
    late.clock.move(3)
    assert alone[0].generation == 1


def test_a_new_member_gets_its_id_first_from_version_4_on():
    """MEMBER_ID_REQUIRED and the id; it is forgotten if no JoinGroup follows with it."""
    groups = Groups()
    asked = groups.join(needs_id=True)[0]
    assert asked.code is Code.MEMBER_ID_REQUIRED
    joined = groups.join(asked.member_id, needs_id=True)
    groups.clock.move(0)
    assert joined[0].member_id == asked.member_id
    forgotten = groups.join(name="other", needs_id=True)[0]
    groups.clock.move(11)
    assert groups.state("other") is None
    assert groups.join(forgotten.member_id, name="other")[0].code is Code.UNKNOWN_MEMBER_ID


def test_a_joining_member_makes_the_others_join_again():
    """Heartbeats say REBALANCE_IN_PROGRESS; the next generation begins when all have joined."""
    groups = Groups()
    leader, other = groups.stable()
    third = groups.join()
    assert groups.beat(leader, 1) is Code.REBALANCE_IN_PROGRESS
    assert groups.beat(other, 1) is Code.REBALANCE_IN_PROGRESS
    again = [groups.join(leader), groups.join(other)]
    assert groups.state() is State.COMPLETING
    assert {answers[0].generation for answers in (third, *again)} == {2}


def test_members_that_do_not_join_again_are_dropped_after_the_rebalance_timeout():
    """The generation begins with those who came."""
    groups = Groups()
    leader, other = groups.stable()
    newcomer = groups.join()
    again = groups.join(leader)
    for _ in range(6):
        groups.clock.move(9)
        groups.beat(other, 1)
    assert newcomer == again == []
    groups.clock.move(9)
    assert newcomer[0].generation == 2
    assert groups.beat(other, 2) is Code.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_dropped_after_its_session_timeout():
    """The others share its part; heartbeats keep a member."""
    groups = Groups()
    leader, other = groups.stable()
    groups.clock.move(6)
    assert groups.beat(leader, 1) is Code.NONE
    groups.clock.move(6)
    assert groups.beat(other, 1) is Code.UNKNOWN_MEMBER_ID
    assert groups.beat(leader, 1) is Code.REBALANCE_IN_PROGRESS


def test_a_member_that_waits_for_others_does_not_expire():
    """It cannot send heartbeats while its JoinGroup is not answered."""
    groups = Groups()
    leader, other = groups.stable()
    waiting = groups.join(leader)
    for _ in range(4):
        groups.clock.move(8)
        assert groups.beat(other, 1) is Code.REBALANCE_IN_PROGRESS
    assert waiting == []
    groups.join(other)
    assert waiting[0].generation == 2


def test_a_follower_that_joins_again_unchanged_gets_the_same_generation():
    """It lost the answer; the leader's JoinGroup instead begins a rebalance."""
    groups = Groups()
    leader, other = groups.stable()
    assert groups.join(other)[0].generation == 1
    assert groups.state() is State.STABLE
    changed = groups.join(other, protocols=(("range", b"new"),))
    assert changed == []
    groups.join(leader)
    assert changed[0].generation == 2


def test_a_follower_that_joins_during_completing_gets_its_answer_again():
    """The generation goes on."""
    groups = Groups()
    first, second = groups.join(), groups.join()
    groups.clock.move(0)
    again = groups.join(second[0].member_id)
    assert again[0] == second[0]
    assert groups.join(first[0].member_id)[0] == first[0]


def test_a_rebalance_during_completing_ends_waiting_syncs():
    """Those who wait for assignments join again."""
    groups = Groups()
    first, second = groups.join(), groups.join()
    groups.clock.move(0)
    leader, other = first[0].member_id, second[0].member_id
    waiting = groups.sync(other, 1)
    groups.join()
    assert waiting[0].code is Code.REBALANCE_IN_PROGRESS
    assert groups.sync(leader, 1)[0].code is Code.REBALANCE_IN_PROGRESS


def test_leaving_makes_the_rest_rebalance_and_the_last_one_ends_the_group():
    """A group without members and offsets is forgotten."""
    groups = Groups()
    leader, other = groups.stable()
    assert groups.leave(leader) is Code.NONE
    assert groups.leave(leader) is Code.UNKNOWN_MEMBER_ID
    rest = groups.join(other)
    assert rest[0].leader == other
    assert groups.leave(other) is Code.NONE
    assert groups.state() is None
    assert groups.coordinator.used_bytes == 0


def test_the_protocol_with_most_first_votes_among_the_shared_ones_is_chosen():
    """A member without a shared protocol is refused."""
    groups = Groups()
    joins = [
        groups.join(protocols=(("a", b"1"), ("b", b"2"), ("c", b"3"))),
        groups.join(protocols=(("c", b"4"), ("b", b"5"))),
        groups.join(protocols=(("b", b"6"), ("c", b"7"))),
        groups.join(protocols=(("b", b"8"), ("c", b"9"), ("d", b"x"))),
    ]
    stranger = groups.join(protocols=(("d", b""),))
    assert stranger[0].code is Code.INCONSISTENT_GROUP_PROTOCOL
    other_type = groups.join(protocol_type="connect")
    assert other_type[0].code is Code.INCONSISTENT_GROUP_PROTOCOL
    groups.clock.move(0)
    assert {answers[0].protocol for answers in joins} == {"b"}
    assert [metadata for _, _, metadata in joins[0][0].members] == [b"2", b"5", b"6", b"8"]


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, -1])
def test_session_timeouts_have_bounds(timeout_ms):
    """From 6 s to 30 min, as in Kafka."""
    refused = Groups().join(session_timeout_ms=timeout_ms)
    assert refused[0].code is Code.INVALID_SESSION_TIMEOUT


def test_settings_move_the_bounds_of_session_timeouts():
    """Both ends belong to them."""
    groups = Groups(
        kafka_group_min_session_timeout_ms=1_000, kafka_group_max_session_timeout_ms=2_000
    )
    for timeout_ms, refused in ((999, True), (1_000, False), (2_000, False), (2_001, True)):
        answers = groups.join(name=str(timeout_ms), session_timeout_ms=timeout_ms)
        groups.clock.move(0)
        assert (answers[0].code is Code.INVALID_SESSION_TIMEOUT) is refused


def test_commits_need_the_generation_that_runs():
    """Completing: REBALANCE_IN_PROGRESS; without members only generation -1 may commit."""
    groups = Groups()

    def check(*args, **named):
        return code_of(groups.coordinator.check_commit, *args, **named)

    assert check("g", -1, "", None) is Code.NONE
    assert check("g", 3, "m", None) is Code.ILLEGAL_GENERATION
    first = groups.join()
    groups.clock.move(0)
    member = first[0].member_id
    assert check("g", 1, member, None) is Code.REBALANCE_IN_PROGRESS
    groups.sync(member, 1, {member: b""})
    assert check("g", 1, member, None) is Code.NONE
    assert check("g", 2, member, None) is Code.ILLEGAL_GENERATION
    assert check("g", 1, "other", None) is Code.UNKNOWN_MEMBER_ID
    assert check("g", -1, "", None) is Code.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_with_its_part_and_fences_the_one_before():
    """KIP-345: no rebalance; the old id is fenced, and its instance id leaves by name."""
    groups = Groups()
    first = groups.join(instance_id="a")
    second = groups.join(instance_id="b")
    groups.clock.move(0)
    leader, other = first[0].member_id, second[0].member_id
    groups.sync(other, 1, instance_id="b")
    groups.sync(leader, 1, {leader: b"1", other: b"2"}, instance_id="a")
    back = groups.join(instance_id="b")[0]
    assert (back.generation, back.code, back.leader) == (1, Code.NONE, leader)
    assert back.member_id != other
    assert groups.state() is State.STABLE
    assert groups.sync(back.member_id, 1, instance_id="b")[0].assignment == b"2"
    assert groups.beat(other, 1, instance_id="b") is Code.FENCED_INSTANCE_ID
    assert groups.beat("x", 1, instance_id="c") is Code.UNKNOWN_MEMBER_ID
    assert groups.leave("", "b") is Code.NONE
    assert groups.state() is State.PREPARING


def test_limits_of_groups_members_and_bytes():
    """What is above a limit is refused, and what left gives its place back."""
    groups = Groups(max_kafka_groups=1, max_kafka_group_members=2)
    leader, _ = groups.stable()
    assert groups.join(name="second")[0].code is Code.COORDINATOR_NOT_AVAILABLE
    assert groups.join()[0].code is Code.GROUP_MAX_SIZE_REACHED
    groups.leave(leader)
    assert groups.join() == []
    small = Groups(max_kafka_group_bytes=10_000)
    assert small.join(protocols=(("range", b"m" * 6_000),)) == []
    refused = small.join(protocols=(("range", b"m" * 6_000),))
    assert refused[0].code is Code.COORDINATOR_NOT_AVAILABLE


def test_only_groups_without_members_can_be_deleted():
    """NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, or allowed where only offsets are left."""
    groups = Groups()
    groups.stable()

    def check(*args, **named):
        return code_of(groups.coordinator.check_deletable, *args, **named)

    assert check("g") is Code.NON_EMPTY_GROUP
    assert check("none") is Code.GROUP_ID_NOT_FOUND
    groups.offsets.stored["old"] = {("t", 0): object()}
    assert check("old") is Code.NONE


# -- What the metadata of a consumer group's members says


def member(*metadata):
    """A member with this metadata for each of its protocols."""
    said: Any = SimpleNamespace(protocols=[("p", each) for each in metadata])
    return Member("m", said)


@pytest.mark.parametrize("version", range(4))
def test_topics_of_a_subscription_in_every_version(version):
    """Those that are named, and no others."""
    fields = {"topics": ["a", "b"], "user_data": b"x", "owned_partitions": [], "generation_id": 1}
    metadata = ConsumerProtocolSubscription(version=version, **fields, rack_id=None).encode()
    assert member(metadata).reads("b")
    assert not member(metadata).reads("c")


@pytest.mark.parametrize("metadata", [b"", b"\x00", b"meta", b"\x00\x00\x7f\xff\xff\xff"])
def test_metadata_that_cannot_be_read_may_be_of_any_topic(metadata):
    """Offsets are rather kept than removed while they are used."""
    assert member(metadata).reads("a")
