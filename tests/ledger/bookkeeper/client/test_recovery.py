"""Recovery against fake bookies in virtual time; the cases of BookKeeper's LedgerRecovery2Test."""

from __future__ import annotations

import asyncio

import pytest

from pulsemark.ledger.bookkeeper.client import LedgerState
from pulsemark.ledger.bookkeeper.client.errors import (
    LedgerClosedError,
    LedgerMissingError,
    RecoveryFailedError,
    WrongKeyError,
)
from pulsemark.ledger.bookkeeper.client.frames import ADD_ENTRY, FENCE, READ_ENTRY
from pulsemark.ledger.bookkeeper.client.recovery import RecoveryRules
from pulsemark.proto.bookkeeper_wire_pb2 import Request
from tests.support.bookkeeper_cluster import Cluster, in_cluster

B1, B2, B3, B4, B5 = (f"b{number}:1" for number in range(1, 6))


def refuse_adds(cluster: Cluster, *names: str, entry_id: int | None = None) -> None:
    """Let bookies answer adds (of one entry) with an I/O error."""

    def refuse(request: Request) -> int | None:
        is_add = request.header.operation == ADD_ENTRY
        return 501 if is_add and entry_id in (None, request.addRequest.entryId) else None

    for name in names:
        cluster.network.bookies[name].refuse = refuse


def seed(cluster: Cluster, entry_id: int, *names: str) -> None:
    """Put an entry into bookies: with two of three, it is found whichever answers first."""
    for name in names:
        cluster.seed_entry(name, entry_id, -1)


async def recovered(cluster: Cluster) -> dict[int, tuple[str, ...]]:
    """The ensembles of ledger 1 after its recovery."""
    client = cluster.client()
    reader = await client.open_ledger(1)
    await client.close()
    assert reader.metadata.is_closed
    return {one.first_entry_id: one.bookies for one in reader.metadata.segments}


def test_no_bookie_answers() -> None:
    """With all bookies failing the ledger stays in recovery, and a later one closes it."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        for bookie in cluster.bookies:
            bookie.refuse = lambda request: 501
        client = cluster.client()
        with pytest.raises(RecoveryFailedError):
            await client.open_ledger(1)
        assert (await client.metadata(1)).state is LedgerState.IN_RECOVERY
        for bookie in cluster.bookies:
            bookie.refuse = lambda request: None
        reader = await client.open_ledger(1)
        assert (reader.last_confirmed, reader.metadata.length) == (-1, 0)

    in_cluster(main)


def test_entries_are_found_and_cannot_be_written() -> None:
    """A found entry that no quorum takes again leaves the ledger in recovery."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        seed(cluster, 0, B1, B2)
        refuse_adds(cluster, B1, B2, B3)
        client = cluster.client()
        with pytest.raises(RecoveryFailedError):
            await client.open_ledger(1)
        assert (await client.metadata(1)).state is LedgerState.IN_RECOVERY

    in_cluster(main)


@pytest.mark.parametrize("closes", [True, False])
def test_metadata_changes_during_recovery(closes: bool) -> None:
    """Recovery never writes over another client's change: it takes a close, or begins again."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        seed(cluster, 0, B1, B2)
        writing, go_on = asyncio.Event(), asyncio.Event()

        def pass_frame(bookie: str, frame: bytes) -> bool:
            if Request.FromString(frame).header.operation == ADD_ENTRY and not go_on.is_set():
                cluster.network.pause(bookie)
                writing.set()
            return True

        cluster.network.pass_frame = pass_frame
        client = cluster.client()
        recovery = asyncio.ensure_future(client.open_ledger(1))
        await writing.wait()
        now = await cluster.nodes.read(1)
        other = (
            now.metadata.closed(-1, 0) if closes else now.metadata.with_ensemble(1, (B1, B2, B4))
        )
        await cluster.nodes.change(other, now.version)
        go_on.set()
        for name in cluster.names:
            cluster.network.resume(name)
        metadata = (await recovery).metadata
        if closes:
            assert metadata == other
        else:
            assert metadata.is_closed
            assert metadata.segments == other.segments

    in_cluster(main, bookies=4)


def test_bookie_fails_from_the_start() -> None:
    """A bookie that answers nothing is replaced from the first entry on, in one segment."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        cluster.seed_entry(B1, 0, -1)
        cluster.network.bookies[B2].refuse = lambda request: 501
        assert await recovered(cluster) == {0: (B1, B4, B3)}

    in_cluster(main, bookies=4)


