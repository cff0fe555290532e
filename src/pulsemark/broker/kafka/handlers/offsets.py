"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a partition's offsets are."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter, itemgetter
from typing import Any

from kafka.protocol.admin import DeleteRecordsResponse
from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from ....finder import Found, IndexOutOfRangeError
from ....kafka.errors import Code, KafkaError
from ....kafka.protocol import Request
from ....ledger import EntryKind
from ....ledger.epochs import epoch_runs
from ....ledger.would_block import when_read
from ..access import Operation
from ..endpoint import PART_BYTES, Handler, KafkaSession, named_partitions, parts_of, refusing
from ..partitions import READ_COMMITTED, KafkaPartition, shown_epoch

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
    topics: dict[str, list[Any]] = {}
    is_old = request.version == 0  # then one partition may be asked for several times
    named = await session.gathered(
        named_partitions(request.body),
        lambda named: (named[0], named[1].partition_index, is_old and named[1].timestamp),
    )
    async for _, ((name, asked), *others) in session.named(
        named.items(),
        lambda item: PART_BYTES + (8 * _old_style_count(item[1][0][1]) if is_old else 0),
        key=itemgetter(0),
    ):
        is_repeated = bool(others) and not is_old
        found = await _list_one(session, request, name, asked, is_repeated=is_repeated)
        topics.setdefault(name, []).append(found)
    listed = [_Listed(name=name, partitions=each) for name, each in topics.items()]
    await session.answer_by_size(request, ListOffsetsResponse(topics=listed), len(named))


async def _list_one(
    session: KafkaSession, request: Request, topic: str, asked: Any, *, is_repeated: bool
) -> Any:
    answer = _Listed.ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    with refusing(answer):
        session.access.check(Operation.DESCRIBE, topic)
        if is_repeated:
            raise KafkaError(Code.INVALID_REQUEST, f"{topic} is in the request more than once")
        partition = await session.endpoint.partitions.open(topic, asked.partition_index)
        if request.version >= 4:
            partition.check_epoch(asked.current_leader_epoch)
        if request.version == 0:
            count = _old_style_count(asked)
            now_ms = session.endpoint.now_ms()
            answer.old_style_offsets = _old_style(partition, asked.timestamp, now_ms)[:count]
        else:
            time_ms, version = asked.timestamp, request.version
            if time_ms < 0 and version < SPECIAL_TIMES.get(time_ms, version + 1):
                raise KafkaError(Code.UNSUPPORTED_VERSION, f"a time of {time_ms}")
            is_committed = version >= 2 and request.body.isolation_level == READ_COMMITTED
            end = partition.stable_offset if is_committed else partition.end_offset
            await _by_time(session, partition, time_ms, end, answer)
    return answer


def _old_style_count(asked: Any) -> int:
    return min(max(int(asked.max_num_offsets), 0), MAX_OLD_STYLE_OFFSETS)


async def _by_time(
    session: KafkaSession, partition: KafkaPartition, time_ms: int, end: int, answer: Any
) -> None:
    """Find an offset by time. ``end``: the offset up to which the client may read."""
    if time_ms == LATEST:
        answer.offset, answer.leader_epoch = end, partition.epoch
    elif time_ms in (EARLIEST, EARLIEST_LOCAL):
        runs = partition.ledger.segments()
        answer.offset = partition.first_offset
        answer.leader_epoch = shown_epoch(runs[0].header.epoch) if runs else partition.epoch
    elif time_ms == NEWEST or time_ms >= 0:
        found = await session.endpoint.services.run_blocking(_find, partition, time_ms)
        if found is not None and not found.end and found.first_index < end:
            answer.timestamp = found.time_ms
            answer.offset = max(found.first_index, partition.first_offset)
            begins = epoch_runs(partition.ledger.segments())
            number = bisect_right(begins, found.position, key=attrgetter("first_position"))
            answer.leader_epoch = shown_epoch(begins[number - 1].header.epoch) if number else 0


