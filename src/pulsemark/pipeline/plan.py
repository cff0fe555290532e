"""Plan a read: which entries it covers, and which task reads which of them.

Batches and streams plan with the functions of this module (`followed`). A plan depends only on the
options and on the log as it is now. It names positions and indexes and reads no entries. Its end is
fixed, so a DataFrame shows the same data however often and however late its tasks run, even if a
broker writes to the folder.

- A time bound means the first entry at or after that time, as in a seek. Times can decrease,
  because entries without stamps have their producers' times. A range is still one run of entries.
  So the ranges ``[a, b)`` and ``[b, c)`` never overlap, and no entry between them is left out.
- Messages are lost if the folder's other files show that they should exist
  (`maintenance.expected`). If the range touches a loss, the plan raises DataLossError, or logs it.
  Reads, streams and jobs all get their topics from `selected`, and what they read of them from
  `slice_of`, so a loss that one of them reports is reported by all.
- Work is divided by number of messages, and cut between entries. Small topics share a task, because
  starting a task costs more than reading a few megabytes.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..compaction.current_view import FolderForm
from ..finder.search import finder_of
from ..ledger import FolderLog, FolderReader, Position, Run, TopicLog, TopicNotFoundError
from ..ledger.local.io.folder import SegmentId
from ..ledger.local.segment.segment import Segment
from ..maintenance.expected import Expected, LogEnds, ends_of, expected_of
from ..maintenance.verify_catalog import follow_transactions
from .errors import DataLossError
from .filters import INDEX, TIME
from .options import Bound, BoundKind, ReadOptions
from .slices import Slice, divide

if TYPE_CHECKING:
    from ..finder.search import AnyFinder
    from .filters import Where
    from .remote_log import RemoteLog

T = TypeVar("T")
LogOfFolder: TypeAlias = TopicLog | FolderForm
PlannedLog: TypeAlias = "LogOfFolder | RemoteLog"
"""A topic in a folder or a store, in a cleaned topic's compacted form, or of a service."""

_log = logging.getLogger(__name__)

PARTITION_BYTES = 256 << 20
"""The size of a segment: a task opens one or two of them, and opening one costs 10 ms. A table of
Parquet files with as many messages has about half the size; Spark divides it at 128 MiB."""
SPREAD_FROM_BYTES = 8 << 20
"""Reads of this size or more are divided among all cores."""
_REMOTE_MESSAGE_BYTES = 256
"""What a message counts for where sizes are not told, as by a gRPC service."""
UNKNOWN_TOPIC = "a topic of unknown name"
"""The name for a topic in reports of losses, if its real name is lost too."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The topics of a folder that the options name, and what should be in them."""

    names: Sequence[str]
    """Also those that are only known to be lost."""
    logs: Mapping[str, FolderLog]
    expected: Expected
    is_pattern: bool
    """Whether a topic of unknown name may be one of them."""

    def lost_topics(self) -> Iterator[DataLossError]:
        """Topics without a usable file, and files of unknown topics."""
        reasons = {name: self.expected.why_lost(name) for name in self.names}
        for name, reason in {**reasons, **self._nameless()}.items():
            if reason is not None and name not in self.logs:
                yield DataLossError(name, None, None, reason)

    def losses(self) -> dict[str, str]:
        """By topic: the losses that may not show as a gap in its indexes."""
        expected, logs = self.expected, self.logs
        reasons = {
            name: expected.why_lost(name) or (name in logs and expected.lost_after(logs[name]))
            for name in self.names
        }
        return {name: reason for name, reason in {**reasons, **self._nameless()}.items() if reason}

    def _nameless(self) -> dict[str, str | None]:
        return {UNKNOWN_TOPIC: self.expected.why_nameless()} if self.is_pattern else {}


