"""A broker whose store is on bookies, in virtual time: the machines around it, and their faults.

The broker is the real one with the real store: its threads, locks and event loops are run one at a
time (`Threads`). The bookies, their network and the coordination service are simulated, as one
process, and fail while the broker works, and while it opens its store.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from pulsemark.broker.errors import RefusedError
from pulsemark.broker.kafka.topics import JOURNAL
from pulsemark.broker.ownership import KafkaPlace
from pulsemark.broker.topics.transactions import COORDINATOR
from pulsemark.cluster.member import BUNDLES_ROOT, ClusterMember
from pulsemark.cluster.placement import Balanced
from pulsemark.cluster.store import BundleStores
from pulsemark.coordination import ConnectionLossError, CoordinationError
from pulsemark.ledger import LedgerError
from pulsemark.ledger.bookkeeper.client import BookKeeperClient
from pulsemark.ledger.bookkeeper.ledgers import LedgerOptions
from pulsemark.ledger.bookkeeper.store import BookKeeperStore, fitting
from pulsemark.ledger.store_core import StoreSetup
from pulsemark.wire import TopicName
from tests.support.faulty_coordination import FaultyCoordination, FaultyTree

from .bookkeeper_cluster import ROOT, prepare_cluster
from .bookkeeper_network import Network, Weather
from .fake_bookie import FakeBookie, JournaledBookie
from .simulated_broker import SimulatedBroker
from .simulated_loop import SimulatedLoop
from .simulated_threads import Process, ProcessLoop, Threads
from .virtual_loop import StalledError

T = TypeVar("T")
BOOKIES = tuple(f"bookie-{number}:3181" for number in range(4))
SESSION_TIMEOUT_MS = 4_000
SYNC_S = 0.004
#: How long a fault of a machine lasts, and how long blocking work may take.
LASTS_S, LONGEST_S = (0.1, 1, 4, 12), 600
NEVER_MS = 2**40
_FAILURES = (LedgerError, OSError, CoordinationError, RefusedError)


class Machines:
    """Four bookies and a coordination service, with a network in between."""

    def __init__(self, threads: Threads, random: Random) -> None:
        self.threads, self.random = threads, random
        #: The brokers' processes, by host.
        self.listening: dict[str, Process] = {}
        #: Brokers that were replaced, and when they are killed.
        self.old: list[tuple[ClusterBroker, float]] = []
        #: When the faults so far are over.
        self.calm_s = 0.0
        self._process = Process()
        with threads.acting(self._process):
            self.loop = threads.new_loop()
            threading.Thread(target=self._run, name="machines").start()
        self.network = Network(self.loop, BOOKIES, random, self._bookie)
        self.tree = FaultyTree(session_timeout_ms=SESSION_TIMEOUT_MS)
        self._observer = self.tree.session()
        self._sessions: list[tuple[Process, FaultyCoordination]] = []
        self._registered: dict[str, FaultyCoordination] = {}
        self._lost_answers, self._delay_s = 0.0, 0.001
        #: How long a sync takes on bookies with a slow disk.
        self._sync_s: dict[str, float] = {}
        self.do(prepare_cluster(self._observer, ()))
        for name in BOOKIES:
            self.do(self._register(name))
        self.tree.fault = self._metadata_fault

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _bookie(self, name: str) -> FakeBookie:
        def synced(call: Callable[[], None]) -> object:
            return self.loop.call_later(self._sync_s.get(name, SYNC_S), call)

        return JournaledBookie(name, synced)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the machines' loop to its end."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    # -- for brokers ------------------------------------------------------------------------------

    async def session(self) -> FaultyCoordination:
        """A session with the coordination service."""
        session = self.tree.session()
        self._sessions.append((self.threads.own_process(), session))
        return session

    async def connect(self) -> tuple[FaultyCoordination, BookKeeperClient]:
        """The sessions of one store, on its loop."""
        loop: Any = asyncio.get_running_loop()
        loop.connect = self.network.connect
        session = await self.session()
        chance = Random(self.random.getrandbits(64))
        client = BookKeeperClient(session, ROOT, random=chance, clock_ms=lambda: 0)
        await client.check_cluster()
        return session, client

    def ended(self, process: Process) -> None:
        """A process was killed: its connections end at once, its sessions later."""
        self.network.client_ended(process.loops)
        for owner, session in self._sessions:
            if owner is process:
                self.loop.call_later(SESSION_TIMEOUT_MS / 1000, session.end_silently)
        self._sessions = [each for each in self._sessions if each[0] is not process]

    async def reach(self, host: str) -> None:
        """Connect to a broker, which has to be there. Nothing more is said between brokers."""
        if self.listening[host].is_dead:
            raise ConnectionRefusedError(host)

    def pause(self, process: Process, seconds: float) -> None:
        """Stop a process for some time; its sessions may end meanwhile."""
        process.is_paused = True
        self.calm_s = max(self.calm_s, self.threads.now_s + seconds)
        sessions = [session for owner, session in self._sessions if owner is process]
        for session in sessions:
            self.loop.call_soon(partial(session.cut, expire_after_ms=SESSION_TIMEOUT_MS))
            self.loop.call_later(seconds + 0.05, self._heal, session)
        self.loop.call_later(seconds, setattr, process, "is_paused", False)

    # -- faults -----------------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[], None]]:
        """What can happen to them, by name."""
        return {
            "bookie-kill": self._kill_a_bookie,
            "bookie-pause": self._pause_a_bookie,
            "bookie-cut": lambda: self.network.cut(self.random.choice(BOOKIES)),
            "bookie-slow": self._slow_disks,
            "network": self._bad_weather,
            "metadata": self._bad_metadata,
            "session": self._end_a_session,
        }

    def lose_power(self) -> None:
        """All bookies end at once; they come back one by one, those with a slow disk first."""
        for name in BOOKIES:
            self._crash(name, LASTS_S[:1] if name in self._sync_s else LASTS_S)
        self._sync_s.clear()

    def heal(self) -> None:
        """Everything works again."""
        self.network.weather = Weather()
        self._lost_answers, self._delay_s = 0.0, 0.001
        self._sync_s.clear()
        for name in BOOKIES:
            self.network.resume(name)
            self._restart(name)
        for process, session in self._sessions:
            process.is_paused = False
            self.loop.call_soon(session.heal)

    def _later(self, call: Callable[[], object], lasts_s: Sequence[float] = LASTS_S) -> None:
        seconds = self.random.choice(lasts_s)
        self.calm_s = max(self.calm_s, self.threads.now_s + seconds)
        self.loop.call_later(seconds, call)

    def _crash(self, name: str, lasts_s: Sequence[float] = LASTS_S) -> None:
        if name not in self.network.down:
            self.network.crash(name)
            self.loop.call_later(SESSION_TIMEOUT_MS / 1000, self._registered[name].end_silently)
            self._later(partial(self._restart, name), lasts_s)

    def _restart(self, name: str) -> None:
        if name in self.network.down:
            self.network.restart(name)
            self._registered[name].end_silently()
            self.loop.create_task(self._register(name))

    async def _register(self, name: str) -> None:
        session = self._registered[name] = self.tree.session()
        await session.create(f"{ROOT}/available/{name}", ephemeral=True)

    def _kill_a_bookie(self) -> None:
        if not self.network.down:
            self._crash(self.random.choice(BOOKIES))

    def _pause_a_bookie(self) -> None:
        name = self.random.choice(BOOKIES)
        self.network.pause(name)
        self._later(lambda: self.network.resume(name))

    def _slow_disks(self) -> None:
        """Two disks, up to the next power cut: until they sync, an entry is on one bookie only."""
        slow = self.random.sample(BOOKIES, 2)
        self._sync_s = dict.fromkeys(slow, self.random.choice((0.1, 0.5)))

    def _bad_weather(self) -> None:
        chance = self.random
        self.network.weather = Weather(
            lose=chance.choice((0, 0, 0.02)), repeat=chance.choice((0, 0.05)),
            delay_s=chance.choice((0.002, 0.02)), long_delay=chance.choice((0, 0.05, 0.3)),
            long_delay_s=chance.choice((0.5, 2.0)), late_add=chance.choice((0, 0.2, 0.5)),
        )  # fmt: skip
        self._later(lambda: setattr(self.network, "weather", Weather()))

    def _bad_metadata(self) -> None:
        self._lost_answers = self.random.choice((0, 0.05, 0.3))
        self._delay_s = self.random.choice((0.001, 0.1, 1))

        def good() -> None:
            self._lost_answers, self._delay_s = 0.0, 0.001

        self._later(good)

    def _end_a_session(self) -> None:
        if self._sessions:
            _, session = self.random.choice(self._sessions)
            self.loop.call_soon(partial(session.cut, expire_after_ms=SESSION_TIMEOUT_MS))
            self._later(partial(self._heal, session))

    def _heal(self, session: FaultyCoordination) -> None:
        if any(session is each for _, each in self._sessions):
            session.heal()

    async def _metadata_fault(
        self, session: FaultyCoordination, name: str, path: str, when: Literal["before", "after"]
    ) -> None:
        """Each request takes time, and may lose its connection before or after."""
        if all(session is not each for _, each in self._sessions):
            return
        await asyncio.sleep(self.random.expovariate(1 / self._delay_s))
        if self.random.random() < self._lost_answers:
            raise ConnectionLossError(path)


class ThreadWork:
    """Blocking work in threads, as a broker has it; the threads' order is the seed's."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._count = 0

    def __len__(self) -> int:
        """How many pieces are not done yet."""
        return self._count

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Have a thread call it, and wait for the result."""
        done: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self._count -= 1
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def call() -> None:
            try:
                result, error = function(*arguments), None
            except Exception as raised:
                result, error = None, raised
            self._loop.call_soon_threadsafe(settle, result, error)

        self._count += 1
        threading.Thread(target=call, name="pulsemark-io").start()
        return await done


class ClusterBroker(SimulatedBroker):
    """A member of a cluster, over restarts. At most one of them is to serve the topics.

    It is asked for all of them all the time, as clients look topics up. While it is stopped,
    another one takes its place, and it comes back to find that it owns nothing any more.
    """

    def __init__(
        self, machines: Machines, names: Sequence[str], number: int = 0, **config: Any
    ) -> None:
        self.machines = machines
        self._names, self._number, self._given = names, number, config
        self._host = f"broker-{number}"
        self._looking: asyncio.Task[None] | None = None
        super().__init__(Path(), **config)
        self._next_request_id += number << 16

    @property
    def store(self) -> Any:
        """The stores of the bundles that it owns."""
        return self._store

    def _make_loop(self) -> SimulatedLoop:
        return ProcessLoop(self.machines.threads, self.machines.reach)

    def _make_work(self) -> Any:
        return ThreadWork(self.loop)

    # -- starting and ending ----------------------------------------------------------------------

    def _start(self) -> None:
        """Start as what watches over a broker does: again, until it runs."""
        while True:
            self.machines.listening[self._host] = self.loop.process
            try:
                super()._start()
            except _FAILURES:
                self._die()
                self.loop.now_s += 1
            else:
                return

    def _open_store(self) -> Any:
        self._member = ClusterMember(
            self.machines.session, self._stores, Balanced(shedding_interval_ms=NEVER_MS)
        )
        urls = {"service_url": f"pulsar://{self._host}:6650", "http_url": f"http://{self._host}:80"}
        here: Any = SimpleNamespace(**urls, service_url_tls="", http_url_tls="")
        opening = self._member.open_store(here, self.loop.call_soon_threadsafe)
        self._store = self.result_of(opening)
        self.loop.do(self._store.never_wait_here)
        return self._store

    def _stores(self, _broker: Any, notify: Any) -> BundleStores:
        config = self.config
        setup = StoreSetup(config.clock, fitting(config.store_options), notify, True)

        def opening(bundle: str) -> BookKeeperStore:
            return BookKeeperStore.open_with(
                self.machines.connect, ledgers_root=ROOT, root=f"{BUNDLES_ROOT}/{bundle}",
                ledger_options=LedgerOptions(), setup=setup,
            )  # fmt: skip

        return BundleStores(opening, self.work.run)

    def _join(self) -> None:
        parts = self.services
        parts.kafka_place = KafkaPlace(0, self._host, 9092, None)
        self.result_of(self._member.join(parts))
        assert parts.transactions is not None
        assert parts.cluster is not None
        parts.transactions.follow(parts.cluster)

    def _end_store(self, *, kill: bool, power: bool) -> None:
        if kill:
            if power:
                self._end_old(math.inf)
                self.machines.lose_power()
            self._die()
            self._hang_up()
        else:
            self.result_of(self._member.leave())
            self.machines.threads.run(self.store.close)
            self.result_of(self._member.close())
            self._die()

    def _die(self) -> None:
        """The process ends; the next one has a loop of its own."""
        self.machines.ended(self.loop.process)
        self.machines.threads.end(self.loop.process)
        self.loop.drop()
        self.loop, self._looking = self._make_loop(), None
        self.work = self._make_work()

    def _hang_up(self) -> None:
        for client in self.clients:
            client.is_connected = False
        self.clients.clear()

    def _drop_the_rest(self) -> None:
        """It went with the loop."""

    def _remove(self) -> None:
        self._die()
        self.loop.drop()

    @property
    def is_running(self) -> bool:
        """Whether its process is not stopped."""
        return not self.loop.process.is_paused

    @property
    def calm_s(self) -> float:
        """When the machines' faults are over."""
        return self.machines.calm_s

    # -- while it runs ----------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[], Any]]:
        """Those of the machines, and a pause, which may outlast its sessions."""
        return {**self.machines.faults(), "pause": self._pause}

    def _pause(self) -> SimulatedBroker | None:
        machines, chance = self.machines, self.machines.random
        seconds = chance.choice((0.5, 2, 6, 15))
        machines.pause(self.loop.process, seconds)
        if 1000 * seconds < SESSION_TIMEOUT_MS:
            return None
        end_s = self.loop.now_s + seconds + chance.choice((0, 1, 20))
        machines.old.append((self, end_s))
        machines.calm_s = max(machines.calm_s, end_s)
        return ClusterBroker(machines, self._names, self._number + 1, **self._given)

    def heal(self) -> None:
        """All machines work again, and only this broker is there."""
        self.machines.heal()
        self._end_old(math.inf)

    def _end_old(self, now_s: float) -> None:
        for broker, end_s in tuple(self.machines.old):
            if end_s <= now_s:
                self.machines.old.remove((broker, end_s))
                broker.end()

    def in_a_thread(self, function: Callable[[], None]) -> None:
        """Reading waits for bookies."""
        self.machines.threads.run(function)

    def go_on(self, random: Random) -> None:
        """Threads go on as time passes. Clients look their topics up."""
        self._end_old(self.loop.now_s)
        if self.is_running and (self._looking is None or self._looking.done()):
            self._looking = self.start(self._look_up())

    async def _look_up(self) -> None:
        journal = TopicName("persistent", "public", "default", JOURNAL)
        for name in (COORDINATOR, journal, *map(TopicName.parse, self._names)):
            if not self._member.owns(name):
                with suppress(RefusedError):
                    await self._member.find(name, authoritative=True)

    def commit(self) -> None:
        """The committer's thread does it."""
        self.loop.settle()

    def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns."""
        task = self.start(work)
        self._wait(task.done)
        return task.result()

    def _finish_work(self) -> None:
        self._wait(lambda: not len(self.work))

    def _wait(self, is_done: Callable[[], bool]) -> None:
        until_s = self.loop.now_s + LONGEST_S
        self.loop.settle()
        while not is_done():
            self.loop.now_s += 0.01
            if self.loop.now_s > until_s:
                raise StalledError("it does not end")
