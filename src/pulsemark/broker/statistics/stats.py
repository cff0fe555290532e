"""A topic's statistics, as the admin interface shows them.

Names and order are Pulsar's (`TopicStats`, `SubscriptionStats`, `ConsumerStats`, `PublisherStats`),
and every field is there. Figures of what this broker does not do or measure are zero, as they are
in a Pulsar that does not do it; docs/compatibility.md lists them.

A topic can have thousands of subscriptions and consumers, so its figures are taken in pieces
(`cooperative`). Each row is taken at one moment, and sums are the sums of the rows. A subscription
or consumer that is removed meanwhile may be missing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ...ledger import Position, Run
from ...ledger.being_read import in_pieces
from ...ledger.rows import DamagedRecordError
from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMode, ProducerAccessMode
from ..configuration.config import BrokerConfig
from ..counters import CompactionFigures, Rates
from ..subscriptions.consumer import Consumer
from ..subscriptions.key_shared_dispatcher import KeySharedDispatcher
from ..subscriptions.replicated import is_replicated
from ..subscriptions.subscription import Subscription
from ..topics.producer import Producer
from ..topics.topic import Topic
from .waiting_figures import (
    draining_figures,
    draining_hashes,
    draining_sums,
    range_figures,
    waiting_figures,
)
from .zero_figures import NO_RANGES, NOT_DRAINING, NOT_FILTERED, NOT_OFFLOADED, NOT_THROTTLED

__all__ = [
    "EVERYTHING",
    "Pieces",
    "StatsOptions",
    "bytes_from",
    "compaction_stats",
    "consumer_stats",
    "iso_time",
    "publisher_stats",
    "rates_of",
    "segment_size_bytes",
    "storage_size_bytes",
    "topic_stats",
]

Pieces = Generator[object, None, dict[str, Any]]
"""A generator that makes a JSON object in pieces, and returns it."""


_EPOCH = datetime.fromtimestamp(0, UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: a clock that is set outside of them is shown as the nearest of these."""


def iso_time(time_ms: int) -> str:
    """A time as Pulsar writes it: UTC, to the millisecond, without zeros at the end."""
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, _FIRST_MS), _LAST_MS))
    text = moment.isoformat(timespec="milliseconds").replace("+00:00", "")
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}Z"


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """What a client wants to know, and the time of each subscription's first waiting entry."""

    publishers: bool = True
    consumers: bool = True
    #: Figures that only this broker has.
    own: bool = False
    #: The address of the broker.
    owner: str = "localhost"
    #: By subscription: the milliseconds at which its first waiting entry was published.
    earliest_ms: Mapping[str, int] = field(default_factory=dict)


EVERYTHING = StatsOptions()
RANGES_AT_ONCE = 500


def topic_stats(topic: Topic, wanted: StatsOptions = EVERYTHING) -> Pieces:
    """Make the answer to GET .../stats."""
    counters, rates = topic.counters, topic.rate_meter.rates
    rows: dict[str, Any] = {}
    removed_bytes, removed_messages = _sent_by_removed(topic)
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists and subscription.kept is None:
            rows[subscription.name] = yield from _subscription(subscription, wanted)
    durable = [row for row in rows.values() if row["isDurable"]]
    storage_bytes = yield from storage_size_bytes(topic)
    size_bytes = rates.bytes_in / rates.messages_in if rates.messages_in else 0.0
    return {
        **rates_of(rates),
        "bytesInCounter": counters.bytes_in,
        "msgInCounter": counters.messages_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": removed_bytes + sum(row["bytesOutCounter"] for row in rows.values()),
        "msgOutCounter": removed_messages + sum(row["msgOutCounter"] for row in rows.values()),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": size_bytes,
        "msgChunkPublished": False,
        "storageSize": storage_bytes,
        "backlogSize": max((row["backlogSize"] for row in durable), default=0),
        "backlogQuotaLimitSize": topic.rules.backlog_limit_bytes,
        "backlogQuotaLimitTime": topic.rules.backlog_limit_s,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": min(
            (ms for row in durable if (ms := row["earliestMsgPublishTimeInBacklog"]) > 0),
            default=0,
        ),
        **NOT_OFFLOADED,
        "publishers": (yield from _publishers(topic, wanted)) if wanted.publishers else [],
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": rows,
        "replication": {},
        "deduplicationStatus": "Disabled" if topic.deduplication is None else "Enabled",
        **_state_of(topic, wanted.owner, durable),
        **(_own_figures(topic) if wanted.own else {}),
    }