def selected(reader: FolderReader, options: ReadOptions) -> Selected:
    """The topics that the options name, as they are now. Raises TopicNotFoundError."""
    expected = expected_of(reader, options.path)
    names = existing(reader, options, expected)
    logs = reader.logs(names, lost=expected.lost_ledgers)
    if not options.uncommitted:
        follow_transactions(options.path, logs.values())
    return Selected(names, logs, expected, options.topics.pattern is not None)


def existing(
    reader: FolderReader, options: ReadOptions, expected: Expected | None = None
) -> list[str]:
    """The names of the topics that the options name, also of lost ones and of those without entry.

    Without ``expected``, the latter two are only looked for if a name has no other.

    Raises TopicNotFoundError: a name has no topic.
    """
    known = () if expected is None else (*expected.lost, *expected.topics)
    names, absent = options.select({*reader.topics(), *known})
    if absent and expected is None:
        return existing(reader, options, expected_of(reader, options.path))
    if absent:
        raise TopicNotFoundError(absent[0])
    return names


def report(error: DataLossError, fail: bool) -> None:
    """Raise the error, or log that the result lacks these messages."""
    if fail:
        raise error
    _log.warning("missing messages are left out of the result: %s", error)


def slice_of(log: PlannedLog, options: ReadOptions, expected: Expected) -> Slice:
    """The part of one topic in the range of the options; its message count may be 0.

    Of a cleaned topic what is left counts from its log's first message on.

    Raises:
        DataLossError: a bound's index is outside of the topic's indexes, or the range begins or
            ends at lost messages, or has some between.
        OptionError: bounds by topic do not name it, or nothing is at or after a timestamp.
    """
    first, end = _range_in(Extent.of(log, expected), options)
    if isinstance(log, TopicLog):
        _check_middle(log, first, end, options, expected)
    return slice_between(log, first, end)


def written_log(log: LogOfFolder) -> TopicLog:
    """The log itself, if it is read in a compacted form."""
    return log.log if isinstance(log, FolderForm) else log


def _stable_index(log: PlannedLog) -> int:
    return log.log.stable_index if isinstance(log, FolderForm) else log.stable_index


def finder_for(log: PlannedLog) -> AnyFinder | RemoteLog:
    """What searches a topic."""
    return finder_of(log) if isinstance(log, TopicLog | FolderForm) else log


def _end_before(log: TopicLog, time_ms: int) -> int:
    """The end of the messages that can have a stamp before a time, as ledgers tell."""
    for run in log.segments():
        if run.append_time_max_ms >= time_ms and not run.may_wait:
            head = run.entry_or_none(run.cut_rows)
            if head is not None and head.append_time_ms >= time_ms:
                return run.first_index
    return log.next_index


@dataclass(frozen=True, slots=True)
class Extent:
    """The known indexes of a topic, wherever it is."""

    log: PlannedLog
    first_index: int
    next_index: int
    """Its end, or the start of the first open transaction."""
    ends: LogEnds
    """The losses before and after them."""

    @classmethod
    def of(cls, log: PlannedLog, expected: Expected) -> Extent:
        """The extent of a topic as it is now."""
        first, end = log.first_index, _stable_index(log)
        if isinstance(log, TopicLog):
            ends = ends_of(log, expected)
        elif isinstance(log, FolderForm):
            first, ends = log.start_index, LogEnds(end, lost_after=expected.lost_after(log.log))
        else:
            ends = log.ends
        return cls(log, min(first, end), end, ends)

    def index_at(self, time_ms: int) -> int:
        """The first message of the first entry at or after a time; else the next index."""
        found = finder_for(self.log).by_time(time_ms)
        return self.next_index if found.end else min(found.first_index, self.next_index)


