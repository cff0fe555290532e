"""Tells consumers of a terminated topic that they have read it all (REACHED_END_OF_TOPIC)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...ledger.would_block import in_pieces
from ...wire import commands
from .closing import CLOSED_AT_ONCE

if TYPE_CHECKING:
    from .subscription import Subscription

__all__ = ["tell_if_ended", "telling"]


def tell_if_ended(subscription: Subscription) -> None:
    """Notify the consumers of a subscription without backlog.

    As in Pulsar this happens when the topic is terminated, and then with each FLOW and each
    acknowledgement after which nothing is left. Clients take more than one notice.
    """
    if subscription.topic.terminated_at is not None and not subscription.work:
        subscription.work.add(telling(subscription))


def telling(subscription: Subscription) -> Iterator[object]:
    """Notify the consumers in pieces, if there is no backlog."""
    if subscription.topic.terminated_at is None or subscription.is_fenced:
        return
    if (yield from in_pieces(lambda: subscription.backlog_entries)):
        return
    for number, consumer in enumerate(tuple(subscription.consumers), start=1):
        if consumer.subscription is subscription:
            consumer.connection.write(commands.reached_end_of_topic(consumer.consumer_id))
        if number % CLOSED_AT_ONCE == 0:
            yield None
