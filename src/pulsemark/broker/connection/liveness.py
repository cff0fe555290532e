"""When a connection last did what, and when it has been quiet or slow for too long.

A connection that says nothing for the keep-alive interval is sent a PING, and closed when another
interval goes by in silence. One without CONNECT is closed after its own timeout, and so is one
whose frame does not become whole: it has `stalled_frame_timeout_ms`, and a second more for each
`min_frame_rate_bytes_per_s` that has arrived.

Plain times of one connection, without sockets: the session tells what happens and asks about once
a second what follows. All times are the event loop's, in seconds.
"""

from __future__ import annotations

import asyncio
import enum

from ..configuration.config import BrokerConfig

__all__ = ["Hearing", "Liveness", "Silence"]


class Silence(enum.Enum):
    """What a connection's silence calls for."""

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
        #: When the frame began that is arriving now.
        self._frame_since_s: float | None = None
        #: How much was unsent, and since when.
        self._unsent: tuple[float, int] = (0.0, 0)

    def closed(self, now_s: float) -> None:
        """The connection is closed, but for what is still unsent."""
        self._closed_at_s = now_s

    def frame(self, *, is_open: bool, is_new: bool) -> None:
        """After a read: whether a frame has begun and is not whole, and whether it is a new one."""
        if not is_open:
            self._frame_since_s = None
        elif is_new or self._frame_since_s is None:
            self._frame_since_s = self.received_at_s

    def reading_resumed(self, now_s: float) -> None:
        """Nothing was read for a while: neither the client nor its frame could go on."""
        self.received_at_s = now_s
        if self._frame_since_s is not None:
            self._frame_since_s = now_s

    def is_closing_late(self, now_s: float) -> bool:
        """Whether what was unsent at the end had its time."""
        return (now_s - self._closed_at_s) * 1000 >= self._config.keep_alive_interval_ms

    def is_handshake_late(self, now_s: float) -> bool:
        """Whether CONNECT should have come."""
        return (now_s - self._opened_at_s) * 1000 >= self._config.handshake_timeout_ms

    def is_frame_late(self, now_s: float, arrived_bytes: int) -> bool:
        """Whether a frame of which so much has arrived should be whole."""
        if self._frame_since_s is None:
            return False
        earned_s = arrived_bytes / self._config.min_frame_rate_bytes_per_s
        return (
            now_s - self._frame_since_s >= self._config.stalled_frame_timeout_ms / 1000 + earned_s
        )

    def silence(self, now_s: float) -> Silence:
        """What the time since the last bytes calls for; PING is taken for sent."""
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

    def reads_nothing(self, now_s: float, unsent_bytes: int) -> bool:
        """Whether the client has taken none of what is unsent for two keep-alive intervals."""
        since_s, size_bytes = self._unsent
        if unsent_bytes != size_bytes or not since_s:
            self._unsent = (now_s, unsent_bytes)
            return False
        return (now_s - since_s) * 1000 >= 2 * self._config.keep_alive_interval_ms


class Hearing:
    """Waiting for the next bytes of a client that was asked whether it is there."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits already, so that the client has been asked."""
        return self._next is not None and not self._next.done()

    def heard(self) -> None:
        """Bytes came, or none will come any more."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return with the next bytes. Raises TimeoutError."""
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait_for(asyncio.shield(self._next), timeout_s)
