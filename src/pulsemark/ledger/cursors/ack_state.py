"""What a cursor asks of its log, and batches that are acknowledged in part.

Of such a batch the open messages are one number, bit n for message n (Pulsar's ack_set). Batches
are grouped in blocks of 1024 entries, so that dropping all up to a position drops whole blocks,
without a look at each batch. Memory is limited, because a consumer chooses which messages to
acknowledge, and a batch can claim to have millions of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from struct import pack, unpack
from typing import Protocol

from ..position import Position
from .position_ranges import runs_of


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
