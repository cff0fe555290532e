"""The metrics page: Pulsar's names and labels, worked out when somebody asks.

Nothing is kept for it between two requests but the plain counters of `counters`; prometheus-client
only writes the format. As in Pulsar everything is a gauge. Figures of Pulsar's own start with
`pulsar_`, those that only this broker has with `pulsemark_`.

A topic that is not open has no producers, consumers or rates; it is listed as soon as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .counters import WRITE_LATENCY_LIMITS_MS, Histogram
from .services import Services
from .stats import storage_size_bytes
from .topic import Topic

__all__ = ["CONTENT_TYPE", "render"]

CONTENT_TYPE = CONTENT_TYPE_LATEST

LATENCY_BUCKETS = [
    *(f"le_{limit:g}".replace(".", "_") for limit in WRITE_LATENCY_LIMITS_MS),
    "overflow",
]
SIZE_BUCKETS = [
    *("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb"),
    "le_overflow",
]


def render(services: Services) -> bytes:
    """The whole page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(services))
    return generate_latest(registry)


class _Collector:
    """Reads the broker's state once per page."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._cluster = services.config.cluster

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families."""
        yield from self._broker()
        topics = list(self._services.topics.open_topics.values())
        yield from self._topics(topics)
        yield from self._subscriptions(topics)
        yield from self._histogram(
            "pulsar_storage_write_latency",
            "Milliseconds from taking a publish to having it on disk",
            LATENCY_BUCKETS,
            [(topic, topic.counters.write_latency_ms) for topic in topics],
        )
        yield from self._histogram(
            "pulsar_entry_size",
            "Bytes of an entry as the producer sent it",
            SIZE_BUCKETS,
            [(topic, topic.counters.entry_size_bytes) for topic in topics],
        )

    def _broker(self) -> Iterator[GaugeMetricFamily]:
        services = self._services
        topics = services.topics
        family = GaugeMetricFamily(
            "pulsar_topics_count", "Topics of a namespace", labels=("cluster", "namespace")
        )
        per_namespace = Counter(
            name.partition("://")[2].rpartition("/")[0] for name in topics.topic_names()
        )
        for namespace in topics.namespaces:
            family.add_metric((self._cluster, namespace), per_namespace[namespace])
        yield family
        yield self._single(
            "pulsar_active_connections", "Client connections", len(services.sessions)
        )
        yield self._single(
            "pulsemark_publish_bytes_in_flight",
            "Bytes taken from producers and not yet durable",
            services.budget.bytes_in_flight,
        )
        yield self._single(
            "pulsemark_storage_is_well",
            "0: an append failed, and no probe could be written since; producers wait",
            services.storage.is_well,
        )
        yield self._single(
            "pulsemark_unsent_bytes",
            "Bytes written to clients and not yet taken by their sockets",
            sum(session.unsent_bytes() for session in services.sessions),
        )
        interval_ms = services.config.store_options.sync_interval_ms
        yield self._single(
            "pulsemark_durability_sync_interval_ms",
            "0: entries are on disk before they are acknowledged; else what a power cut may lose",
            interval_ms,
        )

    def _single(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=("cluster",))
        family.add_metric((self._cluster,), value)
        return family

    def _topics(self, topics: list[Topic]) -> Iterator[GaugeMetricFamily]:
        for name, text, read in TOPIC_FIGURES:
            family = GaugeMetricFamily(name, text, labels=("cluster", "namespace", "topic"))
            for topic in topics:
                family.add_metric(self._labels(topic), read(topic))
            if not topics and name in COUNTS:
                family = self._single(name, text, 0)
            yield family

    def _subscriptions(self, topics: list[Topic]) -> Iterator[GaugeMetricFamily]:
        labels = ("cluster", "namespace", "topic", "subscription")
        messages = GaugeMetricFamily(
            "pulsar_out_messages_total", "Messages sent to consumers", labels=labels
        )
        sizes = GaugeMetricFamily(
            "pulsar_out_bytes_total", "Bytes of entries sent to consumers", labels=labels
        )
        backlog = GaugeMetricFamily(
            "pulsar_subscription_back_log", "Messages not acknowledged yet", labels=labels
        )
        for topic in topics:
            for name, subscription in topic.subscriptions.items():
                values = (*self._labels(topic), name)
                messages.add_metric(values, subscription.messages_out)
                sizes.add_metric(values, subscription.bytes_out)
                backlog.add_metric(values, subscription.cursor.backlog_messages)
        yield messages
        yield sizes
        yield backlog

    def _histogram(
        self, name: str, text: str, buckets: list[str], rows: list[tuple[Topic, Histogram]]
    ) -> Iterator[GaugeMetricFamily]:
        labels = ("cluster", "namespace", "topic")
        for number, bucket in enumerate(buckets):
            family = GaugeMetricFamily(f"{name}_{bucket}", text, labels=labels)
            for topic, histogram in rows:
                family.add_metric(self._labels(topic), histogram.buckets[number])
            yield family
        count = GaugeMetricFamily(f"{name}_count", text, labels=labels)
        total = GaugeMetricFamily(f"{name}_sum", text, labels=labels)
        for topic, histogram in rows:
            count.add_metric(self._labels(topic), histogram.count)
            total.add_metric(self._labels(topic), histogram.total)
        yield count
        yield total

    def _labels(self, topic: Topic) -> tuple[str, str, str]:
        return (self._cluster, topic.topic_name.namespace, topic.name)


def _consumers(topic: Topic) -> int:
    return sum(len(subscription.consumers) for subscription in topic.subscriptions.values())


def _backlog(topic: Topic) -> int:
    return sum(s.cursor.backlog_messages for s in topic.subscriptions.values())


#: Emitted as zero for the cluster while there is no topic: readiness checks look for them.
COUNTS = ("pulsar_producers_count", "pulsar_consumers_count", "pulsar_subscriptions_count")

TOPIC_FIGURES = (
    ("pulsar_producers_count", "Connected producers", lambda t: len(t.producers.by_name)),
    ("pulsar_consumers_count", "Connected consumers", _consumers),
    ("pulsar_subscriptions_count", "Subscriptions", lambda t: len(t.subscriptions)),
    ("pulsar_rate_in", "Messages per second in", lambda t: t.rate_meter.rates.messages_in),
    ("pulsar_rate_out", "Messages per second out", lambda t: t.rate_meter.rates.messages_out),
    ("pulsar_throughput_in", "Bytes per second in", lambda t: t.rate_meter.rates.bytes_in),
    ("pulsar_throughput_out", "Bytes per second out", lambda t: t.rate_meter.rates.bytes_out),
    ("pulsar_storage_size", "Bytes of the topic's entries on disk", storage_size_bytes),
    ("pulsar_msg_backlog", "Messages not acknowledged, over all subscriptions", _backlog),
    ("pulsar_in_messages_total", "Messages taken from producers", lambda t: t.counters.messages_in),
    ("pulsar_in_bytes_total", "Bytes taken from producers", lambda t: t.counters.bytes_in),
    ("pulsemark_damaged_entries", "Damaged entries met", lambda t: t.counters.damaged_entries),
    (
        "pulsemark_failed_publishes",
        "Publishes the disk refused",
        lambda t: t.counters.failed_entries,
    ),
)
