"""A model of a store: it remembers what the store must keep, and checks that it does.

A test appends, trims and acknowledges through the model, which remembers what the store promised.
`problems` then checks a log:

- each entry whose commit succeeded is in the log, with the promised bytes, index and time;
- each entry in the log was sent, at that position; an entry that was once read stays;
- indexes have no gap and none is given twice; times never decrease;
- an entry that was refused is not in the log while that store lives: a client that sends it again
  because of the error would have it there twice;
- a cursor has the state that was last made durable, or the state of a later attempt.

A refused entry, and one whose outcome was not known before a crash, may be in the log or not once
the store is opened again; after that this does not change any more. A trimmed entry may be in the
log or not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain

from ..ledger import (
    EARLIEST,
    Cursor,
    Entry,
    EntryKind,
    FencedError,
    LedgerError,
    ManagedLedger,
    Position,
    TopicLog,
    TopicStore,
)
from ..ledger.topic_log import read_on
from ..metadata import PrefixError, peek

PENDING, ACKED, REFUSED, FAILED = "pending", "acknowledged", "refused", "failed"
SEEN, GONE = "seen", "gone"
_MUST_BE_THERE = (ACKED, SEEN)


@dataclass(slots=True)
class Sent:
    """One append, and what the store promised for it."""

    body: bytes
    message_count: int
    position: Position
    index: int
    time_ms: int
    state: str = PENDING
    is_synced: bool = False
    """It survives a power cut, also in interval mode."""

    def settle(self, error: BaseException | None) -> None:
        """Note the result of the commit."""
        self.state = ACKED if error is None else FAILED
        if isinstance(error, FencedError):
            self.state = REFUSED


@dataclass(frozen=True, slots=True)
class CursorState:
    """The acknowledgements of a cursor at one moment."""

    mark_delete: Position
    ranges: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, cursor: Cursor) -> CursorState:
        """The cursor's present state."""
        acked = cursor.record(snapshot=True).acked
        ranges = ((a.ledger_id, a.first_entry_id, a.last_entry_id) for a in acked)
        return cls(cursor.mark_delete, tuple(ranges))

    def acked(self, positions: Collection[Position]) -> frozenset[Position]:
        """The acknowledged ones of these positions."""
        return frozenset(
            p
            for p in positions
            if p <= self.mark_delete
            or any(
                ledger_id == p.ledger_id and first <= p.entry_id <= last
                for ledger_id, first, last in self.ranges
            )
        )


@dataclass(slots=True)
class CursorModel:
    """States of one cursor."""

    durable: CursorState | None = None
    """None: the cursor need not exist."""
    attempts: list[CursorState | None] = field(default_factory=list)
    """Later states that may have become durable."""
    unsynced: list[CursorState | None] = field(default_factory=list)
    """Earlier states, the last one that was synced first: a power cut may bring them back."""

    def acknowledged(self, state: CursorState | None) -> None:
        """Note a state that was stored."""
        self.unsynced.append(self.durable)
        self.durable = state


