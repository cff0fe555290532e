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
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.process_collector import ProcessCollector

from ...audit.counts import Key
from ...audit.trail import Trail
from ...metadata import headers_parsed
from ..connection.services import Services
from ..topics.topic import Topic
from ..version import SERVER_VERSION
from .topic_rows import Family, Table, TopicTables, labels_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PART_BYTES = 1024 * 1024

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


async def current_page(services: Services, *, gzipped: bool = False) -> list[bytes]:
    """The page that is being made now, or a new one, in parts. Concurrent requests share it."""
    task = services.metrics_pages.get(gzipped)
    if task is None or task.done():
        task = asyncio.ensure_future(render(services, gzipped=gzipped))
        services.metrics_pages[gzipped] = task
    return await asyncio.shield(task)


async def render(services: Services, *, gzipped: bool = False) -> list[bytes]:
    """The page, in parts. It is made in time slices so that other work on the loop can run.

    `gzipped`: compressed as it is made, to a few percent of its size.
    """
    output = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS) if gzipped else None
    page = _Parts()
    await services.topics.turns.work(_render(services, output, page))
    page.finish()
    return page.parts


class _Parts:
    """A page in parts of about PART_BYTES: joining a whole page would hold up the event loop."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._some: list[bytes] = []
        self._size_bytes = 0

    def add(self, data: bytes) -> None:
        """Add what comes next."""
        self._some.append(data)
        self._size_bytes += len(data)
        if self._size_bytes >= PART_BYTES:
            self.finish()

    def finish(self) -> None:
        """Make the last part of the bytes left."""
        self.parts.append(b"".join(self._some))
        self._some, self._size_bytes = [], 0


def _render(services: Services, output: Any, page: _Parts) -> Iterator[object]:
    """Make the page. `output` compresses it; None: it stays as it is."""
    families = list(_broker_families(services))
    tables = TopicTables(services.config, services.topics.policies)
    in_memory = services.topics.non_persistent.open_topics
    count = 0
    for topic in (*services.topics.open_topics.values(), *in_memory.values()):
        if topic.is_open:
            yield from tables.add(topic)
            count += 1
        yield None
    sums = _sums(services.config.cluster, tables.topics, count)
    for family in chain(families, sums, tables.families(), _audit_families(services)):
        for part in family.parts():
            data = part.encode()
            page.add(data if output is None else output.compress(data))
            yield None
    if output is not None:
        page.add(output.flush())


def _sums(cluster: str, topics: Table, count: int) -> Iterator[Family]:
    """Figures of the whole broker: the sums over its topics."""
    labels = labels_of(cluster=cluster)
    yield Family("pulsar_broker_topics_count", "Open topics", [(labels, count)])
    for figure in OF_BROKER:
        name = f"pulsar_{figure}"
        text = f"The sum of {name} over topics"
        yield Family(f"pulsar_broker_{figure}", text, [(labels, topics.total(name))])


def _broker_families(services: Services) -> Iterator[Family]:
    """The figures of the whole process: memory, connections, storage, version."""
    topics, config = services.topics, services.config
    cluster = labels_of(cluster=config.cluster)
    counts = topics.names.counts()
    samples = [
        (f"{cluster},{labels_of(namespace=each)}", counts.get(each, 0))
        for each in topics.namespaces
    ]
    yield Family("pulsar_topics_count", "Topics of a namespace", samples)
    for name, text, value in chain(
        _own_figures(services), services.cache.figures(), services.kafka_figures()
    ):
        yield Family(name, text, [(cluster, value)])
    bad = {} if services.cluster is None else services.cluster.bad_copies()
    yield Family(
        "pulsemark_bookie_bad_copies_total",
        "Copies of entries that the bookie (label `bookie`) sent damaged or could not read",
        [(f"{cluster},{labels_of(bookie=name)}", count) for name, count in sorted(bad.items())],
    )
    yield from _process_families(services)


def _process_families(services: Services) -> Iterator[Family]:
    """Connections, health and version, with Pulsar's labels."""
    broker = {"broker": urlsplit(services.http_url).hostname or "localhost"}
    active, made = len(services.sessions), services.sessions_made
    of_connections = {**broker, "metric": "broker_connection"}
    of_health = {**broker, "metric": "broker_health"}
    version = {"version": SERVER_VERSION, "commit": ""}
    for name, text, labels, value in (
        ("pulsar_active_connections", "Client connections", of_connections, active),
        (
            "pulsar_connection_created_total_count",
            "Client connections since the start",
            of_connections,
            made,
        ),
        (
            "pulsar_connection_closed_total_count",
            "Client connections that have ended",
            of_connections,
            made - active,
        ),
        ("pulsar_health", "1: well", of_health, int(services.storage.is_healthy)),
        ("pulsar_version_info", "The broker's version", version, 1),
    ):
        shown = labels_of(cluster=services.config.cluster, **labels)
        yield Family(name, text, [(shown, value)])


#: In no registry: this module collects its figures and adds the cluster's label.
_PROCESS = ProcessCollector(registry=None)


