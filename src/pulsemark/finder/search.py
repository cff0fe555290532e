"""Search by broker time and by index, on two roads with equal answers.

INDEX asks the time index: one bisect in memory, at most one read of a 16 KiB chunk. PREFIXES asks
a sparse sample in memory, then record headers with their prefixes, checksums checked: at most
fourteen reads of 64 bytes. Neither touches a payload where entries are stamped.

What is looked for is the first entry whose entry time (broker time, else publish time, PIP-70) is
>= t. Rows and samples hold running maxima of entry times, so that this holds also where times are
not in order, as they are among entries stored without a stamp. Only where a log was trimmed can
the running maximum come from an entry that is gone; such stretches are read through, once: what
was read is kept with the segment (`OwnTimes`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from ..ledger import IoCount, Position, RecordHead, Run, TopicLog
from ..ledger.prefix_sample import STRIDE_ROWS, PrefixSample
from ..metadata import peek

Answer = TypeVar("Answer")


class Road(Enum):
    """How to search."""

    INDEX = "index"
    PREFIXES = "prefixes"


@dataclass(frozen=True, slots=True)
class Found:
    """An entry found by time.

    With ``end`` there is none: ``position`` is where the next entry goes, ``index`` and
    ``first_index`` are the next message's. ``time_ms`` is the entry's time, 0 at the end.
    """

    position: Position
    first_index: int
    index: int
    message_count: int
    time_ms: int
    end: bool
    reads: int
    bytes_read: int


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """The entry that holds a message, and the message's place in its batch."""

    position: Position
    batch_index: int
    first_index: int
    index: int
    message_count: int
    time_ms: int
    reads: int
    bytes_read: int


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The messages between two moments: indexes [first_index, end_index)."""

    first_index: int
    end_index: int
    count: int
    first: Position
    end: Position
    reads: int
    bytes_read: int


class IndexOutOfRangeError(LookupError):
    """No message has that index: it lies outside [first_index, next_index)."""

    def __init__(self, index: int, first_index: int, next_index: int) -> None:
        self.index = index
        self.first_index = first_index
        self.next_index = next_index
        super().__init__(f"index {index} is outside [{first_index}, {next_index})")

    def __reduce__(self) -> tuple[type[IndexOutOfRangeError], tuple[int, int, int]]:
        """Carry the facts through pickling, as between processes."""
        return type(self), (self.index, self.first_index, self.next_index)


def _go_on() -> None:
    """The check of a caller who never stops."""


class Finder:
    """Searches one topic. Cheap to make; answers are about the log as it is at the call.

    ``check`` is called between steps of searches that can take long; what it raises ends them.
    """

    def __init__(self, log: TopicLog, *, check: Callable[[], None] = _go_on) -> None:
        self._log = log
        self._check = check

    def by_time(self, time_ms: int, *, road: Road = Road.INDEX) -> Found:
        """The first entry whose time is >= ``time_ms``; the end if there is none.

        Raises CorruptFileError or OSError when the disk gives nothing usable.
        """
        return self._ask(lambda segments: self._by_time(segments, time_ms, road))

    def _ask(self, question: Callable[[list[Run]], Answer]) -> Answer:
        """Ask of the log as it is; again where files of it were removed meanwhile."""
        while True:
            self._log.check_can_read()
            segments = self._log.segments()
            try:
                return question(segments)
            except FileNotFoundError:
                if not self._log.has_lost(segments):
                    raise

    def _by_time(self, segments: list[Run], time_ms: int, road: Road) -> Found:
        io = IoCount()
        # A segment's maximum may count entries that are not durable yet: then it has no row
        # for this time, and the log ends there.
        number = bisect_left(segments, time_ms, key=_time_max_ms)
        for segment in segments[number:]:
            if _removed_time_ms(segment) >= time_ms:
                place = self._read_through(segment, time_ms, io)
            elif road is Road.INDEX:
                place = _place_by_index(segment, time_ms, io)
            else:
                place = _place_by_prefixes(segment, time_ms, io)
            if place is not None:
                return Found(*place, False, io.reads, io.bytes_read)
        end, next_index = self._log.end_position, self._log.next_index
        return Found(end, next_index, next_index, 0, 0, True, io.reads, io.bytes_read)

    def _read_through(self, segment: Run, time_ms: int, io: IoCount) -> _Place | None:
        """By the entries' own times: the index's running maximum comes from an entry gone."""
        found = segment.own_times(time_ms).find(time_ms, self._check, io)
        return _place(segment, *found, io) if found is not None else None

    def by_index(self, index: int, *, road: Road = Road.INDEX) -> IndexPlace:
        """The entry that holds the message with ``index``. Raises IndexOutOfRangeError."""
        return self._ask(lambda segments: self._by_index(segments, index, road))

    def _by_index(self, segments: list[Run], index: int, road: Road) -> IndexPlace:
        log = self._log
        first_index, next_index = log.first_index, log.next_index
        if not first_index <= index < next_index:
            raise IndexOutOfRangeError(index, first_index, next_index)
        io = IoCount()
        segment = segments[bisect_right(segments, index, key=_first_index) - 1]
        message = index - segment.first_index
        if road is Road.INDEX:
            row = segment.find_message(message, segment.entry_count, io)
        else:
            row = _row_by_prefixes_of_index(segment, index, io)
        position, first, last, count, time_ms = _place(segment, row, _time_of(segment, row, io), io)
        return IndexPlace(
            position, index - first, first, last, count, time_ms, io.reads, io.bytes_read
        )

    def range(self, from_ms: int, to_ms: int, *, road: Road = Road.INDEX) -> IndexRange:
        """The messages from the first entry at ``from_ms`` to the first at ``to_ms``, half-open.

        Raises ValueError when ``to_ms`` is before ``from_ms``.
        """
        if to_ms < from_ms:
            raise ValueError(f"to_ms {to_ms} is before from_ms {from_ms}")
        first = self.by_time(from_ms, road=road)
        end = self.by_time(to_ms, road=road)
        return IndexRange(
            first.first_index,
            end.first_index,
            end.first_index - first.first_index,
            first.position,
            end.position,
            first.reads + end.reads,
            first.bytes_read + end.bytes_read,
        )


def _removed_time_ms(segment: Run) -> int:
    """The running maximum of entry times up to the segment's first entry that is still there."""
    if segment.cut_rows:
        return segment.row(segment.cut_rows - 1).time_ms
    return segment.header.entry_time_floor_ms


