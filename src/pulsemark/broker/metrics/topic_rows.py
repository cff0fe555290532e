"""The metrics page's rows: the figures of each topic, or of each namespace.

A row is taken in pieces (`cooperative`), and the figures of one subscription at one moment. With
`exposeTopicLevelMetricsInPrometheus=false` the rows of a namespace are added up and forgotten, so
that the page of ten thousand topics is as long as that of one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TypeAlias, TypeVar

from ...ledger.would_block import in_pieces
from ..configuration.config import BrokerConfig
from ..counters import WRITE_LATENCY_LIMITS_MS
from ..policies.pulsar_policies import BACKLOG_QUOTAS, MESSAGE_AGE, STORAGE
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..subscriptions.subscription import Subscription, message_counts
from ..topics.policy_store import Policies
from ..topics.topic import Topic
from .stats import bytes_from, ongoing_transactions, storage_size_bytes

# The figures of topics and subscriptions on the metrics page: names, meanings, where they are.


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
    ("pulsar_compaction_duration_time_in_mills", "Milliseconds that the last compaction took"),
    ("pulsar_compaction_read_throughput", "Bytes per second that the last compaction read"),
    ("pulsar_compaction_write_throughput", "Bytes per second that the last compaction wrote"),
    (
        "pulsar_compaction_compacted_entries_count",
        "Entries of the view that the last compaction made",
    ),
    ("pulsar_compaction_compacted_entries_size", "Bytes of the view that the last compaction made"),
)


def compaction_figures(topic: Topic) -> tuple[float, ...] | None:
    """A topic's figures in the order of COMPACTION_FIGURES; None: none began since it was opened.

    As in Pulsar, such a topic has none of these metrics.
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


#: Versions of clients' requests; they tell an operator when a newer format is safe.
KAFKA_SETS = (
    "pulsemark_kafka_topic_sets_total",
    "Record sets by version of Produce or Fetch, and whether they were converted",
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

FILTER_FIGURES = (
    ("pulsar_subscription_filter_processed_msg_count", "Messages that filters looked at"),
    ("pulsar_subscription_filter_accepted_msg_count", "Messages that filters let through"),
    ("pulsar_subscription_filter_rejected_msg_count", "Messages that filters took away"),
    ("pulsar_subscription_filter_rescheduled_msg_count", "Messages that filters put off"),
)
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
    ("pulsar_subscription_delayed_message_index_size_bytes", "Bytes of an index of delays: 0"),
    *FILTER_FIGURES,
)


