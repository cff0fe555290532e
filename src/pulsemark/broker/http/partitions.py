"""Partitioned topics."""

from __future__ import annotations

from ..errors import RefusedError
from ..statistics.stats import Pieces, topic_stats
from ..topics.creation import check_room, creates
from ..topics.registry import MAX_PARTITIONS
from ..topics.topic import TopicInUseError
from .messages import HttpError, Request, Response
from .names import namespace_name, topic_name
from .table import Route

__all__ = ["ROUTES"]


async def partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The number of partitions; 0 for a topic without partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    may_create = request.flag("checkAllowAutoCreation") and creates(topics, name)
    if not topics.exists(name) and not may_create:
        raise HttpError(404, f"Topic {name} not found")
    return Response.of_json({"partitions": topics.partitions_of(name), "deleted": False})


async def create_partitioned(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create a partitioned topic; the body is the number of partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = _count(request)
    if name.partition_index >= 0:
        raise HttpError(412, "a partition cannot have partitions")
    if topics.exists(name):
        raise HttpError(409, "This topic already exists")
    try:
        check_room(topics, name.namespace, count)
    except RefusedError as refusal:
        raise HttpError(412, refusal.message) from refusal
    await topics.create_partitioned(name, count)
    return Response()


async def update_partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Add partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = _count(request)
    before = topics.partitions_of(name)
    if not before:
        raise HttpError(404 if not topics.exists(name) else 409, "Topic is not partitioned topic")
    if count <= before:
        raise HttpError(422, f"the topic has {before} partitions; the new number must be larger")
    await topics.create_partitioned(name, count)
    return Response()


async def delete_partitioned(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Delete a partitioned topic with its partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    if not topics.partitions_of(name):
        raise HttpError(404, f"Partitioned topic {name} not found")
    try:
        await topics.delete_partitioned(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, f"Topic has active producers/subscriptions: {error}") from error
    return Response()


async def list_partitioned(request: Request, domain: str, tenant: str, namespace: str) -> Response:
    """The namespace's partitioned topics."""
    names = request.services.topics.partitioned_in(namespace_name(request, tenant, namespace))
    shown = [name for name in names if name.startswith(f"{domain}:")]
    return await Response.of_long_json(shown, request.services.topics.turns)


async def partitioned_stats(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Each partition's stats."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = topics.partitions_of(name)
    if not count:
        raise HttpError(404, f"Partitioned topic {name} not found")
    parts = [await topics.open(name.partition(i), create=True) for i in range(count)]

    def pieces() -> Pieces:
        rows = {}
        for part in parts:
            rows[part.name] = yield from topic_stats(part)
        return {"metadata": {"partitions": count}, "partitions": rows}

    return await Response.of_long_json(pieces(), topics.turns)


def _count(request: Request) -> int:
    count = request.json()
    if isinstance(count, bool) or not isinstance(count, int):
        raise HttpError(400, "the body must be the number of partitions")
    if not 1 <= count <= MAX_PARTITIONS:
        raise HttpError(406, f"the number of partitions must be from 1 to {MAX_PARTITIONS}")
    return count


TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    # This path has five segments, like a topic's own path, so it must come first.
    Route("GET", "/admin/v2/{domain}/{tenant}/{namespace}/partitioned", list_partitioned),
    Route("GET", f"{TOPIC}/partitions", partitions),
    Route("PUT", f"{TOPIC}/partitions", create_partitioned),
    Route("POST", f"{TOPIC}/partitions", update_partitions),
    Route("DELETE", f"{TOPIC}/partitions", delete_partitioned),
    Route("GET", f"{TOPIC}/partitioned-stats", partitioned_stats),
)
