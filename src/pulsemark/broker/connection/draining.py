"""The end of a connection after the half-close.

A socket that is closed while input has not been read resets its connection, and the system throws
away what the peer has not got yet: receipts for stored entries among it. So the broker half-closes
first (the peer reads everything, then the end), and reads on, dropping what comes, until the peer
closes its side, too, or has everything and is silent.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

__all__ = ["Draining"]

#: A peer that has everything and is silent for so long has nothing more to send.
QUIET_S = 0.1
DROPPED_SIZE_BYTES = 64 * 1024
_INT = struct.Struct("i")


class Draining:
    """Drops what a connection still receives, and says when it may be closed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Half-close, once what is buffered is sent, and read on."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._received_at_s = self._loop.time()
        #: Where input goes.
        self.buffer = memoryview(bytearray(DROPPED_SIZE_BYTES))
        transport.write_eof()
        transport.resume_reading()

    def received(self) -> None:
        """Something came, and is dropped."""
        self._received_at_s = self._loop.time()

    @property
    def is_done(self) -> bool:
        """Whether the peer's system has everything and the peer is silent."""
        return (
            self._loop.time() - self._received_at_s >= QUIET_S
            and not self._transport.get_write_buffer_size()
            and not _unconfirmed_bytes(self._transport)
        )


def _unconfirmed_bytes(transport: asyncio.Transport) -> int:
    """What the socket has taken and the peer's system has not confirmed."""
    link = transport.get_extra_info("socket")
    if link is None or link.fileno() < 0:
        return 0
    answer = fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
    return int(_INT.unpack(answer)[0])
