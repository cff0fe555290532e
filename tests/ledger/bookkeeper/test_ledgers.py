"""What becomes of ledgers that no topic has any more."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from pulsemark.ledger import EARLIEST, StoreOptions
from pulsemark.ledger.bookkeeper.store import BookKeeperStore, fitting
from pulsemark.ledger.errors import OwnershipLostError
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from tests.support.faulty_coordination import FaultyCoordination, FaultyTree
from tests.support.memory_bookies import MemoryBookies


def test_a_trimmed_ledger_is_deleted_whatever_is_changed_in_between():
    """Also if another topic's change comes after it was removed and before it is deleted."""
    tree, bookies = FaultyTree(), MemoryBookies()

    async def connecting() -> Any:
        return tree.session(), bookies.client()

    options = StoreOptions(ledger_entries=2)
    setup = StoreSetup(SettableClock(A_TIME_MS), options, None, threaded=True)
    with BookKeeperStore.open_with(
        connecting, ledgers_root="/ledgers", root="/one", ledger_options=None, setup=setup
    ) as store:
        topic = store.open_topic("persistent://public/default/t")
        for number in range(6):
            topic.append(b"%d" % number).commit.wait()
        kept, removed = topic.segments()[-2:]
        # It was closed just now, and no change has noted it yet.
        store.engine.logs.closed(removed.ledger_id)
        topic_id = store.engine.metadata.topics()[topic.name]
        free = store.engine.remove(topic_id, [removed])
        store.engine.metadata.put("kind", "key", b"another change")
        store.open_topic("persistent://public/default/other").append(b"x").commit.wait()
        free()
        assert removed.ledger_id not in bookies.ledgers
        assert kept.ledger_id in bookies.ledgers


class Cluster:
    """Owners of one store, on one tree and the same bookies."""

    def __init__(self) -> None:
        self.tree, self.bookies = FaultyTree(), MemoryBookies()

    def open(self) -> BookKeeperStore:
        """One more owner."""

        async def connecting() -> Any:
            return self.tree.session(), self.bookies.client()

        setup = StoreSetup(SettableClock(A_TIME_MS), StoreOptions(), None, threaded=True)
        return BookKeeperStore.open_with(
            connecting, ledgers_root="/ledgers", root="/one", ledger_options=None, setup=setup
        )


def test_an_owner_that_was_fenced_recovers_nothing() -> None:
    """An owner that does not know yet of the next one opens a topic: it is refused, its store is
    over, and the next owner goes on in the ledger that it writes to.
    """
    cluster = Cluster()
    with cluster.open() as first, cluster.open() as second:
        topic = second.open_topic("t")
        topic.append(b"1").commit.wait()
        with pytest.raises(OwnershipLostError):
            first.open_topic("t")
        assert first.state.is_over
        topic.append(b"2").commit.wait()
        assert len(cluster.bookies.ledgers) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_owner_that_pauses_while_it_takes_over_recovers_nothing(
    moment: Literal["before", "after"],
) -> None:
    """An owner is paused after it took a store over, and another one takes it over meanwhile: the
    first one fences and deletes nothing of what the second has begun.
    """
    cluster = Cluster()
    others = []

    def take_over() -> None:
        others.append(cluster.open())
        others[0].open_topic("t").append(b"1").commit.wait()

    async def fault(session: FaultyCoordination, name: str, path: str, now: str) -> None:
        if now == moment and name == "children" and path.endswith("/ledgers"):
            cluster.tree.fault = None
            await asyncio.to_thread(take_over)

    cluster.tree.fault = fault
    with pytest.raises(OwnershipLostError):
        cluster.open()
    (second,) = others
    with second:
        second.open_topic("t").append(b"2").commit.wait()
        assert len(cluster.bookies.ledgers) == 1


def test_a_cut_reads_nothing_once_it_is_durable() -> None:
    """What it needs was read before, and is known even if the entries are out of memory again."""
    cluster = Cluster()
    with cluster.open() as first:
        topic = first.open_topic("t")
        for number in range(10):
            topic.append(b"%d" % number).commit.wait()
    with cluster.open() as second:
        topic = second.open_topic("t")
        (run,) = topic.segments()
        assert [run.row(number).next_message for number in range(10)] == [*range(1, 11)]
        second.engine.access.fetches.forget([run.ledger_id])
        cluster.bookies.ledgers[run.ledger_id].lost.update(range(10))
        topic.truncate_tail(5, epoch=1)
        assert not second.state.is_over
        assert topic.next_index == 6


def test_ledgers_are_as_long_as_pulsars_by_default():
    """Options that do not say it do not give them the length of a data folder's ledgers."""
    lengths = [fitting(given).ledger_entries for given in (None, StoreOptions())]
    assert lengths == [50_000, 50_000]
    assert fitting(StoreOptions(ledger_entries=100)).ledger_entries == 100


def test_a_restored_zookeeper_gives_no_id_again() -> None:
    """Bookies have entries of ledgers that an older copy of ZooKeeper's nodes does not know: they
    would keep those in place of new ones. Their ids are left out, however many there are.
    """
    cluster = Cluster()
    with cluster.open() as store:
        for number in range(5):
            name = f"persistent://public/default/{number}"
            store.open_topic(name).append(b"of the time that is lost").commit.wait()
    known = set(cluster.bookies.ledgers)
    far = max(known) + 300  # another owner had taken the ids in between
    cluster.bookies.ledgers[far] = cluster.bookies.ledgers[max(known)]
    cluster.tree = FaultyTree()  # the older copy: of the very beginning
    with cluster.open() as store:
        topic = store.open_topic("persistent://public/default/0")
        topic.append(b"new").commit.wait()
        (entry,) = topic.read(EARLIEST, max_entries=10)
        assert bytes(entry.body) == b"new"
        new = {entry.position.ledger_id, *(store.next_ledger_id() for _ in range(400))}
        assert not new & {*known, far}
