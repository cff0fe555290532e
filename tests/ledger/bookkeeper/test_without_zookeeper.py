"""What goes on, and what ends, while ZooKeeper does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pulsemark.ledger import EARLIEST, CatalogError, FencedError, ManagedLedger, StoreClosedError
from pulsemark.ledger.bookkeeper import metadata
from pulsemark.ledger.bookkeeper.loop_thread import LoopThread
from pulsemark.ledger.bookkeeper.metadata import IdsAhead, LedgerIds
from pulsemark.ledger.bookkeeper.store import BookKeeperStore
from pulsemark.ledger.store_core import StoreOptions, StoreSetup
from pulsemark.metadata import StamperChain
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from tests.support.faulty_coordination import FaultyTree
from tests.support.memory_bookies import MemoryBookies

LIMIT_S = 60


class World:
    """A store over a ZooKeeper and bookies in memory; ZooKeeper can fall silent."""

    def __init__(self) -> None:
        self.tree, self.bookies = FaultyTree(), MemoryBookies()
        self.silent: str | None = None
        """Requests for paths with this in it are not answered."""
        self.tree.fault = self._fault
        setup = StoreSetup(SettableClock(A_TIME_MS), StoreOptions(), None, threaded=True)
        self.store = BookKeeperStore.open_with(
            self._connecting,
            ledgers_root="/ledgers",
            root="/one",
            ledger_options=None,
            setup=setup,
        )

    async def _connecting(self) -> Any:
        return self.tree.session(), self.bookies.client()

    async def _fault(self, session: object, name: str, path: str, when: str) -> None:
        while self.silent is not None and self.silent in path:  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0.01)

    def topic(self, name: str) -> ManagedLedger:
        """A topic with one entry, and so with an open ledger."""
        topic = self.store.open_topic(f"persistent://public/default/{name}")
        topic.stampers = StamperChain.from_names(("broker-time", "index"))
        topic.append(b"first").commit.wait(LIMIT_S)
        return topic


@pytest.fixture
def world() -> Iterator[World]:
    """A store of its own, closed at the end."""
    world = World()
    yield world
    world.silent = None
    world.store.close()


def in_thread(work: Callable[[], object]) -> Future[object]:
    """Begin ``work`` in a thread of its own, as a broker's thread would."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_topic_that_needs_a_ledger_holds_up_no_other(world: World) -> None:
    """Entries of topics with open ledgers are acknowledged; the other topic's come later."""
    here, there = world.topic("here"), world.topic("there")
    there.roll()
    world.silent = "/one"
    waiting = []
    for number in range(6):
        waiting.append(there.append(b"late %d" % number))
        here.append(b"%d" % number).commit.wait(LIMIT_S)
        if number == 3:
            there.roll()
    assert not any(appended.commit.done for appended in waiting)
    world.silent = None
    for appended in waiting:
        appended.commit.wait(LIMIT_S)
    bodies = [bytes(entry.body) for entry in there.read(EARLIEST)]
    assert bodies == [b"first", *(b"late %d" % number for number in range(6))]
    assert [entry.index for entry in there.read(EARLIEST)] == list(range(7))


def test_new_ledger_ids_hold_up_nothing(world: World) -> None:
    """Without new ids a topic that needs one is refused, and the others go on."""
    here, there = world.topic("here"), world.topic("there")
    world.silent = "/ledgers/idgen"

    def use_up() -> None:
        for _ in range(1_000):
            there.append(b"x").commit.wait(LIMIT_S)
            there.roll()

    with pytest.raises(CatalogError, match="ledger ids"):
        in_thread(use_up).result(LIMIT_S)
    for _ in range(3):
        in_thread(lambda: here.append(b"y").commit.wait(LIMIT_S)).result(LIMIT_S)
    world.silent = None
    for left in range(100, -1, -1):
        try:
            there.append(b"z").commit.wait(LIMIT_S)
            break
        except CatalogError:
            assert left, "no ids, though ZooKeeper answers again"
            time.sleep(0.1)


class Generator(LedgerIds):
    """Gives ids from 0 on, or fails."""

    def __init__(self) -> None:
        self.next_id = 0
        self.fails = False

    async def reserve(self, count: int) -> int:
        """As `LedgerIds.reserve`."""
        await asyncio.sleep(0.001)
        if self.fails:
            raise CatalogError(Path("/ledgers"), "no ledger ids: ZooKeeper does not answer")
        self.next_id += count
        return self.next_id - count


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop, ended after the test."""
    thread = LoopThread("test")
    yield thread
    thread.stop()


def test_a_pause_of_this_process_is_no_silence_of_zookeeper(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are waited for in turns of the loop, so one that was held up itself refuses nobody."""
    monkeypatch.setattr(metadata, "WAIT_S", 0.05)
    ids = IdsAhead(thread, Generator(), Path("/one"))
    for number in range(3):
        thread.call(time.sleep, 0.3)
        assert ids.reserve(10) == 10 * number


def test_ids_that_could_not_be_had_in_advance_are_asked_for_again(thread: LoopThread) -> None:
    """ZooKeeper answers again: no topic is refused because of its silence before."""
    generator = Generator()
    ids = IdsAhead(thread, generator, Path("/one"))
    assert ids.reserve(10) == 0
    assert ids.reserve(10) == 10
    thread.run(asyncio.sleep(0.1))  # the next ones are there
    generator.fails = True
    assert ids.reserve(10) == 20
    with pytest.raises(CatalogError, match="does not answer"):
        ids.reserve(10)
    generator.fails = False
    thread.run(asyncio.sleep(0.1))  # what was asked for in advance has failed by now
    assert ids.reserve(10) == 30


def test_a_failed_ledger_holds_up_no_other_topic(world: World) -> None:
    """That its end cannot be noted now does not keep other topics' entries."""
    here, there = world.topic("here"), world.topic("there")
    world.silent = "/one"
    world.bookies.ledgers[there.ledger_id].is_closed = True
    failing = there.append(b"lost")
    with pytest.raises(FencedError):
        failing.commit.wait(LIMIT_S)
    here.append(b"kept").commit.wait(LIMIT_S)
    assert [bytes(entry.body) for entry in here.read(EARLIEST)] == [b"first", b"kept"]


def test_a_lost_store_is_closed_without_asking(world: World) -> None:
    """A store that another broker may own by now ends at once; what is pending is refused."""
    topics = [world.topic(f"t{number}") for number in range(20)]
    topics[0].roll()
    world.silent = "/"
    pending = topics[0].append(b"pending")
    in_thread(world.store.abandon).result(LIMIT_S)
    with pytest.raises(Exception, match=r"stop|lost|taken over|closed"):
        pending.commit.wait(LIMIT_S)
    with pytest.raises(StoreClosedError):
        world.store.topic_names()


def test_what_is_begun_while_a_loop_ends_has_an_end() -> None:
    """Each call to a loop that is being stopped ends, or is refused; none waits for ever."""

    async def nothing() -> int:
        await asyncio.sleep(0)
        return 1

    for _ in range(20):
        thread = LoopThread("test")
        begun: list[Future[int]] = []
        is_refused = threading.Event()

        def begin(
            thread: LoopThread = thread,
            begun: list[Future[int]] = begun,
            is_refused: threading.Event = is_refused,
        ) -> None:
            for _ in range(100_000):
                try:
                    begun.append(thread.begin(nothing()))
                except StoreClosedError:
                    is_refused.set()
                    return

        beginner = threading.Thread(target=begin)
        beginner.start()
        while not begun:
            pass
        thread.stop()
        beginner.join(LIMIT_S)
        assert is_refused.is_set()
        assert all(future.done() for future in begun)
