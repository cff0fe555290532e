"""Produce and InitProducerId."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse, ProduceResponse

from ...ledger import LedgerError
from ..access import Operation
from ..errors import Code, KafkaError
from ..publishing import Part, Publish
from ..session import Handler, KafkaSession
from ..wire import Request

__all__ = ["HANDLERS"]

ACKS = (-1, 0, 1)

_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse


def produce(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Store record sets; answered when all of them are durable, also with acks=1."""
    body = request.body
    parts = [
        Part(topic.name or "", each.index, each.records)
        for topic in body.topic_data or ()
        for each in topic.partition_data or ()
    ]
    for part in parts:
        if not session.access.may(Operation.WRITE, part.topic):
            part.refuse(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    publish = Publish(session, request.version, request.client_id, parts)
    if body.acks not in ACKS or (request.version >= 3 and body.transactional_id is not None):
        code = Code.INVALID_REQUIRED_ACKS
        if body.acks in ACKS:
            code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        for part in parts:
            part.refuse(code, f"acks={body.acks}: must be -1, 0 or 1")
        _answer(session, request, publish)
        return None
    if publish.needs_no_wait():
        _run(session, request, publish)
        return None
    return _prepare_and_run(session, request, publish)


async def _prepare_and_run(session: KafkaSession, request: Request, publish: Publish) -> None:
    await publish.prepare()
    _run(session, request, publish)


def _run(session: KafkaSession, request: Request, publish: Publish) -> None:
    if request.body.acks:
        publish.run(lambda: _answer(session, request, publish))
        return
    publish.run(lambda: _close_if_refused(session, publish))
    session.answer_nothing(request)


def _close_if_refused(session: KafkaSession, publish: Publish) -> None:
    """Without answers only the end of its connection tells a client that something is wrong."""
    refused = next((part for part in publish.parts if part.code is not Code.NONE), None)
    if refused is not None:
        session.close_because(
            f"a set for {refused.topic[:300]!r} sent with acks=0 was refused: {refused.message}"
        )


def _answer(session: KafkaSession, request: Request, publish: Publish) -> None:
    if not request.body.acks:
        session.answer_nothing(request)
        _close_if_refused(session, publish)
        return
    by_topic: dict[str, list[Any]] = {}
    for part in publish.parts:
        by_topic.setdefault(part.topic, []).append(
            _Partition(
                index=part.index,
                error_code=part.code,
                base_offset=part.base_offset,
                log_append_time_ms=part.time_ms,
                log_start_offset=-1 if part.partition is None else part.partition.first_offset,
                record_errors=[],
                error_message=part.message,
            )
        )
    responses = [_Topic(name=name, partition_responses=each) for name, each in by_topic.items()]
    session.answer(request, ProduceResponse(responses=responses, throttle_time_ms=0))


async def init_producer_id(session: KafkaSession, request: Request) -> None:
    """A new producer id. There are no transactions."""
    code, producer_id = Code.NONE, -1
    if request.body.transactional_id is not None:
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        try:
            session.access.check_writes_somewhere()
            producer_id = await session.endpoint.producer_ids.take()
        except KafkaError as refusal:
            code = refusal.code
        except LedgerError:
            code = Code.COORDINATOR_NOT_AVAILABLE
    response = InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=code,
        producer_id=producer_id,
        producer_epoch=0 if code is Code.NONE else -1,
    )
    session.answer(request, response)


HANDLERS: dict[int, Handler] = {0: produce, 22: init_producer_id}
