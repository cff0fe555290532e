"""Messages that must not be delivered before a time (`deliver_at_time`).

Shared and Key_Shared subscriptions obey it, Exclusive and Failover ones ignore it, as in Pulsar.
Dispatch remembers the position of an entry that is not due, and queues it at its time. How many
entries wait is limited, for each subscription and for the broker. Above a limit the subscription
reads no further, until some are due or given up. Nothing is stored: after a restart dispatch begins
at the first unacknowledged entry and reads the waiting entries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from ...ledger import Position
from ...ledger.cursors.position_ranges import PositionRanges
from ...metadata import Buffer, Clock, MessageFormatError, read_message_metadata

#: The tag of MessageMetadata.deliver_at_time (field 19, varint). A header without these bytes
#: does not have the field, and need not be parsed.
DELIVER_AT_TAG = b"\x98\x01"
#: Headers are usually a few hundred bytes. A larger header is always parsed.
HEADER_PEEK_BYTES = 1024
#: Due entries that are passed on in one turn; the rest follow in later turns.
MAX_DUE_AT_ONCE = 1_000
#: Entries that each subscription may have wait, however many all others have.
SHARE_ENTRIES = 100
_WORD = (1 << 64) - 1


def may_have_field(headers_and_payload: Buffer, tag: bytes) -> bool:
    """Whether an entry's header may have the field with this tag, without parsing the header."""
    head = bytes(headers_and_payload[:HEADER_PEEK_BYTES])
    if tag in head:
        return True
    if len(headers_and_payload) <= HEADER_PEEK_BYTES:
        return False
    # The size field follows magic and checksum; without a checksum it is at the beginning.
    at = 6 if head[:2] == b"\x0e\x01" else 0
    return at + 4 + int.from_bytes(head[at : at + 4], "big") > HEADER_PEEK_BYTES


def deliver_at_ms(headers_and_payload: Buffer) -> int:
    """The time to deliver an entry, in milliseconds since the epoch; 0: at once."""
    if not may_have_field(headers_and_payload, DELIVER_AT_TAG):
        return 0
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        return 0
    return max(metadata.deliver_at_time, 0)


class DelayedTotal:
    """The number of entries that wait for their time, over all subscriptions of a broker."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._waiting: dict[DelayedEntries, None] = {}

    def has_room(self, asking: DelayedEntries) -> bool:
        """Whether one more entry may wait. If not, `asking` is told when there is room."""
        if self.count < self.limit or len(asking) < SHARE_ENTRIES:
            return True
        self._waiting[asking] = None
        return False

    def change(self, change: int) -> None:
        """Add to the number of waiting entries; `change` may be negative."""
        self.count += change
        if self._waiting and self.count < self.limit:
            waiting, self._waiting = self._waiting, {}
            for one in waiting:
                one.has_room_again()

    def forget(self, asking: DelayedEntries) -> None:
        """Forget a subscription that asked for room."""
        self._waiting.pop(asking, None)


class DelayedEntries:
    """Entries of one subscription that are not due yet: a set of positions, and a heap of times.

    The set, one bit each, alone says what waits; the heap's outdated items are dropped when they
    are met. An item is one number, of time, ledger id and entry id: a fifth of a tuple's memory.
    """

    def __init__(
        self,
        clock: Clock,
        become_due: Callable[[list[Position]], None],
        total: DelayedTotal,
        has_room_again: Callable[[], None] = lambda: None,
    ) -> None:
        """`become_due` gets what is due; `has_room_again` is called when `total` has room again."""
        self._clock = clock
        self._become_due = become_due
        self._total = total
        self.has_room_again = has_room_again
        self._positions = PositionRanges(lambda _, first, last: last - first + 1)
        self._heap: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for_ms = 0

    def __len__(self) -> int:
        return self._positions.weight

    def __contains__(self, position: Position) -> bool:
        return position in self._positions

    def __iter__(self) -> Iterator[Position]:
        for ledger_id, first, last in self._positions:
            for entry_id in range(first, last + 1):
                yield Position(ledger_id, entry_id)

    def may_take_more(self, most: int) -> bool:
        """Whether fewer than `most` entries wait, and the broker has room for more."""
        return len(self) < most and self._total.has_room(self)

    def holds_back(self, position: Position, time_ms: int) -> bool:
        """Remember an entry that is not due. Return whether it is held back."""
        if time_ms <= self._clock.now_ms():
            return False
        if position not in self._positions:
            self._positions.add_one(position, 1)
            heappush(self._heap, time_ms << 128 | position.ledger_id << 64 | position.entry_id)
            self._total.change(1)
            self._set_timer()
        return True

    def discard(self, position: Position) -> None:
        """Remove an acknowledged entry."""
        if position in self._positions:
            self._positions.remove_one(position, 1)
            self._left(1)

    def discard_up_to(self, last: Position) -> None:
        """Remove entries up to ``last``."""
        before = len(self)
        self._positions.remove_up_to(last)
        self._left(before - len(self))

    def _left(self, count: int) -> None:
        """Count entries that left the set; they may still be in the heap."""
        if not self._positions:
            self._heap.clear()
        elif len(self._heap) > 2 * len(self) + 64:
            self._heap = [item for item in self._heap if _position(item) in self._positions]
            heapify(self._heap)
        self._total.change(-count)

    def take_all(self) -> list[Position]:
        """Remove and return all entries, whether they are due or not."""
        positions = list(self)
        self.clear()
        return positions

    def clear(self) -> None:
        """Forget everything."""
        count = len(self)
        self._positions.clear()
        self._left(count)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check_now(self) -> None:
        """Pass on due entries at once, since the clock may have been set."""
        if self._timer is not None:
            self._timer.cancel()
            self._wake()

    def close(self) -> None:
        """Forget all entries, and drop the references to the callbacks."""
        self._total.forget(self)
        self.clear()
        self._become_due = lambda _: None
        self.has_room_again = lambda: None

    def _set_timer(self) -> None:
        if not self._heap:
            return
        first_ms = self._heap[0] >> 128
        if self._timer is not None:
            if self._timer_for_ms <= first_ms:
                return
            self._timer.cancel()
        self._timer_for_ms = first_ms
        delay_s = max(first_ms - self._clock.now_ms(), 1) / 1000
        # Checked again at least every second, since the clock may be set.
        self._timer = asyncio.get_running_loop().call_later(min(delay_s, 1.0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        due: list[Position] = []
        looked_at = 0
        while self._heap and self._heap[0] >> 128 <= now_ms and looked_at < MAX_DUE_AT_ONCE:
            position = _position(heappop(self._heap))
            looked_at += 1
            if position in self._positions:
                self._positions.remove_one(position, 1)
                due.append(position)
        self._set_timer()
        if due:
            self._become_due(due)
            self._total.change(-len(due))


def _position(item: int) -> Position:
    """The position in an item of the heap."""
    return Position(item >> 64 & _WORD, item & _WORD)