def _own_figures(services: Services) -> Iterator[tuple[str, str, float]]:
    """Figures that only this broker has, and those of its process: name, text and value."""
    yield (
        "pulsemark_storage_is_well",
        "1: the disk takes writes. 0: a write failed, and producers wait for a test write",
        services.storage.is_healthy,
    )
    yield from _memory_figures(services)
    yield (
        "pulsemark_cleaning_rounds_total",
        "Rounds of expiry, retention and the compaction check that have ended",
        services.cleaning.rounds,
    )
    yield (
        "pulsemark_cleaning_failures_total",
        "Topics that could not be cleaned in a round; the next one tries again",
        services.cleaning.failures,
    )
    yield (
        "pulsemark_message_headers_parsed_total",
        "Producers' message headers that this process has parsed",
        headers_parsed(),
    )
    yield (
        "pulsemark_durability_sync_interval_ms",
        "0: acknowledged entries are on disk. Else a power cut may lose those of so long",
        services.config.store_options.sync_interval_ms,
    )
    yield "pulsar_ml_count", "Open topics", len(services.topics.open_topics)
    away = 0 if services.cluster is None else len(services.cluster.problems())
    yield "pulsemark_workers_away", "Other workers that hang or do not run", away
    for metric in _PROCESS.collect():
        for sample in metric.samples:
            yield sample.name, metric.documentation, sample.value


def _memory_figures(services: Services) -> Iterator[tuple[str, str, float]]:
    yield (
        "pulsemark_publish_bytes_in_flight",
        "Bytes taken from producers and not yet durable",
        services.budget.bytes_in_flight,
    )
    yield (
        "pulsemark_unsent_bytes",
        "Bytes written to clients and not yet taken by their sockets",
        sum(session.unsent_bytes() for session in services.sessions),
    )
    yield (
        "pulsemark_input_buffer_bytes",
        "Buffers of frames and bodies that have not arrived whole",
        services.input.total_bytes,
    )
    yield (
        "pulsemark_kept_bytes",
        "State of producers, consumers and requests that clients make the broker keep",
        services.kept.total_bytes,
    )


# The audit's metrics: what is counted so far of the topics whose counts are in memory. The page
# counts nothing and reads nothing. The figures are sums over the buckets that are kept, so they
# fall when old buckets are dropped. Figures by tags have one series for each combination of values,
# at most `MAX_SERIES` for each topic, those with the most messages; the others are one with
# `rest="true"`.


MAX_SERIES = 100

BY_TAGS = (
    ("pulsemark_audit_messages", "Messages that the audit has counted"),
    ("pulsemark_audit_bytes", "Bytes of entries that the audit has counted"),
    ("pulsemark_audit_out_of_order", "Messages stored after an entry of a later bucket"),
)
OF_TOPIC: tuple[tuple[str, str, Callable[[Topic, Trail], float]], ...] = (
    (
        "pulsemark_audit_missing",
        "Indexes that are not in the log although no one removed them",
        lambda topic, trail: trail.missing,
    ),
    (
        "pulsemark_audit_uncounted",
        "Indexes that were removed before they were counted",
        lambda topic, trail: trail.uncounted,
    ),
    (
        "pulsemark_audit_left",
        "Messages that are not counted yet",
        lambda topic, trail: trail.left(topic.ledger),
    ),
    (
        "pulsemark_audit_rows",
        "Rows of counts that are kept",
        lambda topic, trail: trail.counts.row_count,
    ),
    (
        "pulsemark_audit_dropped_messages",
        "Messages in rows that were dropped to stay below the limit of rows",
        lambda topic, trail: trail.counts.dropped_messages,
    ),
)


def _audit_families(services: Services) -> Iterator[Family]:
    """The audit's metrics; none if the broker keeps no audit."""
    auditor, config = services.auditor, services.config
    if not auditor.is_on:
        return
    cluster = labels_of(cluster=config.cluster)
    found: list[tuple[str, Topic, Trail]] = []
    for topic in tuple(services.topics.open_topics.values()):
        trail = auditor.trail_in_memory(topic.name)
        if trail is not None:
            shown = labels_of(namespace=topic.topic_name.namespace, topic=topic.name)
            found.append((f"{cluster},{shown}", topic, trail))
    names = _label_names(config.audit_tags)
    for number, (name, text) in enumerate(BY_TAGS):
        samples = (_by_tags(labels, trail, names, number) for labels, _, trail in found)
        yield Family(name, text, chain.from_iterable(samples))
    for name, text, read in OF_TOPIC:
        yield Family(name, text, [(labels, read(topic, trail)) for labels, topic, trail in found])
    text = "How often counting or storing failed; the next round goes on"
    yield Family("pulsemark_audit_failures_total", text, [(cluster, auditor.failures)])
    text = "Processor time of the thread that counts, in seconds"
    yield Family("pulsemark_audit_cpu_seconds_total", text, [(cluster, auditor.cpu_s)])


def _by_tags(
    labels: str, trail: Trail, names: list[str], number: int
) -> Iterator[tuple[str, float]]:
    # One step of the interpreter: the auditor's thread may be counting.
    sums = tuple(trail.counts.sums.items())
    rest = sum(values[number] for key, values in sums if key is None)
    by_tags = ((key, values[number]) for key, values in sums if key is not None)
    ranked = sorted(by_tags, key=lambda item: item[1], reverse=True)
    for key, value in ranked[:MAX_SERIES]:
        yield ",".join(filter(None, (labels, _shown(names, key)))), value
    rest += sum(value for _, value in ranked[MAX_SERIES:])
    if rest:
        yield f"{labels},{labels_of(rest='true')}", rest


def _shown(names: list[str], key: Key) -> str:
    return labels_of(**{name: value or "" for name, value in zip(names, key or (), strict=True)})


def _label_names(tags: Iterable[str]) -> list[str]:
    """Names that Prometheus allows; different tags keep different names."""
    names: list[str] = []
    for tag in tags:
        name = base = "tag_" + re.sub(r"[^a-zA-Z0-9_]", "_", tag)
        while name in names:
            name = f"{base}_{len(names)}"
        names.append(name)
    return names
