"""Reading in virtual time: failover, damage, speculative reads, open ledgers, limits."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from pulsemark.ledger.bookkeeper.client import entries as entries_module
from pulsemark.ledger.bookkeeper.client import reader as reader_module
from pulsemark.ledger.bookkeeper.client.entries import BadCopies
from pulsemark.ledger.bookkeeper.client.errors import (
    DigestMismatchError,
    EntryMissingError,
    InvalidRequestError,
    LedgerMissingError,
    NotEnoughBookiesError,
    WrongKeyError,
)
from pulsemark.ledger.bookkeeper.client.frames import READ_ENTRY, WRITE_LAC
from pulsemark.ledger.bookkeeper.client.writer import LedgerWriter
from pulsemark.proto.bookkeeper_wire_pb2 import Request
from tests.support.bookkeeper_cluster import OPTIONS, Cluster, in_cluster


async def written(cluster: Cluster, count: int, size: int = 10, **sizes: Any) -> LedgerWriter:
    """A closed ledger of entries of one size."""
    writer = await cluster.client().create_ledger(**sizes)
    await asyncio.gather(*(writer.append(b"%04d" % i + b"x" * (size - 4)) for i in range(count)))
    await asyncio.sleep(1)
    await writer.close()
    return writer


def test_failover_to_the_next_replica() -> None:
    """Refusals, missing entries and damage at one replica or two are passed over."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 20)
        ledger = writer.ledger_id
        cluster.bookies[0].refuse = lambda request: 501
        for entry_id in range(0, 20, 2):
            del cluster.bookies[1].ledgers[ledger].entries[entry_id]
        for entry_id in range(1, 20, 2):
            body = cluster.bookies[1].ledgers[ledger].entries[entry_id]
            cluster.bookies[1].ledgers[ledger].entries[entry_id] = body[:-1] + b"!"
        reader = await cluster.client().open_ledger(ledger)
        entries = await reader.read(0, 19)
        assert [one.entry_id for one in entries] == list(range(20))
        assert entries[7].payload == b"0007xxxxxx"
        assert entries[19].length == 200

    in_cluster(main)


def test_a_bookie_that_rots_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each damaged copy of a bookie, and each that it cannot read, is counted; its first one of a
    ledger is logged with bookie and ledger. What it does not have is no damage.
    """
    noted = BadCopies()
    monkeypatch.setattr(reader_module, "bad_copies", noted)
    monkeypatch.setattr(entries_module, "bad_copies", noted)

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 30)
        ledger = writer.ledger_id
        rotten, broken, without = cluster.bookies
        for entry_id, body in rotten.ledgers[ledger].entries.items():
            rotten.ledgers[ledger].entries[entry_id] = body[:-1] + b"!"
        broken.refuse = lambda request: 501 if request.header.operation == READ_ENTRY else None
        reader = await cluster.client().open_ledger(ledger)
        assert len(await reader.read(0, 29)) == 30
        without.ledgers[ledger].entries.clear()
        with pytest.raises(DigestMismatchError):
            await reader.read(0, 29)
        counts = noted.counts()
        assert counts[rotten.name] >= 30
        assert counts[broken.name] >= 30
        assert without.name not in counts
        for name in (rotten.name, broken.name):
            lines = [
                line for line in caplog.messages if name in line and f"ledger {ledger}" in line
            ]
            assert len(lines) == 1, caplog.messages

    in_cluster(main)


def test_no_good_copy() -> None:
    """No copy, no good copy and no answer are three different errors, with the entry's id."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 3)
        reader = await cluster.client().open_ledger(writer.ledger_id)
        for bookie in cluster.bookies:
            entries = bookie.ledgers[writer.ledger_id].entries
            del entries[1]
            entries[2] = entries[0]
        for entry_id, kind in ((1, EntryMissingError), (2, DigestMismatchError)):
            with pytest.raises(kind) as caught:
                await reader.read(entry_id, entry_id)
            assert caught.value.entry_id == entry_id
        for bookie in cluster.bookies:
            cluster.network.crash(bookie.name)
        with pytest.raises(NotEnoughBookiesError):
            await reader.read(0, 0)

    in_cluster(main)


def test_a_silent_replica_is_passed_over_before_its_time_limit() -> None:
    """A second replica is asked after a while, and the first answer counts."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 6)
        reader = await cluster.client().open_ledger(writer.ledger_id)
        cluster.network.pause(cluster.names[0])
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert len(await reader.read(0, 5)) == 6
        # In virtual time: one speculative delay, and not the read's time limit.
        assert 0.3 <= loop.time() - started < 0.9

    in_cluster(main)


def test_a_silent_replica_is_asked_last_from_then_on() -> None:
    """Only the first read waits for it: a catch-up does not wait again with each batch."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 30)
        client = cluster.client()
        reader = await client.open_ledger(writer.ledger_id)
        cluster.network.pause(cluster.names[0])
        assert len(await reader.read(0, 5)) == 6
        loop = asyncio.get_running_loop()
        started = loop.time()
        for first in range(6, 30, 6):
            assert len(await reader.read(first, first + 5)) == 6
        # In virtual time: no speculative delay at all.
        assert loop.time() - started < 0.3

    in_cluster(main)


