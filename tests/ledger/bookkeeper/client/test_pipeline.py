"""The write pipeline in virtual time: quorums, order, ensemble changes, fences, limits."""

from __future__ import annotations

import asyncio
import dataclasses
import gc

import pytest

from pulsemark.coordination import ConnectionLossError
from pulsemark.ledger.bookkeeper.client import LedgerState
from pulsemark.ledger.bookkeeper.client.errors import (
    BackPressureError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    NotEnoughBookiesError,
    WrongKeyError,
)
from pulsemark.ledger.bookkeeper.client.frames import ADD_ENTRY
from pulsemark.ledger.bookkeeper.client.writer import LedgerWriter
from tests.support.bookkeeper_cluster import OPTIONS, Cluster, in_cluster


async def held(cluster: Cluster, writer: LedgerWriter, entry_id: int) -> list[str]:
    """The bookies of an entry that hold it."""
    ledger = writer.ledger_id
    return [
        name
        for name in writer.metadata.bookies_of(entry_id)
        if entry_id in getattr(cluster.network.bookies[name].ledgers.get(ledger), "entries", ())
    ]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (5, 3, 2), (4, 2, 2)])
def test_entries_are_spread_and_confirmed_in_order(sizes: tuple[int, int, int]) -> None:
    """Each entry is at its write set, and futures complete in order, whatever answers first."""

    async def main(cluster: Cluster) -> None:
        cluster.network.weather.long_delay = 0.3
        cluster.network.weather.long_delay_s = 0.5
        ensemble, write, ack = sizes
        writer = await cluster.client().create_ledger(
            ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
        )
        done: list[int] = []
        futures = [writer.append(b"%d" % number) for number in range(50)]
        for future in futures:
            future.add_done_callback(lambda one: done.append(one.result()))
        await asyncio.gather(*futures)
        assert done == list(range(50))
        assert (writer.last_confirmed, writer.length) == (49, 90)
        await asyncio.sleep(1)
        for entry_id in range(50):
            assert len(await held(cluster, writer, entry_id)) == write
        closed = await writer.close()
        assert (closed.last_entry_id, closed.length, closed.state) == (49, 90, LedgerState.CLOSED)
        assert await writer.close() == closed

    in_cluster(main, bookies=5)


@pytest.mark.parametrize("ending", ["crash", "pause", "refuse"])
def test_a_failed_bookie_is_replaced(ending: str) -> None:
    """Entries go on to another bookie, in a new segment after the last confirmed entry."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await asyncio.gather(*(writer.append(b"before") for _ in range(5)))
        place = 1
        failing = writer.metadata.last_segment.bookies[place]
        if ending == "crash":
            cluster.network.crash(failing)
        elif ending == "pause":
            cluster.network.pause(failing)
        else:
            cluster.network.bookies[failing].refuse = lambda request: 505
        await asyncio.gather(*(writer.append(b"after") for _ in range(5)))
        await asyncio.sleep(3)
        await writer.append(b"end")
        await asyncio.sleep(1)
        segments = writer.metadata.segments
        assert len(segments) == 2
        assert segments[1].bookies[place] != failing
        assert [one for i, one in enumerate(segments[1].bookies) if i != place] == [
            one for i, one in enumerate(segments[0].bookies) if i != place
        ]
        for entry_id in range(segments[1].first_entry_id, 11):
            assert len(await held(cluster, writer, entry_id)) == 3
        assert (await cluster.nodes.read(writer.ledger_id)).metadata == writer.metadata

    in_cluster(main, bookies=4)


def test_without_another_bookie_writing_goes_on() -> None:
    """With a quorum left and no spare bookie writing goes on; the bookie is taken up again."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        first = writer.metadata.last_segment.bookies[0]
        cluster.network.crash(first)
        for _ in range(10):
            await writer.append(b"x")
        assert len(writer.metadata.segments) == 1
        cluster.network.restart(first)
        await asyncio.sleep(2)
        last = await writer.append(b"y")
        await asyncio.sleep(1)
        assert len(await held(cluster, writer, last)) == 3
        assert (await writer.close()).last_entry_id == 11

    in_cluster(main)


