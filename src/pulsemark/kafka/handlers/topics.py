"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from kafka.protocol.admin import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)

from ...ledger import LedgerError
from ..access import Operation
from ..answering import PART_BYTES
from ..errors import MESSAGE_LENGTH, Code, KafkaError
from ..names import is_name
from ..session import Handler, KafkaSession, parts_of
from ..settings import check_settings
from ..wire import Request

__all__ = ["HANDLERS"]


async def create_topics(session: KafkaSession, request: Request) -> None:
    """Create topics with their settings; each is durable or refused."""
    named = await session.gathered(request.body.topics or (), attrgetter("name"))
    results = []
    async for topic, *others in session.named(
        named.values(), lambda named: _answer_bytes(named[0].name), key=lambda named: named[0].name
    ):
        name, code, message = topic.name, Code.NONE, None
        try:
            if others:
                raise KafkaError(Code.INVALID_REQUEST, f"{name} is in the request more than once")
            await _create(session, topic, only_check=_flag(request))
        except KafkaError as refusal:
            code, message = refusal.code, refusal.message
        results.append(
            CreateTopicsResponse.CreatableTopicResult(
                name=name or "", error_code=code, error_message=message
            )
        )
    response = CreateTopicsResponse(throttle_time_ms=0, topics=results)
    await session.answer_by_size(request, response, len(results))


def _answer_bytes(name: str | None) -> int:
    """What an answer says of one topic at most."""
    return PART_BYTES + MESSAGE_LENGTH + len(name or "")


def _flag(request: Request) -> bool:
    return request.version >= 1 and bool(request.body.validate_only)


async def _create(session: KafkaSession, topic: Any, *, only_check: bool) -> None:
    port, name = session.endpoint.ports.topics, topic.name
    session.access.check(Operation.ADMINISTER, name)
    if not is_name(name):
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is not a topic's name")
    if port.partitions_of(name):
        raise KafkaError(Code.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
    partitions = _partitions_asked(session, topic)
    settings = check_settings({each.name or "": each.value for each in topic.configs or ()})
    if len(settings) < len(topic.configs or ()):
        raise KafkaError(Code.INVALID_CONFIG, "a setting has no value, or two")
    if not only_check:
        await port.create(name, partitions, settings)


def _partitions_asked(session: KafkaSession, topic: Any) -> int:
    """How many partitions a new topic is to have. Raises KafkaError."""
    partitions: int = topic.num_partitions
    replicas = topic.replication_factor
    if topic.assignments:
        if partitions != -1 or replicas != -1:
            raise KafkaError(
                Code.INVALID_REQUEST, "assignments go without partitions and replication factor"
            )
        indexes = sorted(each.partition_index for each in topic.assignments)
        _check_assignments(session, [each.broker_ids for each in topic.assignments])
        if indexes != list(range(len(indexes))):
            raise KafkaError(Code.INVALID_REPLICA_ASSIGNMENT, f"partitions {indexes[:20]}")
        partitions, replicas = len(indexes), 1
    elif partitions == -1:
        partitions = session.options.default_partitions
    _check_partitions(session, partitions)
    if replicas not in (-1, 1):
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR, f"replication factor {replicas}: there is one broker"
        )
    return partitions


def _check_partitions(session: KafkaSession, partitions: int) -> None:
    most = session.options.max_partitions
    if not 0 < partitions <= most:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"{partitions} partitions: from 1 to {most} are possible"
        )


def _check_assignments(session: KafkaSession, assignments: list[list[int]]) -> None:
    node_id = session.endpoint.cluster.node_id
    for replicas in assignments:
        if replicas != [node_id]:
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {replicas[:20]}: the broker is {node_id}",
            )


async def delete_topics(session: KafkaSession, request: Request) -> None:
    """Delete topics with their data and the offsets committed for them."""
    endpoint = session.endpoint
    results = []
    async for name in session.named(request.body.topic_names or (), _answer_bytes):
        code = Code.NONE
        try:
            session.access.check(Operation.ADMINISTER, name)
            if not endpoint.cluster.coordinates():  # the offsets have to go, too
                raise KafkaError(Code.NOT_CONTROLLER, "another broker deletes topics")
            if not is_name(name) or not endpoint.ports.topics.partitions_of(name):
                raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            await endpoint.ports.topics.delete(name)
            await endpoint.offsets.drop_topic(name)
        except KafkaError as refusal:
            code = refusal.code
        except LedgerError:
            code = Code.KAFKA_STORAGE_ERROR
        results.append(DeleteTopicsResponse.DeletableTopicResult(name=name or "", error_code=code))
    response = DeleteTopicsResponse(throttle_time_ms=0, responses=results)
    await session.answer_by_size(request, response, len(results))


async def create_partitions(session: KafkaSession, request: Request) -> None:
    """Give topics more partitions."""
    results = []
    async for topic in session.named(
        request.body.topics or (), lambda topic: _answer_bytes(topic.name), key=attrgetter("name")
    ):
        code, message = Code.NONE, None
        try:
            await _add_partitions(session, topic, only_check=bool(request.body.validate_only))
        except KafkaError as refusal:
            code, message = refusal.code, refusal.message
        results.append(
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=topic.name or "", error_code=code, error_message=message
            )
        )
    response = CreatePartitionsResponse(throttle_time_ms=0, results=results)
    await session.answer_by_size(request, response, len(results))


async def _add_partitions(session: KafkaSession, topic: Any, *, only_check: bool) -> None:
    port, name = session.endpoint.ports.topics, topic.name
    session.access.check(Operation.ADMINISTER, name)
    count = port.partitions_of(name) if is_name(name) else 0
    if not count:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    if topic.count <= count:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"{name} has {count} partitions, {topic.count} are not more"
        )
    _check_partitions(session, topic.count)
    if topic.assignments is not None:
        if len(topic.assignments) != topic.count - count:
            raise KafkaError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{len(topic.assignments)} assignments for {topic.count - count} new partitions",
            )
        _check_assignments(session, [each.broker_ids for each in topic.assignments])
    if not only_check:
        await port.add_partitions(name, topic.count)


HANDLERS: dict[int, Handler] = {
    19: Handler(create_topics, parts_of("topics")),
    20: Handler(delete_topics, parts_of("topic_names")),
    37: Handler(create_partitions, parts_of("topics")),
}
