"""Ends a connection so that its client gets the last answers.

A socket that is closed while it has bytes that were not read makes the kernel send a reset, and a
reset throws away what the client has received and not read yet. So a connection that is to be
closed only ends its own direction first. What the client still sends is read and dropped, until
the client closes too, or has sent as much as a request may have, or `LINGER_S` is over.
"""

from __future__ import annotations

import asyncio

__all__ = ["LINGER_S", "Lingering"]

LINGER_S = 1.0


class Lingering:
    """The end of a connection."""

    _transport: asyncio.Transport | None
    _loop: asyncio.AbstractEventLoop
    #: How many bytes may still be dropped; None: the connection does not end yet.
    _room_bytes: int | None = None
    _ends_at_s = 0.0

    @property
    def is_lingering(self) -> bool:
        """Whether the broker has ended the connection, and the client has not closed it yet."""
        return self._room_bytes is not None

    def linger(self, most_bytes: int) -> None:
        """Send buffered data, tell the client of the end, and wait for the client's."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.is_lingering:
            return
        if not transport.can_write_eof():  # TLS
            transport.close()
            return
        self._room_bytes, self._ends_at_s = most_bytes, self._loop.time() + LINGER_S
        transport.resume_reading()
        transport.write_eof()

    def throw_away(self, size_bytes: int) -> None:
        """The client has sent more after the end."""
        if self._room_bytes is not None:
            self._room_bytes -= size_bytes
            if self._room_bytes < 0:
                self.stop_lingering()

    def check_linger(self, now_s: float) -> None:
        """Close, if the client had enough time."""
        if self._room_bytes is not None and now_s >= self._ends_at_s:
            self.stop_lingering()

    def stop_lingering(self) -> None:
        """Send buffered data, then close."""
        self._room_bytes = None
        if self._transport is not None:
            self._transport.close()
