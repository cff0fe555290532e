"""What tools ask of a cluster: brokers, disks, leaders, replicas, ACLs, groups."""

from __future__ import annotations

from typing import Any

from kafka.protocol import admin
from kafka.protocol.consumer import ListOffsetsRequest

from .admin_scenarios import make_topic
from .peers import Peer

_Dirs = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir
_Moves = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
_Offsets = ListOffsetsRequest.ListOffsetsTopic


def cluster(peer: Peer) -> None:
    """Brokers, and where replicas are."""
    topic = make_topic(peer, "where", partitions=2)
    for version in peer.versions(admin.DescribeClusterRequest):
        for kind in (1, 2, 9) if version else (1,):
            peer.ask(
                f"cluster, endpoint type {kind}", admin.DescribeClusterRequest, version,
                include_cluster_authorized_operations=False, endpoint_type=kind,
            )  # fmt: skip
    for version in peer.versions(admin.ElectLeadersRequest):
        for kind in (0, 1, 7) if version else (0,):
            _elect(peer, version, kind, topic)
    for index, replicas in (
        (0, [1]),
        (0, [2]),
        (0, [1, 2]),
        (0, [1, 1]),
        (0, []),
        (0, None),
        (9, [1]),
    ):
        part = _Moves.ReassignablePartition(partition_index=index, replicas=replicas)
        for name in (topic, peer.topic("nothing")):
            peer.ask(
                f"replicas {replicas} of {index} of {name[:5]}",
                admin.AlterPartitionReassignmentsRequest, 0,
                timeout_ms=5_000, topics=[_Moves(name=name, partitions=[part])],
            )  # fmt: skip
    peer.ask(
        "reassignments", admin.ListPartitionReassignmentsRequest, 0, timeout_ms=5_000, topics=None
    )


def _elect(peer: Peer, version: int, kind: int, topic: str) -> None:
    asked = admin.ElectLeadersRequest.TopicPartitions
    for label, topics in (
        ("one", [asked(topic=topic, partitions=[0])]),
        ("two and a bad one", [asked(topic=topic, partitions=[0, 1, 9])]),
        ("absent", [asked(topic=peer.topic("nothing"), partitions=[0])]),
    ):
        peer.ask(
            f"elect {label}, type {kind}", admin.ElectLeadersRequest, version,
            election_type=kind, timeout_ms=5_000, topic_partitions=topics,
        )  # fmt: skip


def disks(peer: Peer) -> None:
    """DescribeLogDirs and AlterReplicaLogDirs. Paths and sizes are each broker's own."""
    topic = make_topic(peer, "sized", partitions=2)
    one = admin.DescribeLogDirsRequest.DescribableLogDirTopic
    folder = ""
    for version in peer.versions(admin.DescribeLogDirsRequest):
        for label, topics in (
            ("named", [one(topic=topic, partitions=[0, 1, 9])]),
            ("absent", [one(topic=peer.topic("nothing"), partitions=[0])]),
            ("no", []),
        ):
            answer = peer.ask(
                f"disks of {label} partitions", admin.DescribeLogDirsRequest, version, topics=topics
            )
            folder = answer.results[0].log_dir if answer and answer.results else folder
    for version in peer.versions(admin.AlterReplicaLogDirsRequest):
        for label, path, index in (("same", folder, 0), ("absent", folder, 9), ("odd", "/odd", 0)):
            topics = [_Dirs.AlterReplicaLogDirTopic(name=topic, partitions=[index])]
            peer.ask(
                f"move to {label}", admin.AlterReplicaLogDirsRequest, version,
                dirs=[_Dirs(path=path, topics=topics)],
            )  # fmt: skip


def acls(peer: Peer) -> None:
    """ACLs of a broker without an authorizer."""
    every: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    for version in peer.versions(admin.DescribeAclsRequest):
        peer.ask("acls", admin.DescribeAclsRequest, version, **every)


def newest_times(peer: Peer) -> None:
    """ListOffsets -3, and times that only newer versions know."""
    topic = make_topic(peer, "newest", partitions=1)
    for version in peer.versions(ListOffsetsRequest):
        for time_ms in (-1, -2, -3, -4, -5, -6, 2**62):
            part = _Offsets.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=time_ms, max_num_offsets=1
            )
            peer.ask(
                f"newest: time {time_ms}", ListOffsetsRequest, version,
                replica_id=-1, isolation_level=0, topics=[_Offsets(name=topic, partitions=[part])],
            )  # fmt: skip


CLUSTER_SCENARIOS = {
    "cluster": cluster,
    "disks": disks,
    "acls": acls,
    "newest-times": newest_times,
}
