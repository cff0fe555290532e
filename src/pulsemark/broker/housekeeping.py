"""The broker's periodic work, driven by one timer.

Every second, or more often if a timeout is shorter: close connections that are silent for too
long, and store cursor changes that no client waits for. Every minute: update the rates. Topics on
which nothing happens cost nothing in a second: only cursors that have changed are visited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .configuration.config import BrokerConfig
from .errors import RefusedError
from .storage import durable
from .topics.registry import Topics

if TYPE_CHECKING:
    from .connection.session import Session
    from .topics.participants import Participants
    from .topics.transactions import Coordination

log = logging.getLogger(__name__)

INTERVAL_MAX_S = 1.0
RATES_INTERVAL_S = 60.0


class Housekeeping:
    """The broker's timer."""

    def __init__(
        self,
        config: BrokerConfig,
        sessions: Collection[Session],
        topics: Topics,
        transacting: Sequence[Participants | Coordination] = (),
    ) -> None:
        self._sessions = sessions
        self._topics = topics
        self._transacting = transacting
        self._loop = asyncio.get_running_loop()
        self._rates_at_s = self._loop.time()
        self._interval_s = min(INTERVAL_MAX_S, _shortest_timeout_s(config) / 4)
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
            for store in self._topics.store.distinct():
                store.tail_cache.evict_old()
        if self._round is None or self._round.done():
            work = self._topics.turns.work(self._checks(self._loop.time()))
            self._round = self._loop.create_task(work)

    def _checks(self, now_s: float) -> Iterator[None]:
        """Check connections, store cursors, then update rates; one item in each piece."""
        sessions = tuple(self._sessions)
        if sessions:  # the first one has imported it
            from .handlers.authenticating import check_credentials
        for session in sessions:
            # An error in one connection or subscription must not stop the round: the cursors of
            # all other topics have to be stored, too.
            with _logged(session):
                session.check_time(now_s)
                check_credentials(session, now_s)
            yield
        for cursor in self._topics.changed_cursors():
            with _logged(cursor):
                cursor.persist()
            yield
        for one in self._transacting:
            with _logged(one):
                one.check_time(now_s)
            yield
        elapsed_s = now_s - self._rates_at_s
        if elapsed_s >= RATES_INTERVAL_S:
            self._rates_at_s = now_s
            topics = self._topics
            in_memory = topics.non_persistent.open_topics
            for topic in (*topics.open_topics.values(), *in_memory.values()):
                with _logged(topic):
                    topic.update_rates(elapsed_s)
                yield


async def store_cursors(topics: Topics) -> None:
    """At the broker's end: finish the subscriptions' work, and store all cursors that changed."""
    for topic in tuple(topics.open_topics.values()):
        for subscription in tuple(topic.subscriptions.values()):
            with _logged(subscription):
                subscription.work.finish()
    # All of them share a few commits, before the first one is waited for.
    commits = []
    for cursor in topics.changed_cursors():
        with _logged(cursor):
            commits.append((cursor, cursor.persist()))
    for cursor, commit in commits:
        with _logged(cursor):
            await durable(commit)


@contextmanager
def _logged(what: object) -> Iterator[None]:
    try:
        yield
    except RefusedError as refusal:
        log.error("%s could not be stored: %s", what, refusal)
    except Exception:
        log.exception("%s: a periodic check failed; the other checks go on", what)


def _shortest_timeout_s(config: BrokerConfig) -> float:
    shortest_ms = min(
        config.keep_alive_interval_ms,
        config.handshake_timeout_ms,
        config.stalled_frame_timeout_ms,
        config.security.authentication_refresh_check_ms,
    )
    return shortest_ms / 1000
