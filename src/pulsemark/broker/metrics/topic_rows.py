"""The metrics of topics, of their subscriptions and clients, and the text format of all metrics.

A topic's figures are taken in pieces (`cooperative`), and those of one subscription at one moment.
Each kind of figures is a `Table` with a row for each object. Rows with equal labels are added up:
with `exposeTopicLevelMetricsInPrometheus=false` all topics of a namespace have the namespace's
labels, and the page of ten thousand topics is as long as that of one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from ...ledger.would_block import in_pieces
from ..configuration.config import BrokerConfig
from ..counters import WRITE_LATENCY_LIMITS_MS, Histogram
from ..policies.pulsar_policies import BACKLOG_QUOTAS, MESSAGE_AGE, STORAGE
from ..subscriptions.consumer import Consumer
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..subscriptions.subscription import Subscription, message_counts
from ..topics.policy_store import Policies
from ..topics.producers import Producer
from ..topics.topic import Topic
from .stats import bytes_from, ongoing_transactions, storage_size_bytes

# Prometheus' text format: a metric's lines, made in parts.
#
# A page can have a million lines. So labels are made once for all lines of a topic, whole numbers
# and zeros are written as they are, and a part of many lines is made by one expression. Samples are
# made one by one: a list of them would be more work for the garbage collector.


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


Values = Sequence[float]


@dataclass(slots=True)
class Table:
    """Figures of one kind of objects, with a row of values for each labels."""

    #: Name and text of each column.
    figures: Sequence[tuple[str, str]]
    rows: dict[str, Values] = field(default_factory=dict)

    def add(self, labels: str, values: Values) -> None:
        """Add a row, to that with the same labels if there is one."""
        before = self.rows.get(labels)
        if before is not None:
            values = [old + new for old, new in zip(before, values, strict=True)]
        self.rows[labels] = values

    def column(self, number: int) -> Iterator[tuple[str, float]]:
        """The labels and the value of each row."""
        return ((labels, values[number]) for labels, values in self.rows.items())

    def total(self, name: str) -> float:
        """The sum of a column."""
        number = next(at for at, (figure, _) in enumerate(self.figures) if figure == name)
        return sum(value for _, value in self.column(number))


def families_of(tables: Iterable[Table], hidden: frozenset[str]) -> Iterator[Family]:
    """The metrics of tables. Columns of one name are one metric."""
    found: dict[str, Family] = {}
    for table in tables:
        for number, (name, text) in enumerate(table.figures):
            before = found.get(name)
            samples = table.column(number)
            if before is not None:
                before.samples = chain(before.samples, samples)
            elif name not in hidden:
                found[name] = Family(name, text, samples)
    yield from found.values()


# The figures of topics, subscriptions and clients: names, meanings, where they are.


def _average_size(topic: Topic) -> float:
    rates = topic.rate_meter.rates
    return rates.bytes_in / rates.messages_in if rates.messages_in else 0.0


def _quota_figures(topic: Topic, policies: Policies) -> dict[str, float]:
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


def _compaction_figures(topic: Topic) -> Values | None:
    """A topic's figures in the order of COMPACTION_FIGURES; None: it was not compacted.

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
    ("pulsar_subscription_filter_processed_msg_count", "Messages that filters looked at"),
    ("pulsar_subscription_filter_accepted_msg_count", "Messages that filters let through"),
    ("pulsar_subscription_filter_rejected_msg_count", "Messages that filters took away"),
    ("pulsar_subscription_filter_rescheduled_msg_count", "Messages that filters put off"),
)


def _subscription_figures(subscription: Subscription) -> Values:
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


