"""What tools ask of a cluster: its brokers, its disks, where replicas are, and what it lacks.

Each partition is on one broker, which leads it. So leaders are never elected, and replicas never
move: a request for the present state is granted, any other one is refused.

Questions about Kafka's ACLs, SCRAM users and transactions are answered as by a Kafka without them,
so that tools that ask go on: lists are empty, and changes of ACLs are refused, as by a Kafka
without an authorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeClusterResponse,
    DescribeLogDirsResponse,
    DescribeUserScramCredentialsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    ListTransactionsResponse,
)

from ...ledger import LedgerError
from ..access import Operation
from ..errors import MESSAGE_LENGTH, Code, KafkaError
from ..ports import reachable
from ..session import PART_BYTES, Handler, KafkaSession, one_part, parts_of
from ..wire import Request

__all__ = ["HANDLERS"]

BROKERS, CONTROLLERS = 1, 2
PREFERRED, UNCLEAN = 0, 1
#: Stands for all partitions that are asked for and do not exist.
NO_PARTITION = "", -1
NO_ACLS = "No Authorizer is configured: permissions are those of Pulsar's namespaces and topics."
NO_SUCH_USER = "Attempt to describe a user credential that does not exist"
#: What the answer says of a user, beside the name.
ABOUT_USER_BYTES = 100
#: Kafka's states of a transaction.
STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
_Dir = DescribeLogDirsResponse.DescribeLogDirsResult
_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_Elected = ElectLeadersResponse.ReplicaElectionResult
_Reassigned = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_User = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


async def describe_cluster(session: KafkaSession, request: Request) -> None:
    """The brokers; the one that coordinates groups is the controller, too."""
    options, version = session.options, request.version
    code, message = Code.NONE, None
    kind = request.body.endpoint_type if version >= 1 else BROKERS
    if kind != BROKERS:
        is_known = kind == CONTROLLERS
        code = Code.MISMATCHED_ENDPOINT_TYPE if is_known else Code.UNSUPPORTED_ENDPOINT_TYPE
        message = "this is the port of a broker, not of a controller"
    cluster = session.endpoint.cluster
    brokers = [
        DescribeClusterResponse.DescribeClusterBroker(
            broker_id=node.node_id, host=node.host, port=port, rack=None
        )
        for node, port in reachable(await cluster.nodes(), session.port, session.security_protocol)
    ]
    controller = await cluster.coordinator()
    response = DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=options.cluster,
        controller_id=controller if code is Code.NONE else -1,
        brokers=brokers if code is Code.NONE else [],
        authorized_operations=None,
    )
    session.answer(request, response)


# ---- disks -------------------------------------------------------------------------------------


async def describe_log_dirs(session: KafkaSession, request: Request) -> None:
    """The data folder, and how large each partition in it is. Null: all partitions."""
    try:
        session.access.check_broker()
    except KafkaError as refusal:
        # Before version 3 there is no place for a code, and Kafka answers an empty list.
        response = DescribeLogDirsResponse(throttle_time_ms=0, error_code=refusal.code, results=[])
        session.answer(request, response)
        return
    topics: list[Any] = []
    code, total, usable = Code.NONE, -1, -1
    try:
        total, usable = await session.endpoint.ports.disk_bytes()
        sizes: dict[str, list[Any]] = {}
        async for name, index in session.named(_wanted(session, request.body.topics)):
            sizes.setdefault(name, []).extend(await _size(session, name, index))
        topics = [_Dir.DescribeLogDirsTopic(name=each, partitions=sizes[each]) for each in sizes]
    except (LedgerError, OSError):
        code = Code.KAFKA_STORAGE_ERROR
    found = _Dir(
        error_code=code,
        log_dir=session.endpoint.ports.data_folder,
        topics=topics,
        total_bytes=total,
        usable_bytes=usable,
    )
    response = DescribeLogDirsResponse(throttle_time_ms=0, error_code=Code.NONE, results=[found])
    parts = sum(1 + len(topic.partitions) for topic in topics)
    await session.answer_by_size(request, response, parts)


def _wanted(session: KafkaSession, asked: Any) -> Iterator[tuple[str, int]]:
    """The partitions that there are, of those that are asked for."""
    count_of = session.endpoint.ports.topics.partitions_of
    if asked is None:
        for name in session.endpoint.ports.topics.names():
            for index in range(count_of(name)):
                yield name, index
        return
    for topic in asked:
        count = count_of(topic.topic or "")
        for index in topic.partitions or ():
            yield (topic.topic or "", index) if 0 <= index < count else NO_PARTITION


async def _size(session: KafkaSession, name: str, index: int) -> list[Any]:
    """The size of a partition; [] if there is none."""
    if (name, index) == NO_PARTITION:
        return []
    try:
        size_bytes = await session.endpoint.ports.topics.size_bytes(name, index)
    except KafkaError:
        return []  # it was deleted meanwhile
    return [
        _Dir.DescribeLogDirsTopic.DescribeLogDirsPartition(
            partition_index=index, partition_size=size_bytes, offset_lag=0, is_future_key=False
        )
    ]


async def alter_replica_log_dirs(session: KafkaSession, request: Request) -> None:
    """A partition may be asked to be in the data folder, where it is."""
    topics: dict[str, list[Any]] = {}
    asked = (
        (folder.path, topic.name, index)
        for folder in request.body.dirs or ()
        for topic in folder.topics or ()
        for index in topic.partitions or ()
    )
    async for path, name, index in session.named(asked, key=itemgetter(1, 2)):
        code = _code_of(_check_folder, session, path, name, index)
        topics.setdefault(name or "", []).append(
            _Moved.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        )
    results = [_Moved(topic_name=name, partitions=each) for name, each in topics.items()]
    response = AlterReplicaLogDirsResponse(throttle_time_ms=0, results=results)
    await session.answer_by_size(request, response, sum(map(len, topics.values())))


def _check_folder(session: KafkaSession, path: str | None, name: str | None, index: int) -> None:
    session.access.check_broker()
    if path != session.endpoint.ports.data_folder:
        raise KafkaError(Code.LOG_DIR_NOT_FOUND, f"the data folder is not {path!r}")
    _check_partition(session, name, index)


# ---- leaders and replicas ------------------------------------------------------------------------


async def elect_leaders(session: KafkaSession, request: Request) -> None:
    """No election is ever needed. Null: all topics, of which no partition is named then."""
    body = request.body
    kind = body.election_type if request.version >= 1 else PREFERRED
    code = _code_of(session.access.check_broker)
    if code is not Code.NONE:
        results = []
    elif body.topic_partitions is None:
        names = session.endpoint.ports.topics.names()
        results = [_Elected(topic=name, partition_result=[]) for name in names]
    else:
        results = await _not_elected(session, kind, body.topic_partitions)
        if kind not in (PREFERRED, UNCLEAN):
            code = Code.INVALID_REQUEST
    response = ElectLeadersResponse(
        throttle_time_ms=0, error_code=code, replica_election_results=results
    )
    parts = sum(1 + len(each.partition_result) for each in results)
    await session.answer_by_size(request, response, parts)


async def _not_elected(session: KafkaSession, kind: int, asked: Any) -> list[Any]:
    topics: dict[str, list[Any]] = {}
    named = ((topic.topic, index) for topic in asked for index in topic.partitions or ())
    async for name, index in session.named(named, lambda _: PART_BYTES + MESSAGE_LENGTH):
        failure = _failure_of(_check_election, session, kind, name, index)
        assert failure is not None, "an election never takes place"
        topics.setdefault(name or "", []).append(
            _Elected.PartitionResult(
                partition_id=index, error_code=failure.code, error_message=failure.message
            )
        )
    return [_Elected(topic=name, partition_result=each) for name, each in topics.items()]


def _check_election(session: KafkaSession, kind: int, name: str | None, index: int) -> None:
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(Code.INVALID_REQUEST, f"election type {kind}")
    _check_partition(session, name, index)
    raise KafkaError(Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


async def alter_partition_reassignments(session: KafkaSession, request: Request) -> None:
    """A partition may be asked to be on this broker, where it is."""
    code = _code_of(session.access.check_broker)
    topics: dict[str, list[Any]] = {}
    asked = request.body.topics or () if code is Code.NONE else ()
    async for name, each in session.named(
        ((topic.name, each) for topic in asked for each in topic.partitions or ()),
        lambda _: PART_BYTES + MESSAGE_LENGTH,
        key=lambda named: (named[0], named[1].partition_index),
    ):
        failure = _failure_of(_check_replicas, session, name, each)
        topics.setdefault(name or "", []).append(
            _Reassigned.ReassignablePartitionResponse(
                partition_index=each.partition_index,
                error_code=Code.NONE if failure is None else failure.code,
                error_message=None if failure is None else failure.message or None,
            )
        )
    response = AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=None if code is Code.NONE else "Cluster authorization failed.",
        responses=[_Reassigned(name=name, partitions=each) for name, each in topics.items()],
    )
    await session.answer_by_size(request, response, sum(map(len, topics.values())))


def _check_replicas(session: KafkaSession, name: str | None, asked: Any) -> None:
    _check_partition(session, name, asked.partition_index)
    if asked.replicas is None:
        raise KafkaError(Code.NO_REASSIGNMENT_IN_PROGRESS, "")
    node_id = session.endpoint.cluster.node_id
    if asked.replicas != [node_id]:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"replicas {asked.replicas[:20]}: this broker, {node_id}, has no others' partitions",
        )


def list_partition_reassignments(session: KafkaSession, request: Request) -> None:
    """None is ever in progress."""
    code = _code_of(session.access.check_broker)
    response = ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=None if code is Code.NONE else "Cluster authorization failed.",
        topics=[],
    )
    session.answer(request, response)


def _check_partition(session: KafkaSession, name: str | None, index: int) -> None:
    session.access.check(Operation.DESCRIBE, name)
    if not 0 <= index < session.endpoint.ports.topics.partitions_of(name or ""):
        raise KafkaError(
            Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {name!r}"
        )


def _refusal(session: KafkaSession, code: Code, message: str | None) -> tuple[Code, str | None]:
    """The code and text for a client that may see the broker's settings, or 31."""
    try:
        session.access.check_broker()
    except KafkaError as refusal:
        return refusal.code, refusal.message
    return code, message


