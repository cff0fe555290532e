"""The broker: starts its parts in order, and closes them in order.

    async with Broker(config) as broker:
        ... broker.service_url ...

Start, in steps:

1. bind the sockets, so that a port in use is found before anything is changed;
2. open the data folder (the ledger recovers from a crash) and read the catalog;
3. accept connections.

Close, in steps:

1. stop accepting: binary protocol, HTTP, gRPC;
2. stop reading, and wait until the publishes and requests that arrived are answered;
3. close the connections: send buffered data, half-close, drain, close;
4. make every cursor durable;
5. close the store: commit, checkpoint, release the folder's lock;
6. end the threads, remove a temporary data folder.

Blocking work runs in the executor. The event loop itself only appends to ledgers and reads them;
what would come from bookies it asks for, and does something else meanwhile (`ledger.would_block`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from ..connection_memory import InputMemory, OutputMemory, PublishBudget
from ..finder.mirror_progress import MirrorProgress
from ..ledger import CatalogError
from ..ledger.commit.group_commit import Notify
from ..wire import TopicName
from .audit.auditor import Auditor
from .cleaning.inactive_topics import Lifetimes
from .cleaning.worker import Cleaning
from .configuration.config import BrokerConfig
from .configuration.dynamic_settings import DynamicSettings, stored_settings
from .connection.accepting import Listening, Service, connections_affordable
from .connection.closing import Ending, Revoking
from .connection.services import Services
from .counters import CacheMeter
from .errors import BrokerStateError, ConfigError, NoDataFolderError
from .grpc import start_seek_server
from .housekeeping import Housekeeping, store_cursors
from .kafka import endpoint_class
from .memory import KeptMemory
from .ownership import InnerCalls
from .policies.own_policies import STAMPS, InvalidPolicyError, StampPolicy
from .security.authentication import Authenticator
from .security.authorization import Authorizer
from .security.permissions import TOPIC, forget_topic, part_of
from .security.providers import authorization_plugin, make_authenticator
from .security.tls import make_context, make_http_context
from .storage import Storage, StorageHealth, executor_threads, is_in_files, open_store, opened
from .topics.catalog_writer import CatalogWriter
from .topics.participants import Participants
from .topics.registry import Topics
from .topics.schemas import Schemas

if TYPE_CHECKING:
    from ..finder.server import SeekServer
    from ..ledger.local.io.files import Files
    from .connection.session import Session
    from .http.connection import TestControls
    from .kafka.endpoint import Endpoint, Handler

log = logging.getLogger(__name__)

T = TypeVar("T")


class Membership(Protocol):
    """A broker's way into a cluster and out of it; given to `Broker`."""

    async def open_store(self, broker: Broker, notify: Notify) -> Storage:
        """Open the broker's store; its ports are bound already."""

    async def join(self, services: Services) -> None:
        """Register the broker, which is ready."""

    async def leave(self) -> None:
        """Give all bundles away, so that clients look their topics up again elsewhere."""

    async def close(self) -> None:
        """End the session with the cluster; the store is closed already."""


