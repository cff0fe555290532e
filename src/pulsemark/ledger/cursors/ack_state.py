"""The log as a cursor needs it, and batches that are acknowledged in part.

The open messages of such a batch are one number, bit n for message n (Pulsar's ack_set). Memory is
limited, because a consumer chooses which messages to acknowledge, and a batch can claim to have
millions of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from struct import pack, unpack
from typing import Protocol

from ..position import Position
from .position_ranges import runs_of


class CursorLog(Protocol):
    """A log as a cursor needs it: a `TopicLog` or its compacted form."""

    @property
    def tail_cuts(self) -> object:
        """A counter that changes when entries may have been removed other than from the head."""

    @property
    def aborts(self) -> int: ...  # noqa: D102
    @property
    def stable_end(self) -> Position: ...  # noqa: D102
    @property
    def end_position(self) -> Position: ...  # noqa: D102
    @property
    def last_position(self) -> Position | None: ...  # noqa: D102
    def next_position(self, position: Position) -> Position: ...  # noqa: D102
    def previous_position(self, position: Position) -> Position: ...  # noqa: D102
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
_WORD = 2**64 - 1


class PartialBatches:
    """Open messages by position, as numbers whose set bits are the open ones."""

    def __init__(self) -> None:
        self._bits: dict[Position, int] = {}
        self._positions: list[Position] = []
        """In order."""
        self.size_bytes = 0

    def get(self, position: Position) -> int | None:
        """The open messages of a batch; None: it is not acknowledged in part."""
        return self._bits.get(position)

    def put(self, position: Position, remaining: int) -> bool:
        """Set the open messages of a batch. Return False, without a change, if there is no room."""
        before = self._bits.get(position)
        size_bytes = self.size_bytes + _size_bytes(remaining)
        if before is not None:
            size_bytes -= _size_bytes(before)
        if size_bytes > max(MAX_BYTES, self.size_bytes):
            return False
        if before is None:
            insort(self._positions, position)
        self._bits[position] = remaining
        self.size_bytes = size_bytes
        return True

    def pop(self, position: Position) -> None:
        """Forget a batch."""
        remaining = self._bits.pop(position, None)
        if remaining is not None:
            self.size_bytes -= _size_bytes(remaining)
            del self._positions[bisect_left(self._positions, position)]

    def remove_up_to(self, position: Position) -> None:
        """Forget every batch at or before ``position``."""
        count = bisect_right(self._positions, position)
        for gone in self._positions[:count]:
            self.size_bytes -= _size_bytes(self._bits.pop(gone))
        del self._positions[:count]

    def remove_if(self, is_needless: Callable[[Position], bool]) -> None:
        """Forget the batches for which ``is_needless`` is true."""
        for position in list(filter(is_needless, self._positions)):
            self.pop(position)

    def clear(self) -> None:
        """Forget everything."""
        self._bits.clear()
        self._positions.clear()
        self.size_bytes = 0

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        """(position, open messages) of every batch, in order."""
        return ((position, self._bits[position]) for position in self._positions)


def bits_of(words: Sequence[int], message_count: int) -> int:
    """Make a number of an ack_set's 64-bit words, cut to a batch's messages."""
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
