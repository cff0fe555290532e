"""ApiVersions, Metadata and FindCoordinator.

A broker alone leads every partition and coordinates every group; in a cluster each answer names the
broker that does (`ports.ClusterPort`). Clients see only the topics and groups that they may use.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from operator import attrgetter
from typing import Any

from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)

from ..access import Operation
from ..errors import Code, KafkaError
from ..partitions import shown_epoch
from ..ports import NO_NODE, Node, reachable
from ..session import MANY_PARTS, PART_BYTES, Handler, KafkaSession, one_part
from ..topic_settings import is_name
from ..wire import APIS, Request
from ..wire.apis import API_VERSIONS, HIGHEST_FOR

__all__ = ["HANDLERS"]

log = logging.getLogger(__name__)

GROUP, TRANSACTION = 0, 1
#: What a client may call itself (KIP-511).
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
#: For so many partitions of a request the leader epoch is looked up, which opens their topics.
OPENED_FOR_EPOCHS = 200

_Version = ApiVersionsResponse.ApiVersion
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition


def api_versions(session: KafkaSession, request: Request) -> None:
    """Which requests are served, in which versions."""
    if request.body is None:
        highest = _Version(api_key=API_VERSIONS, min_version=0, max_version=request.api.highest)
        response = ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=[highest])
    elif request.version >= 3 and not _names_its_software(request.body):
        response = ApiVersionsResponse(
            error_code=Code.INVALID_REQUEST,
            api_keys=[],
            throttle_time_ms=0,
            supported_features=[],
            finalized_features=[],
        )
    else:
        software = request.body.client_software_name if request.version >= 3 else ""
        less = HIGHEST_FOR.get(software, {})
        served = [
            _Version(
                api_key=api.key,
                min_version=api.lowest,
                max_version=min(api.highest, less.get(api.key, api.highest)),
            )
            for api in APIS.values()
        ]
        response = ApiVersionsResponse(
            error_code=Code.NONE,
            api_keys=served,
            throttle_time_ms=0,
            supported_features=[],
            finalized_features=[],
        )
    session.answer(request, response)


def _names_its_software(body: Any) -> bool:
    names = (body.client_software_name, body.client_software_version)
    return all(SOFTWARE.fullmatch(name or "") for name in names)


async def metadata(session: KafkaSession, request: Request) -> None:
    """Brokers, topics and their partitions' leaders. Creates topics that are missing."""
    asked, version = request.body.topics, request.version
    if asked is None or (version == 0 and not asked):
        topics = await _all_topics(session)
    else:
        creates = session.options.auto_create and (
            version < 4 or bool(request.body.allow_auto_topic_creation)
        )
        topics = [
            await _topic(session, topic.name, version, creates=creates)
            async for topic in session.named(
                asked, partial(_answer_bytes, session), key=attrgetter("name")
            )
        ]
    cluster = session.endpoint.cluster
    brokers = [
        MetadataResponse.MetadataResponseBroker(
            node_id=node.node_id, host=node.host, port=port, rack=None
        )
        for node, port in reachable(await cluster.nodes(), session.port, session.security_protocol)
    ]
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=brokers,
        cluster_id=session.options.cluster,
        controller_id=await cluster.coordinator(),
        topics=topics,
    )
    await session.answer_by_size(request, response, sum(1 + len(t.partitions) for t in topics))


def _answer_bytes(session: KafkaSession, topic: Any) -> int:
    count = session.endpoint.ports.topics.partitions_of(topic.name or "")
    return PART_BYTES * (1 + count) + len(topic.name or "")


def _parts(session: KafkaSession, request: Request) -> int:
    """Topics, and their partitions, as the answer has them."""
    port, asked = session.endpoint.ports.topics, request.body.topics
    if asked is None or (request.version == 0 and not asked):
        return port.count()
    if len(asked) > MANY_PARTS:
        return len(asked)
    names = {topic.name for topic in asked}
    return len(names) + sum(port.partitions_of(name or "") for name in names)


async def _all_topics(session: KafkaSession) -> list[Any]:
    """Every topic, in pieces: there may be very many."""
    port = session.endpoint.ports.topics
    names = session.named(port.names(), lambda name: PART_BYTES * (2 + port.partitions_of(name)))
    return [
        await _described(session, name, port.partitions_of(name))
        async for name in names
        if session.access.may(Operation.DESCRIBE, name)
    ]


async def _topic(session: KafkaSession, name: str | None, version: int, *, creates: bool) -> Any:
    port = session.endpoint.ports.topics
    if not session.access.may(Operation.DESCRIBE, name or ""):
        return _unknown(name, Code.TOPIC_AUTHORIZATION_FAILED)
    if name is None or not is_name(name):
        return _unknown(name, Code.INVALID_TOPIC_EXCEPTION)
    count = port.partitions_of(name)
    if not count:
        if not creates:
            return _unknown(name, Code.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            await port.create(name, session.options.default_partitions, {})
        except KafkaError as refusal:
            if refusal.code is not Code.TOPIC_ALREADY_EXISTS:
                log.info("%s: topic %s was not created: %s", session.address, name, refusal)
                return _unknown(name, refusal.code)
        count = port.partitions_of(name)
    if version >= 7 and count <= OPENED_FOR_EPOCHS and session.endpoint.ports.cluster is None:
        for index in range(count):
            try:
                await session.endpoint.partitions.open(name, index)
            except KafkaError as refusal:
                log.info("%s: %s was not opened: %s", session.address, name, refusal)
    return await _described(session, name, count)


def _unknown(name: str | None, code: Code) -> Any:
    return _Topic(error_code=code, name=name or "", is_internal=False, partitions=[])


async def _described(session: KafkaSession, name: str, count: int) -> Any:
    """A topic. Epochs are left out in a cluster: not every broker knows the leader's.

    A client takes an answer for outdated that has a lower epoch than one before.
    """
    opened = session.endpoint.ports.topics.opened
    has_epochs = session.endpoint.ports.cluster is None
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
                offline_replicas=[],
            )
        )
    return _Topic(error_code=Code.NONE, name=name, is_internal=False, partitions=partitions)


async def find_coordinator(session: KafkaSession, request: Request) -> None:
    """The broker that coordinates groups; it also refuses transactions."""
    kind = request.body.key_type if request.version >= 1 else GROUP
    found: tuple[Node, int] | None = None
    code = Code.NONE if kind in (GROUP, TRANSACTION) else Code.INVALID_REQUEST
    # InitProducerId says that there are no transactions: an error here is not shown by librdkafka.
    if kind == GROUP:
        code = session.access.group_code(request.body.key or "")
    if code is Code.NONE:
        cluster = session.endpoint.cluster
        number = await cluster.coordinator()
        nodes = reachable(await cluster.nodes(), session.port, session.security_protocol)
        found = next((each for each in nodes if each[0].node_id == number), None)
        code = Code.NONE if found is not None else Code.COORDINATOR_NOT_AVAILABLE
    response = FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=_reason(code),
        node_id=-1 if found is None else found[0].node_id,
        host="" if found is None else found[0].host,
        port=-1 if found is None else found[1],
    )
    session.answer(request, response)


def _reason(code: Code) -> str | None:
    if code is Code.GROUP_AUTHORIZATION_FAILED:
        return "Group authorization failed."
    if code is Code.COORDINATOR_NOT_AVAILABLE:
        return "No broker coordinates groups at present."
    return None if code is Code.NONE else "This broker coordinates groups only."


HANDLERS: dict[int, Handler] = {
    3: Handler(metadata, _parts),
    10: Handler(find_coordinator, one_part),
    API_VERSIONS: Handler(api_versions, one_part),
}