class Addresses(ABC):
    """The addresses of a broker for its clients, for `Broker` and `BrokerThread`."""

    @abstractmethod
    def _addressed(self) -> Broker:
        """The broker."""

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`, the URL for clients; "" with TLS only."""
        return self._url("pulsar", "binary")

    @property
    def service_url_tls(self) -> str:
        """`pulsar+ssl://host:port`; "" without TLS."""
        return self._url("pulsar+ssl", "binary_tls")

    @property
    def http_url(self) -> str:
        """`http://host:port` of lookup, admin and metrics; "" without HTTP."""
        return self._url("http", "http")

    @property
    def http_url_tls(self) -> str:
        """`https://host:port`; "" without TLS."""
        return self._url("https", "http_tls")

    @property
    def grpc_url(self) -> str:
        """`host:port` of the seek service; "" without gRPC."""
        broker = self._addressed()
        is_served = broker.seek_server is not None and broker.config.grpc_port is not None
        return broker.seek_server.target if broker.seek_server and is_served else ""

    @property
    def grpc_url_tls(self) -> str:
        """The same with TLS; "" without."""
        broker = self._addressed()
        is_served = broker.config.security.grpc_tls_port is not None
        return broker.seek_server.tls_target if broker.seek_server and is_served else ""

    @property
    def kafka_url(self) -> str:
        """`host:port` for Kafka's clients (bootstrap.servers); "" without them."""
        return self._url("", "kafka")

    @property
    def kafka_url_tls(self) -> str:
        """The same for clients with TLS (SSL, SASL_SSL); "" without it."""
        return self._url("", "kafka_tls")

    @property
    def schema_registry_url(self) -> str:
        """`http://host:port` of the schema registry; "" without one."""
        return self._url("http", "registry")

    @property
    def data_dir(self) -> Path:
        """The data folder. Raises NoDataFolderError for a broker in memory."""
        folder = getattr(self._addressed().store, "folder", None)
        if not isinstance(folder, Path):  # in memory, or on bookies
            raise NoDataFolderError
        return folder

    def _url(self, scheme: str, which: str) -> str:
        broker = self._addressed()
        return broker.listening.url(scheme, which, broker.advertised_host())


PORTS = {
    "port": "service_url",
    "http_port": "http_url",
    "grpc_port": "grpc_url",
    "kafka_port": "kafka_url",
    "schema_registry_port": "schema_registry_url",
}
"""The settings of ports, with the names of the URLs (`Addresses`) that a broker then has."""
TLS_PORTS = {
    "tls_port": "service_url_tls",
    "http_tls_port": "http_url_tls",
    "grpc_tls_port": "grpc_url_tls",
    "kafka_tls_port": "kafka_url_tls",
}
"""Those of `SecurityConfig`."""


def with_ports(
    config: BrokerConfig, change: Callable[[str, int | None], int | None]
) -> BrokerConfig:
    """The configuration with other ports: ``change`` gets each URL's name and its port."""
    security: Any = config.security
    plain: dict[str, Any] = {
        name: change(url, getattr(config, name)) for name, url in PORTS.items()
    }
    tls: dict[str, Any] = {
        name: change(url, getattr(security, name)) for name, url in TLS_PORTS.items()
    }
    return replace(config, security=replace(security, **tls), **plain)


def with_used_ports(config: BrokerConfig, url_of: Callable[[str], str | None]) -> BrokerConfig:
    """The configuration with the ports that are used, so that a restart has the same."""

    def used(name: str, port: int | None) -> int | None:
        url = url_of(name)
        return int(url.rpartition(":")[2]) if url else port

    return with_ports(config, used)


