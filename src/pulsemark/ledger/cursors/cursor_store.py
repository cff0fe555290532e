"""All durable cursors of a store, in one ledger of their own.

The cursor ledger is a managed ledger like any other (clients cannot see its topic), so cursors
share the entries' group commit, checksums and recovery. Its records are snapshots and changes of
single cursors; a cursor's last snapshot and the changes after it make its state. When there are
far more records than cursors, or many ledgers (each opening of the store begins one), every cursor
writes a snapshot into a new ledger. Once those are durable, the older ledgers are removed; in
interval mode the removal waits for the sync. A few snapshots are written along with
each record that is written anyway, so that no single acknowledgement waits for all of them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from google.protobuf.message import DecodeError

from ...proto.cursor_pb2 import CursorRecord
from ..commit.batch import DONE, Appended, Commit
from ..entry import Entry, EntryKind
from ..errors import CorruptEntryError, InvalidCursorError, LedgerError
from ..position import EARLIEST, Position
from ..run import Run
from ..store_core import StoreOptions
from ..store_state import StoreState
from ..topic_log import ReadableLog, TopicLog, read_on
from .cursor import Cursor, KeptProperties, RecordLimits, packed_properties

_log = logging.getLogger(__name__)
CURSOR_TOPIC = "cursors"
"""Not a name a client can choose: those have a domain and a namespace."""
COMPACT_MIN_RECORDS = 20_000
COMPACT_RATIO = 8
MANY_SEGMENTS = 64
"""Each ledger costs a tenth of a millisecond when the store is opened."""

SNAPSHOTS_AT_ONCE = 64
"""Snapshots of a compaction that are written along with one record."""
_COMPACTION_STEPS = 64
"""A compaction takes at most about so many records, however many cursors there are."""
_RANGES_AT_ONCE = 2_000
"""Ranges and batches in the snapshots written along with one record; one snapshot may have more."""
_BATCH_BYTES = 1024 * 1024
"""The most bytes that partly acknowledged batches may take in a record."""
_DELETIONS = 64
"""Deletions that are kept before those that are durable are forgotten."""
_RANGE_SIZE_BYTES = 64
"""The most bytes that one range takes in a record, rounded up."""


def cursor_records(log: ReadableLog) -> Iterator[CursorRecord]:
    """The readable records of a cursor ledger. After a damaged record the later ones still hold
    the latest state of most cursors.
    """

    def skip(error: CorruptEntryError) -> None:
        _log.error("a cursor record is damaged; its cursor goes on without it: %s", error)

    for entry in chain.from_iterable(read_on(log, EARLIEST, skip)):
        try:
            yield CursorRecord.FromString(bytes(entry.body))
        except DecodeError as error:
            _log.error("cursor record %s is damaged and skipped: %s", entry.position, error)


class CursorLedger(Protocol):
    """The methods of a managed ledger that the cursor store uses."""

    @property
    def ledger_id(self) -> int: ...  # noqa: D102
    @property
    def end_position(self) -> Position: ...  # noqa: D102
    def segments(self) -> list[Run]: ...  # noqa: D102
    def read(self, start: Position, *, max_entries: int = 100) -> list[Entry]: ...  # noqa: D102
    def append(self, body: bytes, *, kind: EntryKind) -> Appended: ...  # noqa: D102
    def roll(self) -> None: ...  # noqa: D102
    def trim(self, before: Position) -> int: ...  # noqa: D102


class SubscribedLog(TopicLog):
    """A topic's log with its cursors."""

    topic_id: int
    cursors: dict[str, Cursor]
    """By the subscription's name."""


