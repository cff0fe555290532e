"""Partitioned topics."""

from __future__ import annotations

from typing import Any

from ...wire import TopicName
from ..errors import RefusedError
from ..policies.policy import UnreadableValueError, integer
from ..policies.pulsar_policies import PROPERTIES
from ..security import needs
from ..statistics.internal_stats import internal_stats
from ..statistics.partition_sums import sum_of_partitions
from ..statistics.stats import Pieces, topic_stats
from ..topics.creation import check_room, creates, partitions_created
from ..topics.registry import MAX_PARTITIONS, Topics
from ..topics.topic import Topic, TopicInUseError
from . import bodies
from .bodies import EMPTY, METADATA_TYPE
from .elsewhere import check_unused_elsewhere
from .messages import JSON_TYPE, HttpError, Request, Response
from .names import namespace_name, topic_name
from .properties import properties_of, text_properties
from .route import Route
from .topics import OWN_FIGURES, stats_options

__all__ = ["ROUTES", "check_no_partition"]


async def partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The number of partitions; 0 for a topic without partitions.

    With checkAllowAutoCreation=true an absent topic is created with the partitions that the policy
    of topics that clients create says: as in Pulsar, whose clients look topics up in this way.
    """
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    may_create = request.flag("checkAllowAutoCreation") and creates(topics, name)
    if not topics.exists(name) and not may_create:
        raise HttpError(404, f"Topic {name} not found")
    await _create_if_absent(request, name)
    count = topics.partitions_of(name)
    shown = properties_of(topics, name)
    return Response.of_json(
        {"partitions": count, "deleted": False, **({"properties": shown} if shown else {})}
    )


async def _create_if_absent(request: Request, name: TopicName) -> None:
    topics = request.services.topics
    count = 0 if topics.exists(name) else partitions_created(topics, name)
    if count:
        check_room(topics, name.namespace, count)
        await topics.create_partitioned(name, count)


async def create_partitioned(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create a partitioned topic; the body is the number of partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count, given = _metadata(request)
    if count < 1:
        raise HttpError(406, "Number of partitions should be more than 0")
    _check_count(request, count)
    check_no_partition(name)
    if topics.exists(name):
        raise HttpError(409, "This topic already exists")
    try:
        check_room(topics, name.namespace, count)
    except RefusedError as refusal:
        raise HttpError(412, refusal.message) from refusal
    await topics.create_partitioned(name, count, {PROPERTIES.key: given} if given else None)
    return Response()


def check_no_partition(name: TopicName) -> None:
    """Raise `HttpError` 412 for the name of a partition, which cannot have partitions itself."""
    if name.partition_index >= 0:
        raise HttpError(412, "Partitioned Topic Name should not contain '-partition-'")


def _metadata(request: Request) -> tuple[int, dict[str, str]]:
    """The body: a number of partitions, or an object with it and with properties."""
    if request.headers.get("content-type", "").startswith(METADATA_TYPE):
        body = request.json()
        if not isinstance(body, dict):
            raise HttpError(400, "the body must be a JSON object", text_type="text/plain")
        return _int(body.get("partitions", 0)), text_properties(body.get("properties"))
    return _count(request), {}


async def update_partitions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Add partitions."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    count = _count(request)
    before = topics.partitions_of(name)
    if not before:
        raise HttpError(409, f"Topic {name} is not the partitioned topic.")
    if count < before:
        raise HttpError(
            422, f"Desired partitions {count} can't be less than the current partitions {before}."
        )
    _check_count(request, count)
    if count > before:
        await topics.create_partitioned(name, count)
    return Response()


async def create_missed(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Create the partitions that were deleted one by one."""
    topics = request.services.topics
    name = topic_name(request, domain, tenant, namespace, topic)
    check_no_partition(name)
    count = topics.partitions_of(name)
    if not count:
        raise HttpError(404, f"Topic {name} does not exist")
    for index in range(count if domain == "persistent" else 0):
        await topics.open(name.partition(index), create=True, explicit=True)
    return Response()


async def delete_partitioned(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Delete a partitioned topic with its partitions."""
    topics = request.services.topics
    if not topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {domain}://{tenant}/{namespace}/{topic} not found.")
    name = topic_name(request, domain, tenant, namespace, topic)
    if not topics.exists(name):
        raise HttpError(404, f"Topic {name} not found.")
    if not topics.partitions_of(name):
        raise HttpError(
            409,
            f"{name} is a non-partitioned topic. "
            "Instead of calling delete-partitioned-topic please call delete.",
        )
    if not request.flag("force"):
        await check_unused_elsewhere(request, name)
    try:
        await topics.delete_partitioned(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, "Topic has active producers/subscriptions") from error
    return Response()


async def list_partitioned(request: Request, domain: str, tenant: str, namespace: str) -> Response:
    """The namespace's partitioned topics."""
    names = request.services.topics.partitioned_in(namespace_name(request, tenant, namespace))
    shown = [name for name in names if name.startswith(f"{domain}:")]
    return await Response.of_long_json(shown, request.services.topics.turns)


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


def _count(request: Request) -> int:
    if not request.body.strip():
        raise HttpError(400, EMPTY, text_type=JSON_TYPE)
    return _int(request.json())


def _int(value: object) -> int:
    try:
        return integer("partitions", value)
    except UnreadableValueError as error:
        raise HttpError(400, str(error), text_type="text/plain") from error


def _check_count(request: Request, count: int) -> None:
    most = request.services.config.max_num_partitions_per_partitioned_topic or MAX_PARTITIONS
    if count > most:
        raise HttpError(406, f"Number of partitions should be less than or equal to {most}")


TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route(
        "GET",
        "/admin/v2/{domain}/{tenant}/{namespace}/partitioned",
        needs.namespace("GET_TOPICS"),
        None,
        list_partitioned,
    ),
    Route("GET", f"{TOPIC}/partitions", needs.topic("LOOKUP"), None, partitions),
    Route(
        "PUT",
        f"{TOPIC}/partitions",
        needs.topic_policy("PARTITION", "WRITE"),
        bodies.INT,
        create_partitioned,
    ),
    Route(
        "POST",
        f"{TOPIC}/partitions",
        needs.topic_policy("PARTITION", "WRITE"),
        bodies.INT,
        update_partitions,
    ),
    Route(
        "DELETE", f"{TOPIC}/partitions", needs.namespace("DELETE_TOPIC"), None, delete_partitioned
    ),
    Route(
        "POST",
        f"{TOPIC}/createMissedPartitions",
        needs.namespace("CREATE_TOPIC"),
        None,
        create_missed,
    ),
    Route("GET", f"{TOPIC}/partitioned-stats", needs.topic("GET_STATS"), None, partitioned_stats),
    Route(
        "GET",
        f"{TOPIC}/partitioned-internalStats",
        needs.topic("GET_STATS"),
        None,
        partitioned_internal_stats,
    ),
)
