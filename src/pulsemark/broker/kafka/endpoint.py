"""Kafka's endpoint of a broker: what its connections share, and each client's connection.

A connection (`KafkaSession`) is an asyncio protocol. It passes received bytes to the sans-IO
`protocol.Connection`, and requests to the handlers. As in Kafka, a request that has to wait (for
new entries, for other members of its group, for a topic to be opened) holds up later requests of
its connection. A Produce that waits for the disk does not, so that a client's batches share one
sync.

Reading pauses while a request waits, while publishes in flight or unanswered requests are above
their limits, and while the client does not read its answers.

A request of a megabyte may name one thing 80,000 times, and each may be answered with a megabyte.
So handlers take the items of a request from `named` or `gathered`. These yield each item once, when
the event loop has time for it, and count the size of its answer first. An answer with many parts is
encoded in a thread.

**Closing.** If a socket is closed while it has unread bytes, the kernel sends a reset, and the
client loses what it has not read yet. So a connection first ends its own direction only. What the
client still sends is dropped, until it closes too, or has sent as much as a request may have, or
`LINGER_S` is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ...kafka.errors import Code, KafkaError, ProtocolError
from ...kafka.protocol import Connection, Memory, Request, decode_body, encode, splice
from ...kafka.records import Producer, producer_of
from ...ledger import LedgerError
from ...metadata import Buffer
from ...proto.pulsar_api_pb2 import ServerError
from ...tcp import has_ended, keep_alive
from ...wire import TopicName
from ..connection.closing import Ending
from ..connection.services import Services
from ..errors import RefusedError
from ..topics.topic import Topic
from .access import Access, Admitted, mechanisms, without_sasl
from .fetch_sessions import FetchSessions, UnsentRecords
from .groups.coordinator import Coordinator
from .groups.offsets import Offsets
from .groups.transactions import TransactionCoordinator
from .partitions import Partitions, ProducerIds, TopicIds
from .reading import Conversions, Figures
from .topics import CHECK, JOURNAL, Brokers, KafkaTopics

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Handler:
    """The function for one kind of request, and the number of parts of its answer.

    A request with more than `MANY_PARTS` is handled together with a few others only, over all
    connections: decoded parts, and those of an answer, take a hundred times the bytes of a request.
    """

    #: Handles a request. A returned coroutine holds up later requests until it ends.
    run: Callable[[KafkaSession, Request], Coroutine[Any, Any, None] | None]
    #: How many parts the request or its answer has (topics, partitions, groups, settings), as is
    #: known before the work begins.
    parts: Callable[[KafkaSession, Request], int]
    #: Whether the coroutine goes on when its client goes away (`Endpoint.going_on`).
    goes_on: bool = False


def one_part(_session: KafkaSession, _request: Request) -> int:
    """The number of parts of a request that names one thing: 1."""
    return 1


def parts_of(outer: str, inner: str | None = None) -> Callable[[KafkaSession, Request], int]:
    """The number of items in a field of the request, and of those in a field of each item."""

    def count(_session: KafkaSession, request: Request) -> int:
        items = getattr(request.body, outer) or ()
        if inner is None:
            return len(items)
        return sum(1 + len(getattr(each, inner) or ()) for each in items)

    return count


@contextmanager
def refusing(answer: Any, failed: Code = Code.KAFKA_STORAGE_ERROR) -> Iterator[None]:
    """Put the error of this block, if it has one, into an answer or a part of one.

    `failed`: the code if the broker's storage fails.
    """
    try:
        yield
    except KafkaError as refusal:
        answer.error_code = refusal.code
        if hasattr(answer, "error_message"):
            answer.error_message = refusal.message
    except (LedgerError, OSError) as error:
        log.warning("a request of a Kafka client failed: %s", error)
        answer.error_code = failed


def named_partitions(body: Any) -> Iterator[tuple[str, Any]]:
    """Each partition that a request names, with the name of its topic."""
    for topic in body.topics or ():
        for each in topic.partitions or ():
            yield topic.name or "", each


#: The question to the coordinator, whether a transaction has ended.
STATE = "state of a Kafka client's transaction"
CHECK_INTERVAL_S = 1.0
#: A log of committed offsets that could not be read is read again after this time.
AGAIN_S = 1.0
LARGE_AT_ONCE = 2
CHECKED_AT_ONCE = 2
LARGE_SETS_AT_ONCE = 2
#: A request with more parts is a large one.
MANY_PARTS = 2_000
#: The most parts of all work that goes on when its clients go away, and what each counts beside
#: its parts: a part takes about 200 bytes, and a connection that has ended 10 KiB.
MAX_PARTS_GOING_ON, PARTS_OF_WORK = 100_000, 50
#: Input that is not counted as input memory; more of it is not read while a request waits.
FREE_INPUT_BYTES = 64 * 1024
#: With more topics or partitions, an answer is encoded in a thread.
ENCODED_AT_ONCE_PARTS = 500
#: The largest answer, without records. A client that asks for more is disconnected.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
#: The largest part of an answer, in bytes, without texts that clients have sent.
PART_BYTES = 64
#: Buffers with a smaller average size are joined, since a copy costs less than one more buffer.
JOIN_BELOW_BYTES = 2 * 1024
#: How long a client may take to close its side, after the broker closed its own.
LINGER_S = 1.0
#: How long one connection's requests may run in one turn of the loop.
TURN_S = 0.01


class KafkaSession(asyncio.BufferedProtocol):
    """A client's connection, from accept to close."""

    #: The number of topics whose publish rates this client exceeds (KIP-219).
    throttles = 0
    #: After the end of our direction, until the client's: how many bytes may still be dropped, and
    #: until when.
    _room_bytes: int | None = None
    _ends_at_s = 0.0

    def __init__(self, endpoint: Endpoint, handlers: Mapping[int, Handler], port: int) -> None:
        self.endpoint = endpoint
        #: The port in Metadata and FindCoordinator: with or without TLS, as the client came.
        self.port = port
        self.config = endpoint.config
        self.address = "-"
        self.host = ""
        self.is_closed = False
        self.connection = Connection(endpoint.config.max_kafka_request_bytes, endpoint.memory)
        #: Records that the last answers to fetches left out.
        self.unsent_records = UnsentRecords()
        #: Bytes of publishes that are not durable yet.
        self.publishing_bytes = 0
        self._services = endpoint.services
        self.in_turns = endpoint.turns.each
        #: The client's identity; None until it is authenticated.
        self.admitted: Admitted | None = None
        self.access = endpoint.access_of(None)
        #: The mechanism that a SaslHandshake chose, and the one that authenticated the client.
        self.sasl_mechanism: str | None = None
        self.authenticated_by: str | None = None
        #: The challenge after a token was refused; the client has to answer it.
        self.sasl_challenge: str | None = None
        self.peer_certificate: Any = None
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        #: The request that holds up later ones.
        self._blocking: Request | None = None
        #: Ends the request's wait if the connection is lost.
        self._give_up: Callable[[], None] | None = None
        self._is_reading = True
        #: The broker is being closed.
        self.is_stopping = False
        self._writable = True
        self._has_turn = False
        self._counts_input = False
        self._active_at_s = self._began_at_s = self._made_at_s = self._loop.time()
        self._largest_buffer_bytes = 0

    # -- asyncio's calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast("asyncio.Transport", transport)
        high = self.config.write_buffer_high_water_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 2)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address, self.host = f"/{peer[0]}:{peer[1]}", f"/{peer[0]}"
        near = transport.get_extra_info("socket")
        if near is not None:
            keep_alive(near, self.config.keep_alive_interval_ms)
        self.peer_certificate = transport.get_extra_info("peercert")
        self.endpoint.sessions.add(self)
        self._services.count_connection(self.address, 1)
        self.connection.is_admitted = False
        admitted = without_sasl(self._services.authenticator, self.peer_certificate)
        if admitted is not None:
            self.admit(admitted)

    def admit(self, admitted: Admitted) -> None:
        """The client is authenticated."""
        self.admitted = admitted
        self.access = self.endpoint.access_of(admitted.role)
        self.connection.is_admitted = True

    def group_code(self, group: str) -> Code:
        """The code with which requests about a group are refused; NONE if they are not."""
        return self.access.group_code(group) or self.endpoint.group_refusal()

    def _check_expiry(self) -> None:
        """Refuse all but a new authentication if the credentials have expired (KIP-368)."""
        expires_at_ms = None if self.admitted is None else self.admitted.expires_at_ms
        if expires_at_ms is None or self.endpoint.now_ms() < expires_at_ms:
            return
        self.connection.is_admitted = False
        if self._blocking is not None and self._task is None:
            self.close_because("the credentials expired while a request waited")

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next input."""
        return self.endpoint.memory.shared if self.is_closed else self.connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived: handle the requests they complete."""
        if self.is_closed:
            if self._room_bytes is not None:
                self._room_bytes -= nbytes
                if self._room_bytes < 0:
                    self._stop_lingering()
            return
        now_s = self._loop.time()
        if not self.connection.pending_bytes:
            self._began_at_s = now_s
        self._active_at_s = now_s
        self.connection.buffer_updated(nbytes)
        self._take_turn()

    def eof_received(self) -> None:
        """The client has sent its last byte; asyncio then closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._transport = None
        self._end()
        self.endpoint.sessions.discard(self)
        self._services.count_connection(self.address, -1)
        self._services.output.forget(self)

    def pause_writing(self) -> None:
        """Unsent data is above the high-water mark."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has read."""
        self._writable = True
        self.go_on()

    # -- requests -------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """Handle complete requests, for a limited time; the rest waits for the next turn."""
        self._has_turn = False
        until_s = time.monotonic() + TURN_S
        request = None
        progressed = False
        self._check_expiry()
        try:
            while self._may_take() and (request := self.connection.take()) is not None:
                progressed = True
                self._handle(request)
                if time.monotonic() >= until_s:
                    self.go_on()
                    break
        except ProtocolError as violation:
            self.close_because(str(violation))
        except Exception:
            name = "request" if request is None else request.api.name
            log.exception("%s: connection closed: handling a %s failed", self.address, name)
            self.close()
        if not self.is_closed:
            self._count_input(progressed)

    def _may_take(self) -> bool:
        """Whether another request may be handled now."""
        connection, config = self.connection, self.config
        return (
            not self.is_closed
            and self._blocking is None
            and not self.is_stopping
            and not self.throttles
            and self._writable
            and connection.unanswered < config.max_kafka_pending_requests_per_connection
            and connection.waiting_bytes <= 2 * config.max_kafka_request_bytes
            and not self._services.budget.is_exhausted_for(self)
            and self._services.output.has_room(self)
        )

    def _handle(self, request: Request) -> None:
        handler = self._handlers[request.api.key]
        parts = MANY_PARTS + 1 if request.undecoded is not None else handler.parts(self, request)
        if parts <= MANY_PARTS:
            work = handler.run(self, request)
            if work is not None and handler.goes_on:
                work = self.endpoint.going_on(work, parts)
        else:
            work = self._handle_large(request, goes_on=handler.goes_on)
        if work is not None and self.is_closed:
            work.close()
        elif work is not None:
            self._blocking = request
            self._task = self._loop.create_task(self._run(request, work))
            # If the connection ends before the task's first step, the coroutine never begins.
            self._task.add_done_callback(lambda _: work.close())

    async def _handle_large(self, request: Request, *, goes_on: bool) -> None:
        """Handle a request with a large body, or with many parts. It has its place to its end."""
        places = self.endpoint.large_requests
        await places.acquire()
        working = asyncio.ensure_future(self.handle_large_now(request))
        working.add_done_callback(lambda _: places.release())
        await (asyncio.shield(working) if goes_on else working)

    async def handle_large_now(self, request: Request) -> None:
        """As `_handle_large`, for a caller that has taken its place in `large_requests`."""
        if request.undecoded is not None:
            await self._services.run_blocking(decode_body, request)
        work = self._handlers[request.api.key].run(self, request)
        if work is not None:
            await work

    async def _run(self, request: Request, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ProtocolError as violation:
            self.close_because(str(violation))
        except Exception:
            log.exception(
                "%s: connection closed: handling a %s failed", self.address, request.api.name
            )
            self.close()
        finally:
            self._task = None
            if self._give_up is None and self._blocking is request:
                self._blocking = None
                self.go_on()

    def block(self, request: Request, give_up: Callable[[], None]) -> None:
        """Hold up later requests until this is answered; `give_up` is called on a loss."""
        self._blocking, self._give_up = request, give_up

    def go_on(self) -> None:
        """Handle more requests in the next turn, if nothing holds them up any more."""
        if not self._has_turn and not self.is_closed:
            self._has_turn = True
            self._loop.call_soon(self._take_turn)

    def _count_input(self, progressed: bool) -> None:
        pending_bytes = self.connection.pending_bytes
        if progressed:
            self._began_at_s = self._loop.time()
        reads = pending_bytes <= FREE_INPUT_BYTES or self._may_take()
        if reads is not self._is_reading and self._transport is not None:
            self._is_reading = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        held_bytes = pending_bytes - FREE_INPUT_BYTES
        if held_bytes > 0 or self._counts_input:
            self._counts_input = held_bytes > 0
            self._services.input.hold(self, max(held_bytes, 0), begins=progressed)

    # -- answers --------------------------------------------------------------------------------

    @property
    def security_protocol(self) -> str:
        """The name of the connection's security protocol, as Kafka has it."""
        is_tls = self._transport is not None and self._transport.get_extra_info("sslcontext")
        has_sasl = bool(mechanisms(self._services.authenticator))
        return f"{'SASL_' if has_sasl else ''}{'SSL' if is_tls else 'PLAINTEXT'}"

    def _answered(self, request: Request, buffers: Sequence[Buffer]) -> None:
        self._active_at_s = self._loop.time()
        self._write(self.connection.answer(request, buffers))
        if self.connection.held_bytes:
            self._services.output.wrote(self)
        if self._blocking is request:
            self._give_up = None
            if self._task is None:
                self._blocking = None
        if self.connection.pending_bytes or not self._is_reading:
            self.go_on()

    def answer(
        self, request: Request, response: Any, records: Sequence[Sequence[Buffer]] = ()
    ) -> None:
        """Answer a request, after all earlier ones. `records` replace the marks in the response."""
        if self.is_closed:
            return
        self._answered(request, _encoded(request, response, records))

    async def answer_by_size(
        self, request: Request, response: Any, parts: int, records: Sequence[Sequence[Buffer]] = ()
    ) -> None:
        """As `answer`; a thread encodes a response with many parts, such as partitions."""
        if parts <= ENCODED_AT_ONCE_PARTS:
            self.answer(request, response, records)
            return
        buffers = await self._services.run_blocking(_encoded, request, response, records)
        if not self.is_closed:
            self._answered(request, buffers)

    def answer_frame(self, request: Request, frame: bytes) -> None:
        """Answer a request with a frame that was encoded elsewhere."""
        if not self.is_closed:
            self._answered(request, [frame])

    def answer_nothing(self, request: Request) -> None:
        """End a request without an answer: a Produce with acks=0."""
        if not self.is_closed:
            self._answered(request, ())

    async def named(
        self,
        items: Iterable[T],
        answer_bytes: Callable[[T], int] = lambda _: PART_BYTES,
        *,
        key: Callable[[T], Hashable] | None = None,
    ) -> AsyncIterator[T]:
        """Yield each item of a request once, when the loop has time for it.

        `answer_bytes` says how large the answer about an item will be, before it is made. Of items
        with the same `key` the first one counts.

        Raises ProtocolError: all answers together would have more than `MAX_ANSWER_BYTES`.
        """
        seen: set[Hashable] = set()
        total_bytes = 0
        async for item in self.in_turns(items):
            thing: Hashable = item if key is None else key(item)
            if thing in seen:
                continue
            seen.add(thing)
            total_bytes += answer_bytes(item)
            if total_bytes > MAX_ANSWER_BYTES:
                raise ProtocolError(
                    f"an answer of {total_bytes} bytes or more; at most {MAX_ANSWER_BYTES} are sent"
                )
            yield item

    async def gathered(self, items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
        """Group a request's items by key, giving way to other work on the loop."""
        found: dict[K, list[T]] = {}
        async for item in self.in_turns(items):
            found.setdefault(key(item), []).append(item)
        return found

    # -- what is written ------------------------------------------------------------------------

    def _write(self, buffers: Sequence[Buffer]) -> None:
        transport = self._transport
        if not buffers or transport is None or transport.is_closing():
            return
        self._largest_buffer_bytes = _write_buffers(transport, buffers, self._largest_buffer_bytes)
        self._services.output.wrote(self)

    def unsent_bytes(self) -> int:
        """Data written that the socket has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # The kernel sends the socket's bytes even after the connection was closed.
    untaken_bytes = unsent_bytes

    def held_output_bytes(self) -> int:
        """The memory of unsent data, whole buffers of views, and of answers that wait."""
        unsent_bytes = self.unsent_bytes()
        held_bytes = self.connection.held_bytes
        return held_bytes + (unsent_bytes + self._largest_buffer_bytes if unsent_bytes else 0)

    # -- what the broker's limits call -----------------------------------------------------------

    publishes_changed = output_freed = go_on

    def storage_failed(self, error: BaseException) -> None:
        """An append failed."""
        self._services.storage.failed(error)

    def give_up_input(self) -> None:
        """Input memory is full, and this connection has held some for the longest time."""
        self._counts_input = False
        self.close_because("requests of all clients exceed max_input_buffer_bytes")

    def give_up_output(self) -> None:
        """Output memory is full, and this client has read nothing for the longest time."""
        log.info("%s: connection closed: unsent data exceeds pulsemarkMaxUnsentBytes", self.address)
        self.abort()

    def throttle(self) -> None:
        """A topic gets records too fast: take no requests until `unthrottle`."""
        self.throttles += 1

    def unthrottle(self) -> None:
        """The topic takes records again."""
        self.throttles -= 1
        self.go_on()

    # -- time and ending --------------------------------------------------------------------------

    def check_time(self, now_s: float) -> None:
        """Called about once a second: close a connection that is idle or stalled."""
        if self._room_bytes is not None and now_s >= self._ends_at_s:
            self._stop_lingering()
        config = self.config
        pending_bytes = self.connection.pending_bytes
        self._check_expiry()
        late_s = now_s - self._made_at_s - config.handshake_timeout_ms / 1000
        if self.admitted is None and late_s > 0:
            self.close_because("the client was not authenticated within handshake_timeout_ms")
        if not self.is_closed and not self._is_reading and has_ended(self._transport):
            log.info("%s: the client has ended while the broker did not read", self.address)
            self.abort()
        if self.is_closed or self._blocking is not None or self.throttles:
            return
        if pending_bytes and self._is_reading:
            rate_s = pending_bytes / config.min_frame_rate_bytes_per_s
            if now_s - self._began_at_s > config.stalled_frame_timeout_ms / 1000 + rate_s:
                self.close_because("a request was not complete after stalled_frame_timeout_ms")
        elif now_s - self._active_at_s > config.kafka_idle_timeout_ms / 1000:
            self.close_because("nothing was sent for kafka_idle_timeout_ms")

    def stop_reading(self) -> None:
        """The broker is closing: take no more requests, and answer those that were taken."""
        self.is_stopping = True

    @property
    def is_busy(self) -> bool:
        """Whether the client waits for answers to publishes or changes."""
        works = self.publishing_bytes or self._task is not None
        return bool(works) and not self.is_closed

    @property
    def is_drained(self) -> bool:
        """Whether everything was sent, and the client had time to read it."""
        return not self.unsent_bytes() and self._room_bytes is None

    def close_because(self, reason: str) -> None:
        """Close, and log the reason."""
        if not self.is_closed:
            log.info("%s: Kafka connection closed: %s", self.address, reason)
            self.close()

    def close(self) -> None:
        """Send buffered data, and close when the client has closed its side."""
        if not self.is_closed:
            self._end()
            self._linger()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._services.budget.forget(self)
        self._services.input.forget(self)
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up()
        if self._task is not None:
            self._task.cancel()

    def _linger(self) -> None:
        """Send buffered data, end the own direction, and wait until the client closes."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not transport.can_write_eof():  # TLS
            transport.close()
            return
        self._room_bytes = self.config.max_kafka_request_bytes
        self._ends_at_s = self._loop.time() + LINGER_S
        transport.resume_reading()
        transport.write_eof()

    def _stop_lingering(self) -> None:
        """Send buffered data, then close."""
        self._room_bytes = None
        if self._transport is not None:
            self._transport.close()


async def _waited(work: asyncio.Task[None]) -> None:
    """Wait for what goes on even if this is cancelled."""
    await asyncio.shield(work)


def _encoded(
    request: Request, response: Any, records: Sequence[Sequence[Buffer]]
) -> Sequence[Buffer]:
    frame = encode(request, response)
    return splice(frame, records) if records else [frame]


def _write_buffers(
    transport: asyncio.Transport, buffers: Sequence[Buffer], largest_bytes: int
) -> int:
    """Write buffers. Return the memory that the largest one holds, or `largest_bytes`.

    Entries of one read are views on the same bytes, which are held until the last one is sent.
    """
    if len(buffers) == 1:
        transport.write(buffers[0])
    elif sum(map(len, buffers)) < JOIN_BELOW_BYTES * len(buffers):
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)
        return max(
            memoryview(each.obj).nbytes if isinstance(each, memoryview) else len(each)
            for each in buffers
        )
    return largest_bytes


class Endpoint:
    """One broker's Kafka endpoint."""

    def __init__(self, services: Services, host: str, handlers: Mapping[int, Handler]) -> None:
        """`host`: the host that clients are told; `handlers`: by API key (package `handlers`)."""
        self.services = services
        self.config = config = services.config
        self.host = host
        self.now_ms = config.clock.now_ms
        self.turns = services.topics.turns
        self.topics = KafkaTopics(services)
        self._handlers = handlers
        self.sessions: set[KafkaSession] = set()
        self.loop = asyncio.get_running_loop()
        self.partitions = Partitions(self.topics)
        self.producer_ids = ProducerIds(services)
        self.topic_ids = TopicIds(config.cluster)
        self.figures = Figures()
        self.memory = Memory()
        self.fetch_sessions = FetchSessions(
            self.loop.time,
            config.max_kafka_fetch_sessions,
            config.max_kafka_fetch_session_partitions,
        )
        #: Requests with large bodies or many parts that are handled at the same time: decoded they,
        #: and their answers, take a hundred times their size.
        self.large_requests = asyncio.Semaphore(LARGE_AT_ONCE)
        #: Of all work that goes on without its clients.
        self._parts_going_on = 0
        #: Sets that are checked in a thread.
        self.checks = asyncio.Semaphore(CHECKED_AT_ONCE)
        #: Sets that may take much more memory and time in a thread, produced and fetched.
        self.large_sets = asyncio.Semaphore(LARGE_SETS_AT_ONCE)
        self.conversions = Conversions(
            self.figures, lambda make: self.in_lane(self.large_sets, make), self.loop.time
        )
        self._rewriting: asyncio.Task[None] | None = None
        self._checking: asyncio.TimerHandle | None = None
        self.cluster = Brokers(services.cluster, self.topics, host)
        #: Reads the offsets' log when this broker begins to coordinate.
        self._loading: asyncio.Task[None] | None = None
        self._is_over = False
        self._transactions: TransactionCoordinator | None = None
        self._coordinate_nothing()

    async def start(self) -> None:
        """Read what the catalog and the offsets' log have. Raises LedgerError, OSError."""
        await self.topics.load()
        if self.services.cluster is None:
            await self._coordinate()
        else:
            self.cluster.follow(self._moved)
        self._check()
        services = self.services
        services.inner.answering |= {CHECK: self._checked, STATE: self._state_of}
        services.participants.coordinators.append(self._has_ended)
        services.kafka_sessions, services.kafka_figures = self.sessions, self._rows

    # -- coordinating groups and transactions ---------------------------------------------------

    async def _coordinate(self) -> None:
        """Read the offsets' log, and coordinate from now on. Raises LedgerError, OSError."""
        services, config = self.services, self.config
        name = JOURNAL if services.cluster is None else str(self.topics.journal_name)
        journal = await services.topics.open_internal(name)
        offsets = Offsets(journal, services.run_blocking, config.max_kafka_committed_offsets)
        await services.run_blocking(offsets.load)
        self._take(offsets)
        self._transactions = TransactionCoordinator(offsets, self.topics, self.producer_ids, config)

    def _take(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self.groups = Coordinator(self.config, self.loop, offsets, self.topics.partitions_of)

    def _coordinate_nothing(self) -> None:
        """Forget groups, offsets and transactions, since another broker coordinates them."""
        self._take(Offsets(None, self.services.run_blocking, 0))
        self._transactions = None

    def _moved(self) -> None:
        """Begin or end coordinating, after this broker's bundles have changed."""
        if not self.cluster.coordinates():
            if self._loading is not None:
                self._loading.cancel()
                self._loading = None
            self._leave()
        elif self._transactions is None and self._loading is None and not self._is_over:
            self._loading = self.loop.create_task(self._load())

    def _leave(self) -> None:
        """Stop coordinating: another broker does from now on."""
        if self._transactions is not None:
            self.groups.close()
            self._transactions.close()
            self._coordinate_nothing()

    async def _load(self) -> None:
        try:
            await self._coordinate()
        except (LedgerError, OSError) as error:
            log.warning("committed offsets could not be read: %s", error)
            self.loop.call_later(AGAIN_S, self._moved)
        finally:
            if self._loading is asyncio.current_task():
                self._loading = None
        if not self.cluster.coordinates():
            self._leave()

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transactions. Raises KafkaError if another broker coordinates them."""
        refusal, found = self.group_refusal(), self._transactions
        if refusal or found is None:
            raise KafkaError(refusal, "this broker does not coordinate transactions, or not yet")
        return found

    @property
    def coordinates(self) -> bool:
        """Whether this broker coordinates groups and transactions."""
        return self.cluster.coordinates() and self._transactions is not None

    def group_refusal(self) -> Code:
        """The code that refuses requests about groups; NONE on the coordinator."""
        if not self.cluster.coordinates():
            self.cluster.offer()
            return Code.NOT_COORDINATOR
        is_loaded = self._transactions is not None
        return Code.NONE if is_loaded else Code.COORDINATOR_LOAD_IN_PROGRESS

    def session(self, port: int) -> KafkaSession:
        """The protocol of a new connection. Metadata names `port` to its client."""
        return KafkaSession(self, self._handlers, port)

    def access_of(self, role: str | None) -> Access:
        """The permissions of a client with a role."""
        return Access(self.services.authorizer, self.config.kafka_namespace, role)

    def _rows(self) -> Iterator[tuple[str, str, float]]:
        """Name, text and value of each figure for the metrics page."""
        fetching = self.fetch_sessions
        yield "pulsemark_kafka_connections", "Kafka clients", len(self.sessions)
        count = len(self.groups.groups)
        yield "pulsemark_kafka_groups", "Consumer groups with members", count
        prefix = "pulsemark_kafka_fetch_session"
        yield f"{prefix}s", "Fetch sessions of Kafka clients", len(fetching)
        yield f"{prefix}_partitions", "Partitions of all fetch sessions", fetching.partitions
        text = "Fetch sessions that began since the broker was started"
        yield f"{prefix}s_begun", text, fetching.begun
        text = "Fetch sessions that made room for others"
        yield f"{prefix}s_evicted", text, fetching.evictions
        yield from self.figures.rows()

    def going_on(self, work: Coroutine[Any, Any, None], parts: int) -> Coroutine[Any, Any, None]:
        """Begin work that goes on when its client goes away, and return what waits for it.

        What would be more than `MAX_PARTS_GOING_ON` ends with its client, as other work does.
        """
        parts += PARTS_OF_WORK
        if self._parts_going_on + parts > MAX_PARTS_GOING_ON:
            return work

        def ended(_: asyncio.Task[None]) -> None:
            self._parts_going_on -= parts

        self._parts_going_on += parts
        working = asyncio.ensure_future(work)
        working.add_done_callback(ended)
        return _waited(working)

    async def in_lane(
        self, lane: asyncio.Semaphore, function: Callable[..., T], *args: object
    ) -> T:
        """Run a blocking function when the lane has a free place.

        The place is taken until the function ends, also if the caller is cancelled before.
        """
        await lane.acquire()
        try:
            work = asyncio.ensure_future(self.services.run_blocking(function, *args))
        except BaseException:
            lane.release()
            raise

        def ended(work: asyncio.Future[T]) -> None:
            lane.release()
            if not work.cancelled():
                work.exception()  # the caller may be gone

        work.add_done_callback(ended)
        return await asyncio.shield(work)

    def _check(self) -> None:
        """Once a second: close idle connections, rewrite the offsets' log, free memory."""
        self._checking = self.loop.call_later(CHECK_INTERVAL_S, self._check)
        self.memory.trim()
        self.conversions.drop_unused()
        now_s = self.loop.time()
        for session in tuple(self.sessions):
            session.check_time(now_s)
        if self._transactions is not None:
            self._transactions.check_time()
        if self.offsets.is_due and self._rewriting is None:
            self._rewriting = self.loop.create_task(self._rewrite())

    def stop_checking(self) -> None:
        """Stop the check of each second."""
        if self._checking is not None:
            self._checking.cancel()

    async def _rewrite(self) -> None:
        try:
            await self.offsets.rewrite()
        except (LedgerError, OSError) as error:
            log.warning("the log of committed offsets was not shortened: %s", error)
        finally:
            self._rewriting = None

    # -- what other brokers ask -----------------------------------------------------------------

    async def _checked(
        self,
        _journal: TopicName,
        *,
        transactional_id: str,
        producer: Sequence[int],
        partition: Sequence[Any],
        adds: bool,
    ) -> tuple[int, str]:
        """Answer another broker about a transaction's batch: code and text, or 0 and an id."""
        topic, index = partition
        try:
            coordinator = self.transactions
            if adds:
                if not 0 <= index < self.topics.partitions_of(topic):
                    # Its creation was not heard of yet: to end a transaction there does nothing.
                    raise KafkaError(Code.NOT_ENOUGH_REPLICAS, f"{topic} is not known here yet")
                await coordinator.add(transactional_id, Producer(*producer), [(topic, index)])
            found = coordinator.check_write(transactional_id, Producer(*producer), (topic, index))
        except KafkaError as refusal:
            passes = refusal.code in (Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS)
            return Code.NOT_ENOUGH_REPLICAS if passes else refusal.code, refusal.message
        return 0, found

    async def _state_of(self, _journal: TopicName, *, transaction: str) -> bool:
        """Answer another broker whether an open transaction has ended everywhere else."""
        try:
            return self.transactions.has_ended(transaction)
        except KafkaError as refusal:
            raise RefusedError(ServerError.ServiceNotReady, refusal.message) from refusal

    async def _has_ended(self, _topic: Topic, transaction: str) -> bool | None:
        """Whether the coordinator says that it has ended; None: no Kafka transaction."""
        if producer_of(transaction) is None:
            return None
        ask, journal = self.services.inner.ask, self.topics.journal_name
        return bool(await ask(journal, STATE, transaction=transaction))

    # -- closing --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer requests in progress, and close the connections, within `shutdown_timeout_ms`."""
        ending = Ending.begin(self.config.shutdown_timeout_ms)
        self.stop_reading()
        await ending.answered(
            lambda: self._parts_going_on > 0 or any(session.is_busy for session in self.sessions)
        )
        for session in tuple(self.sessions):
            session.close()
        await ending.sent(self.sessions)
        for session in tuple(self.sessions):
            session.abort()
        self.stop_checking()
        if self._transactions is not None:
            self._transactions.close()
        if self._rewriting is not None:
            await asyncio.wait([self._rewriting])

    def stop_reading(self) -> None:
        """Take no more requests, and end the waits of groups."""
        self._is_over = True
        if self._loading is not None:
            self._loading.cancel()
        self.groups.close()
        for session in tuple(self.sessions):
            session.stop_reading()
