"""The end of a topic's log: entries appended, ledgers begun and ended, heads and tails cut off.

An entry gets its position, time and index at append, under the store's lock, and keeps them:
``time = max(clock, last)``, ``index = last + messages``. Entries that cannot be made durable are
not removed one by one. Instead the ledger is fenced at its last durable entry, and the topic
continues in a new ledger, whose header says how many entries of the previous one count. So indexes
have no gaps, and none is given twice. Every opening of a topic begins a new ledger, too. A change
is made in this order: first all that may fail, then one run of assignments that nothing can
interrupt, then what cannot fail. Longer changes run in `UninterruptedWork`.

A store knows its topics' control entries (`ControlPositions`) and transactions (`Transactions`), so
each ledger with such entries is noted before the first of them is appended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NoReturn, TypeAlias

from ..metadata import (
    PREFIX_MAGIC,
    BrokerEntryMetadata,
    Buffer,
    Clock,
    ControlError,
    MessageHeader,
    Sender,
    StamperChain,
    control_metadata,
    pack,
    pack_stamp,
    verify_checksum,
)
from ..metadata.message import sound_count
from ..metadata.prefix import pack_stamps
from ..proto.broker_entry_pb2 import CONTROL_LEADER_CHANGE, ControlType
from ..records import record
from .commit.batch import MAX_BATCH_BYTES, Appended, Batch, Commit, Group
from .cursors.cursor import Cursor
from .cursors.cursor_store import CursorStore, SubscribedLog
from .entry import Entry, EntryKind, StoredEntry, checked_ms, time_of_unstamped
from .epochs import TailCut, check_epoch, check_highest, check_not_before, cut_before, find_cut
from .errors import (
    AlreadyStampedError,
    CatalogError,
    EntryTooLargeError,
    FencedError,
    InvalidCursorError,
    InvalidEntryError,
    LedgerError,
    StaleEpochError,
    StoreClosedError,
    TopicTerminatedError,
)
from .limits import (
    BODY_CRC_OURS,
    BODY_CRC_PRODUCER,
    CHECKED_BODY_BYTES,
    MAX_INDEX,
    MAX_MESSAGE_COUNT,
    MAX_PREFIX_BYTES,
    MAX_RUN_MESSAGES,
    MAX_TIME_MS,
)
from .position import EARLIEST, Position
from .run import ROW_FIELDS, Run, RunHeader
from .store_core import StoreCore, StoreOptions
from .topic_log import ControlPositions, LogSnapshot, TopicLog
from .transactions import Event, Transactions, event_in, event_of

_log = logging.getLogger(__name__)


@record
class Tail:
    """The end of a topic, including entries that are not yet durable."""

    ledger_id: int
    run: Run | None
    """The run of the next entry; None: it begins a new one."""
    entry_id: int
    """The next entry's id."""
    offset: int
    """The next entry's place in the run; 0: the run's header comes first."""
    next_index: int
    stamp_floor_ms: int
    """The last append time; later ones are never lower."""
    entry_time_max_ms: int
    """The highest entry time (PIP-70) so far."""
    ledger_bytes: int
    ledger_age_ms: int
    """How far the clock advanced since the ledger began; steps back do not count."""
    clock_ms: int
    """The clock's time at the last append."""
    epoch: int
    needs_ledger_id: bool = False
    """``ledger_id`` is that of an ended ledger, because no new id could be reserved."""

    @property
    def assigned_count(self) -> int:
        """Entries of the run that have an entry id assigned."""
        return self.entry_id - self.run.first_entry_id if self.run is not None else 0


NOTHING, RUN, LEDGER = range(3)
"""What a new entry begins."""


def what_begins(
    tail: Tail, size_bytes: int, messages: int, age_ms: int, options: StoreOptions, entries: int = 1
) -> int:
    """Whether one of ``entries`` entries of that size begins a RUN or LEDGER, or NOTHING."""
    run = tail.run
    if run is None:
        return LEDGER
    offset = tail.offset
    if offset == 0:  # it has just been begun for such an entry, however large that is
        return NOTHING
    if (
        tail.entry_id + entries > options.ledger_entries
        or tail.ledger_bytes + size_bytes > options.ledger_size_bytes
        or age_ms >= options.ledger_age_ms
    ):
        return LEDGER
    if (
        offset + size_bytes > options.segment_size_bytes
        or tail.next_index - run.first_index + messages > MAX_RUN_MESSAGES
    ):
        return RUN
    return NOTHING


_PREFIX_MAGIC = PREFIX_MAGIC.to_bytes(2, "big")


def plain_body(topic: str, body: object) -> Buffer:
    """The body as a view, which also keeps its size. Raises InvalidEntryError."""
    try:
        view = memoryview(body)  # type: ignore[arg-type]
        is_plain = view.format == "B" and view.ndim == 1 and view.c_contiguous
        return view if is_plain else view.cast("B")
    except (TypeError, ValueError) as error:
        what = type(body).__name__
        raise InvalidEntryError(topic, f"a {what} is not contiguous bytes: {error}") from error


