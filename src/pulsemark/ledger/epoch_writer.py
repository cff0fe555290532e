"""Control entries, leader epochs, and the tail that a new leader or a follower cuts off.

A store counts its topics' control entries (`control_positions`), so each ledger with control
entries is noted before the first of them is appended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..metadata import BrokerEntryMetadata, Buffer, ControlError, control_metadata
from ..proto.broker_entry_pb2 import CONTROL_LEADER_CHANGE, ControlType
from .admission import checked
from .commit.commit import Appended, Batch, Group
from .commit.record_builder import NewEntries, Records
from .commit.tail import Tail
from .entry import EntryKind
from .epochs import TailCut, check_epoch, check_highest, check_not_before, find_cut
from .errors import LedgerError, StaleEpochError
from .ledger_writer import LedgerWriter
from .limits import BODY_CRC_OURS
from .run import Run
from .store_core import StoreCore

_log = logging.getLogger(__name__)


class EpochWriter(LedgerWriter):
    """A topic's end, and what leaders and followers do with it."""

    def __init__(
        self,
        store: StoreCore,
        name: str,
        topic_id: int,
        segments: Sequence[Run],
        ledger_id: int,
        *,
        index_floor: int = 0,
    ) -> None:
        """As `LedgerWriter`."""
        super().__init__(store, name, topic_id, segments, ledger_id, index_floor=index_floor)
        self._found_epoch = self.tail.epoch if self._segments else None
        """The last epoch when this owner opened the log; None: the log was empty."""

    def append_control(
        self,
        control_type: ControlType,
        name: str = "",
        *,
        tags: Mapping[str, bytes] | None = None,
        epoch: int | None = None,
    ) -> Appended:
        """Add a control entry: the broker's own entry, with a name and tags and no payload.

        It takes one index, and audits count it. Consumers never see it. ``name`` says which
        transaction, checkpoint or user's type it is about (see `metadata.control`). A change of
        leader is written by ``begin_epoch``, since it begins an epoch. ``epoch`` is the leader
        epoch in which the caller believes to lead; None: whichever it is.

        Raises ControlError for a type, name or tag that it cannot have, and what ``append`` raises.
        """
        if control_type == CONTROL_LEADER_CHANGE:
            raise ControlError("control_type", "leader-change", "is written by begin_epoch")
        while True:
            current = self.tail.epoch if epoch is None else epoch
            base = control_metadata(control_type, name, tags, leader_epoch=current)
            try:
                return self.append(b"", kind=EntryKind.CONTROL, base=base, epoch=current)
            except StaleEpochError:
                if epoch is not None:
                    raise

    # Leader epochs

    @property
    def epoch(self) -> int:
        """The leader epoch that appends belong to; 0 until one has been begun."""
        return self.tail.epoch

    @property
    def was_taken_over(self) -> bool:
        """Whether another owner wrote to the log before, and this one has begun no epoch yet.

        Every store that is opened is a new owner, whichever way the one before it ended.
        """
        return self._found_epoch is not None and self.tail.epoch <= self._found_epoch

    def begin_epoch(
        self, epoch: int, *, leader: str = "", tags: Mapping[str, bytes] | None = None
    ) -> Appended:
        """A new leader takes over: appends of earlier epochs are refused from now on.

        The epoch begins a ledger, whose first entry is a control entry that names the epoch and the
        ``leader``. If that entry cannot be made durable, the previous epoch goes on. Raises
        StaleEpochError unless ``epoch`` is higher than the current one, ValueError above 2^32-1,
        ControlError, and what ``append`` raises: nothing has changed then.
        """
        epoch = check_highest(epoch)
        base = control_metadata(CONTROL_LEADER_CHANGE, leader, tags, leader_epoch=max(epoch, 0))
        return self.store.uninterrupted.run(partial(self._begin_epoch, epoch, base))

    def _begin_epoch(self, epoch: int, base: BrokerEntryMetadata) -> Appended:
        with self._committer.lock:
            self._check_open()
            check_epoch(self.name, epoch, self.tail.epoch)
            tail, mark = self._first_of(_mark(base), epoch, self.tail.next_index, self._segments)
            self._begin(tail)
            appended = self._add(tail, mark)
            self.controls.add(appended.position)
            return appended

    def truncate_tail(self, index: int, *, epoch: int, leader: str = "") -> Appended:
        """Drop every message from ``index`` on and begin ``epoch`` there. Blocks until durable.

        After a crash either nothing is dropped, or everything is and the epoch has begun. Raises
        ValueError if ``index`` lies inside an entry, or is outside the log, or if the epoch is
        above 2^32-1; StaleEpochError unless it is higher than the current one; ControlError,
        StampingError, CatalogError, OSError and FencedError. Nothing is dropped then. Only a
        FencedError followed by a crash may leave it dropped.
        """
        epoch = check_highest(epoch)
        base = control_metadata(CONTROL_LEADER_CHANGE, leader, leader_epoch=max(epoch, 0))
        return self.store.uninterrupted.run(
            partial(self._replace_tail, index, _mark(base), epoch, is_new=True)
        )

    def replace_tail(
        self,
        index: int,
        body: Buffer,
        *,
        epoch: int,
        message_count: int = 1,
        kind: EntryKind = EntryKind.DATA,
        base: BrokerEntryMetadata | None = None,
    ) -> Appended:
        """Drop every message from ``index`` on and add an entry there. Blocks until durable.

        For a follower: the entry is the leader's at that index, and ``epoch`` the one it was
        written in. It may be lower than this log's last epoch, but not lower than that of the entry
        before ``index``. The other arguments are those of ``append``, the promises and errors those
        of ``truncate_tail`` and ``append``.
        """
        epoch = check_highest(epoch)
        body, check, count, kind = checked(self.name, body, message_count, kind)
        entry = (body,), check, (count,), kind, base, None
        return self.store.uninterrupted.run(
            partial(self._replace_tail, index, entry, epoch, is_new=False)
        )

    def _replace_tail(self, index: int, entry: NewEntries, epoch: int, *, is_new: bool) -> Appended:
        engine, committer = self._engine, self._committer
        with committer.between_batches(), committer.lock:
            committer.commit_all()  # and nothing is appended until this is done
            self._check_open()
            if is_new:
                check_epoch(self.name, epoch, self.tail.epoch)
            cut = self._cut_at(index)
            check_not_before(self.name, epoch, cut.kept)
            tail, record = self._first_of(entry, epoch, index, cut.kept, cut.last_count)
            assert tail.run is not None
            group = Group(None, Batch(None), self, tail.run, 0)
            appended = self._add(tail, record, group)
            engine.began(tail.run)
            try:
                committer.write_now(group)
            except BaseException:
                engine.void(tail.run)
                raise
            self._make_cut(cut, tail)
            if entry[3] is EntryKind.CONTROL and entry[2][0]:
                self.controls.add(appended.position)
        self._drop(cut.dropped)
        return appended

    def _cut_at(self, index: int) -> TailCut:
        """Where the messages from ``index`` on are cut off. Raises ValueError."""
        if not self.first_index <= index <= self.next_index:
            raise ValueError(
                f"index must be from {self.first_index} to {self.next_index}, not {index}"
            )
        return find_cut([s for s in self._segments if s.entry_count], index)

    def _make_cut(self, cut: TailCut, tail: Tail) -> None:
        """The folder has the cut; so has memory from now on."""
        assert tail.run is not None
        try:
            cut.make()
        except OSError as error:  # the folder has the cut already, but memory could not follow
            self._state.fail(error)
            raise self._state.error() from error
        self.recent.clear()
        self._leave_run()
        for shortened in cut.kept[-1:]:
            shortened.assigned_count = shortened.entry_count
            self._engine.sealed(shortened)
        self._segments = (*cut.kept, tail.run)
        self.tail = tail
        self.controls.drop_after(cut.kept[-1] if cut.kept else None)
        self.tail_cuts += 1

    def _drop(self, dropped: Sequence[Run]) -> None:
        """Remove runs that a later header has cut off. If that fails, the next opening does it."""
        for run in dropped:
            run.mark_removed()
        try:
            self._engine.remove(self.topic_id, dropped)()
        except (OSError, LedgerError) as error:
            _log.warning("%s: files of a cut-off tail could not be removed: %s", self.name, error)

    def _first_of(
        self,
        entry: NewEntries,
        epoch: int,
        index: int,
        kept: Sequence[Run],
        last_count: int | None = None,
    ) -> tuple[Tail, Records]:
        """A new ledger of ``epoch`` after ``kept``, and its first entry.

        Changes nothing except that it uses up a ledger id, and notes the ledger for a control
        entry. Raises what ``append`` does.
        """
        ended = replace(
            self.tail,
            next_index=index,
            epoch=epoch,
            ledger_id=self.store.next_ledger_id(),
            needs_ledger_id=False,
        )
        if entry[3] is EntryKind.CONTROL:
            self.controls.note(ended.ledger_id, self.tail.ledger_id, kept)
        tail = self._tail_of_new(ended, kept, 0, 0, last_count)
        record = self._builder.build(entry, tail)
        assert isinstance(record, tuple)  # the run is new
        return tail, record


def _mark(base: BrokerEntryMetadata) -> NewEntries:
    """The control entry with these fields."""
    return (b"",), BODY_CRC_OURS, (1,), EntryKind.CONTROL, base, None
