"""Search by broker time and by index, with two methods that give equal answers.

INDEX uses the time index: one bisect in memory and at most one read of a 16 KiB chunk. PREFIXES
uses a sparse sample in memory, then record headers with their prefixes, and checks their checksums:
at most fourteen reads of 64 bytes. If entries are stamped, neither method reads a payload.

A search by time finds the first entry whose entry time (broker time, else publish time, PIP-70) is
>= t. Rows and samples hold running maxima of entry times. So the search is right even if times are
not in order, as among entries stored without a stamp. After a log was trimmed, a running maximum
can come from an entry that was removed. Then the entries up to the first higher time are read one
by one. Their times are kept with the segment (`OwnTimes`), so this happens only once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from operator import attrgetter
from operator import index as as_int
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..ledger import IoCount, LogSnapshot, Position, RecordHead, Run, TopicLog
from ..ledger.run import SAMPLE_STRIDE_ROWS, PrefixSample
from ..metadata import peek

if TYPE_CHECKING:
    from ..compaction.compacted_log import CompactedLog
    from ..compaction.finder import CompactedFinder

Answer = TypeVar("Answer")
_TIME_MAX_MS, _FIRST_INDEX = attrgetter("time_max_ms"), attrgetter("first_index")


class SearchMethod(Enum):
    """How to search."""

    INDEX = "index"
    PREFIXES = "prefixes"


@dataclass(frozen=True, slots=True)
class Found:
    """An entry found by time.

    ``end`` is True without such an entry: then ``position``, ``index`` and ``first_index`` are
    those of the next entry, and ``time_ms``, the entry's time, is 0.
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
    """The messages between two times: indexes [first_index, end_index)."""

    first_index: int
    end_index: int
    count: int
    first: Position
    end: Position
    reads: int
    bytes_read: int


class IndexOutOfRangeError(LookupError):
    """No message has that index: it is outside [first_index, next_index), or its file is lost."""

    def __init__(self, index: int, first_index: int, next_index: int) -> None:
        self.index = index
        self.first_index = first_index
        self.next_index = next_index
        is_inside = first_index <= index < next_index
        where = "in a lost part of" if is_inside else "outside"
        super().__init__(f"index {index} is {where} [{first_index}, {next_index})")

    def __reduce__(self) -> tuple[type[IndexOutOfRangeError], tuple[int, int, int]]:
        """Keep the facts when the error is pickled, for example between processes."""
        return type(self), (self.index, self.first_index, self.next_index)


def _never_stop() -> None:
    """The default check, which never stops a search."""


AnyFinder: TypeAlias = "Finder | CompactedFinder"
"""Searches a log, or its compacted form: then what is gone stands for the next entry left."""


def finder_of(
    log: TopicLog | CompactedLog, *, check: Callable[[], None] = _never_stop
) -> AnyFinder:
    """Make a finder for a topic's log or its compacted form."""
    if isinstance(log, TopicLog):
        return Finder(log, check=check)
    return log.finder(check)


class Finder:
    """Searches one topic. It is cheap to make; each call searches the log as it is at one moment.

    ``check`` is called between the steps of long searches; an exception that it raises ends the
    search.
    """

    def __init__(self, log: TopicLog, *, check: Callable[[], None] = _never_stop) -> None:
        self._log = log
        self._check = check

    def by_time(self, time_ms: int, *, method: SearchMethod = SearchMethod.INDEX) -> Found:
        """The first entry whose time is >= ``time_ms``, or the end.

        Raises CorruptFileError if the files are damaged, OSError if they cannot be read, TypeError
        if the time is not a whole number or the method is none of `SearchMethod`.
        """
        return self.ask(partial(self.time_in, time_ms=time_ms, method=method))

    def by_index(self, index: int, *, method: SearchMethod = SearchMethod.INDEX) -> IndexPlace:
        """The entry with the message ``index``. Raises IndexOutOfRangeError, TypeError."""
        return self.ask(partial(self.index_in, index=index, method=method))

    def range(
        self, from_ms: int, to_ms: int, *, method: SearchMethod = SearchMethod.INDEX
    ) -> IndexRange:
        """The messages from ``from_ms`` to before ``to_ms``. Raises ValueError: it is earlier."""
        return self.ask(
            lambda snapshot: range_between(
                lambda time_ms: self.time_in(snapshot, time_ms, method), from_ms, to_ms
            )
        )

    def ask(self, question: Callable[[LogSnapshot], Answer]) -> Answer:
        """The answer about a snapshot; asked again if entries are removed meanwhile."""
        while True:
            self._log.check_can_read()
            snapshot = self._log.snapshot()
            try:
                answer = question(snapshot)
            except IndexOutOfRangeError:
                raise
            except (FileNotFoundError, LookupError):
                if not self._log.has_lost(snapshot):
                    raise
            else:
                if self._log.still_has(snapshot):
                    return answer

    def time_in(self, snapshot: LogSnapshot, time_ms: int, method: SearchMethod) -> Found:
        """As ``by_time``, in a snapshot that ``ask`` has given. Raises TypeError."""
        time_ms, io = _whole("time_ms", time_ms), IoCount()
        _check_method(method)
        # A segment's maximum may include entries that are not in the snapshot. Then the segment has
        # no row for this time, and the log ends there.
        segments = snapshot.segments
        for segment in segments[bisect_left(segments, time_ms, key=_TIME_MAX_MS) :]:
            count = snapshot.entry_count(segment)
            if _removed_time_ms(segment) >= time_ms:
                place = self._read_through(segment, count, time_ms, io)
            elif method is SearchMethod.INDEX:
                place = _place_by_index(segment, count, time_ms, io)
            else:
                place = _place_by_prefixes(segment, count, time_ms, io)
            if place is not None:
                return Found(*place, False, io.reads, io.bytes_read)
        end, next_index = snapshot.end_position, snapshot.next_index
        return Found(end, next_index, next_index, 0, 0, True, io.reads, io.bytes_read)

    def _read_through(self, segment: Run, count: int, time_ms: int, io: IoCount) -> _Place | None:
        """Search the entries' own times: the running maximum is from an entry that was removed."""
        found = segment.own_times(time_ms).find(time_ms, count, self._check, io)
        return _place(segment, *found, io) if found is not None else None

    def index_in(self, snapshot: LogSnapshot, index: int, method: SearchMethod) -> IndexPlace:
        """As ``by_index``, in a snapshot. Raises IndexOutOfRangeError, TypeError."""
        index = _whole("index", index)
        _check_method(method)
        first_index, next_index = snapshot.first_index, snapshot.next_index
        if not first_index <= index < next_index:
            raise IndexOutOfRangeError(index, first_index, next_index)
        io = IoCount()
        segments = snapshot.segments
        segment = segments[bisect_right(segments, index, key=_FIRST_INDEX) - 1]
        count = snapshot.entry_count(segment)
        if method is SearchMethod.INDEX:
            row = segment.find_message(index - segment.first_index, count, io)
        else:
            row = _row_by_prefixes_of_index(segment, count, index, io)
        if row == count:
            raise IndexOutOfRangeError(index, first_index, next_index)
        position, first, last, messages, time_ms = _place(
            segment, row, _time_of(segment, row, io), io
        )
        return IndexPlace(
            position, index - first, first, last, messages, time_ms, io.reads, io.bytes_read
        )


