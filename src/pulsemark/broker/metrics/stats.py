"""A topic's statistics, as the admin interface shows them.

Names and order are Pulsar's (`TopicStats`, `SubscriptionStats`, `ConsumerStats`, `PublisherStats`),
and every field is there. Figures of what this broker does not do or measure are zero, as they are
in a Pulsar that does not do it; docs/compatibility.md lists them.

A topic can have thousands of subscriptions and consumers, so its figures are taken in pieces
(`cooperative`). Each row is taken at one moment, and sums are the sums of the rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any

from ...ledger import Position, Run
from ...ledger.run import DamagedRecordError
from ...ledger.would_block import in_pieces
from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMode, ProducerAccessMode
from ...records import record
from ..configuration.config import BrokerConfig
from ..counters import CompactionFigures, Rates
from ..subscriptions.consumer import Consumer
from ..subscriptions.dispatcher import Dispatcher
from ..subscriptions.key_shared_dispatcher import KeySharedDispatcher
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..subscriptions.subscription import HomeTopic, Subscription, is_replicated, message_counts
from ..topics.non_persistent import NonPersistentTopic
from ..topics.producers import Producer
from ..topics.topic import Topic

#: A generator that makes a JSON object in pieces, and returns it.
Pieces = Generator[object, None, dict[str, Any]]

_EPOCH = datetime.fromtimestamp(0, UTC)
#: The years 1 to 9999: a clock that is set outside of them is shown as the nearest of these.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def iso_time(time_ms: int) -> str:
    """A time as Pulsar writes it: UTC, to the millisecond, without zeros at the end."""
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms, _FIRST_MS), _LAST_MS))
    text = moment.isoformat(timespec="milliseconds").replace("+00:00", "")
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}Z"


@record(frozen=True)
class StatsOptions:
    """A client's choice of figures, and the time of each subscription's first waiting entry."""

    publishers: bool = True
    consumers: bool = True
    #: Figures that only this broker has.
    own: bool = False
    #: The address of the broker.
    owner: str = "localhost"
    #: By subscription: the milliseconds at which its first waiting entry was published.
    earliest_ms: Mapping[str, int] = field(default_factory=dict)


RANGES_AT_ONCE = 500


def topic_stats(topic: Topic, wanted: StatsOptions) -> Pieces:
    """Make the answer to GET .../stats."""
    rates = topic.rate_meter.rates
    rows: dict[str, Any] = {}
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists and subscription.kept is None:
            rows[subscription.name] = yield from _subscription(subscription, wanted)
    durable = [row for row in rows.values() if row["isDurable"]]
    storage_bytes = yield from storage_size_bytes(topic)
    size_bytes = rates.bytes_in / rates.messages_in if rates.messages_in else 0.0
    return {
        **rates_of(rates),
        **_totals(topic, rows, *_sent_by_removed(topic)),
        "averageMsgSize": size_bytes,
        "msgChunkPublished": False,
        "storageSize": storage_bytes,
        "backlogSize": max((row["backlogSize"] for row in durable), default=0),
        "backlogQuotaLimitSize": topic.rules.backlog_limit_bytes,
        "backlogQuotaLimitTime": topic.rules.backlog_limit_s,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": min(
            (ms for row in durable if (ms := row["earliestMsgPublishTimeInBacklog"]) > 0), default=0
        ),
        **NOT_OFFLOADED,
        **transaction_counts(topic),
        "publishers": (yield from _publishers(topic, wanted)) if wanted.publishers else [],
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": rows,
        "replication": {},
        "deduplicationStatus": "Disabled" if topic.deduplication is None else "Enabled",
        **_state_of(topic, wanted.owner, durable),
        **(_own_figures(topic) if wanted.own else {}),
    }


def _totals(
    topic: Topic | NonPersistentTopic,
    rows: Mapping[str, Any],
    removed_bytes: int = 0,
    removed_messages: int = 0,
) -> dict[str, int]:
    """Bytes and messages since the topic was opened; `rows` are its subscriptions."""
    return {
        "bytesInCounter": topic.counters.bytes_in,
        "msgInCounter": topic.counters.messages_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": removed_bytes + sum(row["bytesOutCounter"] for row in rows.values()),
        "msgOutCounter": removed_messages + sum(row["msgOutCounter"] for row in rows.values()),
        "bytesOutInternalCounter": 0,
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
    """The facts about the last compaction."""
    return {
        "lastCompactionRemovedEventCount": figures.last_removed_events,
        "lastCompactionSucceedTimestamp": figures.last_succeeded_ms,
        "lastCompactionFailedTimestamp": figures.last_failed_ms,
        "lastCompactionDurationTimeInMills": figures.last_duration_ms,
    }


def durability(config: BrokerConfig) -> dict[str, Any]:
    """When an entry is on disk. "sync": before its receipt; "interval": a time later."""
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
    return 0 if count <= cut or segment.removed else _bytes_of_rows(segment, cut, count)


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
    row = {
        **_sent(subscription, subscription.topic),
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
        **{name: max((row[name] for row in consumers), default=0) for name in LAST_TIMES},
        "lastMarkDeleteAdvancedTimestamp": subscription.last_advanced_ms,
        "consumers": consumers if wanted.consumers else [],
        **_nature(subscription),
        # Sums over all consumers.
        **{name: sum(row[name] for row in consumers) for name in NOT_DRAINING},
        **own,
    }
    yield None
    return row


def _sent(one: Subscription | Consumer, topic: HomeTopic) -> dict[str, Any]:
    """The figures of messages sent to a subscription or a consumer."""
    flow = topic.flows.of(one)
    return {
        "msgRateOut": flow.messages_per_s,
        "msgThroughputOut": flow.bytes_per_s,
        "bytesOutCounter": one.bytes_out,
        "msgOutCounter": one.messages_out,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "chunkedMessageRate": 0.0,
    }


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
    """The hash ranges of each consumer of a Key_Shared subscription."""
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, KeySharedDispatcher):
        return None
    found: dict[Consumer, list[list[int]]] = {}
    for done, (consumer, first, last) in enumerate(dispatcher.hash_ranges(), start=1):
        found.setdefault(consumer, []).append([first, last])
        if done % RANGES_AT_ONCE == 0:
            yield None
    return found


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
        **dict(zip(NOT_FILTERED, message_counts(subscription.tag_filter), strict=True)),
        **NOT_THROTTLED,
        "durable": subscription.durable,
        "replicated": is_replicated(subscription),
    }


def consumer_stats(subscription: Subscription, consumer: Consumer) -> dict[str, Any]:
    """A consumer's row."""
    return {
        **_sent(consumer, subscription.topic),
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


def bytes_from(topic: HomeTopic, start: Position) -> Generator[object, None, int]:
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


def ongoing_transactions(topic: Topic) -> int:
    """How many open transactions have messages in a topic."""
    known = topic.ledger.transactions
    return 0 if known is None else len(known.open)


def transaction_counts(topic: Topic) -> dict[str, int]:
    """Transactions with messages in a topic, and those that ended since it was opened."""
    return {
        "ongoingTxnCount": ongoing_transactions(topic),
        "abortedTxnCount": topic.counters.aborted_transactions,
        "committedTxnCount": topic.counters.committed_transactions,
    }


#: Figures of what this broker does not do: offloading, replication. Pulsar
#: shows them in every answer, and they are zero in a Pulsar that does not do it either.
NOT_OFFLOADED = {
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
}
LAST_TIMES = ("lastConsumedTimestamp", "lastAckedTimestamp")
NOT_THROTTLED = {
    f"dispatchThrottled{what}EventsBy{who}Limit": 0
    for who in ("Subscription", "Topic", "Broker")
    for what in ("Msg", "Bytes")
}
NOT_FILTERED = {
    f"filter{what}MsgCount": 0 for what in ("Processed", "Accepted", "Rejected", "Rescheduled")
}
NOT_DRAINING = dict.fromkeys(
    ("drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages"), 0
)
NO_RANGES = {
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
}


HASHES_AT_ONCE = 500
#: Ranges that are written out; the rest is left out, as the answer must not grow without limit.
MAX_RANGES = 10_000
#: The memory of Pulsar's index for few delayed messages.
DELAYED_INDEX_BYTES = 384

Draining = dict[Consumer, list[dict[str, int]]]


def waiting_figures(dispatcher: Dispatcher | None, backlog: int) -> dict[str, Any]:
    """The figures of a subscription about entries that were read and wait."""
    delayed = 0 if dispatcher is None else len(dispatcher.delayed)
    return {
        "msgBacklogNoDelayed": backlog - delayed,
        "blockedSubscriptionOnUnackedMsgs": dispatcher is not None and dispatcher.all_blocked,
        "msgDelayed": delayed,
        "msgInReplay": 0 if dispatcher is None else len(dispatcher.waiting),
    }


def draining_hashes(dispatcher: Dispatcher | None) -> Generator[None, None, Draining | None]:
    """The moved hashes (Key_Shared) of which a former consumer still holds entries.

    None: nothing waits for a former consumer.
    """
    if not isinstance(dispatcher, KeySharedDispatcher) or not dispatcher.drains:
        return None
    found: Draining = {}
    for done, (holder, slot, count) in enumerate(dispatcher.draining(), start=1):
        row = {"hash": slot, "unackMsgs": count, "blockedAttempts": 0}
        found.setdefault(holder, []).append(row)
        if done % HASHES_AT_ONCE == 0:
            yield
    return found


def draining_figures(consumer: Consumer, draining: Draining | None) -> dict[str, Any]:
    """A consumer's figures of the hashes that have moved from it."""
    if draining is None:
        return {}
    rows = sorted(draining.get(consumer, ()), key=lambda row: row["hash"])
    return {
        "drainingHashesCount": len(rows),
        "drainingHashesClearedTotal": consumer.sendings.drained_slots,
        "drainingHashesUnackedMessages": sum(row["unackMsgs"] for row in rows),
        "drainingHashes": rows,
    }


def range_figures(subscription: Subscription) -> dict[str, int]:
    """Ranges of acknowledged entries after the mark-delete position, and indexes' sizes."""
    dispatcher = subscription.dispatcher
    is_delayed = dispatcher is not None and len(dispatcher.delayed) > 0
    ranges = subscription.cursor.acked_ranges
    return {
        "nonContiguousDeletedMessagesRanges": ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": _size_of_ranges(subscription),
        "delayedMessageIndexSizeInBytes": DELAYED_INDEX_BYTES if is_delayed else 0,
    }


def _size_of_ranges(subscription: Subscription) -> int:
    """The bytes of the ranges in Pulsar's form: two positions in each."""
    size_bytes = 0
    for ledger_id, first, last in subscription.cursor.acked_runs():
        for entry_id in (first - 1, last):
            size_bytes += 4 + _varint_bytes(ledger_id) + _varint_bytes(entry_id)
    return size_bytes


def _varint_bytes(value: int) -> int:
    return max((value & (1 << 64) - 1).bit_length() + 6, 7) // 7


def ranges_text(subscription: Subscription) -> str:
    """The acknowledged ranges as Pulsar writes them: half-open, (before first..last]."""
    found: list[str] = []
    for ledger_id, first, last in subscription.cursor.acked_runs():
        if len(found) == MAX_RANGES:
            break
        found.append(f"({ledger_id}:{first - 1}..{ledger_id}:{last}]")
    return f"[{','.join(found)}]"


#: The sum of partitions shows the smallest of these that is not zero.
EARLIEST = frozenset({"earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog"})
#: The sum of partitions shows the largest of these: limits.
LARGEST = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime", "averageMsgSize"})
#: Pulsar shows these for a single partition only.
OF_ONE = frozenset(
    {"topicEpoch", "ownerBroker", "durability", "activeConsumerName", "keySharedMode"}
)
#: Pulsar does not add these up.
NOT_ADDED = frozenset({"msgChunkPublished", "blockedSubscriptionOnUnackedMsgs"})
PUBLISHER = ("msgRateIn", "msgThroughputIn", "averageMsgSize", "chunkedMessageRate")
CONSUMER = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "msgRateRedeliver",
    "messageAckRate",
    "availablePermits",
    "unackedMessages",
    "drainingHashesClearedTotal",
)
#: The sum of partitions shows the last partition's value of these.
LAST = (
    "consumerName",
    "blockedConsumerOnUnackedMsgs",
    "drainingHashesCount",
    "drainingHashesUnackedMessages",
    "drainingHashes",
    "keyHashRangeArrays",
)
#: Fields of a single consumer's row that a sum does not have.
OF_A_CLIENT = frozenset({"address", "connectedSince", "clientVersion", "metadata"})


