"""What has to be done from time to time: one timer for the whole broker.

Every second, or more often where a timeout is shorter: connections that are silent for too long,
cursors whose changes nobody waited for, places of readers that did not come back. Every minute:
rates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .configuration.config import BrokerConfig
from .services import Services
from .subscriptions.subscription import Subscription

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
        self._round: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def close(self) -> None:
        """Stop."""
        self._timer.cancel()
        if self._round is not None:
            self._round.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._tick)
        with _logged(self):
            self._services.cache.cache.evict_old()
        if self._round is None or self._round.done():
            work = self._services.topics.turns.work(self._looking_after(self._loop.time()))
            self._round = self._loop.create_task(work)

    def _looking_after(self, now_s: float) -> Iterator[None]:
        """Connections, then subscriptions, then rates; one of them in a piece."""
        for session in tuple(self._services.sessions):
            # The round goes on in any case: one bad connection must not stop it, and the other
            # topics' places are no less worth keeping.
            with _logged(session):
                session.check_time(now_s)
            yield
        topics = tuple(self._services.topics.open_topics.values())
        for topic in topics:
            for subscription in tuple(topic.subscriptions.values()):
                with _logged(subscription):
                    self._look_after(subscription, now_s)
                yield
        elapsed_s = now_s - self._rates_at_s
        if elapsed_s >= RATES_INTERVAL_S:
            self._rates_at_s = now_s
            for topic in topics:
                with _logged(topic):
                    topic.update_rates(elapsed_s)
                yield

    def _look_after(self, subscription: Subscription, now_s: float) -> None:
        if subscription.topic.subscriptions.get(subscription.name) is not subscription:
            return
        subscription.cursor.persist()
        if subscription.kept_until is not None and now_s > subscription.kept_until:
            subscription.kept_until = None
            subscription.end_if_unused()


@contextmanager
def _logged(what: object) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("%s: housekeeping failed", what)


def _shortest_timeout_s(config: BrokerConfig) -> float:
    shortest_ms = min(
        config.keep_alive_interval_ms,
        config.handshake_timeout_ms,
        config.stalled_frame_timeout_ms,
        config.non_durable_return_timeout_ms,
    )
    return shortest_ms / 1000
