"""One connection to a bookie: frames out, answers in, time limits."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import cast

from ....metadata.buffers import Buffer
from .adds import AddRun, AddsDone
from .errors import (
    BookieOverloadedError,
    BookieProtocolError,
    BookieTlsError,
    BookieUnreachableError,
    BookKeeperError,
)
from .exchange import Done, Exchange, Numbers
from .frames import FrameReader, Outgoing, frame_start
from .options import ClientOptions

# An answer to a read is an entry that fitted into a frame once, and a few fields.
_ANSWER_ROOM_BYTES = 64 * 1024


class BookieConnection(asyncio.Protocol):
    """A connection that is up, until `closed`.

    Args:
        bookie: its id, for errors.
        loop: the loop that it belongs to.
        numbers: the client's, of requests.
        ended: called once, when no request can be sent any more.
    """

    def __init__(
        self,
        bookie: str,
        options: ClientOptions,
        loop: asyncio.AbstractEventLoop,
        numbers: Numbers,
        ended: Callable[[BookieConnection], None],
    ) -> None:
        self._bookie = bookie
        self._options = options
        self._loop = loop
        self._ended = ended
        self._exchange = Exchange(bookie, numbers)
        self._reader = FrameReader(options.max_frame_bytes + _ANSWER_ROOM_BYTES)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._heard_s = 0.0
        self._error: BookKeeperError | None = None

    # -- for the user -----------------------------------------------------------------------------

    def send(self, request: Outgoing, done: Done) -> None:
        """Send a request; `done` is called later, or at once if the connection is over."""
        if (refusal := self._refusal(request.size_bytes)) is not None:
            done(refusal)
            return
        now = self._loop.time()
        number = self._exchange.begin(request, done, now)
        self._write((frame_start(request, number), *request.parts), now, request.timeout_ms)

    def send_adds(self, run: AddRun, done: AddsDone) -> None:
        """Send adds; `done` is called later, or at once if the connection is over."""
        if (refusal := self._refusal(run.size_bytes)) is not None:
            done(refusal)
            return
        now = self._loop.time()
        self._exchange.begin_adds(run, done, now)
        self._write(run.buffers, now, run.timeout_ms)

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._error is None

    def close(self, error: BookKeeperError) -> None:
        """End the connection: everything that waits fails with this error."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
        self._ended(self)
        self._exchange.fail_all(error)

    # -- inside -----------------------------------------------------------------------------------

    def _refusal(self, size_bytes: int) -> BookKeeperError | None:
        """Why a request of this size cannot be sent."""
        if self._error is not None:
            return self._error
        waiting_bytes = self._exchange.waiting_bytes
        if waiting_bytes + size_bytes > self._options.max_bookie_bytes:
            reason = f"{waiting_bytes} bytes wait for its answers"
            return BookieOverloadedError(reason, bookie=self._bookie)
        return None

    def _write(self, buffers: Sequence[Buffer], now_s: float, timeout_ms: int) -> None:
        """Have these written with all that comes in this turn of the loop, and watch the time."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.extend(buffers)
        due = now_s + timeout_ms / 1000
        if self._timer is None or due < self._timer_s:
            self._set_timer(due)

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._look_at_times)

    def _look_at_times(self) -> None:
        """Fail what is due. A bookie that has sent nothing meanwhile is disconnected."""
        self._timer = None
        if self._exchange.expire(self._loop.time(), self._heard_s):
            reason = "it sent nothing since the request"
            self.close(BookieUnreachableError(reason, bookie=self._bookie))
            return
        due = self._exchange.next_deadline_s()
        if due is not None and self._error is None:
            # Not for each request: what is due is looked for a few times a second.
            self._set_timer(max(due, self._loop.time() + 0.05))

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is up."""
        self._transport = cast("asyncio.Transport", transport)
        # Requests wait in our own list and are bounded there; the transport takes all of it.
        self._transport.set_write_buffer_limits(high=self._options.max_bookie_bytes)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take bytes; bytes that break the protocol end the connection."""
        self._heard_s = self._loop.time()
        try:
            for frame in self._reader.feed(data, self._exchange.take_adds):
                self._exchange.receive(frame)
                if self._error is not None:
                    return
        except BookieProtocolError as error:
            error.bookie = self._bookie
            self.close(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        if isinstance(exc, ssl.SSLError):
            # Only now a bookie says that it does not take the client's certificate (TLS 1.3).
            reason = f"it ended the connection: {exc.reason or exc}"
            self.close(BookieTlsError(reason, bookie=self._bookie))
            return
        reason = f"the connection broke: {exc}" if exc is not None else "it closed the connection"
        self.close(BookieUnreachableError(reason, bookie=self._bookie))
