"""One connection of a client to a broker, for one thread, with its producers and consumers.

All that it sends by itself are answers to PING (this can be switched off). It does no lookup before
it opens a producer, gives no permits without flow(), and does not reconnect. Every wait has a
timeout: the connection's, or the call's own.

The socket is non-blocking: while this side writes, it also reads. So there is no
deadlock with a peer that reads nothing until its answers are read.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from ..proto import pulsar_api_pb2 as pb
from ..wire import Buffer, Command, Connection, Event, Message, MessageId, Role, commands, to_signed
from . import errors

DEFAULT_TIMEOUT_S = 10.0
CLIENT_VERSION = "pulsemark-client"
_T = pb.BaseCommand.Type
T = TypeVar("T")

# Queued bytes are written when there are this many, or when a call waits.
_FLUSH_SIZE_BYTES = 64 * 1024
_SEND_SIZE_BYTES = 256 * 1024


class BrokerConnection:
    """One connection to a broker.

    Args:
        host, port: where the broker listens.
        timeout_s: the timeout of all calls without their own.
        ssl_context, server_hostname: TLS, and the host name that the certificate must have.
        handshake, answers_pings: False sends no CONNECT, or leaves the broker's PINGs unanswered.
        connect: the arguments of `connect`; by default without feature flags.

    Attributes:
        connected: the broker's CONNECTED; None before the handshake or without one.
        unsolicited: commands that answer no request (CLOSE_CONSUMER, AUTH_CHALLENGE, PONG ...),
            oldest first.

    Raises ConnectionLostError, WaitTimeoutError, RequestRefusedError (the handshake's ERROR),
    OSError (for example if no process listens at the port).
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        handshake: bool = True,
        answers_pings: bool = True,
        **connect: Any,
    ) -> None:
        sock = socket.create_connection((host, port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            sock = ssl_context.wrap_socket(sock, server_hostname=server_hostname or host)
        self.answers_pings = answers_pings
        self.connected: pb.CommandConnected | None = None
        self.unsolicited: deque[Command] = deque()
        sock.setblocking(False)
        self.timeout_s = timeout_s
        self.is_closed = False
        self._sock = sock
        self._wire = Connection(Role.CLIENT)
        self._out = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._next_id = 0
        self._responses: dict[int, deque[Command]] = {}
        self._producers: dict[int, ProducerChannel] = {}
        self._consumers: dict[int, RawConsumer] = {}
        if handshake:
            try:
                self.connect(**connect)
            except BaseException:
                self.close()
                raise

    @classmethod
    def from_url(cls, service_url: str, **options: Any) -> Self:
        """Connect to `pulsar://host:port` (or `pulsar+ssl://`, with ssl_context in `options`).

        Raises ServiceUrlError (a ValueError) for any other URL.
        """
        parts = urlsplit(service_url)
        if parts.scheme not in {"pulsar", "pulsar+ssl"} or parts.hostname is None:
            raise errors.ServiceUrlError(service_url, "not pulsar://HOST:PORT")
        if parts.scheme == "pulsar+ssl" and options.get("ssl_context") is None:
            raise errors.ServiceUrlError(service_url, "needs an ssl_context")
        default_port = 6650 if parts.scheme == "pulsar" else 6651
        return cls(parts.hostname, parts.port or default_port, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; bytes not flushed are dropped. A lost connection closes it, too."""
        self.is_closed = True
        self._sock.close()

    # ---- the socket --------------------------------------------------------------------------

    def post(self, *parts: Buffer) -> None:
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
        """Write all queued bytes. Raises WaitTimeoutError, ConnectionLostError, ProtocolError."""
        deadline = time.monotonic() + self.timeout_s
        while self._out:
            what = "room to write"
            if not self._write_some(what):
                self._wait_ready(select.POLLIN | select.POLLOUT, what, deadline, self.timeout_s)
                self._read_some(what)

    def fileno(self) -> int:
        """The socket's descriptor, to wait for several connections at once."""
        return self._sock.fileno()

    def pump(self) -> None:
        """Write and read without waiting. Raises ConnectionLostError, ProtocolError."""
        if self.is_closed:
            raise errors.ConnectionLostError("answers")
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
                raise errors.WaitTimeoutError(what, limit_s)
            self.flush()
        return found

    def _wait_ready(self, mask: int, what: str, deadline: float, limit_s: float) -> None:
        """Sleep until the socket can do one of `mask`."""
        left_s = deadline - time.monotonic()
        if self.is_closed:
            raise errors.ConnectionLostError(what)
        self._poll.modify(self._sock, mask)
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            raise errors.WaitTimeoutError(what, limit_s)

    def _write_some(self, what: str) -> bool:
        """Write some queued bytes; False if the socket accepts none now."""
        try:
            with memoryview(self._out) as queued:
                size = self._sock.send(queued[:_SEND_SIZE_BYTES])
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            self.close()
            raise errors.ConnectionLostError(what) from error
        del self._out[:size]
        return True

    def _read_some(self, what: str) -> bool:
        """Read once and pass the events on; False if there is nothing to read now."""
        try:
            size = self._sock.recv_into(self._wire.get_buffer())
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self.close()
            raise errors.ConnectionLostError(what) from error
        if size == 0:
            self.close()
            raise errors.ConnectionLostError(what)
        self._wire.buffer_updated(size)
        for event in self._wire.events():
            self._route(event)
        return True

    # ---- the connection ----------------------------------------------------------------------

    def connect(
        self,
        *,
        client_version: str = CLIENT_VERSION,
        **fields: Unpack[commands.ConnectFields],
    ) -> pb.CommandConnected:
        """Send CONNECT and wait for CONNECTED.

        Raises RequestRefusedError after an ERROR.
        """
        self.post(commands.connect(client_version, **fields))
        self.connected = None
        return self.wait_connected()

    def wait_connected(self) -> pb.CommandConnected:
        """Wait for CONNECTED. Raises RequestRefusedError after an ERROR."""
        return self.wait(self._take_handshake, "CONNECTED")

    def ping(self, timeout_s: float | None = None) -> None:
        """Send PING and wait for PONG."""
        self.post(commands.PING)
        self.wait_unsolicited(_T.PONG, timeout_s)

    def write(self, *data: Buffer) -> None:
        """Send any bytes."""
        self.post(*data)
        self.flush()

    def wait_closed(self, timeout_s: float | None = None) -> None:
        """Wait until the broker closes the connection. Raises WaitTimeoutError."""
        try:
            self.wait(lambda: None, "end of the connection", timeout_s)
        except errors.ConnectionLostError:
            self.close()

    def wait_unsolicited(self, kind: int, timeout_s: float | None = None) -> Any:
        """The body of the next command of type `kind` that does not answer a request."""

        def take() -> Command | None:
            for command in self.unsolicited:
                if command.type == kind:
                    self.unsolicited.remove(command)
                    return command
            return None

        name = pb.BaseCommand.Type.Name(kind)
        return self.wait(take, name, timeout_s).body

    def new_id(self) -> int:
        """A new id for a request, a producer or a consumer."""
        self._next_id += 1
        return self._next_id

    def request(self, build: Callable[[int], bytes], timeout_s: float | None = None) -> Any:
        """Send the frame that `build(request_id)` makes, and return the body of the answer.

        Raises RequestRefusedError if the answer is ERROR, or a response with an error field.
        """
        request_id = self.new_id()
        self.post(build(request_id))
        return self.wait_response(request_id, timeout_s)

    def wait_response(self, request_id: int, timeout_s: float | None = None) -> Any:
        """The body of the next answer to `request_id`; some requests get more than one."""

        def take() -> Command | None:
            answers = self._responses.get(request_id)
            return answers.popleft() if answers else None

        body = self.wait(take, f"answer to request {request_id}", timeout_s).body
        errors.RequestRefusedError.raise_if_refused(body)
        return body

    # ---- requests ----------------------------------------------------------------------------

    def lookup(self, topic: str, **options: Any) -> pb.CommandLookupTopicResponse:
        """Which broker serves `topic`; `options` as in commands.lookup."""
        answer: pb.CommandLookupTopicResponse = self.request(
            partial(commands.lookup, topic, **options)
        )
        return answer

    def topics(self, namespace: str) -> list[str]:
        """Full names of a namespace's persistent topics, each partition by itself."""
        return list(self.request(partial(commands.get_topics_of_namespace, namespace)).topics)

    def schema(self, topic: str, version: bytes | None = None) -> tuple[pb.Schema, bytes]:
        """A topic's schema of a version (None: the latest), with its version."""
        answer = self.request(partial(commands.get_schema, topic, schema_version=version))
        return answer.schema, answer.schema_version

    def register_schema(self, topic: str, schema: pb.Schema) -> bytes:
        """Register a schema, if it is new, and return its version."""
        answer = self.request(partial(commands.get_or_create_schema, topic, schema=schema))
        return bytes(answer.schema_version)

    def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions `topic` has, 0 if it is not partitioned."""
        build = partial(commands.partitioned_metadata, topic, metadata_auto_creation_enabled=create)
        return int(self.request(build).partitions)

    def create_producer(
        self,
        topic: str,
        *,
        producer_id: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[commands.ProducerOptions],
    ) -> ProducerChannel:
        """Open a producer."""
        if producer_id is None:
            producer_id = self.new_id()
        request_id = self.new_id()
        command = commands.producer(topic, producer_id, request_id, **options)
        producer = self._channel(topic, producer_id, request_id)
        self._producers[producer_id] = producer
        self.post(command)
        producer.wait_success(timeout_s)
        return producer

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        earliest: bool = False,
        consumer_id: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[commands.SubscribeOptions],
    ) -> RawConsumer:
        """Open a consumer. It has no permits yet."""
        if consumer_id is None:
            consumer_id = self.new_id()
        if earliest:
            options["initial_position"] = pb.CommandSubscribe.Earliest
        build = partial(commands.subscribe, topic, subscription, consumer_id, **options)
        consumer = RawConsumer(self, topic, subscription, consumer_id, build)
        self._consumers[consumer_id] = consumer
        consumer.resubscribe(timeout_s)
        return consumer

    def _channel(self, topic: str, producer_id: int, request_id: int) -> ProducerChannel:
        return ProducerChannel(self, topic, producer_id, request_id)

    # ---- events ------------------------------------------------------------------------------

    def _take_handshake(self) -> pb.CommandConnected | None:
        refusals = [answer for answers in self._responses.values() for answer in answers]
        if self.connected is None and refusals:
            self._responses.clear()
            errors.RequestRefusedError.raise_if_refused(refusals[0].body)
        return self.connected

    def _route(self, event: Event) -> None:
        """Pass an event to its consumer or producer, or to the request that it answers."""
        if isinstance(event, Message):
            consumer = self._consumers.get(event.command.consumer_id)
            if consumer is not None:
                consumer.add(RawMessage(event.command, bytes(event.headers_and_payload)))
        elif isinstance(event, Command):
            self._route_command(event)

    def _route_command(self, command: Command) -> None:
        kind, body = command.type, command.body
        if kind in {_T.SEND_RECEIPT, _T.SEND_ERROR}:
            producer = self._producers.get(body.producer_id)
            if producer is not None:
                producer.add(body)
            return
        if kind == _T.CONNECTED:
            self.connected = body
            return
        if kind == _T.PING and self.answers_pings:
            self.post(commands.PONG)
            return
        if kind == _T.CLOSE_PRODUCER and body.producer_id in self._producers:
            self._producers[body.producer_id].is_closed = True
        elif kind == _T.CLOSE_CONSUMER and body.consumer_id in self._consumers:
            self._consumers[body.consumer_id].is_closed = True
        elif kind == _T.ERROR or 0 < getattr(body, "request_id", 0) <= self._next_id:
            self._responses.setdefault(body.request_id, deque()).append(command)
            return
        self.unsolicited.append(command)


class Receipt(NamedTuple):
    """A SEND_RECEIPT. Ids are signed. A duplicate has (-1, -1); a missing highest id is -1."""

    sequence_id: int
    ledger_id: int
    entry_id: int
    highest_sequence_id: int


@dataclass(slots=True)
class RawMessage:
    """A MESSAGE frame: its command, and the bytes after it as received."""

    command: pb.CommandMessage
    headers_and_payload: bytes

    @property
    def message_id(self) -> MessageId:
        """The message id of the entry."""
        return MessageId.from_data(self.command.message_id)


class ProducerChannel:
    """A producer of a connection. `post` sends without waiting, `receipts` waits.

    Attributes: topic, producer_id, name, last_sequence_id, schema_version, topic_epoch (None if
    the broker sent none), is_ready (False while it waits for exclusive access), is_closed (the
    broker closed it), ends_when_closed (waiting for receipts then ends with ConnectionLostError).
    """

    def __init__(
        self, client: BrokerConnection, topic: str, producer_id: int, request_id: int
    ) -> None:
        self.topic = topic
        self.producer_id = producer_id
        self.name = ""
        self.last_sequence_id = -1
        self.schema_version = b""
        self.topic_epoch: int | None = None
        self.is_ready = False
        self.is_closed = False
        self.ends_when_closed = False
        self._client = client
        self._request_id = request_id
        self._next_sequence_id = 0
        self._answers: deque[pb.CommandSendReceipt | pb.CommandSendError] = deque()

    def add(self, answer: pb.CommandSendReceipt | pb.CommandSendError) -> None:
        """Add an answer to a SEND."""
        self._answers.append(answer)

    def wait_success(self, timeout_s: float | None = None) -> None:
        """Wait for the next PRODUCER_SUCCESS. A producer that waits for exclusive
        access gets two: one at once, and one when it has access.
        """
        body: pb.CommandProducerSuccess = self._client.wait_response(self._request_id, timeout_s)
        self.name = body.producer_name
        self.last_sequence_id = body.last_sequence_id
        self.schema_version = body.schema_version
        self.topic_epoch = body.topic_epoch if body.HasField("topic_epoch") else None
        self.is_ready = body.producer_ready
        self._next_sequence_id = body.last_sequence_id + 1

    def post(
        self,
        *headers_and_payload: Buffer,
        sequence_id: int | None = None,
        num_messages: int = 1,
        **fields: Unpack[commands.SendFields],
    ) -> int:
        """Queue a SEND of any bytes, in one or more pieces.

        Returns its sequence id, by default the next one.

        Small frames are written together: when there are 64 KiB, or at the next wait.
        """
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        self._next_sequence_id = sequence_id + max(num_messages, 1)
        size_bytes = sum(map(len, headers_and_payload))
        header = commands.send_header(
            self.producer_id, sequence_id, size_bytes, num_messages=num_messages, **fields
        )
        self._client.post(header, *headers_and_payload)
        return sequence_id

    def arrived(self) -> list[Receipt]:
        """The receipts not yet taken; does not wait. Raises SendRefusedError at a SEND_ERROR."""
        found: list[Receipt] = []
        while self._answers:
            if isinstance(self._answers[0], pb.CommandSendError):
                if found:
                    break
                raise errors.SendRefusedError(self._answers.popleft())  # type: ignore[arg-type]
            found.append(_receipt(self._answers.popleft()))  # type: ignore[arg-type]
        return found

    def receipts(self, count: int, timeout_s: float | None = None) -> list[Receipt]:
        """The next `count` receipts, in the order of arrival.

        Raises SendRefusedError if a SEND_ERROR is among them. The receipts before it are lost; the
        next call returns those after it.
        """
        found: list[Receipt] = []

        def take() -> bool | None:
            while self._answers and len(found) < count:
                answer = self._answers.popleft()
                if isinstance(answer, pb.CommandSendError):
                    raise errors.SendRefusedError(answer)
                found.append(_receipt(answer))
            if self.is_closed and self.ends_when_closed and len(found) < count:
                raise errors.ConnectionLostError("receipts: the broker closed the producer")
            return True if len(found) >= count else None

        self._client.wait(take, f"{count} receipts", timeout_s)
        return found

    def send_raw(self, headers_and_payload: Buffer, **options: Any) -> Receipt:
        """Send any bytes and wait for the receipt; `options` as in post."""
        self.post(headers_and_payload, **options)
        return self.receipts(1)[0]

    def close(self) -> None:
        """Send CLOSE_PRODUCER and wait for the answer."""
        self._client.request(partial(commands.close_producer, self.producer_id))
        self.is_closed = True


class RawConsumer:
    """A consumer of a connection. It gets only as many messages as `flow` permits.

    Attributes: topic, subscription, consumer_id, is_closed (closed by the broker or by `close`),
    ends_when_closed (waiting for messages then ends with ConnectionLostError).
    """

    def __init__(
        self,
        client: BrokerConnection,
        topic: str,
        subscription: str,
        consumer_id: int,
        build: Callable[[int], bytes],
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.consumer_id = consumer_id
        self.is_closed = False
        self.ends_when_closed = False
        self._client = client
        self._build = build
        self._messages: deque[RawMessage] = deque()

    def add(self, message: RawMessage) -> None:
        """Add a message."""
        self._messages.append(message)

    def resubscribe(self, timeout_s: float | None = None) -> None:
        """Send SUBSCRIBE (again), for example after the broker closed the consumer."""
        self._client.request(self._build, timeout_s)
        self.is_closed = False

    def flow(self, permits: int) -> None:
        """Permit `permits` more messages."""
        self._client.write(commands.flow(self.consumer_id, permits))

    def receive(self, timeout_s: float | None = None) -> RawMessage:
        """The next MESSAGE frame. Raises WaitTimeoutError."""
        return self.receive_many(1, timeout_s)[0]

    def receive_many(self, count: int, timeout_s: float | None = None) -> list[RawMessage]:
        """The next `count` MESSAGE frames. After a timeout, those received stay queued."""

        def take() -> list[RawMessage] | None:
            if len(self._messages) < count:
                if self.is_closed and self.ends_when_closed:
                    what = f"messages of {self.topic}: the broker closed the consumer"
                    raise errors.ConnectionLostError(what)
                return None
            return [self._messages.popleft() for _ in range(count)]

        return self._client.wait(take, f"{count} messages", timeout_s)

    def arrived(self) -> list[RawMessage]:
        """The MESSAGE frames that have arrived and were not taken yet; does not wait."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def drain(self, timeout_s: float | None = None) -> list[RawMessage]:
        """All MESSAGE frames sent before a PING's answer. Raises WaitTimeoutError."""
        self._client.ping(timeout_s)
        return self.arrived()

    def ack(
        self,
        *message_ids: MessageId,
        cumulative: bool = False,
        wait: bool = True,
        validation_error: pb.CommandAck.ValidationError | None = None,
    ) -> None:
        """Acknowledge; `wait`: until it is durable. Raises RequestRefusedError."""
        kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual

        def build(request_id: int | None) -> bytes:
            return commands.ack(
                self.consumer_id,
                message_ids,
                kind,
                request_id=request_id,
                validation_error=validation_error,
            )

        if wait:
            self._client.request(build)
        else:
            self._client.write(build(None))

    def redeliver(self, *message_ids: MessageId) -> None:
        """Ask for these messages again, or for all that are not acknowledged."""
        self._client.write(
            commands.redeliver_unacknowledged_messages(self.consumer_id, message_ids)
        )

    def seek(
        self, *, message_id: MessageId | None = None, publish_time_ms: int | None = None
    ) -> None:
        """Send SEEK and wait for SUCCESS. Messages received before are dropped.

        The broker closes the consumer during a seek: call resubscribe() before reading on.
        """
        self._client.request(
            partial(
                commands.seek,
                self.consumer_id,
                message_id=message_id,
                publish_time_ms=publish_time_ms,
            )
        )
        self._messages.clear()

    def get_last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The topic's last id, and the mark-delete position (None if the broker sends none)."""
        body: pb.CommandGetLastMessageIdResponse = self._client.request(
            partial(commands.get_last_message_id, self.consumer_id)
        )
        position = None
        if body.HasField("consumer_mark_delete_position"):
            position = MessageId.from_data(body.consumer_mark_delete_position)
        return MessageId.from_data(body.last_message_id), position

    def unsubscribe(self) -> None:
        """Send UNSUBSCRIBE and wait for the answer."""
        self._client.request(partial(commands.unsubscribe, self.consumer_id))

    def close(self) -> None:
        """Send CLOSE_CONSUMER and wait for the answer."""
        self._client.request(partial(commands.close_consumer, self.consumer_id))
        self.is_closed = True


def _receipt(body: pb.CommandSendReceipt) -> Receipt:
    message_id = body.message_id
    return Receipt(
        body.sequence_id,
        to_signed(message_id.ledgerId),
        to_signed(message_id.entryId),
        to_signed(body.highest_sequence_id),
    )
