"""Groups over the protocol: members, offsets, and what administrators ask."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteTopicsRequest,
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
from kafka.protocol.metadata import MetadataRequest

from pulsemark.broker.kafka import endpoint
from pulsemark.broker.kafka.handlers import grouping
from pulsemark.kafka.messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from pulsemark.ledger import MemoryFolder
from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from ..conftest import create, record_set


def joined(client, group, version, member_id="", instance_id=None):
    """A JoinGroup's answer."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")
    return client.call(
        JoinGroupRequest,
        version,
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[protocol],
    )


def member_of(client, group, version=5):
    """Join and assign, alone; the member's id and generation."""
    answer = joined(client, group, version)
    if answer.error_code == 79:
        answer = joined(client, group, version, answer.member_id)
    assert answer.error_code == 0
    part = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=answer.member_id, assignment=b"all"
    )
    synced = client.call(
        SyncGroupRequest,
        min(version, 3),
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        group_instance_id=None,
        assignments=[part],
    )
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return answer.member_id, answer.generation_id


def committed(client, group, topic, offset, version=7, member=("", -1), partition=0, text=""):
    """The code of an OffsetCommit."""
    of = OffsetCommitRequest.OffsetCommitRequestTopic
    part = of.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=-1,
        commit_timestamp=-1,
        committed_metadata=text,
    )
    answer = client.call(
        OffsetCommitRequest,
        version,
        group_id=group,
        generation_id_or_member_epoch=member[1],
        member_id=member[0],
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[of(name=topic, partitions=[part])],
    )
    return answer.topics[0].partitions[0].error_code


