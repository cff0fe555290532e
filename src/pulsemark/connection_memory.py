"""Limits of the memory that connections hold: input, output and publishes in flight.

Each kind has a limit over all connections, those of Pulsar's and Kafka's clients together:

- **Input**: buffers of incomplete frames and HTTP bodies. At the limit the broker closes the
  connection whose frame began first. Frames of normal clients end soon, so this is the slowest.
- **Output**: answers and messages that the sockets have not accepted yet. Above half of the limit
  only connections with little unsent data get more. At the limit the broker closes the
  connections that have read nothing for the longest time. Readers of entries reserve the memory
  before they read: many readers at once get no more than readers one by one.
- **Publishes in flight**: the bytes between a publish and its receipt. Above the limit a connection
  is not read until half of them are durable.

docs/limits.md lists every limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

#: Unsent data that a connection may have while output memory is scarce.
SHARE_BYTES = 64 * 1024
#: How often all connections are measured, at most, to decide whether output memory is scarce.
MEASURE_INTERVAL_S = 0.05
#: The least that a reader can reserve while output memory is scarce.
LEAST_READ_BYTES = 1024 * 1024
#: How many readers that wait for memory try again when some is given back.
WOKEN_AT_ONCE = 8
#: How many connections resume in one turn when output memory is free again.
RESUMED_AT_ONCE = 200


class Holder(Protocol):
    """A connection that holds input and output memory."""

    def give_up_input(self) -> None:
        """Free input memory: close the connection if something has begun to arrive."""

    def give_up_output(self) -> None:
        """Free output memory: close the connection at once."""

    def unsent_bytes(self) -> int:
        """Data written that the socket has not accepted yet."""

    def held_output_bytes(self) -> int:
        """The memory of unsent data. A buffer is held until its last byte is sent."""

    def output_freed(self) -> None:
        """Output memory is free again."""


class Publisher(Protocol):
    """A connection with publishes in flight."""

    def publishes_changed(self) -> None:
        """The number of publishes in flight changed: reading may have to stop, or may go on."""


class Throttled(Protocol):
    """A connection that can be paused."""

    def throttle(self) -> None:
        """Stop reading until `unthrottle`."""

    def unthrottle(self) -> None:
        """Read again."""


class InputMemory:
    """Buffers of incomplete frames and bodies, over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        #: Bytes by connection, ordered by when its incomplete frame began to arrive.
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size_bytes: int, *, begins: bool) -> None:
        """Set the bytes that a connection holds. `begins`: its frame has just begun to arrive."""
        held = self._held
        before = held.pop(holder, 0) if begins else held.get(holder, 0)
        if size_bytes:
            held[holder] = size_bytes
        elif before and not begins:
            del held[holder]
        self.total_bytes += size_bytes - before
        while self.total_bytes > self.limit_bytes and held:
            oldest = next(iter(held))
            self.forget(oldest)
            oldest.give_up_input()

    def forget(self, holder: Holder) -> None:
        """Remove a connection that holds no input."""
        self.total_bytes -= self._held.pop(holder, 0)


