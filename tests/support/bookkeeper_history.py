"""One seeded history: writers that take a topic over from each other, readers, and bad luck.

The topic is a list of ledgers in the coordination service. A contender recovers the last ledger,
creates one, appends it to the list with the list's version, and only then writes.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pulsemark.coordination import (
    ConnectionLossError,
    CoordinationError,
    VersionConflictError,
)
from pulsemark.ledger.bookkeeper.client import (
    BookKeeperClient,
    ClientOptions,
    LedgerReader,
    LedgerWriter,
)
from pulsemark.ledger.bookkeeper.client.errors import BookKeeperError
from pulsemark.ledger.bookkeeper.client.recovery import RecoveryRules
from tests.support.bookkeeper_cluster import ROOT, prepare_cluster
from tests.support.bookkeeper_invariants import Invariants
from tests.support.bookkeeper_network import Network, Weather
from tests.support.faulty_coordination import FaultyCoordination, FaultyTree
from tests.support.virtual_loop import VirtualLoop, run_virtually

LIST = "/topic"
OPTIONS = ClientOptions(
    connect_timeout_ms=1_000,
    add_timeout_ms=2_500,
    read_timeout_ms=1_000,
    speculative_read_ms=300,
    replace_delay_ms=300,
    quarantine_ms=2_000,
    metadata_limit_ms=1_600,
    explicit_lac_ms=50,
    metadata_retry_ms=50,
    recovery_attempts=5,
    recovery_batch_entries=4,
)
_FAILURES = (BookKeeperError, CoordinationError)


@dataclass(slots=True)
class Outcome:
    """What a history came to."""

    seed: int
    broken: list[str]
    steps: int
    acked: int
    ledgers: int
    recovered: int
    ensemble_changes: int


class History:
    """One history, from a seed."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        rules: RecoveryRules,
        *,
        is_duel: bool = False,
        together: bool = False,
    ) -> None:
        self._loop = loop
        self._seed = seed
        self._rules = rules
        self._random = random.Random(seed)
        self._is_duel = is_duel
        self._together = together
        names = [f"bookie:{number}" for number in range(self._random.randint(3, 6))]
        ensemble = self._random.randint(2, min(4, len(names)))
        write = self._random.randint(2, ensemble)
        self._sizes = (ensemble, write, self._random.randint(1 + write // 2, write))
        self.network = Network(loop, names, self._random)
        self.network.pass_frame = self._pass_frame
        self.tree = FaultyTree()
        self._observer = self.tree.session()
        self._bookie_sessions: dict[str, FaultyCoordination] = {}
        self.invariants = Invariants(self.network.bookies)
        self._writers: list[LedgerWriter] = []
        self._recovered = 0
        self._bad_metadata = 0.0

    async def run(self) -> Outcome:
        """The whole history, and what is left of it at the end."""
        await prepare_cluster(self._observer, ())
        await self._observer.create(LIST, b"")
        for name in self.network.bookies:
            await self._register(name)
        self.tree.fault = self._metadata_fault
        if self._is_duel:
            await self._duel()
        else:
            await self._long_history()
        await self._heal()
        await self._read_all()
        return self._outcome()

    async def _long_history(self) -> None:
        """Several contenders, a follower, and bad luck all the time."""
        actors = [asyncio.ensure_future(self._contender(i)) for i in range(3)]
        actors.append(asyncio.ensure_future(self._follower()))
        luck = asyncio.ensure_future(self._bad_luck())
        await asyncio.gather(*actors)
        luck.cancel()

    async def _duel(self) -> None:
        """A writer whose adds are late, and one recovery of its ledger while it writes."""
        self._sizes = (3, 3, 2)
        self.network.weather = Weather(long_delay=0.4, long_delay_s=0.9, late_add=0.6)
        client, session, other = self._client(), self.tree.session(), self._client()
        writer = await self._take_over(client, session)
        assert writer is not None
        writing = asyncio.ensure_future(self._write(writer, "duel", 3))
        await asyncio.sleep(self._random.uniform(0, 0.2))
        with suppress(*_FAILURES):
            await self._read(await other.open_ledger(writer.ledger_id))
            self._recovered += 1
        with suppress(*_FAILURES):
            await writing
        await asyncio.sleep(3)
        await client.close()
        await other.close()

    def _outcome(self) -> Outcome:
        known = self.invariants.ledgers.values()
        changes = (len(one.metadata.segments) - 1 for one in known if one.metadata is not None)
        return Outcome(
            self._seed, self.invariants.broken, self.invariants.steps,
            sum(one.acked for one in known), len(self.invariants.ledgers), self._recovered,
            sum(changes),
        )  # fmt: skip

    # -- what is observed -------------------------------------------------------------------------

    def _pass_frame(self, bookie: str, frame: bytes) -> bool:
        self.invariants.frame_sent(frame)
        return True

    async def _metadata_fault(
        self, session: FaultyCoordination, name: str, path: str, when: Literal["before", "after"]
    ) -> None:
        """Each metadata request takes time, and may lose its connection before or after."""
        if session is self._observer:
            return
        if when == "after" and name in ("create", "set"):
            await self._observe(path)
        await asyncio.sleep(self._random.expovariate(1 / 0.003))
        if self._random.random() < self._bad_metadata:
            raise ConnectionLossError(path)

    async def _observe(self, path: str) -> None:
        """Look at a node that was written just now, in the same step."""
        self._look_at_writers()
        if path == LIST:
            data, _ = await self._observer.get(path)
            self.invariants.chain_written([int(one) for one in data.split()])
        elif path.startswith(ROOT) and path.rpartition("/")[2].startswith("L0"):
            data, _ = await self._observer.get(path)
            digits = path.removeprefix(ROOT).replace("/", "").replace("L", "")
            self.invariants.metadata_written(int(digits), data)

    # -- actors -----------------------------------------------------------------------------------

    def _client(self) -> BookKeeperClient:
        chance = random.Random(self._random.getrandbits(64))
        session = self.tree.session()
        return BookKeeperClient(
            session, ROOT, options=OPTIONS, random=chance, clock_ms=lambda: 0, rules=self._rules
        )

    async def _contender(self, number: int) -> None:
        """Take the topic over a few times, and write until something stops it."""
        client, session = self._client(), self.tree.session()
        for turn in range(3):
            await asyncio.sleep(self._random.uniform(0, 4))
            with suppress(*_FAILURES):
                writer = await self._take_over(client, session)
                if writer is not None:
                    await self._write(writer, f"{number}.{turn}")
        await client.close()

    async def _take_over(
        self, client: BookKeeperClient, session: FaultyCoordination
    ) -> LedgerWriter | None:
        """Recover the last ledger, then put a new one on the list; None if another was faster."""
        data, version = await session.get(LIST)
        chain = [int(one) for one in data.split()]
        if chain:
            reader = await client.open_ledger(chain[-1])
            self._recovered += 1
            await self._read(reader)
        ensemble, write, ack = self._sizes
        writer = await client.create_ledger(
            ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack
        )
        new = " ".join(map(str, [*chain, writer.ledger_id])).encode()
        try:
            await session.set(LIST, new, version)
        except VersionConflictError:
            return None
        except ConnectionLossError:
            if (await session.get(LIST)).data != new:
                return None
        return writer

    async def _write(self, writer: LedgerWriter, name: str, most: int = 40) -> None:
        """Append some entries, in bursts, and mostly close the ledger."""
        self._writers.append(writer)
        appended = self.invariants.of(writer.ledger_id).appended
        last: asyncio.Future[int] | None = None
        number, end = 0, self._random.randint(1, most)
        while number < end:
            count = min(end - number, self._random.randint(1, 8)) if self._together else 1
            payloads = [
                f"{name}:{one}:".encode() + b"x" * self._random.randint(0, 30)
                for one in range(number, number + count)
            ]
            if writer.error is not None:
                break
            last = writer.append_all([(payload,) for payload in payloads])
            number += count
            appended += payloads
            last.add_done_callback(partial(self._acked, writer, count))
            if self._random.random() < 0.4:
                await asyncio.sleep(self._random.expovariate(1 / 0.1))
        if last is not None and self._random.random() < 0.7:
            with suppress(*_FAILURES):
                await asyncio.shield(last)
        if self._random.random() < 0.5:
            await writer.close()

    def _acked(self, writer: LedgerWriter, count: int, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.invariants.told(writer.ledger_id, count, done.result())
            self._look_at_writers()

    def _look_at_writers(self) -> None:
        """Of entries that were appended together, the first may be confirmed before the others."""
        for writer in self._writers:
            for entry_id in range(
                self.invariants.of(writer.ledger_id).acked, writer.last_confirmed + 1
            ):
                self.invariants.acknowledged(writer.metadata, entry_id)

    async def _follower(self) -> None:
        """Read what is confirmed of the last ledger, without fencing it."""
        client, session = self._client(), self.tree.session()
        for _ in range(10):
            await asyncio.sleep(self._random.uniform(0, 1.5))
            with suppress(*_FAILURES):
                data, _ = await session.get(LIST)
                if data:
                    ledger_id = int(data.split()[-1])
                    reader = await client.open_ledger_no_recovery(ledger_id)
                    self._followed(reader)
                    await self._read(reader)
                    await asyncio.sleep(0.5)
                    reader = await client.open_ledger_no_recovery(ledger_id)
                    self._followed(reader)
                    await self._read(reader)
        await client.close()

    def _followed(self, reader: LedgerReader) -> None:
        self._look_at_writers()
        self.invariants.last_confirmed_read(reader.metadata, reader.last_confirmed)

    async def _read(self, reader: LedgerReader) -> None:
        if reader.last_confirmed >= 0:
            for entry in await reader.read(0, reader.last_confirmed):
                self.invariants.entry_read(reader.ledger_id, entry.entry_id, entry.payload)

    # -- bad luck ---------------------------------------------------------------------------------

    async def _register(self, name: str) -> None:
        """The bookie has a session with the coordination service, and its node."""
        session = self._bookie_sessions[name] = self.tree.session()
        fault, self.tree.fault = self.tree.fault, None
        await session.create(f"{ROOT}/available/{name}", b"", ephemeral=True)
        self.tree.fault = fault

    async def _bad_luck(self) -> None:
        """Change the weather, and stop and start bookies, again and again."""
        chance = self._random
        while True:
            await asyncio.sleep(chance.expovariate(1 / 0.7))
            self.network.weather = Weather(
                lose=chance.choice((0, 0, 0.02, 0.15)),
                repeat=chance.choice((0, 0.05)),
                delay_s=chance.choice((0.002, 0.02)),
                long_delay=chance.choice((0, 0.05, 0.3)),
                long_delay_s=chance.choice((0.5, 2.0)),
                late_add=chance.choice((0, 0.2, 0.5)),
            )
            self._bad_metadata = chance.choice((0, 0, 0.05, 0.2))
            name = chance.choice(list(self.network.bookies))
            if name in self.network.down:
                self.network.restart(name)
                await self._register(name)
            elif name in self.network.paused:
                self.network.resume(name)
            elif chance.random() < 0.3:
                self.network.crash(name)
                self._bookie_sessions[name].expire()
            elif chance.random() < 0.4:
                self.network.pause(name)

    async def _heal(self) -> None:
        """Everything works again."""
        self.network.weather, self._bad_metadata = Weather(), 0.0
        for name in self.network.bookies:
            self.network.resume(name)
            if name in self.network.down:
                self.network.restart(name)
                await self._register(name)
        await asyncio.sleep(10)

    async def _read_all(self) -> None:
        """In the end every ledger of the list can be closed and read as a whole."""
        client = self._client()
        for ledger_id in list(self.invariants.chain):
            try:
                reader = await client.open_ledger(ledger_id)
                await self._read(reader)
            except _FAILURES as error:
                self.invariants.broken.append(f"ledger {ledger_id} cannot be read: {error!r}")
        await client.close()


def run_history(
    seed: int,
    rules: RecoveryRules | None = None,
    *,
    is_duel: bool = False,
    together: bool = False,
) -> Outcome:
    """Run the history of a seed in virtual time.

    With `is_duel` a short one, of one writer and one recovery at the same time. With `together`
    writers append up to eight entries at once.
    """
    given = rules or RecoveryRules()
    return run_virtually(
        lambda loop: History(loop, seed, given, is_duel=is_duel, together=together).run()
    )
