"""The choice of the broker that gets a bundle without an owner, and of bundles to give away.

`Balanced`: the leader gives a bundle to the broker with the fewest, as Pulsar's simple placement
does. The broker with the most gives one away while another has at least two fewer. `Fixed`: each
bundle stays with one worker, because its data are in that worker's folder.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from ..broker.errors import RefusedError
from ..broker.ownership import Found
from ..coordination import Coordination, CoordinationError, NodeExistsError, NodeMissingError, Watch
from ..proto.pulsar_api_pb2 import ServerError
from .bundle_ownership import with_redirect

if TYPE_CHECKING:
    from .member import ClusterMember

AWAY = "/pulsemark/away"
"""Below it are the numbers of workers that hang or do not run, each with the reason."""
PROMISED_S = 10.0
"""How long a bundle counts for the broker that the leader chose, until that has taken it."""

log = logging.getLogger(__name__)


class Balanced:
    """Spreads bundles evenly over the brokers."""

    worker: int | None = None

    def __init__(self, *, shedding_interval_ms: int = 30_000) -> None:
        self._interval_s = shedding_interval_ms / 1000
        self._promised: dict[str, tuple[str, float]] = {}
        self._shedding: asyncio.Task[None] | None = None

    async def start(self, member: ClusterMember) -> None:
        """Begin to balance."""
        self._shedding = asyncio.get_running_loop().create_task(self._shed_for_ever(member))

    async def stop(self) -> None:
        """Stop balancing."""
        if self._shedding is not None:
            self._shedding.cancel()

    async def candidate(self, member: ClusterMember, bundle: str, *, authoritative: bool) -> Found:
        """As in Pulsar: this broker if another has chosen it, else the leader's choice."""
        if authoritative:
            return member.me
        if not member.registration.is_leader:
            leader = await member.registration.leader()
            if leader is not None:
                return with_redirect(leader, authoritative=False)
        chosen = await self.chosen(member, bundle)
        if chosen.broker_id == member.broker_id:
            return chosen
        return with_redirect(chosen, authoritative=True)

    def may_take(self, bundle: str) -> bool:
        """Always true."""
        return True

    def problem_of(self, bundle: str) -> str | None:
        """Always None: the session of a broker that hangs ends."""
        return None

    def problems(self) -> dict[int, str]:
        """Always empty: there are no workers."""
        return {}

    async def chosen(self, member: ClusterMember, bundle: str) -> Found:
        """The broker with the fewest bundles."""
        brokers = await member.registration.brokers()
        if not brokers:
            return member.me
        now_s = time.monotonic()
        self._promised = {
            promised: (broker, until_s)
            for promised, (broker, until_s) in self._promised.items()
            if until_s > now_s and broker in brokers and promised not in brokers[broker].bundles
        }
        if bundle in self._promised:
            return brokers[self._promised[bundle][0]].found
        loads = Counter({name: len(one.bundles) for name, one in brokers.items()})
        loads.update(broker for broker, _ in self._promised.values())
        chosen = min(brokers, key=lambda name: (loads[name], name))
        self._promised[bundle] = (chosen, now_s + PROMISED_S)
        return brokers[chosen].found

    # -- shedding ---------------------------------------------------------------------------------

    async def _shed_for_ever(self, member: ClusterMember) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.shed(member)
            except CoordinationError as error:
                log.warning("bundles could not be balanced; the next round tries again: %s", error)
            except Exception:
                log.exception("a bundle could not be given away")

    async def shed(self, member: ClusterMember) -> str | None:
        """Give a bundle away and return it, if this broker has the most, and two more than another.

        The broker with the fewest gets it at its next lookup.
        """
        brokers = await member.registration.brokers()
        mine = member.ownership.bundles()
        counts = {name: len(one.bundles) for name, one in brokers.items()}
        counts[member.broker_id] = len(mine)
        most = max(counts, key=lambda name: (counts[name], name))
        if most != member.broker_id or len(mine) - min(counts.values()) < 2:
            return None
        log.info("%s gives bundle %s away: others have fewer", most, mine[0])
        await member.ownership.give(mine[0])
        return mine[0]


class Fixed:
    """Assigns each bundle to its worker."""

    def __init__(self, worker: int, workers: int) -> None:
        self.worker: int | None = worker
        self.workers = workers
        self._away: dict[int, str] = {}
        self._watch: Watch | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self, member: ClusterMember) -> None:
        """Follow the reports about workers that hang or do not run."""
        session = member.session
        with suppress(NodeExistsError):
            await session.create(AWAY, make_parents=True)

        def look() -> None:
            if self._looking is not None:
                self._looking.cancel()  # what it has read may be old
            self._looking = asyncio.get_running_loop().create_task(self._look(session))

        self._watch = await session.watch(AWAY, look, children=True)
        await self._look(session)

    async def _look(self, session: Coordination) -> None:
        found = {}
        try:
            for name in await session.children(AWAY):
                with suppress(NodeMissingError):
                    found[int(name)] = (await session.get(f"{AWAY}/{name}")).data.decode()
        except CoordinationError as error:
            log.warning("it is not known which workers hang: %s", error)
        else:
            self._away = found

    async def stop(self) -> None:
        """Stop following the reports."""
        if self._watch is not None:
            self._watch.close()
        if self._looking is not None:
            self._looking.cancel()

    def problem_of(self, bundle: str) -> str | None:
        """The reason why the bundle's worker cannot be used; None if it can."""
        return self.problems().get(worker_of(bundle, self.workers))

    def problems(self) -> dict[int, str]:
        """The supervisor's reasons why workers cannot be used, by worker."""
        return {
            number: f"worker {number} of {self.workers} {reason}"
            for number, reason in self._away.items()
            if number != self.worker
        }

    async def candidate(self, member: ClusterMember, bundle: str, *, authoritative: bool) -> Found:
        """The bundle's worker. Raises RefusedError while it does not run."""
        found = await self.chosen(member, bundle)
        if found is None:
            wanted = worker_of(bundle, self.workers)
            raise RefusedError(
                ServerError.ServiceNotReady, f"worker {wanted} of {self.workers} is being started"
            )
        return found if found is member.me else with_redirect(found, authoritative=True)

    async def chosen(self, member: ClusterMember, bundle: str) -> Found | None:
        """The bundle's worker; None while it does not run."""
        wanted = worker_of(bundle, self.workers)
        if wanted == self.worker:
            return member.me
        for broker in (await member.registration.brokers()).values():
            if broker.worker == wanted:
                return broker.found
        return None

    def may_take(self, bundle: str) -> bool:
        """Whether the bundle is this worker's."""
        return worker_of(bundle, self.workers) == self.worker


def worker_of(bundle: str, workers: int) -> int:
    """The worker of a bundle: each worker has an equal part of all hashes.

    Only the range's begin counts, so splitting a bundle within a worker's part moves none.
    """
    low = int(bundle.rpartition("/")[2].partition("_")[0], 16)
    return low * workers >> 32