class Broker(Addresses):
    """A broker on the running event loop."""

    #: File calls for the data folder; None: the operating system's. The test kit's broker sets it.
    files: Files | None = None
    #: Faults that tests may cause over HTTP; None: no faults. The test kit's broker sets it.
    test_controls: TestControls | None = None

    def __init__(
        self, config: BrokerConfig | None = None, membership: Membership | None = None
    ) -> None:
        """`membership`: the broker is one of a cluster, and uses the store that this opens."""
        self.config = config or BrokerConfig()
        self._membership = membership
        self._executor: ThreadPoolExecutor | None = None
        self._store: Storage | None = None
        self._services: Services | None = None
        self._housekeeping: Housekeeping | None = None
        self._listening: Listening | None = None
        self._authenticator: Authenticator | None = None
        self.seek_server: SeekServer | None = None
        self._endpoint_class: type[Endpoint] | None = None
        self.kafka: Endpoint | None = None
        self._temporary: Path | None = None
        self._state = "new"

    # -- facts ----------------------------------------------------------------------------------

    @property
    def listening(self) -> Listening:
        """The ports of the binary protocol and of HTTP."""
        return _running(self._listening, self._state)

    @property
    def port(self) -> int:
        """The port of the binary protocol without TLS."""
        return _running(self.listening.port("binary"), "serving TLS only")

    @property
    def store(self) -> Storage:
        """The open store."""
        return _running(self._store, self._state)

    @property
    def services(self) -> Services:
        """The registries: topics, schemas, sessions."""
        return _running(self._services, self._state)

    def _addressed(self) -> Broker:
        return self

    def advertised_host(self) -> str:
        """The name or address by which clients reach the broker."""
        if self.config.advertised_address is not None:
            return self.config.advertised_address
        everywhere = self.config.host in ("0.0.0.0", "::")
        return socket.gethostname() if everywhere else self.config.host

    # -- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data folder and begin to serve.

        Raises BrokerStateError for a broker that was started before, PortInUseError, ConfigError
        (an unknown stamper or provider), and the ledger's FolderLockedError,
        ForeignFolderError, UnsupportedVersionError, CorruptFileError for the data folder.
        """
        if self._state != "new":
            raise BrokerStateError("new", self._state)
        self._state = "starting"
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        self._state = "running"
        log.info("broker serves %s with the data in %s", self.service_url, self.store.name)

    async def _start(self) -> None:
        config = self.config
        try:
            StampPolicy.from_json(STAMPS.default(config))
        except InvalidPolicyError as error:
            raise ConfigError("stampers", config.stampers, error.reason) from error
        self._authenticator = make_authenticator(config.security, config.clock.now_ms)
        self._bind()
        self._executor = ThreadPoolExecutor(executor_threads(config), "pulsemark-io")
        notify = asyncio.get_running_loop().call_soon_threadsafe
        if self._membership is not None:
            self._store = await self._membership.open_store(self, notify)
        else:
            self._store = await opened(self.run_blocking(self._open_store, notify))
        self._store.never_wait_here()
        self._services = services = await make_services(
            config,
            self._store,
            self.run_blocking,
            broker_name=(self.service_url or self.service_url_tls).partition("://")[2],
        )
        services.service_url, services.service_url_tls = self.service_url, self.service_url_tls
        services.http_url, services.http_url_tls = self.http_url, self.http_url_tls
        services.authenticator = self._authenticator
        self.seek_server = await start_seek_server(
            services, self.advertised_host(), has_others=self._membership is not None
        )
        services.kafka_place = self.listening.kafka_place(self.advertised_host())
        if services.transactions is not None and self._membership is None:
            await services.transactions.load()
        self._housekeeping = _started_work(services)
        self.listening.start(kafka=False)
        if self._membership is not None:
            await self._membership.join(services)
            if services.transactions is not None and services.cluster is not None:
                services.transactions.follow(services.cluster)
        await self._start_kafka(services)

    async def _start_kafka(self, services: Services) -> None:
        if self._endpoint_class is None:
            return
        host, handlers = self.advertised_host(), self.kafka_handlers()
        self.kafka = self._endpoint_class(services, host, handlers)
        await self.kafka.start()
        self.listening.start(kafka=True)

    def _open_store(self, notify: Notify) -> Storage:
        if is_in_files(self.config) and self.config.data_dir is None:
            import tempfile

            self._temporary = Path(tempfile.mkdtemp(prefix="pulsemark-"))
        return open_store(self.config, self._temporary, notify, self.files)

    def _bind(self) -> None:
        config = self.config
        self._endpoint_class = endpoint_class(config)
        affordable = connections_affordable(config.store_options)
        if affordable < config.max_connections:
            text = "the limit of open files (ulimit -n) allows only %d of %d connections"
            log.info(text, affordable, config.max_connections)

        def has_room(arriving: int) -> bool:
            services = self.services
            http = len(services.http_connections)
            arrived = len(services.sessions) + len(services.kafka_sessions) + arriving
            return arrived < config.max_connections and arrived + http < affordable

        def connections_from(host: str) -> int:
            return self.services.connections_from(host)

        self._listening = Listening(config, self._ports(), has_room, connections_from)

    def _ports(self) -> dict[str, Service]:
        config, security = self.config, self.config.security
        session = partial(_import, "handlers", "connection.session")
        http = partial(_import, "http.connection")
        registry = partial(_import, "http.schema_registry")
        make_session, make_http = self.make_session, self._http_protocol
        kafka, kafka_tls = (partial(self._kafka_protocol, name) for name in ("kafka", "kafka_tls"))
        return {
            "binary": Service(config.port, make_session, session),
            "binary_tls": Service(security.tls_port, make_session, session, make_context),
            "http": Service(config.http_port, make_http, http),
            "http_tls": Service(security.http_tls_port, make_http, http, make_http_context),
            "registry": Service(config.schema_registry_port, self._registry_protocol, registry),
            "kafka": Service(config.kafka_port, kafka),
            "kafka_tls": Service(security.kafka_tls_port, kafka_tls, None, make_context),
        }

    def make_session(self) -> Session:
        """The protocol of a new connection. The test kit's broker makes one with faults."""
        from . import handlers
        from .connection.session import Session

        return Session(self.services, handlers)

    def _http_protocol(self) -> asyncio.BaseProtocol:
        from .http.connection import HttpConnection

        return HttpConnection(self.services, self.test_controls)

    def _registry_protocol(self) -> asyncio.BaseProtocol:
        from .http.schema_registry import RegistryConnection

        return RegistryConnection(self.services)

    def _kafka_protocol(self, name: str) -> asyncio.BaseProtocol:
        """A connection of the service `name`; its client is told the advertised port, if any."""
        told = self.config.kafka_advertised_port if name == "kafka" else None
        port = told or self.listening.port(name)
        return _running(self.kafka, self._state).session(_running(port, self._state))

    def kafka_handlers(self) -> Mapping[int, Handler]:
        """The handlers of Kafka's requests. The test kit's broker adds faults."""
        from .kafka.handlers import HANDLERS

        return HANDLERS

    async def run_blocking(self, function: Any, *arguments: Any) -> Any:
        """Run a blocking function in the executor; its result. Raises BrokerStateError."""
        executor = _running(self._executor, self._state)
        return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)

    # -- close ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all parts in order; a second call does nothing.

        Raises OSError and the ledger's CatalogError if subscriptions' places cannot be stored; all
        parts are closed all the same.
        """
        if self._state in ("closing", "closed"):
            return
        was_running = self._state == "running"
        started_s = time.monotonic()
        self._state = "closing"
        try:
            if self._membership is not None:
                await self._membership.leave()
            if self._listening is not None:
                await self._listening.close()
            # All at the same time: they share the configured timeout.
            others = [self.seek_server.stop()] if self.seek_server is not None else []
            others += [self.kafka.close()] if self.kafka is not None else []
            await asyncio.gather(*others, self._close_sessions())
            await self._persist_cursors()
        finally:
            await self._close_store()
            if self._membership is not None:
                await self._membership.close()
            self._state = "closed"
            if was_running:
                log.info("broker stopped after %.3f s", time.monotonic() - started_s)

    async def _close_sessions(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.close()
        if self._services is None:
            return
        self._services.storage.close()
        sessions = self._services.sessions
        for session in tuple(sessions):
            session.stop_reading()
        ending = Ending.begin(self._services.config.shutdown_timeout_ms)
        await ending.answered(lambda: any(session.is_busy for session in sessions))
        for topic in self._services.topics.open_topics.values():
            topic.producers.close()
        for session in tuple(sessions):
            session.finish()
        for connection in tuple(self._services.http_connections):
            connection.close()
        await ending.sent(sessions)
        for session in tuple(sessions):
            session.abort()
        self._services.output.close()

    async def _persist_cursors(self) -> None:
        if self._services is None:
            return
        topics = self._services.topics
        await self._services.cleaning.close()
        await self._services.lifetimes.close()
        await self._services.participants.settled()
        if self._services.transactions is not None:
            await self._services.transactions.settled()
        await topics.policies.background.settled()
        await topics.settled()
        await self._services.auditor.close()
        await store_cursors(topics)
        await topics.close()
        await topics.catalog_writer.settled()

    async def _close_store(self) -> None:
        if self._store is not None:
            await self.run_blocking(self._store.close)
        if self._authenticator is not None:
            self._authenticator.close()
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        if self._temporary is not None:
            import shutil

            shutil.rmtree(self._temporary, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _import(*modules: str) -> None:
    """Import the modules of a port's connections, before the first one. Slow: in a thread."""
    for name in modules:
        import_module(f"{__package__}.{name}")


