"""The metrics page's rows: the figures of each topic, or of each namespace.

A row is taken in pieces (see `long_work`), and the figures of one subscription at one moment. With
`exposeTopicLevelMetricsInPrometheus=false` the rows of a namespace are added up and forgotten, so
that the page of ten thousand topics is as long as that of one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

from ...ledger.being_read import in_pieces
from ..configuration.config import BrokerConfig
from ..policies.levels import Policies
from ..topics.topic import Topic
from .client_figures import (
    CONSUMER_FIGURES,
    PRODUCER_FIGURES,
    ClientRow,
    consumer_rows,
    producer_rows,
)
from .counters import WRITE_LATENCY_LIMITS_MS
from .exposition import Family, labels_of
from .stats import bytes_from, storage_size_bytes
from .topic_figures import (
    COMPACTION_FIGURES,
    COUNTS,
    OF_TOPICS_ONLY,
    SUBSCRIPTION_FIGURES,
    TOPIC_FIGURES,
    compaction_figures,
    quota_figures,
    subscription_figures,
)

T = TypeVar("T", int, float)
#: The counts of a histogram's buckets, and the sum of its values.
Buckets: TypeAlias = tuple[list[int], float]

__all__ = ["NamespaceRows", "TopicRow", "families_of_rows", "number_of", "row_of"]

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
#: Where consumers have figures that subscriptions have under the same name.
OF_CONSUMERS = {
    name: number for number, (name, _) in enumerate(CONSUMER_FIGURES) if name in OF_NAMESPACES
}
NUMBERS = {name: number for number, (name, _, _) in enumerate(TOPIC_FIGURES)}


def number_of(figure: str) -> int:
    """The place of a figure in `TopicRow.figures`, by its metric's name."""
    return NUMBERS[figure]


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
    return row


def _histograms_of(topic: Topic) -> tuple[Buckets, Buckets]:
    latency, sizes = topic.counters.write_latency_ms, topic.counters.entry_size_bytes
    return (list(latency.buckets), latency.total), (list(sizes.buckets), sizes.total)


def _backlog_bytes(topic: Topic) -> Generator[object, None, int]:
    """Bytes from the place of the slowest subscription on."""
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
                subscriptions=[(labels, of_subscriptions)],
            )  # fmt: skip
            return
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
            samples: Iterable[tuple[str, float]] = _figures(rows, number)
            if not rows and name in COUNTS:
                samples = [(labels_of(cluster=cluster), 0)]
            yield Family(name, text, samples)
    for number, (name, text) in enumerate(COMPACTION_FIGURES):
        yield Family(name, text, _compaction_figures(rows, number))
    for number, (name, text) in enumerate(SUBSCRIPTION_FIGURES):
        if of_topics or name in OF_NAMESPACES:
            yield Family(name, text, _subscription_figures(rows, number, OF_CONSUMERS.get(name)))
    yield from _client_families(CONSUMER_FIGURES, [row.consumers for row in rows])
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


def _figures(rows: Sequence[TopicRow], number: int) -> Iterator[tuple[str, float]]:
    for row in rows:
        yield row.labels, row.figures[number]


def _compaction_figures(rows: Sequence[TopicRow], number: int) -> Iterator[tuple[str, float]]:
    for row in rows:
        if row.compaction is not None:
            yield row.labels, row.compaction[number]


def _subscription_figures(
    rows: Sequence[TopicRow], number: int, of_consumers: int | None
) -> Iterator[tuple[str, float]]:
    for row in rows:
        for labels, figures in row.subscriptions:
            yield labels, figures[number]
        if of_consumers is not None:
            for labels, figures in row.consumers:
                yield labels, figures[of_consumers]


def _client_families(
    figures: Sequence[tuple[str, str]], rows: Sequence[list[ClientRow]]
) -> Iterator[Family]:
    if any(rows):
        for number, (name, text) in enumerate(figures):
            if name not in OF_CONSUMERS:
                yield Family(name, text, _client_figures(rows, number))


def _client_figures(rows: Sequence[list[ClientRow]], number: int) -> Iterator[tuple[str, float]]:
    for clients in rows:
        for labels, values in clients:
            yield labels, values[number]


def _histogram(
    name: str,
    text: str,
    buckets: list[str],
    rows: Sequence[TopicRow],
    histograms: list[Buckets],
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
