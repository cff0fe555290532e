"""OffsetCommit, OffsetFetch and OffsetDelete. A change is answered when it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from kafka.protocol.consumer import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)

from ...ledger import LedgerError
from ..access import Operation
from ..errors import Code, KafkaError
from ..groups.offsets import Committed, Partition
from ..session import PART_BYTES, Handler, KafkaSession, parts_of
from ..wire import Request

__all__ = ["HANDLERS"]

#: A commit of more partitions is checked and answered in turns.
AT_ONCE_PARTITIONS = 500
MAX_METADATA_BYTES = 4_096
"""offset.metadata.max.bytes"""
MAX_CHARACTER_BYTES = 4
NOT_COMMITTED = Committed(-1, -1, "", -1)

_Topic = OffsetCommitResponse.OffsetCommitResponseTopic
_DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_FetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopic


def offset_commit(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Store a group's offsets, all together; answered when they are durable.

    A commit of few is begun at once: also a client that does not wait for the answer has it.
    """
    body = request.body
    if sum(len(topic.partitions or ()) for topic in body.topics or ()) > AT_ONCE_PARTITIONS:
        return _commit_in_turns(session, request)
    commit = _Commit(session, request)
    for name, each in _named(body):
        commit.check(name, each)

    def answer(error: BaseException | None) -> None:
        commit.stored(error)
        topics = commit.topics()
        session.answer(request, OffsetCommitResponse(throttle_time_ms=0, topics=topics))

    session.block(request, lambda: None)
    commit.begin(answer)
    return None


async def _commit_in_turns(session: KafkaSession, request: Request) -> None:
    commit = _Commit(session, request)
    async for name, each in session.in_turns(_named(request.body)):
        commit.check(name, each)
    stored: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    commit.begin(lambda error: None if stored.done() else stored.set_result(error))
    commit.stored(await stored)
    topics = await session.endpoint.ports.run_blocking(commit.topics)
    response = OffsetCommitResponse(throttle_time_ms=0, topics=topics)
    await session.answer_by_size(request, response, sum(len(each.partitions) for each in topics))


def _named(body: Any) -> Iterator[tuple[str, Any]]:
    for topic in body.topics or ():
        for each in topic.partitions or ():
            yield topic.name or "", each


class _Commit:
    """One OffsetCommit: what of it can be stored, and each partition's code."""

    def __init__(self, session: KafkaSession, request: Request) -> None:
        self._session = session
        self._body, self._version = request.body, request.version
        self._now_ms = session.endpoint.ports.now_ms()
        self._offsets: dict[Partition, Committed] = {}
        self._codes: dict[Partition, Code] = {}

    def check(self, name: str, each: Any) -> None:
        """Take the offset of one partition."""
        at = name, each.partition_index
        text = each.committed_metadata or ""
        code = Code.NONE
        if not self._session.access.may(Operation.READ, name):
            code = Code.TOPIC_AUTHORIZATION_FAILED
        elif not 0 <= at[1] < self._session.endpoint.ports.topics.partitions_of(name):
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        elif len(text.encode()) > MAX_METADATA_BYTES:
            code = Code.OFFSET_METADATA_TOO_LARGE
        else:
            epoch = each.committed_leader_epoch if self._version >= 6 else -1
            self._offsets[at] = Committed(each.committed_offset, epoch, text, self._now_ms)
        self._codes[at] = code

    def begin(self, done: Callable[[BaseException | None], None]) -> None:
        """Store the offsets; `done` is called when they are durable, or cannot be stored."""
        body, endpoint, version = self._body, self._session.endpoint, self._version
        group = body.group_id or ""
        code = self._session.group_code(group) or endpoint.groups.check_commit(
            group,
            body.generation_id_or_member_epoch if version >= 1 else -1,
            (body.member_id or "") if version >= 1 else "",
            body.group_instance_id if version >= 7 else None,
        )
        if code is not Code.NONE:
            self._codes, self._offsets = dict.fromkeys(self._codes, code), {}
        if not self._offsets:
            done(None)
            return
        known = endpoint.groups.groups.get(group)
        kind = known.protocol_type if known is not None else endpoint.offsets.types.get(group, "")
        try:
            endpoint.offsets.commit(group, kind, self._offsets, done)
        except (KafkaError, LedgerError) as error:
            done(error)

    def stored(self, error: BaseException | None) -> None:
        """It is durable, or there is an error."""
        if error is None:
            return
        code = error.code if isinstance(error, KafkaError) else self._session.group_storage_code
        if isinstance(error, LedgerError):
            self._session.storage_failed(error)
        self._codes.update(dict.fromkeys(self._offsets, code))

    def topics(self) -> list[Any]:
        """The answer's topics, each partition once."""
        by_topic: dict[str, list[Any]] = {}
        for (name, index), code in self._codes.items():
            by_topic.setdefault(name, []).append(
                _Topic.OffsetCommitResponsePartition(partition_index=index, error_code=code)
            )
        return [_Topic(name=name, partitions=each) for name, each in by_topic.items()]


