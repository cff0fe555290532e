"""A topic as consumers of its compacted form read it: the view up to its horizon, then the log.

Positions, indexes, times and stamps are those of the log; messages that were left out are gaps. It
has the same methods as a `TopicLog`, so a cursor can use either. Segments are the one exception: a
view has none, and is searched by `CompactedView.find` (the finder's CompactedFinder joins it with
the log's search).

A newer view may replace the view at any time; it goes further and leaves out more. Each call uses
one view, and the log as it was while that view was current (`ask`). Positions mean the same in all
views, so reading simply goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..ledger.entry import Entry
from ..ledger.epochs import EpochHistory
from ..ledger.errors import CorruptEntryError
from ..ledger.position import EARLIEST, Position
from ..ledger.topic_log import TopicLog
from ..ledger.transactions import Transactions
from ..metadata import Buffer
from .view import CompactedView, Key
from .view_format import ViewRow

if TYPE_CHECKING:
    from .finder import CompactedFinder

P = ParamSpec("P")
T = TypeVar("T")


def _of_view_or_log(
    question: Callable[Concatenate[CompactedLog, CompactedView, P], T],
) -> Callable[Concatenate[CompactedLog, P], T]:
    """Make a method of a question to the current view; without a view, call the log's."""

    @wraps(question)
    def asked(self: CompactedLog, /, *args: P.args, **kwargs: P.kwargs) -> T:
        of_log: Callable[[], T] = partial(getattr(self.log, question.__name__), *args, **kwargs)
        return self.ask(lambda view: question(self, view, *args, **kwargs), of_log)

    return asked


