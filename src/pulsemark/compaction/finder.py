"""Search by broker time and by index in a compacted topic.

The answer is the first surviving entry at or after the one that the full log gives. Both methods of
the log's search go on in the view. INDEX searches the view's index blocks (one bisect in memory, at
most two reads). PREFIXES searches only its records (bisection over whole records, for when the
blocks are not to be trusted). After the view's horizon the log itself is searched.

The full log searches by running maxima of entry times. The view's rows have the running maxima of
the log, including entries that did not survive. So both agree even if times are not in order, and
for times of which neither view nor log has an entry any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..finder.search import (
    Finder,
    Found,
    IndexOutOfRangeError,
    IndexPlace,
    IndexRange,
    SearchMethod,
    range_between,
)
from ..ledger import CorruptEntryError, IoCount, LogSnapshot, Position
from .compacted_log import CompactedLog
from .view import CompactedView, Key
from .view_format import ViewRow

T = TypeVar("T")

_Place = tuple[Position, int, int, int, int]
"""Position, first index, last index, message count, entry time: the head of Found."""


class CompactedFinder:
    """Searches one compacted topic, as `Finder` searches a log."""

    def __init__(self, log: CompactedLog, *, check: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._log_finder = Finder(log.log, check=check)

    def by_time(self, time_ms: int, *, method: SearchMethod = SearchMethod.INDEX) -> Found:
        """The first surviving entry at or after the log's first whose time is >= ``time_ms``.

        Its own time may be lower if times are not in order. Without such an entry it is the end.
        """
        return self._ask(
            lambda view, log: self._by_time(view, log, time_ms, method),
            lambda: self._log_finder.by_time(time_ms, method=method),
        )

    def _ask(
        self, question: Callable[[CompactedView, LogSnapshot], T], without: Callable[[], T]
    ) -> T:
        """The answer to a question about the view, and about the log as it is at one moment."""
        return self._log.ask(
            lambda view: self._log_finder.ask(lambda log: question(view, log)), without
        )

    def _by_time(
        self, view: CompactedView, log: LogSnapshot, time_ms: int, method: SearchMethod
    ) -> Found:
        if view.summary.time_max_ms < time_ms:
            # No entry up to the horizon is as late as that.
            return self._log_finder.time_in(log, time_ms, method)
        io = IoCount()
        row = view.find(Key.TIME, time_ms, by_records=method is SearchMethod.PREFIXES, io=io)
        place = _place_of(row) if row is not None else self._first_after_horizon(view, log, io)
        if place is not None:
            return Found(*place, False, io.reads, io.bytes_read)
        end, next_index = log.end_position, log.next_index
        return Found(end, next_index, next_index, 0, 0, True, io.reads, io.bytes_read)

    def by_index(self, index: int, *, method: SearchMethod = SearchMethod.INDEX) -> IndexPlace:
        """The first surviving entry at or after the one that has the message ``index``.

        ``batch_index`` is the message's place in its entry; 0 in a later entry, or at the end,
        which has ``message_count`` 0. Raises IndexOutOfRangeError for an index that no message ever
        had.
        """
        return self._ask(
            lambda view, log: self._by_index(view, log, index, method),
            lambda: self._log_finder.by_index(index, method=method),
        )

    def _by_index(
        self, view: CompactedView, log: LogSnapshot, index: int, method: SearchMethod
    ) -> IndexPlace:
        next_index = log.next_index
        if not 0 <= index < next_index:
            raise IndexOutOfRangeError(index, 0, next_index)
        if index >= max(view.summary.next_index, log.first_index):
            return self._log_finder.index_in(log, index, method)
        io = IoCount()
        row = None
        if index < view.summary.next_index:
            row = view.find(Key.INDEX, index + 1, by_records=method is SearchMethod.PREFIXES, io=io)
        place = _place_of(row) if row is not None else self._first_after_horizon(view, log, io)
        position, first, last, count, time_ms = place or (
            log.end_position,
            next_index,
            next_index,
            0,
            0,
        )
        return IndexPlace(
            position, max(0, index - first), first, last, count, time_ms, io.reads, io.bytes_read
        )

    def range(
        self, from_ms: int, to_ms: int, *, method: SearchMethod = SearchMethod.INDEX
    ) -> IndexRange:
        """The surviving range between two times: indexes [first_index, end_index).

        ``count`` is the number of indexes; fewer messages may have survived. Raises ValueError when
        ``to_ms`` is before ``from_ms``.
        """
        return self._ask(
            lambda view, log: range_between(
                lambda time_ms: self._by_time(view, log, time_ms, method), from_ms, to_ms
            ),
            lambda: self._log_finder.range(from_ms, to_ms, method=method),
        )

    def _first_after_horizon(
        self, view: CompactedView, snapshot: LogSnapshot, io: IoCount
    ) -> _Place | None:
        """The first entry after the horizon in a snapshot of the log."""
        log = self._log.log
        position = log.next_position(view.horizon)
        if position >= snapshot.end_position:
            return None
        first, end = log.index_before(position), log.index_before(log.next_position(position))
        try:
            entry = log.read(position, max_entries=1)[0]
            io.add(len(entry.stored))
            time_ms = entry.time_ms
        except CorruptEntryError:
            time_ms = view.summary.time_max_ms
        return position, first, end - 1, end - first, time_ms


def _place_of(row: ViewRow) -> _Place:
    first = row.next_index - row.message_count
    return row.position, first, row.next_index - 1, row.message_count, row.entry_time_ms
