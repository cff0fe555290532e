"""The figures of topics and subscriptions on the metrics page: names, meanings, where they are."""

from __future__ import annotations

from collections.abc import Callable

from ..policies.backlog_quotas import BACKLOG_QUOTAS, MESSAGE_AGE, STORAGE
from ..policies.levels import Policies
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic

__all__ = [
    "COMPACTION_FIGURES",
    "COUNTS",
    "OF_TOPICS_ONLY",
    "SUBSCRIPTION_FIGURES",
    "TOPIC_FIGURES",
    "compaction_figures",
    "quota_figures",
    "subscription_figures",
]


def _average_size(topic: Topic) -> float:
    rates = topic.rate_meter.rates
    return rates.bytes_in / rates.messages_in if rates.messages_in else 0.0


def quota_figures(topic: Topic, policies: Policies) -> dict[str, float]:
    """The limits of the topic's backlog quotas; -1 without one."""
    quotas = policies.applied(topic.topic_name, BACKLOG_QUOTAS)
    size, age = quotas.get(STORAGE), quotas.get(MESSAGE_AGE)
    return {
        "pulsar_storage_backlog_quota_limit": -1 if size is None else size["limitSize"],
        "pulsar_storage_backlog_quota_limit_time": -1 if age is None else age["limitTime"],
    }


COMPACTION_FIGURES = (
    ("pulsar_compaction_removed_event_count", "Messages left out"),
    ("pulsar_compaction_succeed_count", "Compactions that succeeded"),
    ("pulsar_compaction_failed_count", "Compactions that failed"),
    (
        "pulsar_compaction_duration_time_in_mills",
        "Milliseconds that the last compaction took",
    ),
    ("pulsar_compaction_read_throughput", "Bytes per second that the last compaction read"),
    ("pulsar_compaction_write_throughput", "Bytes per second that the last compaction wrote"),
    (
        "pulsar_compaction_compacted_entries_count",
        "Entries of the view that the last compaction made",
    ),
    (
        "pulsar_compaction_compacted_entries_size",
        "Bytes of the view that the last compaction made",
    ),
)


def compaction_figures(topic: Topic) -> tuple[float, ...] | None:
    """A topic's figures, in the order of COMPACTION_FIGURES.

    None if no compaction has begun since the topic was opened. As in Pulsar, such a topic has none
    of these metrics.
    """
    figures = topic.cleaning.compaction
    if figures.stop is None and not (figures.succeeded or figures.failed):
        return None
    return (
        figures.removed_events,
        figures.succeeded,
        figures.failed,
        figures.last_duration_ms,
        figures.read_bytes_per_s,
        figures.written_bytes_per_s,
        figures.view_entries,
        figures.view_size_bytes,
    )


#: Shown as zero for the cluster while there is no topic, since readiness checks need them.
COUNTS = ("pulsar_producers_count", "pulsar_consumers_count", "pulsar_subscriptions_count")

#: Not shown for a namespace: their sum means nothing.
OF_TOPICS_ONLY = (
    "pulsar_average_msg_size",
    "pulsar_storage_backlog_age_seconds",
    "pulsar_storage_backlog_quota_limit",
    "pulsar_storage_backlog_quota_limit_time",
)

#: Figures of what this broker does not do; they are zero in a Pulsar that does not do it, too.
ALWAYS_ZERO = (
    ("pulsar_subscription_delayed_message_index_size_bytes", "Bytes of an index of delays"),
    ("pulsar_subscription_filter_processed_msg_count", "Messages that filters looked at"),
    ("pulsar_subscription_filter_accepted_msg_count", "Messages that filters let through"),
    ("pulsar_subscription_filter_rejected_msg_count", "Messages that filters took away"),
    ("pulsar_subscription_filter_rescheduled_msg_count", "Messages that filters put off"),
)
NOTHING = (0,) * len(ALWAYS_ZERO)
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
    ("pulsar_subscription_msg_rate_out", "Messages per second sent to consumers"),
    ("pulsar_subscription_msg_throughput_out", "Bytes per second sent to consumers"),
    ("pulsar_subscription_msg_drop_rate", "Messages per second that no consumer could take"),
    *ALWAYS_ZERO,
)


def _drop_rate(subscription: Subscription) -> float:
    if isinstance(subscription, NonPersistentSubscription):
        return subscription.drop_meter.rate
    return 0.0


def subscription_figures(subscription: Subscription) -> tuple[float, ...]:
    """A subscription's figures, in the order of SUBSCRIPTION_FIGURES."""
    consumers = subscription.consumers
    flow = subscription.topic.flows.of(subscription)
    in_memory = isinstance(subscription, NonPersistentSubscription)
    waiting = subscription.backlog_entries
    return (
        subscription.messages_out,
        subscription.bytes_out,
        waiting,
        subscription.messages_expired,
        waiting,
        len(consumers),
        sum(consumer.unacked_messages for consumer in consumers),
        int(any(subscription.is_blocked(consumer) for consumer in consumers)),
        0 if in_memory else subscription.last_flow_ms,
        max((consumer.last_acked_ms for consumer in consumers), default=0),
        subscription.last_expired_ms,
        flow.messages_per_s,
        flow.bytes_per_s,
        _drop_rate(subscription),
        *NOTHING,
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
    ("pulsar_storage_size", "Bytes of the topic's entries", None),
    ("pulsar_storage_logical_size", "The same: there is one copy of them", None),
    ("pulsar_msg_backlog", "Messages not acknowledged, over all subscriptions", None),
    (
        "pulsar_storage_backlog_size",
        "Bytes of entries that the slowest subscription waits for",
        None,
    ),
    ("pulsar_storage_backlog_quota_limit", "The quota's bytes; -1: none", None),
    ("pulsar_storage_backlog_quota_limit_time", "The quota's seconds; -1: none", None),
    ("pulsar_storage_backlog_age_seconds", "Not measured: -1", lambda _: -1),
    ("pulsar_storage_offloaded_size", "Nothing is offloaded", lambda _: 0),
    (
        "pulsar_storage_write_rate",
        "Entries per second written",
        lambda t: t.rate_meter.rates.entries_in,
    ),
    (
        "pulsar_storage_read_rate",
        "Entries per second sent to consumers",
        lambda t: t.rate_meter.rates.entries_out,
    ),
    ("pulsar_delayed_message_index_size_bytes", "Bytes of an index of delays: 0", lambda _: 0),
    *(
        (f"pulsar_txn_tb_{state}_total", "There are no transactions", lambda _: 0)
        for state in ("active", "committed", "aborted")
    ),
    ("pulsar_average_msg_size", "Bytes of a message, lately", _average_size),
    ("pulsar_in_messages_total", "Messages taken from producers", lambda t: t.counters.messages_in),
    ("pulsar_in_bytes_total", "Bytes taken from producers", lambda t: t.counters.bytes_in),
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
