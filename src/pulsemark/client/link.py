"""A socket with a Connection(Role.CLIENT), for one thread. Every wait has a timeout.

The socket is non-blocking: while this side writes, it also reads. So there is no deadlock with a
peer that reads nothing until its answers are read. Events go to one callback, in order.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

from ..wire import Buffer, Connection, Event, Role
from .errors import ConnectionLostError, WaitTimeoutError

T = TypeVar("T")

# Queued bytes are written when there are this many, or when a call waits.
_FLUSH_SIZE_BYTES = 64 * 1024
_SEND_SIZE_BYTES = 256 * 1024


class Link:
    """Owns `sock`; calls `on_event` for each event, only from `wait`, `flush` and `pump`."""

    def __init__(
        self, sock: socket.socket, on_event: Callable[[Event], None], timeout_s: float
    ) -> None:
        sock.setblocking(False)
        self.connection = Connection(Role.CLIENT)
        self.timeout_s = timeout_s
        self.is_closed = False
        self._sock = sock
        self._on_event = on_event
        self._out = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def close(self) -> None:
        """Close the socket; bytes not flushed are dropped. A lost connection closes it, too."""
        self.is_closed = True
        self._sock.close()

    def write(self, *parts: Buffer) -> None:
        """Queue bytes. Large amounts are written now, the rest at the next wait or flush."""
        size_bytes = len(self._out)
        try:
            for part in parts:
                self._out += part
        except BaseException:  # a signal's; the other side must not see a part of a frame
            del self._out[size_bytes:]
            raise
        if len(self._out) >= _FLUSH_SIZE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all queued bytes, and read meanwhile.

        Raises WaitTimeoutError, ConnectionLostError, or the ProtocolError of a frame read.
        """
        deadline = time.monotonic() + self.timeout_s
        while self._out:
            what = "room to write"
            if not self._write_some(what):
                self._wait_ready(select.POLLIN | select.POLLOUT, what, deadline, self.timeout_s)
                self._read_some(what)

    def fileno(self) -> int:
        """The socket's descriptor, to wait for several links at once."""
        return self._sock.fileno()

    @property
    def has_unwritten(self) -> bool:
        """Whether queued bytes wait for the socket."""
        return bool(self._out)

    def pump(self) -> None:
        """Write and read what can be written and read now, without waiting.

        Raises ConnectionLostError, or the ProtocolError of a frame read.
        """
        if self.is_closed:
            raise ConnectionLostError("answers")
        while self._out and self._write_some("room to write"):
            pass
        self._read_some("answers")

    def wait(self, take: Callable[[], T | None], what: str, timeout_s: float | None = None) -> T:
        """Call `take` after each batch of events until it returns a value that is not None.

        Return that value. Raises WaitTimeoutError, ConnectionLostError, or the ProtocolError of a
        frame read.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        self.flush()
        while (found := take()) is None:
            if not self._read_some(what):
                self._wait_ready(select.POLLIN, what, deadline, limit_s)
            elif time.monotonic() > deadline:
                raise WaitTimeoutError(what, limit_s)
            self.flush()
        return found

    def _wait_ready(self, mask: int, what: str, deadline: float, limit_s: float) -> None:
        """Sleep until the socket can do one of `mask`."""
        left_s = deadline - time.monotonic()
        if self.is_closed:
            raise ConnectionLostError(what)
        self._poll.modify(self._sock, mask)
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            raise WaitTimeoutError(what, limit_s)

    def _write_some(self, what: str) -> bool:
        """Write some queued bytes; False if the socket accepts none now."""
        try:
            with memoryview(self._out) as queued:
                size = self._sock.send(queued[:_SEND_SIZE_BYTES])
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            self.close()
            raise ConnectionLostError(what) from error
        del self._out[:size]
        return True

    def _read_some(self, what: str) -> bool:
        """Read once and pass the events on; False if there is nothing to read now."""
        try:
            size = self._sock.recv_into(self.connection.get_buffer())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self.close()
            raise ConnectionLostError(what) from error
        if size == 0:
            self.close()
            raise ConnectionLostError(what)
        self.connection.buffer_updated(size)
        for event in self.connection.events():
            self._on_event(event)
        return True
