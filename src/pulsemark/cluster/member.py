"""One broker of a cluster: it joins, answers lookups, takes bundles over and gives them away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..broker.cooperative import Background
from ..broker.errors import RefusedError
from ..broker.http.paths import boundaries_of, bundle_of
from ..broker.ownership import Cluster, Found, KafkaPlace, NotOwnedError, Registered
from ..broker.server import Membership
from ..broker.storage import open_store
from ..broker.topics.partitioned_topics import RETIRED_KIND
from ..broker.topics.registry import takers_of, unload
from ..coordination import Coordination, CoordinationError, State, Watch, connect
from ..coordination.local import LocalCoordination
from ..ledger import CatalogError, LedgerError, TopicStore
from ..proto.pulsar_api_pb2 import ServerError
from ..wire import TopicName
from .bundle_ownership import BundleOwnership, Stores
from .placement import Balanced, Fixed
from .registration import Registration, inner_secret, kafka_node_id
from .shared_catalog import SharedCatalog
from .store import BundleStores, ClusterStore, OneStore

if TYPE_CHECKING:
    from ..broker.connection.services import Services
    from ..broker.server import Broker
    from ..ledger.commit.group_commit import Notify

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.2
"""How often the stores are asked whether another broker has fenced them."""

OWNER_INTERVAL_S = 0.1
"""How often a lookup that waits for a bundle's next owner asks again."""

DELETED_WITHIN_S = 30.0
"""How long the deletion of a partitioned topic waits for another broker to delete a partition."""

MakeStores = Callable[["Broker", "Notify"], Stores]


