"""ApiVersions, Metadata, FindCoordinator, and the place of SASL.

The broker is alone: it leads every partition and coordinates every group. SASL is not served yet:
the handshake says so, and a client without credentials needs none.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from ..errors import Code, KafkaError
from ..names import is_name
from ..session import Handler, KafkaSession
from ..wire import APIS, Request, encode
from ..wire.apis import API_VERSIONS

__all__ = ["HANDLERS", "NODE_ID"]

log = logging.getLogger(__name__)

NODE_ID = 1
"""This broker's number in Kafka's protocol."""
GROUP, TRANSACTION = 0, 1
TOPICS_PER_TURN = 500
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
        served = [
            _Version(api_key=api.key, min_version=api.lowest, max_version=api.highest)
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
        topics = [await _topic(session, name, version, creates=creates) for name in names]
    options = session.options
    broker = MetadataResponse.MetadataResponseBroker(
        node_id=NODE_ID, host=options.host, port=options.port, rack=None
    )
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker],
        cluster_id=options.cluster,
        controller_id=NODE_ID,
        topics=topics,
    )
    if len(topics) <= TOPICS_PER_TURN:
        session.answer(request, response)
    else:
        run_blocking = session.endpoint.ports.run_blocking
        session.answer_frame(request, await run_blocking(encode, request, response))


async def _all_topics(session: KafkaSession) -> list[Any]:
    """Every topic, in pieces: there may be very many."""
    described = []
    port = session.endpoint.ports.topics
    for number, name in enumerate(port.names()):
        if not number % TOPICS_PER_TURN:
            await asyncio.sleep(0)
        described.append(_described(session, name, port.partitions_of(name)))
    return described


async def _topic(session: KafkaSession, name: str | None, version: int, *, creates: bool) -> Any:
    port = session.endpoint.ports.topics
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
    return _described(session, name, count)


def _unknown(name: str | None, code: Code) -> Any:
    return _Topic(error_code=code, name=name or "", is_internal=False, partitions=[])


def _described(session: KafkaSession, name: str, count: int) -> Any:
    opened = session.endpoint.ports.topics.opened
    partitions = []
    for index in range(count):
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
    response = FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=None if code is Code.NONE else "this broker coordinates groups only",
        node_id=NODE_ID if code is Code.NONE else -1,
        host=options.host if code is Code.NONE else "",
        port=options.port if code is Code.NONE else -1,
    )
    session.answer(request, response)


def sasl_handshake(session: KafkaSession, request: Request) -> None:
    """No mechanism is served: the broker does not authenticate clients yet."""
    log.info("%s: asked for SASL %r", session.address, request.body.mechanism)
    session.answer(
        request,
        SaslHandshakeResponse(error_code=Code.UNSUPPORTED_SASL_MECHANISM, mechanisms=[]),
    )


def sasl_authenticate(session: KafkaSession, request: Request) -> None:
    """There was no handshake."""
    session.answer(
        request,
        SaslAuthenticateResponse(
            error_code=Code.ILLEGAL_SASL_STATE,
            error_message="this broker does not authenticate clients",
            auth_bytes=b"",
            session_lifetime_ms=0,
        ),
    )


HANDLERS: dict[int, Handler] = {
    3: metadata,
    10: find_coordinator,
    17: sasl_handshake,
    API_VERSIONS: api_versions,
    36: sasl_authenticate,
}
