"""OffsetCommit and OffsetFetch. A commit is answered when it is durable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import OffsetCommitResponse, OffsetFetchResponse

from ...ledger import LedgerError
from ..access import Operation
from ..errors import Code, KafkaError
from ..groups.offsets import Committed, Partition
from ..session import Handler, KafkaSession
from ..wire import Request

__all__ = ["HANDLERS"]

MAX_METADATA_BYTES = 4_096
"""offset.metadata.max.bytes"""
NOT_COMMITTED = Committed(-1, -1, "", -1)

_Topic = OffsetCommitResponse.OffsetCommitResponseTopic
_FetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopic


def offset_commit(session: KafkaSession, request: Request) -> None:
    """Store a group's offsets, all together; answered when they are durable."""
    body, endpoint, version = request.body, session.endpoint, request.version
    group = body.group_id or ""
    codes = dict.fromkeys(_partitions(body), Code.NONE)
    code = session.access.group_code(group) or endpoint.groups.check_commit(
        group,
        body.generation_id_or_member_epoch if version >= 1 else -1,
        (body.member_id or "") if version >= 1 else "",
        body.group_instance_id if version >= 7 else None,
    )
    offsets = {} if code is not Code.NONE else _checked(session, request, codes)
    if code is not Code.NONE:
        codes = dict.fromkeys(codes, code)
    if not offsets:
        _answer(session, request, codes)
        return

    def done(error: BaseException | None) -> None:
        if error is not None:
            codes.update(dict.fromkeys(offsets, Code.KAFKA_STORAGE_ERROR))
        _answer(session, request, codes)

    known = endpoint.groups.groups.get(group)
    kind = known.protocol_type if known is not None else endpoint.offsets.types.get(group, "")
    session.block(request, lambda: None)
    try:
        endpoint.offsets.commit(group, kind, offsets, done)
    except KafkaError as refusal:
        _answer(session, request, codes | dict.fromkeys(offsets, refusal.code))
    except LedgerError as error:
        session.storage_failed(error)
        done(error)


def _partitions(body: Any) -> list[Partition]:
    return [
        (topic.name or "", each.partition_index)
        for topic in body.topics or ()
        for each in topic.partitions or ()
    ]


def _checked(
    session: KafkaSession, request: Request, codes: dict[Partition, Code]
) -> dict[Partition, Committed]:
    """The offsets that can be stored; `codes` gets the reasons of the others."""
    port = session.endpoint.ports
    now_ms = port.now_ms()
    offsets = {}
    for topic in request.body.topics or ():
        name = topic.name or ""
        count = port.topics.partitions_of(name)
        for each in topic.partitions or ():
            at = name, each.partition_index
            text = each.committed_metadata or ""
            if not session.access.may(Operation.READ, name):
                codes[at] = Code.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= each.partition_index < count:
                codes[at] = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(text.encode()) > MAX_METADATA_BYTES:
                codes[at] = Code.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = each.committed_leader_epoch if request.version >= 6 else -1
                offsets[at] = Committed(each.committed_offset, epoch, text, now_ms)
    return offsets


def _answer(session: KafkaSession, request: Request, codes: Mapping[Partition, Code]) -> None:
    topics = [
        _Topic(
            name=topic.name or "",
            partitions=[
                _Topic.OffsetCommitResponsePartition(
                    partition_index=each.partition_index,
                    error_code=codes[topic.name or "", each.partition_index],
                )
                for each in topic.partitions or ()
            ],
        )
        for topic in request.body.topics or ()
    ]
    session.answer(request, OffsetCommitResponse(throttle_time_ms=0, topics=topics))


def offset_fetch(session: KafkaSession, request: Request) -> None:
    """A group's committed offsets; without a list of topics, all of them."""
    group = request.body.group_id or ""
    code = session.access.group_code(group)
    offsets = session.endpoint.offsets.of_group(group) if code is Code.NONE else {}
    if request.body.topics is None:
        asked: dict[str, list[int]] = {}
        for topic, index in offsets:
            if session.access.may(Operation.DESCRIBE, topic):
                asked.setdefault(topic, []).append(index)
    else:
        asked = {t.name or "": list(t.partition_indexes or ()) for t in request.body.topics}
    topics = [
        _FetchedTopic(
            name=topic,
            partitions=[
                _fetched(index, offsets.get((topic, index)), _code(session, code, topic))
                for index in indexes
            ],
        )
        for topic, indexes in asked.items()
    ]
    response = OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=code)
    session.answer(request, response)


def _code(session: KafkaSession, code: Code, topic: str) -> Code:
    """The error of one topic: the group's, or that of a topic that the client may not see."""
    if code is Code.NONE and not session.access.may(Operation.DESCRIBE, topic):
        return Code.TOPIC_AUTHORIZATION_FAILED
    return code


def _fetched(index: int, committed: Committed | None, code: Code) -> Any:
    found = NOT_COMMITTED if committed is None or code is not Code.NONE else committed
    return _FetchedTopic.OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=code,
    )


HANDLERS: dict[int, Handler] = {8: offset_commit, 9: offset_fetch}