def test_bookie_fails_in_the_middle() -> None:
    """A bookie that fails at an entry is replaced from that one on, in a second segment."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        seed(cluster, 0, B1, B2)
        seed(cluster, 1, B1, B3)
        refuse_adds(cluster, B2, entry_id=1)
        # The first entry is acknowledged before the second one fails.
        assert await recovered(cluster) in (
            {0: (B1, B2, B3), 1: (B1, B4, B3)},
            {0: (B1, B4, B3)},
        )
        held = cluster.network.bookies[B4].ledgers[1].entries
        assert 1 in held

    in_cluster(main, bookies=4)


def test_two_bookies_fail_at_one_entry() -> None:
    """Two failed bookies are both replaced, and the ledger has one segment."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        seed(cluster, 0, B1, B2)
        refuse_adds(cluster, B1, B2)
        ensembles = await recovered(cluster)
        assert list(ensembles) == [0]
        assert sorted(ensembles[0]) == [B3, B4, B5]

    in_cluster(main, bookies=5)


@pytest.mark.parametrize("fences", [True, False])
def test_first_writer_confirms_nothing_after_the_close(fences: bool) -> None:
    """A read of recovery fences, so that the writer's late add fails; without it, an entry is lost.

    The add of entry 2 is late at the first two bookies, and recovery's fence does not reach the
    second one. Recovery finds entry 2 at neither of them, and closes the ledger before it.
    """

    async def main(cluster: Cluster) -> None:
        client = cluster.client()
        writer = await client.create_ledger(ledger_id=1)
        await writer.append(b"e0")
        await writer.append(b"e1")
        _, second, third = writer.metadata.last_segment.bookies
        late: list[tuple[str, bytes]] = []

        def pass_frame(bookie: str, frame: bytes) -> bool:
            request = Request.FromString(frame)
            add, read = request.addRequest, request.readRequest
            if request.HasField("addRequest") and add.flag != 1 and bookie != third:
                late.append((bookie, frame))
                return False
            if request.HasField("readRequest") and bookie == second:
                return not (read.flag == FENCE and read.entryId == -1)
            return not (request.HasField("readRequest") and bookie == third and read.entryId == 2)

        cluster.network.pass_frame = pass_frame
        add = writer.append(b"e2")
        await asyncio.sleep(0.1)
        reader = await cluster.client(rules=RecoveryRules(fence_reads=fences)).open_ledger(1)
        assert reader.last_confirmed == 1
        statuses: list[bytes] = []
        for bookie, frame in late:
            cluster.network.bookies[bookie].handle(frame, statuses.append)
        held = cluster.network.bookies[second].ledgers[1].entries
        # With the third bookie's copy, one at the second would make the entry acknowledged.
        assert (2 in held) is not fences
        # No other close is different from what this writer confirmed.
        assert (await writer.close()).last_entry_id == 1
        with pytest.raises(LedgerClosedError):
            await add

    in_cluster(main)


@pytest.mark.parametrize("floor", [True, False])
def test_last_segment_is_the_floor(floor: bool) -> None:
    """What is before the last segment is confirmed: recovery does not begin below it."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2), 1: (B1, B3)})
        cluster.seed_entry(B1, 0, -1)
        cluster.seed_entry(B2, 0, -1)
        cluster.seed_entry(B1, 1, -1)
        cluster.seed_entry(B3, 1, 0)
        metadata = await cluster.nodes.read(1)
        segments = metadata.metadata.segments
        rules = RecoveryRules(floor_of_segment=floor)
        client = cluster.client(rules=rules)
        # With two of two needed the third bookie's silence cannot be passed over: it is heard of
        # as one that has nothing, as after a writer that sent it nothing yet.
        cluster.network.bookies[B3].refuse = lambda request: (
            501
            if request.header.operation == ADD_ENTRY
            else 403
            if request.readRequest.entryId == -1
            else None
        )
        if not floor:
            with pytest.raises(Exception, match="before the last segment"):
                await client.open_ledger(1)
            return
        reader = await client.open_ledger(1)
        assert reader.last_confirmed == 1
        assert reader.metadata.segments[0] == segments[0]
        assert reader.metadata.segments[1].bookies in ((B1, B4), (B1, B2))

    in_cluster(main, bookies=4)


def tear(cluster: Cluster, entry_id: int, *names: str) -> None:
    """Put an entry into bookies whose end is zeros, as a power cut leaves what was being written.

    A bookie's journal has no checksums: what is torn comes back as an entry.
    """
    for name in names:
        cluster.seed_entry(name, entry_id, entry_id - 1)
        entries = cluster.network.bookies[name].ledgers[1].entries
        entries[entry_id] = entries[entry_id][:-3] + bytes(3)


@pytest.mark.parametrize("torn", [1, 2])
def test_last_entries_are_torn_on_all_bookies(torn: int, caplog: pytest.LogCaptureFixture) -> None:
    """The power of all bookies was cut while they wrote: nobody was told that it is stored."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        for entry_id in range(2):
            seed(cluster, entry_id, B1, B2, B3)
        for entry_id in range(2, 2 + torn):
            tear(cluster, entry_id, B1, B2, B3)
        reader = await cluster.client().open_ledger(1)
        assert (reader.last_confirmed, reader.metadata.length) == (1, 14)
        assert [one.payload for one in await reader.read(0, 1)] == [b"entry 0", b"entry 1"]

    in_cluster(main)
    assert "ledger 1 ends before entry 2, which is torn: " in caplog.text


