"""A topic's chain of ledgers, written: append, roll, trim.

Position, time and index of an entry are assigned at append, under the store's lock, and never
again: ``time = max(clock, last)``, ``index = last + messages``. What cannot be made durable is
not taken back one by one. The ledger is fenced at its last durable entry and the topic goes on
in a new ledger, whose header says how many entries of the one before count. So the index has no
gaps and no number is given twice, by construction.

A ledger gets its file with its first entry; every opening of a topic begins a new ledger, so
that nothing is ever appended behind what a crash may have left.

Every change is made in this order: all that may fail, then one assignment, then what cannot fail.
An append changes the `Tail` and one group, see ``GroupCommit.finish_append``; what changes more
runs aside (`Aside`), where no signal handler interrupts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ..metadata import (
    BrokerEntryMetadata,
    Buffer,
    MessageHeader,
    Sender,
    StamperChain,
    pack,
    pack_stamp,
)
from .admission import (
    body_check_of,
    check_count,
    check_kind,
    plain_body,
    raise_too_large,
)
from .appended import Appended
from .commit.commit import PendingEntry
from .commit.tail import LEDGER, MAX_PENDING_ENTRIES, Tail, make_tail, what_begins
from .cursors.cursor import Cursor
from .entry import Entry, EntryKind
from .entry_time import time_of_unstamped
from .errors import CatalogError, InvalidEntryError, StaleEpochError, StoreClosedError
from .limits import MAX_INDEX, MAX_MESSAGE_COUNT, MAX_PREFIX_BYTES
from .position import Position
from .run import Run, RunHeader
from .store_core import StoreCore
from .topic_log import TopicLog

_PLAIN_TIME_END_MS = 2**63


NewEntry = tuple[
    Buffer,
    int,
    int,
    EntryKind,
    BrokerEntryMetadata | None,
    Sender | None,
    MessageHeader | None,
]
"""An entry that is to be appended, checked as far as that goes without its place: body, body
check, messages, kind, prefix fields of the store itself, the producer, and the message's own header
where the time index may need it."""
Built = tuple[PendingEntry, Tail]


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
        """``index_floor``: indexes below it were given, though the ledger that had them is lost."""
        super().__init__(name, segments)
        self._store = store
        self._engine = store.engine
        self._state = store.state
        self._committer = store.committer
        self._options = store.options
        self._index_floor = index_floor
        self._opened_at_ledger_id = ledger_id
        self.topic_id = topic_id
        self.on_confirmed: list[Callable[[], None]] = []
        """Called after each commit that added entries, where callbacks run."""
        self.cursors: dict[str, Cursor] = {}
        self._stamping = (StamperChain(), False, False)
        """The chain, whether it writes the broker's time, and whether time and index are all."""
        self._closed = False
        self._deleted = False
        self._removing = threading.Lock()
        """Held while entries are removed from the head: one removal after another."""
        self.tail = Tail(
            ledger_id=ledger_id,
            segment=None,
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
        """Assigned by appends and by the committer, under the lock."""

    @property
    def store(self) -> StoreCore:
        """The store that the topic is in."""
        return self._store

    @property
    def stampers(self) -> StamperChain:
        """Who stamps new entries; an empty chain stores them without prefix."""
        return self._stamping[0]

    @stampers.setter
    def stampers(self, chain: StamperChain) -> None:
        self._stamping = chain, chain.stamps_time, chain.is_plain_stamp

    @property
    def end_position(self) -> Position:
        """Where the first entry that is not yet durable stands, or the next one will.

        A topic at rest: in the current ledger, even if that has no entry yet.
        """
        tail = self.tail
        end = (
            super().end_position
            if tail.needs_ledger_id
            else Position(tail.ledger_id, tail.entry_id if tail.segment is not None else 0)
        )
        for segment in reversed(self._segments):
            if segment.entry_count < self._assigned(segment):
                end = Position(segment.ledger_id, segment.end_entry_id)
            elif segment.entry_count:
                break  # durable, and so is all before it
        return end

    @property
    def next_index(self) -> int:
        """Index the message behind the last durable entry gets."""
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
        return super().read(start, max_entries=max_entries, max_bytes=max_bytes)

    def read_stored(
        self,
        start: Position,
        *,
        max_entries: int = 10_000,
        max_bytes: int = 4 << 20,
        mapped: bool = False,
    ) -> tuple[Position, list[memoryview]]:
        """As ``TopicLog.read_stored``; raises StoreClosedError once the store is closed."""
        self._state.check()
        return super().read_stored(
            start, max_entries=max_entries, max_bytes=max_bytes, mapped=mapped
        )

    def give_way(self) -> bool:
        """Let commits pass: see `read_turns`."""
        committer = self._committer
        turns = committer.read_turns
        if committer.pending_bytes or turns.are_due():
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
    ) -> Appended:
        """Add an entry. Returns at once; it is durable when the returned ``commit`` is done.

        ``body`` is a producer's headers-and-payload (or any contiguous buffer), which must not
        change until then. ``message_count`` 0 or below takes no index and gets no prefix, as in
        Pulsar. ``base`` are prefix fields of the store itself, written even where stamps are off.
        ``epoch`` is the leader epoch the caller believes to lead, ``sender`` the producer on whose
        connection the entry came, for stampers. Waits while too much is pending.

        Raises AlreadyStampedError, ChecksumError (a body with Pulsar's magic whose CRC32C is
        wrong), EntryTooLargeError, InvalidEntryError (see there), StaleEpochError,
        StoreClosedError, StoreFailedError, ForkedStoreError, CatalogError, and StampingError from
        a plugin: nothing is stored then. After an exception out of a signal handler the entry may
        be stored or not.
        """
        if self._state.is_over:
            self._state.check()
        if type(body) is not bytes:
            body = plain_body(self.name, body)
        if kind is not EntryKind.DATA:
            kind = check_kind(self.name, kind)
        if type(message_count) is not int or not 0 <= message_count <= MAX_MESSAGE_COUNT:
            message_count = check_count(self.name, message_count)
        body_check = body_check_of(self.name, body)
        # Without a stamp of time both the stampers and the time index may read the header.
        header = None if self._stamping[1] else MessageHeader(body)
        entry = body, body_check, message_count, kind, base, sender, header
        committer = self._committer
        if (
            committer.pending_bytes > committer.max_pending_bytes
            or committer.pending_entries > MAX_PENDING_ENTRIES
        ):
            committer.wait_for_room()
        while True:
            with committer.lock:
                if committer.adding is not None:
                    committer.finish_append()
                if self._closed or self._state.is_over:
                    self._check_open()
                tail = self.tail
                if epoch is not None and epoch != tail.epoch:
                    raise StaleEpochError(self.name, epoch, tail.epoch)
                built = self._build(entry, tail)
                appended = self._add(tail, built) if isinstance(built, tuple) else None
            if appended is not None:
                return appended
            self._store.aside.run(partial(self._make_room, entry))

    def _add(self, tail: Tail, built: Built) -> Appended:
        """Under the lock: append what was built at ``tail``."""
        record, then = built
        committer = self._committer
        segment = then.segment
        assert segment is not None
        group = committer.group(self, segment, tail.offset)
        added = then.offset - tail.offset
        commit = group.commit
        batch = commit.batch
        group_bytes, batch_bytes = group.size_bytes + added, batch.size_bytes + added
        pending_bytes = committer.pending_bytes + added
        pending = committer.pending_entries + 1
        committer.adding = (
            self,
            then,
            group,
            record,
            group_bytes,
            batch_bytes,
            pending_bytes,
            pending,
        )
        # From here on as ``GroupCommit.finish_append``, which carries it out again after an
        # exception; without its call, for this is done for each entry.
        group.entries.append(record)
        self.tail = then
        group.size_bytes = group_bytes
        batch.size_bytes = batch_bytes
        committer.pending_bytes = pending_bytes
        committer.pending_entries = pending
        committer.adding = None
        return Appended(tail.ledger_id, tail.entry_id, then.next_index - 1, record[1], commit)

    def _build(self, entry: NewEntry, tail: Tail) -> Built | int:
        """The entry's record at ``tail``, and the tail behind it; or SEGMENT or LEDGER: one has
        to be begun first. Changes nothing, and raises what ``append`` does.
        """
        body, body_check, messages, kind, base, sender, header = entry
        (
            ledger_id, segment, entry_id, start, next_index, stamp_floor_ms, time_max_ms,
            ledger_bytes, age_ms, last_clock_ms, epoch, _,
        ) = tail  # fmt: skip
        if segment is None:
            return LEDGER  # before any stamper is asked
        clock_ms = self._store.clock.now_ms()
        now_ms = max(stamp_floor_ms, clock_ms)
        if clock_ms > last_clock_ms:
            age_ms += clock_ms - last_clock_ms
        index = next_index + messages - 1
        if index > MAX_INDEX:
            raise InvalidEntryError(self.name, f"index {index} is above {MAX_INDEX}")
        chain, stamps_time, is_plain = self._stamping
        if is_plain and base is None and messages and now_ms < _PLAIN_TIME_END_MS:
            prefix = pack_stamp(now_ms, index)  # as the chain does, without asking it
        else:
            prefix = chain.prefix(
                self.name, now_ms, index, messages, body, base=base, sender=sender, header=header
            )
        if base is not None and not prefix:
            prefix = pack(base)
        options = self._options
        size = len(prefix) + len(body)
        if size > options.max_entry_size_bytes or len(prefix) > MAX_PREFIX_BYTES:
            raise_too_large(self.name, prefix, size, options.max_entry_size_bytes)
        size += segment.overhead_bytes[body_check]
        if begins := what_begins(tail, size, messages, age_ms, options):
            return begins
        parts = segment.pack(entry_id, kind, messages, now_ms, index, prefix, body, body_check)
        if start == 0:
            first = segment.first_bytes()
            parts = (first, *parts)
            start = len(first)
        if stamps_time and prefix:
            time_ms = now_ms
        else:
            time_ms = time_of_unstamped(header or MessageHeader(body), now_ms)
        if time_ms > time_max_ms:
            time_max_ms = time_ms
        end = start + size
        next_index += messages
        record = parts, now_ms, time_max_ms, next_index - segment.first_index, end
        return record, make_tail(
            (
                ledger_id, segment, entry_id + 1, end, next_index, now_ms, time_max_ms,
                ledger_bytes + size, age_ms, clock_ms, epoch, False,
            )
        )  # fmt: skip

    def _check_open(self) -> None:
        self._state.check()
        if self._closed:
            raise StoreClosedError(self.name)

    # Ledgers and segments

    def _make_room(self, entry: NewEntry) -> None:
        """Begin a segment, or a ledger, if this entry is to be the first one in it."""
        with self._committer.lock:
            self._committer.finish_append()
            self._check_open()
            tail = self.tail
            begins = self._build(entry, tail)
            if isinstance(begins, tuple):
                return  # another thread has begun one meanwhile
            segment = tail.segment
            if segment is None or begins == LEDGER:
                if segment is not None or tail.needs_ledger_id:
                    ledger_id = self._store.next_ledger_id()
                    tail = tail._replace(ledger_id=ledger_id, needs_ledger_id=False)
                self._begin(self._tail_of_new(tail, self._segments, 0, 0))
            else:
                number = segment.header.segment_no + 1
                self._begin(self._tail_of_new(tail, self._segments, number, tail.entry_id))

    def _tail_of_new(
        self,
        tail: Tail,
        kept: Sequence[Run],
        segment_no: int,
        first_entry_id: int,
        last_count: int | None = None,
    ) -> Tail:
        """``tail`` with a new segment, behind ``kept``; nothing has changed yet."""
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
        began = tail._replace(
            segment=self._engine.create(header),
            entry_id=first_entry_id,
            offset=0,
        )
        if segment_no:
            return began
        return began._replace(ledger_bytes=0, ledger_age_ms=0, clock_ms=self._store.clock.now_ms())

    def _assigned(self, segment: Run) -> int:
        """How many entries of a segment have got their number."""
        tail = self.tail
        assigned = tail.assigned_count if segment is tail.segment else segment.assigned_count
        return max(segment.entry_count, assigned)

    def _begin(self, tail: Tail) -> None:
        """Go on at ``tail``, whose segment is new. Cannot fail."""
        assert tail.segment is not None
        self._engine.began(tail.segment)
        self._leave_segment()
        self._segments = (*self._segments, tail.segment)
        self.tail = tail

    def _leave_segment(self) -> None:
        """No entry follows in the current segment."""
        segment = self.tail.segment
        if segment is None:
            return
        segment.assigned_count = self.tail.assigned_count
        if segment.assigned_count:
            self._engine.sealed(segment)
        else:  # it was begun for an entry that did not come
            self._segments = tuple(s for s in self._segments if s is not segment)
            self._engine.void(segment)
        self.tail = self.tail._replace(segment=None, entry_id=0, offset=0)

    # What the committer calls

    def fence(self) -> None:
        """Under the lock: drop what is not durable; the next entry begins a new ledger.

        Reads no file: rows of entries that are not durable are in no index.
        """
        tail = self.tail
        kept = tuple(s for s in self._segments if s.entry_count)
        for segment in self._segments:
            segment.assigned_count = segment.entry_count
            if not segment.entry_count:
                self._engine.void(segment)
        if tail.segment is not None and tail.segment.entry_count:
            self._engine.sealed(tail.segment)
        self._segments = kept
        last = kept[-1] if kept else None
        self.tail = tail._replace(
            segment=None,
            entry_id=0,
            offset=0,
            next_index=self.next_index,
            entry_time_max_ms=last.time_max_ms if last else 0,
            epoch=last.header.epoch if last else 0,
            needs_ledger_id=True,
        )
        # On a full disk the catalog may fail as well: then the next append asks again.
        with suppress(CatalogError):
            self._take_ledger_id()

    def _take_ledger_id(self) -> None:
        ledger_id = self._store.next_ledger_id()
        self.tail = self.tail._replace(ledger_id=ledger_id, needs_ledger_id=False)
