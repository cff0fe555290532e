"""What a cursor needs from its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..position import Position
from .position_ranges import runs_of


class CursorLog(Protocol):
    """What a cursor needs from its log: a topic's log, or its compacted form.

    See `TopicLog` for what each one means.
    """

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
    """How many set bits are entries of the log; the lowest bit is the entry at ``start``.

    Acknowledged entries may have been cut off the log's tail, or left out of its compacted form.
    """
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
