"""Requests of clients and tools about a cluster: versions, topics, leaders, disks and features.

ApiVersions, Metadata and FindCoordinator come from every client. A broker alone leads every
partition and coordinates every group; in a cluster each answer names the broker that does
(`topics.Brokers`). Clients see only the topics and groups that they may use.

Each partition is on one broker, which leads it. So leaders are never elected, and replicas never
move: a request for the present state is granted, any other one is refused.

Requests about ACLs are answered as by a Kafka without an authorizer.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    DescribeAclsResponse,
    DescribeClusterResponse,
    DescribeLogDirsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

from ....kafka.errors import MESSAGE_LENGTH, Code, KafkaError, code_of
from ....kafka.messages import CONSUMER_PROTOCOL
from ....kafka.protocol import API_VERSIONS, APIS, HIGHEST_FOR, METADATA, Request
from ....kafka.topic_settings import is_name
from ...ownership import KafkaPlace
from ..access import Operation
from ..endpoint import MANY_PARTS, PART_BYTES, Handler, KafkaSession, one_part, parts_of, refusing
from ..partitions import shown_epoch
from ..topics import NO_NODE

log = logging.getLogger(__name__)

BROKERS, CONTROLLERS = 1, 2
#: From this version of Metadata on, a topic may be asked for by its id.
TOPIC_IDS_VERSION = 12
PREFERRED, UNCLEAN = 0, 1
NO_ACLS = "No Authorizer is configured: permissions are those of Pulsar's namespaces and topics."
_Dir = DescribeLogDirsResponse.DescribeLogDirsResult
_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_Elected = ElectLeadersResponse.ReplicaElectionResult
_Reassigned = AlterPartitionReassignmentsResponse.ReassignableTopicResponse


async def describe_cluster(session: KafkaSession, request: Request) -> None:
    """Answer with the brokers; the coordinator of groups is the controller, too."""
    code, message = Code.NONE, None
    kind = request.body.endpoint_type if request.version >= 1 else BROKERS
    if kind != BROKERS:
        is_known = kind == CONTROLLERS
        code = Code.MISMATCHED_ENDPOINT_TYPE if is_known else Code.UNSUPPORTED_ENDPOINT_TYPE
        message = "this is the port of a broker, not of a controller"
    brokers = [
        DescribeClusterResponse.DescribeClusterBroker(
            broker_id=node.node_id, host=node.host, port=port
        )
        for node, port in await _reachable(session)
    ]
    controller = await session.endpoint.cluster.coordinator()
    response = DescribeClusterResponse(
        error_code=code,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=session.config.cluster,
        controller_id=controller if code is Code.NONE else -1,
        brokers=brokers if code is Code.NONE else [],
    )
    session.answer(request, response)


async def _reachable(session: KafkaSession) -> list[tuple[KafkaPlace, int]]:
    """The brokers that the client can use, with their TLS ports if it came over TLS."""
    is_tls, nodes = "SSL" in session.security_protocol, await session.endpoint.cluster.nodes()
    found = []
    for node in nodes.values():
        port = node.tls_port if is_tls else node.port
        if node.port is None and node.tls_port is None:
            port = session.port  # a broker that is alone
        if port is not None:
            found.append((node, port))
    return found


# ---- disks -------------------------------------------------------------------------------------


async def describe_log_dirs(session: KafkaSession, request: Request) -> None:
    """Answer with the data folder and each partition's size in it. Null: all partitions."""
    response, sizes = DescribeLogDirsResponse(), dict[str, list[Any]]()
    # Before version 3 there is no place for a refusal's code, and Kafka answers an empty list.
    with refusing(response):
        session.access.check_broker()
        found = _Dir(log_dir=_data_folder(session), total_bytes=-1, usable_bytes=-1)
        response.results = [found]
        with refusing(found):
            found.total_bytes, found.usable_bytes = await _disk_bytes(session)
            async for name, index in session.named(_wanted(session, request.body.topics)):
                await _add_size(session, sizes, name, index)
        make = _Dir.DescribeLogDirsTopic
        found.topics = [make(name=name, partitions=each) for name, each in sizes.items()]
    await session.answer_by_size(request, response, sum(1 + len(each) for each in sizes.values()))


