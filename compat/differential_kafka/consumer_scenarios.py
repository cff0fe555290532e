"""The consumer protocol (KIP-848): heartbeats, assignments, fencing, offsets of members."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import JoinGroupRequest, OffsetFetchRequest

from pulsemark.kafka.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)

from .admin_scenarios import make_topic
from .group_scenarios import commit, deleted, describe, join_fields
from .peers import Peer
from .transaction_scenarios import Producer

_Owned = ConsumerGroupHeartbeatRequest.TopicPartitions
_Group = OffsetFetchRequest.OffsetFetchRequestGroup
_Fetched = _Group.OffsetFetchRequestTopics
SAYS_NOTHING = {
    "instance_id": None, "rack_id": None, "rebalance_timeout_ms": -1,
    "subscribed_topic_names": None, "subscribed_topic_regex": None, "server_assignor": None,
    "topic_partitions": None,
}  # fmt: skip


def beat(
    peer: Peer, label: str, version: int, group: str, member: str, epoch: int, **says: Any
) -> Any:
    """ConsumerGroupHeartbeat."""
    fields = {"group_id": group, "member_id": member, "member_epoch": epoch, **SAYS_NOTHING}
    return peer.ask(label, ConsumerGroupHeartbeatRequest, version, **fields | says)


def joins(topics: list[str], **says: Any) -> dict[str, Any]:
    """What a member says that joins."""
    first = {"subscribed_topic_names": topics, "rebalance_timeout_ms": 60_000}
    return {**first, "topic_partitions": [], **says}


def owned(answer: Any) -> list[Any]:
    """What a member says that has taken over its assignment."""
    if answer is None or answer.assignment is None:
        return []
    return [
        _Owned(topic_id=each.topic_id, partitions=each.partitions)
        for each in answer.assignment.topic_partitions
    ]


def members(peer: Peer) -> None:
    """Two members share a topic, and are fenced; bad heartbeats; static members."""
    for version in peer.versions(ConsumerGroupHeartbeatRequest):
        topic = make_topic(peer, f"members{version}", partitions=4)
        group = peer.topic(f"members{version}")
        first = beat(
            peer, "first joins", version, group, "m1" if version else "", 0, **joins([topic])
        )
        if first is None or first.error_code:
            continue
        one, epoch = first.member_id, first.member_epoch
        shown(peer, "one member", group)
        beat(peer, "first beats", version, group, one, epoch)
        beat(peer, "first has all", version, group, one, epoch, topic_partitions=owned(first))
        says = joins([topic], topic_partitions=owned(first))
        beat(peer, "first says all", version, group, one, epoch, **says)
        for label, number in (("later", epoch + 5), ("bad", -3)):
            beat(peer, f"first, {label} epoch", version, group, one, number)
        beat(peer, "first joins again", version, group, one, 0, **says)
        _second(peer, version, group, topic, one, first)
        _bad(peer, version, group, topic)
        _offsets(peer, version, group, topic, one)
        _ends(peer, version, group, topic, one)
        _static(peer, version, topic)


def _second(peer: Peer, version: int, group: str, topic: str, one: str, first: Any) -> None:
    second = beat(
        peer, "second joins", version, group, "m2" if version else "", 0, **joins([topic])
    )
    two = second.member_id
    told = beat(peer, "first is told", version, group, one, first.member_epoch)
    shown(peer, "two members", group)
    left = owned(told)
    after = beat(
        peer, "first lets go", version, group, one, first.member_epoch, topic_partitions=left
    )
    beat(peer, "first in its new epoch", version, group, one, after.member_epoch)
    beat(peer, "first, old epoch", version, group, one, after.member_epoch - 1)
    beat(peer, "second gets its part", version, group, two, second.member_epoch)
    shown(peer, "both settled", group)
    beat(peer, "second leaves", version, group, two, -1)
    beat(peer, "second leaves again", version, group, two, -1)
    beat(peer, "second after it", version, group, two, second.member_epoch)
    again = beat(peer, "first gets all", version, group, one, after.member_epoch)
    beat(
        peer, "first has all", version, group, one, again.member_epoch,
        topic_partitions=owned(again),
    )  # fmt: skip


def _bad(peer: Peer, version: int, group: str, topic: str) -> None:
    """Heartbeats that are refused."""
    name = "mbad" if version else ""
    part = [_Owned(topic_id=None, partitions=[0])]
    for label, says in {
        "no topics": joins([topic]) | {"subscribed_topic_names": None},
        "an empty list of topics": joins([]),
        "an unknown topic": joins([peer.topic("nothing")]),
        "no rebalance timeout": joins([topic], rebalance_timeout_ms=-1),
        "a rebalance timeout of 0": joins([topic], rebalance_timeout_ms=0),
        "no partitions": joins([topic]) | {"topic_partitions": None},
        "partitions": joins([topic], topic_partitions=part),
        "an unknown assignor": joins([topic], server_assignor="nonsense"),
        "an empty assignor": joins([topic], server_assignor=""),
        "an empty instance": joins([topic], instance_id=""),
        "an empty rack": joins([topic], rack_id=""),
        "a bad regex": joins([topic], subscribed_topic_regex="(") if version else joins([topic]),
    }.items():
        other = peer.topic(f"bad{version}{label}".replace(" ", ""))
        beat(peer, f"joins with {label}", version, other, name, 0, **says)
    beat(peer, "joins no group", version, "", name, 0, **joins([topic]))
    beat(peer, "unknown member", version, group, "nobody", 3)
    beat(peer, "unknown member leaves", version, group, "nobody", -1)
    beat(peer, "in an unknown group", version, peer.topic("none"), "nobody", 3)
    beat(peer, "leaves an unknown group", version, peer.topic("none"), "nobody", -1)
    beat(peer, "without a member id", version, group, "", 3)
    beat(peer, "joins without a member id", version, peer.topic("ids"), "", 0, **joins([topic]))
    beat(peer, "leaves for now, not static", version, group, "nobody", -2)


def _offsets(peer: Peer, version: int, group: str, topic: str, one: str) -> None:
    answer = beat(peer, "first beats", version, group, one, 0, **joins([topic]))
    epoch = answer.member_epoch
    for label, number, who in (
        ("good", epoch, one), ("old", epoch - 1, one), ("later", epoch + 1, one),
        ("of another", epoch, "nobody"), ("of nobody", -1, ""), ("without epoch", -1, one),
    ):  # fmt: skip
        for request in (8, 9):
            commit(peer, f"commit, {label}", request, group, [(topic, 0, 5, "")], number, who)
        asked = _Group(
            group_id=group, member_id=who or None, member_epoch=number,
            topics=[_Fetched(name=topic, partition_indexes=[0])],
        )  # fmt: skip
        peer.ask(f"offsets, {label}", OffsetFetchRequest, 9, groups=[asked], require_stable=False)
        producer = Producer(peer, peer.topic(f"txn{version}"))
        producer.init(f"for {label}")
        producer.add_group(label, group)
        producer.commit_offsets(label, group, topic, 6, member=(number, who))
        producer.end(label, commits=False)
        producer.state(label)


def _ends(peer: Peer, version: int, group: str, topic: str, one: str) -> None:
    describe(peer, "as a classic one", group)
    deleted(peer, "is deleted while used", group)
    fields = join_fields(group)
    peer.ask("a classic member of another protocol", JoinGroupRequest, 5, **fields)
    fields = join_fields(group, protocol_type="connect")
    peer.ask("a classic member of another type", JoinGroupRequest, 5, peer.connect(), **fields)
    listed = peer.quietly(ListGroupsRequest, 5, states_filter=[], types_filter=["consumer"])
    found = [each.to_dict() for each in listed.groups if each.group_id == group]
    peer.record(f"listed (v{version})", found)
    beat(peer, "first leaves", version, group, one, -1)
    shown(peer, "left", group)
    deleted(peer, "is deleted", group)
    shown(peer, "deleted", group, peer.topic("none"), "")


def _static(peer: Peer, version: int, topic: str) -> None:
    group = peer.topic(f"static{version}")
    says = joins([topic], instance_id="i")
    beat(
        peer, "by range", version, peer.topic(f"range{version}"), "r1" if version else "", 0,
        **joins([topic], server_assignor="range"),
    )  # fmt: skip
    shown(peer, "by range", peer.topic(f"range{version}"))
    first = beat(peer, "static joins", version, group, "s1" if version else "", 0, **says)
    name = "s2" if version else ""
    beat(peer, "another of that instance", version, group, name, 0, **says)
    beat(
        peer, "it leaves for now", version, group, first.member_id, -2, instance_id="i"
    )  # fmt: skip
    shown(peer, "left for now", group)
    second = beat(peer, "its successor joins", version, group, name, 0, **says)
    beat(
        peer, "the one before beats", version, group, first.member_id, first.member_epoch,
        instance_id="i",
    )  # fmt: skip
    beat(
        peer, "of an unknown instance", version, group, second.member_id, second.member_epoch,
        instance_id="j",
    )  # fmt: skip
    beat(peer, "it leaves", version, group, second.member_id, -1, instance_id="i")
    shown(peer, "static left", group)


def shown(peer: Peer, label: str, *groups: str) -> None:
    """ConsumerGroupDescribe."""
    for version in peer.versions(ConsumerGroupDescribeRequest):
        peer.ask(
            f"describe, {label}", ConsumerGroupDescribeRequest, version,
            group_ids=list(groups), include_authorized_operations=False,
        )  # fmt: skip


CONSUMER_SCENARIOS = {"consumer-protocol": members}