def _running(part: T | None, state: str) -> T:
    if part is None:
        raise BrokerStateError("running", state)
    return part


def _started_work(services: Services) -> Housekeeping:
    """Begin the broker's own work. Returns the part that a timer drives."""
    Revoking(services.authorizer, services.sessions, services.topics.turns)
    services.cleaning.start()
    services.lifetimes.start()
    services.auditor.start()
    return Housekeeping(
        services.config,
        services.sessions,
        services.topics,
        [services.participants, *filter(None, [services.transactions])],
    )


RunBlocking = Callable[..., Awaitable[Any]]


async def make_services(
    config: BrokerConfig,
    store: Storage,
    run_blocking: RunBlocking,
    *,
    broker_name: str,
) -> Services:
    """Make the shared parts of a broker, and load topics and settings from the store's catalog.

    The broker adds its URLs and its authenticator.
    """
    catalog_writer = CatalogWriter(store, run_blocking)
    changed = await run_blocking(stored_settings, store.catalog)
    settings = DynamicSettings(config, changed, catalog_writer.put)
    config = settings.in_force
    topics = Topics(store, config, run_blocking, catalog_writer, broker_name)
    schemas, progress = Schemas(topics), MirrorProgress(store.catalog)
    auditor = Auditor(topics, store.reads_are_due)
    topics.after_delete += [
        lambda name: run_blocking(progress.forget, str(name)),
        lambda name: auditor.forget(str(name)),
        schemas.forget,
        partial(_forget_permissions, topics),
    ]
    topics.on_open.append(lambda topic: progress.watch(topic.ledger))
    settings.on_change.append(topics.policies.use_defaults)
    await topics.load()
    return Services(
        settings=settings,
        topics=topics,
        schemas=schemas,
        authorizer=_authorizer(config, topics),
        **_bounds(config),
        storage=StorageHealth(partial(run_blocking, store.probe)),
        cleaning=Cleaning(topics),
        lifetimes=Lifetimes(topics),
        auditor=auditor,
        mirror_progress=progress,
        cache=CacheMeter(store),
        run_blocking=run_blocking,
        incarnation=await run_blocking(_next_incarnation, store),
        **_transacting(topics),
    )


