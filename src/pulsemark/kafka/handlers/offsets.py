"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a partition's offsets are."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from kafka.protocol.admin import DeleteRecordsResponse
from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from ...finder import Finder, Found, IndexOutOfRangeError
from ...ledger import EntryKind, LedgerError
from ...ledger.being_read import when_read
from ...ledger.epochs import epoch_runs
from ..access import Operation
from ..errors import Code, KafkaError
from ..partitions import KafkaPartition
from ..session import Handler, KafkaSession
from ..wire import Request

__all__ = ["HANDLERS"]

LATEST, EARLIEST, NEWEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
#: The lowest version in which each may be asked for.
SPECIAL_TIMES = {
    LATEST: 0, EARLIEST: 0, NEWEST: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11,
}  # fmt: skip
#: Control entries at the end of a log that are skipped to find its newest record.
MAX_CONTROL_ENTRIES = 1_000
MAX_OLD_STYLE_OFFSETS = 1_000

_Listed = ListOffsetsResponse.ListOffsetsTopicResponse
_Epochs = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Deleted = DeleteRecordsResponse.DeleteRecordsTopicResult


async def list_offsets(session: KafkaSession, request: Request) -> None:
    """Offsets by broker time, and the ends of the log."""
    topics = []
    times = Counter(
        (topic.name, each.partition_index)
        for topic in request.body.topics or ()
        for each in topic.partitions or ()
    )
    for topic in request.body.topics or ():
        name = topic.name or ""
        found = []
        async for each in session.in_turns(topic.partitions or ()):
            is_repeated = request.version >= 1 and times[topic.name, each.partition_index] > 1
            found.append(await _list_one(session, request, name, each, is_repeated=is_repeated))
        topics.append(_Listed(name=name, partitions=found))
    response = ListOffsetsResponse(throttle_time_ms=0, topics=topics)
    await session.answer_by_size(request, response, sum(len(each.partitions) for each in topics))


async def _list_one(
    session: KafkaSession, request: Request, topic: str, asked: Any, *, is_repeated: bool
) -> Any:
    answer = _Listed.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=Code.NONE,
        old_style_offsets=[],
        timestamp=-1,
        offset=-1,
        leader_epoch=-1,
    )
    try:
        session.access.check(Operation.DESCRIBE, topic)
        if is_repeated:
            raise KafkaError(Code.INVALID_REQUEST, f"{topic} is in the request more than once")
        partition = await session.endpoint.partitions.open(topic, asked.partition_index)
        if request.version >= 4:
            partition.check_epoch(asked.current_leader_epoch)
        if request.version == 0:
            count = min(max(asked.max_num_offsets, 0), MAX_OLD_STYLE_OFFSETS)
            now_ms = session.endpoint.ports.now_ms()
            answer.old_style_offsets = _old_style(partition, asked.timestamp, now_ms)[:count]
        else:
            _check_time(request.version, asked.timestamp)
            await _by_time(session, partition, asked.timestamp, answer)
    except KafkaError as refusal:
        answer.error_code = refusal.code
    except (LedgerError, OSError):
        answer.error_code = Code.KAFKA_STORAGE_ERROR
    return answer


async def _by_time(
    session: KafkaSession, partition: KafkaPartition, time_ms: int, answer: Any
) -> None:
    if time_ms == LATEST:
        answer.offset, answer.leader_epoch = partition.end_offset, partition.epoch
    elif time_ms in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.first_offset
        answer.leader_epoch = _first_epoch(partition)
    elif time_ms == NEWEST or time_ms >= 0:
        find: Callable[[], Found | None] = partial(_find, partition, time_ms)
        found = await session.endpoint.ports.run_blocking(find)
        if found is not None and not found.end:
            answer.timestamp = found.time_ms
            answer.offset = max(found.first_index, partition.first_offset)
            begins = epoch_runs(partition.ledger.segments())
            number = bisect_right(begins, found.position, key=attrgetter("first_position"))
            answer.leader_epoch = begins[number - 1].header.epoch if number else 0


def _check_time(version: int, time_ms: int) -> None:
    """Raise KafkaError if a request of this version cannot ask for a time below 0."""
    if time_ms < 0 and version < SPECIAL_TIMES.get(time_ms, version + 1):
        raise KafkaError(Code.UNSUPPORTED_VERSION, f"a time of {time_ms}")