class OutputMemory:
    """Unsent data over all connections.

    A connection is measured at each of its writes. All connections are measured when the sum is
    above half of the limit: meanwhile many sockets may have sent their data.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        #: More than half of the limit is used: only connections below SHARE_BYTES get more.
        self.is_scarce = False
        #: Bytes by connection; first those that have read nothing for the longest time.
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, None] = {}
        #: The part of the sum that belongs to connections which are being closed.
        self._closing: dict[Holder, int] = {}
        self._closing_bytes = 0
        #: Set aside for entries that are being read, and not written yet.
        self.reserved_bytes = 0
        self._readers: deque[asyncio.Future[None]] = deque()
        self._measured_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wrote(self, holder: Holder) -> None:
        """Data was written to a connection."""
        size_bytes = holder.held_output_bytes()
        before = self._held.get(holder, 0)
        if size_bytes != before:
            self.total_bytes += size_bytes - before
            self._held[holder] = size_bytes
        if self.total_bytes * 2 > self.limit_bytes:
            self._measure_if_due()

    def has_room(self, holder: Holder) -> bool:
        """Whether more may be written to a connection; if not, `output_freed` is called later."""
        if self._has_room(holder):
            return True
        self._waiting[holder] = None
        self._measure_soon()
        return False

    def _has_room(self, holder: Holder) -> bool:
        """Always without scarcity; else only below the limit and with little unsent data."""
        if not self.is_scarce:
            return True
        return self.total_bytes <= self.limit_bytes and holder.unsent_bytes() <= SHARE_BYTES

    def forget(self, holder: Holder) -> None:
        """Remove a connection that has ended."""
        self._waiting.pop(holder, None)
        closing_bytes = self._closing.pop(holder, 0)
        self._closing_bytes -= closing_bytes
        self.total_bytes -= self._held.pop(holder, 0) + closing_bytes

    def reserve(self, wanted_bytes: int) -> int:
        """Set memory aside for entries that are read to be sent. Return how much, at most `wanted`.

        It is less while memory is scarce, and 0 if it is used up: try again after `room_freed`.
        The caller gives it back (`give_back`) when what was read is written, or dropped.
        """
        used_bytes = self.total_bytes + self.reserved_bytes
        granted = min(wanted_bytes, max(self.limit_bytes // 2 - used_bytes, LEAST_READ_BYTES))
        if self.reserved_bytes and used_bytes + granted > self.limit_bytes:
            return 0
        self.reserved_bytes += granted
        return granted

    def room_freed(self) -> asyncio.Future[None]:
        """A future that is done when `reserve` may succeed again."""
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(freed)
        self._measure_if_due()
        return freed

    def reserve_more(self, size_bytes: int) -> None:
        """Reserve more, unconditionally: an entry is larger than expected, and sent whole."""
        self.reserved_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release reserved memory."""
        self.reserved_bytes -= size_bytes
        self._wake_readers()

    def _wake_readers(self) -> None:
        for _ in range(min(WOKEN_AT_ONCE, len(self._readers))):
            freed = self._readers.popleft()
            if not freed.done():
                freed.set_result(None)

    def close(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure_if_due(self) -> None:
        loop = asyncio.get_running_loop()
        due_at_s = self._measured_at_s + MEASURE_INTERVAL_S
        kept_bytes = self.total_bytes - self._closing_bytes
        if kept_bytes > self.limit_bytes or loop.time() >= due_at_s:
            self._measure()
        else:
            self._measure_soon()

    def _measure_soon(self) -> None:
        if self._timer is None:
            due_at_s = self._measured_at_s + MEASURE_INTERVAL_S
            self._timer = asyncio.get_running_loop().call_at(due_at_s, self._measure)

    def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        self.close()
        self._measured_at_s = loop.time()
        held = self._held
        for holder, before in list(held.items()):
            size_bytes = holder.held_output_bytes()
            if size_bytes == before:
                continue
            self.total_bytes += size_bytes - before
            if size_bytes < before:
                del held[holder]
            if size_bytes:
                held[holder] = size_bytes
        if self.total_bytes - self._closing_bytes > self.limit_bytes:
            self._close_slowest()
        self.is_scarce = self.total_bytes * 2 > self.limit_bytes
        self._resume_waiting()
        self._wake_readers()
        if self.is_scarce or self._waiting or self._readers:
            self._timer = loop.call_later(MEASURE_INTERVAL_S, self._measure)

    def _close_slowest(self) -> None:
        """Get well below the limit, so that the next write does not need another measurement.

        What a closed connection held is free when the connection is gone, in a later turn of the
        loop. Until then it counts: others must not be given that memory before.
        """
        for least_bytes in (SHARE_BYTES, 0):
            for holder, size_bytes in list(self._held.items()):
                if self.total_bytes - self._closing_bytes <= self.limit_bytes * 7 // 8:
                    return
                if size_bytes > least_bytes:
                    self._waiting.pop(holder, None)
                    self._closing[holder] = self._held.pop(holder)
                    self._closing_bytes += size_bytes
                    holder.give_up_output()

    def _resume_waiting(self) -> None:
        ready = []
        for holder in self._waiting:
            if self._has_room(holder):
                ready.append(holder)
                if len(ready) == RESUMED_AT_ONCE:
                    break
        for holder in ready:
            self._waiting.pop(holder, None)
            holder.output_freed()


class PublishBudget:
    """Bytes in flight between a SEND and its receipt, over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes_in_flight = 0
        self._paused: set[Publisher] = set()

    def is_exhausted_for(self, session: Publisher) -> bool:
        """Whether a session must stop reading; `publishes_changed` says when it may go on."""
        if self.bytes_in_flight <= self.limit_bytes // 2:
            return False
        if self.bytes_in_flight > self.limit_bytes:
            self._paused.add(session)
        return session in self._paused

    def give_back(self, size_bytes: int) -> None:
        """Subtract finished publishes. At half of the limit all paused sessions go on."""
        self.bytes_in_flight -= size_bytes
        if self._paused and self.bytes_in_flight <= self.limit_bytes // 2:
            paused, self._paused = self._paused, set()
            for session in paused:
                session.publishes_changed()

    def forget(self, session: Publisher) -> None:
        """Remove a session that has ended."""
        self._paused.discard(session)