def test_reads_are_bounded_by_bytes() -> None:
    """At least one entry comes, the one that reaches the limit is the last, and few are wasted."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 100, size=100)
        reader = await cluster.client().open_ledger(writer.ledger_id)
        asked = 0

        def count(bookie: str, frame: bytes) -> bool:
            nonlocal asked
            asked += 1
            return True

        cluster.network.pass_frame = count
        assert len(await reader.read(0, 99, max_bytes=1)) == 1
        assert len(await reader.read(0, 99, max_bytes=950)) == 10
        assert asked < 30
        assert len(await reader.read(5, 99)) == 95

    in_cluster(main)


@pytest.mark.parametrize(("first", "last", "size"), [(-1, 0, 1), (1, 0, 1), (0, 0, 0)])
def test_impossible_ranges(first: int, last: int, size: int) -> None:
    """Arguments that can never be right are typed errors; beyond the end is another one."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 2)
        reader = await cluster.client().open_ledger(writer.ledger_id)
        with pytest.raises(InvalidRequestError):
            await reader.read(first, last, size)
        with pytest.raises(EntryMissingError, match="last confirmed entry is 1"):
            await reader.read(0, 2)

    in_cluster(main)


def test_after_another_replica_was_made() -> None:
    """When all known replicas fail, the node says where new ones are."""

    async def main(cluster: Cluster) -> None:
        writer = await written(cluster, 3, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        ledger = writer.ledger_id
        reader = await cluster.client().open_ledger(ledger)
        old = writer.metadata.last_segment.bookies[0]
        new = next(name for name in cluster.names if name != old)
        moved = cluster.network.bookies[old].ledgers.pop(ledger)
        cluster.network.bookies[new].ledgers[ledger] = moved
        now = await cluster.nodes.read(ledger)
        await cluster.nodes.change(now.metadata.with_ensemble(0, (new,)), now.version)
        assert len(await reader.read(0, 2)) == 3

    in_cluster(main)


def test_reading_an_open_ledger() -> None:
    """A reader sees what is confirmed when it opens the ledger, and fences nothing."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        client = cluster.client()
        reader = await client.open_ledger_no_recovery(writer.ledger_id)
        assert reader.last_confirmed == -1
        for _ in range(3):
            await writer.append(b"x")
        reader = await client.open_ledger_no_recovery(writer.ledger_id)
        assert reader.last_confirmed == 1
        with pytest.raises(EntryMissingError):
            await reader.read(0, 2)
        for _ in range(3):
            await writer.append(b"y")
        await writer.close()
        reader = await client.open_ledger_no_recovery(writer.ledger_id)
        assert len(await reader.read(0, 5)) == 6
        assert reader.metadata.is_closed
        assert all(not bookie.ledgers[writer.ledger_id].is_fenced for bookie in cluster.bookies)

    in_cluster(main)


def test_opening_without_recovery_needs_an_answer_and_the_password() -> None:
    """No bookie, a wrong password and a missing ledger are typed errors."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger(password=b"right")
        await writer.append(b"x")
        client = cluster.client(dataclasses.replace(OPTIONS, reconnect_delay_ms=1))
        with pytest.raises(WrongKeyError):
            await client.open_ledger_no_recovery(writer.ledger_id)
        with pytest.raises(LedgerMissingError):
            await client.open_ledger_no_recovery(99)
        for bookie in cluster.bookies:
            bookie.refuse = lambda request: 501 if request.header.operation != READ_ENTRY else None
        with pytest.raises(NotEnoughBookiesError):
            await client.open_ledger_no_recovery(writer.ledger_id, password=b"right")

    in_cluster(main)


def test_the_last_entry_of_an_idle_writer_is_seen() -> None:
    """A moment after the last entry readers know that it is confirmed, and nothing is recovered."""

    async def main(cluster: Cluster) -> None:
        notices = 0

        def count(bookie: str, frame: bytes) -> bool:
            nonlocal notices
            notices += Request.FromString(frame).header.operation == WRITE_LAC
            return True

        cluster.network.pass_frame = count
        client, other = cluster.client(), cluster.client()
        writer = await client.create_ledger()
        await asyncio.gather(*(writer.append(b"entry") for _ in range(5)))
        reader = await other.open_ledger_no_recovery(writer.ledger_id)
        assert reader.last_confirmed < 4
        await asyncio.sleep(1)
        reader = await other.open_ledger_no_recovery(writer.ledger_id)
        assert reader.last_confirmed == 4
        assert [entry.entry_id for entry in await reader.read(0, 4)] == [0, 1, 2, 3, 4]
        await asyncio.sleep(60)
        assert notices == 3  # one for each bookie, however long the writer is idle
        for _ in range(100):
            await writer.append(b"more")
            await asyncio.sleep(0.05)
        assert notices == 3  # entries say it themselves while they follow one another
        assert not writer.metadata.is_closed
        await writer.append(b"end")

    in_cluster(main)


def test_ledgers_that_bookies_know_are_found_without_their_nodes() -> None:
    """Also where only a bookie has one that takes no writes; a silent bookie is not waited for."""

    async def main(cluster: Cluster) -> None:
        cluster.seed_entry(cluster.names[2], 0, -1, ledger_id=77)
        await cluster.session.delete(f"/ledgers/available/{cluster.names[2]}")
        path = f"/ledgers/available/readonly/{cluster.names[2]}"
        await cluster.session.create(path, ephemeral=True, make_parents=True)
        client = cluster.client()
        assert await client.has_any([76, 77])
        assert not await client.has_any(range(78, 200))
        cluster.network.pause(cluster.names[0])
        began_s = asyncio.get_running_loop().time()
        assert await client.has_any([77])
        assert not await client.has_any([78])
        assert asyncio.get_running_loop().time() - began_s < 3

    in_cluster(main)
