"""Every Kafka request with every kind of credentials: nothing allowed that should not be.

The rows are the endpoint's own table of requests, so a new one fails here without an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.record.memory_records import MemoryRecordsBuilder

from pulsemark.broker import BrokerThread
from pulsemark.broker.kafka.handlers import HANDLERS
from pulsemark.kafka import messages
from pulsemark.kafka.protocol import APIS, RAW_SASL
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields
from tests.support.attackers import attacked_broker, forged, signed, state_of
from tests.support.secured import rest, set_up

TOPIC_FAILED, GROUP_FAILED, CLUSTER_FAILED, SASL_FAILED = 29, 30, 31, 58
TRANSACTION_FAILED = 53
OPEN = {17, 18, 36}


def records() -> bytes:
    """A record set."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 16)
    builder.append(timestamp=1, key=b"k", value=b"v")
    builder.close()
    return bytes(builder.buffer())


@dataclass(frozen=True)
class Example:
    """A request about a topic or a group, and who may send it."""

    request: Any
    version: int
    fields: dict[str, Any]
    #: The role that may, those that may not, and the code that these get.
    role: str
    others: tuple[str, ...]
    code: int


_Offsets = consumer.ListOffsetsRequest.ListOffsetsTopic
_Commit = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
_Fetch = consumer.OffsetFetchRequest.OffsetFetchRequestTopic
_Forget = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
_Epochs = consumer.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
_Delete = admin.DeleteRecordsRequest.DeleteRecordsTopic
_Resource = admin.DescribeConfigsRequest.DescribeConfigsResource
_Alter = admin.AlterConfigsRequest.AlterConfigsResource
_Dirs = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir
_Moves = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
_Add = producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
_CommitLater = producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
_Change = admin.IncrementalAlterConfigsRequest.AlterConfigsResource

READERS = ("nobody", "stranger", "writer")
WRITERS = ("nobody", "stranger", "reader")
ALL = ("nobody", "stranger")
ADMINS = ("nobody", "stranger", "both")
OPERATORS = (*ADMINS, "boss")


