"""Applies policies to open topics: when a topic is opened, and when a policy changes.

A change of a topic's policy is applied in the step that shows it, that of a namespace's policy to
all its open topics, in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, ManagedLedger, Position
from ...proto.pulsar_api_pb2 import ServerError
from ..cooperative import Background
from ..errors import RefusedError
from ..policies.rate_limits import dispatch_limit, publish_limit
from ..policies.topic_rules import RULED, TopicRules, rules_of
from .admission import Admission
from .deduplication import SNAPSHOT_KIND, Deduplication, Snapshot, recovered

if TYPE_CHECKING:
    from ...wire import TopicName
    from .policy_store import Concerns
    from .registry import Topics
    from .topic import Topic

__all__ = ["RuleKeeping"]


class RuleKeeping:
    """The rules of one registry's open topics."""

    def __init__(self, topics: Topics, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._topics = topics
        self._run_blocking = run_blocking
        self._background = Background()
        self._shared: dict[TopicRules, TopicRules] = {}
        self._loop = asyncio.get_running_loop()
        topics.policy_store.listeners.append(self._policy_changed)

    # -- opening and changing -------------------------------------------------------------------

    async def opened(self, topic: Topic) -> None:
        """Apply its rules to a topic that is being opened. Raises `RefusedError`."""
        topic.rules = self._rules(topic.topic_name)
        self._watch(topic.ledger)
        if topic.rules.deduplicates:
            topic.deduplication = await self._recovered(topic)
        self._show(topic)

    async def _recovered(self, topic: Topic) -> Deduplication:
        ledger, now_ms = topic.ledger, self._topics.config.clock.now_ms
        try:
            stored = await self._run_blocking(self._topics.catalog.get, SNAPSHOT_KIND, topic.name)
            found = await self._run_blocking(recovered, ledger, stored, now_ms())
            if stored is None:
                value = found.stored(ledger.topic_id)
                await self._topics.catalog_writer.put(SNAPSHOT_KIND, topic.name, value)
        except (LedgerError, OSError) as error:
            reason = f"{topic.name}: deduplication could not begin: {error}"
            raise RefusedError(ServerError.PersistenceError, reason) from error
        return Deduplication(found, now_ms, topic.name, topic.producers.by_name.__contains__)

    def _rules(self, name: TopicName) -> TopicRules:
        rules = rules_of(self._topics.policies, name)
        if len(self._shared) > 1_000:
            self._shared.clear()
        return self._shared.setdefault(rules, rules)

    def _policy_changed(self, policy: str, concerns: Concerns) -> None:
        if policy.removeprefix("global:") not in RULED:
            return
        concerned = [
            topic
            for topic in tuple(self._topics.open_topics.values())
            if concerns(topic.topic_name)
        ]
        if len(concerned) == 1:
            self._apply(concerned[0])
        elif concerned:
            self._background.start(self._topics.turns.work(self._applying(concerned)))

    def _applying(self, concerned: list[Topic]) -> Iterator[None]:
        for topic in concerned:
            self._apply(topic)
            yield

    def _apply(self, topic: Topic) -> None:
        rules = self._rules(topic.topic_name)
        if rules is topic.rules or not topic.is_open:
            return
        topic.rules = rules
        if rules.deduplicates != (topic.deduplication is not None):
            self._switch(topic)
        self._show(topic)

    def _switch(self, topic: Topic) -> None:
        """Switch deduplication on, from the log's end on as in Pulsar, or off."""
        value = topic.deduplication = None
        if topic.rules.deduplicates:
            snapshot = Snapshot(topic.ledger.end_position, {})
            value = snapshot.stored(topic.ledger.topic_id)
            topic.deduplication = Deduplication(
                snapshot,
                self._topics.config.clock.now_ms,
                topic.name,
                topic.producers.by_name.__contains__,
            )
        # Writes are made in the order in which they begin.
        self._background.start(self._topics.catalog_writer.put(SNAPSHOT_KIND, topic.name, value))

    def _show(self, topic: Topic) -> None:
        """Put a topic's rules in force."""
        rules, clock = topic.rules, self._topics.config.clock
        before = topic.admission
        if before is not None and before.publish_limit is not None:
            before.publish_limit.end()
        limit = publish_limit(dict(rules.publish_rate), clock)
        made = Admission(rules, topic.deduplication, limit, clock)
        topic.admission = made if made.checks_something else None
        topic.dispatch_limit = dispatch_limit(dict(rules.dispatch_rate), clock)
        for subscription in tuple(topic.subscriptions.values()):
            subscription.rules_changed()
        if rules.needs_encryption:
            topic.producers.disconnect_those(lambda producer: not producer.is_encrypted)

    # -- snapshots ------------------------------------------------------------------------------

    async def store_snapshot(self, topic: Topic) -> None:
        """Store the producers' highest sequence ids. Raises LedgerError."""
        deduplication, config = topic.deduplication, self._topics.config
        if deduplication is None or not topic.is_open:
            return
        snapshot = deduplication.snapshot(
            config.broker_deduplication_producer_inactivity_timeout_ms,
            config.broker_deduplication_max_number_of_producers,
        )
        value = snapshot.stored(topic.ledger.topic_id)
        await self._topics.catalog_writer.put(SNAPSHOT_KIND, topic.name, value)

    def _watch(self, ledger: ManagedLedger) -> None:
        hooks = ledger.before_removal
        # A topic that is closed and opened again has the same ledger.
        if self._before_removal not in [getattr(hook, "func", None) for hook in hooks]:
            hooks.append(partial(self._before_removal, ledger.name))

    def _before_removal(self, name: str, before: Position) -> None:
        """On a thread that removes entries: a snapshot has what they say."""
        topic = self._topics.open_topics.get(name)
        if topic is not None and topic.deduplication is not None:
            work = self.store_snapshot(topic)
            asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def settled(self) -> None:
        """Return when no change is being applied."""
        await self._background.settled()
