"""What has to be done from time to time: one timer for the whole broker.

Every second, or more often where a timeout is shorter: connections that are silent for too long,
cursors whose changes nobody waited for, places of readers that did not come back. Every minute:
rates.
"""

from __future__ import annotations

import asyncio
import logging

from .config import BrokerConfig
from .services import Services

__all__ = ["Housekeeping"]

log = logging.getLogger(__name__)

INTERVAL_MAX_S = 1.0
RATES_INTERVAL_S = 60.0


class Housekeeping:
    """The broker's timer."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._rates_at_s = self._loop.time()
        self._interval_s = min(INTERVAL_MAX_S, _shortest_timeout_s(services.config) / 4)
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._tick)
        now_s = self._loop.time()
        try:
            for session in tuple(self._services.sessions):
                session.check_time(now_s)
            self._look_after_subscriptions(now_s)
            if now_s - self._rates_at_s >= RATES_INTERVAL_S:
                self._update_rates(now_s - self._rates_at_s)
                self._rates_at_s = now_s
        except Exception:
            # The next round comes in any case: one bad connection must not stop the timer.
            log.exception("housekeeping failed")

    def _look_after_subscriptions(self, now_s: float) -> None:
        for topic in tuple(self._services.topics.open_topics.values()):
            for subscription in tuple(topic.subscriptions.values()):
                subscription.cursor.persist()
                if subscription.kept_until is not None and now_s > subscription.kept_until:
                    subscription.kept_until = None
                    subscription.end_if_unused()

    def _update_rates(self, elapsed_s: float) -> None:
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
