"""The metrics page, with Pulsar's names and labels. It is computed on request.

Between two requests only the counters in `counters` are kept. The figures of one subscription are
taken at one moment. Between two subscriptions, and while the text is made, other work runs on the
event loop. Pulsar's metrics start with `pulsar_`; as in Pulsar, each of them is a gauge. Metrics
that only this broker has start with `pulsemark_`, those of its process with `process_`. Of these,
the ones that end with `_total` are counters.

A topic that is not open has no producers, consumers or rates, and is not listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

from ...metadata import headers_parsed
from ..cleaning.worker import Cleaning
from ..policies.levels import Policies
from ..services import Services
from ..topics.topic import Topic
from .audit_figures import audit_families
from .broker_figures import broker_figures
from .counters import WRITE_LATENCY_LIMITS_MS
from .kafka_figures import kafka_figures
from .stats import bytes_from, storage_size_bytes
from .topic_figures import (
    COUNTS,
    SUBSCRIPTION_FIGURES,
    TOPIC_FIGURES,
    quota_figures,
    subscription_figures,
)

__all__ = ["CONTENT_TYPE", "current_page", "render"]

CONTENT_TYPE = CONTENT_TYPE_LATEST

LINES_PER_PART = 256

#: Figures of topics that are also shown as their sum.
OF_BROKER = (
    "producers_count",
    "consumers_count",
    "subscriptions_count",
    "rate_in",
    "rate_out",
    "throughput_in",
    "throughput_out",
    "storage_size",
    "storage_logical_size",
    "msg_backlog",
    "storage_write_rate",
    "storage_read_rate",
)

LATENCY_BUCKETS = [
    *(f"le_{limit:g}".replace(".", "_") for limit in WRITE_LATENCY_LIMITS_MS),
    "overflow",
]
SIZE_BUCKETS = [
    *("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb"),
    "le_overflow",
]


async def current_page(services: Services) -> bytes:
    """The page that is being made now, or a new one. Concurrent requests get the same page."""
    task = services.metrics_page
    if task is None or task.done():
        task = services.metrics_page = asyncio.ensure_future(render(services))
    return await asyncio.shield(task)


async def render(services: Services) -> bytes:
    """The whole page, made in time slices so that other work on the loop can run."""
    parts: list[bytes] = []
    await services.topics.turns.work(_render(services, parts))
    return b"".join(parts)


def _render(services: Services, parts: list[bytes]) -> Iterator[None]:
    cluster = services.config.cluster
    families = list(_broker_families(services))
    rows: list[_TopicRow] = []
    in_memory = services.topics.non_persistent.open_topics
    for topic in (*services.topics.open_topics.values(), *in_memory.values()):
        if topic.is_open:
            rows.append((yield from _row_of(topic, cluster, services.topics.policies)))
        yield
    more = chain(
        _namespace_families(cluster, rows),
        _topic_families(cluster, rows),
        _audit_families(services, cluster),
    )
    for family in chain(families, _sums(cluster, rows), more):
        lines = family.lines()
        while part := "".join(islice(lines, LINES_PER_PART)):
            parts.append(part.encode())
            yield


@dataclass(slots=True)
class _Family:
    """A metric with its samples: labels as text, and values."""

    name: str
    text: str
    samples: Iterable[tuple[str, float]]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.text}\n# TYPE {self.name} {_type_of(self.name)}\n"
        for labels, value in self.samples:
            shown = floatToGoString(value)  # type: ignore[no-untyped-call] # not in its stubs
            yield f"{self.name}{{{labels}}} {shown}\n"


def _type_of(name: str) -> str:
    is_pulsars = name.startswith("pulsar_")
    return "counter" if name.endswith("_total") and not is_pulsars else "gauge"


@dataclass(slots=True)
class _TopicRow:
    """A topic's figures, all taken at one moment."""

    labels: str
    namespace: str
    figures: list[float]
    #: The labels of each subscription, and its figures in the order of SUBSCRIPTION_FIGURES.
    subscriptions: list[tuple[str, tuple[float, ...]]]
    latency: tuple[list[int], float]
    sizes: tuple[list[int], float]