@dataclass(slots=True)
class TopicModel:
    """The model of one topic."""

    name: str
    sent: dict[Position, Sent] = field(default_factory=dict)
    cursors: dict[str, CursorModel] = field(default_factory=dict)
    trimmed_before: Position = EARLIEST
    faults: list[str] = field(default_factory=list)
    """Broken promises noticed while appending."""

    def append(self, ledger: ManagedLedger, body: bytes, message_count: int = 1) -> Sent:
        """Append, and remember it. Raises what the append raises; then nothing is remembered."""
        appended = ledger.append(body, message_count=message_count)
        sent = Sent(body, message_count, appended.position, appended.index, appended.time_ms)
        if appended.position in self.sent:
            self.faults.append(f"{self.name}: position {appended.position} given twice")
        self.sent[appended.position] = sent
        appended.commit.add_done_callback(lambda _: sent.settle(appended.error))
        return sent

    def trim(self, ledger: ManagedLedger, before: Position) -> None:
        """Trim; from now on the entries before the position may be missing."""
        self.trimmed_before = max(self.trimmed_before, before)
        ledger.trim(before)

    def truncate_head(self, ledger: ManagedLedger, before: Position) -> None:
        """Cut the head; from now on the entries before the position may be missing."""
        self.trimmed_before = max(self.trimmed_before, before)
        ledger.truncate_head(before)

    def truncate_tail(self, ledger: ManagedLedger, first: Sent, epoch: int) -> None:
        """Drop an entry and all after it, for a new epoch. If that fails, they may be in the log.

        Entries without messages directly before it may go or stay: they have no own index.
        """
        for sent in reversed([s for s in self.sent.values() if s.position < first.position]):
            if sent.state == GONE:
                continue
            if sent.message_count:
                break
            sent.state = FAILED
        dropped = [s for s in self.sent.values() if s.position >= first.position]
        dropped = [s for s in dropped if s.state != GONE]
        for sent in dropped:
            sent.state = FAILED
        begun = ledger.truncate_tail(first.index - first.message_count + 1, epoch=epoch)
        for sent in dropped:
            sent.state = GONE
        self.sent[begun.position] = Sent(b"", 1, begun.position, begun.index, begun.time_ms, ACKED)
        self.sent[begun.position].is_synced = True  # also in interval mode

    # Cursors

    def open_cursor(self, ledger: ManagedLedger, name: str) -> Cursor:
        """Open a cursor at the beginning, and remember it: a new cursor is stored at once."""
        is_new = name not in ledger.cursors
        cursor = ledger.open_cursor(name, initial=EARLIEST)
        if is_new:
            self.cursors.setdefault(name, CursorModel()).attempts.append(CursorState.of(cursor))
        return cursor

    def persist(self, cursor: Cursor) -> None:
        """Persist a cursor's state, and remember it."""
        model = self.cursors.setdefault(cursor.name, CursorModel())
        state = CursorState.of(cursor)
        model.attempts.append(state)

        def settle(error: BaseException | None) -> None:
            if error is None and state in model.attempts:
                model.acknowledged(state)
                del model.attempts[: model.attempts.index(state)]

        cursor.persist().add_done_callback(settle)

    def delete_cursor(self, ledger: ManagedLedger, name: str) -> None:
        """Delete a cursor, and remember it."""
        model = self.cursors.setdefault(name, CursorModel())
        model.attempts.append(None)

        def settle(error: BaseException | None) -> None:
            if error is None:
                model.acknowledged(None)
                if None in model.attempts:  # later requests are still in progress
                    del model.attempts[: model.attempts.index(None)]

        ledger.delete_cursor(name).add_done_callback(settle)

    # Checking

    def problems(self, log: TopicLog, *, reopened: bool = False) -> list[str]:
        """All problems. `reopened`: entries missing now must never come back."""
        found, self.faults = self.faults, []
        entries = self._read(log, found)
        self._check_order(log, entries, found)
        there = {entry.position for entry in entries}
        for entry in entries:
            found += self.problems_of(entry, reopened=reopened)
        for sent in self.sent.values():
            if sent.position in there or sent.position < self.trimmed_before:
                continue
            if sent.state in _MUST_BE_THERE:
                found.append(f"{self.name}: {sent.state} entry {sent.position} is lost")
            if reopened:
                sent.state = GONE
        if reopened and isinstance(log, ManagedLedger):
            self._check_cursors(log, there, found)
        return found

    def _read(self, log: TopicLog, found: list[str]) -> list[Entry]:
        lots = read_on(log, EARLIEST, lambda error: found.append(str(error)))
        return list(chain.from_iterable(lots))

    def _check_order(self, log: TopicLog, entries: list[Entry], found: list[str]) -> None:
        index, time_ms, position = log.first_index, 0, EARLIEST
        for entry in entries:
            if entry.first_index != index:
                found.append(
                    f"{self.name}: index {entry.first_index} at {entry.position}, not {index}"
                )
            if entry.append_time_ms < time_ms or entry.position <= position:
                found.append(f"{self.name}: entry {entry.position} is out of order")
            index, time_ms, position = entry.index + 1, entry.append_time_ms, entry.position
        if log.next_index != index:
            found.append(f"{self.name}: next index {log.next_index}, not {index}")

    def problems_of(self, entry: Entry, *, reopened: bool = False) -> list[str]:
        """All problems of an entry that was read, which must stay in the log from now on."""
        found: list[str] = []
        place = f"{self.name}: entry {entry.position}"
        sent = self.sent.get(entry.position)
        if sent is None and entry.kind == EntryKind.CONTROL and not entry.body:
            # The mark of a new epoch, although its caller got an error.
            sent = self.sent[entry.position] = Sent(
                b"", 1, entry.position, entry.index, entry.append_time_ms
            )
        if sent is None:
            return [f"{place} was never sent"]
        if sent.state == GONE:
            found.append(f"{place} came back")
        if sent.state == REFUSED and not reopened:
            found.append(f"{place} was refused, and is in the log")
        if entry.body != sent.body:
            found.append(f"{place} has wrong bytes")
        if (entry.index, entry.message_count, entry.append_time_ms) != (
            sent.index,
            sent.message_count,
            sent.time_ms,
        ):
            found.append(f"{place} has another index, count or time than promised")
        try:
            stamp = peek(entry.prefix)
        except PrefixError as error:
            return [*found, f"{place}: {error}"]
        if (
            stamp is not None
            and stamp.HasField("index")
            and (stamp.index, stamp.broker_timestamp) != (sent.index, sent.time_ms)
        ):
            found.append(f"{place} is stamped with another index or time than promised")
        sent.state = SEEN
        return found

    def _check_cursors(self, ledger: ManagedLedger, there: set[Position], found: list[str]) -> None:
        for name, model in self.cursors.items():
            cursor = ledger.cursors.get(name)
            state = None if cursor is None else CursorState.of(cursor)
            allowed = [model.durable, *model.attempts]
            if _acked(state, there) not in [_acked(other, there) for other in allowed]:
                found.append(f"{self.name}: cursor {name} is not as it was last persisted")
            model.durable, model.attempts, model.unsynced = state, [], []

    def synced(self) -> None:
        """Note that everything acknowledged so far survives a power cut."""
        for sent in self.sent.values():
            sent.is_synced = sent.is_synced or sent.state in _MUST_BE_THERE
        for cursor in self.cursors.values():
            cursor.unsynced.clear()

    def power_lost(self) -> None:
        """In interval mode: note that unsynced acknowledged entries may be lost."""
        for sent in self.sent.values():
            if sent.state in _MUST_BE_THERE and not sent.is_synced:
                sent.state = FAILED
        for cursor in self.cursors.values():
            if cursor.unsynced:
                synced, *later = cursor.unsynced
                cursor.attempts = [*later, cursor.durable, *cursor.attempts]
                cursor.durable, cursor.unsynced = synced, []