class CompactedLog:
    """The compacted form of ``log``, which is the log itself while there is no ``view()``."""

    def __init__(self, log: TopicLog, view: Callable[[], CompactedView | None]) -> None:
        self.name = log.name
        self.log = log
        self._current = view

    @property
    def view(self) -> CompactedView | None:
        """The current view."""
        return self._current()

    def ask(self, question: Callable[[CompactedView], T], without: Callable[[], T]) -> T:
        """The result of ``question`` for the current view; without a view that of ``without``.

        Entries after a view's horizon are in the log as long as it is current. So a result counts
        only if the view is still current after it; else ``question`` is asked again, whatever was
        raised meanwhile.
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

    def epoch_history(self) -> EpochHistory:
        """As `TopicLog.epoch_history`: the epochs of what is left of the log."""
        return self.log.epoch_history()

    def give_way(self) -> None:
        self.log.give_way()

    def finder(self, check: Callable[[], None] = lambda: None) -> CompactedFinder:
        """Searches this form (see `finder_of`)."""
        from .finder import CompactedFinder

        return CompactedFinder(self, check=check)

    # What the log has

    @property
    def horizon(self) -> Position | None:
        """The last entry that the view covers; None without a view."""
        view = self._current()
        return view.horizon if view is not None else None

    @property
    def first_position(self) -> Position | None:
        """Position of the first entry, or None."""

        def question(view: CompactedView) -> Position | None:
            row = view.find(Key.POSITION, EARLIEST)
            return row.position if row is not None else self._first_after_horizon(view)

        return self.ask(question, lambda: self.log.first_position)

    def _first_after_horizon(self, view: CompactedView) -> Position | None:
        end = self.log.end_position  # read first: entries appended meanwhile are after it
        position = self.log.next_position(view.horizon)
        return position if position < end else None

    @property
    def last_position(self) -> Position | None:
        """Position of the last entry, or None."""

        def question(view: CompactedView) -> Position | None:
            last = self.log.last_position
            if (
                last is not None
                and last > view.horizon
                and self._first_after_horizon(view) is not None
            ):
                return last
            row = view.find_before(view.after_horizon)
            return row.position if row is not None else None

        return self.ask(question, lambda: self.log.last_position)

    @property
    def end_position(self) -> Position:
        """One past the log's last durable entry."""
        return self.log.end_position

    @property
    def first_index(self) -> int:
        """Index of the first message of the first entry, or ``next_index``."""
        return self.index_before(EARLIEST)

    @property
    def next_index(self) -> int:
        """The index of the next message after the log's last durable entry."""
        return self.log.next_index

    # Reading

    @_of_view_or_log
    def read(
        self,
        view: CompactedView,
        start: Position,
        *,
        max_entries: int = 100,
        max_bytes: int = 1 << 20,
    ) -> list[Entry]:
        """Entries from the first one at or after ``start``, across the horizon.

        At least one if there is any, else []. The list ends before a damaged entry. If the very
        first one is damaged, raises CorruptEntryError, as `TopicLog.read` does.
        """
        if start > view.horizon:
            return self.log.read(start, max_entries=max_entries, max_bytes=max_bytes)
        row = view.find(Key.POSITION, start)
        entries = view.read(row, max_entries, max_bytes) if row is not None else []
        if row is not None and row.ordinal + len(entries) < view.summary.entry_count:
            return entries
        max_entries -= len(entries)
        max_bytes -= sum(len(entry.stored) for entry in entries)
        if not entries:
            return self.log.read(view.after_horizon, max_entries=max_entries, max_bytes=max_bytes)
        if max_entries > 0 and max_bytes > 0:
            try:
                rest = self.log.read(
                    view.after_horizon, max_entries=max_entries, max_bytes=max_bytes
                )
            except CorruptEntryError:
                return entries
            if sum(len(entry.stored) for entry in rest) <= max_bytes:
                entries += rest
        return entries

    def read_stable(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """As `TopicLog.read_stable`; a view has only entries that consumers may see."""
        entries = self.read(start, max_entries=max_entries, max_bytes=max_bytes)
        transactions = self.transactions_met(entry.prefix for entry in entries)
        return entries if transactions is None else transactions.shown(entries, self.log)

    def transactions_met(self, prefixes: Iterable[Buffer]) -> Transactions | None:
        return self.log.transactions_met(prefixes)

    @property
    def stable_end(self) -> Position:
        return self.log.stable_end

    @property
    def aborts(self) -> int:
        return self.log.aborts

    # Moving along

    @_of_view_or_log
    def next_position(self, view: CompactedView, position: Position) -> Position:
        """Position of the entry after ``position``; ``end_position`` after the last."""
        if position < view.horizon:
            row = view.find(Key.POSITION, Position(position[0], position[1] + 1))
            if row is not None:
                return row.position
        return self.log.next_position(max(position, view.horizon))

    @_of_view_or_log
    def previous_position(self, view: CompactedView, position: Position) -> Position:
        """Position of the entry before ``position``; for the first one, the entry id before it."""
        if position > view.after_horizon:
            previous = self.log.previous_position(position)
            if previous > view.horizon and self.log.count_entries(previous, position):
                return previous
        row = view.find_before(min(position, view.after_horizon))
        if row is not None:
            return row.position
        first = view.find(Key.POSITION, EARLIEST)
        if first is not None:
            return Position(first.position.ledger_id, first.position.entry_id - 1)
        return self.log.previous_position(self.log.next_position(view.horizon))

    @_of_view_or_log
    def count_entries(self, view: CompactedView, start: Position, end: Position) -> int:
        """How many entries are in [start, end)."""

        def before(position: Position) -> int:
            row = view.find(Key.POSITION, position)
            return row.ordinal if row is not None else view.summary.entry_count

        after = self.log.count_entries(max(start, view.after_horizon), end)
        return max(0, before(end) - before(start)) + after

    @_of_view_or_log
    def message_count(self, view: CompactedView, start: Position, end: Position) -> int:
        """How many messages the entries in [start, end) have, including holes in batches."""

        def before(position: Position) -> int:
            row = view.find(Key.POSITION, position)
            return row.messages_before if row is not None else view.summary.message_count

        after = self.log.message_count(max(start, view.after_horizon), end)
        return max(0, before(end) - before(start)) + after

    @_of_view_or_log
    def entry_message_count(self, view: CompactedView, position: Position) -> int | None:
        """How many messages the entry at ``position`` has; None: it is not there."""
        if position > view.horizon:
            return self.log.entry_message_count(position)
        row = view.find(Key.POSITION, position)
        return row.message_count if row is not None and row.position == position else None

    @_of_view_or_log
    def known_message_count(self, view: CompactedView, position: Position) -> int | None:
        """As `TopicLog.known_message_count`; a view's rows are always read."""
        if position > view.horizon:
            return self.log.known_message_count(position)
        row = view.find(Key.POSITION, position)
        return row.message_count if row is not None and row.position == position else None

    @_of_view_or_log
    def has_entries(self, view: CompactedView, ledger_id: int, first: int, last: int) -> bool:
        """As `TopicLog.has_entries`; False in a view, which may have gaps."""
        if Position(ledger_id, first) <= view.horizon:
            return False
        return self.log.has_entries(ledger_id, first, last)

    @_of_view_or_log
    def knows_index(self, view: CompactedView, position: Position) -> bool:
        """As `TopicLog.knows_index`; False in a view whose rows may have to be fetched."""
        if position > view.horizon:
            return self.log.knows_index(position)
        return not any(run.may_wait for run in self.log.all_segments()[-1:])

    @_of_view_or_log
    def entry_after(self, view: CompactedView, start: Position, count: int) -> Position | None:
        """Position of the entry ``count`` entries after the first one at or after ``start``."""
        row = view.find(Key.POSITION, start)
        in_view = 0 if row is None else view.summary.entry_count - row.ordinal
        if row is None or count >= in_view:
            return self.log.entry_after(max(start, view.after_horizon), count - in_view)
        return _row_at(view, row, row.ordinal + count).position

    def is_control(self, position: Position) -> bool:
        return self.log.is_control(position)

    def control_positions(self, start: Position, end: Position) -> list[Position]:
        """As `TopicLog.control_positions`; a view has none."""
        return self.log.control_positions(self._after_view(start), end)

    def control_count(self, start: Position, end: Position) -> int:
        """As `TopicLog.control_count`; a view has none."""
        return self.log.control_count(self._after_view(start), end)

    def _after_view(self, start: Position) -> Position:
        view = self._current()
        return start if view is None else max(start, view.after_horizon)

    @property
    def tail_cuts(self) -> tuple[int, int]:
        """A counter that changes with a cut tail or a new view."""
        view = self._current()
        return self.log.tail_cuts, view.generation if view is not None else 0

    @_of_view_or_log
    def index_before(self, view: CompactedView, position: Position) -> int:
        """Index of the first message of the first entry at or after ``position``."""
        row = view.find(Key.POSITION, position)
        if row is not None:
            return row.next_index - row.message_count
        return self.log.index_before(max(position, view.after_horizon))


def _row_at(view: CompactedView, row: ViewRow, ordinal: int) -> ViewRow:
    """The row with that ordinal, at or after ``row``; it exists. Found by indexes, which grow."""
    low, high = row.next_index + 1, view.summary.next_index + 1
    while low < high:
        middle = (low + high) // 2
        found = view.find(Key.INDEX, middle)
        if found is None or found.ordinal > ordinal:
            high = middle
        else:
            row, low = found, found.next_index + 1
    # Entries that took no index can only be found by their positions.
    while row.ordinal < ordinal:
        following = view.find(Key.POSITION, row.position.following)
        assert following is not None, "the ordinal is the view's"
        row = following
    return row
