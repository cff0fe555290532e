"""A cursor: a subscription's durable position in a topic.

The mark delete position is the last entry up to which everything is acknowledged. Above it, single
entries may be acknowledged, and single messages of batches (Pulsar's ack_set: a set bit is a
message still to be acknowledged). Changes are made at once in memory; ``persist`` writes them to
the cursor ledger, through the same group commit as entries.

Only entries that are in the log can be acknowledged. So the log's size limits what a cursor keeps:
one bit an entry, and `ack_state.MAX_BYTES`. The size of a record is limited, too, as in Pulsar
(managedLedgerMaxUnackedRangesToPersist, managedLedgerMaxBatchDeletedIndexToPersist): it has only
the first ranges and batches above the mark delete position. Acknowledgements beyond that are
redelivered after a restart; the mark delete position itself is always stored.

The properties that clients give a subscription are kept as one text (JSON): a dictionary of tiny
properties takes ten times as much. Those of all subscriptions are counted (`KeptProperties`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from ...proto.cursor_pb2 import CursorRecord
from ...records import record
from ..commit.batch import DONE, Commit, failed_commit
from ..errors import InvalidCursorError, LedgerError
from ..position import EARLIEST, LATEST, Position
from ..store_state import StoreState
from ..topic_log import UNKNOWN_COUNT
from .ack_state import (
    CursorLog,
    PartialBatches,
    bits_of,
    count_marked,
    data_messages,
    entries_between,
    knows_messages,
    messages_between,
    signed_words_of,
    words_of,
)
from .position_ranges import BLOCK_ENTRIES, PositionRanges

_CHANGES_PER_SNAPSHOT = 1000
_MAX_RANGE_ENTRIES = 2**31
"""A stored range longer than any ledger is damaged: it cannot be a range of entries."""

TOPIC_PROPERTIES_MAX_BYTES = 2 * 1024 * 1024
"""What the properties of one topic's subscriptions may take: answers about the topic have them."""
ALL_PROPERTIES_MAX_BYTES = 64 * 1024 * 1024
"""The same for all subscriptions of a store."""

Write = Callable[[CursorRecord], Commit]


def packed_properties(properties: dict[str, str] | None) -> bytes:
    """Pack a subscription's properties as JSON. Raises TypeError, ValueError for other values."""
    return json.dumps(properties, ensure_ascii=False).encode() if properties else b""


class KeptProperties:
    """Counts the bytes of the subscriptions' properties in a store, per topic and in all."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._by_topic: dict[int, int] = {}

    def problem(self, topic_id: int, more_bytes: int) -> str | None:
        """The reason why a topic or the store has no room for these bytes; None: it has."""
        if more_bytes <= 0:
            return None
        of_topic = self._by_topic.get(topic_id, 0) + more_bytes
        if of_topic > TOPIC_PROPERTIES_MAX_BYTES:
            whose, size, most = "the topic's", of_topic, TOPIC_PROPERTIES_MAX_BYTES
        elif self.total_bytes + more_bytes > ALL_PROPERTIES_MAX_BYTES:
            whose, size, most = "all", self.total_bytes + more_bytes, ALL_PROPERTIES_MAX_BYTES
        else:
            return None
        return (
            f"the properties of {whose} subscriptions would take {size} bytes; "
            f"at most {most} are allowed"
        )

    def change(self, topic_id: int, more_bytes: int) -> None:
        """Add to the count of a topic's bytes; `more_bytes` may be negative."""
        self.total_bytes += more_bytes
        self._by_topic[topic_id] = self._by_topic.get(topic_id, 0) + more_bytes
        if not self._by_topic[topic_id]:
            del self._by_topic[topic_id]


@record(frozen=True)
class RecordLimits:
    """The limits of one cursor record."""

    ranges: int = 10_000
    batches: int = 10_000
    batch_bytes: int = 1024 * 1024


