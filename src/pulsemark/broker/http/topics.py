"""Topics: list, create, delete, statistics, message id by time."""

from __future__ import annotations

from ..statistics.stats import internal_stats, topic_stats
from ..subscriptions.seek import SeekTarget
from ..topics.topic import TopicInUseError
from .messages import HttpError, Request, Response
from .names import (
    DOMAINS,
    existing_topic,
    namespace_name,
    open_logs,
    open_one_log,
    open_topic,
    topic_name,
)
from .table import Route

__all__ = ["ROUTES"]


async def list_topics(request: Request, domain: str, tenant: str, namespace: str) -> Response:
    """The namespace's topics of one domain, with each partition."""
    if domain not in DOMAINS:
        raise HttpError(404, "no such resource")
    names = request.services.topics.names_in(namespace_name(request, tenant, namespace))
    shown = [name for name in names if name.startswith(f"{domain}:")]
    return await Response.of_long_json(shown, request.services.topics.turns)


async def create_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create a topic without partitions."""
    name = topic_name(request, domain, tenant, namespace, topic)
    if request.services.topics.exists(name):
        raise HttpError(409, "This topic already exists")
    await request.services.topics.open(name, create=True, explicit=True)
    return Response()


async def delete_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Delete a topic without producers and consumers; with force=true also one with some."""
    name = existing_topic(request, domain, tenant, namespace, topic)
    topics = request.services.topics
    if topics.partitions_of(name):
        raise HttpError(409, "Cannot delete a partitioned topic as a plain one")
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, f"Topic has active producers/subscriptions: {error}") from error
    return Response()


async def stats(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> Response:
    """Counters, producers, subscriptions and their consumers."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    return await Response.of_long_json(topic_stats(opened), request.services.topics.turns)


async def stats_internal(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Ledgers and cursors."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    from ...compaction.current_view import current_view

    view = await request.services.run_blocking(current_view, opened.ledger)
    body = internal_stats(opened, view)
    return await Response.of_long_json(body, request.services.topics.turns)


async def message_id_at(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, time: str
) -> Response:
    """The first entry at or after a time; if there is none, the id of the next entry."""
    what = "Get message ID by timestamp"
    opened = await open_one_log(request, domain, tenant, namespace, topic, what=what)
    target = await SeekTarget.at_time(opened, parse_time(time), request.services.run_blocking)
    ledger_id, entry_id = target.position
    return Response.of_json(
        {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": opened.partition_index}
    )


async def last_message_id(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The last message's id."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    last = await request.services.topics.turns.result(opened.finding_last_id())
    return Response.of_json(
        {
            "ledgerId": last.ledger_id,
            "entryId": last.entry_id,
            "partitionIndex": last.partition,
            "batchIndex": last.batch_index,
        }
    )


async def unload(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Disconnect all producers and consumers; their clients reconnect by themselves."""
    for opened in await open_logs(request, domain, tenant, namespace, topic):
        await request.services.topics.turns.work(opened.disconnect())
    return Response()


def parse_time(text: str) -> int:
    """Milliseconds since the epoch. Raises `HttpError` 400."""
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise HttpError(400, f"{text[:40]!r} is not a time in milliseconds")
    return int(text)


TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route("GET", "/admin/v2/{domain}/{tenant}/{namespace}", list_topics),
    Route("PUT", TOPIC, create_topic),
    Route("DELETE", TOPIC, delete_topic),
    Route("GET", f"{TOPIC}/stats", stats),
    Route("GET", f"{TOPIC}/internalStats", stats_internal),
    Route("GET", f"{TOPIC}/messageid/{{time}}", message_id_at),
    Route("GET", f"{TOPIC}/lastMessageId", last_message_id),
    Route("PUT", f"{TOPIC}/unload", unload),
)
