"""Which broker serves a topic, where there are several: what a broker asks its cluster.

A broker alone has no cluster, and serves every topic (`Services.cluster` is None). The package
`cluster` implements these protocols. As in Pulsar, a topic goes with its bundle.

`InnerCalls` is how one broker asks another about a topic, `exchange` how it calls one over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from ..proto.pulsar_api_pb2 import ServerError
from ..records import record
from ..wire import TopicName
from .errors import RefusedError


class NotOwnedError(RefusedError):
    """This broker does not serve the topic: the client has to look it up again."""

    def __init__(self, topic: str, bundle: str, broker_id: str) -> None:
        super().__init__(
            ServerError.ServiceNotReady,
            f"Namespace bundle ({bundle}) for topic ({topic}) not served by this instance:"
            f"{broker_id}. Please redo the lookup.",
        )
        self.topic = topic


@record(frozen=True)
class Found:
    """The answer to a lookup: the URLs of a broker, "" for those that it does not have.

    `redirect`: it does not own the topic yet; ask it, with this `authoritative`.
    """

    broker_id: str
    service_url: str
    service_url_tls: str = ""
    http_url: str = ""
    http_url_tls: str = ""
    redirect: bool = False
    authoritative: bool = True


@record(frozen=True)
class KafkaPlace:
    """A broker's address for Kafka's clients, and its number in their protocol."""

    node_id: int
    host: str
    port: int | None
    tls_port: int | None


@record(frozen=True)
class GrpcPlace:
    """`host:port` of a broker's seek service, without and with TLS; "" if it has none."""

    target: str
    tls_target: str


NO_GRPC = GrpcPlace("", "")


@record(frozen=True)
class Registered:
    """A broker that runs."""

    found: Found
    #: The bundles that it owns, as `tenant/namespace/range`.
    bundles: tuple[str, ...] = ()
    #: Its number among the workers of one command.
    worker: int | None = None
    #: Its address for Kafka's clients; None: it has none.
    kafka: KafkaPlace | None = None
    grpc: GrpcPlace = NO_GRPC


class Cluster(Protocol):
    """The brokers that share the topics, as one of them sees them."""

    @property
    def broker_id(self) -> str:
        """HOST:PORT that names this broker among the others."""

    async def find(self, name: TopicName, *, authoritative: bool) -> Found:
        """The broker of a topic. This broker takes the topic's bundle over if it is its turn.

        `authoritative`: another broker has chosen this one. Raises RefusedError (ServiceNotReady):
        no broker can have it now.
        """

    def bundle_of(self, name: TopicName) -> str:
        """The bundle of a topic, as `tenant/namespace/range`."""

    def owns(self, name: TopicName) -> bool:
        """Whether this broker serves the topic."""

    async def serve(self, name: TopicName) -> None:
        """Take the topic's bundle over, if no broker owns it.

        Raises NotOwnedError, RefusedError.
        """

    async def likely_owner(self, name: TopicName) -> str | None:
        """The id of the broker that serves the topic, or that should take its bundle over.

        None: that is not known at present. Raises RefusedError.
        """

    @property
    def kafka_node(self) -> int:
        """This broker's number in Kafka's protocol."""

    async def kafka_nodes(self) -> dict[int, KafkaPlace]:
        """The brokers' addresses for Kafka's clients by number, also of those that have just left.

        Raises RefusedError.
        """

    def problems(self) -> list[str]:
        """The reasons why brokers of the same command do not serve, a sentence each."""

    def bad_copies(self) -> dict[str, int]:
        """How many damaged copies of entries each bookie has sent to this broker."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of what this broker owns."""

    def hear(self, kind: str, taker: Callable[[str, bytes | None], None]) -> None:
        """Call `taker` with each key and value of a kind that other brokers store."""

    def check_owned(self, name: TopicName) -> None:
        """Raise NotOwnedError unless this broker serves the topic."""

    async def brokers(self) -> dict[str, Registered]:
        """The brokers that live, by id. Raises RefusedError."""

    async def leader(self) -> Found | None:
        """The broker that chooses owners; None while one is being elected. Raises RefusedError."""

    async def owner_of(self, bundle: str) -> Found | None:
        """The broker that owns a bundle; None: no broker does. Raises RefusedError."""

    async def delete_topic(self, name: TopicName) -> None:
        """Have the broker that serves a topic delete it, with its clients. Raises RefusedError."""

    async def unload(self, bundle: str) -> None:
        """Give a bundle of this broker away, if it owns it. Raises RefusedError."""


INNER_PATH = "/pulsemark/inner/"
SIGNATURE_HEADER = "x-pulsemark-signature"
CALL_TIMEOUT_S = 5.0
MAX_HOPS = 5
#: Calls to one broker at once: a transaction may have a thousand topics there.
CALLS_AT_ONCE = 50