CONSUMER_FIGURES = (
    ("pulsar_consumer_unacked_messages", "Messages that the consumer has not acknowledged"),
    ("pulsar_consumer_blocked_on_unacked_messages", "1: the consumer holds too many of them"),
    ("pulsar_consumer_msg_rate_out", "Messages per second sent to the consumer"),
    ("pulsar_consumer_msg_throughput_out", "Bytes per second sent to the consumer"),
    ("pulsar_consumer_available_permits", "Messages that the consumer has room for"),
    ("pulsar_consumer_msg_rate_redeliver", "Not measured: 0"),
    ("pulsar_consumer_msg_ack_rate", "Not measured: 0"),
    *SUBSCRIPTION_FIGURES[:2],
)
PRODUCER_FIGURES = (
    ("pulsar_producer_msg_rate_in", "Messages per second from the producer"),
    ("pulsar_producer_msg_throughput_in", "Bytes per second from the producer"),
    ("pulsar_producer_msg_average_Size", "Bytes of a message of the producer, lately"),
)


def _consumer_figures(subscription: Subscription, consumer: Consumer) -> Values:
    """A consumer's figures, in the order of CONSUMER_FIGURES."""
    flow = subscription.topic.flows.of(consumer)
    return (
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


def _producer_figures(topic: Topic, producer: Producer) -> Values:
    """A producer's figures, in the order of PRODUCER_FIGURES."""
    flow = topic.flows.of(producer)
    size_bytes = flow.bytes_per_s / flow.messages_per_s if flow.messages_per_s else 0
    return flow.messages_per_s, flow.bytes_per_s, size_bytes


LATENCY_BUCKETS = [f"le_{limit:g}".replace(".", "_") for limit in WRITE_LATENCY_LIMITS_MS]
SIZE_BUCKETS = (
    *("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb"),
    "le_overflow",
)


def _histogram_figures(name: str, text: str, buckets: Iterable[str]) -> list[tuple[str, str]]:
    return [(f"{name}_{each}", text) for each in (*buckets, "count", "sum")]


LATENCY_FIGURES = _histogram_figures(
    "pulsar_storage_write_latency",
    "Milliseconds from taking a publish to having it on disk",
    (*LATENCY_BUCKETS, "overflow"),
)
SIZE_FIGURES = _histogram_figures(
    "pulsar_entry_size", "Bytes of an entry as the producer sent it", SIZE_BUCKETS
)


def _values_of(histogram: Histogram) -> Values:
    return (*histogram.buckets, histogram.count, histogram.total)


#: Not shown for a namespace: what has no sum, and all but the totals of its subscriptions.
NOT_OF_NAMESPACES = frozenset(
    {
        "pulsar_average_msg_size",
        "pulsar_storage_backlog_age_seconds",
        "pulsar_storage_backlog_quota_limit",
        "pulsar_storage_backlog_quota_limit_time",
        *(name for name, _ in SUBSCRIPTION_FIGURES[2:]),
    }
)
#: Pulsar's figures of managed ledgers, which it adds up for each namespace.
NAMESPACE_FIGURES = (
    ("pulsar_ml_StoredMessagesSize", "Bytes of entries"),
    ("pulsar_ml_NumberOfMessagesInBacklog", "Messages not acknowledged"),
)


class TopicTables:
    """The figures of all open topics."""

    def __init__(self, config: BrokerConfig, policies: Policies) -> None:
        self._config, self._policies = config, policies
        #: Whether each topic has figures of its own; if not, each namespace has.
        self._of_topics = config.expose_topic_level_metrics_in_prometheus
        self.namespaces = Table(NAMESPACE_FIGURES)
        self.topics = Table([(name, text) for name, text, _ in TOPIC_FIGURES])
        self._compaction = Table(COMPACTION_FIGURES)
        self._kafka_sets = Table((KAFKA_SETS,))
        self._subscriptions = Table(SUBSCRIPTION_FIGURES)
        self._consumers, self._producers = Table(CONSUMER_FIGURES), Table(PRODUCER_FIGURES)
        self._latency, self._sizes = Table(LATENCY_FIGURES), Table(SIZE_FIGURES)

    def families(self) -> Iterator[Family]:
        """The metrics."""
        tables = [self.namespaces, self.topics, self._compaction, self._subscriptions]
        if not self.topics.rows:
            # Readiness checks need the first three counts: of the cluster if there is no topic.
            labels = labels_of(cluster=self._config.cluster)
            tables.append(Table(self.topics.figures[:3], {labels: (0, 0, 0)}))
        few = (self._kafka_sets, self._consumers, self._producers)
        tables += [*filter(lambda table: table.rows, few), self._latency, self._sizes]
        return families_of(tables, frozenset() if self._of_topics else NOT_OF_NAMESPACES)

    def add(self, topic: Topic) -> Iterator[object]:
        """Take an open topic's figures, in pieces."""
        of_namespace = labels_of(cluster=self._config.cluster, namespace=topic.topic_name.namespace)
        labels = of_namespace
        if self._of_topics:
            labels = f"{labels},{labels_of(topic=topic.name)}"
        else:
            self._subscriptions.add(labels, (0,) * len(SUBSCRIPTION_FIGURES))
        counters, compaction = topic.counters, _compaction_figures(topic)
        self._latency.add(labels, _values_of(counters.write_latency_ms))
        self._sizes.add(labels, _values_of(counters.entry_size_bytes))
        if compaction is not None and self._of_topics:
            self._compaction.add(labels, compaction)
        for (request, version, is_converted), sets in sorted(counters.kafka_sets.items()):
            handling = "converted" if is_converted else "as_is"
            shown = labels_of(request=request, version=str(version), handling=handling)
            self._kafka_sets.add(f"{labels},{shown}", (sets,))
        sums = yield from self._sums(topic, labels)
        row = [sums[name] if read is None else read(topic) for name, _, read in TOPIC_FIGURES]
        self.topics.add(labels, row)
        size_bytes, backlog = sums["pulsar_storage_size"], sums["pulsar_msg_backlog"]
        self.namespaces.add(of_namespace, (size_bytes, backlog))
        if self._of_topics and self._config.expose_producer_level_metrics_in_prometheus:
            for producer in tuple(topic.producers.by_name.values()):
                name, number = producer.name, str(producer.producer_id)
                shown = f"{labels},{labels_of(producer_name=name, producer_id=number)}"
                self._producers.add(shown, _producer_figures(topic, producer))
                yield None

    def _sums(self, topic: Topic, labels: str) -> Generator[object, None, dict[str, float]]:
        """Take the figures of a topic's subscriptions. Return those that are sums."""
        consumers = backlog = size_bytes = waiting_bytes = 0
        for subscription in tuple(topic.subscriptions.values()):
            if subscription.exists:
                row = yield from in_pieces(_subscription_figures, subscription)
                consumers += len(subscription.consumers)
                backlog += int(row[2])
                yield from self._add_subscription(subscription, labels, row)
            yield None
        if topic.is_persistent:
            size_bytes = yield from storage_size_bytes(topic)
            waiting_bytes = yield from _backlog_bytes(topic)
        return {
            **_quota_figures(topic, self._policies),
            "pulsar_storage_backlog_size": waiting_bytes,
            "pulsar_consumers_count": consumers,
            "pulsar_msg_backlog": backlog,
            "pulsar_storage_size": size_bytes,
            "pulsar_storage_logical_size": size_bytes,
        }

    def _add_subscription(
        self, subscription: Subscription, labels: str, row: Values
    ) -> Iterator[object]:
        if not self._of_topics:
            self._subscriptions.add(labels, row)
            return
        labels = f"{labels},{labels_of(subscription=subscription.name)}"
        self._subscriptions.add(labels, row)
        if self._config.expose_consumer_level_metrics_in_prometheus:
            for consumer in tuple(subscription.consumers):
                name, number = consumer.name, str(consumer.consumer_id)
                shown = f"{labels},{labels_of(consumer_name=name, consumer_id=number)}"
                self._consumers.add(shown, _consumer_figures(subscription, consumer))
                yield None


def _backlog_bytes(topic: Topic) -> Generator[object, None, int]:
    """Bytes from the slowest subscription's position on."""
    places = [one.cursor.mark_delete for one in topic.subscriptions.values() if one.exists]
    if not places:
        return 0
    return (yield from bytes_from(topic, topic.ledger.next_position(min(places))))
