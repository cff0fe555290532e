"""One topic of a store, open for appending: removal of entries, cursors, closing.

`LedgerWriter` appends entries, `EpochWriter` control entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from .commit.commit import Commit
from .control_positions import ControlPositions
from .cursors.cursor import Cursor
from .cursors.cursor_store import CursorStore
from .epoch_writer import EpochWriter
from .errors import LedgerError, TopicTerminatedError
from .position import Position
from .run import Run
from .store_core import StoreCore

_log = logging.getLogger(__name__)


class ManagedLedger(EpochWriter):
    """One topic of a store, open for appending."""

    def __init__(
        self,
        store: StoreCore,
        name: str,
        topic_id: int,
        segments: Sequence[Run],
        ledger_id: int,
        *,
        index_floor: int = 0,
        cursors: CursorStore | None = None,
        controls: ControlPositions | None = None,
    ) -> None:
        """As `LedgerWriter`; ``cursors`` None: it is the cursor ledger itself."""
        self._terminated = self._ended = False
        super().__init__(store, name, topic_id, segments, ledger_id, index_floor=index_floor)
        if controls is not None:
            self.controls = controls  # before there are cursors, which count without them
        self._cursor_store = cursors
        self.before_removal: list[Callable[[Position], None]] = []
        """Called in the removing thread before entries are removed from the head, with the position
        before which they are. An error ends the removal."""
        if cursors is not None:
            cursors.attach(self)

    @property
    def _all_cursors(self) -> CursorStore:
        assert self._cursor_store is not None, "the cursor ledger has no cursors"
        return self._cursor_store

    # Ending

    def roll(self) -> None:
        """End the current ledger; the next entry begins a new one. Raises CatalogError."""
        self.store.uninterrupted.run(self._roll)

    def _roll(self) -> None:
        with self._committer.lock:
            self._check_usable()
            if self._terminated:
                return
            if self.tail.run is not None:
                ledger_id = self.store.next_ledger_id()
                self._leave_run()
                self.tail = replace(self.tail, ledger_id=ledger_id, needs_ledger_id=False)

    def trim(self, before: Position) -> int:
        """Remove the segments whose entries are all before ``before``; returns how many.

        The last run with entries always stays, because its header carries the index on. Blocks.
        After a crash either all of the segments are there, or none.
        """
        self._announce_removal(before)
        return len(self.store.uninterrupted.run(partial(self._trim_alone, before)))

    def _trim_alone(self, before: Position) -> Sequence[Run]:
        self._check_usable()
        with self._removing:
            return self._trim(before)

    def truncate_head(self, before: Position) -> int:
        """Remove all entries before ``before``, also inside the open ledger; how many. Blocks.

        Only durable entries are removed. The removal is durable when this returns; after a crash
        in between, some of the entries may still be there.
        """
        self._announce_removal(before)
        return self.store.uninterrupted.run(partial(self._truncate_head, before))

    def _announce_removal(self, before: Position) -> None:
        # Entries are removed because of something newer: another view, a subscription's place.
        self.store.sync_acknowledged()
        for call in self.before_removal:
            call(before)

    def _truncate_head(self, before: Position) -> int:
        self._check_usable()
        with self._removing:
            count = sum(s.entry_count - s.cut_rows for s in self._trim(before))
            if not self._segments:
                return count
            # If the first run ends before ``before``, it is the last one with entries.
            first = self._segments[0]
            row = rows_before(first, before)
            cut = row - first.cut_rows
            if cut <= 0:
                return count
            self._engine.freeing(partial(first.cut_head, row))
            with self._committer.lock:  # a commit that is being shown comes first
                self.controls.drop_before(before)
                self.recent.removed_before(Position(first.ledger_id, first.first_entry_id + row))
            return count + cut

    def _trim(self, before: Position) -> Sequence[Run]:
        """Remove whole segments, as `trim` says; returns the removed ones."""
        with self.store.committer.lock:
            gone = segments_before(self._segments, before)
        if gone:
            give_back_space = self._engine.remove(self.topic_id, gone)
            with self.store.committer.lock:
                self._segments = tuple(s for s in self._segments if s not in gone)
                self.controls.drop_before(Position(gone[-1].ledger_id, gone[-1].end_entry_id))
                self.recent.removed_before(Position(gone[-1].ledger_id, gone[-1].end_entry_id))
            give_back_space()
        return gone

    def open_cursor(
        self,
        name: str,
        *,
        initial: Position,
        durable: bool = True,
        properties: dict[str, int] | None = None,
        subscription_properties: dict[str, str] | None = None,
    ) -> Cursor:
        """The cursor of a subscription: the existing one, or a new one that reads from ``initial``.

        ``initial`` may be EARLIEST or LATEST. A cursor that is not durable lives in memory.
        ``subscription_properties`` are kept with a new one, as Pulsar's cursor properties are.
        """
        self._check_usable()
        return self._all_cursors.open(
            self,
            name,
            initial=initial,
            durable=durable,
            properties=properties,
            subscription_properties=subscription_properties,
        )

    def delete_cursor(self, name: str) -> Commit:
        """Forget a subscription; durable when the commit is done.

        While a deletion is pending, deleting again returns the same commit.
        """
        return self._all_cursors.delete(self, name)

    @contextmanager
    def refusing_appends(self) -> Iterator[None]:
        """Refuse appends (StoreClosedError) inside the block; also after it, if it was deleted."""
        with self.store.committer.lock:
            before, self._closed = self._closed, True
        try:
            yield
        finally:
            with self.store.committer.lock:
                self._closed = before or self._deleted

    def stop_appends(self) -> None:
        """From now on refuse appends (TopicTerminatedError). What was appended before is durable
        on return. Blocks.
        """
        with self._committer.lock:
            self._terminated = self._closed = True
        with self._committer.all_durable():
            pass

    def allow_appends(self) -> None:
        """Undo `stop_appends`."""
        with self._committer.lock:
            self._terminated = False
            self._closed = self._ended

    def _check_open(self) -> None:
        self._check_usable()
        if self._terminated:
            raise TopicTerminatedError(self.name)
        super()._check_open()

    def _check_usable(self) -> None:
        """As `_check_open`, for what is possible on a terminated topic, too."""
        if not self._terminated or self._ended:
            super()._check_open()
        self._state.check()

    def deleted(self) -> None:
        """The topic was deleted: nothing can be appended, and its files will be removed."""
        with self.store.committer.lock:
            self._deleted = True
            self._end()
            for run in self._segments:
                run.mark_removed()
            self.recent.clear()

    def close(self) -> None:
        """End the current ledger and refuse appends. What is pending still becomes durable."""
        self.store.uninterrupted.run(self._close)

    def _close(self) -> None:
        with self._committer.lock:
            self._end()
        try:
            self.controls.close()
        except LedgerError as error:
            _log.warning(
                "%s: which ledgers have control entries was not stored, so the next opening "
                "reads the last ledger: %s",
                self.name,
                error,
            )

    def _end(self) -> None:
        self._closed = self._ended = True
        self._leave_run()


def segments_before(segments: Sequence[Run], before: Position) -> Sequence[Run]:
    """The first runs whose entries are all before ``before``.

    The last run with visible entries is never among them: its header carries the index on.
    """
    keep = next(
        (n for n, s in enumerate(segments) if Position(s.ledger_id, s.end_entry_id) > before),
        len(segments),
    )
    last = max((n for n, s in enumerate(segments) if s.entry_count), default=0)
    return segments[: min(keep, last)]


def rows_before(run: Run, before: Position) -> int:
    """How many of a run's visible rows are before ``before``, which may be in any ledger."""
    if run.ledger_id == before.ledger_id:
        return min(run.entry_count, max(0, before.entry_id - run.first_entry_id))
    return run.entry_count if run.ledger_id < before.ledger_id else 0