def _sent_by_removed(topic: Topic) -> tuple[int, int]:
    """Bytes and messages of removed subscriptions; to Pulsar a reader that seeks is removed."""
    counters = topic.counters
    size_bytes, messages = counters.removed_bytes_out, counters.removed_messages_out
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.kept is not None:
            size_bytes += subscription.bytes_out
            messages += subscription.messages_out
    return size_bytes, messages


def rates_of(rates: Rates) -> dict[str, float]:
    """A topic's rates."""
    return {
        "msgRateIn": rates.messages_in,
        "msgThroughputIn": rates.bytes_in,
        "msgRateOut": rates.messages_out,
        "msgThroughputOut": rates.bytes_out,
    }


def _state_of(topic: Topic, owner: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    epoch = topic.producers.topic_epoch
    return {
        **({} if epoch is None else {"topicEpoch": epoch}),
        **{name: sum(row[name] for row in rows) for name in NO_RANGES},
        "compaction": compaction_stats(topic.cleaning.compaction),
        "ownerBroker": owner,
    }


def _own_figures(topic: Topic) -> dict[str, Any]:
    return {
        "cleaning": {
            "entriesRemoved": topic.cleaning.entries_removed,
            "messagesRemoved": topic.cleaning.messages_removed,
            "bytesRemoved": topic.cleaning.bytes_removed,
            "lastRemovedTimestamp": topic.cleaning.last_removed_ms,
        },
        "durability": durability(topic.config),
    }


def compaction_stats(figures: CompactionFigures) -> dict[str, Any]:
    """What is known of the last compaction."""
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


def storage_size_bytes(topic: Topic) -> Generator[object, None, int]:
    """Bytes of the topic's durable entries, without what the engine stores with each."""
    size_bytes = 0
    for segment in topic.ledger.segments():
        size_bytes += yield from in_pieces(segment_size_bytes, segment)
        yield None
    return size_bytes


def segment_size_bytes(segment: Run) -> int:
    """Bytes of a segment's durable entries, from its index, without removed entries."""
    cut, count = segment.cut_rows, segment.entry_count
    if count <= cut or segment.removed:
        return 0
    return _bytes_of_rows(segment, cut, count)


def _publishers(
    topic: Topic, wanted: StatsOptions
) -> Generator[object, None, list[dict[str, Any]]]:
    rows = []
    for producer in tuple(topic.producers.by_name.values()):
        rows.append(publisher_stats(topic, producer, wanted))
        yield None
    return rows


def publisher_stats(topic: Topic, producer: Producer, wanted: StatsOptions) -> dict[str, Any]:
    """A producer's row."""
    flow = topic.flows.of(producer)
    counters = {"msgInCounter": producer.messages_in, "bytesInCounter": producer.bytes_in}
    return {
        "accessMode": ProducerAccessMode.Name(producer.access_mode),
        "msgRateIn": flow.messages_per_s,
        "msgThroughputIn": flow.bytes_per_s,
        "averageMsgSize": flow.bytes_per_s / flow.messages_per_s if flow.messages_per_s else 0.0,
        "chunkedMessageRate": 0.0,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": producer.connection.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "clientVersion": producer.connection.client_version,
        "metadata": producer.properties,
        **(counters if wanted.own else {}),
    }


def _subscription(subscription: Subscription, wanted: StatsOptions) -> Pieces:
    consumers = yield from _consumers(subscription)
    start = subscription.topic.ledger.next_position(subscription.cursor.mark_delete)
    backlog_bytes = yield from bytes_from(subscription.topic, start)
    backlog = yield from in_pieces(lambda: subscription.backlog_entries)
    own = {"readCompacted": subscription.compacted is not None} if wanted.own else {}
    flow = subscription.topic.flows.of(subscription)
    row = {
        "msgRateOut": flow.messages_per_s,
        "msgThroughputOut": flow.bytes_per_s,
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0.0,
        "msgBacklog": backlog,
        "backlogSize": backlog_bytes,
        "earliestMsgPublishTimeInBacklog": wanted.earliest_ms.get(subscription.name, 0),
        **waiting_figures(subscription.dispatcher, backlog),
        "unackedMessages": sum(row["unackedMessages"] for row in consumers),
        **_type_of(subscription),
        "msgRateExpired": 0.0,
        "totalMsgExpired": subscription.messages_expired,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastConsumedFlowTimestamp": subscription.last_flow_ms,
        **_last_times(consumers),
        "lastMarkDeleteAdvancedTimestamp": subscription.last_advanced_ms,
        "consumers": consumers if wanted.consumers else [],
        **_nature(subscription),
        **draining_sums(consumers),
        **own,
    }
    yield None
    return row


def _consumers(subscription: Subscription) -> Generator[object, None, list[dict[str, Any]]]:
    rows = []
    ranges = yield from _hash_ranges(subscription)
    draining = yield from draining_hashes(subscription.dispatcher)
    for consumer in tuple(subscription.consumers):
        row = consumer_stats(subscription, consumer)
        if ranges is not None:
            row |= draining_figures(consumer, draining)
            row["keyHashRangeArrays"] = ranges.get(consumer, [])
        rows.append(row)
        yield None
    return rows


def _hash_ranges(
    subscription: Subscription,
) -> Generator[object, None, dict[Consumer, list[list[int]]] | None]:
    """Of Key_Shared: the hashes of the keys that each consumer gets."""
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, KeySharedDispatcher):
        return None
    found: dict[Consumer, list[list[int]]] = {}
    for done, (consumer, first, last) in enumerate(dispatcher.hash_ranges(), start=1):
        found.setdefault(consumer, []).append([first, last])
        if done % RANGES_AT_ONCE == 0:
            yield None
    return found