def _data_folder(session: KafkaSession) -> str:
    """The path of the data folder or store, which names the log directory."""
    config = session.config
    return str(config.data_dir or config.bookkeeper.store_address or "memory")


async def _disk_bytes(session: KafkaSession) -> tuple[int, int]:
    """The total and free bytes of the data folder's disk; -1: not known. Raises OSError."""
    folder = session.config.data_dir
    if folder is None:
        return -1, -1
    usage = await session.endpoint.services.run_blocking(shutil.disk_usage, folder)
    return usage.total, usage.free


def _wanted(session: KafkaSession, asked: Any) -> Iterator[tuple[str, int]]:
    """The partitions that are named, or all that there are."""
    topics = session.endpoint.topics
    if asked is not None:
        return ((each.topic or "", index) for each in asked for index in each.partitions or ())
    return ((name, at) for name in topics.names() for at in range(topics.partitions_of(name)))


async def _add_size(
    session: KafkaSession, sizes: dict[str, list[Any]], name: str, index: int
) -> None:
    """Add a partition's size in bytes, if there is such a partition."""
    try:
        size_bytes = await session.endpoint.topics.size_bytes(name, index)
    except KafkaError:
        return
    make = _Dir.DescribeLogDirsTopic.DescribeLogDirsPartition
    sizes.setdefault(name, []).append(make(partition_index=index, partition_size=size_bytes))


async def alter_replica_log_dirs(session: KafkaSession, request: Request) -> None:
    """Grant that a partition is in the data folder; refuse another folder."""
    topics: dict[str, list[Any]] = {}
    asked = (
        (folder.path, topic.name, index)
        for folder in request.body.dirs or ()
        for topic in folder.topics or ()
        for index in topic.partitions or ()
    )
    async for path, name, index in session.named(asked, key=itemgetter(1, 2)):
        code = code_of(_check_folder, session, path, name, index)
        topics.setdefault(name or "", []).append(
            _Moved.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        )
    results = [_Moved(topic_name=name, partitions=each) for name, each in topics.items()]
    response = AlterReplicaLogDirsResponse(results=results)
    await session.answer_by_size(request, response, sum(map(len, topics.values())))


def _check_folder(session: KafkaSession, path: str | None, name: str | None, index: int) -> None:
    session.access.check_broker()
    if path != _data_folder(session):
        raise KafkaError(Code.LOG_DIR_NOT_FOUND, f"the data folder is not {path!r}")
    _check_partition(session, name, index)


# ---- leaders and replicas ------------------------------------------------------------------------


async def elect_leaders(session: KafkaSession, request: Request) -> None:
    """Answer that no election is needed. Null: all topics; then no partition is named."""
    body = request.body
    kind = body.election_type if request.version >= 1 else PREFERRED
    code = code_of(session.access.check_broker)
    if code is not Code.NONE:
        results = []
    elif body.topic_partitions is None:
        names = session.endpoint.topics.names()
        results = [_Elected(topic=name, partition_result=[]) for name in names]
    else:
        results = await _not_elected(session, kind, body.topic_partitions)
        if kind not in (PREFERRED, UNCLEAN):
            code = Code.INVALID_REQUEST
    response = ElectLeadersResponse(error_code=code, replica_election_results=results)
    parts = sum(1 + len(each.partition_result) for each in results)
    await session.answer_by_size(request, response, parts)


async def _not_elected(session: KafkaSession, kind: int, asked: Any) -> list[Any]:
    topics: dict[str, list[Any]] = {}
    named = ((topic.topic, index) for topic in asked for index in topic.partitions or ())
    async for name, index in session.named(named, lambda _: PART_BYTES + MESSAGE_LENGTH):
        part = _Elected.PartitionResult(partition_id=index)
        with refusing(part):
            _check_election(session, kind, name, index)
        topics.setdefault(name or "", []).append(part)
    return [_Elected(topic=name, partition_result=each) for name, each in topics.items()]


