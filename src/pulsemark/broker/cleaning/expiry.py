"""Expiry (TTL): messages that were not acknowledged in time count as acknowledged.

The cleaning thread finds the expired messages in the topic's index. The cursors belong to the event
loop, so they are moved there: a few operations for each subscription, in pieces.

A message's age is taken from its broker time, or from its publish time if it has no broker time,
but it is never older than its append. So a producer's clock does not decide when messages expire.

Messages do not expire for subscriptions that read the compacted form: these must get the latest
message of each key, however old it is.
"""

from __future__ import annotations

import asyncio

from ...ledger import Position
from ...ledger.retention import expire_position
from ...ledger.would_block import when_read
from ..storage import durable
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic

__all__ = ["ask_to_expire", "due_position", "expire", "expire_topic"]

SUBSCRIPTIONS_AT_ONCE = 100
#: As in Pulsar: with a smaller backlog the oldest message's age is checked first.
SMALL_BACKLOG = 1_000


def due_position(topic: Topic, now_ms: int, ttl_ms: int) -> Position | None:
    """The last expired entry; None if no subscription has an unacknowledged expired entry.

    Blocks. With a ``ttl_ms`` below 0 everything expires, with 0 nothing. Raises LedgerError,
    OSError.
    """
    if not ttl_ms:
        return None
    ledger = topic.ledger
    if all(s.compacted is not None for s in tuple(topic.subscriptions.values())):
        return None
    if ttl_ms < 0:
        return ledger.last_position
    last = expire_position(ledger, now_ms=now_ms, ttl_ms=ttl_ms)
    first = ledger.first_position
    return last if last is not None and first is not None and last >= first else None


async def expire_topic(topic: Topic, last: Position) -> None:
    """Let everything up to ``last`` expire for all subscriptions. On the event loop."""
    for number, subscription in enumerate(tuple(topic.subscriptions.values())):
        if topic.subscriptions.get(subscription.name) is subscription:
            await expire(subscription, last)
            subscription.cursor.persist()
        if number % SUBSCRIPTIONS_AT_ONCE == SUBSCRIPTIONS_AT_ONCE - 1:
            await asyncio.sleep(0)


async def expire(subscription: Subscription, last: Position) -> int:
    """Let unacknowledged messages up to ``last`` expire, and return how many."""
    if not _may_expire(subscription):
        return 0
    before = await when_read(_acknowledged, subscription)
    if not _may_expire(subscription):
        return 0
    subscription.give_up(last)
    expired = max(await when_read(_acknowledged, subscription) - before, 0)
    if expired:
        subscription.messages_expired += expired
        now_ms = subscription.topic.config.clock.now_ms()
        subscription.last_expired_ms = subscription.last_advanced_ms = now_ms
    return expired


def _may_expire(subscription: Subscription) -> bool:
    return subscription.compacted is None and not subscription.is_fenced


def _acknowledged(subscription: Subscription) -> int:
    """Grows by the messages that are acknowledged, also while others are published."""
    return subscription.log.next_index - subscription.cursor.backlog_messages


async def ask_to_expire(
    subscription: Subscription, last: Position | None, first_time_known: bool
) -> bool:
    """Let messages up to ``last`` expire, durably; False in cases where Pulsar does nothing.

    These are a subscription without backlog, and a small backlog of which nothing has expired, if
    consumers are connected. ``first_time_known``: the oldest message's age was checked, and
    ``last`` is None because that message has not expired.
    """
    backlog = await when_read(lambda: subscription.cursor.backlog_messages)
    reached = last is not None and last > subscription.cursor.mark_delete
    is_left_alone = first_time_known and subscription.consumers and backlog < SMALL_BACKLOG
    if not backlog or (is_left_alone and not reached):
        return False
    if last is not None:
        await expire(subscription, last)
        await durable(subscription.cursor.persist())
    return True
