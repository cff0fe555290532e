"""The broker's figures of all topics at once, for monitoring: broker-stats.

Pulsar also shows the figures of its Java process there (memory pools, beans). This broker has none:
it answers with the same shapes, empty.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...ledger.being_read import in_pieces
from ..security import needs
from ..statistics.stats import StatsOptions, storage_size_bytes, topic_stats
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from .bundles import boundaries_of, bundle_of
from .messages import HttpError, Request, Response
from .route import Route

__all__ = ["ROUTES"]

#: The fields of a topic in broker-stats, with their names in the topic's own stats.
FIELDS = {
    "averageMsgSize": "averageMsgSize",
    "msgRateIn": "msgRateIn",
    "msgRateOut": "msgRateOut",
    "msgInCount": "msgInCounter",
    "bytesInCount": "bytesInCounter",
    "msgOutCount": "msgOutCounter",
    "bytesOutCount": "bytesOutCounter",
    "msgThroughputIn": "msgThroughputIn",
    "msgThroughputOut": "msgThroughputOut",
    "storageSize": "storageSize",
    "backlogSize": "backlogSize",
}
Rows = dict[str, Any]


async def topics(request: Request) -> Response:
    """The figures of all open topics, by namespace, bundle and domain."""
    opened = tuple(request.services.topics.open_topics.values())
    return await Response.of_long_json(_rows(request, opened), request.services.topics.turns)


def _rows(request: Request, opened: tuple[Topic, ...]) -> Generator[object, None, Rows]:
    namespaces = request.services.topics.namespaces
    found: Rows = {}
    boundaries: dict[str, list[int]] = {}
    for topic in opened:
        namespace = topic.topic_name.namespace
        if topic.is_open and namespace in namespaces:
            if namespace not in boundaries:
                boundaries[namespace] = boundaries_of(namespaces[namespace])
            row = yield from _row(topic)
            bundle = bundle_of(boundaries[namespace], topic.name)
            domain = found.setdefault(namespace, {}).setdefault(bundle, {})
            domain.setdefault("persistent", {})[topic.name] = row
        yield None
    return found


def _row(topic: Topic) -> Generator[object, None, Rows]:
    stats = yield from topic_stats(topic, StatsOptions())
    return {
        "publishers": stats["publishers"],
        "replication": {},
        "subscriptions": stats["subscriptions"],
        "producerCount": len(stats["publishers"]),
        **{name: stats[field] for name, field in FIELDS.items()},
        "pendingAddEntriesCount": 0,
        "filteredEntriesCount": 0,
    }


async def bookie_ops(request: Request) -> Response:
    """Operations that wait for bookies, by topic: none."""
    names = dict.fromkeys(
        f"{kind}Ledger{what}Op"
        for kind in ("data", "cursor")
        for what in ("Open", "Close", "Create", "Delete")
    )
    none = dict.fromkeys(names, 0)
    found: Rows = {}
    for topic in tuple(request.services.topics.open_topics.values()):
        found.setdefault(topic.topic_name.namespace, {})[topic.name] = none
    return await Response.of_long_json(found, request.services.topics.turns)


async def metrics(request: Request) -> Response:
    """Figures of the whole broker, and of each namespace."""
    opened = tuple(request.services.topics.open_topics.values())
    return await Response.of_long_json(_metrics(opened), request.services.topics.turns)


def _metrics(opened: tuple[Topic, ...]) -> Generator[object, None, list[Rows]]:
    sums: dict[str, Rows] = {}
    for topic in opened:
        row = sums.setdefault(topic.topic_name.namespace, dict.fromkeys(NAMESPACE_METRICS, 0))
        rates = topic.rate_meter.rates
        row["brk_in_rate"] += rates.messages_in
        row["brk_out_rate"] += rates.messages_out
        row["brk_in_tp_rate"] += rates.bytes_in
        row["brk_out_tp_rate"] += rates.bytes_out
        row["brk_no_of_producers"] += len(topic.producers.by_name)
        row["brk_no_of_subscriptions"] += len(topic.subscriptions)
        row["brk_storage_size"] += yield from storage_size_bytes(topic)
        for subscription in tuple(topic.subscriptions.values()):
            row["brk_no_of_consumers"] += len(subscription.consumers)
            row["brk_msg_backlog"] += yield from in_pieces(_backlog, subscription)
            yield None
        yield None
    whole = {"metrics": {"brk_ml_count": len(opened)}, "dimensions": {}}
    return [
        whole,
        *({"metrics": row, "dimensions": {"namespace": name}} for name, row in sums.items()),
    ]


def _backlog(subscription: Subscription) -> int:
    return subscription.backlog_entries


NAMESPACE_METRICS = (
    "brk_in_rate",
    "brk_in_tp_rate",
    "brk_msg_backlog",
    "brk_no_of_consumers",
    "brk_no_of_producers",
    "brk_no_of_subscriptions",
    "brk_out_rate",
    "brk_out_tp_rate",
    "brk_storage_size",
)


async def mbeans(request: Request) -> Response:
    """The beans of the Java process: there is none."""
    return Response.of_json([])


async def allocator(request: Request, name: str) -> Response:
    """The memory pool of the given name, `default` or `ml-cache`: without arenas."""
    if name not in ("default", "ml-cache"):
        raise HttpError(406, f"Invalid allocator name : {name[:80]}")
    counts = (
        "numDirectArenas",
        "numHeapArenas",
        "numThreadLocalCaches",
        "normalCacheSize",
        "smallCacheSize",
        "usedDirectMemory",
        "usedHeapMemory",
    )
    return Response.of_json({**dict.fromkeys(counts, 0), "directArenas": [], "heapArenas": []})


async def load_report(request: Request) -> Response:
    """The load that brokers report to each other: a broker alone reports none."""
    return Response()


async def availability(request: Request, tenant: str, namespace: str) -> Response:
    """Refused: there is no load manager."""
    raise HttpError(409, "This broker has no load manager and does not support this operation")


STATS = "/admin/v2/broker-stats"

ROUTES = (
    Route("GET", f"{STATS}/topics", needs.SUPER_USER, None, topics),
    Route("GET", f"{STATS}/bookieops", needs.SUPER_USER, None, bookie_ops),
    Route("GET", f"{STATS}/metrics", needs.SUPER_USER, None, metrics),
    Route("GET", f"{STATS}/mbeans", needs.SUPER_USER, None, mbeans),
    Route("GET", f"{STATS}/allocator-stats/{{allocator}}", needs.SUPER_USER, None, allocator),
    Route("GET", f"{STATS}/load-report", needs.SUPER_USER, None, load_report),
    Route(
        "GET",
        f"{STATS}/broker-resource-availability/{{tenant}}/{{namespace}}",
        needs.tenant_admin(),
        None,
        availability,
    ),
)
