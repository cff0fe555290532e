"""A topic's statistics, as the admin interface shows them.

Names are Pulsar's (`TopicStats`, `SubscriptionStats`, `ConsumerStats`, `PublisherStats`). Figures
that this broker does not have are left out, not shown as zero.

A topic can have thousands of subscriptions and consumers, so its figures are taken in pieces (see
`long_work`). Each row is taken at one moment, and sums are the sums of the rows. A subscription or
consumer that is removed meanwhile may be missing.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

from ...compaction.view import CompactedView
from ...ledger import Position, Run
from ...ledger.rows import DamagedRecordError
from ...proto.pulsar_api_pb2 import ProducerAccessMode
from ..cleaning.figures import CompactionFigures
from ..configuration.config import BrokerConfig
from ..subscriptions.consumer import Consumer
from ..subscriptions.subscription import Subscription
from ..topics.producers import Producer
from ..topics.topic import Topic

__all__ = [
    "Pieces",
    "consumer_stats",
    "internal_stats",
    "iso_time",
    "publisher_stats",
    "storage_size_bytes",
    "topic_stats",
]

Pieces = Generator[None, None, dict[str, Any]]
"""A generator that makes a JSON object in pieces, and returns it."""


def iso_time(time_ms: int) -> str:
    """A time in the format of Pulsar's interfaces: UTC, with milliseconds."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def topic_stats(topic: Topic) -> Pieces:
    """Make the answer to GET .../stats."""
    counters = topic.counters
    rows: dict[str, Any] = {}
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists:
            rows[subscription.name] = yield from _subscription(subscription)
    storage_bytes = yield from storage_size_bytes(topic)
    return {
        "msgInCounter": counters.messages_in,
        "bytesInCounter": counters.bytes_in,
        "msgOutCounter": sum(row["msgOutCounter"] for row in rows.values()),
        "bytesOutCounter": sum(row["bytesOutCounter"] for row in rows.values()),
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        "storageSize": storage_bytes,
        "backlogSize": sum(row["msgBacklog"] for row in rows.values()),
        "publishers": (yield from _publishers(topic)),
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": rows,
        "compaction": _compaction(topic.cleaning.compaction),
        "cleaning": {
            "entriesRemoved": topic.cleaning.entries_removed,
            "messagesRemoved": topic.cleaning.messages_removed,
            "bytesRemoved": topic.cleaning.bytes_removed,
            "lastRemovedTimestamp": topic.cleaning.last_removed_ms,
        },
        "topicEpoch": topic.producers.topic_epoch,
        "durability": durability(topic.config),
        "ownerBroker": "localhost",
    }


def _compaction(figures: CompactionFigures) -> dict[str, Any]:
    return {
        "lastCompactionRemovedEventCount": figures.last_removed_events,
        "lastCompactionSucceedTimestamp": figures.last_succeeded_ms,
        "lastCompactionFailedTimestamp": figures.last_failed_ms,
        "lastCompactionDurationTimeInMills": figures.last_duration_ms,
    }


def durability(config: BrokerConfig) -> dict[str, Any]:
    """What a receipt means. "sync": the entry is on disk. "interval": it will be after a time."""
    interval_ms = config.store_options.sync_interval_ms
    return {"mode": "interval" if interval_ms else "sync", "syncIntervalMs": interval_ms}


def storage_size_bytes(topic: Topic) -> Generator[None, None, int]:
    """Bytes of the topic's durable entries on disk."""
    size_bytes = 0
    for segment in topic.ledger.segments():
        size_bytes += segment_size_bytes(segment)
        yield
    return size_bytes


def segment_size_bytes(segment: Run) -> int:
    """Bytes of a segment's durable entries, from its index, without removed entries."""
    cut, count = segment.cut_rows, segment.entry_count
    if count <= cut or segment.removed:
        return 0
    try:
        end = segment.row(count - 1).end_offset
        return end - segment.row(cut).offset if cut else end
    except (DamagedRecordError, FileNotFoundError):
        # Entries may be removed while the figures are taken.
        if segment.is_gone(count - 1):
            return 0
        raise


