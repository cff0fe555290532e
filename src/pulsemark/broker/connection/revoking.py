"""Closes producers and consumers whose role has lost its permission, as Pulsar does.

A change of permissions, of a tenant's administrators or of a namespace's existence makes one round
over all connections, in pieces. The client gets CLOSE_PRODUCER or CLOSE_CONSUMER. It will try to
open it again, and is refused then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ..cooperative import Background, Turns
from ..security.authorization import Target
from ..security.needs import topic

if TYPE_CHECKING:
    from ..security.authorization import Authorizer
    from .session import Session

__all__ = ["Revoking"]

PRODUCE, CONSUME = topic("PRODUCE"), topic("CONSUME")


class Revoking:
    """The rounds of one broker."""

    def __init__(
        self, authorizer: Authorizer, sessions: Collection[Session[Any]], turns: Turns
    ) -> None:
        """`sessions` are all that there are, also later."""
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

    def _check(self, session: Session[Any]) -> Iterator[None]:
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
