"""Topics: list, create, delete, statistics, message id by time."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, TypeGuard

from ...ledger import LedgerError, Position
from ...wire import TopicName
from ..policies.pulsar_policies import PROPERTIES
from ..security import needs
from ..statistics.internal_stats import internal_stats, managed_ledger_info
from ..statistics.stats import Pieces, StatsOptions, bytes_from, topic_stats
from ..subscriptions.seek import SeekTarget
from ..topics.creation import is_beyond_partitions
from ..topics.topic import Topic, TopicInUseError
from . import bodies
from .bundles import topics_in_bundle
from .messages import HttpError, Request, Response, UnservedError
from .names import (
    check_topics_namespace,
    existing_topic,
    namespace_name,
    open_logs,
    open_one_log,
    open_topic,
    plain_topic,
    topic_name,
)
from .properties import text_properties
from .route import Route

__all__ = ["ROUTES"]


async def list_topics(request: Request, domain: str, tenant: str, namespace: str) -> Response:
    """The namespace's topics of one domain, with each partition; `bundle` chooses some of them."""
    full = namespace_name(request, tenant, namespace)
    bundle = request.query.get("bundle")
    names = request.services.topics.names_in(full)
    if bundle:
        names = topics_in_bundle(request, full, bundle)
    shown = [name for name in names if name.startswith(f"{domain}:")]
    return await Response.of_long_json(shown, request.services.topics.turns)


async def create_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create a topic without partitions; the body may have properties."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    given = text_properties(request.json())
    if topics.exists(name):
        raise HttpError(409, "This topic already exists")
    _check_partition(request, name)
    await topics.open(name, create=True, explicit=True)
    if given:
        await topics.policies[PROPERTIES].set_for_topic(name, given)
    return Response()


def _check_partition(request: Request, name: TopicName) -> None:
    """Raise `HttpError` 412 for the name of a partition that no partitioned topic has."""
    if name.partition_index < 0:
        return
    whole = name.partitioned
    start = f'Can\'t create topic {name.local} with "-partition-" followed by'
    if not request.services.topics.partitions_of(whole):
        raise HttpError(
            412, f"{start} numeric value if there isn't a partitioned topic {whole.local} created."
        )
    if is_beyond_partitions(request.services.topics, name):
        raise HttpError(
            412,
            f"{start} a number smaller than number of partition of partitioned topic {whole.local}",
        )


async def delete_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Delete a topic without producers and consumers; with force=true also one with some."""
    topics = request.services.topics
    if not topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {domain}://{tenant}/{namespace}/{topic} not found")
    name = plain_topic(request, domain, tenant, namespace, topic)
    if topics.partitions_of(name):
        raise HttpError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic.",
        )
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        used = error.producers + error.consumers
        raise HttpError(412, f"Topic has {used} connected producers/consumers") from error
    return Response()


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


async def message_id_at(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, time: str
) -> Response:
    """The first entry at or after a time; if there is none, the id of the next entry."""
    what = (
        "Get message ID by timestamp on a partitioned topic is not allowed, "
        "please try do it on specific topic partition"
    )
    opened = await open_one_log(request, domain, tenant, namespace, topic, what=what)
    target = await SeekTarget.at_time(opened, parse_time(time), request.services.run_blocking)
    ledger_id, entry_id = target.position
    return Response.of_json(
        {
            "ledgerId": ledger_id,
            "entryId": entry_id,
            "partitionIndex": opened.partition_index,
            "batchIndex": -1,
            "batchSize": 0,
        }
    )


async def last_message_id(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The last message's id."""
    check_topics_namespace(request, domain, tenant, namespace, topic)
    opened = await open_topic(request, domain, tenant, namespace, topic)
    last = await request.services.topics.turns.result(opened.finding_last_id())
    end = opened.ledger.end_position
    batch = {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    return Response.of_json(
        {
            "ledgerId": end.ledger_id if last.entry_id < 0 else last.ledger_id,
            "entryId": last.entry_id,
            "partitionIndex": last.partition,
            "batchIndex": last.batch_index,
            "batchSize": 0,
            **(batch if last.batch_index >= 0 else {}),
        }
    )


async def unload(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Disconnect all producers and consumers; their clients reconnect by themselves."""
    for opened in await open_logs(request, domain, tenant, namespace, topic):
        await request.services.topics.turns.work(opened.disconnect())
    return Response()


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


async def backlog_size(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The bytes of the entries after the message id in the body."""
    what = "calculate backlog size is not allowed for partitioned-topic"
    opened = await open_one_log(request, domain, tenant, namespace, topic, what=what)
    start = opened.clamp(after(position_in(request.json())))
    size = await request.services.topics.turns.result(bytes_from(opened, start))
    return Response.of_json(size)


async def trim(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> Response:
    """Apply a topic's retention now; figures=true, or dryRun=true, answers what is removed.

    Without them the answer is empty, as Pulsar's.
    """
    check_topics_namespace(request, domain, tenant, namespace, topic)
    is_dry_run = request.flag("dryRun")
    figures = [
        {
            "topic": opened.name,
            **asdict(await request.services.cleaning.trim(opened, is_dry_run=is_dry_run)),
        }
        for opened in await open_logs(request, domain, tenant, namespace, topic)
    ]
    wants = is_dry_run or request.flag("figures")
    return Response.of_json(figures) if wants else Response(200)


def position_in(body: Any) -> Position:
    """The message id in a body. Raises `HttpError` 400."""
    if isinstance(body, dict):
        ledger_id, entry_id = body.get("ledgerId", 0), body.get("entryId", 0)
        if _is_id(ledger_id) and _is_id(entry_id):
            return Position(ledger_id, entry_id)
    reason = 'the body must be {"ledgerId": ..., "entryId": ...}'
    raise HttpError(400, reason, text_type="text/plain")


def after(position: Position) -> Position:
    """The place after an entry's."""
    return Position(position.ledger_id, position.entry_id + 1)


def _is_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and -1 <= value < 1 << 63


def parse_time(text: str) -> int:
    """Milliseconds since the epoch. Raises `UnservedError` 404, as Pulsar answers."""
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise UnservedError(404)
    return int(text)


TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route(
        "GET",
        "/admin/v2/{domain}/{tenant}/{namespace}",
        needs.namespace("GET_TOPICS"),
        None,
        list_topics,
    ),
    Route("PUT", TOPIC, needs.namespace("CREATE_TOPIC"), bodies.TEXTS, create_topic),
    Route("DELETE", TOPIC, needs.namespace("DELETE_TOPIC"), None, delete_topic),
    Route("GET", f"{TOPIC}/stats", needs.topic("GET_STATS"), None, stats),
    Route("GET", f"{TOPIC}/internalStats", needs.topic("GET_STATS"), None, stats_internal),
    Route("GET", f"{TOPIC}/internal-info", needs.topic("GET_STATS"), None, internal_info),
    Route("GET", f"{TOPIC}/messageid/{{time}}", needs.topic("PEEK_MESSAGES"), None, message_id_at),
    Route("GET", f"{TOPIC}/lastMessageId", needs.topic("PEEK_MESSAGES"), None, last_message_id),
    Route("PUT", f"{TOPIC}/unload", needs.topic("UNLOAD"), None, unload),
    Route("GET", f"{TOPIC}/offload", needs.topic("OFFLOAD"), None, offload_status),
    Route(
        "PUT",
        f"{TOPIC}/backlogSize",
        needs.topic("GET_BACKLOG_SIZE"),
        bodies.MESSAGE_ID,
        backlog_size,
    ),
    Route("POST", f"{TOPIC}/trim", needs.topic("TRIM_TOPIC"), None, trim),
)
