"""Groups: members, generations, offsets, and what administrators ask."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import InitProducerIdRequest

from pulsemark.testing.raw_kafka import RawKafka

from .admin_scenarios import make_topic
from .peers import Peer

_Protocol = JoinGroupRequest.JoinGroupRequestProtocol
_Assignment = SyncGroupRequest.SyncGroupRequestAssignment
_Leaving = LeaveGroupRequest.MemberIdentity
_Committed = OffsetCommitRequest.OffsetCommitRequestTopic
_Asked = OffsetFetchRequest.OffsetFetchRequestTopic
_Forgotten = OffsetDeleteRequest.OffsetDeleteRequestTopic


SUBSCRIPTION = bytes.fromhex("0000 00000001 0001 74 ffffffff")
"""Version 0, the topic "t", no user data. Kafka reads it; for some other bytes it never answers."""


def join_fields(group: str, member: str = "", **changes: Any) -> dict[str, Any]:
    """The fields of a JoinGroup."""
    protocols = changes.pop("protocols", [("range", SUBSCRIPTION)])
    return {
        "group_id": group, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000,
        "member_id": member, "group_instance_id": None, "protocol_type": "consumer",
        "protocols": [_Protocol(name=name, metadata=data) for name, data in protocols],
    } | changes  # fmt: skip


def sync(
    peer: Peer, label: str, version: int, group: str, generation: int, member: str,
    assignments: Any = (), instance: str | None = None,
) -> Any:  # fmt: skip
    return peer.ask(
        label, SyncGroupRequest, version,
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance,
        assignments=[_Assignment(member_id=name, assignment=data) for name, data in assignments],
    )  # fmt: skip


def beat(peer: Peer, label: str, version: int, group: str, generation: int, member: str) -> None:
    peer.ask(
        label, HeartbeatRequest, version,
        group_id=group, generation_id=generation, member_id=member, group_instance_id=None,
    )  # fmt: skip


def commit(
    peer: Peer, label: str, version: int, group: str, offsets: list[tuple[str, int, int, str | None]],
    generation: int = -1, member: str = "",
) -> None:  # fmt: skip
    part = _Committed.OffsetCommitRequestPartition
    topics = [
        _Committed(
            name=topic,
            partitions=[
                part(
                    partition_index=index, committed_offset=offset, committed_metadata=text,
                    committed_leader_epoch=-1, commit_timestamp=-1,
                )
            ],
        )
        for topic, index, offset, text in offsets
    ]  # fmt: skip
    peer.ask(
        label, OffsetCommitRequest, version,
        group_id=group, generation_id_or_member_epoch=generation, member_id=member,
        group_instance_id=None, retention_time_ms=-1, topics=topics,
    )  # fmt: skip


def fetched(peer: Peer, label: str, version: int, group: str, topics: Any) -> None:
    asked = None
    if topics is not None:
        asked = [_Asked(name=name, partition_indexes=indexes) for name, indexes in topics]
    peer.ask(label, OffsetFetchRequest, version, group_id=group, topics=asked)


def warm_up(peer: Peer) -> None:
    """Kafka makes the topics of committed offsets and of transactions when a coordinator is first
    asked for.

    It has no producer ids at first either.
    """

    def coordinates() -> bool:
        peer.quietly(FindCoordinatorRequest, 0, key="group")
        fields = {"generation_id": 1, "member_id": "x", "group_instance_id": None}
        codes = {
            peer.quietly(HeartbeatRequest, 0, group_id=f"warm-{number}", **fields).error_code
            for number in range(200)
        }
        peer.quietly(FindCoordinatorRequest, 1, key="transactional", key_type=1)
        for number in range(200):
            fields = {"transactional_id": f"warm-{number}", "transaction_timeout_ms": 1_000}
            codes.add(25 + peer.quietly(InitProducerIdRequest, 0, **fields).error_code)
        return codes == {25}

    peer.eventually(coordinates, "a coordinator")


def one_member(peer: Peer) -> None:
    """A member joins, works and leaves, by each version."""
    topic = make_topic(peer, "joined")
    for version in peer.versions(JoinGroupRequest)[:6]:
        group = peer.topic(f"one{version}")
        rest = min(version, 3)
        answer = peer.ask("joins", JoinGroupRequest, version, **join_fields(group))
        member = answer.member_id if answer is not None else ""
        if version >= 4:
            fields = join_fields(group, member)
            answer = peer.ask("joins with its id", JoinGroupRequest, version, **fields)
        beat(peer, "beats before sync", rest, group, 1, member)
        commit(peer, "commits before sync", rest + 2, group, [(topic, 0, 5, "m")], 1, member)
        sync(peer, "syncs", rest, group, 1, member, [(member, b"all")])
        beat(peer, "beats", rest, group, 1, member)
        beat(peer, "beats in generation 0", rest, group, 0, member)
        beat(peer, "beats in generation 9", rest, group, 9, member)
        beat(peer, "another beats", rest, group, 1, "other-member")
        commit(peer, "commits", rest + 2, group, [(topic, 0, 5, "m")], 1, member)
        commit(peer, "in generation 9", rest + 2, group, [(topic, 0, 5, "m")], 9, member)
        commit(peer, "without generation", rest + 2, group, [(topic, 0, 5, "m")])
        commit(peer, "another", rest + 2, group, [(topic, 0, 5, "m")], 1, "other-member")
        sync(peer, "syncs again", rest, group, 1, member)
        sync(peer, "syncs in generation 9", rest, group, 9, member)
        sync(peer, "another syncs", rest, group, 1, "other-member")
        describe(peer, "stable", group)
        deleted(peer, "is deleted while used", group)
        fields = join_fields(group, member)
        peer.ask("the leader joins again", JoinGroupRequest, version, **fields)
        beat(peer, "beats after it", rest, group, 1, member)
        sync(peer, "syncs then", rest, group, 2, member, [(member, b"more")])
        leave(peer, "leaves", rest, group, member)
        leave(peer, "leaves again", rest, group, member)
        describe(peer, "empty", group)
        fetched(peer, "its offsets", min(version + 1, 5), group, [(topic, [0, 1])])
        deleted(peer, "is deleted", group)
        deleted(peer, "is deleted again", group)


def leave(peer: Peer, label: str, version: int, group: str, member: str) -> None:
    fields: dict[str, Any] = {"group_id": group, "member_id": member}
    fields["members"] = [_Leaving(member_id=member, group_instance_id=None)]
    peer.ask(label, LeaveGroupRequest, version, **fields)


def describe(peer: Peer, label: str, *groups: str) -> None:
    for version in (0, 4):
        peer.ask(
            f"describe, {label}", DescribeGroupsRequest, version,
            groups=list(groups), include_authorized_operations=False,
        )  # fmt: skip


def deleted(peer: Peer, label: str, *groups: str) -> None:
    peer.ask(label, DeleteGroupsRequest, 1, groups_names=list(groups))


def odd_members(peer: Peer) -> None:
    """Joins that are refused, and static members."""
    for version in peer.versions(JoinGroupRequest)[:6]:
        group = peer.topic(f"odd{version}")
        for label, fields in {
            "no group": join_fields(""),
            "session of 1 ms": join_fields(group, session_timeout_ms=1),
            "session of a day": join_fields(group, session_timeout_ms=86_400_000),
            "unknown member": join_fields(group, "other-member"),
            "no protocols": join_fields(group, protocols=[]),
            "no protocol type": join_fields(group, protocol_type=""),
            "negative rebalance timeout": join_fields(group, rebalance_timeout_ms=-5),
        }.items():
            if version >= 4 and label == "negative rebalance timeout":
                continue
            peer.ask(label, JoinGroupRequest, version, peer.connect(), **fields)
        beat(peer, "beats in no group", min(version, 3), peer.topic("none"), 1, "x")
        beat(peer, "beats in group ''", min(version, 3), "", 1, "x")
        sync(peer, "syncs in no group", min(version, 3), peer.topic("none"), 1, "x")
        leave(peer, "leaves no group", min(version, 3), peer.topic("none"), "x")
    group = peer.topic("static")
    fields = join_fields(group, group_instance_id="one")
    first = peer.ask("static joins", JoinGroupRequest, 5, **fields)
    if first is None:
        return
    sync(peer, "static syncs", 3, group, 1, first.member_id, [(first.member_id, b"a")], "one")
    second = peer.ask("static joins anew", JoinGroupRequest, 5, **fields)
    sync(peer, "static syncs anew", 3, group, 1, second.member_id, (), "one")
    sync(peer, "the replaced one syncs", 3, group, 1, first.member_id, (), "one")
    fields = join_fields(group, first.member_id, group_instance_id="one")
    peer.ask("the replaced one joins", JoinGroupRequest, 5, **fields)
    describe(peer, "static", group)
    peer.ask(
        "static is removed", LeaveGroupRequest, 3,
        group_id=group, members=[_Leaving(member_id="", group_instance_id="one")],
    )  # fmt: skip


def two_members(peer: Peer) -> None:
    """Two members that agree on a protocol; one leaves."""
    group = peer.topic("two")
    if 2 not in peer.versions(JoinGroupRequest):
        return
    ours, theirs = peer.connect(), peer.connect()
    both = [("range", SUBSCRIPTION), ("roundrobin", SUBSCRIPTION)]
    fields = join_fields(group, protocols=both)
    first = peer.ask("first joins", JoinGroupRequest, 2, ours, **fields)
    sync(peer, "first syncs", 1, group, 1, first.member_id, [(first.member_id, b"all")])
    theirs.send(JoinGroupRequest, 2, **join_fields(group, protocols=[("roundrobin", SUBSCRIPTION)]))
    peer.eventually(lambda: _rebalances(peer, group, first.member_id), "a rebalance")
    beat(peer, "first beats", 1, group, 1, first.member_id)
    sync(peer, "first syncs meanwhile", 1, group, 1, first.member_id)
    describe(peer, "preparing", group)
    fields = join_fields(group, first.member_id, protocols=both)
    again = peer.ask("first joins again", JoinGroupRequest, 2, ours, **fields)
    second = _receive(peer, "second joined", theirs)
    sync(
        peer, "the leader syncs", 1, group, again.generation_id, first.member_id,
        [(first.member_id, b"a"), (second.member_id, b"b")],
    )  # fmt: skip
    sync(peer, "the other syncs", 1, group, again.generation_id, second.member_id)
    for member in (first.member_id, second.member_id):
        beat(peer, "beats", 1, group, again.generation_id, member)
    describe(peer, "both", group)
    fields = join_fields(group, protocols=[("sticky", SUBSCRIPTION)])
    peer.ask("a third with another protocol", JoinGroupRequest, 2, peer.connect(), **fields)
    fields = join_fields(group, protocol_type="connect")
    peer.ask("a third of another type", JoinGroupRequest, 2, peer.connect(), **fields)
    leave(peer, "second leaves", 1, group, second.member_id)
    beat(peer, "first beats then", 1, group, again.generation_id, first.member_id)


def _rebalances(peer: Peer, group: str, member: str) -> bool:
    answer = peer.quietly(
        HeartbeatRequest, 1,
        group_id=group, generation_id=1, member_id=member, group_instance_id=None,
    )  # fmt: skip
    return bool(answer.error_code == 27)


def _receive(peer: Peer, label: str, connection: RawKafka) -> Any:
    _, answer = connection.receive(JoinGroupRequest, 2)
    peer.record(label, answer.to_dict())
    return answer


def offsets(peer: Peer) -> None:
    """Committed offsets without members."""
    topic = make_topic(peer, "committed", partitions=2)
    for version in peer.versions(OffsetCommitRequest)[:8]:
        group = peer.topic(f"plain{version}")
        for label, part in {
            "good": (topic, 0, 5, "text"), "null metadata": (topic, 1, 6, None),
            "beyond the end": (topic, 1, 10**9, ""), "negative": (topic, 1, -5, ""),
            "partition 9": (topic, 9, 1, ""), "partition -1": (topic, -1, 1, ""),
            "missing topic": (peer.topic("nothing"), 0, 1, ""), "illegal topic": ("a/b", 0, 1, ""),
            "long metadata": (topic, 0, 7, "m" * 4_097), "4096 of it": (topic, 0, 8, "m" * 4_096),
        }.items():  # fmt: skip
            commit(peer, label, version, group, [part])
        commit(peer, "one good, one bad", version, group, [(topic, 0, 9, ""), (topic, 9, 9, "")])
        commit(peer, "nothing", version, group, [])
        commit(peer, "no group", version, "", [(topic, 0, 5, "")])
        commit(
            peer,
            "generation 3",
            version,
            peer.topic(f"new{version}"),
            [(topic, 0, 5, "")],
            3,
            "a-b",
        )
        commit(peer, "generation 3, known group", version, group, [(topic, 0, 5, "")], 3, "a-b")
    group = peer.topic("plain2")
    for version in peer.versions(OffsetFetchRequest)[:6]:
        fetched(peer, "some", version, group, [(topic, [0, 1, 7])])
        fetched(peer, "no topics", version, group, [])
        fetched(peer, "no group", version, "", [(topic, [0])])
        fetched(peer, "unknown group", version, peer.topic("none"), [(topic, [0])])
        fetched(peer, "missing topic", version, group, [(peer.topic("nothing"), [0])])
        if version >= 2:
            fetched(peer, "all", version, group, None)
            fetched(peer, "all of an unknown group", version, peer.topic("none"), None)
    _forget(peer, topic, group)
    describe(peer, "offsets only", group)
    describe(peer, "unknown", peer.topic("none"), "")
    deleted(peer, "two, one unknown", peer.topic("none"), group, "")
    for version in peer.versions(ListGroupsRequest)[:3]:
        answer = peer.quietly(ListGroupsRequest, version)
        names = sorted(each.group_id for each in answer.groups)
        ours = [name for name in names if name.startswith("plain") and name.endswith(peer.run)]
        peer.record(f"groups with offsets (v{version})", ours)


def _forget(peer: Peer, topic: str, group: str) -> None:
    """OffsetDelete."""
    part = _Forgotten.OffsetDeleteRequestPartition
    for label, name, asked, indexes in (
        ("offsets of a partition", group, topic, [1]), ("again", group, topic, [1]),
        ("of a missing partition", group, topic, [7]),
        ("of a missing topic", group, peer.topic("nothing"), [0]),
        ("of an unknown group", peer.topic("none"), topic, [0]), ("of no group", "", topic, [0]),
    ):  # fmt: skip
        topics = [_Forgotten(name=asked, partitions=[part(partition_index=i) for i in indexes])]
        peer.ask(f"forget {label}", OffsetDeleteRequest, 0, group_id=name, topics=topics)
    fetched(peer, "after it", 2, group, None)


GROUP_SCENARIOS = {
    "one-member": one_member,
    "odd-members": odd_members,
    "two-members": two_members,
    "committed-offsets": offsets,
}