def _compacted_ledger(view: CompactedView | None) -> dict[str, Any]:
    return {
        "ledgerId": -1 if view is None else view.ledger_id,
        "entries": -1 if view is None else view.summary.entry_count,
        "size": -1 if view is None else view.size_bytes,
        "offloaded": False,
        "underReplicated": False,
    }


def internal_stats(topic: Topic, view: CompactedView | None = None) -> Pieces:
    """Make the answer to GET .../internalStats: ledgers, cursors and the compacted view."""
    ledger = topic.ledger
    ledgers: dict[int, dict[str, int]] = {}
    for segment in ledger.segments():
        row = ledgers.setdefault(
            segment.ledger_id, {"ledgerId": segment.ledger_id, "entries": 0, "size": 0}
        )
        row["entries"] += segment.entry_count - segment.cut_rows
        row["size"] += segment_size_bytes(segment)
        yield
    cursors: dict[str, Any] = {}
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists:
            cursors[subscription.name] = _cursor(subscription)
        yield
    return {
        "entriesAddedCounter": topic.counters.entry_size_bytes.count,
        "numberOfEntries": sum(row["entries"] for row in ledgers.values()),
        "totalSize": sum(row["size"] for row in ledgers.values()),
        "firstIndex": ledger.first_index,
        "nextIndex": ledger.next_index,
        "lastConfirmedEntry": _text(ledger.last_position),
        "state": "LedgerOpened" if topic.terminated_at is None else "Terminated",
        "ledgers": list(ledgers.values()),
        "compactedLedger": _compacted_ledger(view),
        "compactionHorizon": _text(None if view is None else view.horizon),
        "cursors": cursors,
    }


def _cursor(subscription: Subscription) -> dict[str, Any]:
    dispatcher = subscription.dispatcher
    return {
        "markDeletePosition": _text(subscription.cursor.mark_delete),
        "readPosition": _text(dispatcher.read_position) if dispatcher else None,
        "messagesBacklog": subscription.cursor.backlog_messages,
        "damagedEntry": _text(subscription.damaged_position),
    }


def _text(position: Position | None) -> str:
    return "-1:-1" if position is None else f"{position.ledger_id}:{position.entry_id}"


def _publishers(topic: Topic) -> Generator[None, None, list[dict[str, Any]]]:
    rows = []
    for producer in tuple(topic.producers.by_name.values()):
        rows.append(publisher_stats(producer))
        yield
    return rows


def publisher_stats(producer: Producer) -> dict[str, Any]:
    """A producer's row."""
    return {
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": ProducerAccessMode.Name(producer.access_mode),
        "address": producer.connection.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "msgInCounter": producer.messages_in,
        "bytesInCounter": producer.bytes_in,
        "metadata": producer.properties,
    }


def _subscription(subscription: Subscription) -> Pieces:
    consumers = []
    for consumer in tuple(subscription.consumers):
        consumers.append(consumer_stats(subscription, consumer))
        yield
    row = {
        "type": subscription.type_name,
        "isDurable": subscription.durable,
        "msgBacklog": subscription.cursor.backlog_messages,
        "msgOutCounter": subscription.messages_out,
        "bytesOutCounter": subscription.bytes_out,
        "unackedMessages": sum(row["unackedMessages"] for row in consumers),
        "consumers": consumers,
        "totalMsgExpired": subscription.messages_expired,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "readCompacted": subscription.reads_compacted,
        "subscriptionProperties": subscription.properties,
    }
    yield
    return row


def consumer_stats(subscription: Subscription, consumer: Consumer) -> dict[str, Any]:
    """A consumer's row."""
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": subscription.is_blocked(consumer),
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "address": consumer.connection.address,
        "connectedSince": iso_time(consumer.connected_since_ms),
        "metadata": consumer.properties,
    }
