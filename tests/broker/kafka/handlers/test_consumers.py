"""The consumer protocol's requests on the wire, and those that know its members."""

from __future__ import annotations

import uuid

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from pulsemark.kafka.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_Owned = ConsumerGroupHeartbeatRequest.TopicPartitions
_Group = OffsetFetchRequest.OffsetFetchRequestGroup
_Commit = OffsetCommitRequest.OffsetCommitRequestTopic


def beat(client, group, topic, **changes):
    """A heartbeat; by default of a member that joins."""
    fields = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [topic],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return client.call(ConsumerGroupHeartbeatRequest, 1, **{**fields, **changes})


def test_a_heartbeats_bytes():
    """Those that librdkafka and Kafka 4.3.1 take: compact fields, and a struct that may be null."""
    number = uuid.UUID(int=1)
    assigned = ConsumerGroupHeartbeatResponse.Assignment
    answer = ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0, error_code=0, error_message=None, member_id="x", member_epoch=3,
        heartbeat_interval_ms=5, assignment=assigned(
            topic_partitions=[assigned.TopicPartitions(topic_id=number, partitions=[1])]),
    )  # fmt: skip
    begin = "0000000000000002780000000300000005"
    some = "0102" + number.hex + "0200000001000000"
    assert answer.encode(version=1).hex() == begin + some
    answer.assignment = None
    assert answer.encode(version=1).hex() == begin + "ff00"


def test_a_member_is_told_topics_by_their_ids(raw, made):
    """Metadata has the same id, and finds the topic by it; another id is unknown (100)."""
    answer = beat(raw, made, made)
    (part,) = answer.assignment.topic_partitions
    assert (answer.error_code, answer.member_epoch, part.partitions) == (0, 1, [0])
    asked = MetadataRequest.MetadataRequestTopic
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    for name in ("", None):
        topics = [asked(name=name, topic_id=part.topic_id), asked(name=name, topic_id=uuid.uuid4())]
        found, missing = raw.call(MetadataRequest, 12, topics=topics, **fields).topics
        assert (found.error_code, found.name, found.topic_id) == (0, made, part.topic_id)
        assert (missing.error_code, missing.name, missing.partitions) == (100, None, [])
    (named,) = raw.call(MetadataRequest, 10, topics=[asked(name=made)], **fields,
                        include_cluster_authorized_operations=False).topics  # fmt: skip
    assert named.topic_id == part.topic_id


def test_offsets_ask_for_the_members_epoch(raw, made):
    """From version 9 on; older versions cannot name it, and administrators need none."""
    group = f"g-{made}"
    beat(raw, group, made)

    def commit(version, epoch, member="m"):
        part = _Commit.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_leader_epoch=-1, committed_metadata=""
        )
        answer = raw.call(
            OffsetCommitRequest, version, group_id=group, generation_id_or_member_epoch=epoch,
            member_id=member, group_instance_id=None,
            topics=[_Commit(name=made, partitions=[part])],
        )  # fmt: skip
        return answer.topics[0].partitions[0].error_code

    codes = [commit(9, 1), commit(9, 2), commit(8, 1), commit(9, 1, "other"), commit(9, -1, "")]
    assert codes == [0, 113, 35, 25, 25]
    topics = [_Group.OffsetFetchRequestTopics(name=made, partition_indexes=[0])]
    asked = [
        _Group(group_id=group, member_id="m", member_epoch=1, topics=topics),
        _Group(group_id=f"{group}-2", member_id=None, member_epoch=-1, topics=topics),
        _Group(group_id=f"{group}-3", member_id="m", member_epoch=1, topics=None),
    ]
    first, second, third = raw.call(OffsetFetchRequest, 9, groups=asked, require_stable=True).groups
    assert first.topics[0].partitions[0].committed_offset == 7
    assert second.topics[0].partitions[0].committed_offset == -1
    assert (third.error_code, third.topics) == (0, [])
    stale = [_Group(group_id=group, member_id="m", member_epoch=0, topics=topics)]
    (refused,) = raw.call(OffsetFetchRequest, 9, groups=stale, require_stable=True).groups
    assert (refused.error_code, refused.topics) == (113, [])
    every = [_Group(group_id=group, member_id=None, member_epoch=-1, topics=None)]
    (found,) = raw.call(OffsetFetchRequest, 8, groups=every, require_stable=False).groups
    assert [topic.name for topic in found.topics] == [made]


def test_groups_are_described_and_others_are_not(raw, made):
    """What a member has, by name and id; no group is none of this protocol, and "" is no name."""
    beat(raw, made, made)
    names = [made, f"no-{made}", ""]
    asked = {"group_ids": names, "include_authorized_operations": False}
    found, *others = raw.call(ConsumerGroupDescribeRequest, 1, **asked).groups
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "uniform")
    (member,) = found.members
    (part,) = member.assignment.topic_partitions
    assert (part.topic_name, part.partitions, member.member_type) == (made, [0], 1)
    assert [each.error_code for each in others] == [69, 24]


def test_partitions_of_unknown_topics_are_not_owned(raw, made):
    """A client may have an id from before a restart: that fences nobody."""
    beat(raw, made, made)
    owned = [_Owned(topic_id=uuid.uuid4(), partitions=[0])]
    answer = beat(raw, made, made, member_epoch=1, topic_partitions=owned)
    assert (answer.error_code, answer.member_epoch) == (0, 1)


def test_the_features_are_shown(raw):
    """`group.version` 1: tools ask for it; `transaction.version` 2: clients go by it."""
    asked = {"client_software_name": "test", "client_software_version": "1"}
    answer = raw.call(ApiVersionsRequest, 3, **asked)
    assert [(each.name, each.max_version_level) for each in answer.finalized_features] == [
        ("group.version", 1),
        ("transaction.version", 2),
    ]
