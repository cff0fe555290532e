"""The broker's periodic work, driven by one timer.

Every second, or more often if a timeout is shorter: close connections that are silent for too
long, store cursor changes that no client waits for, and remove the subscriptions of readers that
did not come back after a seek. Every minute: update the rates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .configuration.config import BrokerConfig
from .handlers.authenticating import check_credentials
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
            work = self._services.topics.turns.work(self._checks(self._loop.time()))
            self._round = self._loop.create_task(work)

    def _checks(self, now_s: float) -> Iterator[None]:
        """Check connections, then subscriptions, then update rates; one item in each piece."""
        for session in tuple(self._services.sessions):
            # An error in one connection or subscription must not stop the round: the cursors of
            # all other topics have to be stored, too.
            with _logged(session):
                session.check_time(now_s)
                check_credentials(session, now_s)
            yield
        topics = tuple(self._services.topics.open_topics.values())
        for topic in topics:
            for subscription in tuple(topic.subscriptions.values()):
                with _logged(subscription):
                    self._check_subscription(subscription, now_s)
                yield
        elapsed_s = now_s - self._rates_at_s
        if elapsed_s >= RATES_INTERVAL_S:
            self._rates_at_s = now_s
            in_memory = self._services.topics.non_persistent.open_topics
            for topic in (*topics, *in_memory.values()):
                with _logged(topic):
                    topic.update_rates(elapsed_s)
                yield

    def _check_subscription(self, subscription: Subscription, now_s: float) -> None:
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
        log.exception("%s: periodic check failed; it runs again in the next round", what)


def _shortest_timeout_s(config: BrokerConfig) -> float:
    shortest_ms = min(
        config.keep_alive_interval_ms,
        config.handshake_timeout_ms,
        config.stalled_frame_timeout_ms,
        config.non_durable_return_timeout_ms,
        config.security.authentication_refresh_check_ms,
    )
    return shortest_ms / 1000