def _check_method(method: SearchMethod) -> None:
    if not isinstance(method, SearchMethod):
        raise TypeError(f"method must be a SearchMethod, not {method!r}")


def _whole(name: str, value: int) -> int:
    """Check that a time or index is a whole number. Raises TypeError."""
    try:
        return as_int(value)
    except TypeError as error:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from error


def range_between(by_time: Callable[[int], Found], from_ms: int, to_ms: int) -> IndexRange:
    """The range between two results of ``by_time``. Raises ValueError if ``to_ms`` is earlier."""
    if to_ms < from_ms:
        raise ValueError(f"to_ms {to_ms} is before from_ms {from_ms}")
    first, end = by_time(from_ms), by_time(to_ms)
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


_Place = tuple[Position, int, int, int, int]
"""Position, first index, last index, message count, entry time: the first fields of Found."""


def _place(segment: Run, row: int, time_ms: int, io: IoCount) -> _Place:
    """A row's place. Its time is `time_ms`, or, if that is -1, the row's running maximum."""
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


def _place_by_index(segment: Run, count: int, time_ms: int, io: IoCount) -> _Place | None:
    row = segment.find_time(time_ms, count, io)
    return _place(segment, row, -1, io) if row < count else None


def _place_by_prefixes(segment: Run, count: int, time_ms: int, io: IoCount) -> _Place | None:
    sample = segment.prefix_sample()
    number = bisect_left(sample.times, time_ms)
    row, offset = _sampled_row(segment, sample, number, io)
    last = min(number * SAMPLE_STRIDE_ROWS, count - 1)
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
    """The row of the sample before the ``number``-th, and its offset; never a removed row."""
    row = max(0, (number - 1) * SAMPLE_STRIDE_ROWS)
    if row < segment.cut_rows:
        return segment.cut_rows, segment.row(segment.cut_rows, io).offset
    return row, sample.offsets[row // SAMPLE_STRIDE_ROWS]


def _row_by_prefixes_of_index(segment: Run, count: int, index: int, io: IoCount) -> int:
    sample = segment.prefix_sample()
    number = bisect_right(sample.nexts, index - segment.first_index)
    row, offset = _sampled_row(segment, sample, number, io)
    last = min(number * SAMPLE_STRIDE_ROWS, count - 1)
    for probe in segment.probes(row, offset, last + 1 - row, io):
        if probe.index >= index:
            if probe.index - probe.message_count < index:
                return probe.row
            break  # the entry before it is damaged
    return segment.find_message(index - segment.first_index, count, io)


def _time_of(segment: Run, row: int, io: IoCount) -> int:
    """An entry's own time; for a damaged entry, the time in the index."""
    for probe in segment.probes(row, segment.row(row, io).offset, 1, io):
        if probe.stamp_ms >= 0:
            return probe.stamp_ms
        return _publish_time_of(segment, row, probe.append_time_ms, io)
    return segment.row(row, io).time_ms


def own_time_ms(segment: Run, row: int, head: RecordHead, io: IoCount) -> int:
    """The entry time of a row whose head was already read. Without a stamp, reads the entry."""
    metadata = peek(head.prefix)
    if metadata is not None and metadata.HasField("broker_timestamp"):
        return metadata.broker_timestamp
    return _publish_time_of(segment, row, head.append_time_ms, io)


def _publish_time_of(segment: Run, row: int, append_time_ms: int, io: IoCount) -> int:
    """The time of an entry without broker time, by reading it; if damaged, its append time."""
    time_ms = segment.own_time_ms(row, append_time_ms, io)
    return append_time_ms if time_ms is None else time_ms
