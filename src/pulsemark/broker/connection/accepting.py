"""Accepting connections, and going on to accept whatever happens.

An accept loop of our own instead of the event loop's: it keeps the number of connections within
limits, the process' own limit of file descriptors among them, for a broker whose connections have
taken them all cannot open its files. When the process is out of file descriptors or memory
(EMFILE, ENFILE, ENOBUFS, ENOMEM) it rests for a moment instead of spinning or dying. Connections
in the backlog wait meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable

from ...ledger import StoreOptions
from ...ledger.local.io.fd_cache import default_fd_limit
from ..errors import PortInUseError

__all__ = ["Listener", "connections_affordable"]

log = logging.getLogger(__name__)

#: accept(2) errors that pass when others close something.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
REST_S = 0.1
ACCEPTS_AT_ONCE = 100
BACKLOG = 1024


#: Descriptors for what is neither a connection nor one of the store's cached files.
RESERVED_DESCRIPTORS = 64
FEWEST_CONNECTIONS = 16


def connections_affordable(options: StoreOptions) -> int:
    """How many connections leave the store its files, by the process' limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 31
    files = options.fd_limit if options.fd_limit is not None else default_fd_limit()
    return max(FEWEST_CONNECTIONS, soft - files - RESERVED_DESCRIPTORS)


class Listener:
    """A listening TCP socket that makes a protocol for each connection.

    `has_room` is asked before each, with the number of those being taken over just now.
    """

    def __init__(
        self,
        host: str,
        port: int,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        has_room: Callable[[int], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._has_room = has_room
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
        """Stop accepting. Returns when every connection taken until now has its protocol."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        await asyncio.gather(*self._accepting)

    def _accept_ready(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    log.warning("accept failed: %s", error)
                    return
                log.warning("no more connections for now: %s", error)
                self._loop.remove_reader(self._socket.fileno())
                self._rest = self._loop.call_later(REST_S, self.start)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        if not self._has_room(self._arriving):
            log.warning("a connection is refused: there are as many as the limit allows")
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arriving += 1
        task = self._loop.create_task(self._hand_over(connection))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _hand_over(self, connection: socket.socket) -> None:
        taken = False

        def make_protocol() -> asyncio.BaseProtocol:
            nonlocal taken
            taken = True
            # Runs right before the protocol's connection_made: no connection is counted twice,
            # and none is forgotten.
            self._loop.call_soon(self._arrived)
            return self._make_protocol()

        try:
            await self._loop.connect_accepted_socket(make_protocol, connection)
        except OSError as error:
            log.info("a connection went before it was taken over: %s", error)
            connection.close()
        finally:
            if not taken:
                self._arrived()

    def _arrived(self) -> None:
        self._arriving -= 1


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
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
        raise
    return listening