async def offset_fetch(session: KafkaSession, request: Request) -> None:
    """A group's committed offsets; without a list of topics, all of them."""
    group = request.body.group_id or ""
    code = session.group_code(group)
    offsets = session.endpoint.offsets.of_group(group) if code is Code.NONE else {}
    by_topic: dict[str, list[Any]] = {}

    def answer_bytes(at: Partition) -> int:
        known = offsets.get(at)
        return PART_BYTES + (0 if known is None else MAX_CHARACTER_BYTES * len(known.metadata))

    async for topic, index in session.named(_fetched_of(request.body, offsets), answer_bytes):
        found = _code(session, code, topic)
        if request.body.topics is None and found is not Code.NONE:
            continue
        by_topic.setdefault(topic, []).append(_fetched(index, offsets.get((topic, index)), found))
    topics = [_FetchedTopic(name=name, partitions=each) for name, each in by_topic.items()]
    response = OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=code)
    await session.answer_by_size(request, response, sum(map(len, by_topic.values())))


def _fetched_of(body: Any, offsets: Mapping[Partition, Committed]) -> Iterable[Partition]:
    """The partitions that are asked for; without a list, those that have offsets."""
    if body.topics is None:
        return tuple(offsets)
    return (
        (topic.name or "", index)
        for topic in body.topics
        for index in topic.partition_indexes or ()
    )


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


async def offset_delete(session: KafkaSession, request: Request) -> None:
    """Remove a group's offsets of some partitions, except those of topics that it still reads."""
    body, endpoint = request.body, session.endpoint
    group = body.group_id or ""
    codes: dict[Partition, Code] = {}
    reads = cache(partial(endpoint.groups.reads, group))
    async for topic, each in session.named(
        _named(body), key=lambda named: (named[0], named[1].partition_index)
    ):
        code = _deletable(session, topic, each.partition_index)
        is_read = code is Code.NONE and reads(topic)
        codes[topic, each.partition_index] = Code.GROUP_SUBSCRIBED_TO_TOPIC if is_read else code
    code = session.group_code(group) or endpoint.groups.forgettable(group)
    dropped = [at for at, refusal in codes.items() if refusal is Code.NONE]
    if code is Code.NONE and dropped:
        try:
            await endpoint.offsets.dropping(group, dropped)
        except LedgerError as error:
            session.storage_failed(error)
            codes.update(dict.fromkeys(dropped, Code.KAFKA_STORAGE_ERROR))
    by_topic: dict[str, list[Any]] = {}
    if code is Code.NONE:
        async for (topic, index), refusal in session.in_turns(codes.items()):
            by_topic.setdefault(topic, []).append(
                _DeletedTopic.OffsetDeleteResponsePartition(
                    partition_index=index, error_code=refusal
                )
            )
    topics = [_DeletedTopic(name=name, partitions=each) for name, each in by_topic.items()]
    response = OffsetDeleteResponse(error_code=code, throttle_time_ms=0, topics=topics)
    await session.answer_by_size(request, response, len(codes))


def _deletable(session: KafkaSession, topic: str, index: int) -> Code:
    if not session.access.may(Operation.READ, topic):
        return Code.TOPIC_AUTHORIZATION_FAILED
    exists = 0 <= index < session.endpoint.ports.topics.partitions_of(topic)
    return Code.NONE if exists else Code.UNKNOWN_TOPIC_OR_PARTITION


def _parts_of_fetch(session: KafkaSession, request: Request) -> int:
    """Partitions, as the answer has them."""
    body = request.body
    if body.topics is None:
        return len(session.endpoint.offsets.of_group(body.group_id or ""))
    return parts_of("topics", "partition_indexes")(session, request)


HANDLERS: dict[int, Handler] = {
    8: Handler(offset_commit, parts_of("topics", "partitions")),
    9: Handler(offset_fetch, _parts_of_fetch),
    47: Handler(offset_delete, parts_of("topics", "partitions")),
}