def test_without_a_quorum_the_writer_fails_and_can_close() -> None:
    """Two of three bookies gone: pending entries fail, and the ledger is closed before them."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        for name in writer.metadata.last_segment.bookies[:2]:
            cluster.network.crash(name)
        pending = [writer.append(b"x") for _ in range(3)]
        for future in pending:
            with pytest.raises(NotEnoughBookiesError):
                await future
        with pytest.raises(NotEnoughBookiesError):
            writer.append(b"y")
        assert (await writer.close()).last_entry_id == 0
        assert writer.metadata.is_closed

    in_cluster(main)


@pytest.mark.parametrize(("status", "kind"), [(504, LedgerFencedError), (502, WrongKeyError)])
def test_one_fenced_bookie_ends_the_writer(status: int, kind: type[Exception]) -> None:
    """A fence or a refused key at one bookie ends it: no ensemble change goes around that."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        cluster.bookies[1].refuse = lambda request: status
        with pytest.raises(kind):
            await asyncio.gather(*(writer.append(b"x") for _ in range(3)))
        assert len(writer.metadata.segments) == 1

    in_cluster(main, bookies=3)


def test_a_fenced_writer_does_not_close() -> None:
    """While another client recovers the ledger, its writer leaves the node alone."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"x")
        now = await cluster.nodes.read(writer.ledger_id)
        await cluster.nodes.change(now.metadata.in_recovery(), now.version)
        with pytest.raises(LedgerFencedError):
            await writer.close()
        # An ensemble cannot be changed either.
        other = await cluster.client().create_ledger()
        now = await cluster.nodes.read(other.ledger_id)
        await cluster.nodes.change(now.metadata.in_recovery(), now.version)
        cluster.network.crash(other.metadata.last_segment.bookies[0])
        for _ in range(3):
            other.append(b"x").add_done_callback(lambda done: done.exception())
        await asyncio.sleep(5)
        with pytest.raises(LedgerFencedError):
            other.append(b"y")

    in_cluster(main, bookies=4)


def test_a_different_close_is_an_error() -> None:
    """A ledger that another client closed, or with other ensembles, is not overwritten."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"x")
        now = await cluster.nodes.read(writer.ledger_id)
        await cluster.nodes.change(now.metadata.closed(-1, 0), now.version)
        with pytest.raises(LedgerClosedError, match="after entry -1"):
            await writer.close()
        other = await cluster.client().create_ledger()
        now = await cluster.nodes.read(other.ledger_id)
        await cluster.nodes.change(now.metadata.with_ensemble(0, cluster.names[1:]), now.version)
        with pytest.raises(MetadataConflictError):
            await other.close()

    in_cluster(main, bookies=4)


def test_bytes_in_flight_are_bounded() -> None:
    """`append` refuses above the limit, `ready` waits for room, and nothing is lost."""

    async def main(cluster: Cluster) -> None:
        options = dataclasses.replace(OPTIONS, max_in_flight_bytes=5_000)
        writer = await cluster.client(options).create_ledger()
        futures, refused = [], 0
        for _ in range(40):
            try:
                futures.append(writer.append(b"x" * 1_000))
            except BackPressureError:
                refused += 1
                assert writer.in_flight_bytes < 7_000
                await writer.ready()
                futures.append(writer.append(b"x" * 1_000))
        assert refused > 5
        assert await asyncio.gather(*futures) == list(range(40))
        assert writer.in_flight_bytes == 0

    in_cluster(main)


def test_an_entry_that_fits_into_no_frame() -> None:
    """An entry too large is refused by itself: the next one goes on."""

    async def main(cluster: Cluster) -> None:
        options = dataclasses.replace(OPTIONS, max_frame_bytes=1_000)
        writer = await cluster.client(options).create_ledger()
        with pytest.raises(EntryTooLargeError):
            writer.append(b"x" * 900)
        assert await writer.append(b"x" * 800) == 0

    in_cluster(main)


