"""The parts of a broker that all its connections share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ...connection_memory import InputMemory, OutputMemory, PublishBudget
from ...records import record
from ..configuration.config import BrokerConfig
from ..configuration.dynamic_settings import DynamicSettings
from ..counters import CacheMeter
from ..memory import KeptMemory
from ..security.authentication import Authenticator
from ..storage import StorageHealth

if TYPE_CHECKING:
    from ...finder.mirror_progress import MirrorProgress
    from ..audit.auditor import Auditor
    from ..cleaning.inactive_topics import Lifetimes
    from ..cleaning.worker import Cleaning
    from ..ownership import Cluster, GrpcPlace, InnerCalls, KafkaPlace
    from ..security.authorization import Authorizer
    from ..topics.participants import Participants
    from ..topics.registry import Topics
    from ..topics.schemas import Schemas
    from ..topics.transactions import Coordination
    from .session import Session


class Closable(Protocol):
    """A connection that can be closed."""

    def close(self) -> None:
        """Close it."""


@record
class Services:
    """The broker as its sessions and HTTP handlers see it."""

    settings: DynamicSettings
    topics: Topics
    schemas: Schemas
    authorizer: Authorizer
    budget: PublishBudget
    input: InputMemory
    output: OutputMemory
    kept: KeptMemory
    storage: StorageHealth
    cleaning: Cleaning
    lifetimes: Lifetimes
    auditor: Auditor
    mirror_progress: MirrorProgress
    cache: CacheMeter
    inner: InnerCalls
    participants: Participants
    #: Runs a blocking function in the executor.
    run_blocking: Callable[..., Awaitable[Any]]
    #: URL of the binary protocol, as lookups return it to clients; "" with TLS only.
    service_url: str = ""
    #: "" without HTTP.
    http_url: str = ""
    #: The URLs with TLS; "" without.
    service_url_tls: str = ""
    http_url_tls: str = ""
    #: Authenticates clients; None: the broker has no authentication.
    authenticator: Authenticator | None = None
    #: The brokers that share the topics; None: this broker serves all of them.
    cluster: Cluster | None = None
    #: How often a broker was started on this data folder. It is a part of generated producer
    #: names, so that they stay unique after a restart.
    incarnation: int = 0
    sessions: set[Session] = field(default_factory=set)
    #: How many connections of the binary protocol and of Kafka's each host has.
    _hosts: Counter[str] = field(default_factory=Counter)
    #: How many clients have connected since the start.
    sessions_made: int = 0
    http_connections: set[Closable] = field(default_factory=set)
    #: Transactions of Pulsar's clients; None without `transactionCoordinatorEnabled`.
    transactions: Coordination | None = None
    #: The connections of Kafka's clients.
    kafka_sessions: Collection[object] = ()
    #: Name, text and value of each figure of the endpoint for them.
    kafka_figures: Callable[[], Iterable[tuple[str, str, float]]] = tuple
    #: This broker's address for Kafka's clients; None without `kafka_port`.
    kafka_place: KafkaPlace | None = None
    #: The address of this broker's seek service for other brokers; None without one.
    grpc_place: GrpcPlace | None = None
    #: The metrics pages that are being made, as they are and gzipped. Requests that come meanwhile
    #: get the same page.
    metrics_pages: dict[bool, asyncio.Task[list[bytes]]] = field(default_factory=dict)
    _names_given: int = 0

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self.settings.in_force

    @property
    def is_idle(self) -> bool:
        """Whether no client is connected. gRPC clients are not counted."""
        return not (self.sessions or self.http_connections or self.kafka_sessions)

    def joined(self, session: Session) -> None:
        """A client has connected."""
        self.sessions.add(session)
        self.sessions_made += 1
        self.count_connection(session.address, 1)

    def left(self, session: Session) -> None:
        """A client's connection has ended."""
        self.sessions.discard(session)
        self.count_connection(session.address, -1)

    def count_connection(self, address: str, change: int) -> None:
        """A client's connection from an address has begun (1) or ended (-1)."""
        host = address.rpartition(":")[0].removeprefix("/")
        self._hosts[host] += change
        if not self._hosts[host]:
            del self._hosts[host]

    def connections_from(self, host: str) -> int:
        """How many connections of the binary protocol and of Kafka's come from an IP address."""
        return self._hosts[host]

    def new_producer_name(self) -> str:
        """A producer name that was never used on this data folder before."""
        name = f"{self.config.cluster}-{self.incarnation}-{self._names_given}"
        self._names_given += 1
        return name
