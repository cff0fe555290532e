"""Accepts connections, within limits, and goes on accepting after errors.

This replaces the event loop's own accept loop for these reasons:

- It keeps the number of connections within limits. One of them is the process' limit of file
  descriptors: if connections took all descriptors, the broker could not open its files.
- With TLS it keeps the number of handshakes in progress within a limit, over all ports, and each
  within a time.
- If the process is out of file descriptors or memory (EMFILE, ENFILE, ENOBUFS, ENOMEM), it pauses
  for REST_S instead of retrying without end or failing. Meanwhile connections wait in the backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from functools import cached_property, partial

from ...ledger import StoreOptions
from ...ledger.limits import default_fd_limit
from ...records import record
from ..configuration.config import BrokerConfig
from ..errors import CannotListenError, PortInUseError
from ..ownership import KafkaPlace
from ..security.tls import make_context, make_http_context, renewed_context

log = logging.getLogger(__name__)

MakeProtocol = Callable[[], asyncio.BaseProtocol]

#: accept(2) errors that end when descriptors or memory are freed.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
REST_S = 0.1
ACCEPTS_AT_ONCE = 100
#: How long a client may take to end TLS after the broker has closed the connection.
SHUTDOWN_TIMEOUT_S = 5.0
BACKLOG = 1024
#: Descriptors for everything except connections and the store's cached files.
RESERVED_DESCRIPTORS = 64
FEWEST_CONNECTIONS = 16


def connections_affordable(options: StoreOptions) -> int:
    """How many connections the process' limit of descriptors allows besides the store's files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 31
    files = options.fd_limit if options.fd_limit is not None else default_fd_limit()
    return max(FEWEST_CONNECTIONS, soft - files - RESERVED_DESCRIPTORS)


@record
class Handshakes:
    """The TLS handshakes in progress, over all ports: how many, and how many may be."""

    limit: int
    timeout_s: float
    count: int = 0

    @property
    def has_room(self) -> bool:
        """Whether another one may begin."""
        return self.count < self.limit


@record
class PerAddress:
    """The number of connections of each IP address, over all ports that share this object."""

    limit: int
    #: The number of an address' connections that have their protocol.
    connected: Callable[[str], int]
    #: The number of an address' accepted connections without a protocol.
    arriving: Counter[str] = field(default_factory=Counter)

    def has_room(self, host: str) -> bool:
        """Whether the address may open another connection."""
        return self.connected(host) + self.arriving[host] < self.limit

    def arrived(self, host: str) -> None:
        """Count an accepted connection that now has its protocol, or has ended."""
        self.arriving[host] -= 1
        if not self.arriving[host]:
            del self.arriving[host]


@record(frozen=True)
class Tls:
    """A listener's TLS: it makes the context for a new connection."""

    context: Callable[[], ssl.SSLContext]
    handshakes: Handshakes