def _row_of(topic: Topic, cluster: str, policies: Policies) -> Generator[None, None, _TopicRow]:
    labels = _labels(cluster=cluster, namespace=topic.topic_name.namespace, topic=topic.name)
    latency, sizes = topic.counters.write_latency_ms, topic.counters.entry_size_bytes
    consumers = backlog = 0
    subscriptions: list[tuple[str, tuple[float, ...]]] = []
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists:
            figures = subscription_figures(subscription)
            waiting = int(figures[2])
            shown = f"{labels},{_labels(subscription=subscription.name)}"
            subscriptions.append((shown, figures))
            consumers += len(subscription.consumers)
            backlog += waiting
        yield
    size_bytes = waiting_bytes = 0
    if topic.is_persistent:
        size_bytes = yield from storage_size_bytes(topic)
        waiting_bytes = yield from _backlog_bytes(topic)
    sums = {
        **quota_figures(topic, policies),
        "pulsar_storage_backlog_size": waiting_bytes,
        "pulsar_consumers_count": consumers,
        "pulsar_msg_backlog": backlog,
        "pulsar_storage_size": size_bytes,
        "pulsar_storage_logical_size": size_bytes,
    }
    return _TopicRow(
        labels,
        topic.topic_name.namespace,
        [float(sums[name] if read is None else read(topic)) for name, _, read in TOPIC_FIGURES],
        subscriptions,
        (list(latency.buckets), latency.total),
        (list(sizes.buckets), sizes.total),
    )


def _backlog_bytes(topic: Topic) -> Generator[None, None, int]:
    """Bytes from the place of the slowest subscription on."""
    places = [one.cursor.mark_delete for one in topic.subscriptions.values() if one.exists]
    if not places:
        return 0
    return (yield from bytes_from(topic, topic.ledger.next_position(min(places))))