def _range_in(extent: Extent, options: ReadOptions) -> tuple[int, int]:
    """The indexes ``[first, end)`` of the options' range in a topic. Raises as `slice_of`."""
    fail, topic, ends = options.fail_on_data_loss, extent.log.name, extent.ends
    start, end = options.start.of(topic), options.end.of(topic)
    first = _index_of(extent, start, fail)
    last = max(first, _index_of(extent, end, fail))
    if options.where is not None:
        first, last = _narrowed(extent, first, last, options.where)
    if start.kind is BoundKind.LATEST or end.kind is BoundKind.EARLIEST:
        return first, last
    reaches_back = start.kind is BoundKind.EARLIEST or (
        start.kind is BoundKind.TIME and ends.lost_before_ms >= start.value
    )
    if ends.lost_before is not None and first == extent.first_index and reaches_back:
        report(DataLossError(topic, None, first, ends.lost_before), fail)
    is_open = last == extent.next_index and end.kind is not BoundKind.INDEX
    if ends.lost_after is not None and is_open:
        report(DataLossError(topic, last, None, ends.lost_after), fail)
    return first, last


def _narrowed(extent: Extent, first: int, end: int, where: Where) -> tuple[int, int]:
    """The part of a range with possible matches, by index and broker time."""
    count = end - first
    low, high = where.bounds(INDEX)
    low_ms, end_ms = where.bounds(TIME)
    if low_ms:
        # Stamps never go back. No entry before the first one of this time has such a stamp.
        low = max(low, extent.index_at(low_ms))
    if end_ms < 1 << 63 and isinstance(extent.log, TopicLog):
        high = min(high, _end_before(extent.log, end_ms))
    first, end = min(max(first, low), end), max(first, min(end, high))
    first = min(first, end)
    text = "%s: where %s: %d of %d messages are read"
    _log.info(text, extent.log.name, where.text, end - first, count)
    return first, end


def slice_between(log: PlannedLog, first: int, end: int) -> Slice:
    """The messages ``[first, end)`` of a topic, which the caller has checked."""
    has_holes = not isinstance(log, TopicLog) and log.has_holes
    if first == end:
        return Slice(log.name, log.end_position, log.end_position, first, first, has_holes)
    start, _ = entry_of(log, first)
    last, last_first_index = entry_of(log, end)
    if last_first_index < end < log.next_index:
        last = log.next_position(last)
    known = log.log.transactions if isinstance(log, FolderForm) else log.transactions
    hidden = () if known is None else (*known.hidden_in(start, last),)
    return Slice(log.name, start, last, first, end, has_holes, hidden)


def _check_middle(
    log: TopicLog, first: int, end: int, options: ReadOptions, expected: Expected
) -> None:
    """Check for lost ledgers inside the range. A store's ledgers are checked when they are read."""
    for before, after in pairwise(log.segments()):
        lost = max(first, before.next_index), min(end, after.first_index)
        if lost[0] < lost[1] and not before.may_wait:
            reason = expected.why_lost(log.name) or "their entries are not in the folder"
            report(DataLossError(log.name, *lost, reason), options.fail_on_data_loss)


def _index_of(extent: Extent, bound: Bound, fail: bool) -> int:
    """Resolve a bound to an index. Raises DataLossError, OptionError."""
    topic, first, next_index = extent.log.name, extent.first_index, extent.next_index
    if bound.kind is BoundKind.TIME:
        return bound.matched(topic, extent.index_at(bound.value), next_index)
    if bound.kind is BoundKind.EARLIEST:
        return first
    if bound.kind is BoundKind.LATEST:
        return next_index
    if bound.value < first:
        reason = extent.ends.lost_before or "the topic was trimmed"
        report(DataLossError(topic, bound.value, first, reason), fail)
    if bound.value > next_index:
        reason = extent.ends.lost_after or "the topic, or what is committed of it, ends before"
        report(DataLossError(topic, next_index, bound.value, reason), fail)
    return min(max(bound.value, first), next_index)


