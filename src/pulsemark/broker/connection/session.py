"""One client connection, as an asyncio protocol.

Received bytes go into the sans-IO `wire.Connection`. Its events go to the functions in `handlers`,
by table. A handler that cannot finish at once (it opens a topic, writes the catalog) passes a
coroutine to `run`, which makes a task of it. If the task fails, the request is answered with an
ERROR.

Reading pauses for the reasons of `Pause`, so that a client cannot make the broker hold more than
the limits allow. Times are in `Liveness`. When the broker closes, connections are half-closed and
drained first (`Draining`).

A connection can have twenty thousand consumers. When it ends, they get no more messages, and leave
their subscriptions in pieces, those of one subscription in one step: so their entries are given to
the other consumers only once.

`Gathering` gathers the publishes of a client that sends without waiting for receipts. A message
that is handled alone is expensive: it has a commit, turns of the event loop and a write of its own.
Such a client does not need each receipt at once, so the broker handles its publishes some at a
time. Pulsar's bookies wait in the same way (``journalMaxGroupWaitInMillis``, 1 ms). A client that
does wait for its receipts would become slower. So the broker finds out again and again what the
client does:

- **Wait**: what was read is not handled for `wait_s`, while the broker reads on. The wait was
  useless if nothing arrived in its second half. After a useless wait the next reads are handled at
  once, and their number doubles with each useless wait (up to RESTS_MAX).
- **Pause**: after a useful wait, each of the next PACED_READS reads is handled at once, and then
  the connection is not read for `wait_s`, or until ENOUGH_BYTES have arrived (the socket's
  low-water mark, SO_RCVLOWAT). What arrives meanwhile costs one read and one turn of the loop,
  however many messages it is. Then comes a wait again.

The broker does neither if the time between two reads is longer than it would wait, or if enough
bytes arrive or enough publishes are in flight already.
"""

from __future__ import annotations

import asyncio
import enum
import fcntl
import logging
import math
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...connection_memory import SHARE_BYTES
from ...metadata import Buffer
from ...proto.pulsar_api_pb2 import ServerError
from ...tcp import bytes_confirmed, has_ended, keep_alive
from ...wire import Command, Connection, ProtocolError, Role, Sends, Unsupported, commands
from ..configuration.config import BrokerConfig
from ..cooperative import FairTurns, LongWork
from ..errors import RefusedError, java_refusal
from ..memory import Account, Reservation
from ..security.authentication import UNAUTHENTICATED, Credentials
from ..subscriptions.consumer import Consumer
from ..subscriptions.subscription import Subscription
from ..topics.producers import Producer
from ..topics.topic import Topic
from ..topics.topic_watchers import TopicWatcher
from .receipts import Receipts

if TYPE_CHECKING:
    from .services import Services

log = logging.getLogger(__name__)


class Pause(enum.Flag):
    """Why a session does not read."""

    NONE = 0
    PUBLISHES = enum.auto()
    REQUESTS = enum.auto()
    UNSENT = enum.auto()
    LONG_WORK = enum.auto()
    #: Other connections get their turn before the rest of the input is handled.
    TURN = enum.auto()
    CLOSING = enum.auto()
    #: A topic gets messages faster than its policy publishRate allows.
    RATE = enum.auto()


_NONE = Pause.NONE


#: How long a client that has ended may still be read, if the broker pauses only now and then.
ENDED_GRACE_MS = 2_000


class Silence(enum.Enum):
    """The action to take when a connection is silent."""

    FINE = enum.auto()
    #: Send a PING.
    PING = enum.auto()
    #: The PING was not answered.
    DEAD = enum.auto()


