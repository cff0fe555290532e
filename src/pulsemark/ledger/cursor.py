"""A subscription's durable place in a topic.

The mark delete position is the last entry up to which everything is acknowledged; above it
single entries may be, and single messages of batches (Pulsar's ack_set: a set bit is a message
still to be acknowledged). State changes are made at once in memory; ``persist`` writes them to
the cursor ledger, through the same group commit as entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..proto.cursor_pb2 import CursorRecord
from .commit import DONE, Commit
from .position import LATEST, Position
from .position_ranges import PositionRanges

if TYPE_CHECKING:
    from .topic_log import TopicLog

_CHANGES_PER_SNAPSHOT = 1000

Write = Callable[[CursorRecord], Commit]


class Cursor:
    """One subscription's acknowledgements. Not thread-safe: one thread (the loop) uses it."""

    def __init__(
        self,
        log: TopicLog,
        topic_id: int,
        name: str,
        mark_delete: Position,
        write: Write | None,
        properties: dict[str, int] | None = None,
        subscription_properties: dict[str, str] | None = None,
    ) -> None:
        self._log = log
        self._topic_id = topic_id
        self._write = write
        self.name = name
        self.properties: dict[str, int] = dict(properties or {})
        self.subscription_properties: dict[str, str] = dict(subscription_properties or {})
        """What the subscription's maker said about it; does not change."""
        self.mark_delete = mark_delete
        """Everything up to and with this position is acknowledged."""
        self._acked = PositionRanges()
        self._batches: dict[Position, list[int]] = {}
        self._changed: list[Position] = []
        self._changed_batches: set[Position] = set()
        self._changes_written = 0
        self._snapshot_due = True
        self._dirty = True
        self._last_commit = DONE

    @property
    def durable(self) -> bool:
        """Whether the cursor outlives the process."""
        return self._write is not None

    def follow(self, log: TopicLog) -> None:
        """From now on, ``log`` is where the positions are."""
        self._log = log

    def forget(self) -> None:
        """The cursor was deleted: what still holds it writes nothing any more."""
        self._write = None

    # Acknowledging

    def ack(self, position: Position) -> None:
        """Acknowledge one entry; again, or one that does not exist yet, changes nothing."""
        if self.is_acked(position) or position >= self._log.end_position:
            return
        self._batches.pop(position, None)
        self._acked.add(position.ledger_id, position.entry_id, position.entry_id)
        self._changed.append(position)
        self._changed_batches.discard(position)
        self._dirty = True
        self._advance()

    def ack_batch(self, position: Position, remaining: Sequence[int]) -> list[int]:
        """Acknowledge messages of a batch: those whose bit is not set in ``remaining``.

        ``remaining`` are 64-bit words, signed as on the wire. Returns the words of what remains
        with earlier acknowledgements taken into account; once nothing does, the entry is
        acknowledged and the list is empty.
        """
        if self.is_acked(position) or position >= self._log.end_position:
            return []
        words = [word & _WORD for word in remaining]
        known = self._batches.get(position)
        if known is not None:
            words = [a & b for a, b in zip(words, known, strict=False)]
        while words and words[-1] == 0:
            words.pop()
        if not words:
            self.ack(position)
            return []
        self._batches[position] = words
        self._changed_batches.add(position)
        self._dirty = True
        return words

    def remaining_in_batch(self, position: Position) -> list[int] | None:
        """The ack_set words of a batch that is acknowledged in part; else None."""
        return self._batches.get(position)

    def ack_cumulative(self, position: Position) -> None:
        """Acknowledge everything up to and with ``position``; backwards changes nothing."""
        end = self._log.end_position
        last = position if position < end else self._log.previous_position(end)
        if last <= self.mark_delete:
            return
        self._move_mark_delete(last)
        self._advance()

    def _advance(self) -> None:
        """Let the mark delete position follow what is acknowledged right behind it."""
        while True:
            following = self._log.next_position(self.mark_delete)
            last = self._acked.end_of(following)
            if last is None:
                return
            self._move_mark_delete(Position(following.ledger_id, last))

    def _move_mark_delete(self, position: Position) -> None:
        self.mark_delete = position
        self._acked.remove_up_to(position)
        for batch in [p for p in self._batches if p <= position]:
            del self._batches[batch]
        self._changed = [p for p in self._changed if p > position]
        self._changed_batches = {p for p in self._changed_batches if p > position}
        self._dirty = True

    def reset(self, read_position: Position) -> None:
        """Read on from ``read_position``: mark delete before it, nothing else acknowledged."""
        self.mark_delete = self._log.previous_position(read_position)
        self._acked.clear()
        self._batches.clear()
        self._changed.clear()
        self._changed_batches.clear()
        self._snapshot_due = self._dirty = True

    # Asking

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or position in self._acked

    @property
    def first_unacked(self) -> Position:
        """The first entry to deliver; the end of the log if there is none."""
        return self._log.next_position(self.mark_delete)

    def next_unacked(self, after: Position) -> Position:
        """The first unacknowledged entry behind ``after``; the end of the log if none."""
        position = self._log.next_position(max(after, self.mark_delete))
        while True:
            last = self._acked.end_of(position)
            if last is None:
                return position
            position = self._log.next_position(Position(position.ledger_id, last))

    @property
    def backlog_messages(self) -> int:
        """Messages not yet acknowledged, batches counted whole."""
        count = self._log.message_count(self.first_unacked, LATEST)
        for ledger_id, first, last in self._acked:
            count -= self._log.message_count(
                Position(ledger_id, first), Position(ledger_id, last + 1)
            )
        return count

    # Keeping

    def persist(self) -> Commit:
        """Write what changed; durable when the returned commit is done."""
        if self._write is None or not self._dirty:
            return self._last_commit
        snapshot = self._snapshot_due or self._changes_written >= _CHANGES_PER_SNAPSHOT
        commit = self._write(self.record(snapshot=snapshot))
        self._changes_written = 0 if snapshot else self._changes_written + 1
        self._changed.clear()
        self._changed_batches.clear()
        self._snapshot_due = self._dirty = False
        self._last_commit = commit
        commit.add_done_callback(self._written)
        return commit

    def _written(self, error: BaseException | None) -> None:
        if error is not None:
            self._snapshot_due = self._dirty = True

    def record(self, *, snapshot: bool) -> CursorRecord:
        """The state, or what changed since it was last written."""
        record = CursorRecord(
            topic_id=self._topic_id,
            subscription=self.name,
            kind=CursorRecord.SNAPSHOT if snapshot else CursorRecord.CHANGE,
            mark_delete_ledger_id=self.mark_delete.ledger_id,
            mark_delete_entry_id=self.mark_delete.entry_id,
        )
        ranges = self._acked if snapshot else [(p[0], p[1], p[1]) for p in self._changed]
        for ledger_id, first, last in ranges:
            record.acked.add(ledger_id=ledger_id, first_entry_id=first, last_entry_id=last)
        for position in self._batches if snapshot else self._changed_batches:
            words = [_signed(word) for word in self._batches[position]]
            record.batches.add(ledger_id=position[0], entry_id=position[1], ack_set=words)
        if snapshot:
            record.properties.update(self.properties)
            record.subscription_properties.update(self.subscription_properties)
        return record

    def apply(self, record: CursorRecord) -> None:
        """Take over a record as it was written: used when a store is opened."""
        if record.kind == CursorRecord.SNAPSHOT:
            self._acked.clear()
            self._batches.clear()
            self.properties = dict(record.properties)
            self.subscription_properties = dict(record.subscription_properties)
        self.mark_delete = Position(record.mark_delete_ledger_id, record.mark_delete_entry_id)
        for acked in record.acked:
            self._acked.add(acked.ledger_id, acked.first_entry_id, acked.last_entry_id)
        for batch in record.batches:
            position = Position(batch.ledger_id, batch.entry_id)
            self._batches[position] = [word & _WORD for word in batch.ack_set]
        self._acked.remove_up_to(self.mark_delete)
        self._batches = {
            p: w for p, w in self._batches.items() if p > self.mark_delete and p not in self._acked
        }
        self._dirty = False


_WORD = 2**64 - 1


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
