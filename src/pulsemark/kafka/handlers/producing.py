"""Produce and InitProducerId."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from kafka.protocol.producer import InitProducerIdResponse, ProduceResponse

from ...ledger import LedgerError
from ..access import Operation
from ..errors import NO_TRANSACTIONS, Code, KafkaError
from ..publishing import AT_ONCE_PARTS, Part, Publish
from ..session import Handler, KafkaSession, one_part, parts_of
from ..wire import Request

__all__ = ["HANDLERS"]

log = logging.getLogger(__name__)

ACKS = (-1, 0, 1)

_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse


def produce(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Store record sets; answered when all of them are durable, also with acks=1."""
    body = request.body
    if sum(len(topic.partition_data or ()) for topic in body.topic_data or ()) > AT_ONCE_PARTS:
        return _produce_many(session, request)
    publish = _publish(session, request, list(_parts(session, request)))
    refusal = _refusal(request)
    if refusal is not None:
        for part in publish.parts:
            part.refuse(*refusal)
        _answer(session, request, publish)
        return None
    if publish.needs_no_wait():
        _run(session, request, publish)
        return None
    return _prepare_and_run(session, request, publish)


def _publish(session: KafkaSession, request: Request, parts: list[Part]) -> Publish:
    return Publish(session, request.version, request.client_id, parts)


def _parts(session: KafkaSession, request: Request) -> Iterator[Part]:
    """The sets of a request; those that the client may not write are refused."""
    for topic in request.body.topic_data or ():
        for each in topic.partition_data or ():
            part = Part(topic.name or "", each.index, each.records)
            if not session.access.may(Operation.WRITE, part.topic):
                part.refuse(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
            yield part


def _refusal(request: Request) -> tuple[Code, str] | None:
    """Why no set of the request can be stored."""
    body = request.body
    if body.acks not in ACKS:
        return Code.INVALID_REQUIRED_ACKS, f"acks={body.acks}: must be -1, 0 or 1"
    if request.version >= 3 and body.transactional_id is not None:
        return NO_TRANSACTIONS, "this broker serves no transactions"
    return None


async def _prepare_and_run(session: KafkaSession, request: Request, publish: Publish) -> None:
    await publish.prepare()
    _run(session, request, publish)


def _run(session: KafkaSession, request: Request, publish: Publish) -> None:
    if request.body.acks:
        publish.run(lambda: _answer(session, request, publish))
        return
    publish.run(lambda: _close_if_refused(session, publish))
    session.answer_nothing(request)


async def _produce_many(session: KafkaSession, request: Request) -> None:
    """Sets for very many partitions: all steps in turns. Later requests wait for the answer."""
    publish = _publish(
        session, request, [part async for part in session.in_turns(_parts(session, request))]
    )
    refusal = _refusal(request)
    if refusal is not None:
        async for part in session.in_turns(publish.parts):
            part.refuse(*refusal)
    else:
        await publish.prepare()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await publish.run_in_turns(lambda: None if done.done() else done.set_result(None))
    await done
    if not request.body.acks:
        session.answer_nothing(request)
        _close_if_refused(session, publish)
        return
    answer = _Answer(publish.throttle_ms)
    async for part in session.in_turns(publish.parts):
        answer.add(part)
    await session.answer_by_size(request, answer.response(), len(publish.parts))


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
    answer = _Answer(publish.throttle_ms)
    for part in publish.parts:
        answer.add(part)
    session.answer(request, answer.response())


class _Answer:
    """What became of each set, by topic."""

    def __init__(self, throttle_ms: int) -> None:
        self._throttle_ms = throttle_ms
        self._topics: dict[str, list[Any]] = {}

    def add(self, part: Part) -> None:
        self._topics.setdefault(part.topic, []).append(
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

    def response(self) -> Any:
        topics = self._topics.items()
        responses = [_Topic(name=name, partition_responses=each) for name, each in topics]
        return ProduceResponse(responses=responses, throttle_time_ms=self._throttle_ms)


async def init_producer_id(session: KafkaSession, request: Request) -> None:
    """A new producer id. There are no transactions."""
    code, producer_id = Code.NONE, -1
    if request.body.transactional_id is not None:
        code = NO_TRANSACTIONS
        log.info(
            "%s: a producer with the transactional id %r was refused: transactions are not served",
            session.address,
            request.body.transactional_id[:100],
        )
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


HANDLERS: dict[int, Handler] = {
    0: Handler(produce, parts_of("topic_data", "partition_data")),
    22: Handler(init_producer_id, one_part),
}