def subscription_figures(subscription: Subscription) -> tuple[float, ...]:
    """A subscription's figures, in the order of SUBSCRIPTION_FIGURES."""
    consumers = subscription.consumers
    flow = subscription.topic.flows.of(subscription)
    drops = subscription.drops if isinstance(subscription, NonPersistentSubscription) else None
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
        0 if drops else subscription.last_flow_ms,
        max((consumer.last_acked_ms for consumer in consumers), default=0),
        subscription.last_expired_ms,
        flow.messages_per_s,
        flow.bytes_per_s,
        drops.messages_per_s if drops else 0.0,
        0,
        *message_counts(None if drops else subscription.tag_filter),
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
    (
        "pulsar_txn_tb_active_total",
        "Open transactions with messages in it",
        lambda t: ongoing_transactions(t) if t.is_persistent else 0,
    ),
    (
        "pulsar_txn_tb_committed_total",
        "Transactions that were committed",
        lambda t: t.counters.committed_transactions,
    ),
    (
        "pulsar_txn_tb_aborted_total",
        "Transactions that were aborted",
        lambda t: t.counters.aborted_transactions,
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


# The metrics of single producers and consumers, where settings ask for them.


#: Labels, and the figures.
ClientRow: TypeAlias = tuple[str, tuple[float, ...]]

#: Figures that subscriptions have under the same name come last.
CONSUMER_FIGURES = (
    ("pulsar_consumer_unacked_messages", "Messages that the consumer has not acknowledged"),
    ("pulsar_consumer_blocked_on_unacked_messages", "1: the consumer holds too many of them"),
    ("pulsar_consumer_msg_rate_out", "Messages per second sent to the consumer"),
    ("pulsar_consumer_msg_throughput_out", "Bytes per second sent to the consumer"),
    ("pulsar_consumer_available_permits", "Messages that the consumer has room for"),
    ("pulsar_consumer_msg_rate_redeliver", "Not measured: 0"),
    ("pulsar_consumer_msg_ack_rate", "Not measured: 0"),
    ("pulsar_out_messages_total", ""),
    ("pulsar_out_bytes_total", ""),
)
PRODUCER_FIGURES = (
    ("pulsar_producer_msg_rate_in", "Messages per second from the producer"),
    ("pulsar_producer_msg_throughput_in", "Bytes per second from the producer"),
    ("pulsar_producer_msg_average_Size", "Bytes of a message of the producer, lately"),
)


def consumer_rows(
    subscription: Subscription, labels: str
) -> Generator[None, None, list[ClientRow]]:
    """The rows of a subscription's consumers; `labels` are those of the subscription."""
    rows: list[ClientRow] = []
    for consumer in tuple(subscription.consumers):
        flow = subscription.topic.flows.of(consumer)
        shown = labels_of(consumer_name=consumer.name, consumer_id=str(consumer.consumer_id))
        figures = (
            consumer.unacked_messages,
            int(subscription.is_blocked(consumer)),
            flow.messages_per_s,
            flow.bytes_per_s,
            consumer.permits,
            0,
            0,
            consumer.messages_out,
            consumer.bytes_out,
        )
        rows.append((f"{labels},{shown}", figures))
        yield
    return rows


def producer_rows(topic: Topic, labels: str) -> Generator[None, None, list[ClientRow]]:
    """The rows of a topic's producers; `labels` are those of the topic."""
    rows: list[ClientRow] = []
    for producer in tuple(topic.producers.by_name.values()):
        flow = topic.flows.of(producer)
        size_bytes = flow.bytes_per_s / flow.messages_per_s if flow.messages_per_s else 0
        shown = labels_of(producer_name=producer.name, producer_id=str(producer.producer_id))
        rows.append((f"{labels},{shown}", (flow.messages_per_s, flow.bytes_per_s, size_bytes)))
        yield
    return rows


# Prometheus' text format: a metric's lines, made in parts.
#
# A page can have a million lines. So labels are made once for all lines of a topic, whole numbers
# and zeros are written as they are, and a part of many lines is made by one expression.


LINES_PER_PART = 256


@dataclass(slots=True)
class Family:
    """A metric with its samples: labels as `labels_of` gives them, joined by commas, and values."""

    name: str
    text: str
    samples: Iterable[tuple[str, float]]

    def parts(self) -> Iterator[str]:
        """The metric's lines, at most `LINES_PER_PART` of them in each part."""
        name, samples = self.name, iter(self.samples)
        yield f"# HELP {name} {self.text}\n# TYPE {name} {_type_of(name)}\n"
        while some := list(islice(samples, LINES_PER_PART)):
            yield "".join(
                [
                    f"{name}{{{labels}}} {+value!r}\n" if value else f"{name}{{{labels}}} 0\n"
                    for labels, value in some
                ]
            )


def _type_of(name: str) -> str:
    is_pulsars = name.startswith("pulsar_")
    return "counter" if name.endswith("_total") and not is_pulsars else "gauge"


def labels_of(**values: str) -> str:
    """Labels with their values."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


T = TypeVar("T", int, float)
#: The counts of a histogram's buckets, and the sum of its values.
Buckets: TypeAlias = tuple[list[int], float]

LATENCY_BUCKETS = [
    *(f"le_{limit:g}".replace(".", "_") for limit in WRITE_LATENCY_LIMITS_MS),
    "overflow",
]
SIZE_BUCKETS = [
    *("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb"),
    "le_overflow",
]
#: Figures of subscriptions that are shown for a namespace, too, as sums.
OF_NAMESPACES = ("pulsar_out_messages_total", "pulsar_out_bytes_total")
#: The columns of consumers' figures that subscriptions have under the same name.
OF_CONSUMERS = {
    name: number for number, (name, _) in enumerate(CONSUMER_FIGURES) if name in OF_NAMESPACES
}
NUMBERS = {name: number for number, (name, _, _) in enumerate(TOPIC_FIGURES)}


@dataclass(slots=True)
class TopicRow:
    """The figures of a topic, or the sums of a namespace's topics."""

    labels: str
    namespace: str
    #: In the order of TOPIC_FIGURES.
    figures: list[float]
    latency: Buckets
    sizes: Buckets
    #: In the order of COMPACTION_FIGURES; None: the topic was not compacted since it was opened.
    compaction: tuple[float, ...] | None = None
    #: As `TopicCounters.kafka_sets`.
    kafka_sets: dict[tuple[str, int, bool], int] = field(default_factory=dict)
    #: The labels of each subscription, and its figures in the order of SUBSCRIPTION_FIGURES.
    subscriptions: list[tuple[str, tuple[float, ...]]] = field(default_factory=list)
    consumers: list[ClientRow] = field(default_factory=list)
    producers: list[ClientRow] = field(default_factory=list)


def row_of(
    topic: Topic, config: BrokerConfig, policies: Policies
) -> Generator[object, None, TopicRow]:
    """The row of an open topic, taken in pieces."""
    namespace = topic.topic_name.namespace
    labels = labels_of(cluster=config.cluster, namespace=namespace, topic=topic.name)
    row = TopicRow(labels, namespace, [], *_histograms_of(topic))
    each_client = config.expose_topic_level_metrics_in_prometheus
    consumers = backlog = 0
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists:
            figures = yield from in_pieces(subscription_figures, subscription)
            shown = f"{labels},{labels_of(subscription=subscription.name)}"
            row.subscriptions.append((shown, figures))
            consumers += len(subscription.consumers)
            backlog += int(figures[2])
            if each_client and config.expose_consumer_level_metrics_in_prometheus:
                row.consumers += yield from consumer_rows(subscription, shown)
        yield None
    if each_client and config.expose_producer_level_metrics_in_prometheus:
        row.producers += yield from producer_rows(topic, labels)
    size_bytes = waiting_bytes = 0
    if topic.is_persistent:
        size_bytes = yield from storage_size_bytes(topic)
        waiting_bytes = yield from _backlog_bytes(topic)
    sums: dict[str, float] = {
        **quota_figures(topic, policies),
        "pulsar_storage_backlog_size": waiting_bytes,
        "pulsar_consumers_count": consumers,
        "pulsar_msg_backlog": backlog,
        "pulsar_storage_size": size_bytes,
        "pulsar_storage_logical_size": size_bytes,
    }
    row.figures = [sums[name] if read is None else read(topic) for name, _, read in TOPIC_FIGURES]
    row.compaction = compaction_figures(topic)
    row.kafka_sets = dict(topic.counters.kafka_sets)
    return row


def _histograms_of(topic: Topic) -> tuple[Buckets, Buckets]:
    latency, sizes = topic.counters.write_latency_ms, topic.counters.entry_size_bytes
    return (list(latency.buckets), latency.total), (list(sizes.buckets), sizes.total)


def _backlog_bytes(topic: Topic) -> Generator[object, None, int]:
    """Bytes from the slowest subscription's position on."""
    places = [one.cursor.mark_delete for one in topic.subscriptions.values() if one.exists]
    if not places:
        return 0
    return (yield from bytes_from(topic, topic.ledger.next_position(min(places))))


@dataclass(slots=True)
class NamespaceRows:
    """The sums of the topics of each namespace."""

    cluster: str
    rows: dict[str, TopicRow] = field(default_factory=dict)

    def add(self, row: TopicRow) -> None:
        """Add a topic's row to that of its namespace."""
        of_subscriptions = _sum_of_subscriptions(row)
        before = self.rows.get(row.namespace)
        if before is None:
            labels = labels_of(cluster=self.cluster, namespace=row.namespace)
            self.rows[row.namespace] = TopicRow(
                labels, row.namespace, row.figures, row.latency, row.sizes,
                kafka_sets=row.kafka_sets, subscriptions=[(labels, of_subscriptions)],
            )  # fmt: skip
            return
        for use, sets in row.kafka_sets.items():
            before.kafka_sets[use] = before.kafka_sets.get(use, 0) + sets
        before.figures = _sums(before.figures, row.figures)
        before.latency = _both(before.latency, row.latency)
        before.sizes = _both(before.sizes, row.sizes)
        ((labels, figures),) = before.subscriptions
        before.subscriptions = [(labels, tuple(_sums(figures, of_subscriptions)))]


def _sum_of_subscriptions(row: TopicRow) -> tuple[float, ...]:
    columns = zip(*(figures for _, figures in row.subscriptions), strict=True)
    return tuple(map(sum, columns)) or (0,) * len(SUBSCRIPTION_FIGURES)


def _both(one: Buckets, other: Buckets) -> Buckets:
    return _sums(one[0], other[0]), one[1] + other[1]


def _sums(one: Iterable[T], other: Iterable[T]) -> list[T]:
    return [a + b for a, b in zip(one, other, strict=True)]


def families_of_rows(
    cluster: str, rows: Sequence[TopicRow], *, of_topics: bool
) -> Iterator[Family]:
    """The metrics of rows of topics, or of namespaces."""
    # Samples are made one by one: a list of them would be more work for the garbage collector.
    for number, (name, text, _) in enumerate(TOPIC_FIGURES):
        if of_topics or name not in OF_TOPICS_ONLY:
            samples: Iterable[tuple[str, float]] = _column(_figures_of(rows), number)
            if not rows and name in COUNTS:
                samples = [(labels_of(cluster=cluster), 0)]
            yield Family(name, text, samples)
    compacted = [(row.labels, row.compaction) for row in rows if row.compaction is not None]
    for number, (name, text) in enumerate(COMPACTION_FIGURES):
        yield Family(name, text, _column(compacted, number))
    if any(row.kafka_sets for row in rows):
        yield Family(*KAFKA_SETS, _kafka_sets(rows))
    consumers = [row.consumers for row in rows]
    for number, (name, text) in enumerate(SUBSCRIPTION_FIGURES):
        if of_topics or name in OF_NAMESPACES:
            samples = _column(chain.from_iterable(row.subscriptions for row in rows), number)
            if name in OF_CONSUMERS:
                of_consumers = _column(chain.from_iterable(consumers), OF_CONSUMERS[name])
                samples = chain(samples, of_consumers)
            yield Family(name, text, samples)
    yield from _client_families(CONSUMER_FIGURES, consumers)
    yield from _client_families(PRODUCER_FIGURES, [row.producers for row in rows])
    yield from _histogram(
        "pulsar_storage_write_latency",
        "Milliseconds from taking a publish to having it on disk",
        LATENCY_BUCKETS,
        rows,
        [row.latency for row in rows],
    )
    yield from _histogram(
        "pulsar_entry_size",
        "Bytes of an entry as the producer sent it",
        SIZE_BUCKETS,
        rows,
        [row.sizes for row in rows],
    )


def _column(
    rows: Iterable[tuple[str, Sequence[float]]], number: int
) -> Iterator[tuple[str, float]]:
    """The labels of each row, and one of its figures."""
    return ((labels, figures[number]) for labels, figures in rows)


def _figures_of(rows: Sequence[TopicRow]) -> Iterator[tuple[str, Sequence[float]]]:
    return ((row.labels, row.figures) for row in rows)


def _kafka_sets(rows: Sequence[TopicRow]) -> Iterator[tuple[str, float]]:
    for row in rows:
        for (request, version, is_converted), sets in sorted(row.kafka_sets.items()):
            handling = "converted" if is_converted else "as_is"
            shown = labels_of(request=request, version=str(version), handling=handling)
            yield f"{row.labels},{shown}", sets


def _client_families(
    figures: Sequence[tuple[str, str]], rows: Sequence[list[ClientRow]]
) -> Iterator[Family]:
    if any(rows):
        for number, (name, text) in enumerate(figures):
            if name not in OF_CONSUMERS:
                yield Family(name, text, _column(chain.from_iterable(rows), number))


def _histogram(
    name: str, text: str, buckets: list[str], rows: Sequence[TopicRow], histograms: list[Buckets]
) -> Iterator[Family]:
    def samples(of: Callable[[list[int], float], float]) -> Iterator[tuple[str, float]]:
        for row, (counts, total) in zip(rows, histograms, strict=True):
            yield row.labels, of(counts, total)

    for number, bucket in enumerate(buckets):
        yield Family(f"{name}_{bucket}", text, samples(partial(_bucket, number)))
    yield Family(f"{name}_count", text, samples(lambda counts, _: sum(counts)))
    yield Family(f"{name}_sum", text, samples(lambda _, total: total))


def _bucket(number: int, counts: list[int], _total: float) -> float:
    return counts[number]
