"""Messages that must not be delivered before a time (`deliver_at_time`).

Shared and Key_Shared subscriptions obey it, Exclusive and Failover ones ignore it, as in Pulsar.
When dispatch reads an entry that is not due, its position is remembered. At its time it goes into
the queue of entries to be delivered. One timer serves all entries of a subscription.

Nothing is stored: after a restart dispatch begins at the first unacknowledged entry and reads the
waiting entries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from ...ledger import Position
from ...metadata import Buffer, Clock, MessageFormatError, read_message_metadata

__all__ = ["DelayedEntries", "deliver_at_ms", "may_have_field"]

#: The tag of MessageMetadata.deliver_at_time (field 19, varint). A header without these bytes
#: does not have the field, and need not be parsed.
DELIVER_AT_TAG = b"\x98\x01"
#: Headers are usually a few hundred bytes. A larger header is always parsed.
HEADER_PEEK_BYTES = 1024
#: Due entries that are passed on in one turn; the rest follow in later turns.
MAX_DUE_AT_ONCE = 1_000


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


class DelayedEntries:
    """Entries of one subscription that are not due yet."""

    def __init__(self, clock: Clock, become_due: Callable[[list[Position]], None]) -> None:
        self._clock = clock
        self._become_due = become_due
        self._heap: list[tuple[int, Position]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def holds_back(self, position: Position, time_ms: int) -> bool:
        """Whether an entry has to wait. If so, it is remembered."""
        if time_ms <= self._clock.now_ms():
            return False
        heappush(self._heap, (time_ms, position))
        self._set_timer()
        return True

    def take_all(self) -> list[Position]:
        """All entries, which need not wait any more."""
        positions = [position for _, position in self._heap]
        self.clear()
        return positions

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check_now(self) -> None:
        """Pass on what is due; the clock may have been moved."""
        if self._timer is not None:
            self._timer.cancel()
            self._wake()

    def close(self) -> None:
        """Forget all entries, and drop the reference to the callback."""
        self.clear()
        self._become_due = lambda _: None

    def _set_timer(self) -> None:
        if not self._heap:
            return
        first_ms = self._heap[0][0]
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
        while self._heap and self._heap[0][0] <= now_ms and len(due) < MAX_DUE_AT_ONCE:
            due.append(heappop(self._heap)[1])
        self._set_timer()
        if due:
            self._become_due(due)
