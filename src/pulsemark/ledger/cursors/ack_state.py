"""What of a topic a subscription has acknowledged: its mark delete position, and more above it.

`Cursor` changes it and keeps it; here are the questions about it.

**Batches.**
Batches that are acknowledged in part: which of their messages are still open.

A batch's open messages are one number, bit n for message n (Pulsar's ack_set). Batches are grouped
in blocks of 1024 entries, so that dropping all up to a position drops whole blocks, without a look
at each batch. Memory is limited, because a consumer chooses which messages to acknowledge, and a
batch can claim to have millions of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from struct import pack, unpack
from typing import Protocol

from ..position import LATEST, Position
from .position_ranges import BLOCK_ENTRIES, PositionRanges, runs_of


class AckedPlace:
    """The mark delete position, acknowledged entries above it, partly acknowledged batches."""

    __slots__ = ("_acked", "_batches", "_log", "_tail_cuts", "mark_delete")

    def __init__(self, log: CursorLog, mark_delete: Position) -> None:
        self._log = log
        self.mark_delete = mark_delete
        """Everything up to and with this position is acknowledged."""
        # Holds no reference to this object itself, which would be a reference cycle.
        self._acked = PositionRanges(partial(messages_between, log), partial(knows_messages, log))
        self._tail_cuts = log.tail_cuts
        self._batches = PartialBatches()

    def remaining_in_batch(self, position: Position) -> list[int] | None:
        """The ack_set words of a batch that is acknowledged in part; else None."""
        bits = self._batches.get(position)
        return None if bits is None or position in self._acked else words_of(bits)

    @property
    def has_parts(self) -> bool:
        """Whether any batch is acknowledged in part."""
        return bool(self._batches.size_bytes)

    def acks_nothing_from(self, first: Position) -> bool:
        """Whether no whole entry at or after ``first`` is acknowledged; False: it is not known."""
        return first > self.mark_delete and not self._acked

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self.mark_delete or position in self._acked

    @property
    def first_unacked(self) -> Position:
        """The first entry to deliver; the end of the log if there is none."""
        # Not always right after the mark delete position: the log's head may have been cut.
        return self.next_unacked(self.mark_delete)

    def next_unacked(self, after: Position) -> Position:
        """The first unacknowledged entry after ``after``; the end of the log if there is none."""
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
        """Those ranges in order: the ledger, and the first and the last entry."""
        return iter(self._acked)

    def _settle(self) -> Position:
        """Stop counting entries removed from the log; returns the first entry above mark delete."""
        first = self._log.next_position(self.mark_delete)
        if self._tail_cuts != self._log.tail_cuts:
            # The log's tail may have been cut.
            self._tail_cuts = self._log.tail_cuts
            self._acked.recount()
        if self._acked:
            self._acked.remove_up_to(Position(first[0], first[1] - 1), recount=True)
        return first


class CursorLog(Protocol):
    """What a cursor needs from its log, a `TopicLog` or its compacted form."""

    @property
    def tail_cuts(self) -> object:
        """Changes when entries other than those at the head may have been removed."""

    @property
    def end_position(self) -> Position: ...  # noqa: D102
    @property
    def last_position(self) -> Position | None: ...  # noqa: D102
    def next_position(self, position: Position) -> Position: ...  # noqa: D102
    def previous_position(self, position: Position) -> Position: ...  # noqa: D102
    def entry_message_count(self, position: Position) -> int | None: ...  # noqa: D102
    def known_message_count(self, position: Position) -> int | None: ...  # noqa: D102
    def has_entries(self, ledger_id: int, first: int, last: int) -> bool: ...  # noqa: D102
    def knows_index(self, position: Position) -> bool: ...  # noqa: D102
    def entry_after(self, start: Position, count: int) -> Position | None: ...  # noqa: D102
    def count_entries(self, start: Position, end: Position) -> int: ...  # noqa: D102
    def message_count(self, start: Position, end: Position) -> int: ...  # noqa: D102
    def is_control(self, position: Position) -> bool: ...  # noqa: D102
    def control_count(self, start: Position, end: Position) -> int: ...  # noqa: D102
    def control_positions(self, start: Position, end: Position) -> list[Position]: ...  # noqa: D102


def data_messages(log: CursorLog, start: Position, end: Position) -> int:
    """The messages in [start, end) that consumers get: without the indexes of control entries."""
    return log.message_count(start, end) - log.control_count(start, end)


def entries_between(start: Position, end: Position) -> Iterator[Position]:
    """The positions from start to before end, in one ledger."""
    return (Position(start[0], entry_id) for entry_id in range(start[1], end[1]))


def count_marked(log: CursorLog, start: Position, bits: int) -> int:
    """How many set bits, from ``start`` on, are entries that the log still has."""
    ledger_id, first = start
    length = bits.bit_length()
    if log.count_entries(start, Position(ledger_id, first + length)) == length:
        return bits.bit_count()
    return sum(
        log.count_entries(Position(ledger_id, first), Position(ledger_id, last + 1))
        for _, first, last in runs_of(ledger_id, first, bits)
    )


def messages_between(log: CursorLog, ledger_id: int, first: int, last: int) -> int:
    """The messages of the entries from first to last that consumers get."""
    return data_messages(log, Position(ledger_id, first), Position(ledger_id, last + 1))


def knows_messages(log: CursorLog, ledger_id: int, first: int, last: int) -> bool:
    """Whether ``messages_between`` answers without waiting for a network."""
    start, end = Position(ledger_id, first), Position(ledger_id, last + 1)
    return log.knows_index(start) and log.knows_index(end)


MAX_BYTES = 8 * 1024 * 1024
"""What one cursor keeps of partly acknowledged batches; further ones stay open as a whole."""
_BATCH_OVERHEAD_BYTES = 128
_SHIFT = 10
_BEFORE_ALL = Position(-(2**63), 0)
_WORD = 2**64 - 1


class PartialBatches:
    """Open messages by position, as numbers whose set bits are the open ones."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], dict[int, int]] = {}
        self._keys: list[tuple[int, int]] = []
        self._floor = _BEFORE_ALL
        self.size_bytes = 0

    def get(self, position: Position) -> int | None:
        """The open messages of a batch; None: it is not acknowledged in part."""
        if position <= self._floor:
            return None
        block = self._blocks.get((position[0], position[1] >> _SHIFT))
        return None if block is None else block.get(position[1])

    def put(self, position: Position, remaining: int) -> bool:
        """Set the open messages of a batch; False: there is no room, and nothing changed."""
        if position <= self._floor:
            return False
        key = (position[0], position[1] >> _SHIFT)
        block = self._blocks.get(key)
        before = block.get(position[1]) if block is not None else None
        size_bytes = self.size_bytes + _size_bytes(remaining)
        if before is not None:
            size_bytes -= _size_bytes(before)
        if size_bytes > max(MAX_BYTES, self.size_bytes):
            return False
        if block is None:
            block = self._blocks[key] = {}
            insort(self._keys, key)
        block[position[1]] = remaining
        self.size_bytes = size_bytes
        return True

    def pop(self, position: Position) -> None:
        """Forget a batch."""
        block = self._blocks.get((position[0], position[1] >> _SHIFT))
        remaining = block.pop(position[1], None) if block is not None else None
        if remaining is not None:
            self.size_bytes -= _size_bytes(remaining)

    def remove_up_to(self, position: Position) -> None:
        """Forget every batch at or before ``position``."""
        self._floor = max(self._floor, position)
        key = (position[0], position[1] >> _SHIFT)
        gone = 0
        for known in self._keys:
            if known >= key:
                break
            self.size_bytes -= sum(map(_size_bytes, self._blocks.pop(known).values()))
            gone += 1
        del self._keys[:gone]

    def remove_if(self, is_needless: Callable[[Position], bool]) -> None:
        """Forget the batches for which ``is_needless`` is true."""
        for position, _ in list(self):
            if is_needless(position):
                self.pop(position)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._keys.clear()
        self._floor = _BEFORE_ALL
        self.size_bytes = 0

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        """(position, open messages) of every batch, in order."""
        for key in self._keys:
            for entry_id, remaining in sorted(self._blocks[key].items()):
                position = Position(key[0], entry_id)
                if position > self._floor:
                    yield position, remaining


def bits_of(words: Sequence[int], message_count: int) -> int:
    """The number that an ack_set's 64-bit words make, cut to a batch's messages."""
    if message_count <= 0:
        return 0
    known = [word & _WORD for word in words[: -(-message_count // 64)]]
    bits = int.from_bytes(pack(f"<{len(known)}Q", *known), "little")
    return bits & (1 << message_count) - 1


def words_of(bits: int) -> list[int]:
    """The ack_set of a number: unsigned 64-bit words, the last one not 0."""
    count = -(-bits.bit_length() // 64)
    return list(unpack(f"<{count}Q", bits.to_bytes(8 * count, "little")))


def signed_words_of(bits: int) -> list[int]:
    """As `words_of`, signed as on the wire."""
    count = -(-bits.bit_length() // 64)
    return list(unpack(f"<{count}q", bits.to_bytes(8 * count, "little")))


def _size_bytes(remaining: int) -> int:
    return _BATCH_OVERHEAD_BYTES + (remaining.bit_length() >> 3)
