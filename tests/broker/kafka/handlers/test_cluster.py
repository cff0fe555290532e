"""What tools ask of a cluster: brokers, disks, leaders, replicas; also what the broker lacks."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from kafka.protocol import admin
from kafka.protocol.consumer import OffsetCommitRequest

from pulsemark.testing import running_broker
from pulsemark.testing.raw_kafka import RawKafka

from ..conftest import create, record_set


def test_the_cluster_is_this_broker(raw, kafka_broker):
    """It is the controller, too; its controllers' port is not served."""
    fields = {"include_cluster_authorized_operations": False}
    answer = raw.call(admin.DescribeClusterRequest, 1, endpoint_type=1, **fields)
    host, port = kafka_broker.kafka_url.removeprefix("kafka://").split(":")
    assert (answer.error_code, answer.controller_id) == (0, 1)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(1, host, int(port))]
    for kind, code in ((2, 114), (9, 115)):
        refused = raw.call(admin.DescribeClusterRequest, 1, endpoint_type=kind, **fields)
        assert (refused.error_code, refused.controller_id, refused.brokers) == (code, -1, [])


def log_dirs(client, topics=None, version=4):
    """The only folder: path, sizes by topic and partition, total and usable bytes."""
    asked = topics and [
        admin.DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=each)
        for name, each in topics.items()
    ]
    answer = client.call(admin.DescribeLogDirsRequest, version, topics=asked)
    (folder,) = answer.results
    assert folder.error_code == 0
    assert all(topic.name and topic.partitions for topic in folder.topics)
    sizes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in folder.topics
        for each in topic.partitions
    }
    disk = (folder.total_bytes, folder.usable_bytes) if version >= 4 else None
    return SimpleNamespace(path=folder.log_dir, sizes=sizes, disk=disk)


@pytest.fixture
def on_disk(tmp_path):
    """A broker with a data folder, its only client, and the topic `t` with two partitions."""
    with (
        running_broker(data_dir=tmp_path / "data", kafka_port=0, http_port=None) as broker,
        RawKafka.from_url(broker.kafka_url) as client,
    ):
        create(client, "t", partitions=2)
        assert client.produce("t", record_set([b"x" * 5_000])).error_code == 0
        yield client, str(tmp_path / "data")


def test_sizes_of_partitions_are_bytes_on_the_disk(on_disk):
    """All partitions, or those that are named and exist; the newest version also names the disk."""
    client, folder = on_disk
    found = log_dirs(client)
    assert found.path == folder
    assert set(found.sizes) == {("t", 0), ("t", 1)}
    assert 5_000 < found.sizes["t", 0] < 6_000
    assert found.sizes["t", 1] == 0
    assert found.disk[0] == shutil.disk_usage(folder).total
    assert 0 < found.disk[1] <= found.disk[0]
    for version in (0, 1, 2, 3):
        assert log_dirs(client, version=version).sizes == found.sizes
    assert set(log_dirs(client, {"t": [1, 7], "absent": [0]}).sizes) == {("t", 1)}


def test_replicas_stay_where_they_are(on_disk):
    """A move to the same place is granted, any other one names what is wrong."""
    client, folder = on_disk
    make = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    for path, index, code in ((folder, 0, 0), (folder, 9, 3), ("/elsewhere", 0, 57)):
        topics = [make.AlterReplicaLogDirTopic(name="t", partitions=[index])]
        moved = client.call(
            admin.AlterReplicaLogDirsRequest, 1, dirs=[make(path=path, topics=topics)]
        )
        assert moved.results[0].partitions[0].error_code == code
    one = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
    for index, replicas, code in ((0, [1], 0), (0, [2], 39), (0, None, 85), (9, [1], 3)):
        part = one.ReassignablePartition(partition_index=index, replicas=replicas)
        answer = client.call(
            admin.AlterPartitionReassignmentsRequest, 0,
            timeout_ms=1_000, topics=[one(name="t", partitions=[part])],
        )  # fmt: skip
        assert answer.error_code == 0
        assert answer.responses[0].partitions[0].error_code == code
    listed = client.call(admin.ListPartitionReassignmentsRequest, 0, timeout_ms=1_000, topics=None)
    assert (listed.error_code, listed.topics) == (0, [])


def test_leaders_need_no_election(raw, made):
    """Kafka answers 84 for each partition that has its leader, and nothing for "all"."""
    asked = admin.ElectLeadersRequest.TopicPartitions
    for version, kind, codes in (
        (0, None, [84, 3]),
        (1, 0, [84, 3]),
        (1, 1, [84, 3]),
        (2, 0, [84, 3]),
        (2, 7, [42, 42]),
    ):
        fields = {} if kind is None else {"election_type": kind}
        answer = raw.call(
            admin.ElectLeadersRequest, version, timeout_ms=1_000,
            topic_partitions=[asked(topic=made, partitions=[0, 9])], **fields,
        )  # fmt: skip
        (topic,) = answer.replica_election_results
        assert [each.error_code for each in topic.partition_result] == codes
    everywhere = raw.call(
        admin.ElectLeadersRequest, 1, election_type=0, topic_partitions=None, timeout_ms=1_000
    )
    assert everywhere.error_code == 0
    assert made in [each.topic for each in everywhere.replica_election_results]
    assert not any(each.partition_result for each in everywhere.replica_election_results)


def test_acls_are_answered_as_by_a_kafka_without_an_authorizer(raw):
    """The answer has code 54."""
    filters = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    assert raw.call(admin.DescribeAclsRequest, 1, **filters).error_code == 54


def test_groups_are_listed_by_state_and_type(raw, made):
    """As kafka-consumer-groups --list --state and --type ask (KIP-518, KIP-848)."""
    commit(raw, "lister", made)
    for states, types, found in (
        ([], [], True), (["Empty"], ["classic"], True), (["empty"], [], True),
        (["Stable"], [], False), ([], ["consumer"], False),
    ):  # fmt: skip
        listed = raw.call(
            admin.ListGroupsRequest, 5, states_filter=states, types_filter=types
        ).groups
        mine = [(g.group_state, g.group_type) for g in listed if g.group_id == "lister"]
        assert mine == ([("Empty", "classic")] if found else [])


def commit(client, group, topic):
    """Commit an offset without a member."""
    make = OffsetCommitRequest.OffsetCommitRequestTopic
    part = make.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    answer = client.call(
        OffsetCommitRequest, 2, group_id=group, generation_id_or_member_epoch=-1, member_id="",
        retention_time_ms=-1, topics=[make(name=topic, partitions=[part])],
    )  # fmt: skip
    assert answer.topics[0].partitions[0].error_code == 0
