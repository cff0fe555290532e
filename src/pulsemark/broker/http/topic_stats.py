"""Statistics of topics and of partitioned topics: counters, ledgers, cursors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ledger import LedgerError
from ...wire import TopicName
from ..metrics.internal_stats import internal_stats, managed_ledger_info
from ..metrics.stats import Pieces, StatsOptions, sum_of_partitions, topic_stats
from ..security import needs
from ..topics.registry import Topics
from ..topics.topic import Topic
from .messages import HttpError, Request, Response
from .names import (
    check_no_partition,
    check_topics_namespace,
    existing_topic,
    open_logs,
    open_topic,
    topic_name,
)
from .policies import properties_of
from .route import TOPIC, Route

__all__ = ["ROUTES", "stats_options"]


async def stats(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> Response:
    """Counters, producers, subscriptions and their consumers."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    wanted = stats_options(request)
    if request.flag("getEarliestTimeInBacklog"):
        earliest = await request.services.run_blocking(_earliest_times, opened)
        wanted = replace(wanted, earliest_ms=earliest)
    return await Response.of_long_json(topic_stats(opened, wanted), request.services.topics.turns)


#: The query parameter that asks for figures that only this broker has.
OWN_FIGURES = "ownFigures"


def stats_options(request: Request) -> StatsOptions:
    """What the query wants to know."""
    return StatsOptions(
        publishers=not request.flag("excludePublishers"),
        consumers=not request.flag("excludeConsumers"),
        own=request.flag(OWN_FIGURES),
        owner=request.services.http_url.partition("://")[2],
    )


def _earliest_times(opened: Topic) -> dict[str, int]:
    """By subscription, the time of its first waiting entry; -1 without one. Blocks."""
    times: dict[str, int] = {}
    for subscription in tuple(opened.subscriptions.values()):
        try:
            first = subscription.cursor.first_unacked
            found = opened.ledger.read(first, max_entries=1)
        except LedgerError:
            found = []
        times[subscription.name] = found[0].append_time_ms if found else -1
    return times


async def stats_internal(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Ledgers and cursors."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    from ...compaction.current_view import current_view

    view = await request.services.run_blocking(current_view, opened.ledger)
    body = internal_stats(opened, view, own=request.flag(OWN_FIGURES))
    return await Response.of_long_json(body, request.services.topics.turns)


async def internal_info(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """What is stored of a topic's ledgers and cursors; of each partition, if it has some."""
    topics = request.services.topics
    name = existing_topic(request, domain, tenant, namespace, topic)
    count = topics.partitions_of(name)
    opened = await open_logs(request, domain, tenant, namespace, topic)

    def pieces() -> Pieces:
        if not count:
            return (yield from managed_ledger_info(opened[0]))
        rows: dict[str, Any] = {}
        for part in opened:
            rows[part.name] = yield from managed_ledger_info(part)
            yield None
        return {"version": 0, "partitions": rows}

    return await Response.of_long_json(pieces(), topics.turns)


async def offload_status(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """NOT_RUN: the broker offloads nothing."""
    check_topics_namespace(request, domain, tenant, namespace, topic)
    await open_topic(request, domain, tenant, namespace, topic)
    first = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    return Response.of_json(
        {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": first}
    )


async def partitioned_stats(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The sums over the partitions; with perPartition (the default) also each one's stats."""
    topics = request.services.topics
    check_no_partition(topic_name(request, domain, tenant, namespace, topic))
    name, parts = await _open_partitions(request, domain, tenant, namespace, topic)
    wanted = stats_options(request)

    def pieces() -> Pieces:
        rows: dict[str, Any] = {}
        for part in parts:
            rows[part.name] = yield from topic_stats(part, wanted)
            yield None
        per_partition = request.query.get("perPartition", "true").lower() == "true"
        sums = yield from sum_of_partitions(list(rows.values()))
        return {
            **sums,
            "metadata": _shown_metadata(topics, name, len(parts)),
            "partitions": rows if per_partition else {},
        }

    return await Response.of_long_json(pieces(), topics.turns)


async def partitioned_internal_stats(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Each partition's ledgers and cursors."""
    topics = request.services.topics
    name, parts = await _open_partitions(request, domain, tenant, namespace, topic)

    def pieces() -> Pieces:
        rows: dict[str, Any] = {}
        for part in parts:
            rows[part.name] = yield from internal_stats(part, own=request.flag(OWN_FIGURES))
            yield None
        return {"metadata": _shown_metadata(topics, name, len(parts)), "partitions": rows}

    return await Response.of_long_json(pieces(), topics.turns)


def _shown_metadata(topics: Topics, name: TopicName, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {"partitions": count, "deleted": False}
    shown = properties_of(topics, name)
    return {**metadata, "properties": shown} if shown else metadata


async def _open_partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> tuple[TopicName, list[Topic]]:
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = topics.partitions_of(name)
    if not count:
        raise HttpError(404, f"Partitioned Topic {name} not found")
    return name, [await topics.open(name.partition(i), create=True) for i in range(count)]


ROUTES = (
    Route("GET", f"{TOPIC}/stats", needs.topic("GET_STATS"), None, stats),
    Route("GET", f"{TOPIC}/internalStats", needs.topic("GET_STATS"), None, stats_internal),
    Route("GET", f"{TOPIC}/internal-info", needs.topic("GET_STATS"), None, internal_info),
    Route("GET", f"{TOPIC}/offload", needs.topic("OFFLOAD"), None, offload_status),
    Route("GET", f"{TOPIC}/partitioned-stats", needs.topic("GET_STATS"), None, partitioned_stats),
    Route(
        "GET",
        f"{TOPIC}/partitioned-internalStats",
        needs.topic("GET_STATS"),
        None,
        partitioned_internal_stats,
    ),
)
