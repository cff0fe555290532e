"""The figures of topics and subscriptions on the metrics page: names, meanings, where they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic

__all__ = ["COUNTS", "SUBSCRIPTION_FIGURES", "TOPIC_FIGURES", "subscription_figures"]


def compaction_figure(field: str, topic: Topic) -> float:
    value: float = getattr(topic.cleaning.compaction, field)
    return value


def _average_size(topic: Topic) -> float:
    rates = topic.rate_meter.rates
    return rates.bytes_in / rates.messages_in if rates.messages_in else 0.0


Figure = tuple[str, str, Callable[[Topic], float]]

COMPACTION_FIGURES: tuple[Figure, ...] = tuple(
    (name, text, partial(compaction_figure, field))
    for name, text, field in (
        ("pulsar_compaction_removed_event_count", "Messages left out", "removed_events"),
        ("pulsar_compaction_succeed_count", "Compactions that succeeded", "succeeded"),
        ("pulsar_compaction_failed_count", "Compactions that failed", "failed"),
        (
            "pulsar_compaction_duration_time_in_mills",
            "Milliseconds that the last compaction took",
            "last_duration_ms",
        ),
        (
            "pulsar_compaction_read_throughput",
            "Bytes per second that the last compaction read",
            "read_bytes_per_s",
        ),
        (
            "pulsar_compaction_write_throughput",
            "Bytes per second that the last compaction wrote",
            "written_bytes_per_s",
        ),
        (
            "pulsar_compaction_compacted_entries_count",
            "Entries of the view that the last compaction made",
            "view_entries",
        ),
        (
            "pulsar_compaction_compacted_entries_size",
            "Bytes of the view that the last compaction made",
            "view_size_bytes",
        ),
    )
)

#: Shown as zero for the cluster while there is no topic, since readiness checks need them.
COUNTS = ("pulsar_producers_count", "pulsar_consumers_count", "pulsar_subscriptions_count")

SUBSCRIPTION_FIGURES = (
    ("pulsar_out_messages_total", "Messages sent to consumers"),
    ("pulsar_out_bytes_total", "Bytes of entries sent to consumers"),
    ("pulsar_subscription_back_log", "Messages not acknowledged yet"),
    ("pulsar_subscription_total_msg_expired", "Messages that expired (TTL) before that"),
    ("pulsar_subscription_back_log_no_delayed", "The same, without delayed messages"),
    ("pulsar_subscription_consumers_count", "Connected consumers"),
    ("pulsar_subscription_unacked_messages", "Messages with consumers, not acknowledged"),
    ("pulsar_subscription_blocked_on_unacked_messages", "1: a consumer holds too many of them"),
    ("pulsar_subscription_last_consumed_flow_timestamp", "When a consumer last gave permits"),
    ("pulsar_subscription_last_acked_timestamp", "When a connected consumer last acknowledged"),
    ("pulsar_subscription_last_expire_timestamp", "When messages last expired"),
)


def subscription_figures(subscription: Subscription) -> tuple[float, ...]:
    """A subscription's figures, in the order of SUBSCRIPTION_FIGURES."""
    consumers = subscription.consumers
    waiting = subscription.cursor.backlog_entries
    return (
        subscription.messages_out,
        subscription.bytes_out,
        waiting,
        subscription.messages_expired,
        waiting,
        len(consumers),
        sum(consumer.unacked_messages for consumer in consumers),
        float(any(subscription.is_blocked(consumer) for consumer in consumers)),
        subscription.last_flow_ms,
        max((consumer.last_acked_ms for consumer in consumers), default=0),
        subscription.last_expired_ms,
    )


#: None: a sum over subscriptions or segments, which is computed in pieces.
TOPIC_FIGURES: tuple[tuple[str, str, Callable[[Topic], float] | None], ...] = (
    ("pulsar_producers_count", "Connected producers", lambda t: len(t.producers.by_name)),
    ("pulsar_consumers_count", "Connected consumers", None),
    ("pulsar_subscriptions_count", "Subscriptions", lambda t: len(t.subscriptions)),
    ("pulsar_rate_in", "Messages per second in", lambda t: t.rate_meter.rates.messages_in),
    ("pulsar_rate_out", "Messages per second out", lambda t: t.rate_meter.rates.messages_out),
    ("pulsar_throughput_in", "Bytes per second in", lambda t: t.rate_meter.rates.bytes_in),
    ("pulsar_throughput_out", "Bytes per second out", lambda t: t.rate_meter.rates.bytes_out),
    ("pulsar_storage_size", "Bytes of the topic's entries on disk", None),
    ("pulsar_storage_logical_size", "The same: there is one copy of them", None),
    ("pulsar_msg_backlog", "Messages not acknowledged, over all subscriptions", None),
    ("pulsar_average_msg_size", "Bytes of a message, lately", _average_size),
    ("pulsar_in_messages_total", "Messages taken from producers", lambda t: t.counters.messages_in),
    ("pulsar_in_bytes_total", "Bytes taken from producers", lambda t: t.counters.bytes_in),
    *COMPACTION_FIGURES,
    (
        "pulsemark_cleaning_entries_removed_total",
        "Entries that retention and truncation removed",
        lambda t: t.cleaning.entries_removed,
    ),
    (
        "pulsemark_cleaning_bytes_removed_total",
        "Bytes of entries that retention and truncation removed",
        lambda t: t.cleaning.bytes_removed,
    ),
    ("pulsemark_damaged_entries", "Damaged entries met", lambda t: t.counters.damaged_entries),
    (
        "pulsemark_failed_publishes",
        "Publishes the disk refused",
        lambda t: t.counters.failed_entries,
    ),
)
