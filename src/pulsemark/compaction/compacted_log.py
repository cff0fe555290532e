"""A topic as consumers of its compacted form read it: the view up to its horizon, then the log.

Positions, indexes, times and stamps are those of the log; what was left out is a gap. The same
questions can be asked as of a `TopicLog`, so a cursor can walk either. The one exception are
segments: a view has none of its own, and is searched by `CompactedView.find` (the finder's
CompactedFinder joins it with the log's search).

The view may be replaced at any time by a newer one, which goes further and leaves out more. Every
call is answered by one view and the log as it stood while that view was current (`ask`), and
positions mean the same in all views, so reading simply goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..ledger.entry import Entry
from ..ledger.errors import CorruptEntryError
from ..ledger.position import EARLIEST, Position
from ..ledger.topic_log import TopicLog
from .view import CompactedView, Key
from .view_format import ViewRow

T = TypeVar("T")


class CompactedLog:
    """The compacted form of ``log``.

    Args:
        log: the topic.
        view: gives the view that is current; None while the topic has none, in which case all
            answers are the log's.
    """

    def __init__(self, log: TopicLog, view: Callable[[], CompactedView | None]) -> None:
        self.name = log.name
        self.log = log
        self._current = view

    @property
    def view(self) -> CompactedView | None:
        """The view that is current."""
        return self._current()

    def ask(self, question: Callable[[CompactedView], T], without: Callable[[], T]) -> T:
        """The answer of ``question`` to the current view, or of ``without`` where there is none.

        View and log of an answer belong together. What stands behind a view's horizon is in the
        log for as long as that view is current: only then compaction lays claim to less, and
        the log may be trimmed further. So an answer counts where the view is still current after
        it was given; else it is asked for again, and what was raised meanwhile does not count.
        """
        view = self._current()
        while True:
            try:
                answer = without() if view is None else question(view)
            except Exception:
                before, view = view, self._current()
                if view is before:
                    raise
                continue
            before, view = view, self._current()
            if view is before:
                return answer

    # What there is

    @property
    def horizon(self) -> Position | None:
        """The last entry that went into the view; None without a view."""
        view = self._current()
        return view.horizon if view is not None else None

    @property
    def first_position(self) -> Position | None:
        """Position of the first entry; None where there is none."""

        def question(view: CompactedView) -> Position | None:
            row = view.find(Key.POSITION, EARLIEST)
            return row.position if row is not None else self._first_behind(view)

        return self.ask(question, lambda: self.log.first_position)

    def _first_behind(self, view: CompactedView) -> Position | None:
        end = self.log.end_position  # first: what is appended meanwhile lies behind it
        position = self.log.next_position(view.horizon)
        return position if position < end else None

    @property
    def last_position(self) -> Position | None:
        """Position of the last entry; None where there is none."""

        def question(view: CompactedView) -> Position | None:
            last = self.log.last_position
            if last is not None and last > view.horizon and self._first_behind(view) is not None:
                return last
            row = view.find_before(view.behind_horizon)
            return row.position if row is not None else None

        return self.ask(question, lambda: self.log.last_position)

    @property
    def end_position(self) -> Position:
        """One past the log's last durable entry."""
        return self.log.end_position

    @property
    def first_index(self) -> int:
        """Index of the first message of the first entry; ``next_index`` where there is none."""
        return self.index_before(EARLIEST)

    @property
    def next_index(self) -> int:
        """Index the message behind the log's last durable entry gets."""
        return self.log.next_index

    # Reading

    def read(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Entries from the first one at or behind ``start``, across the horizon.

        At least one if there is any, else []. Damage as in `TopicLog.read`: CorruptEntryError
        where the very first is damaged, else the list ends before it.
        """

        def question(view: CompactedView) -> list[Entry]:
            return self._read(view, start, max_entries, max_bytes)

        return self.ask(
            question,
            lambda: self.log.read(start, max_entries=max_entries, max_bytes=max_bytes),
        )

    def _read(
        self, view: CompactedView, start: Position, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        if start > view.horizon:
            return self.log.read(start, max_entries=max_entries, max_bytes=max_bytes)
        row = view.find(Key.POSITION, start)
        entries = view.read(row, max_entries, max_bytes) if row is not None else []
        if row is not None and row.ordinal + len(entries) < view.summary.entry_count:
            return entries
        max_entries -= len(entries)
        max_bytes -= sum(len(entry.stored) for entry in entries)
        if not entries:
            return self.log.read(view.behind_horizon, max_entries=max_entries, max_bytes=max_bytes)
        if max_entries > 0 and max_bytes > 0:
            try:
                rest = self.log.read(
                    view.behind_horizon, max_entries=max_entries, max_bytes=max_bytes
                )
            except CorruptEntryError:
                return entries
            if sum(len(entry.stored) for entry in rest) <= max_bytes:
                entries += rest
        return entries

    # Moving along

    def next_position(self, position: Position) -> Position:
        """Position of the entry behind ``position``; ``end_position`` behind the last."""

        def question(view: CompactedView) -> Position:
            if position < view.horizon:
                row = view.find(Key.POSITION, Position(position[0], position[1] + 1))
                if row is not None:
                    return row.position
            return self.log.next_position(max(position, view.horizon))

        return self.ask(question, lambda: self.log.next_position(position))

    def previous_position(self, position: Position) -> Position:
        """Position of the entry before ``position``; before the first, one before that."""

        def question(view: CompactedView) -> Position:
            if position > view.behind_horizon:
                previous = self.log.previous_position(position)
                if previous > view.horizon and self.log.count_entries(previous, position):
                    return previous
            row = view.find_before(min(position, view.behind_horizon))
            if row is not None:
                return row.position
            first = view.find(Key.POSITION, EARLIEST)
            if first is not None:
                return Position(first.position.ledger_id, first.position.entry_id - 1)
            return self.log.previous_position(self.log.next_position(view.horizon))

        return self.ask(question, lambda: self.log.previous_position(position))

    def count_entries(self, start: Position, end: Position) -> int:
        """How many entries stand in [start, end)."""

        def question(view: CompactedView) -> int:
            def before(position: Position) -> int:
                row = view.find(Key.POSITION, position)
                return row.ordinal if row is not None else view.summary.entry_count

            behind = self.log.count_entries(max(start, view.behind_horizon), end)
            return max(0, before(end) - before(start)) + behind

        return self.ask(question, lambda: self.log.count_entries(start, end))

    def message_count(self, start: Position, end: Position) -> int:
        """How many messages the entries in [start, end) hold, holes in batches included."""

        def question(view: CompactedView) -> int:
            def before(position: Position) -> int:
                row = view.find(Key.POSITION, position)
                return row.messages_before if row is not None else view.summary.message_count

            behind = self.log.message_count(max(start, view.behind_horizon), end)
            return max(0, before(end) - before(start)) + behind

        return self.ask(question, lambda: self.log.message_count(start, end))

    def entry_message_count(self, position: Position) -> int | None:
        """How many messages the entry at ``position`` holds; None: it is not there."""

        def question(view: CompactedView) -> int | None:
            if position > view.horizon:
                return self.log.entry_message_count(position)
            row = view.find(Key.POSITION, position)
            return row.message_count if row is not None and row.position == position else None

        return self.ask(question, lambda: self.log.entry_message_count(position))

    def entry_behind(self, start: Position, count: int) -> Position | None:
        """Position of the entry ``count`` entries behind the first at or behind ``start``."""

        def question(view: CompactedView) -> Position | None:
            row = view.find(Key.POSITION, start)
            in_view = 0 if row is None else view.summary.entry_count - row.ordinal
            if row is None or count >= in_view:
                return self.log.entry_behind(max(start, view.behind_horizon), count - in_view)
            return _row_at(view, row, row.ordinal + count).position

        return self.ask(question, lambda: self.log.entry_behind(start, count))

    @property
    def epoch(self) -> tuple[int, int]:
        """Changes whenever entries that were there may be gone: with the tail, or with a view."""
        view = self._current()
        return self.log.epoch, view.generation if view is not None else 0

    def index_before(self, position: Position) -> int:
        """Index of the first message of the first entry at or behind ``position``."""

        def question(view: CompactedView) -> int:
            row = view.find(Key.POSITION, position)
            if row is not None:
                return row.next_index - row.message_count
            return self.log.index_before(max(position, view.behind_horizon))

        return self.ask(question, lambda: self.log.index_before(position))


def _row_at(view: CompactedView, row: ViewRow, ordinal: int) -> ViewRow:
    """The row of that ordinal, which is there, at or behind ``row``: by indexes, which grow."""
    low, high = row.next_index + 1, view.summary.next_index + 1
    while low < high:
        middle = (low + high) // 2
        found = view.find(Key.INDEX, middle)
        if found is None or found.ordinal > ordinal:
            high = middle
        else:
            row, low = found, found.next_index + 1
    # Entries that took no index are found by their positions alone.
    while row.ordinal < ordinal:
        behind = Position(row.position.ledger_id, row.position.entry_id + 1)
        following = view.find(Key.POSITION, behind)
        assert following is not None, "the ordinal is the view's"
        row = following
    return row
