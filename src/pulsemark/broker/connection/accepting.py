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
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, partial
from typing import Any

from ...ledger import StoreOptions
from ...ledger.limits import default_fd_limit
from ...records import record
from ..configuration.config import BrokerConfig
from ..configuration.security_config import SecurityConfig
from ..errors import CannotListenError, PortInUseError
from ..ownership import KafkaPlace
from ..security.tls import renewed_context

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
#: The services whose connections an address may have only so many of.
COUNTED = ("binary", "kafka")


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
        #: Accepted connections without a protocol, with the clients' addresses.
        self._arriving: dict[socket.socket, str] = {}
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
        self._arriving[connection] = host
        if self._per_address is not None:
            self._per_address.arriving[host] += 1
        if self._tls is not None:
            self._tls.handshakes.count += 1
        task = self._loop.create_task(self._welcome(connection))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def _refusal(self, host: str) -> str:
        """Why a new connection is not taken; "" if it is."""
        if not self._has_room(len(self._arriving)):
            text = "the limit of connections is reached; raise brokerMaxConnections or the limit "
            return f"{text}of open files, or close clients"
        if self._per_address is not None and not self._per_address.has_room(host):
            return f"{host} has its {self._per_address.limit} (brokerMaxConnectionsPerIp)"
        if self._tls is not None and not self._tls.handshakes.has_room:
            return "the limit of TLS handshakes in progress is reached (pulsemarkMaxTlsHandshakes)"
        return ""

    async def _welcome(self, connection: socket.socket) -> None:
        """Make the connection's protocol, with TLS after the handshake."""
        how: dict[str, Any] = {}
        if self._tls is not None:
            # uvloop and asyncio count the time from here; a broken handshake is an OSError, too.
            how["ssl_handshake_timeout"] = self._tls.handshakes.timeout_s
            how["ssl_shutdown_timeout"] = SHUTDOWN_TIMEOUT_S
        try:
            if self._prepare is not None:
                await asyncio.to_thread(self._prepare)
                self._prepare = None
            if self._tls is not None:
                how["ssl"] = self._tls.context()
            await self._loop.connect_accepted_socket(
                partial(self._protocol_of, connection), connection, **how
            )
        except OSError as error:
            accepting = "a connection ended while it was accepted"
            what = accepting if self._tls is None else "a TLS handshake failed"
            log.info("port %d: %s: %s", self.port, what, error)
            connection.close()
        except BaseException:
            connection.close()
            raise
        finally:
            self._arrived(connection)

    def _protocol_of(self, connection: socket.socket) -> asyncio.BaseProtocol:
        if self._tls is None:
            # Runs right before the protocol's connection_made. So each connection is counted
            # exactly once, as arriving or as connected.
            self._loop.call_soon(self._arrived, connection)
        return self._make_protocol()

    def _arrived(self, connection: socket.socket) -> None:
        """The connection has its protocol, or has ended. May be called twice."""
        host = self._arriving.pop(connection, None)
        if host is None:
            return
        if self._per_address is not None:
            self._per_address.arrived(host)
        if self._tls is not None:
            self._tls.handshakes.count -= 1


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


@record(frozen=True)
class Service:
    """What is served at one port."""

    port: int | None
    """None: it is not served."""
    make_protocol: MakeProtocol
    #: Runs in a thread before the first connection's protocol is made.
    prepare: Callable[[], None] | None = None
    #: Makes the context of a port with TLS.
    make_context: Callable[[SecurityConfig], ssl.SSLContext] | None = None


class Listening:
    """A broker's listeners. They are bound in the constructor, and accept after `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        services: Mapping[str, Service],
        has_room: Callable[[int], bool],
        connections_from: Callable[[str], int],
    ) -> None:
        """Bind all listeners. Raises ConfigError (also for certificates), PortInUseError, OSError.

        The names of the services for Kafka's clients begin with "kafka". An address may have only
        so many connections with them and those for Pulsar's clients (`COUNTED`).
        """
        security, most = config.security, config.max_connections_per_ip
        #: The TLS handshakes of all ports.
        self.handshakes = Handshakes(
            security.max_tls_handshakes, security.tls_handshake_timeout_ms / 1000
        )
        per_address = PerAddress(most, connections_from) if most else None
        contexts = cache(partial(renewed_context, security))
        self._listeners: dict[str, Listener] = {}
        try:
            for name, service in services.items():
                if service.port is not None:
                    make = service.make_context
                    self._listeners[name] = Listener(
                        config.host,
                        service.port,
                        service.make_protocol,
                        has_room=has_room,
                        per_address=per_address if name.startswith(COUNTED) else None,
                        tls=None if make is None else Tls(contexts(make), self.handshakes),
                        prepare=service.prepare,
                    )
        except BaseException:
            for listener in self._listeners.values():
                listener.drop()
            raise

    def start(self, *, kafka: bool) -> None:
        """Begin to accept Kafka's clients, or all others."""
        for name, listener in self._listeners.items():
            if name.startswith("kafka") == kafka:
                listener.start()

    async def close(self) -> None:
        """Stop accepting."""
        for listener in self._listeners.values():
            await listener.close()

    def port(self, name: str) -> int | None:
        """The port of a service; None: it is not served."""
        listener = self._listeners.get(name)
        return None if listener is None else listener.port

    def kafka_place(self, host: str) -> KafkaPlace | None:
        """This broker's address for Kafka's clients, for others of a cluster; or None."""
        ports = self.port("kafka"), self.port("kafka_tls")
        return KafkaPlace(0, host, *ports) if any(ports) else None

    def url(self, scheme: str, name: str, host: str) -> str:
        """The URL of a service, HOST:PORT without a scheme; "" if it is not served."""
        port = self.port(name)
        return "" if port is None else f"{scheme}{scheme and '://'}{url_host(host)}:{port}"


def url_host(host: str) -> str:
    """A host in a URL: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host
