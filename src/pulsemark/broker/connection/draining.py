"""The end of a connection after the half-close.

If a socket is closed while it has unread input, the system resets the connection and discards all
data that the peer has not received yet. That data may include receipts for stored entries. So the
broker half-closes first: the peer reads everything, then the end of the stream. The broker goes on
reading and drops the input, until the peer closes its side, or until the peer has received
everything and is silent.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

__all__ = ["Draining", "unconfirmed_bytes"]

#: A peer that has received everything and is silent for this time has nothing more to send.
QUIET_S = 0.1
DROPPED_SIZE_BYTES = 64 * 1024
_INT = struct.Struct("i")


class Draining:
    """Drops what a connection still receives, and knows when it may be closed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Half-close after the buffered data is sent, and go on reading.

        TLS has no half-closed connections: the client learns of the end when it is closed.
        """
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._received_at_s = self._loop.time()
        #: Receives the input, which is dropped.
        self.buffer = memoryview(bytearray(DROPPED_SIZE_BYTES))
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()

    def received(self) -> None:
        """Input arrived and is dropped."""
        self._received_at_s = self._loop.time()

    @property
    def is_done(self) -> bool:
        """Whether the peer's system has received everything and the peer is silent."""
        return (
            self._loop.time() - self._received_at_s >= QUIET_S
            and not self._transport.get_write_buffer_size()
            and not unconfirmed_bytes(self._transport)
        )


def unconfirmed_bytes(transport: asyncio.Transport) -> int:
    """Bytes in the socket's send queue that the peer's system has not acknowledged (TIOCOUTQ)."""
    link = transport.get_extra_info("socket")
    if link is None or link.fileno() < 0:
        return 0
    answer = fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
    return int(_INT.unpack(answer)[0])