class Cursor:
    """One subscription's acknowledgements. Not thread-safe: one thread (the loop) uses it.

    What changes it, and ``persist``, raises StoreClosedError once the store is closed, and
    ForkedStoreError in a child process.
    """

    def __init__(
        self,
        log: CursorLog,
        topic_id: int,
        name: str,
        mark_delete: Position,
        write: Write | None,
        properties: dict[str, int] | None = None,
        subscription_properties: dict[str, str] | None = None,
        limits: RecordLimits | None = None,
        state: StoreState | None = None,
        changed: set[Cursor] | None = None,
        kept: KeptProperties | None = None,
    ) -> None:
        """`changed`: the set of cursors with unwritten changes; `kept` counts properties."""
        self._log = log
        self.mark_delete = mark_delete
        """Everything up to and with this position is acknowledged."""
        # A reference to this object would be a reference cycle.
        self._acked = PositionRanges(partial(messages_between, log), partial(knows_messages, log))
        self._tail_cuts, self._aborts, self._stable_end = log.tail_cuts, log.aborts, EARLIEST
        self._batches = PartialBatches()
        self._all_changed = changed if changed is not None else set()
        self.topic_id = topic_id
        self._write = write
        self._check_not_closed = _no_check if state is None else state.check_not_closed
        self._limits = limits or RecordLimits()
        self.name = name
        self.properties: dict[str, int] = dict(properties or {})
        self._kept = kept
        self._packed = b""
        self.subscription_properties = subscription_properties or {}
        self._changed = PositionRanges()
        self._changed_batches: set[Position] = set()
        self._changes_written = 0
        self._snapshot_due = True
        #: Mark delete at which a snapshot without all ranges is followed by one that has them.
        self._snapshot_due_at: Position | None = None
        self._dirty = False
        self._last_commit = DONE
        self._touch()

    @property
    def durable(self) -> bool:
        """Whether the cursor outlives the process."""
        return self._write is not None

    @property
    def subscription_properties(self) -> dict[str, str]:
        """Properties that clients gave the subscription, at its creation or later."""
        found: dict[str, str] = json.loads(self._packed) if self._packed else {}
        return found

    @subscription_properties.setter
    def subscription_properties(self, properties: dict[str, str]) -> None:
        packed = packed_properties(properties)
        if self._kept is not None:
            self._kept.change(self.topic_id, len(packed) - len(self._packed))
        self._packed = packed

    def __str__(self) -> str:
        return f"cursor {self.name!r} of topic {self.topic_id}"

    def follow(self, log: CursorLog) -> None:
        """Use another log, whose positions the cursor's are from now on."""
        self._log = log
        self._tail_cuts, self._aborts, self._stable_end = log.tail_cuts, log.aborts, EARLIEST
        self._acked.weigh_by(partial(messages_between, log), partial(knows_messages, log))
        self._batches.remove_if(self._acked.__contains__)

    def forget(self) -> None:
        """Mark the cursor as deleted: a caller that still holds it can write nothing."""
        self._write = None
        self._all_changed.discard(self)
        if self._kept is not None:
            self._kept.change(self.topic_id, -len(self._packed))
            self._kept = None

    def _touch(self) -> None:
        """Note that there is something to be written."""
        if not self._dirty:
            self._dirty = True
            if self._write is not None:
                self._all_changed.add(self)

    # Acknowledgements

    def remaining_in_batch(self, position: Position) -> list[int] | None:
        """The ack_set words of a batch that is acknowledged in part; else None."""
        bits = self._batches.get(position)
        return None if bits is None or position in self._acked else words_of(bits)

    @property
    def has_parts(self) -> bool:
        """Whether any batch is acknowledged in part."""
        return bool(self._batches.size_bytes)

    def acks_nothing_from(self, first: Position) -> bool:
        """Whether no entry from ``first`` on is acknowledged; False: not known."""
        return first > self.mark_delete and not self._acked

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or position in self._acked

    @property
    def first_unacked(self) -> Position:
        """The first entry to deliver, or the end of the log."""
        # Not always right after the mark delete position: the log's head may have been cut.
        return self.next_unacked(self.mark_delete)

    def next_unacked(self, after: Position) -> Position:
        """The first unacknowledged entry after ``after``, or the end of the log."""
        position = self._log.next_position(max(after, self.mark_delete))
        while True:
            last = self._acked.end_of(position)
            if last is None:
                return position
            position = self._log.next_position(Position(position.ledger_id, last))

    def nth_unacked(self, count: int) -> Position | None:
        """The ``count``-th unacknowledged entry, from 1 on, or the last; None without entries."""
        passed = 0
        while True:
            found = self._nth_entry(count + passed)
            if found is None:
                return None
            end = Position(found[0], found[1] + 1)
            between = self._log.control_positions(self.mark_delete, end)
            control = sum(not self.is_acked(position) for position in between)
            if control == passed:
                return found
            passed = control

    def _nth_entry(self, count: int) -> Position | None:
        """As `nth_unacked`, with control entries. Steps over whole blocks of entries."""
        log = self._log
        start = self._settle()
        for at, bits in self._acked.blocks_after(self.mark_delete):
            before = log.count_entries(start, at) if start < at else 0
            if before >= count:
                break
            count -= before
            start = max(start, at)
            block_end = Position(at.ledger_id, at.entry_id + BLOCK_ENTRIES)
            acked = count_marked(log, start, bits >> (start.entry_id - at.entry_id))
            here = log.count_entries(start, block_end) - acked
            if here >= count:
                unacked = (p for p in entries_between(start, block_end) if p not in self._acked)
                return next(islice(unacked, count - 1, None))
            count -= here
            start = block_end
        return log.entry_after(start, count - 1) or log.last_position

    @property
    def backlog_messages(self) -> int:
        """Messages not yet acknowledged, batches counted whole. Raises as reading the log."""
        first = self._settle()
        return max(data_messages(self._log, first, LATEST) - self._acked.weight, 0)

    @property
    def backlog_entries(self) -> int:
        """Entries not yet acknowledged, a batch counted once; control entries do not count."""
        first = self._settle()
        open_control = sum(p not in self._acked for p in self._log.control_positions(first, LATEST))
        blocks = self._acked.blocks_after(self.mark_delete)
        acked = sum(count_marked(self._log, *block) for block in blocks)
        return max(self._log.count_entries(first, LATEST) - acked - open_control, 0)

    @property
    def acked_ranges(self) -> int:
        """Ranges of entries acknowledged after the mark delete position."""
        return len(self._acked)

    def acked_runs(self) -> Iterator[tuple[int, int, int]]:
        """The acknowledged ranges in order: ledger, first and last entry."""
        return iter(self._acked)

    def _settle(self) -> Position:
        """Stop counting entries removed from the log; returns the first entry above mark delete."""
        first = self._log.next_position(self.mark_delete)
        if self._tail_cuts != self._log.tail_cuts:
            # The log's tail may have been cut.
            self._tail_cuts = self._log.tail_cuts
            self._acked.recount()
        before, self._stable_end = self._stable_end, self._log.stable_end
        if self._aborts != self._log.aborts:
            # What was aborted counts no more, also if it was acknowledged.
            self._aborts = self._log.aborts
            self._acked.recount(before)
        if self._acked:
            self._acked.remove_up_to(Position(first[0], first[1] - 1), recount=True)
        return first

    # Acknowledging

    def ack(self, position: Position) -> None:
        """Acknowledge one entry. A repetition, or an entry outside the log, changes nothing."""
        self._check_not_closed()
        if self.is_acked(position):
            return
        is_next = position == self._log.next_position(self.mark_delete)
        if is_next and self._log.has_entries(position[0], position[1], position[1]):
            # In order: how many messages it has does not matter.
            self._move_mark_delete(position)
            self._advance()
            return
        messages = self._log.known_message_count(position)
        if messages is None:
            return
        self._batches.pop(position)
        self._touch()
        if is_next:
            self._move_mark_delete(position)
            self._advance()
            return
        if self._log.is_control(position):
            self._acked.add_one(position)
        else:
            self._acked.add_one(position, None if messages == UNKNOWN_COUNT else messages)
        if self.durable:
            self._changed.add_one(position)

    def ack_run(self, ledger_id: int, first: int, last: int) -> None:
        """Acknowledge the entries ``first`` to ``last`` of a ledger, as `ack` does with each."""
        self._check_not_closed()
        log, mark = self._log, self.mark_delete
        if mark[0] == ledger_id:
            first = max(first, mark[1] + 1)
        start, end = Position(ledger_id, first), Position(ledger_id, last + 1)
        if (
            first >= last
            or not log.has_entries(ledger_id, first, last)
            or log.control_count(start, end)
        ):
            for entry_id in range(first, last + 1):
                self.ack(Position(ledger_id, entry_id))
            return
        if start == log.next_position(mark):
            self._move_mark_delete(Position(ledger_id, last))
            self._advance()
            return
        if start <= mark:
            return
        if self._batches.size_bytes:
            for entry_id in range(first, last + 1):
                self._batches.pop(Position(ledger_id, entry_id))
        self._acked.add(ledger_id, first, last)
        if self.durable:
            self._changed.add(ledger_id, first, last)
        self._touch()

    def ack_batch(self, position: Position, remaining: Sequence[int]) -> list[int]:
        """Acknowledge messages of a batch: those whose bit is not set in ``remaining``.

        ``remaining`` are 64-bit words, signed as on the wire; bits beyond the batch mean nothing.
        Returns the words of what remains, [] for nothing. Changes nothing if other batches take all
        of the memory.
        """
        self._check_not_closed()
        found = None if self.is_acked(position) else self._log.known_message_count(position)
        if found is None:
            return []
        messages = 64 * len(remaining) if found == UNKNOWN_COUNT else max(found, 1)
        known = self._batches.get(position)
        bits = bits_of(remaining, messages)
        if known is not None:
            bits &= known
        if not bits:
            self.ack(position)
            return []
        if not self._batches.put(position, bits):
            return words_of(known if known is not None else (1 << messages) - 1)
        if self.durable:
            self._changed_batches.add(position)
        self._touch()
        return words_of(bits)

    def ack_cumulative(self, position: Position) -> None:
        """Acknowledge everything up to and with ``position``.

        A position before the mark delete position changes nothing. Neither does one at or after
        the end: as in Pulsar, nothing is acknowledged then.
        """
        self._check_not_closed()
        if position <= self.mark_delete or position >= self._log.end_position:
            return
        if self._log.known_message_count(position) is None:
            position = self._log.previous_position(Position(position[0], position[1] + 1))
            if position <= self.mark_delete:
                return
        self._move_mark_delete(position)
        self._advance()

    def _advance(self) -> None:
        """Move the mark delete position over the acknowledged entries right after it."""
        while self._acked:
            following = self._log.next_position(self.mark_delete)
            last = self._acked.end_of(following)
            if last is None:
                return
            self._move_mark_delete(Position(following.ledger_id, last))

    def _move_mark_delete(self, position: Position) -> None:
        if position.__class__ is not Position:
            position = Position(*position)  # a plain pair
        self.mark_delete = position
        if self._acked:
            self._acked.remove_up_to(position)
        if self._batches.size_bytes:
            self._batches.remove_up_to(position)
        if self._changed:
            self._changed.remove_up_to(position)
        self._touch()

    def reset(self, read_position: Position) -> None:
        """Read on from ``read_position``: mark delete before it, nothing else acknowledged."""
        self._check_not_closed()
        self.mark_delete = self._log.previous_position(read_position)
        self._acked.clear()
        self._batches.clear()
        self._changed.clear()
        self._changed_batches.clear()
        self._snapshot_due = True
        self._touch()

    # Keeping

    def persist(self) -> Commit:
        """Write what changed. Raises nothing: a refused record is a failed commit."""
        self._check_not_closed()
        if self._write is None or not self._dirty:
            return self._last_commit
        snapshot = self._is_snapshot_due()
        try:
            commit = self._write(self.record(snapshot=snapshot))
        except (LedgerError, OSError) as error:
            self._last_commit = failed_commit(error)
            self._snapshot_due = True
            return self._last_commit
        self._changes_written = 0 if snapshot else self._changes_written + 1
        self._changed.clear()
        self._changed_batches.clear()
        self._snapshot_due = self._dirty = False
        self._all_changed.discard(self)
        self._last_commit = commit
        commit.add_done_callback(self._written)
        return commit

    def set_subscription_properties(self, properties: dict[str, str]) -> Commit:
        """Replace the subscription's properties; durable when the returned commit is done.

        If it fails, the properties are those from before. Raises InvalidCursorError if those of all
        subscriptions would take too much.
        """
        before = self.subscription_properties
        if self._kept is not None:
            more_bytes = len(packed_properties(properties)) - len(self._packed)
            problem = self._kept.problem(self.topic_id, more_bytes)
            if problem is not None:
                raise InvalidCursorError(f"topic {self.topic_id}", self.name, problem)
        self.subscription_properties = properties
        new = self._packed
        self._snapshot_due = True
        self._touch()
        commit = self.persist()

        def written(error: BaseException | None) -> None:
            if error is not None and self._packed is new:
                self.subscription_properties = before

        commit.add_done_callback(written)
        return commit

    def _written(self, error: BaseException | None) -> None:
        if error is not None:
            self._snapshot_due = True
            self._touch()

    def _is_snapshot_due(self) -> bool:
        if self._snapshot_due or self._changes_written >= _CHANGES_PER_SNAPSHOT:
            return True
        if self._snapshot_due_at is not None and self.mark_delete >= self._snapshot_due_at:
            return True
        return len(self._changed_batches) > self._limits.batches or (
            next(islice(self._changed, self._limits.ranges, None), None) is not None
        )

    def record(self, *, snapshot: bool) -> CursorRecord:
        """The state, or the changes since the last record, within the limits."""
        record = CursorRecord(
            topic_id=self.topic_id,
            subscription=self.name,
            kind=CursorRecord.SNAPSHOT if snapshot else CursorRecord.CHANGE,
            mark_delete_ledger_id=self.mark_delete.ledger_id,
            mark_delete_entry_id=self.mark_delete.entry_id,
        )
        ranges = list(islice(self._acked if snapshot else self._changed, self._limits.ranges))
        for ledger_id, first, last in ranges:
            record.acked.add(ledger_id=ledger_id, first_entry_id=first, last_entry_id=last)
        if snapshot:
            is_cut = bool(ranges) and len(ranges) >= self._limits.ranges
            middle = ranges[len(ranges) // 2] if is_cut else None
            self._snapshot_due_at = Position(middle[0], middle[2]) if middle else None
            record.properties.update(self.properties)
            record.subscription_properties.update(self.subscription_properties)
        size_bytes = 0
        for position, bits in islice(self._batches_to_write(snapshot), self._limits.batches):
            # A word takes up to ten bytes on disk.
            size_bytes += 32 + bits.bit_length() // 6
            if size_bytes > self._limits.batch_bytes:
                break
            words = signed_words_of(bits)
            record.batches.add(ledger_id=position[0], entry_id=position[1], ack_set=words)
        return record

    def snapshot(self) -> CursorRecord:
        """The state as a record for a follower; it is not written here."""
        due_at = self._snapshot_due_at
        try:
            return self.record(snapshot=True)
        finally:
            self._snapshot_due_at = due_at

    def _batches_to_write(self, snapshot: bool) -> Iterator[tuple[Position, int]]:
        if snapshot:
            for position, bits in self._batches:
                if position not in self._acked:
                    yield position, bits
            return
        for position in sorted(self._changed_batches):
            changed = self._batches.get(position)
            if changed is not None:
                yield position, changed

    def apply(self, record: CursorRecord) -> None:
        """Take over a stored record, without what it has at or below the mark delete position."""
        if record.kind == CursorRecord.SNAPSHOT:
            self._acked.clear()
            self._batches.clear()
            self.properties = dict(record.properties)
            self.subscription_properties = dict(record.subscription_properties)
        self.mark_delete = Position(record.mark_delete_ledger_id, record.mark_delete_entry_id)
        for acked in record.acked:
            first, last = acked.first_entry_id, acked.last_entry_id
            if 0 <= first <= last < first + _MAX_RANGE_ENTRIES:
                self._acked.add(acked.ledger_id, first, last)
        for batch in record.batches:
            bits = bits_of(batch.ack_set, 64 * len(batch.ack_set))
            if bits:
                self._batches.put(Position(batch.ledger_id, batch.entry_id), bits)
        self._acked.remove_up_to(self.mark_delete)
        self._batches.remove_up_to(self.mark_delete)
        self._dirty = False
        self._all_changed.discard(self)


def _no_check() -> None:
    """Check nothing: the log belongs to no store."""