def test_close_fails_what_is_pending() -> None:
    """What is not confirmed when the writer closes is not in the ledger."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"x")
        for bookie in cluster.bookies:
            cluster.network.pause(bookie.name)
        pending = writer.append(b"y")
        assert (await writer.close()).last_entry_id == 0
        with pytest.raises(LedgerClosedError):
            await pending
        with pytest.raises(LedgerClosedError):
            writer.append(b"z")

    in_cluster(main)


def test_no_add_goes_to_a_bookie_that_is_out() -> None:
    """A bookie without replacement gets no entries until it is tried again."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        name = writer.metadata.last_segment.bookies[2]
        asked = 0

        def refuse(request):
            nonlocal asked
            asked += request.header.operation == ADD_ENTRY
            return 501

        cluster.network.bookies[name].refuse = refuse
        for _ in range(50):
            await writer.append(b"x")
        assert asked < 10

    in_cluster(main)


def test_each_entry_has_an_error_of_its_own() -> None:
    """What is pending fails with the same facts in different errors, and no caller has to wait."""

    async def main(cluster: Cluster) -> None:
        unheard: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: unheard.append(what))
        writer = await cluster.client().create_ledger()
        cluster.bookies[1].refuse = lambda request: 504
        pending = [writer.append(b"x") for _ in range(3)]
        errors = await asyncio.gather(*pending[:2], return_exceptions=True)
        del pending
        gc.collect()
        assert unheard == []
        assert errors[0] is not errors[1]
        assert str(errors[0]) == str(errors[1]) == str(writer.error)
        assert isinstance(errors[0], LedgerFencedError)
        assert errors[0].bookie == cluster.names[1]

    in_cluster(main)


def silent(cluster: Cluster) -> asyncio.Event:
    """From now on the coordination service answers nobody, until the event is set."""
    answers = asyncio.Event()

    async def fault(session: object, name: str, path: str, when: str) -> None:
        await answers.wait()

    cluster.tree.fault = fault
    return answers


def test_entries_are_confirmed_while_another_bookie_is_chosen() -> None:
    """With a quorum left nothing waits for the service that says which bookies there are."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        answers = silent(cluster)
        failing = writer.metadata.last_segment.bookies[0]
        cluster.network.crash(failing)
        await asyncio.wait_for(asyncio.gather(*(writer.append(b"x") for _ in range(20))), 10)
        assert [one.first_entry_id for one in writer.metadata.segments] == [0]
        answers.set()
        await asyncio.sleep(3)
        # The segment begins after what was confirmed meanwhile.
        assert [one.first_entry_id for one in writer.metadata.segments] == [0, 21]
        await writer.append(b"y")
        assert (await writer.close()).last_entry_id == 21

    in_cluster(main, bookies=4)


def test_a_writer_goes_on_without_knowing_the_bookies() -> None:
    """A bookie fails while no connection can be had for long: a quorum is left, so it goes on."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")

        async def fault(session: object, name: str, path: str, when: str) -> None:
            raise ConnectionLossError(path)

        cluster.tree.fault = fault
        cluster.network.crash(writer.metadata.last_segment.bookies[0])
        for _ in range(60):
            await writer.append(b"x")
            await asyncio.sleep(1)
        cluster.tree.fault = None
        await asyncio.sleep(5)
        assert len(writer.metadata.segments) == 2
        assert (await writer.close()).last_entry_id == 60

    in_cluster(main, bookies=4)


def test_a_writer_that_ends_does_not_wait_for_a_choice() -> None:
    """What waits for the list of bookies is given up when the ledger is closed."""

    async def main(cluster: Cluster) -> None:
        writer = await cluster.client().create_ledger()
        await writer.append(b"0")
        lists = 0

        async def fault(session: object, name: str, path: str, when: str) -> None:
            nonlocal lists
            if name == "children":
                lists += 1
                await asyncio.Event().wait()

        cluster.tree.fault = fault
        cluster.network.crash(writer.metadata.last_segment.bookies[0])
        await writer.append(b"1")
        await asyncio.sleep(1)
        assert lists == 1
        assert (await asyncio.wait_for(writer.close(), 20)).last_entry_id == 1

    in_cluster(main, bookies=4)
