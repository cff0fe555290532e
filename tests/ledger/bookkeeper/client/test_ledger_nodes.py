"""Ledgers' nodes: ids, layout, and changes whose answer was lost."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from pulsemark.coordination import ConnectionLossError
from pulsemark.ledger.bookkeeper.client import ClientOptions
from pulsemark.ledger.bookkeeper.client.errors import (
    InvalidRequestError,
    LedgerExistsError,
    LedgerMissingError,
    MetadataConflictError,
    MetadataError,
    NotEnoughBookiesError,
    UnknownLayoutError,
)
from pulsemark.ledger.bookkeeper.client.ledger_nodes import LedgerNodes, ledger_path
from pulsemark.ledger.bookkeeper.client.registry import parse_service_info
from pulsemark.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat
from tests.support.bookkeeper_cluster import ROOT, Cluster, in_cluster


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (5, "/ledgers/00/0000/L0005"),
        (2_147_483_646, "/ledgers/21/4748/L3646"),
        (2_147_483_647, "/ledgers/000/0000/0021/4748/L3647"),
        ((1 << 63) - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    """Short ids have the short path, long ones the long path."""
    assert ledger_path("/ledgers", ledger_id) == path


@pytest.mark.parametrize("ledger_id", [-1, 1 << 63])
def test_impossible_ids(ledger_id: int) -> None:
    """A number that is no id is refused before anything is asked."""
    with pytest.raises(InvalidRequestError):
        ledger_path("/ledgers", ledger_id)


def test_ids_grow() -> None:
    """Ids come from the sequence, whose nodes do not stay."""

    async def main(cluster: Cluster) -> None:
        assert [await cluster.nodes.new_ledger_id() for _ in range(3)] == [0, 1, 2]
        assert cluster.tree.paths().count(f"{ROOT}/idgen/ID-0000000000") == 0

    in_cluster(main)


@pytest.mark.parametrize("layout", [None, b"1\nflat:1", b""])
def test_other_layouts_are_refused(layout: bytes | None) -> None:
    """A cluster that is laid out otherwise, or none at all, is not written to."""

    async def main(cluster: Cluster) -> None:
        if layout is None:
            await cluster.session.delete(f"{ROOT}/LAYOUT")
        else:
            await cluster.session.set(f"{ROOT}/LAYOUT", layout)
        with pytest.raises(UnknownLayoutError):
            await cluster.client().create_ledger()
        assert f"{ROOT}/idgen" not in cluster.tree.paths()

    in_cluster(main)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["create", "set", "delete"])
def test_a_lost_answer_is_decided_by_content(when: str, name: str) -> None:
    """A connection lost before or after a change: the change is made once, and known to be."""

    async def main(cluster: Cluster) -> None:
        lost: list[str] = []

        async def fault(session: object, request: str, path: str, moment: str) -> None:
            if not lost and request == name and moment == when and "/L" in path[-7:]:
                lost.append(path)
                raise ConnectionLossError(path)

        cluster.tree.fault = fault
        client = cluster.client()
        writer = await client.create_ledger()
        await writer.append(b"x")
        assert (await writer.close()).last_entry_id == 0
        assert (await cluster.nodes.read(writer.ledger_id)).version == 1
        await client.delete_ledger(writer.ledger_id)
        assert lost != []
        with pytest.raises(LedgerMissingError):
            await client.delete_ledger(writer.ledger_id)

    in_cluster(main)


def test_conflicts() -> None:
    """A taken id, and a change of a version that is over, are typed errors."""

    async def main(cluster: Cluster) -> None:
        first = await cluster.ledger({0: cluster.names}, creation_token=1)
        with pytest.raises(LedgerExistsError):
            await cluster.ledger({0: cluster.names}, creation_token=2)
        await cluster.nodes.change(first.metadata.in_recovery(), first.version)
        with pytest.raises(MetadataConflictError):
            await cluster.nodes.change(first.metadata.closed(-1, 0), first.version)

    in_cluster(main)


def test_too_few_bookies() -> None:
    """A ledger needs its ensemble; read-only bookies do not count, and no id is taken."""

    async def main(cluster: Cluster) -> None:
        await cluster.session.create(f"{ROOT}/available/readonly/b9:1", make_parents=True)
        with pytest.raises(NotEnoughBookiesError, match="4 writable ones"):
            await cluster.client().create_ledger(ensemble_size=4)
        with pytest.raises(InvalidRequestError):
            await cluster.client().create_ledger(ack_quorum_size=4)
        assert f"{ROOT}/idgen" not in cluster.tree.paths()

    in_cluster(main)


def test_addresses_of_bookies() -> None:
    """A bookie's address is in its node, or is its id; anything else is named."""
    info = BookieServiceInfoFormat()
    info.endpoints.add(id="http", port=80, host="h", protocol="http")
    with pytest.raises(MetadataError, match="bookie-rpc"):
        parse_service_info("b", info.SerializeToString())
    info.endpoints.add(id="bookie", port=3181, host="10.0.0.1", protocol="bookie-rpc")
    assert parse_service_info("b", info.SerializeToString()) == ("10.0.0.1", 3181)
    assert parse_service_info("host:99", b"") == ("host", 99)
    for bookie, data in (("b", b""), ("b:x", b""), ("b:70000", b""), ("b:1", b"\xff\xff")):
        with pytest.raises(MetadataError):
            parse_service_info(bookie, data)


@pytest.mark.parametrize("request_name", ["get", "set"])
def test_the_pauses_between_attempts_have_a_cap(request_name: str) -> None:
    """A service that is back is asked again within a second, however long it was away."""

    async def main(cluster: Cluster) -> None:
        loop, asked_s = asyncio.get_running_loop(), list[float]()
        found = await cluster.ledger({0: cluster.names})

        async def fault(session: object, name: str, path: str, when: str) -> None:
            asked_s.append(loop.time())
            raise ConnectionLossError(path)

        cluster.tree.fault = fault
        nodes = LedgerNodes(cluster.session, ROOT, ClientOptions(), random.Random(1))
        work = (
            nodes.read(1) if request_name == "get" else nodes.change(found.metadata, found.version)
        )
        with pytest.raises(ConnectionLossError):
            await work
        pauses_s = [after - before for before, after in pairwise(asked_s)]
        assert max(pauses_s) < 1.001
        assert 29 <= asked_s[-1] - asked_s[0] <= 62

    in_cluster(main)
