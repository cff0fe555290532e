"""Fetch."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from kafka.protocol.consumer import FetchResponse

from ...metadata import Buffer
from ..errors import Code, KafkaError
from ..fetch_sessions import NO_SESSION, FetchContext, Key, Wanted
from ..fetching import AT_ONCE_PARTITIONS, FetchWork
from ..reading import Asked, Read
from ..session import Handler, KafkaSession, parts_of
from ..wire import RECORDS_MARK, Request

__all__ = ["HANDLERS"]

INT_MAX = 2**31 - 1
READ_COMMITTED = 1
#: From these versions of Fetch on, a request has a session, and its partitions leader epochs.
SESSIONS_VERSION, EPOCHS_VERSION = 7, 9

_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


def fetch(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Entries from some offsets on; waits for new ones."""
    body = request.body
    count = sum(len(topic.partitions or ()) for topic in body.topics or ())
    if request.version >= SESSIONS_VERSION:
        count += sum(len(topic.partitions or ()) for topic in body.forgotten_topics_data or ())
    if count > AT_ONCE_PARTITIONS:
        return _fetch_many(session, request)
    return _fetch(session, request, dict(_named(request)), list(_forgotten(request)))


async def _fetch_many(session: KafkaSession, request: Request) -> None:
    wanted = {key: place async for key, place in session.in_turns(_named(request))}
    forgotten = [key async for key in session.in_turns(_forgotten(request))]
    work = _fetch(session, request, wanted, forgotten)
    if work is not None:
        await work


def _named(request: Request) -> Iterator[tuple[Key, Wanted]]:
    has_epochs = request.version >= EPOCHS_VERSION
    for topic in request.body.topics or ():
        name = topic.topic or ""
        for each in topic.partitions or ():
            epoch = max(each.current_leader_epoch, -1) if has_epochs else -1
            most = max(each.partition_max_bytes, 0)
            yield (name, each.partition), Wanted(each.fetch_offset, most, epoch)


def _forgotten(request: Request) -> Iterator[Key]:
    if request.version >= SESSIONS_VERSION:
        for topic in request.body.forgotten_topics_data or ():
            name = topic.topic or ""
            for index in topic.partitions or ():
                yield name, index


def _fetch(
    session: KafkaSession, request: Request, wanted: dict[Key, Wanted], forgotten: list[Key]
) -> Coroutine[Any, Any, None] | None:
    """Read what the request names and its session has."""
    try:
        context = _context(session, request, wanted, forgotten)
    except KafkaError as refusal:
        session.answer(request, _refusal(refusal.code, NO_SESSION))
        return None
    if len(context.wanted) > AT_ONCE_PARTITIONS:
        return _read_many(session, request, context)
    asked = [Asked(*key, *place) for key, place in context.wanted]
    work = _work(session, request, context, asked)
    if work.needs_no_wait():
        _begin(session, request, work)
        return None
    return _open_and_begin(session, request, work)


def _context(
    session: KafkaSession, request: Request, wanted: dict[Key, Wanted], forgotten: list[Key]
) -> FetchContext:
    """Raises KafkaError: the session cannot go on."""
    sessions, body = session.endpoint.fetch_sessions, request.body
    if request.version < SESSIONS_VERSION:
        return sessions.sessionless(wanted)
    principal = None if session.admitted is None else session.admitted.principal
    return sessions.context(principal, body.session_id, body.session_epoch, wanted, forgotten)


async def _read_many(session: KafkaSession, request: Request, context: FetchContext) -> None:
    asked = [Asked(*key, *place) async for key, place in session.in_turns(context.wanted)]
    await _open_and_begin(session, request, _work(session, request, context, asked))


def _work(
    session: KafkaSession, request: Request, context: FetchContext, asked: list[Asked]
) -> FetchWork:
    body, version = request.body, request.version

    def answer(reads: list[Read]) -> Coroutine[Any, Any, None] | None:
        return _answer(session, request, context, asked, reads)

    max_bytes = max(body.max_bytes, 0) if version >= 3 else INT_MAX
    return FetchWork(session, version, asked, max_bytes, body.min_bytes, answer)


async def _open_and_begin(session: KafkaSession, request: Request, work: FetchWork) -> None:
    await work.open()
    _begin(session, request, work)


def _begin(session: KafkaSession, request: Request, work: FetchWork) -> None:
    if not work.begin(request.body.max_wait_ms):
        session.block(request, work.give_up)


def _answer(
    session: KafkaSession,
    request: Request,
    context: FetchContext,
    asked: list[Asked],
    reads: list[Read],
) -> Coroutine[Any, Any, None] | None:
    if len(asked) > AT_ONCE_PARTITIONS:
        return _answer_many(session, request, context, asked, reads)
    answer = _Answer(context, _is_committed(request))
    for each, read in zip(asked, reads, strict=True):
        answer.add(each, read)
    session.answer(request, answer.response(), answer.records())
    return None


async def _answer_many(
    session: KafkaSession,
    request: Request,
    context: FetchContext,
    asked: list[Asked],
    reads: list[Read],
) -> None:
    answer = _Answer(context, _is_committed(request))
    async for each, read in session.in_turns(zip(asked, reads, strict=True)):
        answer.add(each, read)
    await session.answer_by_size(request, answer.response(), answer.parts, answer.records())


def _is_committed(request: Request) -> bool:
    """Whether a reader leaves out what was aborted, and needs the list of it (which is empty)."""
    return request.version >= 4 and request.body.isolation_level == READ_COMMITTED


def _refusal(code: Code, session_id: int) -> Any:
    return FetchResponse(throttle_time_ms=0, error_code=code, session_id=session_id, responses=[])


class _Answer:
    """Partitions by topic, and their records in the order in which the topics are encoded."""

    def __init__(self, context: FetchContext, is_committed: bool) -> None:
        self._context = context
        #: Another request of the session came while this one waited: it gets no partitions.
        self._code = context.code
        self._is_committed = is_committed
        self.parts = 0
        self._topics: dict[str, list[Any]] = {}
        self._records: dict[str, list[list[Buffer]]] = {}

    def add(self, asked: Asked, read: Read) -> None:
        """Add a partition, if the client has to know of it."""
        if self._code is not Code.NONE:
            return
        if not self._context.must_answer((asked.topic, asked.index), read):
            return
        self.parts += 1
        made = _partition(asked, read, is_committed=self._is_committed)
        self._topics.setdefault(asked.topic, []).append(made)
        if read.parts:
            self._records.setdefault(asked.topic, []).append(read.parts)

    def records(self) -> list[list[Buffer]]:
        return [parts for topic in self._topics for parts in self._records.get(topic, ())]

    def response(self) -> Any:
        if self._code is not Code.NONE:
            return _refusal(self._code, self._context.session_id())
        return FetchResponse(
            throttle_time_ms=0,
            error_code=Code.NONE,
            session_id=self._context.session_id(),
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


_parts_of_topics, _parts_of_forgotten = (
    parts_of(field, "partitions") for field in ("topics", "forgotten_topics_data")
)


def _parts(session: KafkaSession, request: Request) -> int:
    forgotten = 0
    if request.version >= SESSIONS_VERSION:
        forgotten = _parts_of_forgotten(session, request)
    return forgotten + _parts_of_topics(session, request)


HANDLERS: dict[int, Handler] = {1: Handler(fetch, _parts)}