def sum_of_partitions(rows: Sequence[dict[str, Any]]) -> Generator[object, None, dict[str, Any]]:
    """The stats of all partitions together, made in pieces."""
    total: dict[str, Any] = {}
    for row in rows:
        subscriptions = total.get("subscriptions", {})
        for name, one in row["subscriptions"].items():
            subscriptions[name] = _added(subscriptions.get(name, {}), one)
            yield None
        total = _added(total, {**row, "subscriptions": {}})
        total["subscriptions"] = subscriptions
        yield None
    total["oldestBacklogMessageAgeSeconds"] = 0
    total["deduplicationStatus"] = None
    return {name: value for name, value in total.items() if value is not None}


def _added(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    found = dict(total)
    for name, value in row.items():
        if name not in OF_ONE:
            found[name] = _both(name, total.get(name), value)
    return found


def _both(name: str, before: Any, value: Any) -> Any:
    if isinstance(value, list):
        return _clients(name, before or [], value)
    if isinstance(value, dict):
        return dict.fromkeys(value, 0) if name == "compaction" else _added(before or {}, value)
    if isinstance(value, bool):
        return False if name in NOT_ADDED else bool(before) or value
    if isinstance(value, int) and ("Timestamp" in name or "TimeStamp" in name):
        return 0
    if not isinstance(value, int | float) or before is None:
        return value
    if name in EARLIEST:
        return min(filter(None, (before, value)), default=0)
    return max(before, value) if name in LARGEST else before + value


def _clients(name: str, before: list[Any], rows: list[Any]) -> list[Any]:
    """The rows of publishers or consumers with those of one more partition."""
    if name == "publishers":
        return [
            _publisher(before[at] if at < len(before) else {}, rows[at] if at < len(rows) else {})
            for at in range(max(len(before), len(rows)))
        ]
    if name != "consumers":
        return []
    if len(before) != len(rows):
        return [*before, *(_consumer({}, row) for row in rows)]
    return [_consumer(one, row) for one, row in zip(before, rows, strict=True)]


def _publisher(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    sums = {name: total.get(name, 0.0) + row.get(name, 0.0) for name in PUBLISHER}
    return {**sums, "producerId": 0, "supportsPartialProducer": False}


def _consumer(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in row.items():
        if name in CONSUMER:
            found[name] = total.get(name, 0) + value
        elif name in LAST or name in ("lastAckedTime", "lastConsumedTime"):
            found[name] = value if name in LAST else "1970-01-01T00:00:00Z"
        elif name not in OF_A_CLIENT:
            found[name] = 0.0 if isinstance(value, float) else 0
    return found


# Non-persistent topics: Pulsar's `NonPersistentTopicStats` have the names of persistent topics,
# too. What is about stored messages is zero.

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
    **dict.fromkeys(("ongoingTxnCount", "abortedTxnCount", "committedTxnCount"), 0),
}
#: Figures that Pulsar adds up over partitions; the rest of the sum is zero.
SUMMED = (
    *("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "msgDropRate"),
    *("bytesInCounter", "msgInCounter", "systemTopicBytesInCounter"),
    *("bytesOutCounter", "msgOutCounter", "bytesOutInternalCounter"),
)


def non_persistent_stats(topic: NonPersistentTopic, wanted: StatsOptions) -> Pieces:
    """Make the answer to GET .../stats."""
    counters = topic.counters
    rows: dict[str, Any] = {}
    for subscription in topic.listeners:
        rows[subscription.name] = yield from _listener(subscription, wanted)
    publishers = yield from _publishers(topic, wanted)
    epoch = topic.producers.topic_epoch
    dropped = {"msgDropCounter": topic.messages_dropped}
    return {
        **rates_of(topic.rate_meter.rates),
        **_totals(topic, rows),
        "averageMsgSize": counters.bytes_in / counters.messages_in if counters.messages_in else 0.0,
        **NOTHING_STORED,
        "waitingPublishers": len(topic.producers.waiting),
        **({} if epoch is None else {"topicEpoch": epoch}),
        **NO_RANGES,
        "compaction": compaction_stats(CompactionFigures()),
        "ownerBroker": wanted.owner,
        "msgDropRate": topic.drops.messages_per_s,
        "publishers": [{**row, "msgDropRate": 0.0} for row in publishers],
        "subscriptions": rows,
        "replication": {},
        **(dropped if wanted.own else {}),
    }


#: A subscription's figures of waiting and of stored messages.
NOTHING_WAITS = {
    **dict.fromkeys(
        ("msgBacklog", "backlogSize", "earliestMsgPublishTimeInBacklog", "msgBacklogNoDelayed"), 0
    ),
    **dict.fromkeys(("msgDelayed", "msgInReplay", "unackedMessages", "totalMsgExpired"), 0),
    **dict.fromkeys(("lastExpireTimestamp", "lastConsumedFlowTimestamp"), 0),
    **dict.fromkeys((*LAST_TIMES, "lastMarkDeleteAdvancedTimestamp"), 0),
    "msgRateExpired": 0.0,
    **dict.fromkeys(("blockedSubscriptionOnUnackedMsgs", "allowOutOfOrderDelivery"), False),
    **dict.fromkeys(("isDurable", "isReplicated", "durable", "replicated"), False),
}


def _listener(subscription: NonPersistentSubscription, wanted: StatsOptions) -> Pieces:
    consumers = yield from _consumers(subscription)
    dropped = {"msgDropCounter": subscription.messages_dropped}
    return {
        **_sent(subscription, subscription.topic),
        **NOTHING_WAITS,
        "type": subscription.type_name,
        "consumers": consumers,
        "consumersAfterMarkDeletePosition": {},
        **NOT_DRAINING,
        **NO_RANGES,
        "subscriptionProperties": subscription.properties,
        **NOT_FILTERED,
        **NOT_THROTTLED,
        "msgDropRate": subscription.drops.messages_per_s,
        **(dropped if wanted.own else {}),
    }


def non_persistent_partitions_stats(
    topics: Sequence[NonPersistentTopic], count: int, wanted: StatsOptions, *, shows_each: bool
) -> Pieces:
    """Make the answer to GET .../partitioned-stats: sums over the partitions in use."""
    rows: dict[str, Any] = {}
    for topic in topics:
        rows[topic.name] = yield from non_persistent_stats(topic, wanted)
    has_publishers = any(row["publishers"] for row in rows.values())
    return {
        **{name: sum(row[name] for row in rows.values()) for name in SUMMED},
        "averageMsgSize": 0.0,
        **NOTHING_STORED,
        "waitingPublishers": 0,
        **NO_RANGES,
        "compaction": compaction_stats(CompactionFigures()),
        "publishers": [_SUM_OF_PUBLISHERS] if has_publishers else [],
        "subscriptions": {},
        "replication": {},
        "metadata": {"partitions": count, "deleted": False},
        "partitions": rows if shows_each else {},
    }


#: Pulsar shows all publishers of a partitioned topic as one row without a name.
_SUM_OF_PUBLISHERS = {
    **dict.fromkeys(PUBLISHER, 0.0),
    "producerId": 0,
    "supportsPartialProducer": False,
    "msgDropRate": 0.0,
}


#: Figures of ledgers and of cursors that are zero.
LEDGER_ZEROS = (
    "numberOfEntries",
    "totalSize",
    "currentLedgerEntries",
    "currentLedgerSize",
    "waitingCursorsCount",
    "pendingAddEntriesCount",
)
CURSOR_ZEROS = (
    "pendingReadOps",
    "messagesConsumedCounter",
    "cursorLedger",
    "cursorLedgerLastEntry",
    "numberOfEntriesSinceFirstNotAckedMessage",
    "totalNonContiguousDeletedMessagesRange",
)


def non_persistent_internal_stats(topic: NonPersistentTopic) -> dict[str, Any]:
    """Make the answer to GET .../internalStats."""
    cursor = {
        "waitingReadOp": False,
        **dict.fromkeys(CURSOR_ZEROS, 0),
        "active": False,
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
    }
    return {
        "entriesAddedCounter": topic.counters.entry_size_bytes.count,
        **dict.fromkeys(LEDGER_ZEROS, 0),
        "cursors": {one.name: cursor for one in topic.listeners},
    }
