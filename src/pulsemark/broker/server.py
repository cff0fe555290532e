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

Blocking work runs in the executor. The event loop itself only appends to ledgers and reads them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..ledger import LocalStore, MemoryStore, TopicStore
from ..ledger.commit.delivery import Notify
from ..metadata import StamperChain, StampError
from .commits import durable
from .configuration.config import BrokerConfig
from .connection.accepting import Listener, connections_affordable
from .connection.session import Session
from .errors import BrokerStateError, ConfigError, NoDataFolderError, PortInUseError, RefusedError
from .housekeeping import Housekeeping
from .making import make_services
from .services import Services
from .waiting import wait_until

if TYPE_CHECKING:
    from ..finder.server import SeekServer
    from .kafka_bridge import KafkaServer

__all__ = ["Broker"]

log = logging.getLogger(__name__)

T = TypeVar("T")

EXECUTOR_THREADS = 4


class Broker:
    """A broker on the running event loop."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self._executor: ThreadPoolExecutor | None = None
        self._store: TopicStore | None = None
        self._services: Services | None = None
        self._housekeeping: Housekeeping | None = None
        self._binary: Listener | None = None
        self._http: Listener | None = None
        self._seek_server: SeekServer | None = None
        self._kafka: KafkaServer | None = None
        self._temporary: Path | None = None
        self._state = "new"

    # -- facts ----------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port of the binary protocol."""
        return _running(self._binary, self._state).port

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`, the URL for clients."""
        return f"pulsar://{_url_host(self._advertised_host())}:{self.port}"

    @property
    def http_url(self) -> str:
        """`http://host:port` of lookup, admin and metrics; "" without HTTP."""
        if self.config.http_port is None:
            return ""
        return (
            f"http://{_url_host(self._advertised_host())}:{_running(self._http, self._state).port}"
        )

    @property
    def grpc_url(self) -> str:
        """`host:port` of the seek service; "" without gRPC."""
        return self._seek_server.target if self._seek_server is not None else ""

    @property
    def kafka_url(self) -> str:
        """`host:port` for Kafka's clients (bootstrap.servers); "" without them."""
        if self._kafka is None:
            return ""
        return f"{_url_host(self._advertised_host())}:{self._kafka.port}"

    @property
    def data_dir(self) -> Path:
        """The data folder. Raises NoDataFolderError for a broker in memory."""
        store = _running(self._store, self._state)
        if not isinstance(store, LocalStore):
            raise NoDataFolderError
        return store.folder

    @property
    def store(self) -> TopicStore:
        """The open store."""
        return _running(self._store, self._state)

    @property
    def services(self) -> Services:
        """The registries: topics, schemas, sessions."""
        return _running(self._services, self._state)

    def _advertised_host(self) -> str:
        if self.config.advertised_address is not None:
            return self.config.advertised_address
        everywhere = self.config.host in ("0.0.0.0", "::")
        return socket.gethostname() if everywhere else self.config.host

    # -- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data folder and begin to serve.

        Raises PortInUseError, ConfigError (an unknown stamper), and the ledger's FolderLockedError,
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
        log.info("broker serves %s with the data in %s", self.service_url, self.store.state.name)

    async def _start(self) -> None:
        config = self.config
        try:
            stampers = StamperChain.from_names(config.stampers)
        except StampError as error:
            raise ConfigError("stampers", config.stampers, str(error)) from error
        self._bind()
        self._executor = ThreadPoolExecutor(EXECUTOR_THREADS, "pulsemark-io")
        self._store = await self._run_blocking(
            self._open_store, asyncio.get_running_loop().call_soon_threadsafe
        )
        self._services = await make_services(
            config,
            self._store,
            stampers,
            self._run_blocking,
            service_url=self.service_url,
            http_url=self.http_url,
        )
        await self._start_seek_server()
        if self._kafka is not None:
            await self._kafka.open(self._services, self._advertised_host())
        self._housekeeping = Housekeeping(self._services)
        self._services.cleaning.start()
        self._services.lifetimes.start()
        self._services.auditor.start()
        for listener in (self._binary, self._http, self._kafka):
            if listener is not None:
                listener.start()

    def _open_store(self, notify: Notify) -> TopicStore:
        config = self.config
        if config.storage == "memory":
            return MemoryStore.open(
                config.memory, clock=config.clock, options=config.store_options, notify=notify
            )
        folder = config.data_dir
        if folder is None:
            folder = self._temporary = Path(tempfile.mkdtemp(prefix="pulsemark-"))
        return LocalStore.open(
            folder, clock=config.clock, options=config.store_options, notify=notify
        )

    def _bind(self) -> None:
        config = self.config
        affordable = connections_affordable(config.store_options)
        if affordable < config.max_connections:
            log.info(
                "the process' limit of open files allows only %d of %d connections; "
                "raise it (ulimit -n) if you need more",
                affordable,
                config.max_connections,
            )

        def has_room(arriving: int) -> bool:
            services = self.services
            http = len(services.http_connections)
            arrived = len(services.sessions) + services.kafka_connections + arriving
            return arrived < config.max_connections and arrived + http < affordable

        self._binary = Listener(
            config.host, config.port, lambda: Session(self.services), has_room=has_room
        )
        if config.http_port is not None:
            self._http = Listener(
                config.host, config.http_port, self._http_protocol, has_room=has_room
            )

        if config.kafka_port is not None:
            self._kafka = _kafka_server(config, has_room)

    def _http_protocol(self) -> asyncio.BaseProtocol:
        # Imported with the first HTTP connection: most brokers in tests never get one.
        from .http.connection import HttpConnection

        return HttpConnection(self.services)

    async def _start_seek_server(self) -> None:
        port = self.config.grpc_port
        if port is None and self.config.grpc_control_token_file is not None:
            path = str(self.config.grpc_control_token_file)
            raise ConfigError("grpc_control_token_file", path, "needs grpc_port, which is not set")
        if port is None:
            return
        from ..finder.errors import BindError
        from .grpc_bridge import make_seek_server

        server = make_seek_server(self.services, self.config.host, port)
        try:
            await server.start()
        except BindError as error:
            raise PortInUseError(self.config.host, port) from error
        self._seek_server = server

    async def _run_blocking(self, function: Any, *arguments: Any) -> Any:
        executor = _running(self._executor, self._state)
        return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)

    # -- close ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all parts in order; a second call does nothing."""
        if self._state in ("closing", "closed"):
            return
        self._state = "closing"
        try:
            await self._stop_accepting()
            # All at the same time: they share the configured timeout.
            await asyncio.gather(
                self._stop_seek_server(), self._stop_kafka(), self._close_sessions()
            )
            await self._persist_cursors()
        finally:
            await self._close_store()
            self._state = "closed"

    async def _stop_accepting(self) -> None:
        listeners = (self._binary, self._http, self._kafka and self._kafka.listener)
        for listener in listeners:
            if listener is not None:
                await listener.close()

    async def _stop_seek_server(self) -> None:
        if self._seek_server is not None:
            await self._seek_server.stop()

    async def _stop_kafka(self) -> None:
        if self._kafka is not None:
            await self._kafka.close()

    async def _close_sessions(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.close()
        if self._services is None:
            return
        self._services.storage.close()
        sessions = self._services.sessions
        for session in tuple(sessions):
            session.stop_reading()
        deadline_s = asyncio.get_running_loop().time() + self.config.shutdown_timeout_ms / 1000
        await wait_until(lambda: not any(session.is_busy for session in sessions), deadline_s)
        for topic in self._services.topics.open_topics.values():
            topic.producers.close()
        for session in tuple(sessions):
            session.finish()
        for connection in tuple(self._services.http_connections):
            connection.close()
        await wait_until(lambda: all(session.is_drained for session in sessions), deadline_s)
        for session in tuple(sessions):
            session.abort()
        self._services.output.close()

    async def _persist_cursors(self) -> None:
        if self._services is None:
            return
        topics = self._services.topics
        await self._services.cleaning.close()
        await self._services.lifetimes.close()
        await topics.rule_keeping.settled()
        await topics.settled()
        await self._services.auditor.close()
        for topic in tuple(topics.open_topics.values()):
            for subscription in tuple(topic.subscriptions.values()):
                try:
                    subscription.work.finish()
                    await durable(subscription.cursor.persist())
                except RefusedError as refusal:
                    log.error("%s: cursor could not be stored: %s", subscription, refusal)
                except Exception:
                    # The cursors of the other subscriptions still have to be stored.
                    log.exception("%s: cursor could not be stored", subscription)
        await topics.close()
        await topics.catalog_writer.settled()

    async def _close_store(self) -> None:
        if self._store is not None:
            await self._run_blocking(self._store.close)
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _kafka_server(config: BrokerConfig, has_room: Callable[[int], bool]) -> KafkaServer:
    """The listener for Kafka's clients. Raises ConfigError, PortInUseError, OSError."""
    try:
        # With kafka-python it takes 30 MB, which most brokers do not need.
        from .kafka_bridge import KafkaServer
    except ImportError as error:
        reason = f"needs kafka-python (pip install 'pulsemark[kafka]'): {error}"
        raise ConfigError("kafka_port", config.kafka_port, reason) from error
    return KafkaServer(config, has_room)


def _running(part: T | None, state: str) -> T:
    if part is None:
        raise BrokerStateError("running", state)
    return part


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