class Liveness:
    """The times of one connection: silence, incomplete frames, and its end."""

    __slots__ = (
        "_config",
        "_confirmed_bytes",
        "_frame_since_s",
        "_opened_at_s",
        "_pinged_at_s",
        "_since",
        "received_at_s",
    )

    def __init__(self, config: BrokerConfig, now_s: float) -> None:
        self._config = config
        self._opened_at_s = self.received_at_s = now_s
        self._pinged_at_s: float | None = None
        #: The bytes that the client's TCP had confirmed when the PING was sent, if it is not read.
        self._confirmed_bytes: int | None = None
        #: When the incomplete frame began to arrive.
        self._frame_since_s: float | None = None
        #: What `lasts_ms` was asked about: each with its value, and since when it has that.
        self._since: dict[str, tuple[object, float]] = {}

    def lasts_ms(self, what: str, value: object, now_s: float) -> float:
        """For how long something has had this value, since it was first asked about."""
        known = self._since.get(what)
        if known is None or known[0] != value:
            known = self._since[what] = value, now_s
        return (now_s - known[1]) * 1000

    def changed(self, what: str) -> None:
        """What `lasts_ms` is asked about had another value meanwhile."""
        self._since.pop(what, None)

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

    def is_handshake_late(self, now_s: float) -> bool:
        """Whether the time for CONNECT is over."""
        return (now_s - self._opened_at_s) * 1000 >= self._config.handshake_timeout_ms

    def is_frame_late(self, now_s: float, arrived_bytes: int) -> bool:
        """Whether the time for a frame of which `arrived_bytes` have arrived is over."""
        if self._frame_since_s is None:
            return False
        earned_s = arrived_bytes / self._config.min_frame_rate_bytes_per_s
        limit_s = self._config.stalled_frame_timeout_ms / 1000 + earned_s
        return now_s - self._frame_since_s >= limit_s

    def silence(self, now_s: float, confirmed_bytes: int | None, *, is_read: bool) -> Silence:
        """The action to take now. A caller that gets PING must send it: it counts as sent.

        A client that the broker does not read sees no PONG. Its machine confirms a PING, or resets
        the connection if the client has ended. `confirmed_bytes` is what the machine has confirmed
        until now; None: that is not known.
        """
        is_dead = is_read or (
            confirmed_bytes is not None and confirmed_bytes == self._confirmed_bytes
        )
        pinged_at_s = self._pinged_at_s
        since_s, was_pinged = self.received_at_s, False
        if pinged_at_s is not None and pinged_at_s > since_s:
            since_s, was_pinged = pinged_at_s, True
        if (now_s - since_s) * 1000 < self._config.keep_alive_interval_ms:
            return Silence.FINE
        if was_pinged and is_dead:
            return Silence.DEAD
        self._pinged_at_s, self._confirmed_bytes = now_s, confirmed_bytes
        return Silence.PING


class ReadingPauses:
    """The reasons that hold now. The transport is read while it is empty."""

    def __init__(self, liveness: Liveness) -> None:
        """`liveness` hears when reading goes on."""
        self.transport: asyncio.Transport | None = None
        self._liveness = liveness
        self._reasons = _NONE
        #: How often each reason holds, of those that may hold several times.
        self._counts: Counter[Pause] = Counter()

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, reason: Pause) -> bool:
        # Called after each read; usually there is no reason, so that case must be fast.
        return self._reasons is not _NONE and reason in self._reasons

    def begin(self, reason: Pause) -> None:
        """Do not read while `reason` holds."""
        before, self._reasons = self._reasons, self._reasons | reason
        if not before and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def end(self, reason: Pause) -> None:
        """`reason` holds no longer."""
        before, self._reasons = self._reasons, self._reasons & ~reason
        if before and not self._reasons:
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
            self._liveness.reading_resumed(asyncio.get_running_loop().time())

    def set_low_water(self, size_bytes: int) -> None:
        """Read nothing until so many bytes have arrived, or the client has ended.

        `Gathering` does this for a few milliseconds at a time.
        """
        if self.transport is not None and not self.transport.is_closing():
            link = self.transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    def begin_one(self, reason: Pause) -> None:
        """As `begin`; it holds until `end_one` was called equally often."""
        self._counts[reason] += 1
        self.begin(reason)

    def end_one(self, reason: Pause) -> None:
        """`reason` holds once less."""
        self._counts[reason] -= 1
        if not self._counts[reason]:
            self.end(reason)


#: With so many unhandled bytes, or so many publishes in flight, waiting brings nothing.
ENOUGH_BYTES = 8 * 1024
ENOUGH_ENTRIES = 16
#: The most reads that are handled at once after useless waits.
RESTS_MAX = 1024
#: Reads that are followed by a pause, after each useful wait.
PACED_READS = 16