def _find(partition: KafkaPartition, time_ms: int) -> Found | None:
    """The first entry at or after a time, or the newest record's. Runs in any thread."""
    finder = partition.finder
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
        (entry,) = partition.opened.read_log.read(place.position, max_entries=1)
        if entry.kind is not EntryKind.CONTROL:
            break
        offset = entry.first_index
    return finder.by_time(place.time_ms)


def _old_style(partition: KafkaPartition, time_ms: int, now_ms: int) -> list[int]:
    """First offsets of segments up to a time, newest first; the log's end too unless it is past."""
    if time_ms == EARLIEST:
        return [partition.first_offset]
    runs = partition.ledger.segments()
    first = partition.first_offset
    if time_ms == LATEST or time_ms >= now_ms:
        starts = [max(run.first_index, first) for run in runs]
        return sorted({first, *starts, partition.end_offset}, reverse=True)
    if time_ms < 0:
        raise KafkaError(Code.UNSUPPORTED_VERSION, f"a time of {time_ms}")
    past = {max(run.first_index, first) for run in runs if run.time_max_ms <= time_ms}
    return sorted(past, reverse=True)


async def offset_for_leader_epoch(session: KafkaSession, request: Request) -> None:
    """Answer where a leader epoch ended, so consumers notice a truncated log."""
    topics: dict[str, list[Any]] = {}
    asked = (
        (topic.topic or "", each)
        for topic in request.body.topics or ()
        for each in topic.partitions or ()
    )
    async for name, each in session.named(asked, key=lambda named: (named[0], named[1].partition)):
        topics.setdefault(name, []).append(await _end_of_epoch(session, request, name, each))
    ends = [_Epochs(topic=name, partitions=each) for name, each in topics.items()]
    parts = sum(map(len, topics.values()))
    await session.answer_by_size(request, OffsetForLeaderEpochResponse(topics=ends), parts)


async def _end_of_epoch(session: KafkaSession, request: Request, topic: str, asked: Any) -> Any:
    answer = _Epochs.EpochEndOffset(partition=asked.partition)
    with refusing(answer):
        session.access.check(Operation.DESCRIBE, topic)
        partition = await session.endpoint.partitions.open(topic, asked.partition)
        if request.version >= 2:
            partition.check_epoch(asked.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.end_of_epoch(asked.leader_epoch)
    return answer


async def delete_records(session: KafkaSession, request: Request) -> None:
    """Delete records before an offset; -1: all. The batch with the offset stays."""
    topics: dict[str, list[Any]] = {}
    named = await session.gathered(
        named_partitions(request.body), lambda named: (named[0], named[1].partition_index)
    )
    # Kafka, too, takes the last of several offsets for one partition.
    async for (name, _), asked in session.named(named.items(), key=itemgetter(0)):
        topics.setdefault(name, []).append(await _delete_one(session, name, asked[-1][1]))
    deleted = [_Deleted(name=name, partitions=each) for name, each in topics.items()]
    await session.answer_by_size(request, DeleteRecordsResponse(topics=deleted), len(named))


async def _delete_one(session: KafkaSession, topic: str, asked: Any) -> Any:
    answer = _Deleted.DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=-1
    )
    endpoint = session.endpoint
    with refusing(answer):
        session.access.check(Operation.ADMINISTER, topic)
        partition = await endpoint.partitions.open(topic, asked.partition_index)
        end = partition.end_offset
        offset = end if asked.offset == -1 else asked.offset
        if not 0 <= offset <= end:
            raise KafkaError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {topic}")
        if offset > partition.first_offset:
            position = await when_read(partition.position_of, offset)
            await endpoint.topics.delete_before(partition.opened, offset, position)
        answer.low_watermark = partition.first_offset
    return answer


HANDLERS: dict[int, Handler] = {
    2: Handler(list_offsets, parts_of("topics", "partitions")),
    21: Handler(delete_records, parts_of("topics", "partitions")),
    23: Handler(offset_for_leader_epoch, parts_of("topics", "partitions")),
}
