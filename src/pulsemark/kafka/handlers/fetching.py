"""Fetch."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kafka.protocol.consumer import FetchResponse

from ..errors import Code
from ..fetching import Asked, FetchWork, Read
from ..session import Handler, KafkaSession
from ..wire import RECORDS_MARK, Request

__all__ = ["HANDLERS"]

INT_MAX = 2**31 - 1
READ_COMMITTED = 1

_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


def fetch(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Entries from some offsets on; waits for new ones."""
    body, version = request.body, request.version
    if version >= 7 and body.session_epoch > 0:
        # It leaves out partitions that a session of ours would have, and there are no sessions.
        refusal = FetchResponse(
            throttle_time_ms=0,
            error_code=Code.FETCH_SESSION_ID_NOT_FOUND,
            session_id=0,
            responses=[],
        )
        session.answer(request, refusal)
        return None
    asked = [
        Asked(
            topic.topic or "",
            each.partition,
            each.fetch_offset,
            max(each.partition_max_bytes, 0),
            max(each.current_leader_epoch, -1) if version >= 9 else -1,
        )
        for topic in body.topics or ()
        for each in topic.partitions or ()
    ]

    def answer(reads: list[Read]) -> None:
        _answer(session, request, asked, reads)

    max_bytes = max(body.max_bytes, 0) if version >= 3 else INT_MAX
    work = FetchWork(session, version, asked, max_bytes, body.min_bytes, answer)
    if work.needs_no_wait():
        _begin(session, request, work)
        return None
    return _open_and_begin(session, request, work)


async def _open_and_begin(session: KafkaSession, request: Request, work: FetchWork) -> None:
    await work.open()
    _begin(session, request, work)


def _begin(session: KafkaSession, request: Request, work: FetchWork) -> None:
    if not work.answer_or_wait(request.body.max_wait_ms):
        session.block(request, work.give_up)


def _answer(session: KafkaSession, request: Request, asked: list[Asked], reads: list[Read]) -> None:
    by_topic: dict[str, list[Any]] = {}
    records = []
    is_committed = request.version >= 4 and request.body.isolation_level == READ_COMMITTED
    for each, read in zip(asked, reads, strict=True):
        mark = b""
        if read.parts:
            mark = RECORDS_MARK
            records.append(read.parts)
        made = _partition(each, read, mark, is_committed=is_committed)
        by_topic.setdefault(each.topic, []).append(made)
    response = FetchResponse(
        throttle_time_ms=0,
        error_code=Code.NONE,
        session_id=0,
        responses=[_Topic(topic=name, partitions=each) for name, each in by_topic.items()],
    )
    session.answer(request, response, records)


def _partition(asked: Asked, read: Read, mark: bytes, *, is_committed: bool) -> Any:
    return _Partition(
        partition_index=asked.index,
        error_code=read.code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.high_watermark,
        log_start_offset=read.first_offset,
        aborted_transactions=[] if is_committed else None,
        preferred_read_replica=-1,
        records=mark,
    )


HANDLERS: dict[int, Handler] = {1: fetch}
