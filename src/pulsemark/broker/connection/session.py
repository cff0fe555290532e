"""One client connection, as an asyncio protocol.

Received bytes go into the sans-IO `wire.Connection`. Its events go to the functions in `handlers`,
by table. If a handler cannot finish at once (it opens a topic, writes the catalog), it passes a
coroutine to `run`, which makes a task of it (`requests`). If the task fails, the request is
answered with an ERROR.

Reading pauses for the reasons in `reading_pauses`, so that a client cannot make the broker hold
more than the limits allow. `memory` counts what all connections hold.

The sending side is in `outgoing`, producers and consumers are in `members`, times are in
`liveness`. When the broker closes, connections are half-closed and drained first (`draining`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any, cast

from ...kafka.keep_alive import bytes_confirmed, has_ended, keep_alive
from ...wire import Command, Connection, ProtocolError, Role, Sends, Unsupported, commands
from ..handlers import handle_command, handle_sends, handle_unsupported
from ..services import Services
from .draining import Draining
from .gathering import Gathering
from .liveness import Liveness, NextInput, Silence
from .members import Members
from .memory import SHARE_BYTES, Account
from .reading_pauses import Pause, ReadingPauses
from .receipts import Receipts
from .requests import Requests
from .throttling import Throttling

__all__ = ["Session"]

log = logging.getLogger(__name__)

#: Input buffer of each connection that is not counted as input memory.
FREE_INPUT_BYTES = 16 * 1024
#: How long one connection's commands may run in one turn of the loop.
TURN_S = 0.01
#: After how many events the time is checked.
EVENTS_PER_CHECK = 32
TASKS_PER_TURN = 64
#: How often to ask whether the client's system has taken a PING.
CONFIRM_POLL_S = 0.02
#: A connection that has been silent for this time frees its input buffer.
QUIET_S = 1.0


class Session(Members, asyncio.BufferedProtocol):
    """A client's connection, from accept to close."""

    handle_sends = handle_sends

    def __init__(self, services: Services) -> None:
        super().__init__(services.output)
        self.services = services
        self.config = services.config
        self.address = "-"
        #: The lower of the client's and our protocol version; 0 before CONNECT.
        self.protocol_version = 0
        self.exposes_entry_metadata = False
        self.client_version = ""
        self.receipts = Receipts(self, services.budget, services.config)
        #: Kept state of this connection.
        self.kept = Account(services.kept)
        self.connection = Connection(
            Role.SERVER, max_message_size_bytes=services.config.max_message_size_bytes
        )
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(self, self.kept)
        self._pauses = ReadingPauses()
        self.throttling = Throttling(self._pauses, self._unpause)
        self._liveness = Liveness(services.config, self._loop.time())
        self._counts_input = False
        self._has_rest = False
        #: Whether the latest command was a SEND.
        self._is_publishing = False
        wait_s, set_low_water = self.config.publish_gathering_ms / 1000, self._pauses.set_low_water
        self._gathering = Gathering(wait_s, self._loop, self.take_turn, set_low_water)
        #: The size of the buffer that the loop reads into.
        self._room_bytes = 0
        self._next_input = NextInput()
        self._draining: Draining | None = None

    # -- asyncio's calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = self._pauses.transport = cast("asyncio.Transport", transport)
        high = self.config.write_buffer_high_water_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 2)
        near = transport.get_extra_info("socket")
        if near is not None:
            keep_alive(near, self.config.keep_alive_interval_ms)
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if peer else "-"
        self.services.joined(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next input."""
        if self._draining is not None:
            return self._draining.buffer
        buffer = self.connection.get_buffer(sizehint)
        self._room_bytes = len(buffer)
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived: handle the commands they complete."""
        if self._draining is not None:
            self._draining.received()
            return
        self._liveness.received_at_s = self._loop.time()
        self._next_input.arrived()
        self.connection.buffer_updated(nbytes)
        if not self._is_publishing:
            self.take_turn()
        elif self._gathering.waits(self.connection.pending_bytes, self.receipts.entries_in_flight):
            self._has_rest = True
        else:
            self.take_turn()
            # A read that fills the buffer has left something in the socket.
            if nbytes < self._room_bytes:
                self._gathering.handled()

    def eof_received(self) -> None:
        """The client has sent its last byte; asyncio then closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if self._has_rest and not self.is_closed:
            self._handle_events(math.inf)
        self.close_state()
        self.services.left(self)
        self.services.output.forget(self)
        self.receipts.close()

    def pause_writing(self) -> None:
        """Unsent data is above the high-water mark."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has read, and unsent data is below the low-water mark."""
        self._writable = True
        self.output_freed()

    def output_freed(self) -> None:
        """Output is possible again: the send buffer or output memory has room."""
        if not self.writable:
            return
        self._unpause(Pause.UNSENT)
        for consumer in tuple(self.consumers.values()):
            if not self.writable:
                return
            consumer.resume()

    # -- events ---------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Handle the input of this read, and what is left of earlier reads."""
        if self.is_closed:
            return
        progressed = self._handle_events()
        if not self.is_closed:
            self._count_input(progressed)

    def _handle_events(self, turn_s: float = TURN_S) -> bool:
        """Handle complete frames, at most for `turn_s`; the rest waits for the next turn.

        Return whether there was a complete frame.
        """
        handled, tasks, event = 0, len(self._requests), None
        next_check = EVENTS_PER_CHECK
        until_s = time.monotonic() + turn_s
        self._has_rest = False
        try:
            for event in self.connection.runs():
                if type(event) is Sends:
                    handled += len(event.bodies)
                    self.handle_sends(event)
                else:
                    handled += 1
                    if type(event) is Command:
                        handle_command(self, event)
                    elif type(event) is Unsupported:
                        handle_unsupported(self, event)
                if self.is_closed:
                    return True
                if handled >= next_check:
                    if self._is_turn_over(until_s, tasks):
                        self._has_rest = True
                        break
                    next_check = handled + EVENTS_PER_CHECK
        except ProtocolError as violation:
            self.close_because(str(violation))
        except Exception:
            command = type(event).__name__
            log.exception("%s: connection closed: handling a %s failed", self.address, command)
            self.close()
        else:
            self._is_publishing = type(event) is Sends
            # Checked once for all commands of a read, so one read may go beyond a limit.
            self.publishes_changed()
            self._check_unsent()
            self._plan_turn()
        finally:
            self.services.topics.wake_committer()
        return handled > 0

    def _is_turn_over(self, until_s: float, tasks_before: int) -> bool:
        self.services.topics.wake_committer()
        # All tasks started here run in the next turn, before anything else.
        busy = len(self._requests) - tasks_before >= TASKS_PER_TURN and until_s < math.inf
        return busy or time.monotonic() >= until_s

    def _plan_turn(self) -> None:
        if self._has_rest:
            self._pauses.begin(Pause.TURN)
            self._loop.call_soon(self.take_turn)
        elif Pause.TURN in self._pauses:
            self._unpause(Pause.TURN)

    def _count_input(self, progressed: bool) -> None:
        conn = self.connection
        self._liveness.frame(is_open=bool(conn.pending_bytes), is_new=progressed)
        held_bytes = conn.allocated_bytes - FREE_INPUT_BYTES
        if held_bytes > 0:
            self._counts_input = True
            self.services.input.hold(self, held_bytes, begins=progressed)
        elif self._counts_input:
            self._counts_input = False
            self.services.input.forget(self)

    def give_up_input(self) -> None:
        """Input memory is full, and this connection has held some for the longest time."""
        self._counts_input = False
        if self.connection.pending_bytes:
            self.close_because(
                "incomplete frames of all clients exceed max_input_buffer_bytes, "
                "and the frame of this client began first"
            )
        else:
            self.connection.release()

    def run(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task. A refusal or failure is answered with an ERROR."""
        self._requests.run(request_id, work, self.connection.last_command_size_bytes)

    def requests_changed(self, count: int) -> None:
        """The number of running requests changed. At the limit reading pauses."""
        limit = self.config.max_pending_requests_per_connection
        if count >= limit:
            self._pauses.begin(Pause.REQUESTS)
        elif count <= limit // 2:
            self._unpause(Pause.REQUESTS)

    def storage_failed(self, error: BaseException) -> None:
        """An append failed: no producer is opened until the disk accepts writes again."""
        self.services.storage.failed(error)

    # -- reading pauses -------------------------------------------------------------------------

    def publishes_changed(self) -> None:
        """Pause or resume reading, depending on the publishes in flight."""
        was_full = Pause.PUBLISHES in self._pauses
        is_full = self.receipts.is_full(was_full=was_full)
        if is_full and not was_full:
            self._pauses.begin(Pause.PUBLISHES)
        elif was_full and not is_full:
            self._unpause(Pause.PUBLISHES)

    def long_work_begins(self) -> None:
        """A command runs in pieces. Later commands are read when it is done."""
        self._pauses.long_work_begins()

    def long_work_ended(self) -> None:
        """All pieces of a command are done."""
        if self._pauses.long_work_ended():
            self._liveness.reading_resumed(self._loop.time())

    def _check_unsent(self) -> None:
        # A client may send requests and never read the answers. Dispatch stops at the high-water
        # mark, so only answers exceed it. At twice the mark no more requests are read.
        limit_bytes = 2 * self.config.write_buffer_high_water_bytes
        output = self.services.output
        if output.is_scarce:
            limit_bytes = SHARE_BYTES
        if (output.is_scarce or not self._writable) and self.unsent_bytes() > limit_bytes:
            self._pauses.begin(Pause.UNSENT)
            output.has_room(self)

    def give_up_output(self) -> None:
        """Output memory is full, and this client has read nothing for the longest time."""
        reason = "unsent data of all clients exceeds max_unsent_bytes, and this client is slowest"
        log.info("%s: connection closed: %s", self.address, reason)
        self.abort()

    def _unpause(self, reason: Pause) -> None:
        if self._pauses.end(reason):
            self._liveness.reading_resumed(self._loop.time())

    # -- time -----------------------------------------------------------------------------------

    def check_time(self, now_s: float) -> None:
        """Called about once a second: PING a silent client, close after a timeout."""
        times, conn = self._liveness, self.connection
        if self.is_closed:
            # The client had time to read what was still unsent.
            if times.is_closing_late(now_s):
                self.abort()
        elif not conn.established:
            if times.is_handshake_late(now_s):
                self.close_because("no CONNECT within handshake_timeout_ms")
        elif self._pauses:
            is_unread = Pause.UNSENT in self._pauses
            if times.is_over(now_s, has_ended=has_ended(self._transport)):
                self._end_paused()
            elif is_unread and times.reads_nothing(now_s, self.unsent_bytes()):
                self.close_because("the client does not read its data")
        elif times.is_frame_late(now_s, conn.pending_bytes):
            self.close_because("a frame was still incomplete after stalled_frame_timeout_ms")
        else:
            self._check_silence(now_s)

    def _check_silence(self, now_s: float) -> None:
        if now_s - self._liveness.received_at_s >= QUIET_S and self.connection.allocated_bytes:
            self.connection.release()
            self._count_input(progressed=False)
        silence = self._liveness.silence(now_s)
        if silence is Silence.PING:
            self.write(commands.PING)
        elif silence is Silence.DEAD:
            self.close_because("no answer to a PING")

    async def is_alive(self) -> bool:
        """PING the client. Without an answer in time, close the connection and return False."""
        if self.is_closed:
            return False
        if self._pauses:
            return await self._is_there()
        if not self._next_input.is_awaited:
            self.write(commands.PING)
        try:
            await self._next_input.wait(self.config.connection_liveness_check_timeout_ms / 1000)
        except TimeoutError:
            self.close_because(
                "no answer to a PING; another client asked for its producer name or subscription"
            )
        return not self.is_closed

    def has_ended(self) -> bool:
        """Whether the client has ended while it was not read; then the connection is closed."""
        if self._pauses and has_ended(self._transport):
            self._end_paused()
        return self.is_closed

    async def _is_there(self) -> bool:
        """Whether the client's system takes a PING. The broker does not read the answer now."""
        before = bytes_confirmed(self._transport)
        self.write(commands.PING)
        until_s = self._loop.time() + self.config.connection_liveness_check_timeout_ms / 1000
        while not self.has_ended():
            confirmed = bytes_confirmed(self._transport)
            if confirmed is None or before is None or confirmed > before:
                return True
            if self._loop.time() >= until_s:
                self.close_because("its system took no PING; another client asked for its place")
                return False
            await asyncio.sleep(CONFIRM_POLL_S)
        return False

    def _end_paused(self) -> None:
        """The client has ended while it was not read: what it had not sent whole is dropped."""
        if not self.is_closed:
            log.info("%s: the client has ended while the broker did not read from it", self.address)
            self.abort()

    # -- ending ---------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """The broker is closing: read no more commands, and answer those that arrived."""
        self._pauses.begin(Pause.CLOSING)
        self._gathering.end()

    @property
    def is_busy(self) -> bool:
        """Whether the client still has to get answers."""
        works = self.receipts.entries_in_flight or self._requests or self._pauses.has_long_work
        return bool(works or self._has_rest) and not self.is_closed

    def finish(self) -> None:
        """Send buffered data and half-close. Drop input until the client closes, too."""
        self.close_state()
        if self._transport is not None and not self._transport.is_closing():
            self._draining = Draining(self._transport)

    @property
    def is_drained(self) -> bool:
        """Whether the connection may be closed without losing data on its way to the client."""
        return not self.unsent_bytes() if self._draining is None else self._draining.is_done

    def close_because(self, reason: str) -> None:
        """Close, and log the reason."""
        if not self.is_closed:
            log.info("%s: connection closed: %s", self.address, reason)
            self.close()

    def close(self) -> None:
        """Send buffered data, then close."""
        if self._transport is not None:
            self._transport.close()
        self.close_state()

    def abort(self) -> None:
        """Close at once, without sending buffered data."""
        if self._transport is not None:
            self._transport.abort()
        self.close_state()

    def close_state(self) -> None:
        """End every producer and consumer of this connection. A second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._writable = False
        self._gathering.close()
        self.throttling.close()
        self._liveness.closed(self._loop.time())
        self.services.budget.forget(self)
        self.services.input.forget(self)
        self.connection.discard()
        self.leave_all()
        self._requests.cancel()
        self._next_input.arrived()
