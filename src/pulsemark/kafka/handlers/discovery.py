"""ApiVersions, Metadata and FindCoordinator.

The broker is alone: it leads every partition and coordinates every group. Clients see only the
topics and groups that they may use.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)

from ..access import Operation
from ..errors import Code, KafkaError
from ..names import is_name
from ..session import Handler, KafkaSession
from ..wire import APIS, Request
from ..wire.apis import API_VERSIONS, HIGHEST_FOR

__all__ = ["HANDLERS", "NODE_ID"]

log = logging.getLogger(__name__)

NODE_ID = 1
"""This broker's number in Kafka's protocol."""
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
    """Topics and their partitions, all led by this broker. Creates topics that are missing."""
    asked, version = request.body.topics, request.version
    if asked is None or (version == 0 and not asked):
        topics = await _all_topics(session)
    else:
        names = dict.fromkeys(topic.name for topic in asked)
        creates = session.options.auto_create and (
            version < 4 or bool(request.body.allow_auto_topic_creation)
        )
        topics = [
            await _topic(session, name, version, creates=creates)
            async for name in session.in_turns(names)
        ]
    options = session.options
    broker = MetadataResponse.MetadataResponseBroker(
        node_id=NODE_ID, host=options.host, port=session.port, rack=None
    )
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker],
        cluster_id=options.cluster,
        controller_id=NODE_ID,
        topics=topics,
    )
    await session.answer_by_size(request, response, sum(1 + len(t.partitions) for t in topics))


async def _all_topics(session: KafkaSession) -> list[Any]:
    """Every topic, in pieces: there may be very many."""
    port = session.endpoint.ports.topics
    return [
        await _described(session, name, port.partitions_of(name))
        async for name in session.in_turns(port.names())
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
    if version >= 7 and count <= OPENED_FOR_EPOCHS:
        for index in range(count):
            try:
                await session.endpoint.partitions.open(name, index)
            except KafkaError as refusal:
                log.info("%s: %s was not opened: %s", session.address, name, refusal)
    return await _described(session, name, count)


def _unknown(name: str | None, code: Code) -> Any:
    return _Topic(error_code=code, name=name or "", is_internal=False, partitions=[])


async def _described(session: KafkaSession, name: str, count: int) -> Any:
    opened = session.endpoint.ports.topics.opened
    partitions = []
    async for index in session.in_turns(range(count)):
        topic = opened(name, index)
        partitions.append(
            _Partition(
                error_code=Code.NONE,
                partition_index=index,
                leader_id=NODE_ID,
                leader_epoch=-1 if topic is None else topic.ledger.epoch,
                replica_nodes=[NODE_ID],
                isr_nodes=[NODE_ID],
                offline_replicas=[],
            )
        )
    return _Topic(error_code=Code.NONE, name=name, is_internal=False, partitions=partitions)


def find_coordinator(session: KafkaSession, request: Request) -> None:
    """The broker that keeps a group: this one. There are no transactions."""
    options = session.options
    kind = request.body.key_type if request.version >= 1 else GROUP
    code = Code.NONE
    if kind == TRANSACTION:
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif kind != GROUP:
        code = Code.INVALID_REQUEST
    else:
        code = session.access.group_code(request.body.key or "")
    response = FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=_reason(code),
        node_id=NODE_ID if code is Code.NONE else -1,
        host=options.host if code is Code.NONE else "",
        port=session.port if code is Code.NONE else -1,
    )
    session.answer(request, response)


def _reason(code: Code) -> str | None:
    if code is Code.GROUP_AUTHORIZATION_FAILED:
        return "Group authorization failed."
    return None if code is Code.NONE else "this broker coordinates groups only"


HANDLERS: dict[int, Handler] = {
    3: metadata,
    10: find_coordinator,
    API_VERSIONS: api_versions,
}
