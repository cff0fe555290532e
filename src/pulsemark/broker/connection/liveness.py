"""Decides from times whether a connection has been silent or slow for too long.

- Silent for the keep-alive interval: the broker sends a PING. Silent for another interval: the
  broker closes the connection.
- No CONNECT within the handshake timeout: the broker closes the connection.
- A frame that has begun and stays incomplete: the broker closes the connection after
  `stalled_frame_timeout_ms`, plus one second for each `min_frame_rate_bytes_per_s` received.

These are the times of one connection, without its socket: the session reports events, and asks
about once a second what to do. All times are the event loop's, in seconds.
"""

from __future__ import annotations

import asyncio
import enum

from ..configuration.config import BrokerConfig

__all__ = ["Liveness", "NextInput", "Silence"]


#: How long a client that has ended may still be read, if the broker pauses only now and then.
ENDED_GRACE_S = 2.0


class Silence(enum.Enum):
    """What to do about a connection's silence."""

    FINE = enum.auto()
    #: Send a PING.
    PING = enum.auto()
    #: The PING was not answered.
    DEAD = enum.auto()


class Liveness:
    """One connection's times."""

    __slots__ = (
        "_closed_at_s",
        "_config",
        "_ended_at_s",
        "_frame_since_s",
        "_opened_at_s",
        "_pinged_at_s",
        "_unsent",
        "received_at_s",
    )

    def __init__(self, config: BrokerConfig, now_s: float) -> None:
        self._config = config
        self._opened_at_s = self.received_at_s = now_s
        self._closed_at_s = 0.0
        self._pinged_at_s: float | None = None
        #: When the client's end was first seen while the broker did not read.
        self._ended_at_s: float | None = None
        #: When the incomplete frame began to arrive.
        self._frame_since_s: float | None = None
        #: Since when the unsent bytes have not changed, and how many they are.
        self._unsent: tuple[float, int] = (0.0, 0)

    def closed(self, now_s: float) -> None:
        """The connection is closed, except for data still to be sent."""
        self._closed_at_s = now_s

    def frame(self, *, is_open: bool, is_new: bool) -> None:
        """Called after a read: whether an incomplete frame has begun, and whether it is new."""
        if not is_open:
            self._frame_since_s = None
        elif is_new or self._frame_since_s is None:
            self._frame_since_s = self.received_at_s

    def reading_resumed(self, now_s: float) -> None:
        """Reading was paused and goes on. The pause does not count as the client's silence."""
        self.received_at_s = now_s
        if self._frame_since_s is not None:
            self._frame_since_s = now_s

    def is_closing_late(self, now_s: float) -> bool:
        """Whether data unsent at the close has had its time (the keep-alive interval)."""
        return (now_s - self._closed_at_s) * 1000 >= self._config.keep_alive_interval_ms

    def is_handshake_late(self, now_s: float) -> bool:
        """Whether the time for CONNECT is over."""
        return (now_s - self._opened_at_s) * 1000 >= self._config.handshake_timeout_ms

    def is_frame_late(self, now_s: float, arrived_bytes: int) -> bool:
        """Whether the time for a frame of which `arrived_bytes` have arrived is over."""
        if self._frame_since_s is None:
            return False
        earned_s = arrived_bytes / self._config.min_frame_rate_bytes_per_s
        return (
            now_s - self._frame_since_s >= self._config.stalled_frame_timeout_ms / 1000 + earned_s
        )

    def silence(self, now_s: float) -> Silence:
        """What to do now. A caller that gets PING must send it: it counts as sent."""
        if self._pinged_at_s is not None and self._pinged_at_s <= self.received_at_s:
            self._pinged_at_s = None
        interval_ms = self._config.keep_alive_interval_ms
        if self._pinged_at_s is not None:
            is_dead = (now_s - self._pinged_at_s) * 1000 >= interval_ms
            return Silence.DEAD if is_dead else Silence.FINE
        if (now_s - self.received_at_s) * 1000 < interval_ms:
            return Silence.FINE
        self._pinged_at_s = now_s
        return Silence.PING

    def is_over(self, now_s: float, *, has_ended: bool) -> bool:
        """Whether a client that is not read has ended, and what it had sent has had its time."""
        if not has_ended:
            return False
        if self._ended_at_s is None:
            self._ended_at_s = now_s
        return now_s - self._ended_at_s >= ENDED_GRACE_S

    def reads_nothing(self, now_s: float, unsent_bytes: int) -> bool:
        """Whether the client has taken none of what is unsent for two keep-alive intervals."""
        since_s, size_bytes = self._unsent
        if unsent_bytes != size_bytes or not since_s:
            self._unsent = (now_s, unsent_bytes)
            return False
        return (now_s - since_s) * 1000 >= 2 * self._config.keep_alive_interval_ms


class NextInput:
    """Lets coroutines wait for the next bytes of a client that was sent a PING."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a coroutine waits already, so that a PING has been sent."""
        return self._next is not None and not self._next.done()

    def arrived(self) -> None:
        """Bytes arrived, or the connection has ended."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return when the next bytes arrive. Raises TimeoutError."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait_for(asyncio.shield(self._next), timeout_s)
