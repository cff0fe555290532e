"""A topic's chain of ledgers, written: append, roll, trim.

An entry gets its position, time and index at append, under the store's lock, and keeps them:
``time = max(clock, last)``, ``index = last + messages``. Entries that cannot be made durable are
not removed one by one. Instead the ledger is fenced at its last durable entry, and the topic
continues in a new ledger, whose header says how many entries of the previous one count. So indexes
have no gaps, and none is given twice. Every opening of a topic begins a new ledger, too. A change
is made in this order: first all that may fail, then one run of assignments that nothing can
interrupt, then what cannot fail. Longer changes run in `UninterruptedWork`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..metadata import BrokerEntryMetadata, Buffer, Sender, StamperChain
from ..metadata.message import sound_count
from .admission import body_check_of, check_count, check_kind, check_place, plain_body
from .commit.commit import ROW_FIELDS, Appended, Group
from .commit.pending import MAX_BATCH_BYTES
from .commit.record_builder import NewEntries, RecordBuilder, Records
from .commit.tail import LEDGER, Tail
from .cursors.cursor import Cursor
from .entry import Entry, EntryKind
from .entry_time import checked_ms
from .errors import CatalogError, StoreClosedError
from .limits import BODY_CRC_PRODUCER, MAX_MESSAGE_COUNT
from .position import Position
from .run import Run, RunHeader
from .store_core import StoreCore
from .topic_log import LogSnapshot, TopicLog


class LedgerWriter(TopicLog):
    """The end of a topic: where entries are appended, and ledgers and segments begin."""

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
        """``index_floor``: indexes below it are in use, though the ledger that had them is lost."""
        super().__init__(name, segments)
        self.store = store
        """The store that the topic is in."""
        self._engine = store.engine
        self._state = store.state
        self._committer = store.committer
        self._pending = store.committer.pending
        self._group: Group | None = None
        """The group of the last append."""
        self._index_floor = index_floor
        self._opened_at_ledger_id = ledger_id
        self.topic_id = topic_id
        self.on_confirmed: list[Callable[[], None]] = []
        """Called after each commit that added entries, where callbacks run."""
        self.cursors: dict[str, Cursor] = {}
        self.recent = store.tail_cache.of_topic(self._mark_deletes)
        """The newest entries, kept for readers at the end of the log."""
        self.stampers = StamperChain()
        self._closed = False
        self._deleted = False
        self._removing = threading.Lock()
        """Held while entries are removed from the head, so that one removal runs at a time."""
        self.tail = self._tail_at_opening(ledger_id)
        """Changed under the lock, by appends and by the committer."""

    def _tail_at_opening(self, ledger_id: int) -> Tail:
        """After the last durable entry; every opening begins a new ledger."""
        segments = self._segments
        return Tail(
            ledger_id=ledger_id,
            run=None,
            entry_id=0,
            offset=0,
            next_index=self.next_index,
            stamp_floor_ms=max((s.append_time_max_ms for s in segments), default=0),
            entry_time_max_ms=segments[-1].time_max_ms if segments else 0,
            ledger_bytes=0,
            ledger_age_ms=0,
            clock_ms=0,
            epoch=segments[-1].header.epoch if segments else 0,
        )

    @property
    def stampers(self) -> StamperChain:
        """The stampers of new entries; with an empty chain they have no prefix."""
        return self._builder.chain

    @stampers.setter
    def stampers(self, chain: StamperChain) -> None:
        self._builder = RecordBuilder(self.name, self.store.clock, self.store.options, chain)

    def snapshot(self) -> LogSnapshot:
        """As ``TopicLog.snapshot``, under the lock under which entries are shown."""
        with self._committer.lock:
            return super().snapshot()

    @property
    def end_position(self) -> Position:
        """Position of the first entry that is not yet durable, or of the next one.

        While nothing is pending: in the current ledger, even if that has no entry yet.
        """
        tail = self.tail
        end = (
            super().end_position
            if tail.needs_ledger_id
            else Position(tail.ledger_id, tail.entry_id if tail.run is not None else 0)
        )
        for run in reversed(self._segments):
            if run.entry_count < self._assigned(run):
                end = Position(run.ledger_id, run.end_entry_id)
            elif run.entry_count:
                break  # durable, and so is all before it
        return end

    @property
    def next_index(self) -> int:
        """The index of the next message after the last durable entry."""
        next_index = super().next_index
        if self._index_floor:
            last = self._last_visible()
            if last is None or last.ledger_id < self._opened_at_ledger_id:
                return max(next_index, self._index_floor)
        return next_index

    @property
    def ledger_id(self) -> int:
        """The ledger that the next entry goes to."""
        return self.tail.ledger_id

    def read(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """As ``TopicLog.read``; raises StoreClosedError once the store is closed."""
        if self._state.is_over:
            self._state.check()
        entries = self.recent.read(start, max_entries, max_bytes)
        if entries:
            self.give_way()
            return entries
        entries = super().read(start, max_entries=max_entries, max_bytes=max_bytes)
        if entries:
            self.recent.missed(entries)
        else:
            self.recent.reached_end()
        return entries

    def _mark_deletes(self) -> list[Position]:
        return [cursor.mark_delete for cursor in tuple(self.cursors.values())]

    def read_stored(
        self, start: Position, *, max_entries: int = 10_000, max_bytes: int = 4 << 20
    ) -> tuple[Position, list[memoryview]]:
        """As ``TopicLog.read_stored``; raises StoreClosedError once the store is closed."""
        self._state.check()
        return super().read_stored(start, max_entries=max_entries, max_bytes=max_bytes)

    def check_can_read(self) -> None:
        """Raise StoreClosedError, StoreFailedError or ForkedStoreError unless the store is open."""
        self._state.check()

    def give_way(self) -> bool:
        """Let commits run first: see `read_turns`."""
        turns = self._committer.read_turns
        if self._pending.size_bytes or turns.are_due():
            turns.wait()
            return True
        return False

    # Appending

    def append(
        self,
        body: Buffer,
        *,
        message_count: int = 1,
        kind: EntryKind = EntryKind.DATA,
        base: BrokerEntryMetadata | None = None,
        epoch: int | None = None,
        sender: Sender | None = None,
        follows: Appended | None = None,
        wakes: bool = True,
    ) -> Appended:
        """Add an entry. Returns at once; it is durable when the returned ``commit`` is done.

        This is an `append_run` of one.

        ``body`` is a producer's headers-and-payload (or any contiguous buffer). It must not change
        until then. An entry with ``message_count`` 0 or below takes no index and gets no prefix, as
        in Pulsar. ``base`` are prefix fields of the store itself, written even without stamps.
        ``epoch`` is the leader epoch in which the caller believes to lead, ``sender`` the producer
        whose connection sent the entry, for stampers. ``follows`` is an earlier append without
        which this one must not be stored (FencedError). Without ``wakes`` the committer sleeps on
        until ``CommitterThread.wake``. Waits while too much is pending.

        Raises AlreadyStampedError, ChecksumError (a body with Pulsar's magic whose CRC32C is
        wrong), EntryTooLargeError, InvalidEntryError (see there), StaleEpochError,
        StoreClosedError, StoreFailedError, ForkedStoreError, CatalogError, and StampingError from
        a plugin: nothing is stored then. After an exception from a signal handler the entry may be
        stored or not.
        """
        body = body if type(body) is bytes else plain_body(self.name, body)
        if kind is not EntryKind.DATA:
            kind = check_kind(self.name, kind)
        if type(message_count) is not int:
            message_count = check_count(self.name, message_count)
        appended, _ = self.append_run(
            (body,),
            (message_count,),
            kind=kind,
            base=base,
            epoch=epoch,
            sender=sender,
            follows=follows,
            wakes=wakes,
        )
        return appended

    def append_run(
        self,
        bodies: Sequence[Buffer],
        message_counts: Sequence[int],
        *,
        kind: EntryKind = EntryKind.DATA,
        base: BrokerEntryMetadata | None = None,
        epoch: int | None = None,
        sender: Sender | None = None,
        follows: Appended | None = None,
        wakes: bool = True,
    ) -> tuple[Appended, int]:
        """Add entries that follow one another: as many of the first ones as can be added at once.

        Returns what ``append`` does for the last one that was added, and how many were. They have
        consecutive positions in one ledger, the same time and the same commit. The caller goes on
        with the rest. A run ends before a segment or a ledger begins, before a body whose checksum
        is missing or wrong, before an entry without messages, and at a limit; with stampers other
        than time and index, and with ``base``, after each entry.

        Bodies are bytes or views of single bytes. Raises what ``append`` raises for the first one.
        """
        if self._state.is_over:
            self._state.check()
        entries = self._admitted(bodies, message_counts, kind, base, sender)
        pending = self._pending
        if pending.size_bytes > pending.max_bytes or pending.entry_count > pending.max_entries:
            self._committer.wait_for_room()
        while True:
            with pending.lock:
                if self._closed or self._state.is_over:
                    self._check_open()
                tail = self.tail
                if epoch is not None or follows is not None:
                    check_place(self.name, tail, epoch, follows)
                records = self._builder.build(entries, tail)
                if type(records) is tuple and (not kind or self.controls.is_noted(tail.ledger_id)):
                    appended = self._add(tail, records, wakes=wakes)
                    if kind and entries[2][0]:
                        self.controls.add(appended.position)
                    return appended, len(records[1]) // ROW_FIELDS
            self.store.uninterrupted.run(partial(self._make_room, entries))

    def _admitted(
        self,
        bodies: Sequence[Buffer],
        counts: Sequence[int],
        kind: EntryKind,
        base: BrokerEntryMetadata | None,
        sender: Sender | None,
    ) -> NewEntries:
        """As many of the first entries as may be appended together. Raises for the first one."""
        if len(bodies) > 1 and not kind and base is None and self._builder.is_plain:
            count = sound_count(bodies)
            if count > 1 and min(counts) > 0 and max(counts) <= MAX_MESSAGE_COUNT:
                if count < len(bodies):
                    bodies, counts = bodies[:count], counts[:count]
                return bodies, BODY_CRC_PRODUCER, counts, kind, None, sender
        body, message_count = bodies[0], counts[0]
        if not 0 <= message_count <= MAX_MESSAGE_COUNT:
            message_count = check_count(self.name, message_count)
        return (body,), body_check_of(self.name, body), (message_count,), kind, base, sender

    def _add(
        self, tail: Tail, records: Records, group: Group | None = None, *, wakes: bool = True
    ) -> Appended:
        """Under the lock: append records that were built at ``tail`` to the group that gathers.

        Returns what was appended last.
        """
        parts, rows, size_bytes, next_index, age_ms, clock_ms = records
        pending = self._pending
        run = tail.run
        if group is None:
            group = self._group
            if (
                group is None
                or group.run is not run
                or group.batch is not pending.gathering
                or group.batch.size_bytes >= MAX_BATCH_BYTES
            ):
                assert run is not None
                group = self._group = pending.group(self, run, tail.offset, wakes)
        batch = group.batch
        append_time_ms, entry_time_ms, _, end = rows if len(rows) == ROW_FIELDS else rows[-4:]
        added_bytes, end_id = end - tail.offset, tail.entry_id + len(rows) // ROW_FIELDS
        entry_count = end_id - tail.entry_id
        appended = Appended(tail.ledger_id, end_id - 1, next_index - 1, append_time_ms, group)
        # No call from here on: nothing can interrupt this (see `pending`).
        group.buffers += parts
        group.rows += rows
        tail.entry_id = end_id
        tail.offset = end
        tail.next_index = next_index
        tail.stamp_floor_ms = append_time_ms
        tail.entry_time_max_ms = entry_time_ms
        tail.ledger_bytes += size_bytes
        tail.ledger_age_ms = age_ms
        tail.clock_ms = clock_ms
        batch.size_bytes += added_bytes
        pending.size_bytes += added_bytes
        pending.entry_count += entry_count
        return appended

    def _check_open(self) -> None:
        self._state.check()
        if self._closed:
            raise StoreClosedError(self.name)

    # Ledgers and segments

    def _make_room(self, entries: NewEntries) -> None:
        """Begin a run, or a ledger, if the first of these is to be the first one in it."""
        if entries[3]:  # a control entry
            self.controls.note(self.tail.ledger_id, self.tail.ledger_id, self._segments)
        with self._committer.lock:
            self._check_open()
            tail = self.tail
            begins = self._builder.build(entries, tail)
            if isinstance(begins, tuple):
                return  # another thread has begun one meanwhile
            run = tail.run
            if run is None or begins == LEDGER:
                if run is not None or tail.needs_ledger_id:
                    ledger_id = self.store.next_ledger_id()
                    tail = replace(tail, ledger_id=ledger_id, needs_ledger_id=False)
                self._begin(self._tail_of_new(tail, self._segments, 0, 0))
            else:
                number = run.header.segment_no + 1
                self._begin(self._tail_of_new(tail, self._segments, number, tail.entry_id))

    def _tail_of_new(
        self,
        tail: Tail,
        kept: Sequence[Run],
        segment_no: int,
        first_entry_id: int,
        last_count: int | None = None,
    ) -> Tail:
        """``tail`` with a new run, after ``kept``; nothing has changed yet."""
        previous = next(
            (s for s in reversed(kept) if s.ledger_id != tail.ledger_id and self._assigned(s)), None
        )
        header = RunHeader(
            topic=self.name,
            topic_id=self.topic_id,
            ledger_id=tail.ledger_id,
            segment_no=segment_no,
            first_entry_id=first_entry_id,
            first_index=tail.next_index,
            entry_time_floor_ms=tail.entry_time_max_ms,
            stamp_floor_ms=tail.stamp_floor_ms,
            previous_ledger_id=previous.ledger_id if previous else -1,
            epoch=tail.epoch,
            previous_entry_count=previous.first_entry_id
            + (self._assigned(previous) if last_count is None else last_count)
            if previous
            else 0,
        )
        began = replace(
            tail,
            run=self._engine.create(header),
            entry_id=first_entry_id,
            offset=0,
        )
        if segment_no:
            return began
        return replace(
            began, ledger_bytes=0, ledger_age_ms=0, clock_ms=checked_ms(self.store.clock.now_ms())
        )

    def _assigned(self, run: Run) -> int:
        """How many entries of a run have an entry id assigned."""
        tail = self.tail
        assigned = tail.assigned_count if run is tail.run else run.assigned_count
        return max(run.entry_count, assigned)

    def _begin(self, tail: Tail) -> None:
        """Continue at ``tail``, whose run is new. Cannot fail."""
        assert tail.run is not None
        self._engine.began(tail.run)
        self._leave_run()
        self._segments = (*self._segments, tail.run)
        self.tail = tail

    def _leave_run(self) -> None:
        """No entry follows in the current run."""
        run = self.tail.run
        if run is None:
            return
        run.assigned_count = self.tail.assigned_count
        if run.assigned_count:
            self._engine.sealed(run)
        else:  # it was begun for an entry that was not appended
            self._segments = tuple(s for s in self._segments if s is not run)
            self._engine.void(run)
        self.tail = replace(self.tail, run=None, entry_id=0, offset=0)

    # What the committer calls

    def fence(self) -> None:
        """Under the lock: drop what is not durable; the next entry begins a new ledger.

        Reads no file: no index has rows of entries that are not durable.
        """
        tail = self.tail
        kept = tuple(s for s in self._segments if s.entry_count)
        for run in self._segments:
            run.assigned_count = run.entry_count
            if not run.entry_count:
                self._engine.void(run)
        if tail.run is not None and tail.run.entry_count:
            self._engine.sealed(tail.run)
        self._segments = kept
        last = kept[-1] if kept else None
        self.controls.failed_after(last)
        self.tail = replace(
            tail,
            run=None,
            entry_id=0,
            offset=0,
            next_index=self.next_index,
            entry_time_max_ms=last.time_max_ms if last else 0,
            epoch=last.header.epoch if last else 0,
            needs_ledger_id=True,
        )
        # On a full disk the catalog may fail as well: then the next append tries again.
        with suppress(CatalogError):
            ledger_id = self.store.next_ledger_id()
            self.tail = replace(self.tail, ledger_id=ledger_id, needs_ledger_id=False)
