"""The endpoint: what all Kafka connections of a broker share, its start and its end.

endpoint = Endpoint(ports, options)
await endpoint.start()
... a listener makes a protocol with `endpoint.session()` for each connection ...
await endpoint.close()
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from ..ledger import LedgerError
from .deadlines import Deadlines
from .errors import Code
from .fetch_sessions import FetchSessions
from .groups.coordinator import Coordination, Coordinator
from .groups.offsets import Offsets
from .handlers import HANDLERS
from .partitions import Partitions
from .ports import Alone, ClusterPort, Figures, KafkaOptions, Ports
from .producer_state import ProducerIds
from .session import KafkaSession
from .shown_entries import Conversions
from .wire import Memory

__all__ = ["Endpoint"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_INTERVAL_S = 1.0
LARGE_AT_ONCE = 2
CHECKED_AT_ONCE = 2
LARGE_SETS_AT_ONCE = 2


class Endpoint:
    """One broker's Kafka endpoint."""

    def __init__(self, ports: Ports, options: KafkaOptions) -> None:
        self.ports = ports
        self.options = options
        self.sessions: set[KafkaSession] = set()
        self._hosts: Counter[str] = Counter()
        self.deadlines = Deadlines()
        self.partitions = Partitions(ports.topics)
        self.producer_ids = ProducerIds(ports)
        self.figures = Figures()
        self.memory = Memory()
        self.fetch_sessions = FetchSessions(
            self.deadlines.now_s, options.max_fetch_sessions, options.max_fetch_session_partitions
        )
        #: Requests with large bodies or many parts that are handled at the same time: decoded they,
        #: and their answers, take a hundred times their size.
        self.large_requests = asyncio.Semaphore(LARGE_AT_ONCE)
        #: Sets that are checked in a thread.
        self.checks = asyncio.Semaphore(CHECKED_AT_ONCE)
        #: Sets that may take much more memory and time in a thread, produced and fetched.
        self.large_sets = asyncio.Semaphore(LARGE_SETS_AT_ONCE)
        self.conversions = Conversions(
            self.figures, lambda make: self.in_lane(self.large_sets, make), self.deadlines.now_s
        )
        self._rewriting: asyncio.Task[None] | None = None
        self.cluster: ClusterPort = ports.cluster or Alone(options.host)
        self._coordination = Coordination(ports, options, self.deadlines, self.cluster)

    async def start(self) -> None:
        """Read the committed offsets, where they are this broker's. Raises LedgerError, OSError."""
        if self.ports.cluster is None:
            await self._coordination.load()
        else:
            self.cluster.follow(self._coordination.moved)
        self._check()

    @property
    def offsets(self) -> Offsets:
        """The committed offsets; none while another broker coordinates groups."""
        return self._coordination.offsets

    @property
    def groups(self) -> Coordinator:
        """The groups; none while another broker coordinates them."""
        return self._coordination.coordinator

    def group_refusal(self) -> Code:
        """Why requests about groups are refused; NONE: this broker coordinates them."""
        return self._coordination.refusal()

    def session(self, port: int) -> KafkaSession:
        """The protocol of a new connection. Metadata names this port to its client."""
        return KafkaSession(self, HANDLERS, port)

    def joined(self, session: KafkaSession) -> None:
        """A client has connected."""
        self.sessions.add(session)
        self._hosts[session.host] += 1

    def left(self, session: KafkaSession) -> None:
        """A client's connection has ended."""
        self.sessions.discard(session)
        self._hosts[session.host] -= 1
        if not self._hosts[session.host]:
            del self._hosts[session.host]

    def connections_from(self, host: str) -> int:
        """How many connections come from an IP address."""
        return self._hosts[f"/{host}"]

    async def in_lane(
        self, lane: asyncio.Semaphore, function: Callable[..., T], *args: object
    ) -> T:
        """Run a blocking function when there is a place in the lane.

        The place is taken until the function ends, also if the caller is cancelled before.
        """
        await lane.acquire()
        try:
            work = asyncio.ensure_future(self.ports.run_blocking(function, *args))
        except BaseException:
            lane.release()
            raise

        def ended(work: asyncio.Future[T]) -> None:
            lane.release()
            if not work.cancelled():
                work.exception()  # the caller may be gone

        work.add_done_callback(ended)
        return await asyncio.shield(work)

    def _check(self) -> None:
        """Once a second: connections that are idle, the log of offsets, and unused memory."""
        self.deadlines.after(CHECK_INTERVAL_S, self._check)
        self.memory.trim()
        self.conversions.drop_unused()
        now_s = self.deadlines.now_s()
        for session in tuple(self.sessions):
            session.check_time(now_s)
        if self.offsets.is_due and self._rewriting is None:
            self._rewriting = asyncio.get_running_loop().create_task(self._rewrite())

    async def _rewrite(self) -> None:
        try:
            await self.offsets.rewrite()
        except (LedgerError, OSError) as error:
            log.warning("the log of committed offsets was not shortened: %s", error)
        finally:
            self._rewriting = None

    # -- closing --------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Take no more requests, and let no group wait any longer."""
        self._coordination.close()
        for session in tuple(self.sessions):
            session.stop_reading()

    @property
    def is_busy(self) -> bool:
        """Whether requests that were taken are still to be answered."""
        return any(session.is_busy for session in self.sessions)

    def finish(self) -> None:
        """Send what is buffered, and close all connections."""
        for session in tuple(self.sessions):
            session.close()

    async def close(self) -> None:
        """End what is left."""
        for session in tuple(self.sessions):
            session.abort()
        self.deadlines.close()
        if self._rewriting is not None:
            await asyncio.wait([self._rewriting])
        self.partitions.close()
