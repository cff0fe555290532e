"""One topic of a store, open for appending: leader epochs, removal of entries, cursors, closing.

`LedgerWriter` appends entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ..metadata import BrokerEntryMetadata, add_application_tags
from ..proto.broker_entry_pb2 import CONTROL, CONTROL_LEADER_CHANGE, ControlType
from .commit.commit import Appended, Batch, Commit, Group
from .commit.record_builder import Record
from .commit.tail import Tail
from .cursors.cursor import Cursor
from .cursors.cursor_store import CursorStore
from .entry import EntryKind
from .epochs import EpochStart, check_epoch, epoch_starts, find_cut
from .errors import LedgerError
from .ledger_writer import LedgerWriter
from .limits import BODY_CRC_OURS
from .position import Position
from .run import Run
from .store_core import StoreCore

_log = logging.getLogger(__name__)


class ManagedLedger(LedgerWriter):
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
    ) -> None:
        """As `LedgerWriter`; ``cursors`` None: it is the cursor ledger itself."""
        super().__init__(store, name, topic_id, segments, ledger_id, index_floor=index_floor)
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

    def append_control(
        self, control_type: ControlType, *, tags: Mapping[str, bytes] | None = None
    ) -> Appended:
        """Add a control entry: the broker's own entry, with tags and no payload.

        It takes one index, and audits count it. Consumers never see it.
        """
        base = _control(control_type, self.tail.epoch)
        if tags:
            add_application_tags(base, tags)
        return self.append(b"", kind=EntryKind.CONTROL, base=base)

    # Leader epochs

    @property
    def epoch(self) -> int:
        """The leader epoch that appends belong to; 0 until one has been begun."""
        return self.tail.epoch

    @property
    def epochs(self) -> list[EpochStart]:
        """Where each leader epoch that has entries begins, oldest first."""
        return epoch_starts(self.segments())

    def begin_epoch(self, epoch: int) -> Appended:
        """A new leader takes over: appends of earlier epochs are refused from now on.

        The epoch begins a ledger, whose first entry is a control entry that names the epoch. If
        that entry cannot be made durable, the previous epoch goes on. Raises StaleEpochError unless
        ``epoch`` is higher than the current one, ValueError above 2^32-1, and what ``append``
        raises: nothing has changed then.
        """
        return self.store.uninterrupted.run(partial(self._begin_epoch, epoch))

    def _begin_epoch(self, epoch: int) -> Appended:
        with self._committer.lock:
            self._check_open()
            check_epoch(self.name, epoch, self.tail.epoch)
            tail, mark = self._mark(epoch, self.tail.next_index, self._segments)
            self._begin(tail)
            return self._add(tail, mark)

    def truncate_tail(self, index: int, *, epoch: int) -> Appended:
        """Drop every message from ``index`` on and begin ``epoch`` there. Blocks until durable.

        After a crash either nothing is dropped, or everything is and the epoch has begun. Raises
        StaleEpochError; ValueError if ``index`` is not the first of an entry, or is outside the
        log, or if the epoch is above 2^32-1; StampingError, CatalogError, OSError and FencedError.
        Nothing is dropped then. Only a FencedError followed by a crash may leave it dropped.
        """
        return self.store.uninterrupted.run(partial(self._truncate_tail, index, epoch))

    def _truncate_tail(self, index: int, epoch: int) -> Appended:
        engine, committer = self._engine, self._committer
        with committer.between_batches(), committer.lock:
            committer.commit_all()  # and nothing is appended until this is done
            self._check_open()
            check_epoch(self.name, epoch, self.tail.epoch)
            if not self.first_index <= index <= self.next_index:
                raise ValueError(
                    f"index must be from {self.first_index} to {self.next_index}, not {index}"
                )
            cut = find_cut([s for s in self._segments if s.entry_count], index)
            tail, mark = self._mark(epoch, index, cut.kept, cut.last_count)
            assert tail.run is not None
            group = Group(None, Batch(None), self, tail.run, 0)
            appended = self._add(tail, mark, group)
            engine.began(tail.run)
            try:
                committer.write_now(group)
            except BaseException:
                engine.void(tail.run)
                raise
            try:
                cut.make()
            except OSError as error:  # the folder has the cut already, but memory could not follow
                self._state.fail(error)
                raise self._state.error() from error
            self.recent.clear()
            self._leave_run()
            for shortened in cut.kept[-1:]:
                shortened.assigned_count = shortened.entry_count
                engine.sealed(shortened)
            self._segments = (*cut.kept, tail.run)
            self.tail = tail
        self._drop(cut.dropped)
        return appended

    def _drop(self, dropped: Sequence[Run]) -> None:
        """Remove runs that a later header has cut off. If that fails, the next opening does it."""
        for run in dropped:
            run.mark_removed()
        try:
            self._engine.remove(self.topic_id, dropped)()
        except (OSError, LedgerError) as error:
            _log.warning("%s: files of a cut-off tail could not be removed: %s", self.name, error)

    def _mark(
        self, epoch: int, index: int, kept: Sequence[Run], last_count: int | None = None
    ) -> tuple[Tail, Record]:
        """A new ledger after ``kept``, and the control entry that begins ``epoch`` there.

        Changes nothing except that it uses up a ledger id. Raises what ``append`` does.
        """
        base = _control(CONTROL_LEADER_CHANGE, epoch)
        ended = replace(
            self.tail,
            next_index=index,
            epoch=epoch,
            ledger_id=self.store.next_ledger_id(),
            needs_ledger_id=False,
        )
        tail = self._tail_of_new(ended, kept, 0, 0, last_count)
        mark = self._builder.build(
            (b"", BODY_CRC_OURS, 1, EntryKind.CONTROL, base, None, None), tail
        )
        assert isinstance(mark, tuple)  # the run is new
        return tail, mark

    # Ending

    def roll(self) -> None:
        """End the current ledger; the next entry begins a new one. Raises CatalogError."""
        self.store.uninterrupted.run(self._roll)

    def _roll(self) -> None:
        with self._committer.lock:
            self._check_open()
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
        self._check_open()
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
        for call in self.before_removal:
            call(before)

    def _truncate_head(self, before: Position) -> int:
        self._check_open()
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
        self._check_open()
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

    def _end(self) -> None:
        self._closed = True
        self._leave_run()


def _control(control_type: ControlType, epoch: int) -> BrokerEntryMetadata:
    base = BrokerEntryMetadata(entry_kind=CONTROL, control_type=control_type)
    if epoch:
        base.leader_epoch = epoch
    return base


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
