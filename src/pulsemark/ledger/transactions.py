"""The transactions of one topic: which are open, and which entries were aborted.

An entry of a transaction has the transaction's id in its stamp (field ``transaction``). A control
entry ``txn-commit`` or ``txn-abort`` with this id ends it; the id may then be used again. Nothing
is rewritten, and each of these entries has its index and time as any other.

- Until its transaction ends, no consumer gets an entry, nor any entry after it: they read up to the
  **last stable position**, where the first open transaction begins.
- Entries of an aborted transaction are **hidden**, as control entries are: consumers skip them, and
  backlogs do not count them.

What is known follows from the durable entries alone, taken in their order. An append is only noted
(`add`), and takes effect when it is durable and someone asks (`settle`). So nobody ever reads what
a crash takes back. A reader reads first, and asks afterwards: what it has read is durable by then.

**The note.** A topic with transactions has a note in the metadata store: a position, and what was
known of the entries before it. The next owner reads on from there. The note is stored before a
ledger's first entry of a transaction, and when the log is closed, so a crash costs the reading of
about a ledger. A topic without transactions has no note and costs nothing.

Positions are kept as stretches of entries that follow one another, with their indexes.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import NamedTuple, Protocol

from ..metadata import BrokerEntryMetadata, Buffer, PrefixError, peek
from ..proto.broker_entry_pb2 import CONTROL, CONTROL_TXN_ABORT, CONTROL_TXN_COMMIT
from .entry import Entry, EntryKind
from .errors import CorruptEntryError
from .position import EARLIEST, Position

MAX_NOTED_STRETCHES = 20_000
"""A note with more of them is not stored: the next owner reads on from an earlier one."""
PENDING_EVENTS = 1_000
"""So many appended entries may wait for someone to ask; then the durable ones take effect."""
READ_ENTRIES = 1_000
_TRANSACTION, _IS_CONTROL = b"\xd2\x07", b"\xa8\x06\x01"
"""The encoded tag of the field ``transaction``, and the field ``entry_kind`` of a control entry."""

COMMITTED, ABORTED = CONTROL_TXN_COMMIT, CONTROL_TXN_ABORT


class Event(NamedTuple):
    """The meaning of an entry for a transaction: an entry of it (``end`` None), or its end."""

    transaction: str
    end: int | None


def event_of(metadata: BrokerEntryMetadata | None) -> Event | None:
    """The event in the stamp of an entry; None: it has none."""
    if metadata is None:
        return None
    if metadata.entry_kind == CONTROL:
        if metadata.control_type in (COMMITTED, ABORTED):
            return Event(str(metadata.control_name), metadata.control_type)
        return None
    return Event(str(metadata.transaction), None) if metadata.HasField("transaction") else None


def event_in(prefix: Buffer) -> Event | None:
    """As `event_of`, from a stored prefix; None also for a damaged one."""
    plain = bytes(prefix)
    if _TRANSACTION not in plain and _IS_CONTROL not in plain:
        return None  # without the cost of decoding it
    try:
        return event_of(peek(prefix))
    except PrefixError:
        return None


class Stretch(NamedTuple):
    """Entries of one ledger that follow one another."""

    start: Position
    end: Position
    """One past the last of them."""
    first_index: int
    next_index: int
    """The index after their last message."""


class Aborted(NamedTuple):
    """A transaction that was aborted, as far as this topic is concerned."""

    transaction: str
    first_index: int
    """The index of its first message."""
    end_index: int
    """The index of the control entry that ended it."""
    end: Position
    """The position of this control entry."""
    stretches: tuple[Stretch, ...]


class TransactionLog(Protocol):
    """The log that the transactions are in; see `TopicLog`."""

    @property
    def first_position(self) -> Position | None: ...  # noqa: D102
    @property
    def end_position(self) -> Position: ...  # noqa: D102
    @property
    def next_index(self) -> int: ...  # noqa: D102
    def read(self, start: Position, *, max_entries: int = 100) -> list[Entry]: ...  # noqa: D102
    def index_before(self, position: Position) -> int: ...  # noqa: D102


_START, _END, _END_INDEX = attrgetter("start"), attrgetter("end"), attrgetter("end_index")


class Transactions:
    """The known transactions of a log. Safe between threads."""

    def __init__(self, store: Callable[[bytes], None] | None = None) -> None:
        """``store`` stores the topic's note durably; None: for a log that is only read."""
        self._store = store
        self._lock = threading.Lock()
        self._noting, self._following = threading.Lock(), threading.Lock()
        self._noted_ledger_id = -1
        self._pending: deque[tuple[Position, int, int, Event]] = deque()
        """Appended entries that had no effect yet: place, first and last index, and meaning."""
        self.known_to = EARLIEST
        """The last entry that took effect is before this."""
        self.aborts = 0
        """How many took effect."""
        self._reset()

    def _reset(self) -> None:
        self.open: dict[str, list[Stretch]] = {}
        """The open transactions, in the order of their first entries."""
        self.aborted: list[Aborted] = []
        """In the order of the control entries that ended them."""
        self._hidden: list[Stretch] = []

    def __bool__(self) -> bool:
        return bool(self.open or self.aborted or self._pending)

    # -- appending ------------------------------------------------------------------------------

    def add(
        self, event: Event, position: Position, first_index: int, index: int, log: TransactionLog
    ) -> None:
        """Note an entry's place, under the store's lock. It takes effect when it is durable."""
        self._pending.append((position, first_index, index, event))
        if len(self._pending) >= PENDING_EVENTS:
            self.settle(log.end_position)

    def settle(self, end: Position) -> None:
        """Let the entries before ``end`` take effect; they are durable."""
        pending = self._pending
        if pending:
            with self._lock:
                while pending and pending[0][0] < end:
                    self._apply(*pending.popleft())

    def _apply(self, position: Position, first_index: int, index: int, event: Event) -> None:
        self.known_to = position.following
        if event.end is None:
            stretches = self.open.get(event.transaction)
            new = Stretch(position, position.following, first_index, index + 1)
            if stretches is None:
                self.open[event.transaction] = [new]
            elif stretches[-1].end == position:
                stretches[-1] = stretches[-1]._replace(end=new.end, next_index=new.next_index)
            else:
                stretches.append(new)
            return
        ended = self.open.get(event.transaction)
        if ended is None:
            return  # it has no entry here, or was ended before
        del self.open[event.transaction]
        if event.end == ABORTED:
            self.aborts += 1
            first_index = ended[0].first_index
            self.aborted.append(
                Aborted(event.transaction, first_index, index, position, tuple(ended))
            )
            for stretch in ended:
                insort(self._hidden, stretch)

    # -- what readers ask -----------------------------------------------------------------------

    def stable_end(self, log: TransactionLog) -> Position:
        """The last stable position: readers get the entries before it."""
        end = log.end_position
        self.settle(end)
        with self._lock:
            first = next(iter(self.open.values()), None)
        return end if first is None else min(first[0].start, end)

    def stable_index(self, log: TransactionLog) -> int:
        """The index of the first message at or after the last stable position."""
        next_index = log.next_index
        self.settle(log.end_position)
        with self._lock:
            first = next(iter(self.open.values()), None)
        return next_index if first is None else min(first[0].first_index, next_index)

    def is_open(self, transaction: str, log: TransactionLog) -> bool:
        """Whether a transaction has entries here, pending ones included, and has not ended."""
        self.settle(log.end_position)
        with self._lock:
            found = transaction in self.open
            for *_, event in self._pending.copy():  # other threads append meanwhile
                if event.transaction == transaction:
                    found = event.end is None
            return found

    def hides(self, position: Position) -> bool:
        """Whether the entry at a position was aborted."""
        with self._lock:
            return self._hides(position)

    def _hides(self, position: Position) -> bool:
        at = bisect_right(self._hidden, position, key=_START) - 1
        return at >= 0 and position < self._hidden[at].end

    def hidden_in(self, start: Position, end: Position) -> list[Stretch]:
        """The stretches of aborted entries with an entry in [start, end)."""
        with self._lock:
            hidden = self._hidden
            first = bisect_right(hidden, start, key=_END)
            return hidden[first : bisect_left(hidden, end, lo=first, key=_START)]

    def hidden_positions(self, start: Position, end: Position) -> list[Position]:
        """The positions of the aborted entries in [start, end)."""
        return [
            Position(each.start.ledger_id, entry_id)
            for each in self.hidden_in(start, end)
            for entry_id in range(max(start, each.start).entry_id, min(end, each.end).entry_id)
        ]

    def hidden_messages(self, start: Position, end: Position, log: TransactionLog) -> int:
        """How many messages the aborted entries in [start, end) have."""
        count = 0
        for each in self.hidden_in(start, end):
            first = each.first_index if each.start >= start else log.index_before(start)
            last = each.next_index if each.end <= end else log.index_before(end)
            count += last - first
        return count

    def shown(self, entries: list[Entry], log: TransactionLog) -> list[Entry]:
        """The entries as consumers get them: up to the last stable position, aborted ones as
        control entries.
        """
        stable_end = self.stable_end(log)
        with self._lock:
            return [
                replace(entry, kind=EntryKind.CONTROL) if self._hides(entry.position) else entry
                for entry in entries
                if entry.position < stable_end
            ]

    def visible(self, positions: Iterable[Position], stable_end: Position) -> set[Position]:
        """Which of these entries consumers may see; control entries count among them."""
        with self._lock:
            return {each for each in positions if each < stable_end and not self._hides(each)}

    def aborted_in(self, first_index: int, last_index: int) -> list[Aborted]:
        """The aborted transactions with a message, or their end, in this range of indexes."""
        with self._lock:
            first = bisect_left(self.aborted, first_index, key=_END_INDEX)
            return [each for each in self.aborted[first:] if each.first_index <= last_index]

    # -- removals and failures ------------------------------------------------------------------

    def drop_before(self, position: Position, log: TransactionLog) -> None:
        """Forget the entries before ``position``, which were removed."""
        index = log.index_before(position)
        with self._lock:
            self._hidden = _after(self._hidden, position, index)
            self.aborted = [each for each in self.aborted if each.end >= position]
            left = ((name, _after(each, position, index)) for name, each in self.open.items())
            self.open = dict(sorted((each for each in left if each[1]), key=itemgetter(1)))

    def failed_after(self, end: Position) -> None:
        """Forget appended entries from ``end`` on, which did not become durable."""
        with self._lock:
            while self._pending and self._pending[-1][0] >= end:
                self._pending.pop()

    def cut_at(self, end: Position, log: TransactionLog) -> None:
        """The log ends before ``end`` now. If that took entries of transactions away, all is read
        again, since what was ended there may be open again.
        """
        self.failed_after(end)
        self._noted_ledger_id = -1
        if self.known_to > end:
            with self._lock:
                self._reset()
                self.known_to = EARLIEST
            self.follow(log)

    # -- the note -------------------------------------------------------------------------------

    def is_noted(self, ledger_id: int) -> bool:
        """Whether entries of transactions can be appended to a ledger."""
        return self._store is None or ledger_id == self._noted_ledger_id

    def note(self, ledger_id: int, log: TransactionLog) -> None:
        """Note a ledger before its first entry of a transaction. Durable. Raises CatalogError."""
        with self._noting:
            if not self.is_noted(ledger_id):
                self._write_note(log)
                self._noted_ledger_id = ledger_id

    def close(self, log: TransactionLog) -> None:
        """Store the note, as no entry follows. Raises CatalogError."""
        with self._noting:
            self._write_note(log)

    def _write_note(self, log: TransactionLog) -> None:
        assert self._store is not None
        end = log.end_position
        self.settle(end)
        with self._lock:
            note = {
                "from": end,
                "index": log.index_before(end),
                "open": {each: [*stretches] for each, stretches in self.open.items()},
                "aborted": self.aborted,
            }
            count = sum(map(len, self.open.values()))
            count += sum(len(each.stretches) for each in self.aborted)
        # The first note says that there are transactions, however large it is.
        if count <= MAX_NOTED_STRETCHES or self._noted_ledger_id < 0:
            self._store(json.dumps(note, separators=(",", ":")).encode())

    def load(self, note: bytes, log: TransactionLog) -> None:
        """Take a note and the entries after it, or all if it does not fit. Raises OSError."""
        try:
            said = json.loads(note)
            self.known_to = Position(*said["from"])
            if log.index_before(self.known_to) < said["index"]:
                raise ValueError
            self.open = {each: _stretches(rows) for each, rows in said["open"].items()}
            self.aborted = [
                Aborted(name, first, last, Position(*end), (*_stretches(rows),))
                for name, first, last, end, rows in said["aborted"]
            ]
        except (ValueError, TypeError, KeyError, AttributeError):
            self.known_to = EARLIEST
            self._reset()
        self._hidden = sorted(each for one in self.aborted for each in one.stretches)
        if (first := log.first_position) is not None:
            self.drop_before(first, log)
        self.follow(log)

    def follow(self, log: TransactionLog) -> None:
        """Apply the log's entries that were not read yet. Raises OSError."""
        with self._following:
            self._follow(log)

    def _follow(self, log: TransactionLog) -> None:
        while True:
            try:
                entries = log.read(self.known_to, max_entries=READ_ENTRIES)
            except CorruptEntryError as damage:
                self.known_to = damage.next_position
                continue
            if not entries:
                return
            with self._lock:
                for entry in entries:
                    event = event_in(entry.prefix)
                    if event is not None:
                        self._apply(entry.position, entry.first_index, entry.index, event)
                self.known_to = entries[-1].position.following


def _after(stretches: list[Stretch], position: Position, index: int) -> list[Stretch]:
    """The parts of stretches after a position, whose entry begins with this index."""
    return [
        each if each.start >= position else each._replace(start=position, first_index=index)
        for each in stretches
        if each.end > position
    ]


def _stretches(rows: Sequence[tuple[Sequence[int], Sequence[int], int, int]]) -> list[Stretch]:
    return [
        Stretch(Position(*start), Position(*end), first_index, next_index)
        for start, end, first_index, next_index in rows
    ]