def fetched(client, group, topics, version=5):
    """Offset and text by topic and partition."""
    of = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = None
    if topics is not None:
        asked = [of(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()]
    answer = client.call(OffsetFetchRequest, version, group_id=group, topics=asked)
    return {
        (topic.name, part.partition_index): (part.committed_offset, part.metadata)
        for topic in answer.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", range(6))
def test_a_member_joins_beats_and_leaves_in_every_version(raw, topic, version):
    """From version 4 on it first gets its id."""
    member_id, generation = member_of(raw, topic, version)
    beat = {"group_id": topic, "generation_id": generation, "member_id": member_id}
    lower = min(version, 3)
    assert raw.call(HeartbeatRequest, lower, **beat).error_code == 0
    assert raw.call(HeartbeatRequest, lower, **beat | {"generation_id": 9}).error_code == 22
    if lower < 3:
        left = raw.call(LeaveGroupRequest, lower, group_id=topic, member_id=member_id)
        assert left.error_code == 0
    else:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None)
        left = raw.call(LeaveGroupRequest, 3, group_id=topic, members=[leaving])
        assert [each.error_code for each in left.members] == [0]
    assert raw.call(HeartbeatRequest, lower, **beat).error_code == 25


@pytest.mark.parametrize("version", range(8))
def test_offsets_are_committed_in_every_version(raw, made, version):
    """By a client without a group, and by a member of the generation."""
    raw.produce(made, record_set([b"x"]))
    assert committed(raw, made, made, 1, version, text="note") == 0
    assert fetched(raw, made, {made: [0, 1]}, min(version, 5)) == {
        (made, 0): (1, "note"),
        (made, 1): (-1, ""),
    }
    member = member_of(raw, f"{made}g")
    if version >= 1:
        assert committed(raw, f"{made}g", made, 5, version, member) == 0
        assert committed(raw, f"{made}g", made, 6, version, (member[0], 9)) == 22
        assert committed(raw, f"{made}g", made, 6, version, ("other", 1)) == 25
        assert fetched(raw, f"{made}g", {made: [0]}) == {(made, 0): (5, "")}


def test_what_cannot_be_committed(raw, made):
    """Unknown partitions, texts that are too long."""
    assert committed(raw, "g1", made, 1, partition=4) == 3
    assert committed(raw, "g1", "none", 1) == 3
    assert committed(raw, "g1", made, 1, text="x" * 4_097) == 12
    assert fetched(raw, "g1", None) == {}


def test_all_offsets_of_a_group_and_none_of_a_deleted_topic(raw, made, topic):
    """Without a list of topics a group gets everything it has committed."""
    group = f"all-{topic}"
    committed(raw, group, made, 3)
    assert fetched(raw, group, None) == {(made, 0): (3, "")}
    raw.call(DeleteTopicsRequest, 1, topic_names=[made], timeout_ms=1)
    committed(raw, "other", made, 1)
    assert fetched(raw, group, None) == {}


def test_a_group_that_rebalances_shows_no_assignment(raw, kafka_broker, topic):
    """The last one is over as soon as another member has come; its metadata is not chosen yet."""
    member_of(raw, topic, 2)
    with RawKafka.from_url(kafka_broker.kafka_url) as other:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")
        other.send(
            JoinGroupRequest,
            2,
            group_id=topic,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        for _ in range(200):
            found = raw.call(DescribeGroupsRequest, 4, groups=[topic]).groups[0]
            if found.group_state == "PreparingRebalance":
                break
            time.sleep(0.05)
    assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
    assert len(found.members) == 2
    assert {(each.member_metadata, each.member_assignment) for each in found.members} == {
        (b"", b"")
    }


def test_a_group_with_offsets_alone_has_no_members(raw, made, topic):
    """A commit of a member gets 25; of a group that is not known at all 22."""
    assert committed(raw, f"alone-{topic}", made, 1) == 0
    assert committed(raw, f"alone-{topic}", made, 1, member=("m", 3)) == 25
    assert committed(raw, f"nothing-{topic}", made, 1, member=("m", 3)) == 22


def forgotten(client, group, *partitions):
    """The codes of an OffsetDelete: of the group, and of each partition."""
    of = OffsetDeleteRequest.OffsetDeleteRequestTopic
    asked = [
        of(name=topic, partitions=[of.OffsetDeleteRequestPartition(partition_index=index)])
        for topic, index in partitions
    ]
    answer = client.call(OffsetDeleteRequest, 0, group_id=group, topics=asked)
    found = [part.error_code for each in answer.topics for part in each.partitions]
    return answer.error_code, found


def test_single_offsets_of_a_group_are_removed(raw, made):
    """The others stay; unknown groups and partitions have an error."""
    group, other = f"some-{made}", f"{made}-b"
    raw.call(MetadataRequest, 1, topics=[MetadataRequest.MetadataRequestTopic(name=other)])
    assert committed(raw, group, made, 3) == 0
    assert committed(raw, group, other, 4) == 0
    assert forgotten(raw, group, (made, 7), ("none", 0)) == (0, [3, 3])
    assert forgotten(raw, group, (made, 0)) == (0, [0])
    assert fetched(raw, group, None) == {(other, 0): (4, "")}
    assert forgotten(raw, f"none-{made}", (made, 0)) == (69, [])
    assert forgotten(raw, "", (made, 0)) == (24, [])


def test_offsets_of_a_topic_that_members_read_stay(raw, made):
    """Code 86, also for a member whose subscription cannot be read."""
    group = f"reads-{made}"
    member = member_of(raw, group)
    assert committed(raw, group, made, 1, member=member) == 0
    assert forgotten(raw, group, (made, 0)) == (0, [86])
    assert fetched(raw, group, None) == {(made, 0): (1, "")}
    raw.call(LeaveGroupRequest, 0, group_id=group, member_id=member[0])
    assert forgotten(raw, group, (made, 0)) == (0, [0])


def test_a_member_leaves_though_its_connection_is_lost_at_once(kafka_broker, raw, topic):
    """In the turn of the loop in which its request is taken: clients leave as they close."""
    member_id, generation = member_of(raw, topic)
    before = set(kafka_broker.broker.services.kafka_sessions)
    with RawKafka.from_url(kafka_broker.kafka_url) as client:
        client.call(MetadataRequest, 1, topics=[])
        (session,) = set(kafka_broker.broker.services.kafka_sessions) - before
        take = session.connection.take

        def take_and_lose():
            request = take()
            if request is not None:
                asyncio.get_running_loop().call_soon(session.abort)
            return request

        session.connection.take = take_and_lose
        client.send(LeaveGroupRequest, 2, group_id=topic, member_id=member_id)
        until_s = time.monotonic() + 5
        fields = {"group_id": topic, "generation_id": generation, "member_id": member_id}
        while raw.call(HeartbeatRequest, 2, **fields).error_code != 25:
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_a_broker_that_closes_stores_what_goes_on_without_its_client(monkeypatch):
    """A commit whose client has gone just before."""
    begun, checked, folder = threading.Event(), grouping.checked_offsets, MemoryFolder()

    async def slow(session, request, **since):
        begun.set()
        await asyncio.sleep(0.3)
        return await checked(session, request, **since)

    settings: Any = {"storage": "memory", "memory": folder, "kafka_port": 0, "http_port": None}
    with running_broker(**settings) as broker:
        with RawKafka.from_url(broker.kafka_url) as client:
            assert create(client, "t") == 0
            with monkeypatch.context() as patched:
                patched.setattr(grouping, "checked_offsets", slow)
                of = OffsetCommitRequest.OffsetCommitRequestTopic
                part = of.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=7, committed_metadata=""
                )
                client.send(
                    OffsetCommitRequest, 2, group_id="g", generation_id_or_member_epoch=-1,
                    member_id="", retention_time_ms=-1, topics=[of(name="t", partitions=[part])],
                )  # fmt: skip
                assert begun.wait(30)
        until_s = time.monotonic() + 30
        while broker.broker.services.kafka_sessions:
            assert time.monotonic() < until_s
            time.sleep(0.001)
    with running_broker(**settings) as broker, RawKafka.from_url(broker.kafka_url) as client:
        assert fetched(client, "g", {"t": [0]}) == {("t", 0): (7, "")}


def test_a_group_is_large_only_for_what_describes_it(raw, topic, monkeypatch):
    """Groups of both protocols are described by a request each; the other one says that of it."""
    classic, consumer = f"{topic}-1", f"{topic}-2"
    member_of(raw, classic)
    beat = raw.call(
        ConsumerGroupHeartbeatRequest, 1, group_id=consumer, member_id="m", member_epoch=0,
        rebalance_timeout_ms=1_000, subscribed_topic_names=[topic], topic_partitions=[],
    )  # fmt: skip
    assert beat.error_code == 0
    monkeypatch.setattr(endpoint, "MAX_ANSWER_BYTES", 500)
    found = raw.call(DescribeGroupsRequest, 4, groups=[consumer]).groups[0]
    assert (found.error_code, found.group_state) == (0, "Dead")
    found = raw.call(ConsumerGroupDescribeRequest, 0, group_ids=[classic]).groups[0]
    assert found.error_code == 69


def test_administrators_see_and_delete_groups(raw, made):
    """State, members and assignments; a group with members cannot be deleted, one without can."""
    group = f"adm-{made}"
    member = member_of(raw, group)
    committed(raw, group, made, 1, member=member)
    found = raw.call(DescribeGroupsRequest, 4, groups=[group, "none"]).groups
    assert [(each.group_state, each.protocol_type) for each in found] == [
        ("Stable", "consumer"),
        ("Dead", ""),
    ]
    described = found[0].members[0]
    assert (described.member_id, described.client_id) == (member[0], "pulsemark")
    assert (described.member_metadata, described.member_assignment) == (b"meta", b"all")
    listed = raw.call(ListGroupsRequest, 2).groups
    assert (group, "consumer") in [(each.group_id, each.protocol_type) for each in listed]

    def deleted(*names):
        answer = raw.call(DeleteGroupsRequest, 1, groups_names=list(names))
        return [each.error_code for each in answer.results]

    assert deleted(group, "none") == [68, 69]
    raw.call(LeaveGroupRequest, 0, group_id=group, member_id=member[0])
    found = raw.call(DescribeGroupsRequest, 0, groups=[group]).groups
    assert found[0].group_state == "Empty"
    assert deleted(group) == [0]
    assert deleted(group) == [69]
    assert fetched(raw, group, None) == {}