def examples(topic: str) -> dict[int, Example]:
    """A request of each kind, which would do something if it were let through."""
    group = {"group_id": "g"}
    member = {**group, "generation_id": -1, "member_id": ""}
    config = {"name": "max.message.bytes", "value": "500"}
    rows = [
        Example(
            producer.ProduceRequest, 7, produce_fields([(topic, 0, records())], -1),
            "writer", WRITERS, TOPIC_FAILED,
        ),
        Example(
            consumer.FetchRequest, 11, fetch_fields([(topic, 0, 0, 1_000, -1)], 0, 1, 1_000),
            "reader", READERS, TOPIC_FAILED,
        ),
        Example(
            consumer.ListOffsetsRequest, 1,
            {"replica_id": -1, "topics": [_Offsets(name=topic, partitions=[
                _Offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)])]},
            "writer", ALL, TOPIC_FAILED,
        ),
        Example(
            metadata.MetadataRequest, 4,
            {"topics": [metadata.MetadataRequest.MetadataRequestTopic(name=topic)],
             "allow_auto_topic_creation": True},
            "writer", ALL, TOPIC_FAILED,
        ),
        Example(
            consumer.OffsetCommitRequest, 2,
            {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "",
             "retention_time_ms": -1, "topics": [_Commit(name=topic, partitions=[
                 _Commit.OffsetCommitRequestPartition(
                     partition_index=0, committed_offset=1, committed_metadata="")])]},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            consumer.OffsetFetchRequest, 2,
            {**group, "topics": [_Fetch(name=topic, partition_indexes=[0])]},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            consumer.OffsetDeleteRequest, 0,
            {**group, "topics": [_Forget(name=topic, partitions=[
                _Forget.OffsetDeleteRequestPartition(partition_index=0)])]},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            metadata.FindCoordinatorRequest, 1, {"key": "g", "key_type": 0},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            consumer.JoinGroupRequest, 2,
            {**group, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000,
             "member_id": "", "protocol_type": "consumer", "protocols": [
                 consumer.JoinGroupRequest.JoinGroupRequestProtocol(name="r", metadata=b"")]},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(consumer.HeartbeatRequest, 1, member, "reader", READERS, GROUP_FAILED),
        Example(
            consumer.LeaveGroupRequest, 1, {**group, "member_id": ""},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            consumer.SyncGroupRequest, 1, {**member, "assignments": []},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            admin.DescribeGroupsRequest, 1, {"groups": ["g"]}, "reader", READERS, GROUP_FAILED
        ),
        Example(admin.ListGroupsRequest, 1, {}, "reader", READERS, 0),
        Example(
            admin.CreateTopicsRequest, 1,
            {"topics": [admin.CreateTopicsRequest.CreatableTopic(
                name=f"{topic}-new", num_partitions=1, replication_factor=1, assignments=[],
                configs=[])], "timeout_ms": 1_000, "validate_only": False},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            admin.DeleteTopicsRequest, 1, {"topic_names": [topic], "timeout_ms": 1_000},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            admin.DeleteRecordsRequest, 1,
            {"topics": [_Delete(name=topic, partitions=[
                _Delete.DeleteRecordsPartition(partition_index=0, offset=-1)])],
             "timeout_ms": 1_000},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            producer.InitProducerIdRequest, 1,
            {"transactional_id": None, "transaction_timeout_ms": 1_000},
            "writer", WRITERS, CLUSTER_FAILED,
        ),
        Example(
            consumer.OffsetForLeaderEpochRequest, 0,
            {"topics": [_Epochs(topic=topic, partitions=[
                _Epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)])]},
            "writer", ALL, TOPIC_FAILED,
        ),
        Example(
            admin.DescribeConfigsRequest, 1,
            {"resources": [_Resource(resource_type=2, resource_name=topic,
                                     configuration_keys=None)], "include_synonyms": False},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            admin.AlterConfigsRequest, 1,
            {"resources": [_Alter(resource_type=2, resource_name=topic, configs=[
                _Alter.AlterableConfig(**config)])], "validate_only": False},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            admin.IncrementalAlterConfigsRequest, 0,
            {"resources": [_Change(resource_type=2, resource_name=topic, configs=[
                _Change.AlterableConfig(**config, config_operation=0)])], "validate_only": False},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            admin.CreatePartitionsRequest, 1,
            {"topics": [admin.CreatePartitionsRequest.CreatePartitionsTopic(
                name=topic, count=5, assignments=None)],
             "timeout_ms": 1_000, "validate_only": False},
            "boss", ADMINS, TOPIC_FAILED,
        ),
        Example(
            admin.AlterReplicaLogDirsRequest, 1,
            {"dirs": [_Dirs(path="/elsewhere", topics=[
                _Dirs.AlterReplicaLogDirTopic(name=topic, partitions=[0])])]},
            "admin", OPERATORS, CLUSTER_FAILED,
        ),
        Example(
            admin.DescribeLogDirsRequest, 3, {"topics": None}, "admin", OPERATORS, CLUSTER_FAILED
        ),
        Example(
            admin.ElectLeadersRequest, 1,
            {"election_type": 0, "timeout_ms": 1_000, "topic_partitions": [
                admin.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[0])]},
            "admin", OPERATORS, CLUSTER_FAILED,
        ),
        Example(
            admin.AlterPartitionReassignmentsRequest, 0,
            {"timeout_ms": 1_000, "topics": [_Moves(name=topic, partitions=[
                _Moves.ReassignablePartition(partition_index=0, replicas=[1])])]},
            "admin", OPERATORS, CLUSTER_FAILED,
        ),
        Example(
            admin.ListPartitionReassignmentsRequest, 0, {"timeout_ms": 1_000, "topics": None},
            "admin", OPERATORS, CLUSTER_FAILED,
        ),
        Example(
            admin.DescribeClusterRequest, 0, {"include_cluster_authorized_operations": False},
            "nobody", (), 0,
        ),
        Example(
            admin.DescribeAclsRequest, 1,
            {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
             "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1},
            "admin", OPERATORS, CLUSTER_FAILED,
        ),
        Example(
            admin.DeleteGroupsRequest, 1, {"groups_names": ["g"]}, "reader", READERS, GROUP_FAILED
        ),
        *examples_of_transactions(topic),
        Example(
            messages.ConsumerGroupHeartbeatRequest, 1,
            {"group_id": "new", "member_id": "m", "member_epoch": 0, "instance_id": None,
             "rack_id": None, "rebalance_timeout_ms": 1_000, "subscribed_topic_names": [topic],
             "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": []},
            "reader", READERS, GROUP_FAILED,
        ),
        Example(
            messages.ConsumerGroupDescribeRequest, 1,
            {"group_ids": ["g"], "include_authorized_operations": False},
            "reader", READERS, GROUP_FAILED,
        ),
    ]  # fmt: skip
    return {row.request.API_KEY: row for row in rows}


