"""Makes a broker a member: of the workers of one machine, or of brokers on Apache BookKeeper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..broker.store_opening import open_store
from ..coordination import Coordination, connect
from ..coordination.local import LocalCoordination
from ..ledger import TopicStore
from .member import BundleStores, ClusterMember, OneStore
from .placement import Balanced, Fixed

if TYPE_CHECKING:
    from ..broker.server import Broker
    from ..ledger.commit.delivery import Notify
    from .holdings import Stores

__all__ = ["bookkeeper_member", "worker_member"]

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
    address: str, *, session_timeout_ms: int = 5_000, shedding_interval_ms: int = 30_000
) -> ClusterMember:
    """One of the brokers that keep their ledgers in BookKeeper, at `zk://HOST:PORT/ledgers`.

    Raises StoreAddressError.
    """
    from ..ledger.bookkeeper.address import StoreAddress

    hosts = StoreAddress.parse(address).hosts

    async def connecting() -> Coordination:
        return await connect(hosts, session_timeout_ms=session_timeout_ms)

    def stores(broker: Broker, notify: Notify) -> Stores:
        from ..ledger.bookkeeper.store import BookKeeperStore

        options = broker.config.store_options
        part = replace(options, tail_cache_bytes=max(1, options.tail_cache_bytes // CACHES))

        def opening(bundle: str) -> TopicStore:
            return BookKeeperStore.open(
                address,
                root=f"{BUNDLES_ROOT}/{bundle}",
                clock=broker.config.clock,
                options=part,
                notify=notify,
                session_timeout_ms=session_timeout_ms,
            )

        return BundleStores(opening, broker.run_blocking)

    return ClusterMember(connecting, stores, Balanced(shedding_interval_ms=shedding_interval_ms))