def describe_acls(session: KafkaSession, request: Request) -> None:
    """There is no authorizer of Kafka's kind."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    response = DescribeAclsResponse(
        throttle_time_ms=0, error_code=code, error_message=message, resources=[]
    )
    session.answer(request, response)


async def create_acls(session: KafkaSession, request: Request) -> None:
    """Each is refused. The answer has one result for each, in their order."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    refused = CreateAclsResponse.AclCreationResult(error_code=code, error_message=message)
    results = [refused] * len(request.body.creations or ())
    response = CreateAclsResponse(throttle_time_ms=0, results=results)
    await session.answer_by_size(request, response, len(results))


async def delete_acls(session: KafkaSession, request: Request) -> None:
    """Each is refused. The answer has one result for each, in their order."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=code, error_message=message, matching_acls=[]
    )
    results = [refused] * len(request.body.filters or ())
    response = DeleteAclsResponse(throttle_time_ms=0, filter_results=results)
    await session.answer_by_size(request, response, len(results))


async def describe_scram_users(session: KafkaSession, request: Request) -> None:
    """There is no such user. Null or an empty list asks for all."""
    code, message = _refusal(session, Code.NONE, None)
    users = request.body.users or () if code is Code.NONE else ()
    names = await session.gathered(users, lambda user: user.name or "")
    results = [
        _User(
            user=name,
            error_code=Code.RESOURCE_NOT_FOUND if len(each) == 1 else Code.DUPLICATE_RESOURCE,
            error_message=NO_SUCH_USER if len(each) == 1 else "a user is named more than once",
            credential_infos=[],
        )
        async for name, each in session.named(
            names.items(), lambda item: ABOUT_USER_BYTES + len(item[0]), key=itemgetter(0)
        )
    ]
    response = DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=code, error_message=message, results=results
    )
    await session.answer_by_size(request, response, len(results))


async def list_transactions(session: KafkaSession, request: Request) -> None:
    """The broker has no such thing: an empty list."""
    asked = session.named(request.body.state_filters or ())
    unknown = [state async for state in asked if state not in STATES]
    response = ListTransactionsResponse(
        throttle_time_ms=0, error_code=Code.NONE, unknown_state_filters=unknown,
        transaction_states=[],
    )  # fmt: skip
    await session.answer_by_size(request, response, len(unknown))


def _failure_of(check: Callable[..., None], *args: Any) -> KafkaError | None:
    try:
        check(*args)
    except KafkaError as refusal:
        return refusal
    return None


def _code_of(check: Callable[..., None], *args: Any) -> Code:
    failure = _failure_of(check, *args)
    return Code.NONE if failure is None else failure.code


def _parts_of_topics(session: KafkaSession, request: Request) -> int:
    if request.body.topics is None:
        return session.endpoint.ports.topics.count()
    return parts_of("topics", "partitions")(session, request)


def _parts_of_election(session: KafkaSession, request: Request) -> int:
    if request.body.topic_partitions is None:
        return session.endpoint.ports.topics.count()
    return parts_of("topic_partitions", "partitions")(session, request)


def _parts_of_folders(_session: KafkaSession, request: Request) -> int:
    topics = (topic for folder in request.body.dirs or () for topic in folder.topics or ())
    return len(request.body.dirs or ()) + sum(1 + len(each.partitions or ()) for each in topics)


HANDLERS: dict[int, Handler] = {
    34: Handler(alter_replica_log_dirs, _parts_of_folders),
    35: Handler(describe_log_dirs, _parts_of_topics),
    43: Handler(elect_leaders, _parts_of_election),
    45: Handler(alter_partition_reassignments, parts_of("topics", "partitions")),
    46: Handler(list_partition_reassignments, one_part),
    60: Handler(describe_cluster, one_part),
    29: Handler(describe_acls, one_part),
    30: Handler(create_acls, parts_of("creations")),
    31: Handler(delete_acls, parts_of("filters")),
    50: Handler(describe_scram_users, parts_of("users")),
    66: Handler(list_transactions, parts_of("state_filters")),
}