def check_kind(topic: str, kind: int) -> EntryKind:
    """The kind of an entry. Raises InvalidEntryError."""
    try:
        return EntryKind(kind)
    except ValueError as error:
        raise InvalidEntryError(topic, f"{kind!r} is not a kind of entry") from error


def check_count(topic: str, message_count: object) -> int:
    """How many messages an entry counts for, as in Pulsar at least 0. Raises InvalidEntryError."""
    if not isinstance(message_count, int):
        raise InvalidEntryError(topic, f"message_count must be an int, not {message_count!r}")
    if message_count > MAX_MESSAGE_COUNT:
        raise InvalidEntryError(
            topic, f"message_count must be at most {MAX_MESSAGE_COUNT}, not {message_count}"
        )
    return max(int(message_count), 0)


def body_check_of(topic: str, body: Buffer) -> int:
    """Which checksum guards the body. Raises ChecksumError, AlreadyStampedError."""
    if len(body) >= CHECKED_BODY_BYTES and verify_checksum(body):
        return BODY_CRC_PRODUCER
    if body[:2] == _PREFIX_MAGIC:
        raise AlreadyStampedError(topic)
    return BODY_CRC_OURS


def check_place(topic: str, tail: Tail, epoch: int | None, follows: Appended | None) -> None:
    """Raise StaleEpochError or FencedError if the log's end has moved on. Under the lock.

    ``follows``, an earlier append, must be stored or pending in the ledger of the next entry: a
    failure ends a ledger before the commit knows of it.
    """
    if epoch is not None and epoch != tail.epoch:
        raise StaleEpochError(topic, epoch, tail.epoch)
    if follows is None:
        return
    if follows.error is not None:
        raise FencedError(topic, f"the entry before it failed: {follows.error}")
    if not follows.commit.done and follows.ledger_id != tail.ledger_id:
        raise FencedError(topic, "a new ledger began before the entry before it was stored")


def raise_too_large(topic: str, prefix: bytes, size_bytes: int, limit_bytes: int) -> NoReturn:
    """Raise EntryTooLargeError for an entry of that size, or for its prefix."""
    if size_bytes > limit_bytes:
        raise EntryTooLargeError(topic, size_bytes, limit_bytes)
    raise EntryTooLargeError(topic, len(prefix), MAX_PREFIX_BYTES)


_PLAIN_TIME_END_MS = 2**63
_MANY_MAX_BYTES = 1 << 20
"""Larger records are not built together: they cost enough alone, and a batch has a limit."""


NewEntries: TypeAlias = tuple[
    Sequence[Buffer], int, Sequence[int], EntryKind, BrokerEntryMetadata | None, Sender | None
]
"""Entries that are to be appended one after another, checked as far as possible before they have a
place: bodies, body check, message counts, kind, prefix fields of the store itself, the producer.
Where there is more than one, all have messages, and nothing but these to be told apart by."""

Records: TypeAlias = tuple[Sequence[Buffer], list[int], int, int, int, int]
"""Built records, and what the `Tail` is after them: the bytes (with the run's header first, where
the first entry is the run's), the entries' rows in the group (``group.ROW_FIELDS``), their size in
bytes, the next index, the ledger's age and the clock in milliseconds."""


