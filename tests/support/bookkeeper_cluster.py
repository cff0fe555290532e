"""A small cluster in virtual time for tests: bookies, a coordination service, clients."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pulsemark.ledger.bookkeeper.client import BookKeeperClient, ClientOptions
from pulsemark.ledger.bookkeeper.client.entries import DigestType, digest_of, master_key, pack_entry
from pulsemark.ledger.bookkeeper.client.ledger_nodes import LAYOUT, LedgerNodes, VersionedMetadata
from pulsemark.ledger.bookkeeper.client.metadata import LedgerMetadata, Segment
from pulsemark.ledger.bookkeeper.client.recovery import RecoveryRules
from tests.support.bookkeeper_network import Network
from tests.support.fake_bookie import FakeBookie
from tests.support.faulty_coordination import FaultyCoordination, FaultyTree
from tests.support.virtual_loop import VirtualLoop, run_virtually

_ANY = TypeVar("_ANY")
ROOT = "/ledgers"
OPTIONS = ClientOptions(
    connect_timeout_ms=1_000,
    add_timeout_ms=1_000,
    read_timeout_ms=1_000,
    speculative_read_ms=300,
    replace_delay_ms=300,
    metadata_limit_ms=12_000,
    metadata_retry_ms=50,
    recovery_attempts=3,
)


async def prepare_cluster(session: FaultyCoordination, bookies: Sequence[str]) -> None:
    """Write the nodes of a cluster with these bookies, which live as long as the session."""
    await session.create(f"{ROOT}/LAYOUT", f"2\n{LAYOUT}:1".encode(), make_parents=True)
    await session.create(f"{ROOT}/available", make_parents=True)
    for name in bookies:
        await session.create(f"{ROOT}/available/{name}", ephemeral=True)


class Cluster:
    """Bookies `b1:1`, `b2:1`... with their network, and clients of theirs."""

    def __init__(self, loop: VirtualLoop, bookies: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.names = tuple(f"b{number}:1" for number in range(1, bookies + 1))
        self.network = Network(loop, self.names, self._random)
        self.tree = FaultyTree()
        self.session = self.tree.session()
        self.nodes = LedgerNodes(self.session, ROOT, OPTIONS, self._random)

    @property
    def bookies(self) -> list[FakeBookie]:
        """The bookies, in the order of their names."""
        return [self.network.bookies[name] for name in self.names]

    def client(
        self, options: ClientOptions = OPTIONS, rules: RecoveryRules | None = None
    ) -> BookKeeperClient:
        """A client with a session of its own."""
        return BookKeeperClient(
            self.tree.session(),
            ROOT,
            options=options,
            random=self._random,
            clock_ms=lambda: 0,
            rules=rules,
        )

    async def ledger(
        self,
        segments: dict[int, Sequence[str]],
        *,
        write_quorum_size: int | None = None,
        ack_quorum_size: int = 2,
        ledger_id: int = 1,
        **others: Any,
    ) -> VersionedMetadata:
        """Write the node of a ledger with these ensembles; the write quorum is all of one."""
        size = len(segments[0])
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=size,
            write_quorum_size=write_quorum_size or size,
            ack_quorum_size=ack_quorum_size,
            segments=tuple(Segment(first, tuple(names)) for first, names in segments.items()),
            **others,
        )
        return await self.nodes.create(metadata)

    def seed_entry(
        self, bookie: str, entry_id: int, last_confirmed: int, *, ledger_id: int = 1
    ) -> None:
        """Put an entry into a bookie: payload `entry N`, 7 bytes each up to entry 9."""
        digest = digest_of(DigestType.CRC32C, b"")
        payload = f"entry {entry_id}".encode()
        length = 7 * (entry_id + 1)
        body = pack_entry(digest, ledger_id, entry_id, last_confirmed, length, [payload])
        self.network.bookies[bookie].hold(ledger_id, entry_id, b"".join(body), master_key(b""))


def in_cluster(
    main: Callable[[Cluster], Coroutine[Any, Any, _ANY]], *, bookies: int = 3, seed: int = 1
) -> _ANY:
    """Run a test on a cluster of its own, in virtual time."""

    async def run(loop: VirtualLoop) -> _ANY:
        cluster = Cluster(loop, bookies, seed)
        await prepare_cluster(cluster.session, cluster.names)
        return await main(cluster)

    return run_virtually(run)
