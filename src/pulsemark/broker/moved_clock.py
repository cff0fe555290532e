"""What a broker does when a test has moved its clock: everything that is then due, at once.

Without it the broker would notice by itself, when the next of its rounds begins: after a second for
delayed messages, after minutes for retention.
"""

from __future__ import annotations

import asyncio

from .handlers.authenticating import check_credentials
from .services import Services
from .subscriptions.shared_dispatcher import SharedDispatcher
from .topics.topic import Topic

__all__ = ["before_clock_moves", "clock_moved"]


async def before_clock_moves(services: Services) -> None:
    """Note what is unused now, since a topic is deleted a time after that."""
    await services.lifetimes.check_topics()
    await services.lifetimes.check_subscriptions()


async def clock_moved(services: Services) -> None:
    """Do what is due, and return when it is done.

    Delayed messages are delivered; messages expire; retention trims; topics that need it are
    compacted; backlog quotas are checked; unused topics and subscriptions are deleted; snapshots of
    deduplication are stored; clients whose credentials have expired are asked for new ones.
    """
    now_s = asyncio.get_running_loop().time()
    for session in tuple(services.sessions):
        if session.credentials is not None:
            session.credentials.next_check_s = now_s
        check_credentials(session, now_s)
    for topic in tuple(services.topics.open_topics.values()):
        _deliver_due(topic)
    await services.cleaning.clean_now()
    await services.lifetimes.backlogs.check_all()
    await services.lifetimes.check_topics()
    await services.lifetimes.check_subscriptions()
    await services.lifetimes.store_snapshots()


def _deliver_due(topic: Topic) -> None:
    for subscription in tuple(topic.subscriptions.values()):
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, SharedDispatcher):
            dispatcher.delayed.check_now()