class Listener:
    """A listening TCP socket that makes a protocol for each connection.

    `has_room` is called before each connection is taken. Its argument is the number of connections
    that are accepted and have no protocol yet. `per_address` limits those of each client. With
    `tls`, a protocol's `connection_made` is called after the handshake. `prepare` is called in a
    thread before the first connection's protocol is made: it imports what only such a connection
    needs.
    """

    def __init__(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        has_room: Callable[[int], bool],
        per_address: PerAddress | None = None,
        tls: Tls | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._has_room = has_room
        self._per_address = per_address
        self._tls = tls
        self._prepare = prepare
        self._accepting: set[asyncio.Task[None]] = set()
        self._arriving = 0
        self._rest: asyncio.TimerHandle | None = None
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Begin to accept."""
        self._rest = None
        self._loop.add_reader(self._socket.fileno(), self._accept_ready)

    async def close(self) -> None:
        """Stop accepting. Return when every accepted connection has its protocol."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self.drop()
        if self._tls is not None:
            # A client that does not go on with its handshake must not hold up the end.
            for task in self._accepting:
                task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=self._tls is not None)

    def drop(self) -> None:
        """Close the socket. For a listener that has not begun to accept."""
        self._socket.close()

    def _accept_ready(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    log.warning("port %d: a connection could not be accepted: %s", self.port, error)
                    return
                text = "port %d: cannot accept connections, trying again in %g s: %s; raise the "
                text += "limit of open files or close clients"
                log.warning(text, self.port, REST_S, error)
                self._loop.remove_reader(self._socket.fileno())
                self._rest = self._loop.call_later(REST_S, self.start)
                return
            self._take(connection, address[0])

    def _take(self, connection: socket.socket, host: str) -> None:
        reason = self._refusal(host)
        if reason:
            log.warning("port %d: a new connection was closed: %s", self.port, reason)
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arriving += 1
        if self._per_address is not None:
            self._per_address.arriving[host] += 1
        task = self._loop.create_task(self._welcome(connection, host))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def _refusal(self, host: str) -> str:
        """Why a new connection is not taken; "" if it is."""
        if not self._has_room(self._arriving):
            text = "the limit of connections is reached; raise brokerMaxConnections or the limit "
            return f"{text}of open files, or close clients"
        if self._per_address is not None and not self._per_address.has_room(host):
            return f"{host} has its {self._per_address.limit} (brokerMaxConnectionsPerIp)"
        if self._tls is not None and not self._tls.handshakes.has_room:
            return "the limit of TLS handshakes in progress is reached (pulsemarkMaxTlsHandshakes)"
        return ""

    async def _welcome(self, connection: socket.socket, host: str) -> None:
        if self._prepare is not None:
            try:
                await asyncio.to_thread(self._prepare)
            except BaseException:
                connection.close()
                self._arrived(host)
                raise
            self._prepare = None
        if self._tls is None:
            await self._hand_over(connection, host)
        else:
            await self._shake(connection, host)

    async def _hand_over(self, connection: socket.socket, host: str) -> None:
        taken = False

        def make_protocol() -> asyncio.BaseProtocol:
            nonlocal taken
            taken = True
            # Runs right before the protocol's connection_made. So each connection is counted
            # exactly once, as arriving or as connected.
            self._loop.call_soon(self._arrived, host)
            return self._make_protocol()

        try:
            await self._loop.connect_accepted_socket(make_protocol, connection)
        except OSError as error:
            log.info("port %d: a connection ended while it was accepted: %s", self.port, error)
            connection.close()
        finally:
            if not taken:
                self._arrived(host)

    async def _shake(self, connection: socket.socket, host: str) -> None:
        """Do the TLS handshake. The connection is an arriving one until it is done."""
        assert self._tls is not None
        handshakes = self._tls.handshakes
        handshakes.count += 1
        try:
            # uvloop and asyncio count the time from here; a broken handshake is an OSError, too.
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls.context(),
                ssl_handshake_timeout=handshakes.timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:
            log.info("port %d: a TLS handshake failed: %s", self.port, error)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            handshakes.count -= 1
            self._arrived(host)

    def _arrived(self, host: str) -> None:
        self._arriving -= 1
        if self._per_address is not None:
            self._per_address.arrived(host)


def _bind(host: str, port: int) -> socket.socket:
    try:
        # Bytes: for text Python would import its IDNA codec.
        name = host.encode() if host.isascii() else host
        family, kind, protocol, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise CannotListenError(host, port, error) from error
    except UnicodeError as error:  # of a name that DNS cannot have
        raise CannotListenError(host, port, OSError(errno.EINVAL, str(error))) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(host, port) from error
        raise CannotListenError(host, port, error) from error
    return listening


class Listening:
    """A broker's listeners. They are bound in the constructor, and accept after `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        make_session: MakeProtocol,
        make_http: MakeProtocol,
        has_room: Callable[[int], bool],
        connections_from: Callable[[str], int],
        prepare: Callable[[], None],
        prepare_http: Callable[[], None],
        prepare_registry: Callable[[], None],
        make_registry: MakeProtocol,
        make_kafka: Callable[[int], asyncio.BaseProtocol],
    ) -> None:
        """Bind all listeners. Raises ConfigError (also for certificates), PortInUseError, OSError.

        `prepare` and the others run in a thread before the first connection of a port is made.
        `make_kafka` gets the port that its client is told.
        """
        self._config = config
        self._has_room = has_room
        most = config.max_connections_per_ip  # of the binary protocol's and Kafka's
        per_address = PerAddress(most, connections_from) if most else None
        self._bound: list[Listener] = []
        security = config.security
        tls = http_tls = None
        if security.tls_port is not None or security.kafka_tls_port is not None:
            tls = Tls(renewed_context(security, make_context), self.handshakes)
        if security.http_tls_port is not None:
            http_tls = Tls(renewed_context(security, make_http_context), self.handshakes)
        try:
            binary = (make_session, prepare, per_address)
            self.binary = self._bind(config.port, *binary)
            self.binary_tls = self._bind(security.tls_port, *binary, tls)
            self.http = self._bind(config.http_port, make_http, prepare_http)
            self.http_tls = self._bind(
                security.http_tls_port, make_http, prepare_http, tls=http_tls
            )
            self.registry = self._bind(config.schema_registry_port, make_registry, prepare_registry)
            told, told_tls = (partial(self._told, make_kafka, tls=each) for each in (False, True))
            self.kafka = self._bind(config.kafka_port, told, None, per_address)
            self.kafka_tls = self._bind(security.kafka_tls_port, told_tls, None, per_address, tls)
        except BaseException:
            for listener in self._bound:
                listener.drop()
            raise

    @cached_property
    def handshakes(self) -> Handshakes:
        """The TLS handshakes of all ports."""
        security = self._config.security
        return Handshakes(security.max_tls_handshakes, security.tls_handshake_timeout_ms / 1000)

    def _told(
        self, make_kafka: Callable[[int], asyncio.BaseProtocol], *, tls: bool
    ) -> asyncio.BaseProtocol:
        listener = self.kafka_tls if tls else self.kafka
        assert listener is not None, "it accepts this connection"
        told = None if tls else self._config.kafka_advertised_port
        return make_kafka(told or listener.port)

    def _bind(
        self,
        port: int | None,
        make_protocol: MakeProtocol,
        prepare: Callable[[], None] | None,
        per_address: PerAddress | None = None,
        tls: Tls | None = None,
    ) -> Listener | None:
        if port is None:
            return None
        listener = Listener(
            self._config.host,
            port,
            make_protocol,
            has_room=self._has_room,
            per_address=per_address,
            tls=tls,
            prepare=prepare,
        )
        self._bound.append(listener)
        return listener

    def start(self) -> None:
        """Begin to accept, except Kafka's clients."""
        for listener in self._bound:
            if listener not in (self.kafka, self.kafka_tls):
                listener.start()

    def start_kafka(self) -> None:
        """Begin to accept Kafka's clients."""
        for listener in (self.kafka, self.kafka_tls):
            if listener is not None:
                listener.start()

    async def close(self) -> None:
        """Stop accepting."""
        for listener in self._bound:
            await listener.close()

    def kafka_place(self, host: str) -> KafkaPlace | None:
        """This broker's address for Kafka's clients, for others of a cluster; or None."""
        ports = [None if each is None else each.port for each in (self.kafka, self.kafka_tls)]
        return KafkaPlace(0, host, *ports) if any(ports) else None

    def url(self, scheme: str, listener: Listener | None, host: str) -> str:
        """The URL of a listener, HOST:PORT without a scheme; "" if it is not served."""
        if listener is None:
            return ""
        return f"{scheme}{scheme and '://'}{url_host(host)}:{listener.port}"


def url_host(host: str) -> str:
    """A host in a URL: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host