def _find(partition: KafkaPartition, time_ms: int) -> Found | None:
    """The first entry at or after a time, or that of the newest record. Runs in any thread."""
    finder = Finder(partition.ledger)
    if time_ms != NEWEST:
        return finder.by_time(time_ms)
    offset = partition.end_offset
    for _ in range(MAX_CONTROL_ENTRIES):
        if offset <= partition.first_offset:
            return None
        try:
            place = finder.by_index(offset - 1)
        except IndexOutOfRangeError:  # it was removed meanwhile
            return None
        (entry,) = partition.ledger.read(place.position, max_entries=1)
        if entry.kind is not EntryKind.CONTROL:
            break
        offset = entry.first_index
    return finder.by_time(place.time_ms)


def _first_epoch(partition: KafkaPartition) -> int:
    runs = partition.ledger.segments()
    return runs[0].header.epoch if runs else partition.epoch


def _old_style(partition: KafkaPartition, time_ms: int, now_ms: int) -> list[int]:
    """The starts of segments up to a time, newest first; the end too, which is of now."""
    if time_ms == EARLIEST:
        return [partition.first_offset]
    runs = partition.ledger.segments()
    first = partition.first_offset
    if time_ms == LATEST or time_ms >= now_ms:
        starts = [max(run.first_index, first) for run in runs]
        return sorted({*starts, partition.end_offset}, reverse=True)
    if time_ms < 0:
        raise KafkaError(Code.UNSUPPORTED_VERSION, f"a time of {time_ms}")
    past = {max(run.first_index, first) for run in runs if run.time_max_ms <= time_ms}
    return sorted(past, reverse=True)


async def offset_for_leader_epoch(session: KafkaSession, request: Request) -> None:
    """Where a leader epoch ended: whether a consumer's offsets were cut off."""
    topics = []
    for topic in request.body.topics or ():
        name = topic.topic or ""
        asked = session.in_turns(topic.partitions or ())
        answers = [await _end_of_epoch(session, request, name, each) async for each in asked]
        topics.append(_Epochs(topic=name, partitions=answers))
    response = OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)
    await session.answer_by_size(request, response, sum(len(each.partitions) for each in topics))


async def _end_of_epoch(session: KafkaSession, request: Request, topic: str, asked: Any) -> Any:
    answer = _Epochs.EpochEndOffset(
        error_code=Code.NONE, partition=asked.partition, leader_epoch=-1, end_offset=-1
    )
    try:
        session.access.check(Operation.DESCRIBE, topic)
        partition = await session.endpoint.partitions.open(topic, asked.partition)
        if request.version >= 2:
            partition.check_epoch(asked.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.end_of_epoch(asked.leader_epoch)
    except KafkaError as refusal:
        answer.error_code = refusal.code
    return answer


async def delete_records(session: KafkaSession, request: Request) -> None:
    """Delete the records before an offset; -1 is all. A batch that has the offset stays."""
    topics = []
    for topic in request.body.topics or ():
        name = topic.name or ""
        answers = [await _delete_one(session, name, each) for each in topic.partitions or ()]
        topics.append(_Deleted(name=name, partitions=answers))
    session.answer(request, DeleteRecordsResponse(throttle_time_ms=0, topics=topics))


async def _delete_one(session: KafkaSession, topic: str, asked: Any) -> Any:
    answer = _Deleted.DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=-1, error_code=Code.NONE
    )
    endpoint = session.endpoint
    try:
        session.access.check(Operation.ADMINISTER, topic)
        partition = await endpoint.partitions.open(topic, asked.partition_index)
        end = partition.end_offset
        offset = end if asked.offset == -1 else asked.offset
        if not 0 <= offset <= end:
            raise KafkaError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {topic}")
        if offset > partition.first_offset:
            position = await when_read(partition.position_of, offset)
            await endpoint.ports.topics.delete_before(partition.opened, offset, position)
        answer.low_watermark = partition.first_offset
    except KafkaError as refusal:
        answer.error_code = refusal.code
    except (LedgerError, OSError):
        answer.error_code = Code.KAFKA_STORAGE_ERROR
    return answer


HANDLERS: dict[int, Handler] = {2: list_offsets, 21: delete_records, 23: offset_for_leader_epoch}
