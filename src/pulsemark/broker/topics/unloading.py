"""Closes topics of this broker for good order, so that another one can serve them.

Clients are disconnected as by an unload: they look the topic up again. What was appended before
gets its receipts, and the cursors are durable before the next owner reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...ledger import LedgerError
from ...wire import TopicName
from ..errors import RefusedError
from ..storage import durable

if TYPE_CHECKING:
    from .registry import Topics
    from .topic import Topic

__all__ = ["unload"]

log = logging.getLogger(__name__)


async def unload(
    topics: Topics, belongs: Callable[[TopicName], bool], *, is_lost: bool = False
) -> int:
    """Close the open topics that belong to it, and return how many there were.

    `Topics.check_owned` must refuse them already. Those that are being opened just now are waited
    for: each holds the lock of its name. `is_lost`: another broker owns them already, so nothing
    can be stored any more.
    """
    count = 0
    for name in dict.fromkeys((*topics.open_topics, *topics.locks.names())):
        if belongs(TopicName.parse(name)):
            async with topics.locks.held(name):
                topic = topics.open_topics.get(name)
                if topic is not None:
                    await _close(topics, topic, is_lost=is_lost)
                    count += 1
    for other in tuple(topics.non_persistent.open_topics.values()):
        if belongs(other.topic_name):
            await topics.turns.work(topics.non_persistent.remove(other.topic_name, force=True))
            count += 1
    return count


async def _close(topics: Topics, topic: Topic, *, is_lost: bool) -> None:
    if not is_lost:
        for subscription in tuple(topic.subscriptions.values()):
            subscription.work.finish()
    notifying = topics.close_topic(topic)
    if not is_lost:
        await _store_cursors(topic)
    await topics.turns.work(notifying)
    await topic.producers.settled()


async def _store_cursors(topic: Topic) -> None:
    """The last of its cursors' commits is after all appends, so these are durable, too."""
    for cursor in tuple(topic.ledger.cursors.values()):
        if cursor.durable:
            try:
                await durable(cursor.persist())
            except (RefusedError, LedgerError) as error:
                log.warning(
                    "%s: a cursor was not stored; acknowledged messages may be delivered again: %s",
                    topic.name,
                    error,
                )
