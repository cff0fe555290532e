"""All durable cursors of a store, in one ledger of their own.

The cursor ledger is a managed ledger like any other (its topic has no client-visible name), so
cursors share the entries' group commit, checksums and recovery. Its records are snapshots and
changes of single cursors; the last snapshot and the changes behind it make the state. When much
more has been written than there are cursors, or the store was opened many times (each begins a
ledger), every cursor writes a snapshot into a new ledger, and once those are durable the ledgers
before it are removed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ..proto.cursor_pb2 import CursorRecord
from .commit import DONE, Commit
from .cursor import Cursor
from .entry import Entry, EntryKind
from .errors import CorruptEntryError
from .position import EARLIEST, Position

if TYPE_CHECKING:
    from .managed_ledger import ManagedLedger

_log = logging.getLogger(__name__)
CURSOR_TOPIC = "cursors"
"""Not a name a client can choose: those have a domain and a namespace."""
_READ_BATCH = 1000
_COMPACT_MIN_RECORDS = 20_000
_COMPACT_RATIO = 8
_MANY_SEGMENTS = 64
"""Each costs a tenth of a millisecond when the store is opened."""

_Key = tuple[int, str]


class CursorStore:
    """The cursor ledger and what it says. Used on one thread, as cursors are."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self._stored: dict[_Key, Cursor] = {}
        self._records = 0
        self._load()
        self._is_scattered = len(ledger.segments()) > _MANY_SEGMENTS

    def _load(self) -> None:
        position = EARLIEST
        while True:
            try:
                entries = self._ledger.read(position, max_entries=_READ_BATCH)
            except CorruptEntryError as error:
                # The records behind it still hold the latest state of most cursors.
                _log.error("a cursor record is lost: %s", error)
                position = error.next_position
                if position >= self._ledger.end_position:
                    return
                continue
            if not entries:
                return
            for entry in entries:
                self._apply(entry)
            last = entries[-1].position
            position = Position(last.ledger_id, last.entry_id + 1)

    def _apply(self, entry: Entry) -> None:
        record = CursorRecord()
        try:
            record.ParseFromString(bytes(entry.body))
        except DecodeError as error:
            _log.error("cursor record %s is unreadable: %s", entry.position, error)
            return
        self._records += 1
        key = (record.topic_id, record.subscription)
        if record.kind == CursorRecord.DELETED:
            self._stored.pop(key, None)
            return
        cursor = self._stored.get(key)
        if cursor is None:
            cursor = Cursor(self._ledger, key[0], key[1], EARLIEST, self._write)
            self._stored[key] = cursor
        cursor.apply(record)

    def names(self, topic_id: int) -> list[str]:
        """Subscriptions of a topic that have a durable cursor."""
        return sorted(name for topic, name in list(self._stored) if topic == topic_id)

    def attach(self, ledger: ManagedLedger) -> None:
        """Bring the durable cursors of a topic that is being opened to life."""
        for name in self.names(ledger.topic_id):
            key = (ledger.topic_id, name)
            cursor = self._stored[key]
            cursor.follow(ledger)
            ledger.cursors[name] = cursor

    def open(
        self,
        ledger: ManagedLedger,
        name: str,
        *,
        initial: Position,
        durable: bool,
        properties: dict[str, int] | None,
        subscription_properties: dict[str, str] | None = None,
    ) -> Cursor:
        """The cursor of that name, or a new one whose first entry is at or behind ``initial``."""
        cursor = ledger.cursors.get(name)
        if cursor is not None:
            return cursor
        mark_delete = ledger.previous_position(min(initial, ledger.end_position))
        write = self._write if durable else None
        cursor = Cursor(
            ledger,
            ledger.topic_id,
            name,
            mark_delete,
            write,
            properties,
            subscription_properties,
        )
        ledger.cursors[name] = cursor
        if durable:
            self._stored[(ledger.topic_id, name)] = cursor
            cursor.persist()
        return cursor

    def delete(self, ledger: ManagedLedger, name: str) -> Commit:
        """Forget a cursor; durable when the commit is done."""
        key = (ledger.topic_id, name)
        commit = self._write(_deleted(*key)) if key in self._stored else DONE
        cursor = ledger.cursors.pop(name, None)
        if cursor is not None:
            cursor.forget()
        self._stored.pop(key, None)
        return commit

    def forget_topic(self, topic_id: int) -> list[Commit]:
        """Forget all cursors of a deleted topic; durable when these commits are done."""
        names = self.names(topic_id)
        for name in names:
            self._stored.pop((topic_id, name)).forget()
        return [self._write(_deleted(topic_id, name)) for name in names]

    def _write(self, record: CursorRecord) -> Commit:
        self._records += 1
        is_long = self._records > max(_COMPACT_MIN_RECORDS, _COMPACT_RATIO * len(self._stored))
        if is_long or self._is_scattered:
            self._compact()
        return self._ledger.append(record.SerializeToString(), kind=EntryKind.CONTROL).commit

    def _compact(self) -> None:
        """Begin a ledger with a snapshot of every cursor; it makes those before it needless."""
        self._records = 0
        self._is_scattered = False
        self._ledger.roll()
        start = Position(self._ledger.ledger_id, 0)
        commits: dict[Commit, None] = {}
        for cursor in list(self._stored.values()):
            content = cursor.record(snapshot=True).SerializeToString()
            commits[self._ledger.append(content, kind=EntryKind.CONTROL).commit] = None
            self._records += 1
        self._trim_after(list(commits), start)

    def _trim_after(self, commits: list[Commit], start: Position) -> None:
        """Once all of these are durable; if one fails, the ledgers before are still needed."""
        if not commits:
            self._ledger.trim(start)
            return

        def then(error: BaseException | None) -> None:
            if error is None:
                self._trim_after(commits[1:], start)

        commits[0].add_done_callback(then)


def _deleted(topic_id: int, name: str) -> CursorRecord:
    return CursorRecord(topic_id=topic_id, subscription=name, kind=CursorRecord.DELETED)
