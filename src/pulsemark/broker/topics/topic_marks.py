"""A topic's marks: its epoch of exclusive producers, its leader epochs, and its termination.

A topic's epoch counts its exclusive producers. A terminated topic can be read, and never gets
another message. Both are removed with the topic.

The policy `leaderEpochs` says whether a leader epoch begins when a broker takes a topic over. A
topic's log can be copied, and copies can diverge after an unclean stop. With epochs their common
part can be found: each broker that takes the topic over begins the next epoch with a control entry
that names it, before it takes any other entry (the proposal for enriched message metadata,
KAFKA-1211). `ledger.epochs.common_point` has the rule for followers.

A broker takes a topic over when it opens a log with entries of another process, however that one
ended. A topic that this broker created has no such entries; its epoch is 0.

The policy is on by default for topics that take Kafka's record sets, as Kafka's clients expect. For
others it is off, because consumers that count on indexes without gaps would miss the control
entry's. If it is switched on for an open topic that was taken over before, the epoch begins then.

If the control entry cannot be stored, the topic can be read, but no producer can be opened until
the epoch has begun, and those that are open are closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, Position, StaleEpochError
from ...metadata import StampError
from ...proto.pulsar_api_pb2 import ServerError
from ..cooperative import Background
from ..errors import RefusedError
from ..policies.own_policies import EPOCHS
from ..storage import durable
from .catalog_writer import CatalogWriter, Change
from .entry_formats import KAFKA_POLICY
from .producers import CLAIMED_EPOCH_MAX
from .topic_names import NameLocks

if TYPE_CHECKING:
    from ...ledger.store import MetadataStore
    from ..cooperative import Turns
    from .policy_store import Concerns
    from .registry import Topics
    from .topic import Topic
    from .topic_names import TopicNames


log = logging.getLogger(__name__)

EPOCH_KIND = "topic-epoch"
TERMINATED_KIND = "terminated-topic"


class TopicMarks:
    """The epochs of topics, and the last positions of terminated topics."""

    def __init__(self, writer: CatalogWriter, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._writer = writer
        self._run_blocking = run_blocking
        self._epochs: dict[str, int] = {}
        self._ends: dict[str, Position] = {}

    def load(self, catalog: MetadataStore, names: TopicNames) -> None:
        """Read the catalog. Remove marks of deleted topics that a crash left. Blocks."""
        for kind in (EPOCH_KIND, TERMINATED_KIND):
            for key, value in catalog.items(kind):
                if key not in names:
                    catalog.delete(kind, key)
                else:
                    self.take(kind, key, value)

    def take(self, kind: str, key: str, value: bytes | None) -> None:
        """Take over a topic's value in the catalog, or its removal."""
        known: dict[str, Any] = self._epochs if kind == EPOCH_KIND else self._ends
        if value is None:
            known.pop(key, None)
        elif kind == EPOCH_KIND:
            # Earlier versions stored any epoch that a client claimed.
            epoch = int(value)
            self._epochs[key] = epoch if epoch < 1 << 63 else CLAIMED_EPOCH_MAX
        else:
            ledger_id, _, entry_id = value.decode().partition(":")
            self._ends[key] = Position(int(ledger_id), int(entry_id))

    def epoch_of(self, name: str) -> int | None:
        """The topic's epoch; None if it never had an exclusive producer."""
        return self._epochs.get(name)

    async def store_epoch(self, name: str, epoch: int) -> None:
        """Store a topic's epoch; durable on return."""
        value = str(epoch).encode()
        await self._writer.put(EPOCH_KIND, name, value, partial(self.take, EPOCH_KIND, name, value))

    async def take_over(self, topic: Topic) -> None:
        """Mark an opening topic as terminated, if it is."""
        end = self._ends.get(topic.name)
        if end is not None:
            await self._run_blocking(topic.ledger.stop_appends)
            topic.terminated_at = end
            topic.producers.is_terminated = True

    async def terminate(self, topic: Topic) -> Position:
        """Terminate a topic after its present entries. Return the last one's position.

        If storing that fails, entries are accepted again. The caller disconnects producers. Raises
        `LedgerError`.
        """
        if topic.terminated_at is not None:
            return topic.terminated_at
        ledger = topic.ledger
        await self._run_blocking(ledger.stop_appends)
        last = ledger.last_position
        end = Position(ledger.end_position.ledger_id, -1) if last is None else last
        stored = str(end).encode()

        def show() -> None:
            self._ends[topic.name] = end
            topic.terminated_at = end
            topic.producers.is_terminated = True

        try:
            await self._writer.put(TERMINATED_KIND, topic.name, stored, show)
        except BaseException:
            if topic.terminated_at is None:
                ledger.allow_appends()
            raise
        return end

    async def end(self, topic: Topic, locks: NameLocks, turns: Turns) -> Position:
        """As `terminate`, under the topic's lock; then close producers and notify consumers."""
        async with locks.held(topic.name):
            topic.check_is_open()
            end = await self.terminate(topic)
            await turns.work(topic.producers.disconnecting())
            from ..subscriptions.subscription import tell_if_ended

            for subscription in tuple(topic.subscriptions.values()):
                tell_if_ended(subscription)
            return end

    async def forget(self, name: str, *others: Change) -> None:
        """Remove the marks of a deleted topic; `others` are written in the same transaction."""

        async def turn() -> None:
            marks = (EPOCH_KIND, name, None), (TERMINATED_KIND, name, None)
            await self._writer.write(*marks, *others)
            self._epochs.pop(name, None)
            self._ends.pop(name, None)

        await self._writer.in_turn(turn)


