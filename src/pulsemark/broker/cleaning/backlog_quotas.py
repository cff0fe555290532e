"""Backlog quotas: which of a topic's quotas are exceeded, and what is done then.

A backlog is the entries after the slowest durable subscription's position; its age is that of the
first of them, by append time. Above a quota with `producer_request_hold` or `producer_exception`
the topic's producers are closed, and none can be opened until there is room. With
`consumer_backlog_eviction` the slowest subscriptions are moved on: until nine tenths of the size
are left, or past all entries that are too old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, Position
from ...ledger.retention import expire_position, size_bytes, size_cut
from ...ledger.would_block import when_read
from ...records import record
from ..cooperative import Background
from ..policies.pulsar_policies import BACKLOG_QUOTAS, EVICT, MESSAGE_AGE, STORAGE

if TYPE_CHECKING:
    from ..topics.policy_store import Concerns
    from ..topics.registry import Topics
    from ..topics.topic import Topic

log = logging.getLogger(__name__)

#: The part of a size quota that an eviction leaves (Pulsar's reduction factor).
LEFT_NUMERATOR, LEFT_DENOMINATOR = 9, 10


@record(frozen=True)
class Excess:
    """A quota that is exceeded."""

    kind: str
    policy: str
    #: An eviction acknowledges everything up to this entry; None: nothing.
    evicts_to: Position | None

    @property
    def refuses_producers(self) -> bool:
        """Whether producers are closed and refused."""
        return self.policy != EVICT


def excess_of(topic: Topic, quotas: Mapping[str, Any], now_ms: int) -> list[Excess]:
    """The quotas that a topic exceeds. Blocks. Raises LedgerError, OSError."""
    marks = [s.cursor.mark_delete for s in tuple(topic.subscriptions.values()) if s.durable]
    ledger = topic.ledger
    if not marks or ledger.first_position is None:
        return []
    slowest = min(marks)
    found = []
    size = quotas.get(STORAGE)
    if size is not None and size["limitSize"] > 0:
        limit = size["limitSize"]
        if size_bytes(ledger, ledger.next_position(slowest)) >= limit:
            cut = size_cut(ledger, limit * LEFT_NUMERATOR // LEFT_DENOMINATOR)
            found.append(Excess(STORAGE, size["policy"], ledger.previous_position(cut)))
    age = quotas.get(MESSAGE_AGE)
    if age is not None and age["limitTime"] > 0:
        last = expire_position(ledger, now_ms=now_ms, ttl_ms=age["limitTime"] * 1000)
        if last is not None and last > slowest:
            found.append(Excess(MESSAGE_AGE, age["policy"], last))
    return found


class BacklogQuotas:
    """Checks the quotas of all open topics, when a quota changes and on request."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._config = topics.config
        self._run_blocking = topics.run_blocking
        self._background = Background()
        topics.policies.listeners.append(self._policy_changed)

    async def close(self) -> None:
        """Return when no check runs."""
        await self._background.settled()

    def _policy_changed(self, policy: str, concerns: Concerns) -> None:
        key = BACKLOG_QUOTAS.key
        if policy in (key, f"global:{key}") and self._config.backlog_quota_check_enabled:
            self._background.start(self.check_all(concerns))

    async def check_all(self, concerns: Concerns = lambda name: True) -> None:
        """Check the open topics, one after another."""
        if not self._topics.policies.is_used(BACKLOG_QUOTAS):
            return
        for topic in tuple(self._topics.open_topics.values()):
            if concerns(topic.topic_name) and topic.is_open:
                try:
                    await self.check(topic)
                except (LedgerError, OSError) as error:
                    log.warning("%s: its backlog was not checked: %s", topic.name, error)

    async def check(self, topic: Topic) -> None:
        """Check one topic's quotas. Raises LedgerError, OSError."""
        found = await self._exceeded(topic)
        topic.has_full_backlog = any(excess.refuses_producers for excess in found)
        for excess in found:
            if excess.refuses_producers:
                topic.producers.disconnect_those(lambda producer: producer.mirror is None)
            elif excess.evicts_to is not None:
                await self._evict(topic, excess.evicts_to)

    async def refusing(self, topic: Topic) -> Excess | None:
        """The quota for which a topic refuses producers; None: it takes them. Raises as `check`."""
        if not self._config.backlog_quota_check_enabled:
            return None
        found = await self._exceeded(topic)
        return next((excess for excess in found if excess.refuses_producers), None)

    async def _exceeded(self, topic: Topic) -> list[Excess]:
        quotas = self._topics.policies.applied(topic.topic_name, BACKLOG_QUOTAS)
        if not quotas:
            return []
        now_ms = self._config.clock.now_ms()
        found: list[Excess] = await self._run_blocking(excess_of, topic, quotas, now_ms)
        return found

    async def _evict(self, topic: Topic, last: Position) -> None:
        for subscription in tuple(topic.subscriptions.values()):
            if subscription.durable and subscription.exists:
                if subscription.cursor.mark_delete < last and not subscription.is_fenced:
                    await when_read(subscription.give_up, last)
                    subscription.cursor.persist()
                await asyncio.sleep(0)