class ClusterMember(Membership, Cluster):
    """A broker in a cluster. Give it to `Broker`, once."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Coordination]],
        make_stores: MakeStores,
        placement: Balanced | Fixed,
    ) -> None:
        self._connect = connect
        self._make_stores = make_stores
        self.placement = placement
        self._watches: list[Watch] = []
        self._background = Background()
        self._suspended_at_s: float | None = None
        self._returning: asyncio.Task[None] | None = None
        self._is_ready = False
        self._reaching = Reaching()

    # -- joining ----------------------------------------------------------------------------------

    async def open_store(self, broker: Broker, notify: Notify) -> ClusterStore:
        """Connect, read the shared settings and make the stores. Raises CoordinationError."""
        self.session = await self._connect()
        self.catalog = SharedCatalog(self.session)
        await self.catalog.load()
        listening = (broker.http_url or broker.http_url_tls or broker.service_url).partition("://")
        self.me = Found(
            listening[2],
            broker.service_url,
            broker.service_url_tls,
            broker.http_url,
            broker.http_url_tls,
        )
        self._store = ClusterStore(
            self.catalog,
            lambda topic: self.bundle_of(TopicName.parse(topic)),
            f"cluster, {self.me.broker_id}",
        )
        self.registration = Registration(self.session, self.me, self.placement.worker)
        self._stores = self._make_stores(broker, notify)
        self._store.finish = self._stores.finish
        self.ownership = BundleOwnership(
            self.session, self.me, self._stores, self._store.stores, self._close_topics
        )
        return self._store

    async def join(self, services: Services) -> None:
        """Register the broker: from now on it may own bundles."""
        self._services = services
        services.cluster = services.inner.cluster = services.topics.cluster = self
        for kind, taker in takers_of(services.topics, services.schemas).items():
            self.hear(kind, taker)
        self.hear(RETIRED_KIND, self._partitions_retired)
        self.ownership.on_change.append(
            lambda: self._background.start(
                _logged(self.registration.show_bundles(self.ownership.bundles()))
            )
        )
        self._watches.append(self.session.listen(self._on_state))
        services.inner.secret = await inner_secret(services)
        if services.kafka_place is not None:
            node_id = await kafka_node_id(services, self.broker_id, self.placement.worker)
            self.registration.kafka = replace(services.kafka_place, node_id=node_id)
        self.registration.grpc = services.grpc_place or self.registration.grpc
        await self.registration.register()
        await self.placement.start(self)
        self._is_ready = True
        self._background.start(_logged(self._check_for_ever()))

    # -- lookups ----------------------------------------------------------------------------------

    @property
    def broker_id(self) -> str:
        return self.me.broker_id

    async def find(self, name: TopicName, *, authoritative: bool) -> Found:
        bundle = self.bundle_of(name)
        if problem := self.placement.problem_of(bundle):
            raise RefusedError(ServerError.ServiceNotReady, problem)
        with _as_refusal():
            owner = await self._living_owner(bundle)
            if owner is None:
                owner = await self.placement.candidate(self, bundle, authoritative=authoritative)
            if owner.broker_id != self.broker_id or self.ownership.owns(bundle):
                return owner
            return await self.ownership.take(bundle)

    async def _living_owner(self, bundle: str) -> Found | None:
        """The owner of a bundle. If the owner has died, wait until its session has ended."""
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + 2 * self.session.session_timeout_ms / 1000
        while True:
            owner = await self.ownership.owner(bundle)
            if owner is None or owner is self.me or loop.time() > limit_s:
                return owner
            if not await self._reaching.is_refused(owner):
                return owner
            await asyncio.sleep(OWNER_INTERVAL_S)

    def bundle_of(self, name: TopicName) -> str:
        """The bundle of a topic, as `tenant/namespace/range`."""
        settings = self._services.topics.namespaces.get(name.namespace, {})
        return f"{name.namespace}/{bundle_of(boundaries_of(settings), str(name))}"

    def check_owned(self, name: TopicName) -> None:
        bundle = self.bundle_of(name)
        if not self.ownership.owns(bundle):
            raise NotOwnedError(str(name), bundle, self.broker_id)

    def owns(self, name: TopicName) -> bool:
        return self.ownership.owns(self.bundle_of(name))

    async def serve(self, name: TopicName) -> None:
        bundle = self.bundle_of(name)
        if not self.ownership.owns(bundle) and self.placement.may_take(bundle):
            with _as_refusal():
                await self.ownership.take(bundle)
        self.check_owned(name)

    async def likely_owner(self, name: TopicName) -> str | None:
        bundle = self.bundle_of(name)
        if self.placement.problem_of(bundle):
            return None
        with _as_refusal():
            owner = await self.ownership.owner(bundle)
            if owner is None:
                owner = await self.placement.chosen(self, bundle)
            elif owner is not self.me and await self._reaching.is_refused(owner):
                owner = None
        return None if owner is None else owner.broker_id

    @property
    def kafka_node(self) -> int:
        kafka = self.registration.kafka
        return -1 if kafka is None else kafka.node_id

    async def kafka_nodes(self) -> dict[int, KafkaPlace]:
        with _as_refusal():
            return await self.registration.kafka_nodes()

    def problems(self) -> list[str]:
        return list(self.placement.problems().values())

    def bad_copies(self) -> dict[str, int]:
        return self._stores.bad_copies()

    def follow(self, changed: Callable[[], None]) -> None:
        self.ownership.on_change.append(changed)

    def hear(self, kind: str, taker: Callable[[str, bytes | None], None]) -> None:
        def heard(its_kind: str, key: str, value: bytes | None) -> None:
            if its_kind == kind:
                taker(key, value)

        self.catalog.on_change.append(heard)

    async def brokers(self) -> dict[str, Registered]:
        with _as_refusal():
            return await self.registration.brokers()

    async def leader(self) -> Found | None:
        with _as_refusal():
            return await self.registration.leader()

    async def owner_of(self, bundle: str) -> Found | None:
        with _as_refusal():
            return await self.ownership.owner(bundle)

    async def delete_topic(self, name: TopicName) -> None:
        topics, loop = self._services.topics, asyncio.get_running_loop()
        limit_s = loop.time() + DELETED_WITHIN_S
        while topics.exists(name):
            try:
                await self.serve(name)
            except NotOwnedError:
                # Its owner follows the deletion's record, and needs no credentials for it.
                if loop.time() > limit_s:
                    text = f"{name} is not deleted yet by the broker that serves it; ask once more"
                    raise RefusedError(ServerError.ServiceNotReady, text) from None
                await asyncio.sleep(OWNER_INTERVAL_S)
            else:
                await self._delete_if_there(name)

    def _partitions_retired(self, full: str, value: bytes | None) -> None:
        """Delete this broker's part of a topic that another began to delete."""
        if value is not None:
            self._background.start(_logged(self._delete_partitions(TopicName.parse(full))))

    async def _delete_partitions(self, name: TopicName) -> None:
        topics = self._services.topics
        for index in range(topics.partitioned.count_of(name)):
            part = name.partition(index)
            # The broker that was asked deletes topics without an owner; a worker only its own.
            if not topics.exists(part) or not (
                self.owns(part) or self.placement.worker is not None
            ):
                continue
            try:
                await self.serve(part)
                await self._delete_if_there(part)
            except NotOwnedError:
                continue
            except (RefusedError, LedgerError, OSError) as error:
                log.warning("%s was not deleted with its partitioned topic: %s", part, error)

    async def _delete_if_there(self, name: TopicName) -> None:
        try:
            await self._services.topics.delete(name, force=True)
        except RefusedError as refusal:
            if refusal.code != ServerError.TopicNotFound:
                raise

    async def unload(self, bundle: str) -> None:
        await self.ownership.give(bundle)

    # -- staying ----------------------------------------------------------------------------------

    async def _close_topics(self, bundle: str, is_lost: bool) -> int:
        topics = self._services.topics
        return await unload(topics, lambda name: self.bundle_of(name) == bundle, is_lost=is_lost)

    def _on_state(self, state: State) -> None:
        loop = asyncio.get_running_loop()
        if state is State.SUSPENDED:
            self._suspended_at_s = loop.time()
        elif state is State.LOST:
            self._suspended_at_s = None
            self._background.start(_logged(self._lose_all()))
        elif state is State.CONNECTED:
            self._suspended_at_s = None
            self._background.start(_logged(self._return()))

    async def _return(self) -> None:
        """Go on after a reconnect, in the old session or in a new one without our nodes."""
        if self._returning is not None:
            self._returning.cancel()  # it may have made nodes in the session before
        self._returning = asyncio.current_task()
        await self.registration.again()

    async def _lose_all(self) -> None:
        await asyncio.gather(*(self.ownership.lose(bundle) for bundle in self.ownership.bundles()))

    async def _check_for_ever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            # Go on after any error: the checks must not end.
            await _logged(self._check())

    async def _check(self) -> None:
        """Close bundles that another broker has fenced, or may have taken over."""
        since_s = self._suspended_at_s
        if since_s is not None:
            silent_ms = (asyncio.get_running_loop().time() - since_s) * 1000
            if silent_ms > self.session.session_timeout_ms:
                self._suspended_at_s = None
                log.warning(
                    "%s has lost its session with the other brokers, and closes its topics",
                    self.broker_id,
                )
                await self._lose_all()
        for bundle, store in tuple(self._store.stores.items()):
            if self._stores.are_shared and store.state.is_over and self.ownership.owns(bundle):
                await self.ownership.lose(bundle)
        await self.ownership.forget_stale()

    # -- leaving ----------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Give all bundles away in good order. Clients are disconnected, and look up again."""
        if not self._is_ready:
            return
        self._is_ready = False
        self.ownership.is_over = True
        await self.placement.stop()
        for watch in self._watches:
            watch.close()
        self._background.cancel()
        try:
            await self.registration.withdraw()
        except CoordinationError as error:
            log.warning(
                "this broker's nodes could not be deleted; they stay until its session ends: %s",
                error,
            )
        await self.ownership.give_all()

    async def close(self) -> None:
        if hasattr(self, "catalog"):
            self.catalog.close()
        self._background.cancel()
        if hasattr(self, "session"):
            await self.session.close()


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Turn CoordinationError into RefusedError."""
    try:
        yield
    except CoordinationError as error:
        text = f"the cluster's metadata cannot be reached: {error}"
        raise RefusedError(ServerError.ServiceNotReady, text) from error


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except CoordinationError as error:
        log.warning("the cluster's metadata could not be reached: %s", error)
    except Exception:
        log.exception("work of the cluster failed")


# Whether a broker that owns a bundle still listens.
#
# A broker that has died owns its bundles until its session ends, some seconds later. If clients
# were sent to it meanwhile, each refused connection would make them wait longer before they ask
# again, at last much longer than the session. So a lookup of such a bundle waits for its next owner
# instead.


KNOWN_FOR_S = 2.0
CONNECT_LIMIT_S = 1.0


class Reaching:
    """Tests whether brokers accept connections, each at most every two seconds."""

    def __init__(self) -> None:
        self._reached_at_s: dict[str, float] = {}

    async def is_refused(self, owner: Found) -> bool:
        """Whether no process listens at the owner's port. False if that is not certain."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reached_at_s.get(owner.broker_id, -KNOWN_FOR_S) < KNOWN_FOR_S:
            return False
        place = urlsplit(owner.service_url or owner.service_url_tls)
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, writer = await asyncio.open_connection(place.hostname, place.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        self._reached_at_s[owner.broker_id] = now_s
        return False


BUNDLES_ROOT = "/pulsemark/bundles"
"""Below it each bundle's store has its nodes."""
CACHES = 8
"""A store of a bundle has this part of the broker's tail cache: a broker owns several bundles."""


def worker_member(socket: Path, worker: int, workers: int) -> ClusterMember:
    """Make a worker with a data folder of its own; the supervisor serves ``socket``."""

    async def connecting() -> Coordination:
        return await LocalCoordination.connect(socket)

    def stores(broker: Broker, notify: Notify) -> Stores:
        def opening() -> TopicStore:
            return open_store(broker.config, None, notify, broker.files)

        return OneStore(opening, broker.run_blocking)

    return ClusterMember(connecting, stores, Fixed(worker, workers))


def bookkeeper_member(
    address: str, *, session_timeout_ms: int = 4_000, shedding_interval_ms: int = 30_000
) -> ClusterMember:
    """Make a broker that keeps its ledgers in BookKeeper, at `zk://HOST:PORT/ledgers`.

    Raises StoreAddressError. Opening its store raises CatalogError if no BookKeeper is there.
    """
    from ..ledger.bookkeeper.address import StoreAddress

    parsed = StoreAddress.parse(address)

    async def connecting() -> Coordination:
        session = await connect(parsed.hosts, session_timeout_ms=session_timeout_ms)
        try:
            await _check_cluster(session, parsed.ledgers_root)
        except BaseException:
            await session.close()
            raise
        return session

    def stores(broker: Broker, notify: Notify) -> Stores:
        from ..ledger.bookkeeper.ledgers import LedgerOptions
        from ..ledger.bookkeeper.store import BookKeeperStore

        where = broker.config.bookkeeper
        sizes = where.ensemble_size, where.write_quorum_size, where.ack_quorum_size
        options = broker.config.store_options
        part = replace(options, tail_cache_bytes=max(1, options.tail_cache_bytes // CACHES))

        def opening(bundle: str) -> TopicStore:
            return BookKeeperStore.open(
                address,
                root=f"{BUNDLES_ROOT}/{bundle}",
                ledger_options=LedgerOptions(*sizes),
                clock=broker.config.clock,
                options=part,
                notify=notify,
                session_timeout_ms=session_timeout_ms,
                tls=where.bookie_tls(),
            )

        return BundleStores(opening, broker.run_blocking)

    return ClusterMember(connecting, stores, Balanced(shedding_interval_ms=shedding_interval_ms))


async def _check_cluster(session: Coordination, root: str) -> None:
    """Raise CatalogError if there is no BookKeeper at that path, so that no broker starts."""
    from ..ledger.bookkeeper.client import BookKeeperClient
    from ..ledger.bookkeeper.client.errors import BookKeeperError

    try:
        await BookKeeperClient(session, root).check_cluster()
    except BookKeeperError as error:
        raise CatalogError(Path(root), str(error)) from error