def _labels(**values: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _namespace_family(services: Services, cluster: str) -> _Family:
    topics = services.topics
    per_namespace = topics.names.counts()
    return _Family(
        "pulsar_topics_count",
        "Topics of a namespace",
        [
            (f"{cluster},{_labels(namespace=namespace)}", per_namespace.get(namespace, 0))
            for namespace in topics.namespaces
        ],
    )


def _cleaning_figures(cleaning: Cleaning) -> tuple[tuple[str, str, float], ...]:
    return (
        (
            "pulsemark_cleaning_rounds_total",
            "Rounds of expiry, retention and the compaction check that have ended",
            cleaning.rounds,
        ),
        (
            "pulsemark_cleaning_failures_total",
            "Topics that could not be cleaned in a round; the next one tries again",
            cleaning.failures,
        ),
    )


def _memory_figures(services: Services) -> tuple[tuple[str, str, float], ...]:
    return (
        (
            "pulsemark_publish_bytes_in_flight",
            "Bytes taken from producers and not yet durable",
            services.budget.bytes_in_flight,
        ),
        (
            "pulsemark_unsent_bytes",
            "Bytes written to clients and not yet taken by their sockets",
            sum(session.unsent_bytes() for session in services.sessions),
        ),
        (
            "pulsemark_input_buffer_bytes",
            "Buffers of frames and bodies that have not arrived whole",
            services.input.total_bytes,
        ),
        (
            "pulsemark_kept_bytes",
            "State of producers, consumers and requests that clients make the broker keep",
            services.kept.total_bytes,
        ),
    )


def _broker_families(services: Services) -> Iterator[_Family]:
    cluster = _labels(cluster=services.config.cluster)
    yield _namespace_family(services, cluster)
    for name, text, value in (
        (
            "pulsemark_storage_is_well",
            "1: the disk takes writes. 0: a write failed, and producers wait for a test write",
            services.storage.is_healthy,
        ),
        *_memory_figures(services),
        *_cleaning_figures(services.cleaning),
        (
            "pulsemark_message_headers_parsed_total",
            "Producers' message headers that this process has parsed",
            headers_parsed(),
        ),
        (
            "pulsemark_durability_sync_interval_ms",
            "0: acknowledged entries are on disk. Else a power cut may lose those of so long",
            services.config.store_options.sync_interval_ms,
        ),
        ("pulsar_ml_count", "Open topics", len(services.topics.open_topics)),
        *services.cache.figures(),
        *kafka_figures(services),
    ):
        yield _Family(name, text, [(cluster, value)])
    for name, text, labels, value in broker_figures(services):
        shown = ",".join(filter(None, (cluster, _labels(**labels))))
        yield _Family(name, text, [(shown, value)])


def _audit_families(services: Services, cluster: str) -> Iterator[_Family]:
    for name, text, samples in audit_families(services):
        yield _Family(
            name, text, ((_labels(cluster=cluster, **labels), value) for labels, value in samples)
        )


def _namespace_families(cluster: str, rows: list[_TopicRow]) -> Iterator[_Family]:
    """Pulsar's figures of managed ledgers, which it adds up for each namespace."""
    names = [name for name, _, _ in TOPIC_FIGURES]
    for name, text, figure in (
        ("pulsar_ml_StoredMessagesSize", "Bytes of entries", "pulsar_storage_size"),
        ("pulsar_ml_NumberOfMessagesInBacklog", "Messages not acknowledged", "pulsar_msg_backlog"),
    ):
        number = names.index(figure)
        sums: dict[str, float] = {}
        for row in rows:
            sums[row.namespace] = sums.get(row.namespace, 0.0) + row.figures[number]
        yield _Family(
            name,
            text,
            [(_labels(cluster=cluster, namespace=each), value) for each, value in sums.items()],
        )


def _sums(cluster: str, rows: list[_TopicRow]) -> Iterator[_Family]:
    """Figures of the whole broker: the sums over its topics."""
    names = [name for name, _, _ in TOPIC_FIGURES]
    labels = _labels(cluster=cluster)
    count = float(len(rows))
    yield _Family("pulsar_broker_topics_count", "Open topics", [(labels, count)])
    for figure in OF_BROKER:
        number = names.index(f"pulsar_{figure}")
        total = sum(row.figures[number] for row in rows)
        text = f"The sum of pulsar_{figure} over topics"
        yield _Family(f"pulsar_broker_{figure}", text, [(labels, total)])


def _topic_families(cluster: str, rows: list[_TopicRow]) -> Iterator[_Family]:
    # Samples are made one by one: a list of them would be more work for the garbage collector.
    for number, (name, text, _) in enumerate(TOPIC_FIGURES):
        samples: Iterable[tuple[str, float]] = _figures(rows, number)
        if not rows and name in COUNTS:
            samples = [(_labels(cluster=cluster), 0.0)]
        yield _Family(name, text, samples)
    for number, (name, text) in enumerate(SUBSCRIPTION_FIGURES):
        yield _Family(name, text, _subscription_figures(rows, number))
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


def _figures(rows: list[_TopicRow], number: int) -> Iterator[tuple[str, float]]:
    for row in rows:
        yield row.labels, row.figures[number]


def _subscription_figures(rows: list[_TopicRow], number: int) -> Iterator[tuple[str, float]]:
    for row in rows:
        for labels, figures in row.subscriptions:
            yield labels, figures[number]


def _histogram(
    name: str,
    text: str,
    buckets: list[str],
    rows: list[_TopicRow],
    histograms: list[tuple[list[int], float]],
) -> Iterator[_Family]:
    def samples(of: Callable[[list[int], float], float]) -> Iterator[tuple[str, float]]:
        for row, (counts, total) in zip(rows, histograms, strict=True):
            yield row.labels, of(counts, total)

    for number, bucket in enumerate(buckets):
        yield _Family(f"{name}_{bucket}", text, samples(partial(_bucket, number)))
    yield _Family(f"{name}_count", text, samples(lambda counts, _: sum(counts)))
    yield _Family(f"{name}_sum", text, samples(lambda _, total: total))


def _bucket(number: int, counts: list[int], _total: float) -> float:
    return counts[number]
