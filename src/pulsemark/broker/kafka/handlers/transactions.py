"""The transaction requests: InitProducerId and those of transactional producers (KIP-98, KIP-447).

The coordinator (`groups.transactions`) decides; here are the requests' parts and versions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeTransactionsResponse, ListTransactionsResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)

from ....kafka.errors import Code, KafkaError, code_of
from ....kafka.protocol import Request
from ....kafka.records import NO_PRODUCER, Producer
from ..access import Operation
from ..endpoint import (
    PART_BYTES,
    Handler,
    KafkaSession,
    one_part,
    parts_of,
    refusing,
)
from ..groups.offsets import Committed, Partition, State, Transaction
from .grouping import checked_offsets, topics_of

log = logging.getLogger(__name__)

#: From these versions on, an end gives the producer its next epoch, and offsets add their group to
#: the transaction (KIP-890).
BUMPING_VERSION, ADDING_VERSION = 5, 5
#: From these versions on, a client knows the code PRODUCER_FENCED.
FENCED_VERSIONS = {22: 4, 24: 2, 25: 2, 26: 2}
_Added = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Offsets = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Described = DescribeTransactionsResponse.TransactionState


@contextmanager
def _refusing(request: Request, answer: Any) -> Iterator[None]:
    """As `refusing`, with the error code as the request's version has it."""
    with refusing(answer, failed=Code.COORDINATOR_NOT_AVAILABLE):
        yield
    since = FENCED_VERSIONS.get(request.api.key)
    if answer.error_code is Code.PRODUCER_FENCED and (since is None or request.version < since):
        answer.error_code = Code.INVALID_PRODUCER_EPOCH


@dataclass(slots=True)
class _Outcome:
    """The code for all partitions of an answer."""

    error_code: Code = Code.NONE


def _producer(body: Any) -> Producer:
    return Producer(body.producer_id, body.producer_epoch)


async def init_producer_id(session: KafkaSession, request: Request) -> None:
    """Answer with a new producer id, or with the next epoch of a transactional id."""
    answer = InitProducerIdResponse(producer_id=-1, producer_epoch=-1)
    with _refusing(request, answer):
        answer.producer_id, answer.producer_epoch = await _begun(session, request)
    if answer.error_code:
        name, code = str(request.body.transactional_id)[:100], Code(answer.error_code).name
        log.info("%s: InitProducerId of %r is answered with %s", session.address, name, code)
    session.answer(request, answer)


async def _begun(session: KafkaSession, request: Request) -> Producer:
    body, endpoint = request.body, session.endpoint
    if body.transactional_id is None:
        session.access.check_writes_somewhere()
        return Producer(await endpoint.producer_ids.take(), 0)
    session.access.check_transactional_id()
    claimed = _producer(body) if request.version >= 3 else NO_PRODUCER
    if (claimed.producer_id == -1) != (claimed.epoch == -1):
        raise KafkaError(Code.INVALID_REQUEST, f"half of a producer: {claimed}")
    timeout_ms = body.transaction_timeout_ms
    return await endpoint.transactions.init(body.transactional_id, timeout_ms, claimed)


async def add_partitions(session: KafkaSession, request: Request) -> None:
    """Add partitions to a transaction: all that are named, or none."""
    body, codes = request.body, dict[Partition, Code]()
    topics = session.endpoint.topics
    named = (
        (t.name or "", index) for t in body.v3_and_below_topics or () for index in t.partitions
    )
    async for name, index in session.named(named):
        code = Code.NONE
        if not session.access.may(Operation.WRITE, name):
            code = Code.TOPIC_AUTHORIZATION_FAILED
        elif not 0 <= index < topics.partitions_of(name):
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        codes[name, index] = code
    if any(codes.values()):
        codes = {at: code or Code.OPERATION_NOT_ATTEMPTED for at, code in codes.items()}
    else:
        outcome = _Outcome()
        with _refusing(request, outcome):
            session.access.check_transactional_id()
            producer = Producer(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
            name = body.v3_and_below_transactional_id or ""
            await session.endpoint.transactions.add(name, producer, codes)
        codes = dict.fromkeys(codes, outcome.error_code)
    by_topic: dict[str, list[Any]] = {}
    for (name, index), code in codes.items():
        by_topic.setdefault(name, []).append(
            _Added.AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=code
            )
        )
    results = [_Added(name=name, results_by_partition=each) for name, each in by_topic.items()]
    response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    await session.answer_by_size(request, response, len(codes))


async def add_offsets(session: KafkaSession, request: Request) -> None:
    """Add a group, whose offsets will be committed, to a transaction."""
    body, answer = request.body, AddOffsetsToTxnResponse()
    name, group = body.transactional_id or "", body.group_id or ""
    with _refusing(request, answer):
        session.access.check_transactional_id()
        if code := session.group_code(group):
            raise KafkaError(code, "the group cannot be used")
        await session.endpoint.transactions.add(name, _producer(body), groups=[group])
    session.answer(request, answer)


async def end(session: KafkaSession, request: Request) -> None:
    """Commit or abort a transaction."""
    body, answer = request.body, EndTxnResponse(producer_id=-1, producer_epoch=-1)
    with _refusing(request, answer):
        session.access.check_transactional_id()
        answer.producer_id, answer.producer_epoch = await session.endpoint.transactions.end(
            body.transactional_id or "",
            _producer(body),
            commits=bool(body.committed),
            bumps=request.version >= BUMPING_VERSION,
        )
    session.answer(request, answer)


