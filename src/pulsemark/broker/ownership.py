"""Which broker serves a topic, where there are several: what a broker asks its cluster.

A broker alone has no cluster, and serves every topic (`Services.cluster` is None). The package
`cluster` implements these protocols. As in Pulsar, a topic goes with its bundle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ..proto.pulsar_api_pb2 import ServerError
from ..records import record
from .errors import RefusedError

if TYPE_CHECKING:
    from ..wire import TopicName


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
    """Where Kafka's clients reach a broker, and its number in their protocol."""

    node_id: int
    host: str
    port: int | None
    tls_port: int | None


@record(frozen=True)
class GrpcPlace:
    """`host:port` of a broker's seek service, without and with TLS; "" if it has none."""

    target: str
    tls_target: str


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

    async def kafka_places(self) -> dict[str, KafkaPlace]:
        """Where Kafka's clients reach the brokers, by id. Raises RefusedError."""

    async def grpc_place(self, broker_id: str) -> GrpcPlace | None:
        """Where a broker's seek service is; None: no such broker runs. Raises RefusedError."""

    def problems(self) -> list[str]:
        """What keeps other brokers of the same command from serving, a sentence each."""

    def bad_copies(self) -> dict[str, int]:
        """How many damaged copies of entries each bookie has sent to this broker."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of what this broker owns."""

    def hear(self, kind: str, taker: Callable[[str, bytes | None], None]) -> None:
        """Call `taker` with the key and the value that other brokers have stored of a kind."""

    def check_owned(self, name: TopicName) -> None:
        """Raise NotOwnedError unless this broker serves the topic."""

    async def brokers(self) -> list[str]:
        """The ids of the brokers that live, sorted. Raises RefusedError."""

    async def leader(self) -> Found | None:
        """The broker that chooses owners; None while there is none. Raises RefusedError."""

    async def bundles_of(self, broker_id: str) -> list[str] | None:
        """The bundles that a broker owns, as `tenant/namespace/range`; None: no such broker.

        Raises RefusedError.
        """

    async def owner_of(self, bundle: str) -> Found | None:
        """The broker that owns a bundle; None: no broker does. Raises RefusedError."""

    async def delete_topic(self, name: TopicName) -> None:
        """Have the broker that serves a topic delete it, with its clients. Raises RefusedError."""

    async def unload(self, bundle: str) -> None:
        """Give a bundle of this broker away, if it owns it. Raises RefusedError."""
