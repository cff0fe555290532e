"""How connections are closed: at the broker's end, and when a client loses its rights.

A broker that ends divides `shutdown_timeout_ms` among its clients (`Ending`):

- up to a half: what was read is handled and answered;
- a quarter at least: what was written is sent. A client that takes nothing for a quarter of the
  time is not waited for. So one that does not read takes no time from the others, whose receipts
  are still sent;
- the last quarter is for cursors and the store, which take as long as they need.

A change of permissions, of a tenant's administrators or of a namespace's existence makes one round
over all connections, in pieces (`Revoking`). As in Pulsar, a client whose role has lost its
permission gets CLOSE_PRODUCER or CLOSE_CONSUMER. It will try to open it again, and is refused then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Protocol, Self

from ..cooperative import Background, Turns
from ..security.authorization import Target
from ..security.needs import topic

if TYPE_CHECKING:
    from ..security.authorization import Authorizer
    from .session import Session


class Leaving(Protocol):
    """A connection that is about to be closed."""

    @property
    def is_drained(self) -> bool:
        """Whether the connection may be closed without losing data on its way to the client."""
        ...

    def untaken_bytes(self) -> int:
        """Written data that the client has not taken yet, as far as that is known."""
        ...


class Ending:
    """The deadlines of one shutdown, on the loop's clock."""

    def __init__(self, now_s: float, timeout_s: float) -> None:
        self.answered_until_s = now_s + timeout_s / 2
        self.sent_until_s = now_s + timeout_s * 3 / 4
        self.stalled_s = timeout_s / 4

    @classmethod
    def begin(cls, timeout_ms: int) -> Self:
        """Start the deadlines now."""
        return cls(asyncio.get_running_loop().time(), timeout_ms / 1000)

    async def answered(self, is_busy: Callable[[], bool]) -> None:
        """Return when no connection is busy, or the time for answers is over."""
        await wait_until(lambda: not is_busy(), self.answered_until_s)

    async def sent(self, connections: Collection[Leaving]) -> None:
        """Return when each connection is drained or takes nothing, or the time is over."""
        clock = asyncio.get_running_loop().time
        seen: dict[Leaving, tuple[int, float]] = {}

        def is_over(connection: Leaving) -> bool:
            if connection.is_drained:
                return True
            untaken_bytes, now_s = connection.untaken_bytes(), clock()
            before_bytes, since_s = seen.get(connection, (-1, now_s))
            if untaken_bytes != before_bytes:
                seen[connection] = untaken_bytes, now_s
                return False
            return now_s - since_s >= self.stalled_s

        # Look at every connection each time, so that the stall times of all begin together.
        await wait_until(
            lambda: all([is_over(each) for each in tuple(connections)]),  # noqa: C419
            self.sent_until_s,
        )


POLL_S = 0.005


async def wait_until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Return when the condition holds, or when the loop's time reaches `deadline_s`."""
    loop = asyncio.get_running_loop()
    while (began_s := loop.time()) < deadline_s:
        if condition():
            return
        # Checking thousands of connections takes time itself, so wait in proportion.
        await asyncio.sleep(max(POLL_S, 4 * (loop.time() - began_s)))


PRODUCE, CONSUME = topic("PRODUCE"), topic("CONSUME")


class Revoking:
    """Closes producers and consumers whose clients have lost their permission."""

    def __init__(self, authorizer: Authorizer, sessions: Collection[Session], turns: Turns) -> None:
        """`sessions`: a live view of the broker's sessions."""
        self._authorizer = authorizer
        self._sessions = sessions
        self._turns = turns
        self._background = Background()
        self._is_due = False
        self._runs = False
        authorizer.on_change.append(self._changed)

    def _changed(self, _: str | None) -> None:
        self._is_due = True
        if not self._runs:
            self._runs = True
            self._background.start(self._run())

    async def _run(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                await self._turns.work(self._round())
        finally:
            self._runs = False

    def _round(self) -> Iterator[None]:
        for session in tuple(self._sessions):
            yield from self._check(session)
            yield

    def _check(self, session: Session) -> Iterator[None]:
        allows, principal = self._authorizer.allows, session.principal
        for producer, home in tuple(session.producers.values()):
            if not allows(principal, PRODUCE, Target.of_topic(home.topic_name)):
                producer.leave()
                session.close_producer(producer)
            yield
        for consumer in tuple(session.consumers.values()):
            place = consumer.subscription
            if place is not None:
                target = Target.of_topic(place.topic.topic_name, place.name)
                if not allows(principal, CONSUME, target):
                    consumer.leave()
                    session.close_consumer(consumer)
            yield

    async def settled(self) -> None:
        """Return when no round runs."""
        await self._background.settled()
