"""The request of each kind that costs a broker most, for tests and measurements.

    case = worst_cases("t", 80_000)[32]
    client.call(case.request, case.version, **case.fields)

A case names the same topic or group again and again, or different ones that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pulsemark.kafka import importing_kafka

with importing_kafka():
    from kafka.protocol import admin, consumer, metadata, producer

    from pulsemark.kafka import messages

__all__ = ["WorstCase", "worst_cases"]

TOPIC_KIND, GROUP = 2, "worst"
_Owned = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
PLACE = {"partition": 0, "current_leader_epoch": -1}
MEMBER = {"group_id": GROUP, "member_id": "", "group_instance_id": None}


@dataclass(frozen=True, slots=True)
class WorstCase:
    """A request that names very many things."""

    request: Any
    version: int
    fields: dict[str, Any]
    #: Whether each thing is answered once, however often it is named.
    is_once: bool = True
    #: Whether things are looked up in turns; others only cost their decoding.
    takes_turns: bool = True


def worst_cases(topic: str, count: int, *, repeated: bool = True) -> dict[int, WorstCase]:
    """The worst request of each kind that names something `count` times, by its key."""
    names = [topic if repeated else f"{topic}-{number}" for number in range(count)]
    makers = (
        _of_records, _of_places, _of_offsets, _of_groups, _of_members, _of_topics, _of_settings,
        _of_brokers, _of_transactions,
    )  # fmt: skip
    return {case.request.API_KEY: case for make in makers for case in make(names)}


def _listed(kind: Any, names: list[str], inner: str, **fields: Any) -> list[Any]:
    """For each name a topic with one partition."""
    part = next(each for each in vars(kind).values() if isinstance(each, type))
    return [kind(name=name, **{inner: [part(**fields)]}) for name in names]


def _each(make: Callable[..., Any], names: list[str], **fields: Any) -> list[Any]:
    return [make(name=name, **fields) for name in names]


def _of_records(names: list[str]) -> list[WorstCase]:
    produced, fetched = producer.ProduceRequest.TopicProduceData, consumer.FetchRequest.FetchTopic
    fetch = {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip
    return [
        WorstCase(
            producer.ProduceRequest, 7,
            {"transactional_id": None, "acks": -1, "timeout_ms": 1, "topic_data": [
                produced(name=name, partition_data=[
                    produced.PartitionProduceData(index=0, records=None)]) for name in names]},
            is_once=False,
        ),
        WorstCase(
            consumer.FetchRequest, 11,
            fetch | {"topics": [
                fetched(topic=name, partitions=[fetched.FetchPartition(
                    **PLACE, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1)])
                for name in names]},
        ),
    ]  # fmt: skip


def _of_places(names: list[str]) -> list[WorstCase]:
    asked = consumer.ListOffsetsRequest.ListOffsetsTopic
    epochs = consumer.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    deleted = admin.DeleteRecordsRequest.DeleteRecordsTopic
    return [
        WorstCase(
            consumer.ListOffsetsRequest, 0,
            {"replica_id": -1, "topics": [
                asked(name=name, partitions=[asked.ListOffsetsPartition(
                    partition_index=0, timestamp=-1, max_num_offsets=1_000)]) for name in names]},
        ),
        WorstCase(
            consumer.OffsetForLeaderEpochRequest, 3,
            {"replica_id": -1, "topics": [
                epochs(topic=name, partitions=[
                    epochs.OffsetForLeaderPartition(**PLACE, leader_epoch=0)]) for name in names]},
        ),
        WorstCase(
            admin.DeleteRecordsRequest, 1,
            {"timeout_ms": 1, "topics": _listed(
                deleted, names, "partitions", partition_index=0, offset=0)},
        ),
    ]  # fmt: skip


def _of_offsets(names: list[str]) -> list[WorstCase]:
    committed = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
    asked = consumer.OffsetFetchRequest.OffsetFetchRequestTopic
    forgotten = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
    return [
        WorstCase(
            consumer.OffsetCommitRequest, 7,
            MEMBER | {"generation_id_or_member_epoch": -1, "topics": _listed(
                committed, names, "partitions", partition_index=0, committed_offset=1,
                committed_leader_epoch=-1, committed_metadata="")},
        ),
        WorstCase(
            consumer.OffsetFetchRequest, 5,
            {"group_id": GROUP, "topics": _each(asked, names, partition_indexes=[0])},
        ),
        WorstCase(
            consumer.OffsetDeleteRequest, 0,
            {"group_id": GROUP, "topics": _listed(
                forgotten, names, "partitions", partition_index=0)},
        ),
    ]  # fmt: skip


def _of_members(names: list[str]) -> list[WorstCase]:
    protocols = consumer.JoinGroupRequest.JoinGroupRequestProtocol
    left = consumer.LeaveGroupRequest.MemberIdentity
    assigned = consumer.SyncGroupRequest.SyncGroupRequestAssignment
    return [
        WorstCase(
            consumer.JoinGroupRequest, 5,
            MEMBER | {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 1_000,
                      "protocol_type": "consumer", "protocols": _each(
                          protocols, names, metadata=b"")},
            takes_turns=False,
        ),
        WorstCase(
            consumer.LeaveGroupRequest, 3,
            {"group_id": GROUP, "members": [
                left(member_id=name, group_instance_id=None) for name in names]},
            is_once=False,
        ),
        WorstCase(
            consumer.SyncGroupRequest, 3,
            MEMBER | {"generation_id": 1, "assignments": [
                assigned(member_id=name, assignment=b"") for name in names]},
            takes_turns=False,
        ),
    ]  # fmt: skip


def _of_groups(names: list[str]) -> list[WorstCase]:
    return [
        WorstCase(admin.DescribeGroupsRequest, 4, {
            "groups": names, "include_authorized_operations": False}),
        WorstCase(admin.ListGroupsRequest, 5, {"states_filter": names, "types_filter": names}),
        WorstCase(admin.DeleteGroupsRequest, 1, {"groups_names": names}),
        WorstCase(messages.ConsumerGroupDescribeRequest, 1, {
            "group_ids": names, "include_authorized_operations": False}),
        WorstCase(
            messages.ConsumerGroupHeartbeatRequest, 1,
            {"group_id": GROUP, "member_id": "m", "member_epoch": 1, "instance_id": None,
             "rack_id": None, "rebalance_timeout_ms": 1, "subscribed_topic_names": names,
             "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [
                 _Owned(topic_id=UUID(int=1), partitions=[0]) for _ in names]},
        ),
    ]  # fmt: skip


def _of_topics(names: list[str]) -> list[WorstCase]:
    topics = metadata.MetadataRequest.MetadataRequestTopic
    return [
        WorstCase(
            metadata.MetadataRequest, 8,
            {"topics": _each(topics, names), "allow_auto_topic_creation": False,
             "include_cluster_authorized_operations": False,
             "include_topic_authorized_operations": False},
        ),
        WorstCase(
            admin.CreateTopicsRequest, 4,
            {"timeout_ms": 1, "validate_only": True, "topics": _each(
                admin.CreateTopicsRequest.CreatableTopic, names, num_partitions=0,
                replication_factor=1, assignments=[], configs=[])},
        ),
        WorstCase(admin.DeleteTopicsRequest, 3, {
            "topic_names": [f"{name}-none" for name in names], "timeout_ms": 1}),
        WorstCase(
            admin.CreatePartitionsRequest, 1,
            {"timeout_ms": 1, "validate_only": True, "topics": _each(
                admin.CreatePartitionsRequest.CreatePartitionsTopic, names, count=0,
                assignments=None)},
        ),
    ]  # fmt: skip


def _of_settings(names: list[str]) -> list[WorstCase]:
    described = admin.DescribeConfigsRequest.DescribeConfigsResource
    altered = admin.AlterConfigsRequest.AlterConfigsResource
    changed = admin.IncrementalAlterConfigsRequest.AlterConfigsResource
    resource = {"resource_type": TOPIC_KIND}
    return [
        WorstCase(
            admin.DescribeConfigsRequest, 3,
            {"include_synonyms": True, "include_documentation": True, "resources": [
                described(**resource, resource_name=name, configuration_keys=None)
                for name in names]},
        ),
        WorstCase(
            admin.AlterConfigsRequest, 1,
            {"validate_only": True, "resources": [
                altered(**resource, resource_name=name, configs=[]) for name in names]},
        ),
        WorstCase(
            admin.IncrementalAlterConfigsRequest, 0,
            {"validate_only": True, "resources": [
                changed(**resource, resource_name=name, configs=[]) for name in names]},
        ),
    ]  # fmt: skip


def _of_brokers(names: list[str]) -> list[WorstCase]:
    folder = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    moved = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
    sized = admin.DescribeLogDirsRequest.DescribableLogDirTopic
    elected = admin.ElectLeadersRequest.TopicPartitions
    return [
        WorstCase(
            admin.AlterReplicaLogDirsRequest, 1,
            {"dirs": [folder(path="/none", topics=[
                folder.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in names])]},
        ),
        WorstCase(admin.DescribeLogDirsRequest, 1, {
            "topics": [sized(topic=name, partitions=[0]) for name in names]}),
        WorstCase(
            admin.ElectLeadersRequest, 1,
            {"election_type": 0, "timeout_ms": 1, "topic_partitions": [
                elected(topic=name, partitions=[0]) for name in names]},
        ),
        WorstCase(
            admin.AlterPartitionReassignmentsRequest, 0,
            {"timeout_ms": 1, "topics": _listed(
                moved, names, "partitions", partition_index=0, replicas=None)},
        ),
    ]  # fmt: skip


def _of_transactions(names: list[str]) -> list[WorstCase]:
    added = producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    committed = producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    return [
        WorstCase(
            producer.AddPartitionsToTxnRequest, 3,
            {"v3_and_below_transactional_id": "t", "v3_and_below_producer_id": 1,
             "v3_and_below_producer_epoch": 0, "v3_and_below_topics": [
                 added(name=name, partitions=[0]) for name in names]},
        ),
        WorstCase(
            producer.TxnOffsetCommitRequest, 3,
            MEMBER | {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0,
                      "generation_id": -1, "topics": _listed(
                          committed, names, "partitions", partition_index=0, committed_offset=1,
                          committed_leader_epoch=-1, committed_metadata="")},
        ),
        WorstCase(admin.DescribeTransactionsRequest, 0, {"transactional_ids": names}),
        WorstCase(admin.ListTransactionsRequest, 1, {
            "state_filters": names, "producer_id_filters": [], "duration_filter": -1}),
    ]  # fmt: skip