class InnerCalls:
    """Questions that brokers ask each other about a topic; the broker that serves it answers.

    A broker asks itself without a call. Another one is called over HTTP, and the question is signed
    with a secret that only the brokers can read: they have no credentials of their own. Whoever has
    heard a question can ask it again, so an answer must do no harm when it is given twice.
    """

    def __init__(self, cafile: str | os.PathLike[str] | None) -> None:
        """`cafile`: the authorities that sign the certificates of brokers with TLS only."""
        self._cafile = cafile
        #: The bound of concurrent calls, by broker.
        self._lanes: dict[str, asyncio.Semaphore] = {}
        #: The function that answers each kind of question, with plain JSON.
        self.answering: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.cluster: Cluster | None = None
        self.secret = b""

    async def ask(self, name: TopicName, what: str, **facts: Any) -> Any:
        """The answer of the broker that serves a topic. Raises RefusedError."""
        for _ in range(MAX_HOPS):
            if self.cluster is None or self.cluster.owns(name):
                return await self._answer(name, what, facts)
            found = await self.cluster.find(name, authoritative=False)
            if found.broker_id != self.cluster.broker_id:
                return await self._call(found, name, json.dumps([str(name), what, facts]).encode())
        raise RefusedError(ServerError.ServiceNotReady, f"{name} is on the way between brokers")

    async def _answer(self, name: TopicName, what: str, facts: Mapping[str, Any]) -> Any:
        answer = self.answering.get(what)
        if answer is None:
            text = f"this broker does not know what a {what} is: give all brokers the same settings"
            raise RefusedError(ServerError.ServiceNotReady, text)
        return await answer(name, **facts)

    async def answered(self, topic: str, body: bytes, signature: str) -> Any:
        """The answer to another broker, as it is sent. Raises PermissionError, NotOwnedError."""
        from hmac import compare_digest

        expected = self._signature(body).encode()
        if self.cluster is None or not compare_digest(expected, signature.encode()):
            raise PermissionError
        full, what, facts = json.loads(body)
        if full != topic:
            raise PermissionError
        name = TopicName.parse(topic)
        self.cluster.check_owned(name)
        try:
            return [0, await self._answer(name, what, facts)]
        except NotOwnedError:
            raise
        except RefusedError as refusal:
            return [refusal.code, refusal.message]

    def _signature(self, body: bytes) -> str:
        from hmac import digest

        return digest(self.secret, body, "sha256").hex()

    async def _call(self, found: Found, name: TopicName, body: bytes) -> Any:
        path = f"{INNER_PATH}{name.namespace}/{quote(name.local, safe='')}"
        flag = "true" if found.redirect and found.authoritative else "false"
        url = f"{found.http_url or found.http_url_tls}{path}?authoritative={flag}"
        headers = {"content-type": "application/json", SIGNATURE_HEADER: self._signature(body)}
        lane = self._lanes.setdefault(found.broker_id, asyncio.Semaphore(CALLS_AT_ONCE))
        try:
            async with lane, asyncio.timeout(CALL_TIMEOUT_S):
                status, answer = await exchange(url, "POST", headers, body, self._cafile)
            if status != 200:
                raise ConnectionError(f"it answers with {status}")
            code, value = json.loads(answer)
        except (OSError, ValueError) as error:
            text = f"the broker of {name} does not answer: {error!r}"
            raise RefusedError(ServerError.ServiceNotReady, text) from error
        if code:
            raise RefusedError(code, value)
        return value


async def exchange(
    url: str,
    method: str,
    headers: Mapping[str, str],
    body: bytes,
    cafile: str | os.PathLike[str] | None,
) -> tuple[int, bytes]:
    """Status and body of another broker's answer over HTTP. Redirects (307) are followed.

    `cafile`: the authorities for brokers with TLS only. Raises OSError if there is no answer.
    """
    for _ in range(MAX_HOPS):
        parts = urlsplit(url)
        tls = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        own = {"host": parts.netloc, "connection": "close", "content-length": str(len(body))}
        target = f"{parts.path}?{parts.query}"
        try:
            status, location, answer = await _exchange_once(
                reader, writer, method, target, {**headers, **own}, body
            )
        finally:
            writer.close()
        if status != 307 or not location:
            break
        url = location
    return status, answer


async def _exchange_once(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
) -> tuple[int, str, bytes]:
    """Status, Location and body of the answer. Raises OSError."""
    import h11

    link = h11.Connection(h11.CLIENT)
    request = h11.Request(method=method, target=target, headers=[*headers.items()])
    status, location, answer = 0, b"", bytearray()
    try:
        for part in request, h11.Data(data=body), h11.EndOfMessage():
            writer.write(link.send(part) or b"")
        while not isinstance(event := link.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                link.receive_data(await reader.read(64 * 1024))
            elif isinstance(event, h11.Response):
                status, location = event.status_code, dict(event.headers).get(b"location", b"")
            elif isinstance(event, h11.Data):
                answer += event.data
    except h11.ProtocolError as error:
        raise ConnectionError(f"no answer of HTTP: {error!r}") from error
    return status, location.decode(), bytes(answer)
