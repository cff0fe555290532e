"""What has to be done from time to time: one timer for the whole broker.

Every second, or more often where a timeout is shorter: connections that are silent for too long,
cursors whose changes nobody waited for, places of readers that did not come back. Every minute:
rates.
"""

from __future__ import annotations

import asyncio
import logging

from .configuration.config import BrokerConfig
from .services import Services
from .subscriptions.subscription import Subscription

__all__ = ["Housekeeping"]

log = logging.getLogger(__name__)

INTERVAL_MAX_S = 1.0
RATES_INTERVAL_S = 60.0
#: Subscriptions that are looked after in one turn of the event loop.
SUBSCRIPTIONS_AT_ONCE = 100


class Housekeeping:
    """The broker's timer."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._rates_at_s = self._loop.time()
        self._interval_s = min(INTERVAL_MAX_S, _shortest_timeout_s(services.config) / 4)
        self._subscriptions: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()
        if self._subscriptions is not None:
            self._subscriptions.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._tick)
        now_s = self._loop.time()
        try:
            for session in tuple(self._services.sessions):
                session.check_time(now_s)
            self._services.cache.cache.evict_old()
            if self._subscriptions is None or self._subscriptions.done():
                work = self._look_after_subscriptions(now_s)
                self._subscriptions = self._loop.create_task(work)
            if now_s - self._rates_at_s >= RATES_INTERVAL_S:
                self._update_rates(now_s - self._rates_at_s)
                self._rates_at_s = now_s
        except Exception:
            # The next round comes in any case: one bad connection must not stop the timer.
            log.exception("housekeeping failed")

    async def _look_after_subscriptions(self, now_s: float) -> None:
        """Persist cursors, end readers' subscriptions; a part of them in each turn of the loop."""
        looked_at = 0
        for topic in tuple(self._services.topics.open_topics.values()):
            for subscription in tuple(topic.subscriptions.values()):
                try:
                    self._look_after(subscription, now_s)
                except Exception:
                    # The other topics' places are no less worth keeping.
                    log.exception("%s: housekeeping failed", subscription)
                looked_at += 1
                if looked_at % SUBSCRIPTIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _look_after(self, subscription: Subscription, now_s: float) -> None:
        if subscription.topic.subscriptions.get(subscription.name) is not subscription:
            return
        subscription.cursor.persist()
        if subscription.kept_until is not None and now_s > subscription.kept_until:
            subscription.kept_until = None
            subscription.end_if_unused()

    def _update_rates(self, elapsed_s: float) -> None:
        self._services.cache.update(elapsed_s)
        for topic in self._services.topics.open_topics.values():
            topic.update_rates(elapsed_s)


def _shortest_timeout_s(config: BrokerConfig) -> float:
    shortest_ms = min(
        config.keep_alive_interval_ms,
        config.handshake_timeout_ms,
        config.stalled_frame_timeout_ms,
        config.non_durable_return_timeout_ms,
    )
    return shortest_ms / 1000