def _last_times(consumers: list[dict[str, Any]]) -> dict[str, int]:
    names = ("lastConsumedTimestamp", "lastAckedTimestamp")
    return {name: max((row[name] for row in consumers), default=0) for name in names}


def _type_of(subscription: Subscription) -> dict[str, Any]:
    """The type, and for types with one active consumer its name."""
    shown: dict[str, Any] = {"type": subscription.type_name}
    active = subscription.active_consumer
    if active is not None:
        shown["activeConsumerName"] = active.name
    return shown


def _nature(subscription: Subscription) -> dict[str, Any]:
    key_shared = subscription.sub_type == CommandSubscribe.Key_Shared
    metas = [consumer.key_shared_meta for consumer in subscription.consumers]
    modes = {meta.keySharedMode for meta in metas}
    mode = {"keySharedMode": "STICKY" if KeySharedMode.STICKY in modes else "AUTO_SPLIT"}
    is_loose = key_shared and any(meta.allowOutOfOrderDelivery for meta in metas)
    return {
        "isDurable": subscription.durable,
        "isReplicated": is_replicated(subscription),
        "allowOutOfOrderDelivery": is_loose,
        **(mode if key_shared else {}),
        "consumersAfterMarkDeletePosition": {},
        **NOT_DRAINING,
        **range_figures(subscription),
        "subscriptionProperties": subscription.properties,
        **NOT_FILTERED,
        **NOT_THROTTLED,
        "durable": subscription.durable,
        "replicated": is_replicated(subscription),
    }


def consumer_stats(subscription: Subscription, consumer: Consumer) -> dict[str, Any]:
    """A consumer's row."""
    flow = subscription.topic.flows.of(consumer)
    return {
        "msgRateOut": flow.messages_per_s,
        "msgThroughputOut": flow.bytes_per_s,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": int(consumer.sendings.messages_per_entry + 0.5),
        "blockedConsumerOnUnackedMsgs": subscription.is_blocked(consumer),
        **NOT_DRAINING,
        "address": consumer.connection.address,
        "connectedSince": iso_time(consumer.connected_since_ms),
        "clientVersion": consumer.connection.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "metadata": consumer.properties,
        "lastAckedTime": iso_time(consumer.last_acked_ms),
        "lastConsumedTime": iso_time(consumer.last_consumed_ms),
    }


def bytes_from(topic: Topic, start: Position) -> Generator[object, None, int]:
    """Bytes of the entries from a position on."""
    size_bytes = 0
    for segment, first, last in topic.ledger.stretches(start):
        size_bytes += yield from in_pieces(_bytes_of_rows, segment, first, last)
        yield None
    return size_bytes


def _bytes_of_rows(segment: Run, first: int, last: int) -> int:
    try:
        end, start = segment.row(last - 1).end_offset, segment.row(first).offset
        overhead_bytes: int = (last - first) * segment.entry_overhead_bytes
        return end - start - overhead_bytes
    except (DamagedRecordError, FileNotFoundError):
        # Entries may be removed while the figures are taken.
        if segment.is_gone(last - 1):
            return 0
        raise
