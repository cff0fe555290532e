"""What clients make the broker keep: counted, for each connection and for all of them together.

Three kinds, each with a limit over all connections:

- **Input**: buffers of frames and HTTP bodies that have not arrived whole. At the limit the
  connection whose frame began first is closed: honest frames end soon, so it is the slowest one.
- **Output**: answers and messages that sockets have not taken. From half of the limit on, only
  connections with little unsent data are given more. At the limit those are closed that have read
  nothing for longest.
- **Kept state**: names, properties and key ranges of producers and consumers, and requests that
  are being worked on. It has a limit per connection, too. Beyond it a request is refused.

Publishes that wait for the disk are counted elsewhere (`receipts`), and so are unacknowledged
messages. docs/limits.md lists every limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ...proto.pulsar_api_pb2 import ServerError
from ..errors import RefusedError

__all__ = ["Account", "Holder", "InputMemory", "KeptMemory", "OutputMemory", "Reservation"]

#: Unsent data that a connection may have while output memory is scarce.
SHARE_BYTES = 64 * 1024
#: How old the figures may be by which output memory counts as scarce.
MEASURE_INTERVAL_S = 0.05
#: How many connections go on in one turn when output memory is free again.
RESUMED_AT_ONCE = 200


class Holder(Protocol):
    """A connection that holds input and output memory."""

    def give_up_input(self) -> None:
        """Give input memory back: close, if something has begun to arrive."""
        ...

    def give_up_output(self) -> None:
        """Give output memory back: close at once."""
        ...

    def unsent_bytes(self) -> int:
        """Data written and not yet taken by the socket."""
        ...

    def held_output_bytes(self) -> int:
        """The memory of that data: a buffer is held until its last byte is taken."""
        ...

    def output_freed(self) -> None:
        """Output memory is free again."""
        ...


class InputMemory:
    """Buffers of what has not arrived whole, over all connections."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        #: By connection, in the order in which what it holds began to arrive.
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size_bytes: int, *, begins: bool) -> None:
        """A connection holds so much now; `begins`: of something that has just begun to arrive."""
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
        """A connection holds nothing any more."""
        self.total_bytes -= self._held.pop(holder, 0)


class OutputMemory:
    """Unsent data over all connections.

    A connection's figure is taken at each of its writes, and of all of them when the sum is above
    half of the limit: by then many sockets may have taken what they were given.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        #: More than half of the limit is taken: only connections below their share go on.
        self.is_scarce = False
        #: By connection, those first that have read nothing for longest.
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, None] = {}
        self._measured_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wrote(self, holder: Holder) -> None:
        """A connection was given data."""
        size_bytes = holder.held_output_bytes()
        before = self._held.get(holder, 0)
        if size_bytes != before:
            self.total_bytes += size_bytes - before
            self._held[holder] = size_bytes
        if self.total_bytes * 2 > self.limit_bytes:
            self._measure_if_due()

    def has_room(self, holder: Holder) -> bool:
        """Whether a connection may be given data; if not, `output_freed` follows."""
        if not self.is_scarce or holder.unsent_bytes() <= SHARE_BYTES:
            return True
        self._waiting[holder] = None
        return False

    def forget(self, holder: Holder) -> None:
        """The connection is gone."""
        self._waiting.pop(holder, None)
        self.total_bytes -= self._held.pop(holder, 0)

    def close(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure_if_due(self) -> None:
        loop = asyncio.get_running_loop()
        due_at_s = self._measured_at_s + MEASURE_INTERVAL_S
        if self.total_bytes > self.limit_bytes or loop.time() >= due_at_s:
            self._measure()
        elif self._timer is None:
            self._timer = loop.call_at(due_at_s, self._measure)

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
        if self.total_bytes > self.limit_bytes:
            self._close_slowest()
        self.is_scarce = self.total_bytes * 2 > self.limit_bytes
        self._resume_waiting()
        if self.is_scarce or self._waiting:
            self._timer = loop.call_later(MEASURE_INTERVAL_S, self._measure)

    def _close_slowest(self) -> None:
        """Get well below the limit, so that the next measurement of all is some writes away."""
        for least_bytes in (SHARE_BYTES, 0):
            for holder, size_bytes in list(self._held.items()):
                if self.total_bytes <= self.limit_bytes * 7 // 8:
                    return
                if size_bytes > least_bytes:
                    self.forget(holder)
                    holder.give_up_output()

    def _resume_waiting(self) -> None:
        ready = []
        for holder in self._waiting:
            if not self.is_scarce or holder.unsent_bytes() <= SHARE_BYTES:
                ready.append(holder)
                if len(ready) == RESUMED_AT_ONCE:
                    break
        for holder in ready:
            self._waiting.pop(holder, None)
            holder.output_freed()


class Reservation:
    """Kept memory, given back when this object goes.

    It lives in whatever keeps the memory (a producer, a consumer, a running request), so that it
    is counted for exactly as long as that is alive, however its life ends.
    """

    __slots__ = ("_account", "size_bytes")

    def __init__(self, account: Account, size_bytes: int) -> None:
        self._account = account
        self.size_bytes = size_bytes

    def __del__(self) -> None:
        # The collector may run in any thread: the sums are changed only where they are used.
        self._account.kept.returned.append((self._account, self.size_bytes))


class Account:
    """One connection's kept state."""

    __slots__ = ("kept", "reserved_bytes")

    def __init__(self, kept: KeptMemory) -> None:
        self.kept = kept
        self.reserved_bytes = 0

    @property
    def total_bytes(self) -> int:
        """What this connection keeps."""
        self.kept.settle()
        return self.reserved_bytes

    def reserve(self, what: str, size_bytes: int) -> Reservation:
        """Count `size_bytes` in, for `what`.

        Raises `RefusedError`: NotAllowedError beyond the connection's limit, ServiceNotReady,
        after which clients try again, beyond that of all connections.
        """
        kept = self.kept
        kept.settle()
        if self.reserved_bytes + size_bytes > kept.limit_per_connection_bytes:
            code, whose = ServerError.NotAllowedError, "this connection"
            limit_bytes, total_bytes = kept.limit_per_connection_bytes, self.reserved_bytes
        elif kept.reserved_bytes + size_bytes > kept.limit_bytes:
            code, whose = ServerError.ServiceNotReady, "all connections"
            limit_bytes, total_bytes = kept.limit_bytes, kept.reserved_bytes
        else:
            self.reserved_bytes += size_bytes
            kept.reserved_bytes += size_bytes
            return Reservation(self, size_bytes)
        raise RefusedError(
            code,
            f"no memory for the {what}: {size_bytes} bytes above the {total_bytes} of {whose} "
            f"are more than the limit of {limit_bytes}",
        )


class KeptMemory:
    """Kept state over all connections."""

    __slots__ = ("limit_bytes", "limit_per_connection_bytes", "reserved_bytes", "returned")

    def __init__(self, limit_bytes: int, limit_per_connection_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.limit_per_connection_bytes = limit_per_connection_bytes
        self.reserved_bytes = 0
        #: Reservations that went and are not taken off the sums yet.
        self.returned: deque[tuple[Account, int]] = deque()

    @property
    def total_bytes(self) -> int:
        """What all connections keep."""
        self.settle()
        return self.reserved_bytes

    def settle(self) -> None:
        """Take what went off the sums."""
        while self.returned:
            account, size_bytes = self.returned.popleft()
            account.reserved_bytes -= size_bytes
            self.reserved_bytes -= size_bytes
