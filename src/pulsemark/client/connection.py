"""One connection of a client to a broker, for one thread: requests, producers, consumers.

By itself it only answers PING (this can be switched off). It does no lookup before it opens a
producer, gives no permits without flow(), and does not reconnect. Every wait has a timeout: the
connection's, or the call's own.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from ..proto import pulsar_api_pb2 as pb
from ..wire import Buffer, Command, Event, Message, MessageId, commands
from .channels import ProducerChannel, RawConsumer, RawMessage
from .errors import ConnectionLostError, RequestRefusedError, ServiceUrlError
from .link import Link

DEFAULT_TIMEOUT_S = 10.0
CLIENT_VERSION = "pulsemark-client"
_T = pb.BaseCommand.Type


class BrokerConnection:
    """One connection to a broker.

    Args:
        host, port: where the broker listens.
        timeout_s: the timeout of all calls without their own.
        ssl_context, server_hostname: TLS, and the host name that the certificate must have.
        handshake: False sends no CONNECT.
        answers_pings: False leaves the broker's PINGs unanswered.
        connect: the arguments of `connect`. By default there are no feature flags: entries have no
            broker entry metadata.

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
        self._link = Link(sock, self._route, timeout_s)
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
            raise ServiceUrlError(service_url, "not pulsar://HOST:PORT")
        if parts.scheme == "pulsar+ssl" and options.get("ssl_context") is None:
            raise ServiceUrlError(service_url, "needs an ssl_context")
        default_port = 6650 if parts.scheme == "pulsar" else 6651
        return cls(parts.hostname, parts.port or default_port, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, without sending anything to the broker."""
        self._link.close()

    # ---- the connection ----------------------------------------------------------------------

    def connect(
        self,
        *,
        protocol_version: int = commands.PROTOCOL_VERSION,
        feature_flags: pb.FeatureFlags | None = None,
        client_version: str = CLIENT_VERSION,
        auth_method_name: str | None = None,
        auth_data: bytes | None = None,
        proxy_to_broker_url: str | None = None,
        **original: str | None,
    ) -> pb.CommandConnected:
        """Send CONNECT and wait for CONNECTED. Raises RequestRefusedError after an ERROR.

        `original`: what a proxy sends of its client, as in commands.connect.
        """
        connect = commands.connect(
            client_version,
            protocol_version=protocol_version,
            feature_flags=feature_flags,
            auth_method_name=auth_method_name,
            auth_data=auth_data,
            proxy_to_broker_url=proxy_to_broker_url,
            **original,
        )
        self._link.write(connect)
        self.connected = None
        return self.wait_connected()

    def wait_connected(self) -> pb.CommandConnected:
        """Wait for CONNECTED. Raises RequestRefusedError after an ERROR."""
        return self._link.wait(self._take_handshake, "CONNECTED")

    def ping(self, timeout_s: float | None = None) -> None:
        """Send PING and wait for PONG."""
        self._link.write(commands.PING)
        self.wait_unsolicited(_T.PONG, timeout_s)

    def write(self, *data: Buffer) -> None:
        """Send any bytes."""
        self._link.write(*data)
        self._link.flush()

    def fileno(self) -> int:
        """The socket's descriptor, to wait for several connections at once."""
        return self._link.fileno()

    @property
    def has_unwritten(self) -> bool:
        """Whether queued bytes wait for the socket."""
        return self._link.has_unwritten

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed by this side, or is known to be lost."""
        return self._link.is_closed

    def pump(self) -> None:
        """Write and read what can be written and read now, without waiting.

        Raises ConnectionLostError, or the ProtocolError of a frame read.
        """
        self._link.pump()

    def wait_closed(self, timeout_s: float | None = None) -> None:
        """Wait until the broker closes the connection. Raises WaitTimeoutError."""
        try:
            self._link.wait(lambda: None, "end of the connection", timeout_s)
        except ConnectionLostError:
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
        return self._link.wait(take, name, timeout_s).body

    def new_id(self) -> int:
        """A new id for a request, a producer or a consumer."""
        self._next_id += 1
        return self._next_id

    def request(self, build: Callable[[int], bytes], timeout_s: float | None = None) -> Any:
        """Send the frame that `build(request_id)` makes, and return the body of the answer.

        Raises RequestRefusedError if the answer is ERROR, or a response with an error field.
        """
        request_id = self.new_id()
        self._link.write(build(request_id))
        return self.wait_response(request_id, timeout_s)

    def wait_response(self, request_id: int, timeout_s: float | None = None) -> Any:
        """The body of the next answer to `request_id`; some requests get more than one."""

        def take() -> Command | None:
            answers = self._responses.get(request_id)
            return answers.popleft() if answers else None

        body = self._link.wait(take, f"answer to request {request_id}", timeout_s).body
        RequestRefusedError.raise_if_refused(body)
        return body

    # ---- requests ----------------------------------------------------------------------------

    def lookup(self, topic: str, **options: Any) -> pb.CommandLookupTopicResponse:
        """Which broker serves `topic`; `options` as in commands.lookup."""
        answer: pb.CommandLookupTopicResponse = self.request(
            lambda request_id: commands.lookup(topic, request_id, **options)
        )
        return answer

    def topics(self, namespace: str) -> list[str]:
        """Full names of a namespace's persistent topics, each partition by itself."""
        answer: pb.CommandGetTopicsOfNamespaceResponse = self.request(
            lambda request_id: commands.get_topics_of_namespace(namespace, request_id)
        )
        return list(answer.topics)

    def schema(self, topic: str, version: bytes | None = None) -> tuple[pb.Schema, bytes]:
        """A topic's schema of a version (None: the latest), with its version."""
        answer: pb.CommandGetSchemaResponse = self.request(
            lambda request_id: commands.get_schema(topic, request_id, version)
        )
        return answer.schema, answer.schema_version

    def register_schema(self, topic: str, schema: pb.Schema) -> bytes:
        """Register a schema, if it is new, and return its version."""
        answer: pb.CommandGetOrCreateSchemaResponse = self.request(
            lambda request_id: commands.get_or_create_schema(topic, request_id, schema)
        )
        return answer.schema_version

    def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions `topic` has, 0 if it is not partitioned."""
        answer: pb.CommandPartitionedTopicMetadataResponse = self.request(
            lambda request_id: commands.partitioned_metadata(
                topic, request_id, metadata_auto_creation_enabled=create
            )
        )
        return answer.partitions

    def create_producer(
        self,
        topic: str,
        *,
        producer_id: int | None = None,
        producer_name: str | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> ProducerChannel:
        """Open a producer; `options` as in commands.producer."""
        if producer_id is None:
            producer_id = self.new_id()
        request_id = self.new_id()
        command = commands.producer(
            topic, producer_id, request_id, producer_name=producer_name, **options
        )
        producer = self._channel(self._link, topic, producer_id, request_id)
        self._producers[producer_id] = producer
        self._link.write(command)
        producer.wait_success(timeout_s)
        return producer

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive,
        earliest: bool = False,
        consumer_id: int | None = None,
        start_message_id: MessageId | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> RawConsumer:
        """Open a consumer; `options` as in commands.subscribe. It has no permits yet."""
        if consumer_id is None:
            consumer_id = self.new_id()
        position = pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest

        def build(request_id: int) -> bytes:
            return commands.subscribe(
                topic,
                subscription,
                consumer_id,
                request_id,
                sub_type,
                start_message_id=start_message_id,
                initial_position=position,
                **options,
            )

        consumer = RawConsumer(self, self._link, topic, subscription, consumer_id, build)
        self._consumers[consumer_id] = consumer
        consumer.resubscribe(timeout_s)
        return consumer

    def _channel(
        self, link: Link, topic: str, producer_id: int, request_id: int
    ) -> ProducerChannel:
        return ProducerChannel(self, link, topic, producer_id, request_id)

    # ---- events ------------------------------------------------------------------------------

    def _take_handshake(self) -> pb.CommandConnected | None:
        refusals = [answer for answers in self._responses.values() for answer in answers]
        if self.connected is None and refusals:
            self._responses.clear()
            RequestRefusedError.raise_if_refused(refusals[0].body)
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
            self._link.write(commands.PONG)
            return
        if kind == _T.CLOSE_PRODUCER and body.producer_id in self._producers:
            self._producers[body.producer_id].is_closed = True
        elif kind == _T.CLOSE_CONSUMER and body.consumer_id in self._consumers:
            self._consumers[body.consumer_id].is_closed = True
        elif kind == _T.ERROR or 0 < getattr(body, "request_id", 0) <= self._next_id:
            self._responses.setdefault(body.request_id, deque()).append(command)
            return
        self.unsolicited.append(command)