def _check_election(session: KafkaSession, kind: int, name: str | None, index: int) -> None:
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(Code.INVALID_REQUEST, f"election type {kind}")
    _check_partition(session, name, index)
    raise KafkaError(Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


async def alter_partition_reassignments(session: KafkaSession, request: Request) -> None:
    """Grant that a partition is on this broker; refuse another one."""
    code = code_of(session.access.check_broker)
    topics: dict[str, list[Any]] = {}
    asked = request.body.topics or () if code is Code.NONE else ()
    async for name, each in session.named(
        ((topic.name, each) for topic in asked for each in topic.partitions or ()),
        lambda _: PART_BYTES + MESSAGE_LENGTH,
        key=lambda named: (named[0], named[1].partition_index),
    ):
        part = _Reassigned.ReassignablePartitionResponse(partition_index=each.partition_index)
        with refusing(part):
            _check_replicas(session, name, each)
        part.error_message = part.error_message or None
        topics.setdefault(name or "", []).append(part)
    response = AlterPartitionReassignmentsResponse(
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
    """Answer that no reassignment is in progress."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    with refusing(response):
        session.access.check_broker()
    session.answer(request, response)


def _check_partition(session: KafkaSession, name: str | None, index: int) -> None:
    session.access.check(Operation.DESCRIBE, name)
    if not 0 <= index < session.endpoint.topics.partitions_of(name or ""):
        raise KafkaError(
            Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of {name!r}"
        )


def describe_acls(session: KafkaSession, request: Request) -> None:
    """Answer that there is no authorizer."""
    response = DescribeAclsResponse(error_code=Code.SECURITY_DISABLED, error_message=NO_ACLS)
    with refusing(response):
        session.access.check_broker()
    session.answer(request, response)


def _parts_or_all(field: str) -> Callable[[KafkaSession, Request], int]:
    """As `parts_of` topics and their partitions; null means all of them."""
    count = parts_of(field, "partitions")

    def parts(session: KafkaSession, request: Request) -> int:
        if getattr(request.body, field) is None:
            return session.endpoint.topics.count()
        return count(session, request)

    return parts


def _parts_of_folders(_session: KafkaSession, request: Request) -> int:
    topics = (topic for folder in request.body.dirs or () for topic in folder.topics or ())
    return len(request.body.dirs or ()) + sum(1 + len(each.partitions or ()) for each in topics)


GROUP, TRANSACTION = 0, 1
GROUP_FEATURE = "group.version"
#: The level of each feature (KIP-848, KIP-890).
FEATURES = {GROUP_FEATURE: 1, "transaction.version": 2}
#: The names that a client's software may have (KIP-511).
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
#: The most partitions of a request for which leader epochs are looked up, which opens topics.
OPENED_FOR_EPOCHS = 200

_Version = ApiVersionsResponse.ApiVersion
_Supported = ApiVersionsResponse.SupportedFeatureKey
_Finalized = ApiVersionsResponse.FinalizedFeatureKey
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition


def api_versions(session: KafkaSession, request: Request) -> None:
    """Answer with the served requests and their versions."""
    if request.body is None:
        highest = _Version(api_key=API_VERSIONS, min_version=0, max_version=request.api.highest)
        response = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=[highest])
    elif request.version >= 3 and not all(
        SOFTWARE.fullmatch(name or "")
        for name in (request.body.client_software_name, request.body.client_software_version)
    ):
        response = _versions([], {}, Code.INVALID_REQUEST)
    else:
        software = request.body.client_software_name if request.version >= 3 else ""
        less = HIGHEST_FOR.get(software, {})
        hidden: frozenset[int] = frozenset()
        features = FEATURES
        if session.endpoint.services.cluster is not None:
            # With topic ids librdkafka does not follow a partition to its next broker.
            less, hidden = {**less, METADATA: 8}, CONSUMER_PROTOCOL
            features = {name: FEATURES[name] for name in FEATURES if name != GROUP_FEATURE}
        served = [
            _Version(
                api_key=api.key,
                min_version=api.lowest,
                max_version=min(api.highest, less.get(api.key, api.highest)),
            )
            for api in APIS.values()
            if api.key not in hidden
        ]
        response = _versions(served, features)
    session.answer(request, response)


def _versions(served: list[Any], features: Mapping[str, int], code: Code = Code.NONE) -> Any:
    return ApiVersionsResponse(
        error_code=code,
        api_keys=served,
        supported_features=[
            _Supported(name=name, min_version=0, max_version=level)
            for name, level in features.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            _Finalized(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.items()
        ],
    )


async def metadata(session: KafkaSession, request: Request) -> None:
    """Answer with brokers, topics and leaders. Missing topics are created."""
    asked, version = request.body.topics, request.version
    if asked is None or (version == 0 and not asked):
        topics = await _all_topics(session)
    else:
        creates = session.config.allow_auto_topic_creation and (
            version < 4 or bool(request.body.allow_auto_topic_creation)
        )
        topics = [
            await _asked_topic(session, topic, version, creates=creates)
            async for topic in session.named(
                asked, partial(_answer_bytes, session), key=attrgetter("name", "topic_id")
            )
        ]
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=port)
        for node, port in await _reachable(session)
    ]
    response = MetadataResponse(
        brokers=brokers,
        cluster_id=session.config.cluster,
        controller_id=await session.endpoint.cluster.coordinator(),
        topics=topics,
    )
    await session.answer_by_size(request, response, sum(1 + len(t.partitions) for t in topics))


def _name_of(session: KafkaSession, asked: Any) -> str | None:
    """The name of a topic that is asked for by name or id; None: it is not known."""
    name: str | None = asked.name
    return name or session.endpoint.topic_ids.name(asked.topic_id) or name


def _answer_bytes(session: KafkaSession, topic: Any) -> int:
    name = _name_of(session, topic) or ""
    return PART_BYTES * (1 + session.endpoint.topics.partitions_of(name)) + len(name)


async def _asked_topic(session: KafkaSession, asked: Any, version: int, *, creates: bool) -> Any:
    if asked.name or asked.topic_id is None or version < TOPIC_IDS_VERSION:
        return await _topic(session, asked.name, version, creates=creates)
    name = _name_of(session, asked)
    if name is not None and session.endpoint.topics.partitions_of(name):
        found = await _topic(session, name, version, creates=False)
        if found.error_code is not Code.TOPIC_AUTHORIZATION_FAILED:
            return found
    missing = _unknown(None, Code.UNKNOWN_TOPIC_ID)
    missing.name, missing.topic_id = None, asked.topic_id
    return missing


def _parts(session: KafkaSession, request: Request) -> int:
    """The number of topics and partitions of the answer."""
    topics, asked = session.endpoint.topics, request.body.topics
    if asked is None or (request.version == 0 and not asked):
        return topics.count()
    if len(asked) > MANY_PARTS:
        return len(asked)
    names = {topic.name for topic in asked}
    return len(names) + sum(topics.partitions_of(name or "") for name in names)


async def _all_topics(session: KafkaSession) -> list[Any]:
    """Every topic, in pieces: there may be very many."""
    topics = session.endpoint.topics
    names = session.named(
        topics.names(), lambda name: PART_BYTES * (2 + topics.partitions_of(name))
    )
    return [
        await _described(session, name, topics.partitions_of(name))
        async for name in names
        if session.access.may(Operation.DESCRIBE, name)
    ]


async def _topic(session: KafkaSession, name: str | None, version: int, *, creates: bool) -> Any:
    topics = session.endpoint.topics
    if not session.access.may(Operation.DESCRIBE, name or ""):
        return _unknown(name, Code.TOPIC_AUTHORIZATION_FAILED)
    if name is None or not is_name(name):
        return _unknown(name, Code.INVALID_TOPIC_EXCEPTION)
    count = topics.partitions_of(name)
    if not count:
        if not creates:
            return _unknown(name, Code.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            await topics.create(name, session.config.kafka_default_partitions, {})
        except KafkaError as refusal:
            if refusal.code is not Code.TOPIC_ALREADY_EXISTS:
                log.info("%s: topic %s was not created: %s", session.address, name, refusal)
                return _unknown(name, refusal.code)
        count = topics.partitions_of(name)
    if version >= 7 and count <= OPENED_FOR_EPOCHS and session.endpoint.services.cluster is None:
        for index in range(count):
            try:
                await session.endpoint.partitions.open(name, index)
            except KafkaError as refusal:
                log.info("%s: %s was not opened: %s", session.address, name, refusal)
    return await _described(session, name, count)


def _unknown(name: str | None, code: Code) -> Any:
    return _Topic(error_code=code, name=name or "", partitions=[])


async def _described(session: KafkaSession, name: str, count: int) -> Any:
    """Describe a topic. In a cluster without epochs: not every broker knows the leader's.

    Clients ignore an answer with a lower epoch than an earlier one had.
    """
    opened = session.endpoint.topics.opened
    has_epochs = session.endpoint.services.cluster is None
    leaders = await session.endpoint.cluster.leaders(name, count)
    partitions = []
    async for index in session.in_turns(range(count)):
        topic = opened(name, index) if has_epochs else None
        leader = leaders[index]
        replicas = [] if leader == NO_NODE else [leader]
        partitions.append(
            _Partition(
                error_code=Code.LEADER_NOT_AVAILABLE if leader == NO_NODE else Code.NONE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=-1 if topic is None else shown_epoch(topic.ledger.epoch),
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
        )
    topic_id = session.endpoint.topic_ids.of(name)
    return _Topic(error_code=Code.NONE, name=name, topic_id=topic_id, partitions=partitions)


REASONS = {
    Code.NONE: None,
    Code.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    Code.COORDINATOR_NOT_AVAILABLE: "No broker coordinates groups at present.",
}


async def find_coordinator(session: KafkaSession, request: Request) -> None:
    """Answer with the broker that coordinates groups and transactions."""
    kind = request.body.key_type if request.version >= 1 else GROUP
    found: tuple[KafkaPlace, int] | None = None
    code = Code.NONE if kind in (GROUP, TRANSACTION) else Code.INVALID_REQUEST
    if kind == GROUP:
        code = session.access.group_code(request.body.key or "")
    if code is Code.NONE:
        number = await session.endpoint.cluster.coordinator()
        nodes = await _reachable(session)
        found = next((each for each in nodes if each[0].node_id == number), None)
        code = Code.NONE if found is not None else Code.COORDINATOR_NOT_AVAILABLE
    response = FindCoordinatorResponse(
        error_code=code,
        error_message=REASONS.get(code, "This broker coordinates groups only."),
        node_id=-1 if found is None else found[0].node_id,
        host="" if found is None else found[0].host,
        port=-1 if found is None else found[1],
    )
    session.answer(request, response)


HANDLERS: dict[int, Handler] = {
    34: Handler(alter_replica_log_dirs, _parts_of_folders),
    35: Handler(describe_log_dirs, _parts_or_all("topics")),
    43: Handler(elect_leaders, _parts_or_all("topic_partitions")),
    45: Handler(alter_partition_reassignments, parts_of("topics", "partitions")),
    46: Handler(list_partition_reassignments, one_part),
    60: Handler(describe_cluster, one_part),
    29: Handler(describe_acls, one_part),
    3: Handler(metadata, _parts),
    10: Handler(find_coordinator, one_part),
    API_VERSIONS: Handler(api_versions, one_part),
}
