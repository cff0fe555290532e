"""Fetch."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from kafka.protocol.consumer import FetchResponse

from ...metadata import Buffer
from ..errors import Code
from ..fetching import AT_ONCE_PARTITIONS, FetchWork
from ..reading import Asked, Read
from ..session import Handler, KafkaSession
from ..wire import RECORDS_MARK, Request

__all__ = ["HANDLERS"]

INT_MAX = 2**31 - 1
READ_COMMITTED = 1

_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


def fetch(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Entries from some offsets on; waits for new ones."""
    if request.version >= 7 and request.body.session_epoch > 0:
        # It leaves out partitions that a session of ours would have, and there are no sessions.
        refusal = FetchResponse(
            throttle_time_ms=0,
            error_code=Code.FETCH_SESSION_ID_NOT_FOUND,
            session_id=0,
            responses=[],
        )
        session.answer(request, refusal)
        return None
    if sum(len(topic.partitions or ()) for topic in request.body.topics or ()) > AT_ONCE_PARTITIONS:
        return _fetch_many(session, request)
    work = _work(session, request, [_asked(request, *each) for each in _named(request)])
    if work.needs_no_wait():
        _begin(session, request, work)
        return None
    return _open_and_begin(session, request, work)


async def _fetch_many(session: KafkaSession, request: Request) -> None:
    asked = [_asked(request, *each) async for each in session.in_turns(_named(request))]
    await _open_and_begin(session, request, _work(session, request, asked))


def _named(request: Request) -> Iterator[tuple[Any, Any]]:
    for topic in request.body.topics or ():
        for each in topic.partitions or ():
            yield topic, each


def _asked(request: Request, topic: Any, each: Any) -> Asked:
    return Asked(
        topic.topic or "",
        each.partition,
        each.fetch_offset,
        max(each.partition_max_bytes, 0),
        max(each.current_leader_epoch, -1) if request.version >= 9 else -1,
    )


def _work(session: KafkaSession, request: Request, asked: list[Asked]) -> FetchWork:
    body, version = request.body, request.version

    def answer(reads: list[Read]) -> Coroutine[Any, Any, None] | None:
        return _answer(session, request, asked, reads)

    max_bytes = max(body.max_bytes, 0) if version >= 3 else INT_MAX
    return FetchWork(session, version, asked, max_bytes, body.min_bytes, answer)


async def _open_and_begin(session: KafkaSession, request: Request, work: FetchWork) -> None:
    await work.open()
    _begin(session, request, work)


def _begin(session: KafkaSession, request: Request, work: FetchWork) -> None:
    if not work.begin(request.body.max_wait_ms):
        session.block(request, work.give_up)


def _answer(
    session: KafkaSession, request: Request, asked: list[Asked], reads: list[Read]
) -> Coroutine[Any, Any, None] | None:
    if len(asked) > AT_ONCE_PARTITIONS:
        return _answer_many(session, request, asked, reads)
    answer = _Answer(_is_committed(request))
    for each, read in zip(asked, reads, strict=True):
        answer.add(each, read)
    session.answer(request, answer.response(), answer.records())
    return None


async def _answer_many(
    session: KafkaSession, request: Request, asked: list[Asked], reads: list[Read]
) -> None:
    answer = _Answer(_is_committed(request))
    async for each, read in session.in_turns(zip(asked, reads, strict=True)):
        answer.add(each, read)
    await session.answer_by_size(request, answer.response(), len(asked), answer.records())


def _is_committed(request: Request) -> bool:
    """Whether a reader leaves out what was aborted, and needs the list of it (which is empty)."""
    return request.version >= 4 and request.body.isolation_level == READ_COMMITTED


class _Answer:
    """Partitions by topic, and their records in the order in which the topics are encoded."""

    def __init__(self, is_committed: bool) -> None:
        self._is_committed = is_committed
        self._topics: dict[str, list[Any]] = {}
        self._records: dict[str, list[list[Buffer]]] = {}

    def add(self, asked: Asked, read: Read) -> None:
        made = _partition(asked, read, is_committed=self._is_committed)
        self._topics.setdefault(asked.topic, []).append(made)
        if read.parts:
            self._records.setdefault(asked.topic, []).append(read.parts)

    def records(self) -> list[list[Buffer]]:
        return [parts for topic in self._topics for parts in self._records.get(topic, ())]

    def response(self) -> Any:
        return FetchResponse(
            throttle_time_ms=0,
            error_code=Code.NONE,
            session_id=0,
            responses=[_Topic(topic=name, partitions=each) for name, each in self._topics.items()],
        )


def _partition(asked: Asked, read: Read, *, is_committed: bool) -> Any:
    return _Partition(
        partition_index=asked.index,
        error_code=read.code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.high_watermark,
        log_start_offset=read.first_offset,
        aborted_transactions=[] if is_committed else None,
        preferred_read_replica=-1,
        records=RECORDS_MARK if read.parts else b"",
    )


HANDLERS: dict[int, Handler] = {1: fetch}
