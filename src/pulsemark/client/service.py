"""The brokers behind a service URL: which of them serves a topic, and the connections to them.

    service = Service("pulsar://127.0.0.1:6650")
    connection = service.connection("persistent://public/default/orders")

A URL may name several brokers, `pulsar://one:6650,two:6650`; the first that answers is used. A
topic's broker is found by LOOKUP, as in Pulsar's clients: redirects are followed, and a broker that
can only be reached through a proxy is reached so. There is one connection to each broker, shared by
all topics on it. Use it from one thread only.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

from ..proto import pulsar_api_pb2 as pb
from .connection import BrokerConnection
from .errors import ClientError, ServiceUrlError, UnreachableError, WaitTimeoutError

REDIRECTS_MAX = 20
_SCHEMES = {"pulsar": 6650, "pulsar+ssl": 6651}
_CONNECT = pb.CommandLookupTopicResponse.Connect


class Service:
    """Connections to the brokers of one cluster, made when they are needed.

    `url` is `pulsar://host:port[,host:port...]`, or `pulsar+ssl://...`, where `ssl_context` None
    trusts what the machine trusts. `options` are more arguments of BrokerConnection, which shows
    the `token`, if there is one. Raises ServiceUrlError.
    """

    def __init__(
        self,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        token: str | None = None,
        **options: Any,
    ) -> None:
        if token is not None:
            options |= {"auth_method_name": "token", "auth_data": token.encode()}
        self.url = url
        self._scheme, self._hosts = _parsed(url)
        self._ssl_context = ssl_context
        self._options = options
        self._connections: dict[tuple[str, str | None], BrokerConnection] = {}

    def first(self) -> BrokerConnection:
        """A connection for questions that any broker answers. Raises UnreachableError."""
        return self._connected(self._hosts)

    def connection(self, topic: str) -> BrokerConnection:
        """The connection to the broker that serves `topic`.

        Raises UnreachableError, RequestRefusedError, and ClientError after too many redirects.
        """
        connection, authoritative = self.first(), False
        for _ in range(REDIRECTS_MAX):
            answer = connection.lookup(topic, authoritative=authoritative)
            target = answer.brokerServiceUrl
            if self._scheme == "pulsar+ssl":
                target = answer.brokerServiceUrlTls or target
            place = urlsplit(target).netloc
            if answer.proxy_through_service_url and [place] != self._hosts:
                connection = self._connected(self._hosts, place)
            else:
                connection = self._connected([place])
            if answer.response == _CONNECT:
                return connection
            authoritative = answer.authoritative
        raise ClientError(f"{topic}: more than {REDIRECTS_MAX} redirects from {self.url}")

    def open_connections(self) -> Iterator[BrokerConnection]:
        """The connections that are open now."""
        return iter(tuple(self._connections.values()))

    def ping(self, timeout_s: float) -> None:
        """Close connections that answer no PING. Raises WaitTimeoutError, ConnectionLostError."""
        for connection in self.open_connections():
            if not connection.is_closed:
                try:
                    connection.ping(timeout_s)
                except WaitTimeoutError:
                    connection.close()
                    raise

    def close(self) -> None:
        """Close all connections. A later call connects again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connected(self, places: list[str], through: str | None = None) -> BrokerConnection:
        """The connection to the first of these brokers that answers, shared with other topics."""
        reason = ""
        for place in places:
            known = self._connections.get((place, through))
            if known is not None and not known.is_closed:
                return known
        for place in places:
            try:
                self._connections[place, through] = connection = self._open(place, through)
            except OSError as error:
                reason = error.strerror or str(error)
            except UnicodeError as error:  # a host name that cannot be asked for
                reason = str(error)
            else:
                return connection
        raise UnreachableError(f"{self._scheme}://{','.join(places)}", reason)

    def _open(self, place: str, through: str | None) -> BrokerConnection:
        context = self._ssl_context
        if self._scheme == "pulsar+ssl" and context is None:
            context = ssl.create_default_context()
        return BrokerConnection.from_url(
            f"{self._scheme}://{place}",
            ssl_context=context if self._scheme == "pulsar+ssl" else None,
            proxy_to_broker_url=through,
            **self._options,
        )


def _parsed(url: str) -> tuple[str, list[str]]:
    """Scheme and hosts of a service URL. Raises ServiceUrlError."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ServiceUrlError(url, f"the scheme must be one of {', '.join(_SCHEMES)}")
    hosts = []
    for part in rest.rstrip("/").split(","):
        try:
            parsed = urlsplit(f"{scheme}://{part}")
            host, port = parsed.hostname, parsed.port
        except ValueError as error:
            raise ServiceUrlError(url, str(error)) from error
        if not host or parsed.path or parsed.query or parsed.username:
            raise ServiceUrlError(url, "not of the form pulsar://HOST:PORT")
        name = f"[{host}]" if ":" in host else host
        hosts.append(f"{name}:{port or _SCHEMES[scheme]}")
    return scheme, hosts