TOPICS_AT_ONCE = 64
MAX_NAME_CHARACTERS = 60


class LeaderEpochs:
    """Begins the leader epochs of topics, by the policy `leaderEpochs`."""

    def __init__(self, topics: Topics, background: Background, *, leader: str) -> None:
        """`leader` names this broker in its epochs; `background` runs the changes of a policy."""
        self.leader = leader
        self._topics = topics
        self._run_blocking = topics.run_blocking
        self._background = background
        self._beginning = NameLocks()
        topics.policies.listeners.append(self._policy_changed)

    def _policy_changed(self, policy: str, concerns: Concerns) -> None:
        """Begin the epochs that are due now in the topics that a change concerns."""
        if policy.removeprefix("global:") in (EPOCHS.key, KAFKA_POLICY):
            opened = tuple(self._topics.open_topics.values())
            concerned = [topic for topic in opened if concerns(topic.topic_name)]
            self._topics.policies.background.start(self._begin_in(concerned))

    async def _begin_in(self, topics: list[Topic]) -> None:
        for at in range(0, len(topics), TOPICS_AT_ONCE):
            await asyncio.gather(*map(self.try_to_begin, topics[at : at + TOPICS_AT_ONCE]))

    def _has_epochs(self, topic: Topic) -> bool:
        return bool(self._topics.policies.applied(topic.topic_name, EPOCHS))

    def is_due(self, topic: Topic) -> bool:
        """Whether the broker took the topic over, and has to begin an epoch."""
        return topic.ledger.was_taken_over and self._has_epochs(topic)

    async def begin_if_due(self, topic: Topic) -> None:
        """Begin an epoch if the broker took the topic over and has not begun one. Durable.

        Raises `RefusedError` if the control entry cannot be stored; then no epoch has begun.
        """
        if topic.terminated_at is None and self._has_epochs(topic):
            # Run to the end: the next caller must not begin another epoch meanwhile.
            await self._background.run_to_end(self._begin_alone(topic))

    async def _begin_alone(self, topic: Topic) -> None:
        ledger = topic.ledger
        async with self._beginning.held(topic.name):
            while ledger.was_taken_over:
                begin = partial(ledger.begin_epoch, ledger.epoch + 1, leader=self.leader)
                try:
                    begun = await self._run_blocking(begin)
                except StaleEpochError:
                    continue  # a controller began one meanwhile
                except (LedgerError, StampError, OSError, ValueError) as error:
                    raise RefusedError(
                        ServerError.PersistenceError,
                        f"{topic.name}: its leader epoch could not begin: {error}",
                    ) from error
                await durable(begun.commit)

    async def try_to_begin(self, topic: Topic) -> None:
        """As `begin_if_due`, but a failure is logged, and closes the producers that are open.

        When they are opened again, they try again.
        """
        try:
            await self.begin_if_due(topic)
        except RefusedError as refusal:
            log.warning("%s; producers are refused until it has", refusal.message)
            await self._topics.turns.work(topic.producers.disconnecting())


def leader_name(broker_name: str, owner_id: str) -> str:
    """The name of a leader: unique, and for people to recognise."""
    shown = "".join(c for c in broker_name if c.isprintable())[:MAX_NAME_CHARACTERS]
    return f"{shown} {owner_id}".strip()