def examples_of_transactions(topic: str) -> list[Example]:
    """Those about transactions, which are for clients that may write."""
    ids = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
    return [
        Example(
            producer.AddPartitionsToTxnRequest, 3,
            {**{f"v3_and_below_{name}": value for name, value in ids.items()},
             "v3_and_below_topics": [_Add(name=topic, partitions=[0])]},
            "writer", WRITERS, TOPIC_FAILED,
        ),
        Example(
            producer.AddOffsetsToTxnRequest, 3, {**ids, "group_id": "g"}, "both", WRITERS,
            TRANSACTION_FAILED,
        ),
        Example(
            producer.EndTxnRequest, 3, {**ids, "committed": True}, "writer", WRITERS,
            TRANSACTION_FAILED,
        ),
        Example(
            producer.TxnOffsetCommitRequest, 3,
            {**ids, "group_id": "g", "generation_id": -1, "member_id": "",
             "group_instance_id": None, "topics": [_CommitLater(name=topic, partitions=[
                 _CommitLater.TxnOffsetCommitRequestPartition(
                     partition_index=0, committed_offset=1, committed_leader_epoch=-1,
                     committed_metadata="")])]},
            "both", READERS, TOPIC_FAILED,
        ),
        Example(
            admin.DescribeTransactionsRequest, 0, {"transactional_ids": ["t"]}, "writer", WRITERS,
            TRANSACTION_FAILED,
        ),
        Example(
            admin.ListTransactionsRequest, 1,
            {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
            "writer", WRITERS, 0,
        ),
    ]  # fmt: skip


KEYS = sorted(set(HANDLERS) - OPEN - {RAW_SASL.key})


def name_of(key: int) -> str:
    """A request's name in pytest's output."""
    return APIS[key].name


@pytest.fixture(scope="module")
def attacked() -> Iterator[BrokerThread]:
    """A broker with a Kafka topic that has an entry, and a group that has committed."""
    with attacked_broker(
        kafka_port=0, kafka_namespace="acme/ns", kafka_group_initial_rebalance_delay_ms=0
    ) as broker:
        set_up(broker, signed("admin"))
        rest(broker, "POST", "/admin/v2/namespaces/acme/ns/permissions/both", signed("boss"),
             ["produce", "consume"])  # fmt: skip
        with client_of(broker, "both") as client:
            for key in (3, 0, 8):
                row = examples("t")[key]
                assert codes_in(client.call(row.request, row.version, **row.fields)) <= {0}
        yield broker


@contextmanager
def client_of(broker: BrokerThread, role: str) -> Iterator[RawKafka]:
    """A connection that is authenticated as a role."""
    with RawKafka.from_url(broker.kafka_url, timeout_s=20) as client:
        assert sasl_code(client, role, signed(role)) == 0
        yield client


def sasl_code(client: RawKafka, role: str, token: str | None) -> int:
    """The answer to PLAIN with a token."""
    client.call(sasl.SaslHandshakeRequest, 1, mechanism="PLAIN")
    data = f"\0{role}\0token:{token or ''}".encode()
    answer = client.call(sasl.SaslAuthenticateRequest, 1, auth_bytes=data)
    return int(answer.error_code)


def codes_in(answer: Any) -> set[int]:
    """All error codes of an answer, at any depth."""
    found: set[int] = set()
    names = [name for name in dir(answer) if not name.startswith("_")]
    for name in names:
        value = getattr(answer, name, None)
        if name.endswith("error_code") and isinstance(value, int):
            found.add(int(value))
        elif isinstance(value, list):
            found |= {code for each in value for code in codes_in(each) if hasattr(each, "to_dict")}
    return found


def test_every_request_has_an_example() -> None:
    """A new request fails here without one."""
    assert sorted(examples("t")) == KEYS


@pytest.mark.parametrize("key", KEYS, ids=name_of)
def test_forged_credentials(attacked: BrokerThread, key: int) -> None:
    """SASL refuses them; without SASL, and after it, the request ends the connection."""
    before, row = state_of(attacked), examples("t")[key]
    for kind, token in forged().items():
        with RawKafka.from_url(attacked.kafka_url, timeout_s=20) as client:
            assert sasl_code(client, "admin", token) == SASL_FAILED, kind
            with pytest.raises(ConnectionError):
                client.call(row.request, row.version, **row.fields)
    with RawKafka.from_url(attacked.kafka_url, timeout_s=20) as client:
        client.call(sasl.SaslHandshakeRequest, 1, mechanism="PLAIN")
        with pytest.raises(ConnectionError):
            client.call(row.request, row.version, **row.fields)
    assert state_of(attacked) == before


@pytest.mark.parametrize("key", KEYS, ids=name_of)
def test_without_permission(attacked: BrokerThread, key: int) -> None:
    """A valid role without the permission gets Kafka's code for it, and nothing changes."""
    before = state_of(attacked)
    for topic in ("t", f"absent{key}"):
        row = examples(topic)[key]
        for role in row.others:
            with client_of(attacked, role) as client:
                answer = client.call(row.request, row.version, **row.fields)
                assert row.code in codes_in(answer), (role, topic, answer)
                assert codes_in(answer) <= {0, row.code}, (role, topic, answer)
                if key == 16:
                    assert answer.groups == []
            assert state_of(attacked) == before, (role, topic)


@pytest.mark.parametrize("key", KEYS, ids=name_of)
def test_with_permission(attacked: BrokerThread, key: int) -> None:
    """The role with just the right that it takes is not refused for want of it."""
    row = examples(f"allowed{key}")[key]
    for role in (row.role, "admin"):
        with client_of(attacked, role) as client:
            answer = client.call(row.request, row.version, **row.fields)
            codes = codes_in(answer)
            refusals = {TOPIC_FAILED, GROUP_FAILED, CLUSTER_FAILED, TRANSACTION_FAILED}
            assert not codes & refusals, (role, answer)
            if key == 16:
                assert [group.group_id for group in answer.groups] == ["g"]
                break


def test_the_list_of_all_topics_has_those_that_a_client_may_see(attacked: BrokerThread) -> None:
    """Others are left out, without an error."""
    for role, wanted in (("nobody", False), ("stranger", False), ("reader", True)):
        with client_of(attacked, role) as client:
            answer = client.call(
                metadata.MetadataRequest, 4, topics=None, allow_auto_topic_creation=True
            )
            assert ("t" in [topic.name for topic in answer.topics]) is wanted


def test_settings_of_the_broker_are_for_super_users(attacked: BrokerThread) -> None:
    """Also an administrator of the tenant gets 31."""
    resource = admin.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=None
    )
    for role, code in (("boss", CLUSTER_FAILED), ("admin", 0)):
        with client_of(attacked, role) as client:
            answer = client.call(
                admin.DescribeConfigsRequest, 1, resources=[resource], include_synonyms=False
            )
            assert answer.results[0].error_code == code
            assert bool(answer.results[0].configs) is (code == 0)