async def commit_offsets(session: KafkaSession, request: Request) -> None:
    """Store a group's offsets with a transaction. They count once it is committed."""
    codes, offsets = await checked_offsets(session, request, since=2)
    if offsets:
        outcome = _Outcome()
        with _refusing(request, outcome):
            await _commit(session, request, offsets)
        codes |= dict.fromkeys(offsets, outcome.error_code)
    part = _Offsets.TxnOffsetCommitResponsePartition
    topics = await topics_of(session, codes, _Offsets, part)
    await session.answer_by_size(request, TxnOffsetCommitResponse(topics=topics), len(codes))


async def _commit(
    session: KafkaSession, request: Request, offsets: dict[Partition, Committed]
) -> None:
    body, endpoint = request.body, session.endpoint
    group = body.group_id or ""
    session.access.check_transactional_id()
    code = session.group_code(group)
    if not code and not group:
        code = Code.INVALID_GROUP_ID
    if not code and request.version >= 3:
        code = _member_code(session, group, body)
    if code:
        raise KafkaError(code, f"no offset of group {group!r} can be committed")
    kind = endpoint.groups.type_of(group)
    name, producer = body.transactional_id or "", _producer(body)
    if request.version >= ADDING_VERSION:
        await endpoint.transactions.add(name, producer, groups=[group])
    await endpoint.transactions.commit_offsets(name, producer, group, kind, offsets)


def _member_code(session: KafkaSession, group: str, body: Any) -> Code:
    """The code that refuses a member's commit. A request without a member is granted."""
    generation, member_id, instance_id = body.generation_id, body.member_id, body.group_instance_id
    if generation < 0 and not member_id and instance_id is None:
        return Code.NONE
    check = session.endpoint.groups.check_commit
    code = code_of(check, group, generation, member_id or "", instance_id, knows_epochs=True)
    is_other = code in (Code.GROUP_ID_NOT_FOUND, Code.STALE_MEMBER_EPOCH)
    return Code.ILLEGAL_GENERATION if is_other else code


async def describe(session: KafkaSession, request: Request) -> None:
    """Answer with the states of transactional ids (KIP-664)."""

    def answer_bytes(name: str) -> int:
        known = _known(session).get(name)
        return PART_BYTES * (1 + (0 if known is None else len(known.partitions))) + len(name)

    named = (name or "" for name in request.body.transactional_ids or ())
    states = [_description(session, name) async for name in session.named(named, answer_bytes)]
    response = DescribeTransactionsResponse(transaction_states=states)
    await session.answer_by_size(request, response, len(states))


def _known(session: KafkaSession) -> Any:
    try:
        return session.endpoint.transactions.known
    except KafkaError:
        return {}


def _description(session: KafkaSession, name: str) -> Any:
    known: Transaction | None = _known(session).get(name)
    code = Code.TRANSACTIONAL_ID_NOT_FOUND if known is None else Code.NONE
    if not name:
        code = Code.INVALID_REQUEST
    code = session.endpoint.group_refusal() or code
    try:
        session.access.check_transactional_id()
    except KafkaError as refusal:
        known, code = None, refusal.code
    by_topic: dict[str, list[int]] = {}
    if known is None:
        known = Transaction(name, Producer(0, 0), 0)
    for topic, index in sorted(known.partitions):
        if session.access.may(Operation.DESCRIBE, topic):
            by_topic.setdefault(topic, []).append(index)
    return _Described(
        error_code=code,
        transactional_id=name,
        transaction_state=known.state.value if code is Code.NONE else "",
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms if known.state is State.ONGOING else -1,
        producer_id=known.producer.producer_id,
        producer_epoch=known.producer.epoch,
        topics=[_Described.TopicData(topic=each, partitions=by_topic[each]) for each in by_topic],
    )


async def list_all(session: KafkaSession, request: Request) -> None:
    """Answer with transactional ids, filtered by state, producer and age (KIP-664, KIP-994)."""
    body, now_ms = request.body, session.endpoint.now_ms()
    states = {each async for each in session.named(body.state_filters or ())}
    ids = {each async for each in session.named(body.producer_id_filters or ())}
    least_ms = body.duration_filter if request.version >= 1 else -1
    found = []
    async for known in session.in_turns(tuple(_known(session).values())):
        is_old = known.state is State.ONGOING and now_ms - known.started_ms > least_ms
        if (
            (not states or known.state.value in states)
            and (not ids or known.producer.producer_id in ids)
            and (least_ms < 0 or is_old)
        ):
            found.append(
                ListTransactionsResponse.TransactionState(
                    transactional_id=known.name,
                    producer_id=known.producer.producer_id,
                    transaction_state=known.state.value,
                )
            )
    try:
        session.access.check_transactional_id()
    except KafkaError:
        found = []  # as Kafka, which shows each client its own
    response = ListTransactionsResponse(
        unknown_state_filters=sorted(states - {each.value for each in State}),
        transaction_states=found,
    )
    await session.answer_by_size(request, response, len(found))


def _parts_of_list(session: KafkaSession, request: Request) -> int:
    filters = parts_of("state_filters")(session, request)
    return filters + parts_of("producer_id_filters")(session, request) + len(_known(session))


HANDLERS: dict[int, Handler] = {
    22: Handler(init_producer_id, one_part),
    24: Handler(add_partitions, parts_of("v3_and_below_topics", "partitions")),
    25: Handler(add_offsets, one_part),
    26: Handler(end, one_part),
    28: Handler(commit_offsets, parts_of("topics", "partitions")),
    65: Handler(describe, parts_of("transactional_ids")),
    66: Handler(list_all, _parts_of_list),
}