def _acked(
    state: CursorState | None, positions: Collection[Position]
) -> frozenset[Position] | None:
    return None if state is None else state.acked(positions)


@dataclass(slots=True)
class StoreModel:
    """The model of a store: all its topics."""

    topics: dict[str, TopicModel] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)

    def topic(self, name: str) -> TopicModel:
        """The model of a topic, made at the first call."""
        return self.topics.setdefault(name, TopicModel(name))

    def delete_topic(self, store: TopicStore, name: str) -> None:
        """Delete a topic. If that fails, the store's topic names show whether it is deleted."""
        self.deleting.add(name)
        try:
            store.delete_topic(name)
        finally:
            if not store.state.has_failed:  # else the next opening shows it
                self.forget_deleted(store)

    def forget_deleted(self, store: TopicStore) -> None:
        """Forget the topics that were to be deleted and that the store no longer has."""
        for name in self.deleting - set(store.topic_names()):
            self.topics.pop(name, None)
        self.deleting.clear()

    @property
    def acknowledged(self) -> int:
        """How many entries were acknowledged so far."""
        return sum(
            sent.state in _MUST_BE_THERE
            for topic in self.topics.values()
            for sent in topic.sent.values()
        )


def is_expected(error: BaseException) -> bool:
    """Whether a store may raise this error when its disk fails."""
    return isinstance(error, LedgerError | OSError)
