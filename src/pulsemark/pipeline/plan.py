"""Which entries a read covers, and who reads which of them.

A plan is a pure function of the options and of the log as it stands: it names positions and
indexes and opens nothing. Its end is pinned, so that what a DataFrame shows is the same however
often and however late its tasks run, on a live folder too.

- A time bound means the first entry at or after that time, as a seek does: on a topic whose times
  fall (entries without stamps carry their producers' clocks) a range is still one run of entries.
  Ranges ``[a, b)`` and ``[b, c)`` therefore never overlap and leave nothing out between them.
- Work is divided by messages, cut between entries. Small topics share a task: starting one costs
  more than reading a few megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..finder import Finder
from ..ledger import FolderReader, Position, TopicLog, TopicNotFoundError
from .errors import DataLossError
from .options import Bound, BoundKind, ReadOptions, select_topics

PARTITION_BYTES = 128 << 20
"""Spark's own size for a partition of files."""
SPREAD_FROM_BYTES = 8 << 20
"""From this size on the work goes to all cores."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Messages ``[first_index, end_index)`` of a topic, and the entries that hold them.

    The first and the last entry may hold messages outside the range.
    """

    topic: str
    start: Position
    end: Position
    first_index: int
    end_index: int

    @property
    def message_count(self) -> int:
        """How many messages there are, control entries included."""
        return self.end_index - self.first_index


def plan(options: ReadOptions) -> list[tuple[Slice, ...]]:
    """Divide what the options ask for into tasks; no task is empty.

    Raises:
        ForeignFolderError: the path is no data folder.
        UnsupportedVersionError: it was written by a newer version.
        TopicNotFoundError: a topic that was named is not there.
        DataLossError: indexes that were asked for are not there (see ``fail_on_data_loss``).
    """
    with FolderReader(options.path) as reader:
        topics, absent = select_topics(options.topics, reader.topics())
        if absent:
            raise TopicNotFoundError(absent[0])
        logs = {topic: reader.log(topic) for topic in topics}
        slices = [slice_of(log, options) for log in logs.values()]
        slices = [part for part in slices if part.message_count > 0]
        size_bytes = sum(_size_bytes(logs[part.topic], part) for part in slices)
        task_count = max(_task_count(size_bytes), options.min_partitions or 1)
        return divide(slices, logs, task_count)


def slice_of(log: TopicLog, options: ReadOptions) -> Slice:
    """The part of one topic that the options ask for; its message count may be 0.

    Raises:
        DataLossError: a bound's index is not within what the topic has.
    """
    first = _index_of(log, options.start, options.fail_on_data_loss)
    end = max(first, _index_of(log, options.end, options.fail_on_data_loss))
    if first == end:
        return Slice(log.name, log.end_position, log.end_position, first, first)
    start, _ = _entry_of(log, first)
    last, last_first_index = _entry_of(log, end)
    if last_first_index < end < log.next_index:
        last = log.next_position(last)
    return Slice(log.name, start, last, first, end)


def _index_of(log: TopicLog, bound: Bound, fail_on_data_loss: bool) -> int:
    first, next_index = log.first_index, log.next_index
    if bound.kind is BoundKind.EARLIEST:
        return first
    if bound.kind is BoundKind.LATEST:
        return next_index
    if bound.kind is BoundKind.TIME:
        found = Finder(log).by_time(bound.value)
        return next_index if found.end else found.first_index
    if fail_on_data_loss and bound.value < first:
        raise DataLossError(log.name, bound.value, first, "the topic was trimmed")
    if fail_on_data_loss and bound.value > next_index:
        raise DataLossError(log.name, next_index, bound.value, "the topic ends before")
    return min(max(bound.value, first), next_index)


def _entry_of(log: TopicLog, index: int) -> tuple[Position, int]:
    """The entry that holds the message ``index``, and the index of its first message."""
    if index >= log.next_index:
        return log.end_position, index
    place = Finder(log).by_index(index)
    return place.position, place.first_index


def _size_bytes(log: TopicLog, part: Slice) -> int:
    """About how many bytes of segments a slice covers."""
    whole = sum(segment.index.end_offset for segment in log.segments())
    return whole * part.message_count // max(1, log.next_index - log.first_index)


def _task_count(size_bytes: int) -> int:
    """One task for a few megabytes; else as many for every core, none of them too large."""
    if size_bytes < SPREAD_FROM_BYTES:
        return 1
    cores = os.cpu_count() or 1
    return cores * -(-size_bytes // (cores * PARTITION_BYTES))


def divide(
    slices: Sequence[Slice], logs: Mapping[str, TopicLog], task_count: int
) -> list[tuple[Slice, ...]]:
    """Share slices out to about ``task_count`` tasks, by messages, in their order.

    An entry is never torn apart, so that there are no more tasks than entries.
    """
    total = sum(part.message_count for part in slices)
    tasks: list[list[Slice]] = [[] for _ in range(task_count)]
    done = 0
    for part in slices:
        cuts = range(
            -(-done * task_count // total), -(-(done + part.message_count) * task_count // total)
        )
        indexes = [part.first_index + cut * total // task_count - done for cut in cuts]
        for piece in _cut(logs[part.topic], part, indexes):
            middle = done + piece.first_index - part.first_index + piece.message_count // 2
            tasks[middle * task_count // total].append(piece)
        done += part.message_count
    return [tuple(task) for task in tasks if task]


def _cut(log: TopicLog, part: Slice, indexes: Sequence[int]) -> Iterator[Slice]:
    """Cut a slice before the entries that hold these messages (rising)."""
    rest = part
    for index in indexes:
        position, first_index = _entry_of(log, index)
        if rest.first_index < first_index < rest.end_index:
            yield replace(rest, end=position, end_index=first_index)
            rest = replace(rest, start=position, first_index=first_index)
    yield rest