class RecordBuilder:
    """Builds a topic's records. It changes nothing. Other stampers need another builder."""

    __slots__ = ("_clock", "_options", "_topic", "chain", "is_plain", "stamps_time")

    def __init__(
        self, topic: str, clock: Clock, options: StoreOptions, chain: StamperChain
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._options = options
        self.chain = chain
        self.stamps_time = chain.stamps_time
        """Whether prefixes have the broker's time. If not, an entry has the time of its header."""
        self.is_plain = chain.is_plain_stamp
        """Whether prefixes have time and index, and nothing else."""

    def build(self, entries: NewEntries, tail: Tail) -> Records | int:
        """Records at ``tail`` of all entries or the first; or RUN or LEDGER, to begin one first."""
        bodies, body_check, counts, kind, base, _ = entries
        run = tail.run
        if run is None:
            return LEDGER  # before any stamper is called
        if len(bodies) > 1:
            if tail.offset and self.is_plain and base is None:
                records = self._build_many(entries, tail, run)
                if records is not None:
                    return records
            entries = _first_of(entries)
            bodies, body_check, counts, kind, base, _ = entries
        body, messages = bodies[0], counts[0]
        clock_ms = self._clock.now_ms()
        if clock_ms.__class__ is not int or not -MAX_TIME_MS <= clock_ms <= MAX_TIME_MS:
            clock_ms = checked_ms(clock_ms)
        age_ms, now_ms, index = tail.ledger_age_ms, tail.stamp_floor_ms, tail.next_index + messages
        if clock_ms > tail.clock_ms:
            age_ms += clock_ms - tail.clock_ms
        if clock_ms > now_ms:
            now_ms = clock_ms
        header = None
        plain = self.is_plain and base is None and messages and now_ms < _PLAIN_TIME_END_MS
        if plain and index <= MAX_INDEX + 1:
            prefix = pack_stamp(now_ms, index - 1)  # as the chain does, without calling it
        else:  # both the stampers and the time index may read the header
            header = None if self.stamps_time else MessageHeader(body)
            prefix = self._prefix(entries, now_ms, index - 1, header)
        size = self._entry_size_bytes(prefix, body) + run.overhead_bytes[body_check]
        if begins := what_begins(tail, size, messages, age_ms, self._options):
            return begins
        parts = run.pack(tail.entry_id, kind, messages, now_ms, index - 1, prefix, body, body_check)
        start = tail.offset or len(first := run.first_bytes())
        if not tail.offset:
            parts = (first, *parts)
        time_ms = now_ms
        if not (self.stamps_time and prefix):
            time_ms = time_of_unstamped(header or MessageHeader(body), now_ms)
        rows = [now_ms, max(time_ms, tail.entry_time_max_ms), index - run.first_index, start + size]
        return parts, rows, size, index, age_ms, clock_ms

    def _build_many(self, entries: NewEntries, tail: Tail, run: Run) -> Records | None:
        """The records of several entries with plain stamps; None if one may have to be alone."""
        bodies, body_check, counts, kind, _, _ = entries
        messages, entry_count = sum(counts), len(bodies)
        clock_ms = self._clock.now_ms()
        if clock_ms.__class__ is not int or not -MAX_TIME_MS <= clock_ms <= MAX_TIME_MS:
            return None  # it is refused where the first entry is built alone
        now_ms, index = max(clock_ms, tail.stamp_floor_ms), tail.next_index + messages
        age_ms = tail.ledger_age_ms + max(0, clock_ms - tail.clock_ms)
        if index > MAX_INDEX + 1 or now_ms >= _PLAIN_TIME_END_MS:
            return None
        prefixes = pack_stamps(now_ms, tail.next_index, counts)
        # Their indexes grow: so none is longer than the last one.
        if max(map(len, bodies)) + len(prefixes[-1]) > self._options.max_entry_size_bytes:
            return None
        size = sum(map(len, bodies)) + sum(map(len, prefixes))
        size += entry_count * run.overhead_bytes[body_check]
        if size > _MANY_MAX_BYTES or what_begins(
            tail, size, messages, age_ms, self._options, entry_count
        ):
            return None
        parts, ends = run.pack_run(
            tail.entry_id, kind, counts, now_ms, tail.next_index, prefixes, bodies, body_check,
            tail.offset,
        )  # fmt: skip
        rows = [now_ms, max(now_ms, tail.entry_time_max_ms), 0, 0] * entry_count
        rows[2::ROW_FIELDS] = [*accumulate(counts, initial=tail.next_index - run.first_index)][1:]
        rows[3::ROW_FIELDS] = ends
        return parts, rows, size, index, age_ms, clock_ms

    def _prefix(
        self, entries: NewEntries, now_ms: int, index: int, header: MessageHeader | None
    ) -> bytes:
        """The prefix of one entry: the fields of the stampers and of ``base``."""
        (body,), _, (messages,), _, base, sender = entries
        if index > MAX_INDEX:
            raise InvalidEntryError(self._topic, f"index {index} is above {MAX_INDEX}")
        prefix = self.chain.prefix(
            self._topic, now_ms, index, messages, body, base=base, sender=sender, header=header
        )
        return pack(base) if base is not None and not prefix else prefix

    def _entry_size_bytes(self, prefix: bytes, body: Buffer) -> int:
        """Prefix and body together. Raises EntryTooLargeError."""
        prefix_size = len(prefix)
        size = prefix_size + len(body)
        if size > self._options.max_entry_size_bytes or prefix_size > MAX_PREFIX_BYTES:
            raise_too_large(self._topic, prefix, size, self._options.max_entry_size_bytes)
        return size


def _first_of(entries: NewEntries) -> NewEntries:
    bodies, body_check, counts, kind, base, sender = entries
    return bodies[:1], body_check, counts[:1], kind, base, sender


def followed_records(
    topic: str, entries: Sequence[StoredEntry], tail: Tail, options: StoreOptions
) -> Records:
    """The records of another log's entries at ``tail``, with their own stamps: those of the first
    ones that follow one another in the run. At least one. Raises InvalidEntryError, ChecksumError,
    EntryTooLargeError for the first.
    """
    run = tail.run
    assert run is not None
    end, next_index, time_ms = tail.offset or len(run.first_bytes()), 0, tail.entry_time_max_ms
    parts: list[Buffer] = [] if tail.offset else [run.first_bytes()]
    rows: list[int] = []
    place, first_offset = Position(tail.ledger_id, tail.entry_id), end
    for entry in entries:
        if entry.position != place:
            break
        prefix, body = bytes(entry.prefix), plain_body(topic, entry.body)
        try:
            check = body_check_of(topic, body)
        except LedgerError:
            if rows:
                break  # its error is raised where it is the first one
            raise
        size = len(prefix) + len(body)
        if size > options.max_entry_size_bytes or len(prefix) > MAX_PREFIX_BYTES:
            if rows:
                break
            raise_too_large(topic, prefix, size, options.max_entry_size_bytes)
        size += run.overhead_bytes[check]
        is_full = end + size > options.segment_size_bytes and (rows or tail.offset)
        if is_full or entry.index + 1 - run.first_index > MAX_RUN_MESSAGES:
            break
        parts += run.pack(
            place.entry_id, entry.kind, entry.message_count, entry.append_time_ms, entry.index,
            prefix, body, check,
        )  # fmt: skip
        end, next_index, time_ms = end + size, entry.index + 1, max(time_ms, entry.time_ms)
        rows += [entry.append_time_ms, time_ms, next_index - run.first_index, end]
        place = Position(place.ledger_id, place.entry_id + 1)
    return parts, rows, end - first_offset, next_index, tail.ledger_age_ms, tail.clock_ms


class ManagedLedger(SubscribedLog):
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
        transactions: Transactions | None = None,
    ) -> None:
        """``index_floor``: indexes below it are in use, though the ledger that had them is lost.
        ``cursors`` None: it is the cursor ledger itself.
        """
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
        self.cursors = {}
        self.recent = store.tail_cache.of_topic(self._mark_deletes)
        """The newest entries, kept for readers at the end of the log."""
        self.stampers = StamperChain()
        self._refused_by: type[StoreClosedError | TopicTerminatedError] | None = None
        """The error of appends; None: they are taken."""
        self._removing = threading.Lock()
        """Held while entries are removed from the head, so that one removal runs at a time."""
        self.tail = self._tail_at_opening(ledger_id)
        """Changed under the lock, by appends and by the committer."""
        self._found_epoch = self.tail.epoch if self._segments else None
        """The last epoch when this owner opened the log; None: the log was empty."""
        if controls is not None:
            self.controls = controls  # before there are cursors, which count without them
        self.transactions = transactions
        self._cursor_store = cursors
        self.before_removal: dict[str, Callable[[Position], None]] = {}
        """Called in the removing thread before entries are removed from the head, with the position
        before which they are, by what each is for. An error ends the removal."""
        if cursors is not None:
            cursors.attach(self)

    def _tail_at_opening(self, ledger_id: int) -> Tail:
        """The tail after the last durable entry; every opening begins a new ledger."""
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
        """Position of the first entry that is not yet durable, or of the next one."""
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

    def read_stable(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """As ``TopicLog.read_stable``; the topic's transactions are known."""
        entries = self.read(start, max_entries=max_entries, max_bytes=max_bytes)
        transactions = self.transactions
        return entries if transactions is None else transactions.shown(entries, self)

    def transactions_met(self, prefixes: Iterable[Buffer]) -> Transactions | None:
        """The topic's transactions, which are always known."""
        return self.transactions

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
        """Let commits run first: see `commit.read_throttle`."""
        turns = self._committer.read_throttle
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
            are_plain=True,
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
        are_plain: bool = False,
    ) -> tuple[Appended, int]:
        """Add entries that follow one another: as many of the first ones as can be added at once.

        Returns what ``append`` does for the last one that was added, and how many were. They have
        consecutive positions in one ledger, the same time and the same commit. The caller goes on
        with the rest. A run ends before a segment or a ledger begins, before a body whose checksum
        is missing or wrong, before an entry without messages, and at a limit; with stampers other
        than time and index, and with ``base``, after each entry.

        Arguments and errors are those of ``append``; the errors of a body or count are those of the
        first entry. With ``are_plain`` the caller vouches that all bodies are contiguous views of
        single bytes, and that the counts are as many ints: the broker cuts them out of what a
        client sent. Raises InvalidEntryError also if there are no bodies, or not as many counts;
        StoreClosedError, TopicTerminatedError and what else ``append`` raises.
        """
        if self._state.is_over:
            self._state.check()
        if not are_plain:
            bodies, message_counts, kind = self._plain(bodies, message_counts, kind)
        entries = self._admitted(bodies, message_counts, kind, base, sender)
        event = None if base is None else event_of(base)
        pending = self._pending
        if pending.size_bytes > pending.max_bytes or pending.entry_count > pending.max_entries:
            self._committer.wait_for_room()
        while True:
            with pending.lock:
                if self._refused_by or self._state.is_over:
                    self._check_open()
                tail = self.tail
                if epoch is not None or follows is not None:
                    check_place(self.name, tail, epoch, follows)
                records = self._builder.build(entries, tail)
                if type(records) is tuple and (
                    not (kind or event) or self._is_noted(tail.ledger_id, kind, event)
                ):
                    appended = self._add(tail, records, wakes=wakes)
                    if kind or event:
                        self._take_note(
                            kind, event, appended.position, entries[2][0], appended.index
                        )
                    return appended, len(records[1]) // ROW_FIELDS
            self.store.uninterrupted.run(partial(self._make_room, entries))

    def _is_noted(self, ledger_id: int, kind: int, event: Event | None) -> bool:
        """Whether a control entry, or one of a transaction, can be appended to a ledger."""
        if kind and not self.controls.is_noted(ledger_id):
            return False
        known = self.transactions
        return event is None or (known is not None and known.is_noted(ledger_id))

    def _note(
        self, ledger_id: int, kind: int, event: Event | None, segments: Sequence[Run]
    ) -> None:
        """Note that a ledger has such an entry. Durable. Raises CatalogError."""
        if kind:
            self.controls.note(ledger_id, self.tail.ledger_id, segments)
        if event is None:
            return
        if self.transactions is None:
            noter = self.store.transactions_noter(self.topic_id)
            self.transactions = Transactions(noter)
        self.transactions.note(ledger_id, self)

    def _take_note(
        self, kind: int, event: Event | None, position: Position, messages: int, index: int
    ) -> None:
        """Under the lock: note the position of a control entry, or one of a transaction."""
        if kind and messages:
            self.controls.add(position)
        if event is not None and self.transactions is not None:
            self.transactions.add(event, position, index - messages + 1, index, self)

    def _plain(
        self, bodies: Sequence[Buffer], counts: Sequence[int], kind: EntryKind
    ) -> tuple[Sequence[Buffer], Sequence[int], EntryKind]:
        """The first entries that are bytes with a count, and their kind. Raises for the first."""
        if not bodies or len(bodies) != len(counts):
            what = f"{len(bodies)} bodies have {len(counts)} message counts"
            raise InvalidEntryError(self.name, what)
        if kind is not EntryKind.DATA:
            kind = check_kind(self.name, kind)
        plain: list[Buffer] = []
        checked_counts: list[int] = []
        for body, count in zip(bodies, counts, strict=True):
            try:
                plain.append(body if type(body) is bytes else plain_body(self.name, body))
                checked_counts.append(
                    count if type(count) is int else check_count(self.name, count)
                )
            except InvalidEntryError:
                if not checked_counts:
                    raise
                break
        return plain[: len(checked_counts)], checked_counts, kind

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
        """Append records built at ``tail`` to the group, under the lock; returns the last one."""
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
        # No call from here on: nothing can interrupt this (see `commit.batch`).
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

    # Ledgers and segments

    def _make_room(self, entries: NewEntries) -> None:
        """Begin a run, or a ledger, if the first of these is to be the first one in it."""
        self._note(self.tail.ledger_id, entries[3], event_of(entries[4]), self._segments)
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
        began = replace(tail, run=self._engine.create(header), entry_id=first_entry_id, offset=0)
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
        """End the current run: no entry follows in it."""
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

    # Called by the committer

    def fence(self) -> None:
        """Drop what is not durable, under the lock; the next entry begins a new ledger."""
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
        end = _end_of(last)
        self.controls.failed_after(end)
        if self.transactions is not None:
            self.transactions.failed_after(end)
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
        """Whether an earlier owner wrote to the log, and this one has begun no epoch yet."""
        return self._found_epoch is not None and self.tail.epoch <= self._found_epoch

    def begin_epoch(
        self, epoch: int, *, leader: str = "", tags: Mapping[str, bytes] | None = None
    ) -> Appended:
        """Begin a new leader's epoch: appends of earlier epochs are refused from now on.

        The epoch begins a ledger, whose first entry names the epoch and the ``leader``. If that
        cannot be made durable, the previous epoch goes on. Raises StaleEpochError unless ``epoch``
        is higher than the current one, ValueError above 2^32-1, ControlError, and what ``append``
        raises.
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
        StampingError, CatalogError, OSError and FencedError. Nothing is dropped then; but after a
        FencedError and a crash, all may be dropped.
        """
        epoch = check_highest(epoch)
        base = control_metadata(CONTROL_LEADER_CHANGE, leader, leader_epoch=max(epoch, 0))
        return self.store.uninterrupted.run(partial(self._truncate_tail, index, epoch, base))

    def _truncate_tail(self, index: int, epoch: int, base: BrokerEntryMetadata) -> Appended:
        committer = self._committer
        with committer.between_batches(), committer.lock:
            committer.commit_all()  # and nothing is appended until this is done
            self._check_open()
            check_epoch(self.name, epoch, self.tail.epoch)
            cut = self._cut_at(index)
            tail, record = self._first_of(_mark(base), epoch, index, cut.kept, cut.last_count)
            appended = self._write_cut(cut, tail, record)
            self.controls.add(appended.position)
        self._drop(cut.dropped)
        return appended

    def _write_cut(self, cut: TailCut, tail: Tail, record: Records) -> Appended:
        """Under the lock: write the record at ``tail``, whose new run makes the cut; durable."""
        assert tail.run is not None
        group = Group(None, Batch(None), self, tail.run, 0)
        appended = self._add(tail, record, group)
        self._engine.began(tail.run)
        try:
            self._committer.write_now(group)
        except BaseException:
            self._engine.void(tail.run)
            raise
        self._make_cut(cut, tail)
        return appended

    # Following another log, with its positions

    def follow(self, entries: Sequence[StoredEntry], epoch: int) -> Appended:
        """Add a leader's entries after the last one, with their positions, times, indexes and
        prefixes, all of one leader epoch. Durable when the ``commit`` of the last one is done.

        They go on where this log ends: with the next entry id of its last ledger, or with a later
        ledger. An empty log begins anywhere. Raises InvalidEntryError for an entry that does not
        follow, StaleEpochError for an epoch before this log's, StoreClosedError,
        TopicTerminatedError and what else ``append`` raises; those before it are added then.
        """
        appended = None
        while entries:
            pending, first = self._pending, entries[0]
            if pending.size_bytes > pending.max_bytes or pending.entry_count > pending.max_entries:
                self._committer.wait_for_room()
            special = _special(entries)
            ledger_id = first.position.ledger_id
            for each, event in special:
                if not self._is_noted(ledger_id, each.kind, event):
                    self.store.uninterrupted.run(
                        partial(self._note, ledger_id, each.kind, event, self._segments)
                    )
            count = 0
            with pending.lock:
                self._check_open()
                tail = self.tail
                if tail.run is not None and (tail.ledger_id, tail.epoch) == (
                    first.position.ledger_id, epoch
                ):  # fmt: skip
                    self._check_follows(first, epoch)
                    records = followed_records(self.name, entries, tail, self.store.options)
                    count = len(records[1]) // ROW_FIELDS
                if count:
                    appended = self._add(tail, records)
                    for each, event in special:
                        if each.position <= appended.position:
                            self._take_note(
                                each.kind, event, each.position, each.message_count, each.index
                            )
            if not count:
                self.store.uninterrupted.run(partial(self._begin_followed, first, epoch))
            entries = entries[count:]
        assert appended is not None, "there must be an entry"
        return appended

    def begin_at(self, index: int) -> None:
        """Give the first message of a log without entries this index."""
        with self._committer.lock:
            assert not self._segments, "the log has entries"
            self.tail = replace(self.tail, next_index=index)

    def follow_from(self, cut_at: Position, entry: StoredEntry, epoch: int) -> int:
        """Drop every entry from ``cut_at`` on and add a leader's entry; how many went. Blocks.

        For a log that keeps its leader's positions: the entry is in a ledger that it does not keep,
        and its epoch is not below that of the entry before ``cut_at``. After a crash the log has
        all of the change, or only lacks entries after ``cut_at``. Raises StaleEpochError,
        InvalidEntryError and what ``append`` raises.
        """
        return self.store.uninterrupted.run(partial(self._follow_from, cut_at, entry, epoch))

    def _follow_from(self, cut_at: Position, entry: StoredEntry, epoch: int) -> int:
        committer = self._committer
        ledger_id = entry.position.ledger_id
        dropped = self._drop_above(cut_at, ledger_id)
        event = event_in(entry.prefix)
        self._note(ledger_id, entry.kind, event, self._segments)
        with committer.between_batches(), committer.lock:
            committer.commit_all()
            self._check_open()
            cut = cut_before([run for run in self._segments if run.entry_count], cut_at)
            check_not_before(self.name, epoch, cut.kept)
            if cut.kept and cut.kept[-1].ledger_id >= ledger_id:
                raise InvalidEntryError(self.name, f"{entry.position} is not after {cut_at}")
            tail = self._tail_of_followed(entry, epoch, cut.kept, cut.last_count)
            record = followed_records(self.name, [entry], tail, self.store.options)
            dropped += sum(run.entry_count - run.cut_rows for run in cut.dropped)
            if cut.kept:
                dropped += cut.kept[-1].entry_count - cut.last_count
            appended = self._write_cut(cut, tail, record)
            self._take_note(
                entry.kind, event, appended.position, entry.message_count, appended.index
            )
        self._drop(cut.dropped)
        return dropped

    def _drop_above(self, cut_at: Position, ledger_id: int) -> int:
        """Remove the dropped runs that a run of ``ledger_id`` would not come after; how many
        entries these had. Their files are gone before it is begun.
        """
        with self._committer.between_batches(), self._committer.lock:
            self._committer.commit_all()
            self._leave_run()
            above = [
                run
                for run in self._segments
                if run.ledger_id >= ledger_id and run.first_position >= cut_at
            ]
            if not above:
                return 0
            count = sum(run.entry_count - run.cut_rows for run in above)
        give_back_space = self._engine.remove(self.topic_id, above)
        with self._committer.lock:
            self._segments = tuple(run for run in self._segments if run not in above)
            last = self._segments[-1] if self._segments else None
            self._cut_notes(last, self._segments)
            self.recent.clear()
            self.tail = replace(
                self.tail,
                next_index=super().next_index,
                entry_time_max_ms=last.time_max_ms if last else 0,
                epoch=last.header.epoch if last else 0,
            )
            self.tail_cuts += 1
        give_back_space()
        self._engine.checkpoint()  # until then the removed files' names must not be used again
        return count

    def _cut_notes(self, last: Run | None, kept: Sequence[Run]) -> None:
        """Under the lock: cut notes after a run, the log's last one now; None: it is empty."""
        self.controls.cut_at(_end_of(last))
        if self.transactions is not None:
            self.transactions.cut_at(_end_of(last), TopicLog(self.name, kept))

    def _begin_followed(self, entry: StoredEntry, epoch: int) -> None:
        with self._committer.lock:
            self._check_open()
            self._check_follows(entry, epoch)
            self._begin(self._tail_of_followed(entry, epoch, self._segments))

    def _check_follows(self, entry: StoredEntry, epoch: int) -> None:
        """Raise unless the entry goes on where the log ends, pending entries included."""
        last = next((run for run in reversed(self._segments) if self._assigned(run)), None)
        if last is None:
            return
        end = Position(last.ledger_id, last.first_entry_id + self._assigned(last))
        if epoch < last.header.epoch:
            raise StaleEpochError(self.name, epoch, last.header.epoch)
        follows = entry.position == end or entry.position.ledger_id > end.ledger_id
        if not follows or entry.first_index != self.tail.next_index:
            what = f"{entry.position} with index {entry.first_index} does not follow {end}"
            raise InvalidEntryError(self.name, f"{what} with index {self.tail.next_index}")

    def _tail_of_followed(
        self, entry: StoredEntry, epoch: int, kept: Sequence[Run], last_count: int | None = None
    ) -> Tail:
        """A new run for a leader's entry after ``kept``: of the last ledger, or of a new one."""
        ledger_id, entry_id = entry.position
        number = 0 if entry_id == 0 else 1  # as where the ledger's head was trimmed
        last = kept[-1] if kept else None
        if last is not None and last.ledger_id == ledger_id:
            number = last.header.segment_no + 1
        ended = replace(
            self.tail,
            next_index=entry.first_index,
            epoch=epoch,
            ledger_id=ledger_id,
            stamp_floor_ms=entry.append_time_ms,
            needs_ledger_id=False,
        )
        if last_count is not None:  # the times of dropped entries do not count
            time_ms = last.row(last_count - 1).time_ms if last is not None else 0
            ended.entry_time_max_ms = time_ms
        return self._tail_of_new(ended, kept, number, entry_id, last_count)

    def _cut_at(self, index: int) -> TailCut:
        """The cut that drops the messages from ``index`` on. Raises ValueError."""
        if not self.first_index <= index <= self.next_index:
            raise ValueError(
                f"index must be from {self.first_index} to {self.next_index}, not {index}"
            )
        return find_cut([s for s in self._segments if s.entry_count], index)

    def _make_cut(self, cut: TailCut, tail: Tail) -> None:
        """Apply to memory the cut that the folder has."""
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
        self._cut_notes(cut.kept[-1] if cut.kept else None, cut.kept)
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
        """A new ledger of ``epoch`` after ``kept``, and its first entry. Changes only notes."""
        ended = replace(
            self.tail,
            next_index=index,
            epoch=epoch,
            ledger_id=self.store.next_ledger_id(),
            needs_ledger_id=False,
        )
        self._note(ended.ledger_id, entry[3], event_of(entry[4]), kept)
        tail = self._tail_of_new(ended, kept, 0, 0, last_count)
        record = self._builder.build(entry, tail)
        assert isinstance(record, tuple)  # the run is new
        return tail, record

    @property
    def _all_cursors(self) -> CursorStore:
        assert self._cursor_store is not None, "the cursor ledger has no cursors"
        return self._cursor_store

    # Ending

    def roll(self) -> None:
        """End the current ledger; the next entry begins a new one. Raises CatalogError."""
        self.store.uninterrupted.run(self._roll)

    def take_new_ledger_id(self) -> None:
        """As ``roll``, also if the current ledger has no entry: the next one gets another id."""
        self.store.uninterrupted.run(partial(self._roll, always=True))

    def _roll(self, *, always: bool = False) -> None:
        with self._committer.lock:
            self._check_usable()
            if self._refused_by:
                return
            if always or self.tail.run is not None:
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
        for call in tuple(self.before_removal.values()):
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
                self._drop_notes(before)
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
                self._drop_notes(Position(gone[-1].ledger_id, gone[-1].end_entry_id))
                self.recent.removed_before(Position(gone[-1].ledger_id, gone[-1].end_entry_id))
            give_back_space()
        return gone

    def _drop_notes(self, before: Position) -> None:
        self.controls.drop_before(before)
        if self.transactions is not None:
            self.transactions.drop_before(before, self)

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

        Raises StoreClosedError; InvalidCursorError for a name or properties that cannot be kept.
        """
        self._check_usable()
        if not isinstance(name, str):
            raise InvalidCursorError(self.name, name, "its name is not a str")
        return self._all_cursors.open(
            self,
            name,
            initial=initial,
            durable=durable,
            properties=properties,
            subscription_properties=subscription_properties,
        )

    def delete_cursor(self, name: str) -> Commit:
        """Forget a subscription; durable when the commit is done. May be repeated meanwhile."""
        return self._all_cursors.delete(self, name)

    @contextmanager
    def refusing_appends(self) -> Iterator[None]:
        """Refuse appends (StoreClosedError) inside the block; also after it, unless it raises."""
        with self.store.committer.lock:
            before, self._refused_by = self._refused_by, StoreClosedError
        try:
            yield
        except BaseException:
            with self.store.committer.lock:
                self._refused_by = before
            raise

    def stop_appends(self) -> None:
        """From now on refuse appends (TopicTerminatedError). What was appended before is durable
        on return. Blocks.
        """
        with self._committer.lock:
            self._refused_by = self._refused_by or TopicTerminatedError
        with self._committer.all_durable():
            pass

    def allow_appends(self) -> None:
        """Undo `stop_appends`."""
        with self._committer.lock:
            if self._refused_by is TopicTerminatedError:
                self._refused_by = None

    def deleted(self) -> None:
        """The topic was deleted: nothing can be appended, and its files will be removed."""
        with self.store.committer.lock:
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
            if self.transactions is not None:
                # `end_position` is that of the next entry, which will not come any more.
                self.transactions.close(TopicLog(self.name, self._segments))
        except LedgerError as error:
            _log.warning(
                "%s: where control entries and transactions are was not stored, so the next "
                "opening reads the last ledger: %s",
                self.name,
                error,
            )

    def _end(self) -> None:
        self._refused_by = StoreClosedError
        self._leave_run()

    def _check_open(self) -> None:
        """Raise unless entries can be appended."""
        self._state.check()
        if self._refused_by is not None:
            raise self._refused_by(self.name)

    def _check_usable(self) -> None:
        """As `_check_open`, for what is possible on a terminated topic, too."""
        self._state.check()
        if self._refused_by is StoreClosedError:
            raise StoreClosedError(self.name)


def _mark(base: BrokerEntryMetadata) -> NewEntries:
    """The control entry with these fields."""
    return (b"",), BODY_CRC_OURS, (1,), EntryKind.CONTROL, base, None


def _special(entries: Sequence[StoredEntry]) -> list[tuple[StoredEntry, Event | None]]:
    """A leader's control entries and entries of transactions, with their meaning."""
    found = ((each, event_in(each.prefix)) for each in entries)
    return [(each, event) for each, event in found if each.kind or event]


def _end_of(last: Run | None) -> Position:
    """One past the last entry of a log that ends with this run; None: it is empty."""
    return Position(last.ledger_id, last.end_entry_id) if last else EARLIEST


def segments_before(segments: Sequence[Run], before: Position) -> Sequence[Run]:
    """The runs before ``before``, but for the last with entries: its header has the index."""
    keep = next(
        (n for n, s in enumerate(segments) if Position(s.ledger_id, s.end_entry_id) > before),
        len(segments),
    )
    last = max((n for n, s in enumerate(segments) if s.entry_count), default=0)
    return segments[: min(keep, last)]


def rows_before(run: Run, before: Position) -> int:
    """How many of a run's visible rows are before ``before``, which may be in any ledger."""
    ledger_id, entry_id = before
    if run.ledger_id == ledger_id:
        return min(run.entry_count, max(0, entry_id - run.first_entry_id))
    return run.entry_count if run.ledger_id < ledger_id else 0