def test_a_revocation_holds_for_the_next_request(attacked: BrokerThread) -> None:
    """What a connection remembers of its rights is forgotten when permissions change."""
    permission = "/admin/v2/namespaces/acme/ns/permissions/changing"
    row, boss = examples("t")[0], signed("boss")
    with client_of(attacked, "changing") as client:
        for grant, code in ((["produce"], 0), (None, TOPIC_FAILED), (["produce"], 0)):
            method = "DELETE" if grant is None else "POST"
            assert rest(attacked, method, permission, boss, grant).status == 204
            answer = client.call(row.request, row.version, **row.fields)
            assert codes_in(answer) == {code}


def test_a_fetch_that_waits_over_a_revocation_gets_nothing(attacked: BrokerThread) -> None:
    """What is published after the revocation is not shown to a fetch that began before it."""
    permission, boss = "/admin/v2/namespaces/acme/ns/permissions/waiting", signed("boss")
    assert rest(attacked, "POST", permission, boss, ["consume"]).status == 204
    with client_of(attacked, "waiting") as client, client_of(attacked, "both") as other:
        end = client.fetch("t", 0).high_watermark
        assert end >= 0
        client.send(
            consumer.FetchRequest, 11, **fetch_fields([("t", 0, end, 9_000, -1)], 60_000, 1, 9_000)
        )
        # An earlier answer on the same connection would come first: the fetch waits.
        assert rest(attacked, "DELETE", permission, boss).status == 204
        assert other.produce("t", records()).error_code == 0
        _, answer = client.receive(consumer.FetchRequest, 11)
        assert codes_in(answer) == {0, TOPIC_FAILED}
        assert not answer.responses[0].partitions[0].records
