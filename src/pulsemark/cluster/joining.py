"""Makes a broker a member: of the workers of one machine, or of brokers on Apache BookKeeper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..broker.storage import open_store
from ..coordination import Coordination, connect
from ..coordination.local import LocalCoordination
from ..ledger import CatalogError, TopicStore
from .member import ClusterMember
from .placement import Balanced, Fixed
from .store import BundleStores, OneStore

if TYPE_CHECKING:
    from ..broker.server import Broker
    from ..ledger.commit.group_commit import Notify
    from .bundle_ownership import Stores

BUNDLES_ROOT = "/pulsemark/bundles"
"""Below it each bundle's store has its nodes."""
CACHES = 8
"""A store of a bundle has this part of the broker's tail cache: a broker owns several bundles."""


def worker_member(socket: Path, worker: int, workers: int) -> ClusterMember:
    """One of several workers, whose data folder is its own; the supervisor serves ``socket``."""

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
    """One of the brokers that keep their ledgers in BookKeeper, at `zk://HOST:PORT/ledgers`.

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
    """Raises CatalogError if there is no BookKeeper at that path, so that no broker starts."""
    from ..ledger.bookkeeper.client import BookKeeperClient
    from ..ledger.bookkeeper.client.errors import BookKeeperError

    try:
        await BookKeeperClient(session, root).check_cluster()
    except BookKeeperError as error:
        raise CatalogError(Path(root), str(error)) from error