class CursorStore:
    """The cursor ledger and the cursors in it. Used on one thread, as cursors are."""

    def __init__(
        self, ledger: CursorLedger, options: StoreOptions, state: StoreState | None = None
    ) -> None:
        self.ledger = ledger
        self._state = state
        self._limits = _record_limits(options)
        self._stored: dict[int, dict[str, Cursor]] = {}
        self._changed: set[Cursor] = set()
        self.kept_properties = KeptProperties()
        self._deletions: dict[tuple[int, str], Commit] = {}
        """Of cursors, by topic id and name: those that are not known to be durable."""
        self._deletions_limit = _DELETIONS
        self._count = 0
        self._records = 0
        #: Cursors whose snapshot the running compaction has not yet written.
        self._to_snapshot: deque[Cursor] = deque()
        self._snapshots: dict[Commit, None] = {}
        self._compacted_from = EARLIEST
        for record in cursor_records(ledger):
            self._apply(record)
        self._is_scattered = len(ledger.segments()) > MANY_SEGMENTS

    def _apply(self, record: CursorRecord) -> None:
        self._records += 1
        if record.kind == CursorRecord.DELETED:
            self._forget(record.topic_id, record.subscription)
            return
        cursor = self._stored.get(record.topic_id, {}).get(record.subscription)
        if cursor is None:
            cursor = Cursor(
                TopicLog(CURSOR_TOPIC, ()),  # its topic's log is not open yet
                record.topic_id,
                record.subscription,
                EARLIEST,
                self._write,
                limits=self._limits,
                state=self._state,
                changed=self._changed,
                kept=self.kept_properties,
            )
            self._keep(cursor)
        cursor.apply(record)

    def _keep(self, cursor: Cursor) -> None:
        self._stored.setdefault(cursor.topic_id, {})[cursor.name] = cursor
        self._count += 1

    def _forget(self, topic_id: int, name: str) -> None:
        """Remove the cursor of that name. A caller that still holds it can write nothing."""
        of_topic = self._stored.get(topic_id, {})
        cursor = of_topic.pop(name, None)
        if cursor is None:
            return
        cursor.forget()
        self._count -= 1
        if not of_topic:
            del self._stored[topic_id]

    def changed(self) -> list[Cursor]:
        """The durable cursors whose `persist` would write something."""
        return list(self._changed)

    def names(self, topic_id: int) -> list[str]:
        """Subscriptions of a topic that have a durable cursor."""
        return sorted(self._stored.get(topic_id, {}))

    def snapshots(self) -> Iterator[CursorRecord]:
        """Yield the state of every durable cursor. Cursors may change in between."""
        for of_topic in tuple(self._stored.values()):
            for cursor in tuple(of_topic.values()):
                if cursor.durable:
                    yield cursor.snapshot()

    def take_over(self, ledger: SubscribedLog, record: CursorRecord) -> Commit:
        """Give a topic's cursor its state in another store, and create it if it is missing."""
        record.topic_id, record.kind = ledger.topic_id, CursorRecord.SNAPSHOT
        self._apply(record)
        self.attach(ledger)
        return self._write(record)

    def attach(self, ledger: SubscribedLog) -> None:
        """Connect the durable cursors of a topic that is being opened with its log."""
        of_topic = self._stored.get(ledger.topic_id, {})
        for name in sorted(of_topic):
            cursor = of_topic[name]
            cursor.follow(ledger)
            ledger.cursors[name] = cursor

    def open(
        self,
        ledger: SubscribedLog,
        name: str,
        *,
        initial: Position,
        durable: bool,
        properties: dict[str, int] | None,
        subscription_properties: dict[str, str] | None = None,
    ) -> Cursor:
        """The cursor of that name, or a new one whose first entry is at or after ``initial``.

        Raises InvalidCursorError for a name or properties that no record can hold, and for
        properties that are too many together with those of other subscriptions.
        """
        cursor = ledger.cursors.get(name)
        if cursor is not None:
            return cursor
        if durable:
            self._check_properties(ledger, name, subscription_properties)
        cursor = Cursor(
            ledger,
            ledger.topic_id,
            name,
            ledger.previous_position(min(initial, ledger.end_position)),
            self._write if durable else None,
            properties,
            subscription_properties,
            self._limits,
            self._state,
            self._changed,
            self.kept_properties if durable else None,
        )
        if durable:
            try:
                cursor.record(snapshot=True).SerializeToString()
            except (TypeError, ValueError) as error:
                cursor.forget()
                raise InvalidCursorError(ledger.name, name, str(error)) from error
        ledger.cursors[name] = cursor
        if durable:
            self._keep(cursor)
            cursor.persist()
        return cursor

    def _check_properties(
        self, ledger: SubscribedLog, name: str, properties: dict[str, str] | None
    ) -> None:
        try:
            size_bytes = len(packed_properties(properties))
        except (TypeError, ValueError) as error:
            raise InvalidCursorError(ledger.name, name, str(error)) from error
        problem = self.kept_properties.problem(ledger.topic_id, size_bytes)
        if problem is not None:
            raise InvalidCursorError(ledger.name, name, problem)

    def delete(self, ledger: SubscribedLog, name: str) -> Commit:
        """Forget a cursor, durably with the commit; a failed deletion is written again."""
        is_stored = name in self._stored.get(ledger.topic_id, {})
        earlier = self._deletions.get((ledger.topic_id, name), DONE)
        if is_stored or (earlier.done and earlier.error is not None):
            commit = self._write_deletion(ledger.topic_id, name)
        else:
            commit = earlier
        cursor = ledger.cursors.pop(name, None)
        if cursor is not None:
            cursor.forget()
        self._forget(ledger.topic_id, name)
        return commit

    def forget_topic(self, topic_id: int) -> list[Commit]:
        """Forget all cursors of a deleted topic; durable when these commits are done."""
        names = self.names(topic_id)
        for name in names:
            self._forget(topic_id, name)
        undecided = {name for topic, name in self._undecided() if topic == topic_id}
        return [self._write_deletion(topic_id, name) for name in sorted(undecided.union(names))]

    def _undecided(self) -> dict[tuple[int, str], Commit]:
        """The deletions that are pending, and those that failed."""
        deletions = self._deletions.items()
        return {key: each for key, each in deletions if not each.done or each.error is not None}

    def _write_deletion(self, topic_id: int, name: str) -> Commit:
        commit = self._write(_deleted(topic_id, name))
        if len(self._deletions) >= self._deletions_limit:
            self._deletions = self._undecided()
            self._deletions_limit = _DELETIONS + 2 * len(self._deletions)
        self._deletions[topic_id, name] = commit
        return commit

    def _write(self, record: CursorRecord) -> Commit:
        self._records += 1
        is_long = self._records > max(COMPACT_MIN_RECORDS, COMPACT_RATIO * self._count)
        if self._to_snapshot or self._snapshots:
            self.compact_further()
        elif is_long or self._is_scattered:
            self.compact()
        return self.ledger.append(record.SerializeToString(), kind=EntryKind.CONTROL).commit

    def compact(self) -> None:
        """Begin a ledger for snapshots of all cursors, so that older ledgers can be removed."""
        self.ledger.roll()
        self._records = 0
        self._is_scattered = False
        self._compacted_from = Position(self.ledger.ledger_id, 0)
        self._to_snapshot.extend(
            cursor for of_topic in self._stored.values() for cursor in of_topic.values()
        )
        self.compact_further()

    @property
    def is_compacting(self) -> bool:
        """Whether there are snapshots to be written."""
        return bool(self._to_snapshot)

    def compact_further(self) -> None:
        """Write some more snapshots, and remove the older ledgers after the last one."""
        cursors = max(SNAPSHOTS_AT_ONCE, self._count // _COMPACTION_STEPS)
        ranges = _RANGES_AT_ONCE
        while self._to_snapshot and cursors and ranges > 0:
            cursor = self._to_snapshot[0]
            if not self._is_stored(cursor):
                self._to_snapshot.popleft()
                continue
            record = cursor.record(snapshot=True)
            content = record.SerializeToString()
            self._snapshots[self.ledger.append(content, kind=EntryKind.CONTROL).commit] = None
            # Only now: if the ledger refuses the record, the next step tries this cursor again.
            self._to_snapshot.popleft()
            self._records += 1
            cursors -= 1
            ranges -= len(record.acked) + len(record.batches) + len(record.subscription_properties)
        if not self._to_snapshot:
            commits, self._snapshots = list(self._snapshots), {}
            self._trim_after(commits, self._compacted_from)

    def _is_stored(self, cursor: Cursor) -> bool:
        return self._stored.get(cursor.topic_id, {}).get(cursor.name) is cursor

    def _trim_after(self, commits: list[Commit], start: Position) -> None:
        """Trim once all of these are durable. If one fails, the older ledgers are still needed."""
        if not commits:
            try:
                self.ledger.trim(start)
            except (OSError, LedgerError) as error:
                _log.warning("old ledgers of subscriptions stay for now: %s", error)
            return

        def then(error: BaseException | None) -> None:
            if error is None:
                self._trim_after(commits[1:], start)

        commits[0].add_done_callback(then)


def _record_limits(options: StoreOptions) -> RecordLimits:
    """The limits of the store's options, lowered to what fits into one entry."""
    half_bytes = max(options.max_entry_size_bytes // 2 - 1024, 0)
    return RecordLimits(
        ranges=min(options.max_unacked_ranges_to_persist, half_bytes // _RANGE_SIZE_BYTES),
        batches=options.max_batch_deleted_index_to_persist,
        batch_bytes=min(_BATCH_BYTES, half_bytes),
    )


def _deleted(topic_id: int, name: str) -> CursorRecord:
    return CursorRecord(topic_id=topic_id, subscription=name, kind=CursorRecord.DELETED)
