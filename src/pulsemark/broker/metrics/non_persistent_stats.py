"""The statistics of non-persistent topics, as the admin interface shows them.

The names are Pulsar's (`NonPersistentTopicStats`), which have those of persistent topics, too: what
is about stored messages is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..counters import CompactionFigures
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..topics.non_persistent import NonPersistentTopic
from ..topics.producers import Producer
from .stats import (
    EVERYTHING,
    NO_RANGES,
    NOT_DRAINING,
    NOT_FILTERED,
    NOT_OFFLOADED,
    NOT_THROTTLED,
    Pieces,
    StatsOptions,
    compaction_stats,
    consumer_stats,
    publisher_stats,
    rates_of,
)

NOTHING_STORED = {
    "msgChunkPublished": False,
    "storageSize": 0,
    "backlogSize": 0,
    "backlogQuotaLimitSize": 0,
    "backlogQuotaLimitTime": 0,
    "oldestBacklogMessageAgeSeconds": 0,
    "publishRateLimitedTimes": 0,
    "earliestMsgPublishTimeInBacklogs": 0,
    **NOT_OFFLOADED,
}
#: What Pulsar adds up over partitions; the rest of the sum is zero.
SUMMED = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "systemTopicBytesInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "bytesOutInternalCounter",
)


def topic_stats(topic: NonPersistentTopic, wanted: StatsOptions = EVERYTHING) -> Pieces:
    """Make the answer to GET .../stats."""
    counters = topic.counters
    rows: dict[str, Any] = {}
    for subscription in topic.listeners:
        rows[subscription.name] = yield from _subscription(subscription, wanted)
    publishers = []
    for producer in tuple(topic.producers.by_name.values()):
        publishers.append(_publisher(topic, producer, wanted))
        yield None
    epoch = topic.producers.topic_epoch
    dropped = {"msgDropCounter": topic.messages_dropped}
    return {
        **rates_of(topic.rate_meter.rates),
        "bytesInCounter": counters.bytes_in,
        "msgInCounter": counters.messages_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": sum(row["bytesOutCounter"] for row in rows.values()),
        "msgOutCounter": sum(row["msgOutCounter"] for row in rows.values()),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        **NOTHING_STORED,
        "waitingPublishers": len(topic.producers.waiting),
        **({} if epoch is None else {"topicEpoch": epoch}),
        **NO_RANGES,
        "compaction": compaction_stats(CompactionFigures()),
        "ownerBroker": wanted.owner,
        "msgDropRate": topic.drop_meter.rate,
        "publishers": publishers,
        "subscriptions": rows,
        "replication": {},
        **(dropped if wanted.own else {}),
    }


def _publisher(
    topic: NonPersistentTopic, producer: Producer, wanted: StatsOptions
) -> dict[str, Any]:
    return {**publisher_stats(topic, producer, wanted), "msgDropRate": 0.0}


#: The figures of a subscription about what waits in it.
NOTHING_WAITS = {
    **dict.fromkeys(
        ("msgBacklog", "backlogSize", "earliestMsgPublishTimeInBacklog", "msgBacklogNoDelayed"), 0
    ),
    "blockedSubscriptionOnUnackedMsgs": False,
    **dict.fromkeys(("msgDelayed", "msgInReplay", "unackedMessages"), 0),
}


def _subscription(subscription: NonPersistentSubscription, wanted: StatsOptions) -> Pieces:
    consumers = []
    for consumer in tuple(subscription.consumers):
        consumers.append(consumer_stats(subscription, consumer))
        yield None
    dropped = {"msgDropCounter": subscription.messages_dropped}
    flow = subscription.topic.flows.of(subscription)
    return {
        "msgRateOut": flow.messages_per_s,
        "msgThroughputOut": flow.bytes_per_s,
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0.0,
        **NOTHING_WAITS,
        "type": subscription.type_name,
        "msgRateExpired": 0.0,
        "totalMsgExpired": 0,
        "lastExpireTimestamp": 0,
        "lastConsumedFlowTimestamp": 0,
        "lastConsumedTimestamp": 0,
        "lastAckedTimestamp": 0,
        "lastMarkDeleteAdvancedTimestamp": 0,
        "consumers": consumers,
        "isDurable": False,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        **NOT_DRAINING,
        **NO_RANGES,
        "subscriptionProperties": subscription.properties,
        **NOT_FILTERED,
        **NOT_THROTTLED,
        "durable": False,
        "replicated": False,
        "msgDropRate": subscription.drop_meter.rate,
        **(dropped if wanted.own else {}),
    }


def partitions_stats(
    topics: Sequence[NonPersistentTopic], count: int, wanted: StatsOptions, *, shows_each: bool
) -> Pieces:
    """Make the answer to GET .../partitioned-stats: sums over the partitions in use."""
    rows: dict[str, Any] = {}
    for topic in topics:
        rows[topic.name] = yield from topic_stats(topic, wanted)
    return {
        **{name: sum(row[name] for row in rows.values()) for name in SUMMED},
        "averageMsgSize": 0.0,
        **NOTHING_STORED,
        "waitingPublishers": 0,
        **NO_RANGES,
        "compaction": compaction_stats(CompactionFigures()),
        "msgDropRate": sum(row["msgDropRate"] for row in rows.values()),
        "publishers": [_SUM_OF_PUBLISHERS]
        if any(row["publishers"] for row in rows.values())
        else [],
        "subscriptions": {},
        "replication": {},
        "metadata": {"partitions": count, "deleted": False},
        "partitions": rows if shows_each else {},
    }


#: What Pulsar shows of the publishers of a partitioned topic: one row without a name.
_SUM_OF_PUBLISHERS = {
    "msgRateIn": 0.0,
    "msgThroughputIn": 0.0,
    "averageMsgSize": 0.0,
    "chunkedMessageRate": 0.0,
    "producerId": 0,
    "supportsPartialProducer": False,
    "msgDropRate": 0.0,
}


def internal_stats(topic: NonPersistentTopic) -> dict[str, Any]:
    """Make the answer to GET .../internalStats."""
    return {
        "entriesAddedCounter": topic.counters.entry_size_bytes.count,
        **dict.fromkeys(
            (
                "numberOfEntries",
                "totalSize",
                "currentLedgerEntries",
                "currentLedgerSize",
                "waitingCursorsCount",
                "pendingAddEntriesCount",
            ),
            0,
        ),
        "cursors": {
            one.name: {
                "waitingReadOp": False,
                **dict.fromkeys(
                    (
                        "pendingReadOps",
                        "messagesConsumedCounter",
                        "cursorLedger",
                        "cursorLedgerLastEntry",
                        "numberOfEntriesSinceFirstNotAckedMessage",
                        "totalNonContiguousDeletedMessagesRange",
                    ),
                    0,
                ),
                "active": False,
                "subscriptionHavePendingRead": False,
                "subscriptionHavePendingReplayRead": False,
            }
            for one in topic.listeners
        },
    }