def _time_max_ms(segment: Run) -> int:
    return segment.time_max_ms


def _first_index(segment: Run) -> int:
    return segment.first_index


_Place = tuple[Position, int, int, int, int]
"""Position, first index, last index, message count, entry time: the head of Found."""


def _place(segment: Run, row: int, time_ms: int, io: IoCount) -> _Place:
    """A row's place; its time is given, or, as -1, the running maximum is its own."""
    chunk = segment.chunk(row, io)
    at = row - chunk.first_row
    before = chunk.nexts[at - 1] if at else chunk.next_before
    count = chunk.nexts[at] - before
    first = segment.first_index + before
    return (
        Position(segment.ledger_id, segment.first_entry_id + row),
        first,
        first + count - 1,
        count,
        chunk.times[at] if time_ms < 0 else time_ms,
    )


def _place_by_index(segment: Run, time_ms: int, io: IoCount) -> _Place | None:
    row = segment.find_time(time_ms, segment.entry_count, io)
    return _place(segment, row, -1, io) if row < segment.entry_count else None


def _place_by_prefixes(segment: Run, time_ms: int, io: IoCount) -> _Place | None:
    sample = segment.prefix_sample()
    number = bisect_left(sample.times, time_ms)
    row, offset = _sampled_row(segment, sample, number, io)
    last = min(number * STRIDE_ROWS, segment.entry_count - 1)
    for probe in segment.probes(row, offset, last + 1 - row, io):
        own_ms = probe.stamp_ms
        if own_ms < 0:
            own_ms = _publish_time_of(segment, probe.row, probe.append_time_ms, io)
        if own_ms >= time_ms:
            position = Position(segment.ledger_id, segment.first_entry_id + probe.row)
            first = probe.index - probe.message_count + 1
            return position, first, probe.index, probe.message_count, own_ms
    return None


def _sampled_row(segment: Run, sample: PrefixSample, number: int, io: IoCount) -> tuple[int, int]:
    """The row before the sample's ``number``-th, and where it begins; none that was removed."""
    row = max(0, (number - 1) * STRIDE_ROWS)
    if row < segment.cut_rows:
        return segment.cut_rows, segment.row(segment.cut_rows, io).offset
    return row, sample.offsets[row // STRIDE_ROWS]


def _row_by_prefixes_of_index(segment: Run, index: int, io: IoCount) -> int:
    sample = segment.prefix_sample()
    number = bisect_right(sample.nexts, index - segment.first_index)
    row, offset = _sampled_row(segment, sample, number, io)
    last = min(number * STRIDE_ROWS, segment.entry_count - 1)
    for probe in segment.probes(row, offset, last + 1 - row, io):
        if probe.index >= index:
            return probe.row
    return last


def _time_of(segment: Run, row: int, io: IoCount) -> int:
    """An entry's own time; of a damaged one what the index says."""
    for probe in segment.probes(row, segment.row(row, io).offset, 1, io):
        if probe.stamp_ms >= 0:
            return probe.stamp_ms
        return _publish_time_of(segment, row, probe.append_time_ms, io)
    return segment.row(row, io).time_ms


def own_time_ms(segment: Run, row: int, head: RecordHead, io: IoCount) -> int:
    """The entry time of a row whose head has been read; reads the entry if it has no stamp."""
    metadata = peek(head.prefix)
    if metadata is not None and metadata.HasField("broker_timestamp"):
        return metadata.broker_timestamp
    return _publish_time_of(segment, row, head.append_time_ms, io)


def _publish_time_of(segment: Run, row: int, append_time_ms: int, io: IoCount) -> int:
    """Of an entry without broker time, which is read; of a damaged one its append time."""
    time_ms = segment.own_time_ms(row, append_time_ms, io)
    return append_time_ms if time_ms is None else time_ms
