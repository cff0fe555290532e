"""One client connection: asyncio's side of it.

Bytes go into the sans-IO `wire.Connection`; its events go to the handlers in `handlers`, by
table. What a handler cannot do at once (open a topic, write the catalog) it hands to `run`, as a
task (`requests`), whose failure is answered with an ERROR of its request id.

Reading stops while there is a reason to (`reading_pauses`), so that a client cannot make the
broker hold more than the limits say. What a connection holds is counted in `memory`, over all.

What it sends is in `outgoing`, its producers and consumers in `members`.

A silent connection is sent a PING, and closed when that is not answered (`liveness`). When the
broker ends, connections are half-closed and drained first (`draining`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any, cast

from ...wire import Command, Connection, ProtocolError, Role, Send, Unsupported, commands
from ..handlers import handle_command, handle_send, handle_unsupported
from ..services import Services
from .draining import Draining
from .gathering import Gathering
from .liveness import Hearing, Liveness, Silence
from .members import Members
from .memory import SHARE_BYTES, Account
from .reading_pauses import Pause, ReadingPauses
from .receipts import Receipts
from .requests import Requests

__all__ = ["Session"]

log = logging.getLogger(__name__)

#: The block every connection may hold without being counted.
FREE_INPUT_BYTES = 16 * 1024
#: How long one connection's commands may keep the loop at a time, and how often that is looked at.
TURN_S = 0.01
EVENTS_PER_LOOK = 32
TASKS_PER_TURN = 64
#: A connection that has been silent for so long gives its buffer back.
QUIET_S = 1.0


class Session(Members, asyncio.BufferedProtocol):
    """A client's connection, from accept to close."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.output)
        self.services = services
        self.config = services.config
        self.address = "-"
        #: The peer's protocol version, capped to ours; 0 before CONNECT.
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
        self._liveness = Liveness(services.config, self._loop.time())
        self._counts_input = False
        self._has_rest = False
        #: The latest command was a SEND.
        self._is_publishing = False
        self._gathering = Gathering(
            self.config.publish_gathering_ms / 1000, self._loop, self._take_turn
        )
        self._hearing = Hearing()
        self._draining: Draining | None = None

    # -- asyncio's calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = self._pauses.transport = cast("asyncio.Transport", transport)
        high = self.config.write_buffer_high_water_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 2)
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if peer else "-"
        self.services.sessions.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for what comes next."""
        if self._draining is not None:
            return self._draining.buffer
        return self.connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came: handle the commands they complete."""
        if self._draining is not None:
            self._draining.received()
            return
        self._liveness.received_at_s = self._loop.time()
        self._hearing.heard()
        self.connection.buffer_updated(nbytes)
        if self._is_publishing and self._gathering.waits(
            self.connection.pending_bytes, self.receipts.entries_in_flight
        ):
            self._has_rest = True
        else:
            self._take_turn()

    def eof_received(self) -> None:
        """The client has sent its last byte; asyncio closes the rest."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._has_rest and not self.is_closed:
            self._handle_events(math.inf)
        self.close_state()
        self.services.sessions.discard(self)
        self.services.output.forget(self)
        self.receipts.close()

    def pause_writing(self) -> None:
        """More is unsent than the high-water mark."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has read on."""
        self._writable = True
        self.output_freed()

    def output_freed(self) -> None:
        """There is room for unsent data again, here or in output memory."""
        if not self.writable:
            return
        self._unpause(Pause.UNSENT)
        for consumer in tuple(self.consumers.values()):
            if not self.writable:
                return
            consumer.resume()

    # -- events ---------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Handle what this read brought, or an earlier one that its turn had no time for."""
        if self.is_closed:
            return
        progressed = self._handle_events()
        if not self.is_closed:
            self._count_input(progressed)

    def _handle_events(self, turn_s: float = TURN_S) -> bool:
        """Whether a frame became whole. What is left when the turn is over waits for the next."""
        handled, tasks, event = 0, len(self._requests), None
        until_s = time.monotonic() + turn_s
        self._has_rest = False
        try:
            for event in self.connection.events():
                handled += 1
                if type(event) is Send:
                    handle_send(self, event)
                elif type(event) is Command:
                    handle_command(self, event)
                elif type(event) is Unsupported:
                    handle_unsupported(self, event)
                if self.is_closed:
                    return True
                if not handled % EVENTS_PER_LOOK and self._is_turn_over(until_s, tasks):
                    self._has_rest = True
                    break
        except ProtocolError as violation:
            self.close_because(str(violation))
        except Exception:
            log.exception("%s: a command could not be handled", self.address)
            self.close()
        else:
            self._is_publishing = type(event) is Send
            # Once for all commands of a read: a limit may be passed by what one read brings.
            self.publishes_changed()
            self._check_unsent()
            self._plan_turn()
        return handled > 0

    def _is_turn_over(self, until_s: float, tasks_before: int) -> bool:
        # Tasks work in the loop's next turn, all of them before anything else.
        busy = len(self._requests) - tasks_before >= TASKS_PER_TURN and until_s < math.inf
        return busy or time.monotonic() >= until_s

    def _plan_turn(self) -> None:
        if self._has_rest:
            self._pauses.begin(Pause.TURN)
            self._loop.call_soon(self._take_turn)
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
        """Input memory is full, and this connection holds some of it for longest."""
        self._counts_input = False
        if self.connection.pending_bytes:
            self.close_because("too many frames have begun and are not whole; this one is oldest")
        else:
            self.connection.release()

    def run(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` as a task; its refusal or failure is answered as an ERROR."""
        self._requests.run(request_id, work, self.connection.last_command_size_bytes)

    def requests_changed(self, count: int) -> None:
        """So many requests are being worked on: no more are read at the limit."""
        limit = self.config.max_pending_requests_per_connection
        if count >= limit:
            self._pauses.begin(Pause.REQUESTS)
        elif count <= limit // 2:
            self._unpause(Pause.REQUESTS)

    def storage_failed(self, error: BaseException) -> None:
        """An append failed: no producer is let in until the disk takes writes again."""
        self.services.storage.failed(error)

    # -- reading pauses -------------------------------------------------------------------------

    def publishes_changed(self) -> None:
        """Stop or resume reading by the publishes in flight."""
        was_full = Pause.PUBLISHES in self._pauses
        is_full = self.receipts.is_full(was_full=was_full)
        if is_full and not was_full:
            self._pauses.begin(Pause.PUBLISHES)
        elif was_full and not is_full:
            self._unpause(Pause.PUBLISHES)

    def long_work_begins(self) -> None:
        """A command is worked on in pieces: what comes after it is read when it is done."""
        self._pauses.long_work_begins()

    def long_work_ended(self) -> None:
        """All pieces of a command are done."""
        if self._pauses.long_work_ended():
            self._liveness.reading_resumed(self._loop.time())

    def _check_unsent(self) -> None:
        # Answers, too, are data that a client may refuse to read. Dispatch stops at the high-water
        # mark; only answers lead beyond, and at twice the mark no more requests are read.
        limit_bytes = 2 * self.config.write_buffer_high_water_bytes
        output = self.services.output
        if output.is_scarce:
            limit_bytes = SHARE_BYTES
        if (output.is_scarce or not self._writable) and self.unsent_bytes() > limit_bytes:
            self._pauses.begin(Pause.UNSENT)
            output.has_room(self)

    def give_up_output(self) -> None:
        """Output memory is full, and this client has read nothing for longest."""
        reason = "unsent data of all clients is above the limit and this one reads too slowly"
        log.info("%s: connection closed: %s", self.address, reason)
        self.abort()

    def _unpause(self, reason: Pause) -> None:
        if self._pauses.end(reason):
            self._liveness.reading_resumed(self._loop.time())

    # -- time -----------------------------------------------------------------------------------

    def check_time(self, now_s: float) -> None:
        """Called about once a second: PING the silent, close the dead."""
        times, conn = self._liveness, self.connection
        if self.is_closed:
            # What was still unsent had its time: a client that does not read is not waited for.
            if times.is_closing_late(now_s):
                self.abort()
        elif not conn.established:
            if times.is_handshake_late(now_s):
                self.close_because("no CONNECT came in time")
        elif self._pauses:
            is_unread = Pause.UNSENT in self._pauses
            if is_unread and times.reads_nothing(now_s, self.unsent_bytes()):
                self.close_because("the client does not read")
        elif times.is_frame_late(now_s, conn.pending_bytes):
            self.close_because("a frame did not become whole in time")
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
        """PING the client; False if nothing comes from it in time, and it is closed then."""
        if self.is_closed:
            return False
        if self._pauses:
            # Nothing is read from it now, so its silence says nothing.
            return True
        if not self._hearing.is_awaited:
            self.write(commands.PING)
        try:
            await self._hearing.wait(self.config.connection_liveness_check_timeout_ms / 1000)
        except TimeoutError:
            self.close_because("no answer to a PING while another client asked for its place")
        return not self.is_closed

    # -- ending ---------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """The broker is closing: take no more commands, answer those that came."""
        self._pauses.begin(Pause.CLOSING)
        self._gathering.end()

    @property
    def is_busy(self) -> bool:
        """Whether answers are still to come."""
        works = self.receipts.entries_in_flight or self._requests or self._pauses.has_long_work
        return bool(works or self._has_rest) and not self.is_closed

    def finish(self) -> None:
        """Send what is buffered and half-close; drop what comes until the client closes, too."""
        self.close_state()
        if self._transport is not None and not self._transport.is_closing():
            self._draining = Draining(self._transport)

    @property
    def is_drained(self) -> bool:
        """Whether the connection may be closed without losing anything that was sent."""
        return not self.unsent_bytes() if self._draining is None else self._draining.is_done

    def close_because(self, reason: str) -> None:
        """Close, and say why in the log."""
        if not self.is_closed:
            log.info("%s: connection closed: %s", self.address, reason)
            self.close()

    def close(self) -> None:
        """Send what is buffered, then close."""
        if self._transport is not None:
            self._transport.close()
        self.close_state()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self.close_state()

    def close_state(self) -> None:
        """Give up every producer and consumer of this connection; twice is once."""
        if self.is_closed:
            return
        self.is_closed = True
        self._writable = False
        self._gathering.close()
        self._liveness.closed(self._loop.time())
        self.services.budget.forget(self)
        self.services.input.forget(self)
        self.connection.discard()
        self.leave_all()
        self._requests.cancel()
        self._hearing.heard()