class Gathering:
    """Decides for one connection when to wait, and when to pause.

    Args:
        wait_s: how long one wait or pause takes; 0: it does not wait.
        loop: has the timers.
        take: handles what has arrived.
        set_low_water: says how many bytes must have arrived before the connection is read.
        clock: in seconds. The loop's own clock is set once for each turn, which is too coarse.
    """

    __slots__ = (
        "_began_at_s",
        "_clock",
        "_last_read_at_s",
        "_loop",
        "_next_rests",
        "_paced_reads",
        "_rests",
        "_set_low_water",
        "_take",
        "_timer",
        "_wait_s",
        "is_pausing",
    )

    def __init__(
        self,
        wait_s: float,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[], None],
        set_low_water: Callable[[int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_s = wait_s
        self._loop = loop
        self._take = take
        self._set_low_water = set_low_water
        self._clock = clock
        #: Ends the wait or the pause.
        self._timer: asyncio.TimerHandle | None = None
        #: Whether it is a pause that the timer ends.
        self.is_pausing = False
        self._began_at_s = self._last_read_at_s = 0.0
        #: Reads still to be handled at once, and how many follow the next useless wait.
        self._rests = 0
        self._next_rests = 1
        #: Reads still to be followed by a pause.
        self._paced_reads = 0

    def waits(self, unhandled_bytes: int, entries_in_flight: int) -> bool:
        """Called after a read. Return whether to wait for more; `take` is called after the wait."""
        now_s = self._clock()
        previous_read_at_s, self._last_read_at_s = self._last_read_at_s, now_s
        if self.is_pausing:
            # The client sends so fast that pauses are not needed, or it has ended.
            self.stop()
            self._paced_reads = 0
            return False
        if self._timer is not None:
            if unhandled_bytes < ENOUGH_BYTES:
                return True
            self.stop()
            self._next_rests = 1
            return False
        if self._paced_reads:
            if now_s - previous_read_at_s >= 2 * self._wait_s:
                self._paced_reads = 0
            return False
        if now_s - previous_read_at_s >= self._wait_s:
            return False
        if self._rests:
            self._rests -= 1
            return False
        if unhandled_bytes >= ENOUGH_BYTES or entries_in_flight >= ENOUGH_ENTRIES:
            return False
        self._began_at_s = now_s
        self._timer = self._loop.call_later(self._wait_s, self._wait_over)
        return True

    def handled(self) -> None:
        """Called when all input was handled: pause reading, if the client is paced."""
        if self._paced_reads and self._timer is None:
            self._paced_reads -= 1
            self.is_pausing = True
            self._set_low_water(ENOUGH_BYTES)
            self._timer = self._loop.call_later(self._wait_s, self._pause_over)

    def close(self) -> None:
        """The connection has ended: handle nothing more, and drop the reference to `take`."""
        self.stop()
        self._take = lambda: None

    def end(self) -> None:
        """End the wait, and handle what has arrived."""
        if self._timer is not None:
            self.stop()
            self._take()

    def stop(self) -> None:
        """Stop waiting or pausing, without handling what has arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self.is_pausing:
                self._pause_over()

    def _pause_over(self) -> None:
        self._timer = None
        self.is_pausing = False
        self._set_low_water(1)

    def _wait_over(self) -> None:
        self._timer = None
        waited_s = self._clock() - self._began_at_s
        if self._last_read_at_s - self._began_at_s >= waited_s / 2:
            self._next_rests = 1
            self._paced_reads = PACED_READS
        elif waited_s >= self._wait_s / 2:
            self._rests = self._next_rests
            self._next_rests = min(2 * self._next_rests, RESTS_MAX)
        self._take()


#: Memory of a request, parsed and with its task, as a multiple of its size on the wire.
PARSED_SHARE = 4
REQUEST_BYTES = 4 * 1024


#: A peer that has received everything and is silent for this time has nothing more to send.
DRAIN_QUIET_S = 0.1
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
            self._loop.time() - self._received_at_s >= DRAIN_QUIET_S
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


#: Buffers with a smaller average size are joined, since a copy costs less than one more buffer.
JOIN_BELOW_BYTES = 2 * 1024


class Tally:
    """Counts an event that a client may repeat, and limits how often it is logged."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> bool:
        """Count the event. Return whether to log it: the first time, the tenth, the 100th..."""
        self.count += 1
        return str(self.count).rstrip("0") == "1"


#: Input buffer of each connection that is not counted as input memory.
FREE_INPUT_BYTES = 16 * 1024
#: How long one connection's commands may run in one turn of the loop.
TURN_S = 0.01
#: After how many events the time is checked.
EVENTS_PER_CHECK = 32
TASKS_PER_TURN = 64
#: How often the broker asks whether the client's machine has received a PING.
CONFIRM_POLL_S = 0.02
#: A connection that has been silent for this time frees its input buffer.
QUIET_S = 1.0
#: Consumers that leave in one turn. More may leave if they are of one subscription.
LEFT_AT_ONCE = 200


class Commands(Protocol):
    """The handler of a session's commands; the package `handlers` is one."""

    def handle_command(self, session: Session, event: Command, /) -> None:
        """Handle a command that is no SEND; a refusal is answered with an ERROR."""

    def handle_sends(self, session: Session, event: Sends, /) -> None:
        """Handle consecutive SENDs of one producer."""

    def handle_unsupported(self, session: Session, event: Unsupported, /) -> None:
        """Answer a command that this broker does not know."""


class Session(asyncio.BufferedProtocol):
    """A client's connection, from accept to close."""

    def __init__(self, services: Services, commands: Commands) -> None:
        """`services`: what all sessions share; `commands` get each of the client's commands."""
        self.services = services
        self._commands = commands
        self.config = services.config
        self.address = "-"
        #: The lower of the client's and our protocol version; 0 before CONNECT.
        self.protocol_version = 0
        self.exposes_entry_metadata, self.client_version = False, ""
        self.receipts = Receipts(self, services.budget, services.config)
        #: Kept state of this connection.
        self.kept = Account(services.kept)
        self.connection = Connection(
            Role.SERVER, max_message_size_bytes=services.config.max_message_size_bytes
        )
        self._loop = asyncio.get_running_loop()
        self._turns = FairTurns.of_running_loop()
        #: The running requests.
        self._requests: set[asyncio.Task[None]] = set()
        self._liveness = Liveness(services.config, self._loop.time())
        self._pauses = ReadingPauses(self._liveness)
        self._counts_input = self._has_rest = False
        #: Whether the latest command was a SEND.
        self._is_publishing = False
        wait_s, set_low_water = self.config.publish_gathering_ms / 1000, self._pauses.set_low_water
        self._gathering = Gathering(wait_s, self._loop, self.take_turn, set_low_water)
        #: The size of the buffer that the loop reads into.
        self._room_bytes = 0
        #: Whether bytes have come since the last PING of `is_alive`, which waits for them.
        self._input_came = asyncio.Event()
        self._draining: Draining | None = None
        self.is_closed, self._writable = False, True
        self._output = services.output
        self._transport: asyncio.Transport | None = None
        self._largest_buffer_bytes = 0
        self._begin()

    def _begin(self) -> None:
        """Set the state of a new connection."""
        #: The client's identity and credentials. Set by CONNECT.
        self.principal = UNAUTHENTICATED
        self.credentials: Credentials | None = None
        self.producers: dict[int, tuple[Producer, Topic]] = {}
        self.consumers: dict[int, Consumer] = {}
        #: The topic lists that the client watches.
        self.watchers: dict[int, TopicWatcher] = {}
        #: Producers that the broker closed. SENDs that were in flight at that time are dropped.
        self.producers_closed_by_broker: set[int] = set()
        #: How often the client was refused a SEND, and how often it could not read a message.
        self.refused_sends, self.unreadable_messages = Tally(), Tally()
        #: Producers and consumers that are being opened, by kind and id.
        self.opening: dict[tuple[str, int], Producer | Consumer] = {}

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
        self._input_came.set()
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
        self._pauses.end(Pause.UNSENT)
        self._liveness.changed("unsent")
        for consumer in tuple(self.consumers.values()):
            if not self.writable:
                return
            consumer.resume()

    # -- sending ----------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether unsent data is below the high-water mark."""
        return self._writable and not self.is_closed and self._output.has_room(self)

    def write(self, data: bytes) -> None:
        """Send finished frames."""
        transport = self._transport
        if transport is not None and data and not self.is_closed and not transport.is_closing():
            transport.write(data)
            self._output.wrote(self)

    def write_gathered(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers in order, without joining them."""
        transport = self._transport
        if transport is not None and buffers and not self.is_closed and not transport.is_closing():
            if sum(map(len, buffers)) < JOIN_BELOW_BYTES * len(buffers):
                transport.write(b"".join(buffers))
            else:
                self._largest_buffer_bytes = max(map(len, buffers))
                transport.writelines(buffers)
            self._output.wrote(self)

    def refuse(self, request_id: int, refusal: RefusedError) -> None:
        """Answer a request with an ERROR, or with its own response."""
        self.write(commands.error(request_id, refusal.code, refusal.message, refusal.answer))

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The client's certificate, which the TLS handshake verified; None without one."""
        return self._transport.get_extra_info("peercert") or None if self._transport else None

    def unsent_bytes(self) -> int:
        """Data written that the socket has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def untaken_bytes(self) -> int:
        """Data written that the client's system has not acknowledged."""
        return self.unsent_bytes() + unconfirmed_bytes(self._transport) if self._transport else 0

    def held_output_bytes(self) -> int:
        """The memory of unsent data. A buffer is held until its last byte is sent."""
        unsent_bytes = self.unsent_bytes()
        return unsent_bytes + self._largest_buffer_bytes if unsent_bytes else 0

    # -- producers and consumers ------------------------------------------------------------------

    def producer_fenced(self, producer: Producer) -> None:
        """Fence a producer, since another one took over the topic.

        A waiting producer gets an ERROR. The next SEND of one that was writing closes the
        connection, as in Pulsar, and a reconnect with the old epoch is refused.
        """
        entry = self.producers.get(producer.producer_id)
        if producer.is_waiting and entry is not None and entry[0] is producer:
            del self.producers[producer.producer_id]
            kind, text = "ProducerFencedException", "Fenced out"
            refusal = java_refusal(ServerError.ProducerFenced, kind, text)
            self.refuse(producer.request_id, refusal)

    def producer_ready(self, producer: Producer) -> None:
        """Tell the client of a waiting producer that it may publish now."""
        self.write(
            commands.producer_success(
                producer.request_id,
                producer.name,
                schema_version=producer.schema_version,
                topic_epoch=producer.topic_epoch,
            )
        )

    def close_consumer(self, consumer: Consumer) -> None:
        """Close a consumer from the broker's side; its client will subscribe again."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            self.write(commands.close_consumer(consumer.consumer_id, commands.NO_REQUEST_ID))

    def close_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side; its client will open it again."""
        if self.forget_producer(producer):
            self.write(commands.close_producer(producer.producer_id, commands.NO_REQUEST_ID))

    def forget_producer(self, producer: Producer) -> bool:
        """Close a producer and ignore its client's SENDs. Return False if it was closed."""
        entry = self.producers.get(producer.producer_id)
        if entry is None or entry[0] is not producer:
            return False
        del self.producers[producer.producer_id]
        self.producers_closed_by_broker.add(producer.producer_id)
        return True

    def close_opening(self, kind: str, number: int) -> None:
        """Cancel the opening of a producer or consumer, if one with that id is being opened."""
        opened = self.opening.pop((kind, number), None)
        if opened is not None:
            opened.leave()

    def leave_all(self) -> None:
        """End every producer, consumer and watcher of this connection."""
        everything = [*self.opening.values(), *self.consumers.values()]
        everything += [producer for producer, _ in self.producers.values()]
        for watcher in self.watchers.values():
            watcher.leave()
        self.watchers.clear()
        self.opening.clear()
        self.producers.clear()
        self.consumers.clear()
        leave_together(everything)

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
        handled, tasks, event, commands = 0, len(self._requests), None, self._commands
        next_check = EVENTS_PER_CHECK
        until_s = time.monotonic() + turn_s
        self._has_rest = False
        try:
            for event in self.connection.runs():
                if type(event) is Sends:
                    handled += len(event.bodies)
                    commands.handle_sends(self, event)
                else:
                    handled += 1
                    if type(event) is Command:
                        commands.handle_command(self, event)
                        if self._turns.is_over or time.monotonic() >= until_s:
                            next_check = handled  # one command may take long
                    elif type(event) is Unsupported:
                        commands.handle_unsupported(self, event)
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
            self.services.topics.store.wake_committer()
        return handled > 0

    def _is_turn_over(self, until_s: float, tasks_before: int) -> bool:
        self.services.topics.store.wake_committer()
        # All tasks started here run in the next turn, before anything else.
        busy = len(self._requests) - tasks_before >= TASKS_PER_TURN and until_s < math.inf
        if until_s == math.inf or not self.connection.pending_bytes:
            return False
        return busy or time.monotonic() >= until_s or not self._turns.has_time()

    def _plan_turn(self) -> None:
        if self._has_rest:
            self._pauses.begin(Pause.TURN)
            self._turns.later(self.take_turn, of_client=True)
        elif Pause.TURN in self._pauses:
            self._pauses.end(Pause.TURN)

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
            text = "incomplete frames of all clients exceed max_input_buffer_bytes, "
            self.close_because(f"{text}and the frame of this client began first")
        else:
            self.connection.release()

    def run(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task. A refusal or failure is answered with an ERROR."""
        size_bytes = REQUEST_BYTES + PARSED_SHARE * self.connection.last_command_size_bytes
        try:
            reservation = self.kept.reserve("request", size_bytes)
        except RefusedError:
            work.close()
            raise
        task = self._loop.create_task(self._answered(request_id, work, reservation))
        self._requests.add(task)
        task.add_done_callback(self._request_done)
        # A task that is cancelled before its first step never awaits `work`, so close it here.
        task.add_done_callback(lambda _: work.close())
        if len(self._requests) >= self.config.max_pending_requests_per_connection:
            self._pauses.begin(Pause.REQUESTS)

    async def _answered(
        self, request_id: int, work: Coroutine[Any, Any, None], reservation: Reservation
    ) -> None:
        try:
            await work
        except RefusedError as refusal:
            self.refuse(request_id, refusal)
        except Exception as error:
            log.exception("%s: request %d failed", self.address, request_id)
            self.refuse(request_id, RefusedError(ServerError.UnknownError, repr(error)))
        finally:
            # Frees the request's memory in the count.
            del reservation

    def _request_done(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if len(self._requests) <= self.config.max_pending_requests_per_connection // 2:
            self._pauses.end(Pause.REQUESTS)

    def storage_failed(self, error: BaseException) -> None:
        """An append failed: no producer is opened until the disk accepts writes again."""
        self.services.storage.failed(error)

    # -- reading pauses -------------------------------------------------------------------------

    def publishes_changed(self) -> None:
        """Pause or resume reading, depending on the publishes in flight."""
        was_full = Pause.PUBLISHES in self._pauses
        if self.receipts.is_full(was_full=was_full):
            self._pauses.begin(Pause.PUBLISHES)
        elif was_full:
            self._pauses.end(Pause.PUBLISHES)

    def long_work_begins(self) -> None:
        """A command runs in pieces. Later commands are read when it is done."""
        self._pauses.begin_one(Pause.LONG_WORK)

    def long_work_ended(self) -> None:
        """Go on after a command whose pieces are all done."""
        self._pauses.end_one(Pause.LONG_WORK)

    @property
    def is_throttled(self) -> bool:
        """Whether the connection is not read because of a topic's publish rate."""
        return Pause.RATE in self._pauses

    def throttle(self) -> None:
        """A topic gets messages too fast: read nothing until `unthrottle`."""
        self._pauses.begin_one(Pause.RATE)

    def unthrottle(self) -> None:
        """The topic takes messages again."""
        self._pauses.end_one(Pause.RATE)

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

    # -- time -----------------------------------------------------------------------------------

    def check_time(self, now_s: float) -> None:
        """Called about once a second: PING a silent client, close after a timeout."""
        times, conn = self._liveness, self.connection
        if self.is_closed:
            # The client gets time to read what is still unsent.
            if times.lasts_ms("closed", True, now_s) >= self.config.keep_alive_interval_ms:
                self.abort()
        elif not conn.established:
            if times.is_handshake_late(now_s):
                self.close_because("no CONNECT within handshake_timeout_ms")
        elif self._pauses:
            self._check_unread(now_s)
        elif times.is_frame_late(now_s, conn.pending_bytes):
            self.close_because("a frame was still incomplete after stalled_frame_timeout_ms")
        else:
            if now_s - times.received_at_s >= QUIET_S and conn.allocated_bytes:
                conn.release()
                self._count_input(progressed=False)
            self._ping_or_close(times.silence(now_s, None, is_read=True), "no answer to a PING")

    def _check_unread(self, now_s: float) -> None:
        times, interval_ms = self._liveness, self.config.keep_alive_interval_ms
        if has_ended(self._transport) and times.lasts_ms("ended", True, now_s) >= ENDED_GRACE_MS:
            self._end_paused()
        elif Pause.UNSENT in self._pauses:
            if times.lasts_ms("unsent", self.unsent_bytes(), now_s) >= 2 * interval_ms:
                self.close_because("the client does not read its data")
        else:
            silence = times.silence(now_s, bytes_confirmed(self._transport), is_read=False)
            self._ping_or_close(silence, "its system took no PING")

    def _ping_or_close(self, silence: Silence, why: str) -> None:
        if silence is Silence.PING:
            self.write(commands.PING)
        elif silence is Silence.DEAD:
            self.close_because(why)

    async def is_alive(self) -> bool:
        """PING the client. Without an answer in time, close the connection and return False.

        A connection that is not read does not see the answer: there the client's machine confirms
        the PING. If the client was killed, that machine may still hold bytes for which the broker
        has no room. It answers the PING with a reset.
        """
        before = bytes_confirmed(self._transport)
        if self._pauses or self._input_came.is_set():  # else a PING is under way
            self._input_came.clear()
            self.write(commands.PING)
        until_s = self._loop.time() + self.config.connection_liveness_check_timeout_ms / 1000
        while not self._sees_end():
            if self._input_came.is_set() or (self._pauses and self._confirms_more(before)):
                return True
            if self._loop.time() >= until_s:
                text = "no answer to a PING; another client asked for its name or subscription"
                self.close_because(text)
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._input_came.wait(), CONFIRM_POLL_S)
        return False

    async def has_ended(self) -> bool:
        """Whether the client has ended while it was not read; then the connection is closed."""
        return self.is_closed or (bool(self._pauses) and not await self.is_alive())

    def _sees_end(self) -> bool:
        if self._pauses and has_ended(self._transport):
            self._end_paused()
        return self.is_closed

    def _confirms_more(self, before: int | None) -> bool:
        """Whether the client's machine has confirmed more bytes; True if that is not known."""
        now = bytes_confirmed(self._transport)
        return now is None or before is None or now > before

    def _end_paused(self) -> None:
        """Close a client that has ended while it was not read; incomplete input is dropped."""
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
        works = self.receipts.entries_in_flight or self._requests or Pause.LONG_WORK in self._pauses
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
        self.services.budget.forget(self)
        self.services.input.forget(self)
        self.connection.discard()
        self.leave_all()
        for task in self._requests:
            task.cancel()
        self._input_came.set()


def leave_together(everything: Iterable[Producer | Consumer]) -> None:
    """End producers and consumers. A second call for the same ones does nothing."""
    subscriptions: dict[Subscription, None] = {}
    ended = list(everything)
    for one in ended:
        if isinstance(one, Producer):
            one.leave()
            continue
        one.has_left = True
        if one.subscription is not None:
            one.subscription.mark_leaving(one)
            subscriptions[one.subscription] = None
    LongWork().add(_leaving(subscriptions, ended))


def _leaving(
    subscriptions: Iterable[Subscription], ended: list[Producer | Consumer]
) -> Iterator[None]:
    left = 0
    for subscription in subscriptions:
        left += subscription.remove_leaving()
        if left >= LEFT_AT_ONCE:
            left = 0
            yield
    # Their memory is freed in pieces, too.
    while ended:
        del ended[-LEFT_AT_ONCE:]
        yield
