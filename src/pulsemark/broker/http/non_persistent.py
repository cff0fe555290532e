"""Non-persistent topics: statistics, subscriptions, creating and deleting.

These routes come before those of `topics` and others, whose `{domain}` would match, too. What is
about stored messages is refused, as in Pulsar.
"""

from __future__ import annotations

from typing import Any

from ...wire import TopicName
from ..errors import RefusedError
from ..statistics.non_persistent_stats import internal_stats, partitions_stats, topic_stats
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..topics.non_persistent import NonPersistentTopic
from ..topics.topic import TopicInUseError
from .messages import HttpError, Request, Response
from .table import Route
from .topics import stats_options

__all__ = ["ROUTES"]

DOMAIN = "non-persistent"


def _name(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    return request.services.topics.parse(f"{DOMAIN}://{tenant}/{namespace}/{topic}")


def _open(request: Request, tenant: str, namespace: str, topic: str) -> NonPersistentTopic:
    name = _name(request, tenant, namespace, topic)
    found = request.services.topics.non_persistent.open_topics.get(str(name))
    if found is None:
        raise HttpError(404, f"Topic {name} not found")
    return found


async def create(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Create a topic without partitions; it exists until the broker ends."""
    name = _name(request, tenant, namespace, topic)
    if request.services.topics.exists(name):
        raise HttpError(409, "This topic already exists")
    request.services.topics.non_persistent.open(name, create=True)
    return Response()


async def delete(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Delete a topic without producers and consumers; with force=true also one with some.

    A topic that is not there is a success, as in Pulsar.
    """
    topics = request.services.topics
    if f"{tenant}/{namespace}" not in topics.namespaces:
        return Response()
    name = _name(request, tenant, namespace, topic)
    if str(name) not in topics.non_persistent.open_topics:
        if topics.partitions_of(name):
            raise HttpError(
                409,
                f"{name} is a partitioned topic, instead of calling delete topic, "
                "please call delete-partitioned-topic.",
            )
        return Response()
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, "Topic has active producers/subscriptions") from error
    except RefusedError as refusal:
        raise HttpError(404, f"Topic {name} not found") from refusal
    return Response()


async def unload(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Disconnect all clients and forget the topic; its next use makes it again."""
    opened, topics = _open(request, tenant, namespace, topic), request.services.topics
    await topics.turns.work(topics.non_persistent.remove(opened.topic_name, force=True))
    return Response()


async def stats(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Counters, producers, subscriptions with what they dropped, and their consumers."""
    opened = _open(request, tenant, namespace, topic)
    return await Response.of_long_json(
        topic_stats(opened, stats_options(request)), request.services.topics.turns
    )


async def stats_internal(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The figures that persistent topics have, all zero: nothing is stored."""
    try:
        opened = _open(request, tenant, namespace, topic)
    except HttpError as error:
        raise HttpError(404, "Topic not found") from error
    return Response.of_json(internal_stats(opened))


async def partitioned_stats(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The sum of the partitions' stats; with perPartition=true each partition's, too."""
    name, topics = _name(request, tenant, namespace, topic), request.services.topics
    count = topics.partitions_of(name)
    if not count:
        raise HttpError(404, f"Partitioned topic not found {name}")
    parts = topics.non_persistent.partitions(name, range(count))
    shows_each = request.query.get("perPartition", "true").lower() == "true"
    body = partitions_stats(parts, count, stats_options(request), shows_each=shows_each)
    return await Response.of_long_json(body, topics.turns)


async def subscriptions(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The names of the topic's subscriptions; for a partitioned topic each name once."""
    name, topics = _name(request, tenant, namespace, topic), request.services.topics
    count = topics.partitions_of(name)
    if not count:
        return Response.of_json(sorted(_open(request, tenant, namespace, topic).subscriptions))
    parts = topics.non_persistent.partitions(name, range(count))
    return Response.of_json(sorted({one for part in parts for one in part.subscriptions}))


async def create_subscription(
    request: Request, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Not possible: a subscription of a non-persistent topic begins with its first consumer."""
    reason = "Create subscription on non-persistent topic can only be done through client"
    raise HttpError(400, reason)


async def delete_subscription(
    request: Request, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Delete a subscription without consumers; with force=true also one with consumers."""
    opened = _open(request, tenant, namespace, topic)
    found = opened.subscriptions.get(name)
    if not isinstance(found, NonPersistentSubscription):
        raise HttpError(404, f"Subscription {name} not found")
    if found.consumers and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    await request.services.topics.turns.work(opened.drop_subscription(found))
    return Response()


async def reset_cursor(
    request: Request, tenant: str, namespace: str, topic: str, name: str, time: str
) -> Response:
    """A success without effect: nothing is stored."""
    opened = _open(request, tenant, namespace, topic)
    if name not in opened.subscriptions:
        raise HttpError(404, f"Subscription {name} not found")
    return Response()


def _refused(status: int, reason: str) -> Any:
    async def refuse(
        request: Request, tenant: str, namespace: str, topic: str, *_: str
    ) -> Response:
        _open(request, tenant, namespace, topic)
        raise HttpError(status, reason)

    return refuse


async def terminate(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Not possible."""
    raise HttpError(406, "Need to provide a persistent topic name")


TOPIC = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
NOT_ALLOWED = "{} on a non-persistent topic is not allowed"

#: What is about stored messages: method, path, and Pulsar's name of the operation.
STORED = (
    ("GET", f"{TOPIC}/lastMessageId", "GetLastMessageId"),
    ("GET", f"{TOPIC}/messageid/{{time}}", "Get message ID by timestamp"),
    ("GET", f"{TOPIC}/examinemessage", "Examine messages"),
    ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", "Get message by ID"),
    ("GET", f"{SUBSCRIPTION}/position/{{position}}", "Peek messages"),
    ("POST", f"{SUBSCRIPTION}/skip/{{count}}", "Skip messages"),
    ("POST", f"{SUBSCRIPTION}/skip_all", "Clear backlog"),
    ("POST", f"{SUBSCRIPTION}/expireMessages/{{time}}", "Expire messages"),
)

ROUTES = (
    # These paths have as many segments as a topic's own one.
    Route("PUT", TOPIC, create),
    Route("DELETE", TOPIC, delete),
    Route("PUT", f"{TOPIC}/unload", unload),
    Route("GET", f"{TOPIC}/stats", stats),
    Route("GET", f"{TOPIC}/internalStats", stats_internal),
    Route("GET", f"{TOPIC}/partitioned-stats", partitioned_stats),
    Route("GET", f"{TOPIC}/subscriptions", subscriptions),
    Route("PUT", SUBSCRIPTION, create_subscription),
    Route("DELETE", SUBSCRIPTION, delete_subscription),
    Route("POST", f"{SUBSCRIPTION}/resetcursor/{{time}}", reset_cursor),
    Route("POST", f"{TOPIC}/terminate", terminate),
    Route("POST", f"{TOPIC}/terminate/partitions", terminate),
    *(
        Route(method, path, _refused(405, NOT_ALLOWED.format(what)))
        for method, path, what in STORED
    ),
)
