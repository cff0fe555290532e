"""Subscriptions that clients want to be replicated to other clusters.

There is only one cluster, so the mark has no effect. It is stored and shown, as Pulsar does with
replication off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage import durable

if TYPE_CHECKING:
    from ...ledger import Commit
    from ...proto.pulsar_api_pb2 import CommandSubscribe
    from .subscription import Subscription

__all__ = ["REPLICATED_PROPERTY", "is_replicated", "mark_if_asked", "mark_replicated"]

#: The cursor property with which Pulsar marks a replicated subscription.
REPLICATED_PROPERTY = "pulsar.replicated.subscription"


def is_replicated(subscription: Subscription) -> bool:
    """Whether a subscription is marked as replicated."""
    return bool(subscription.cursor.properties.get(REPLICATED_PROPERTY))


async def mark_replicated(subscription: Subscription, *, marked: bool) -> None:
    """Mark a durable subscription as replicated, or not; durable on return.

    Raises `RefusedError`, and keeps the old mark, if it cannot be stored.
    """
    before = is_replicated(subscription)
    if marked == before or not subscription.durable:
        return
    try:
        await durable(_store(subscription, marked=marked))
    except BaseException:
        _store(subscription, marked=before)
        raise


def _store(subscription: Subscription, *, marked: bool) -> Commit:
    subscription.cursor.properties[REPLICATED_PROPERTY] = int(marked)
    return subscription.cursor.set_subscription_properties(subscription.properties)


async def mark_if_asked(subscription: Subscription, command: CommandSubscribe) -> None:
    """Mark the subscription that a consumer opens, if the consumer asks for it."""
    if command.replicate_subscription_state:
        await mark_replicated(subscription, marked=True)
