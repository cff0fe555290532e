"""The statistics of non-persistent topics, as the admin interface shows them.

The names are Pulsar's (`NonPersistentTopicStats`). What is about stored messages is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..subscriptions.non_persistent import NonPersistentSubscription
from ..topics.non_persistent import NonPersistentTopic
from .stats import Pieces, consumer_stats, publisher_stats

__all__ = ["internal_stats", "partitions_stats", "topic_stats"]


def topic_stats(topic: NonPersistentTopic, owner: str) -> Pieces:
    """Make the answer to GET .../stats."""
    counters, rates = topic.counters, topic.rate_meter.rates
    rows: dict[str, Any] = {}
    for subscription in topic.listeners:
        rows[subscription.name] = yield from _subscription(subscription)
    publishers = []
    for producer in tuple(topic.producers.by_name.values()):
        publishers.append(publisher_stats(producer))
        yield
    return {
        "msgRateIn": rates.messages_in,
        "msgThroughputIn": rates.bytes_in,
        "msgRateOut": rates.messages_out,
        "msgThroughputOut": rates.bytes_out,
        "msgInCounter": counters.messages_in,
        "bytesInCounter": counters.bytes_in,
        "msgOutCounter": sum(row["msgOutCounter"] for row in rows.values()),
        "bytesOutCounter": sum(row["bytesOutCounter"] for row in rows.values()),
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        "msgDropRate": topic.drop_meter.rate,
        "msgDropCounter": topic.messages_dropped,
        "storageSize": 0,
        "backlogSize": 0,
        "publishers": publishers,
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": rows,
        "topicEpoch": topic.producers.topic_epoch,
        "ownerBroker": owner,
    }


def _subscription(subscription: NonPersistentSubscription) -> Pieces:
    consumers = []
    for consumer in tuple(subscription.consumers):
        consumers.append(consumer_stats(subscription, consumer))
        yield
    return {
        "type": subscription.type_name,
        "isDurable": subscription.durable,
        "msgBacklog": 0,
        "msgOutCounter": subscription.messages_out,
        "bytesOutCounter": subscription.bytes_out,
        "msgDropRate": subscription.drop_meter.rate,
        "msgDropCounter": subscription.messages_dropped,
        "unackedMessages": 0,
        "consumers": consumers,
        "subscriptionProperties": subscription.properties,
    }


def partitions_stats(
    topics: Sequence[NonPersistentTopic], count: int, owner: str, *, shows_each: bool
) -> Pieces:
    """Make the answer to GET .../partitioned-stats: sums over the partitions in use."""
    rows: dict[str, Any] = {}
    for topic in topics:
        rows[topic.name] = yield from topic_stats(topic, owner)
    sums = {
        name: sum(row[name] for row in rows.values())
        for name in (
            "msgRateIn",
            "msgThroughputIn",
            "msgRateOut",
            "msgThroughputOut",
            "msgInCounter",
            "bytesInCounter",
            "msgOutCounter",
            "bytesOutCounter",
            "msgDropRate",
            "msgDropCounter",
        )
    }
    return {
        **sums,
        "storageSize": 0,
        "metadata": {"partitions": count, "deleted": False},
        "partitions": rows if shows_each else {},
    }


def internal_stats(topic: NonPersistentTopic) -> dict[str, Any]:
    """Make the answer to GET .../internalStats."""
    return {
        "entriesAddedCounter": 0,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": {
            one.name: {
                "active": bool(one.consumers),
                "totalNonContiguousDeletedMessagesRange": 0,
                "waitingReadOp": False,
            }
            for one in topic.listeners
        },
    }