def _transacting(topics: Topics) -> dict[str, Any]:
    config = topics.config
    inner = InnerCalls(config.security.tls_certificate_file)
    participants = Participants(topics, inner)
    transactions = None
    if config.transaction_coordinator_enabled:
        from .topics.transactions import Coordination  # few brokers have them

        transactions = Coordination(topics, participants, inner)
    return {"inner": inner, "participants": participants, "transactions": transactions}


def _bounds(config: BrokerConfig) -> dict[str, Any]:
    """The limits of the memory of all connections together."""
    return {
        "budget": PublishBudget(config.max_in_flight_publish_bytes),
        "input": InputMemory(config.max_input_buffer_bytes),
        "output": OutputMemory(config.max_unsent_bytes),
        "kept": KeptMemory(config.max_kept_bytes, config.max_kept_bytes_per_connection),
    }


def _authorizer(config: BrokerConfig, topics: Topics) -> Authorizer:
    provider = authorization_plugin(config.security)
    authorizer = Authorizer(config.security, topics.namespaces, provider)
    topics.namespaces.on_change.append(authorizer.changed)
    return authorizer


async def _forget_permissions(topics: Topics, name: TopicName) -> None:
    namespaces, full = topics.namespaces, str(name)
    if full in part_of(namespaces.get(name.namespace, {}), TOPIC):
        await namespaces.change(name.namespace, lambda old: forget_topic(old, full))


def _next_incarnation(store: Storage) -> int:
    while True:
        stored = store.catalog.get("broker", "incarnation")
        incarnation = int(stored) + 1 if stored is not None else 0
        try:
            store.catalog.put("broker", "incarnation", str(incarnation).encode())
        except CatalogError:
            # Another broker of a cluster may start at the same time, and have taken it.
            if store.catalog.get("broker", "incarnation") == stored:
                raise
        else:
            return incarnation
