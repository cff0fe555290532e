"""Rounds over open topics: deletes unused topics and subscriptions, stores due snapshots.

- A topic without producers and subscriptions (or, by its policy, without connected consumers and
  with nothing unacknowledged) is deleted after `maxInactiveDurationSeconds`.
- A durable subscription without consumers is deleted after `subscriptionExpirationTime`.
- A topic with deduplication gets a snapshot of its producers after so many entries, or so long.

Times are the broker's own, and count from the first round in which something was not used: time
before the broker's start does not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError
from ...wire import TopicName
from ..configuration.config import DELETE_MODES
from ..cooperative import Background
from ..errors import RefusedError
from ..ownership import NotOwnedError
from ..policies.pulsar_policies import (
    DEDUPLICATION,
    INACTIVE_TOPICS,
    SNAPSHOT_INTERVAL,
    SUBSCRIPTION_EXPIRATION,
)
from ..storage import durable
from ..topics.deduplication import Deduplication, trim_all
from .backlog_quotas import BacklogQuotas

if TYPE_CHECKING:
    from ..topics.registry import Topics
    from ..topics.topic import Topic

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
#: How often entries are counted for snapshots of deduplication.
ENTRIES_CHECK_S = 1.0
#: Topics that are looked at before other work gets its turn.
TOPICS_AT_ONCE = 200


class Lifetimes:
    """The timers of these rounds."""

    def __init__(self, topics: Topics) -> None:
        self.backlogs = BacklogQuotas(topics)
        self._topics = topics
        self._config = topics.config
        self._loop = asyncio.get_running_loop()
        self._background = Background()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: When each inactive topic became inactive, by the broker's clock.
        self._inactive_since_ms: dict[str, int] = {}

    def start(self) -> None:
        """Begin the rounds."""
        config = self._config
        if config.backlog_quota_check_enabled:
            self._repeat(
                "backlogs", config.backlog_quota_check_interval_ms, self.backlogs.check_all
            )
        self._repeat("topics", config.broker_delete_inactive_topics_frequency_ms, self.check_topics)
        self._repeat(
            "subscriptions", config.subscription_expiry_check_interval_ms, self.check_subscriptions
        )
        frequency_ms = config.broker_deduplication_snapshot_frequency_ms
        self._repeat("snapshots", frequency_ms, self.store_snapshots)
        self._repeat("entries", int(ENTRIES_CHECK_S * 1000), self.store_large_snapshots)

    async def close(self) -> None:
        """Stop, after a running round."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self.backlogs.close()
        await self._background.settled()

    def _repeat(
        self, name: str, interval_ms: int, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        running: list[asyncio.Task[None]] = []

        def due() -> None:
            self._timers[name] = self._loop.call_later(interval_ms / 1000, due)
            if not running or running[0].done():
                running[:] = [self._background.start(work())]

        self._timers[name] = self._loop.call_later(interval_ms / 1000, due)

    # -- topics ---------------------------------------------------------------------------------

    async def check_topics(self) -> None:
        """Delete the topics that have been inactive for long enough."""
        policies = self._topics.policies
        levels = policies[INACTIVE_TOPICS]
        if not (levels.default["deleteWhileInactive"] or policies.is_set(INACTIVE_TOPICS.key)):
            return
        now_ms = self._config.clock.now_ms()
        known, self._inactive_since_ms = self._inactive_since_ms, {}
        for full in self._topics.names.snapshot():
            name = TopicName.parse(full)
            policy = levels.applied(name)
            if not policy["deleteWhileInactive"]:
                continue
            since_ms = known.get(full)
            if await self._is_inactive(name, policy):
                since_ms = now_ms if since_ms is None else since_ms
                self._inactive_since_ms[full] = since_ms
                if now_ms - since_ms >= policy["maxInactiveDurationSeconds"] * 1000:
                    await self._delete(name, policy)
            await asyncio.sleep(0)

    async def _is_inactive(self, name: TopicName, policy: dict[str, Any]) -> bool:
        topics = self._topics
        try:
            topic = topics.open_topics.get(str(name)) or await topics.open(name, create=False)
        except NotOwnedError:
            return False
        except (RefusedError, LedgerError, OSError) as error:
            log.warning("%s: the check for inactivity failed, and the topic stays: %s", name, error)
            return False
        return _is_unused(topic, policy)

    async def _delete(self, name: TopicName, policy: dict[str, Any]) -> None:
        topic = self._topics.open_topics.get(str(name))
        # Nothing is awaited between this check and the closing of the topic.
        if topic is None or not _is_unused(topic, policy):
            return
        from ..topics.topic import TopicInUseError

        try:
            await self._topics.delete(name)
        except (RefusedError, TopicInUseError, LedgerError, OSError) as error:
            log.warning("%s: the inactive topic could not be deleted: %s", name, error)
        else:
            self._inactive_since_ms.pop(str(name), None)
            log.info("%s was deleted, because it was not used", name)

    # -- subscriptions --------------------------------------------------------------------------

    async def check_subscriptions(self) -> None:
        """Delete the durable subscriptions that had no consumer for too long."""
        if not self._topics.policies.is_used(SUBSCRIPTION_EXPIRATION):
            return
        now_ms = self._config.clock.now_ms()
        for topic in tuple(self._topics.open_topics.values()):
            minutes = self._topics.policies.applied(topic.topic_name, SUBSCRIPTION_EXPIRATION)
            if minutes <= 0:
                continue
            for subscription in tuple(topic.subscriptions.values()):
                if subscription.consumers or not (subscription.durable and subscription.exists):
                    continue
                if now_ms - subscription.last_used_ms < minutes * MINUTE_MS:
                    continue
                try:
                    await durable(topic.remove_subscription(subscription))
                except (RefusedError, LedgerError) as error:
                    text = "%s: the expired subscription could not be deleted: %s"
                    log.warning(text, subscription, error)
                else:
                    log.info("%s was deleted, because it was not used", subscription)
            await asyncio.sleep(0)

    # -- snapshots of deduplication -------------------------------------------------------------

    async def store_snapshots(self) -> None:
        """Store the snapshots that are due by their interval."""
        now_ms = self._config.clock.now_ms()
        for topic in tuple(self._topics.open_topics.values()):
            deduplication = topic.deduplication
            if deduplication is None or not deduplication.new_entries():
                continue
            interval_s = self._topics.policies.applied(topic.topic_name, SNAPSHOT_INTERVAL)
            if interval_s > 0 and now_ms - deduplication.snapshot_at_ms >= interval_s * 1000:
                await self._store(topic)

    async def store_large_snapshots(self) -> None:
        """Store snapshots that are due by their entries; limit all names' bytes."""
        if not self._topics.policies.is_used(DEDUPLICATION):
            return
        most = self._config.broker_deduplication_entries_interval
        deduplicating: list[Deduplication] = []
        for number, topic in enumerate(tuple(self._topics.open_topics.values())):
            if topic.deduplication is not None:
                if topic.deduplication.is_large(most):
                    await self._store(topic)
                deduplicating.append(topic.deduplication)
            if number % TOPICS_AT_ONCE == TOPICS_AT_ONCE - 1:
                await asyncio.sleep(0)
        trim_all(deduplicating)

    async def _store(self, topic: Topic) -> None:
        try:
            await self._topics.rule_keeping.store_snapshot(topic)
        except (RefusedError, LedgerError, OSError) as error:
            text = "%s: the deduplication snapshot was not stored; the next round tries again: %s"
            log.warning(text, topic.name, error)


def _is_unused(topic: Topic, policy: dict[str, Any]) -> bool:
    """Whether a topic has no producers, and no subscription that keeps it."""
    if topic.producers.by_name or topic.producers.waiting:
        return False
    subscriptions = tuple(topic.subscriptions.values())
    if any(subscription.consumers for subscription in subscriptions):
        return False
    if policy.get("inactiveTopicDeleteMode") == DELETE_MODES[1]:
        return all(not subscription.cursor.backlog_entries for subscription in subscriptions)
    return not subscriptions
