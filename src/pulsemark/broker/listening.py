"""The ports of the binary protocol and of HTTP, each with and without TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property

from .configuration.config import BrokerConfig
from .connection.accepting import Handshakes, Listener, PerAddress, Tls
from .security.tls import RenewedContext, make_context, make_http_context

__all__ = ["Listening", "url_host"]

MakeProtocol = Callable[[], asyncio.BaseProtocol]


def import_http() -> None:
    """Import what HTTP connections need. It takes some 150 ms, so the loop's thread must not."""
    from .http import connection  # noqa: F401


class Listening:
    """A broker's listeners. They are bound when this is made, and accept after `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        make_session: MakeProtocol,
        make_http: MakeProtocol,
        has_room: Callable[[int], bool],
        connections_from: Callable[[str], int],
    ) -> None:
        """Raises ConfigError (also for certificates), PortInUseError, OSError."""
        self._config = config
        self._has_room = has_room
        most = config.max_connections_per_ip
        #: The limit for the binary protocol's and Kafka's ports; None: there is none.
        self.per_address = PerAddress(most, connections_from) if most else None
        self._bound: list[Listener] = []
        security = config.security
        tls, http_tls = None, None
        if security.tls_port is not None:
            tls = self.tls
        if security.http_tls_port is not None:
            http_tls = Tls(RenewedContext(security, make_http_context), self.handshakes)
        try:
            self.binary = self._bind(config.port, make_session, per_address=self.per_address)
            self.binary_tls = self._bind(security.tls_port, make_session, tls, self.per_address)
            self.http = self._bind(config.http_port, make_http, prepare=import_http)
            self.http_tls = self._bind(
                security.http_tls_port, make_http, http_tls, prepare=import_http
            )
        except BaseException:
            for listener in self._bound:
                listener.drop()
            raise

    @cached_property
    def handshakes(self) -> Handshakes:
        """The TLS handshakes of all ports."""
        security = self._config.security
        return Handshakes(security.max_tls_handshakes, security.tls_handshake_timeout_ms / 1000)

    @cached_property
    def tls(self) -> Tls:
        """For a `Listener` with TLS on the binary protocol's terms. Raises ConfigError."""
        return Tls(RenewedContext(self._config.security, make_context), self.handshakes)

    def _bind(
        self,
        port: int | None,
        make_protocol: MakeProtocol,
        tls: Tls | None = None,
        per_address: PerAddress | None = None,
        prepare: Callable[[], None] | None = None,
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
        """Begin to accept."""
        for listener in self._bound:
            listener.start()

    async def close(self) -> None:
        """Stop accepting."""
        for listener in self._bound:
            await listener.close()

    def url(self, scheme: str, listener: Listener | None, host: str) -> str:
        """The URL of a listener for clients; "" if it is not served."""
        if listener is None:
            return ""
        return f"{scheme}://{url_host(host)}:{listener.port}"


def url_host(host: str) -> str:
    """A host in a URL: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host