@pytest.mark.parametrize(("bad", "good"), [(B1, B2), (B2, B3), (B3, B1), (B1, B3)])
def test_entry_with_a_good_copy_is_kept_whatever_the_others_have(bad: str, good: str) -> None:
    """One of two confirmed copies is damaged, and the third bookie never had it."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        seed(cluster, 0, B1, B2, B3)
        tear(cluster, 1, bad)
        seed(cluster, 1, good)
        assert (await cluster.client().open_ledger(1)).last_confirmed == 1

    in_cluster(main)


def test_entry_that_is_damaged_before_others_is_no_end() -> None:
    """Where a later entry is there, the bookies had stored this one: recovery waits for a copy."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        tear(cluster, 0, B1, B2, B3)
        seed(cluster, 1, B1, B2, B3)
        with pytest.raises(RecoveryFailedError, match="entry 0"):
            await cluster.client().open_ledger(1)

    in_cluster(main)


def test_every_read_fences_with_key_and_priority() -> None:
    """Each read of recovery carries the fence, the ledger's key and a high priority."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        for entry_id in range(3):
            seed(cluster, entry_id, B1, B2)
        seen: list[Request] = []

        def pass_frame(bookie: str, frame: bytes) -> bool:
            seen.append(Request.FromString(frame))
            return True

        cluster.network.pass_frame = pass_frame
        await recovered(cluster)
        reads = [one for one in seen if one.header.operation == READ_ENTRY]
        assert len(reads) > 9
        assert {one.readRequest.flag for one in reads} == {FENCE}
        assert {len(one.readRequest.masterKey) for one in reads} == {20}
        assert {one.header.priority for one in reads} == {100}
        # What an unfinished recovery wrote must not look confirmed to the next one.
        adds = [one.addRequest.body for one in seen if one.header.operation == ADD_ENTRY]
        assert {body[16:24] for body in adds} == {b"\xff" * 8}

    in_cluster(main)


def test_length_without_found_entries() -> None:
    """A ledger of which nothing is found after the confirmed entries keeps their length."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3), 2: (B1, B2, B4)})
        for entry_id in range(2):
            for name in (B1, B2, B3):
                cluster.seed_entry(name, entry_id, entry_id - 1)
        reader = await cluster.client().open_ledger(1)
        assert (reader.last_confirmed, reader.metadata.length) == (1, 14)
        assert [one.payload for one in await reader.read(0, 1)] == [b"entry 0", b"entry 1"]

    in_cluster(main, bookies=4)


def test_wrong_password_is_not_sent() -> None:
    """A wrong password is refused by the metadata: a bookie would pin the wrong key."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)}, password=b"right")
        client = cluster.client()
        with pytest.raises(WrongKeyError):
            await client.open_ledger(1, password=b"wrong")
        with pytest.raises(LedgerMissingError):
            await client.open_ledger(2)
        assert all(not bookie.ledgers for bookie in cluster.bookies)
        assert (await client.open_ledger(1, password=b"right")).last_confirmed == -1

    in_cluster(main)


def test_two_recoveries_at_once() -> None:
    """Two clients that recover a ledger at the same time both get the same closed ledger."""

    async def main(cluster: Cluster) -> None:
        await cluster.ledger({0: (B1, B2, B3)})
        for entry_id in range(5):
            seed(cluster, entry_id, B2, B3)
        readers = await asyncio.gather(*(cluster.client().open_ledger(1) for _ in range(2)))
        assert readers[0].metadata == readers[1].metadata
        assert readers[0].last_confirmed == 4

    in_cluster(main)