def entry_of(log: PlannedLog, index: int) -> tuple[Position, int]:
    """The entry that holds the message ``index``, and the index of its first message.

    If that message is lost with a whole ledger, or in a hole of a cleaned topic, it is the first
    entry after it.
    """
    if not isinstance(log, TopicLog):
        if index >= log.next_index:
            return log.end_position, index
        found = finder_for(log).by_index(max(index, log.first_index))
        return found.position, found.first_index
    place = row_of(log, index)
    if place is None:
        return log.end_position, index
    segment, row = place
    return Position(segment.ledger_id, segment.first_entry_id + row), segment.index_before(row)


def row_of(log: TopicLog, index: int) -> tuple[Run, int] | None:
    """The segment and the row of that entry; None if the log ends before it."""
    segments = log.segments()
    number = segment_number(segments, index)
    if number == len(segments):
        return None
    segment = segments[number]
    message = max(0, index - segment.first_index)
    return segment, max(segment.cut_rows, segment.find_message(message, segment.entry_count))


def indexes_of(log: TopicLog, position: Position) -> tuple[int, int] | None:
    """The indexes of an entry's messages, ``[first, end)``, by the segment's own index.

    None if the segment is gone.
    """
    for segment, row, _ in log.stretches(position):
        if segment.ledger_id == position.ledger_id and segment.position(row) == position:
            return segment.index_before(row), segment.first_index + segment.row(row).next_message
        break
    return None


def segment_number(segments: Sequence[Run], index: int) -> int:
    """The segment that holds the message ``index``, or the first one after it."""
    number = max(0, bisect_right(segments, index, key=_first_index) - 1)
    if number < len(segments) and index >= segments[number].next_index:
        number += 1
    return number


def _first_index(segment: Run) -> int:
    return segment.first_index


def segments_of(
    task: Sequence[Slice], logs: Mapping[str, TopicLog]
) -> dict[str, tuple[SegmentId, ...]]:
    """By topic: the segments that hold a task's slices, each with the one after it.

    None for cleaned topics, whose views may be replaced meanwhile: their files are looked for.

    The header of the segment after a ledger's last one says how many of its entries count.
    """
    found: dict[str, tuple[SegmentId, ...]] = {}
    for part in task:
        if part.has_holes:
            continue
        segments = logs[part.topic].segments()
        first = segment_number(segments, part.first_index)
        last = segment_number(segments, part.end_index - 1)
        ids = [(each.ledger_id, each.header.segment_no) for each in segments[first : last + 2]]
        found[part.topic] = tuple(dict.fromkeys([*found.get(part.topic, ()), *ids]))
    return found


def _size_bytes(log: PlannedLog, part: Slice) -> int:
    """The approximate size of a slice's part of the segments, in bytes."""
    if not isinstance(log, TopicLog | FolderForm):
        return part.message_count * _REMOTE_MESSAGE_BYTES
    log = written_log(log)
    whole = sum(map(_end_offset, log.segments()))
    return whole * part.message_count // max(1, log.next_index - log.first_index)


def _end_offset(run: Run) -> int:
    """The end of a run, in bytes."""
    if isinstance(run, Segment):
        return run.index.end_offset
    return run.row(run.entry_count - 1).end_offset


def _task_count(size_bytes: int) -> int:
    """One task for a few megabytes; else a multiple of the number of cores, to limit their size."""
    if size_bytes < SPREAD_FROM_BYTES:
        return 1
    cores = os.cpu_count() or 1
    return cores * -(-size_bytes // (cores * PARTITION_BYTES))


def tasks_of(
    slices: Sequence[Slice], logs: Mapping[str, PlannedLog], options: ReadOptions
) -> list[tuple[Slice, ...]]:
    """Divide slices into as many tasks as their size and the options ask for; none is empty."""
    slices = [part for part in slices if part.message_count > 0]
    size_bytes = sum(_size_bytes(logs[part.topic], part) for part in slices)
    task_count = max(_task_count(size_bytes), options.min_partitions or 1)
    return divide(slices, lambda topic, index: entry_of(logs[topic], index), task_count)
