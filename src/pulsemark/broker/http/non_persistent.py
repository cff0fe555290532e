"""Non-persistent topics: statistics, subscriptions, creating and deleting.

These routes come before those of `topics` and others, whose `{domain}` would match, too. What is
about stored messages is refused, as in Pulsar.
"""

from __future__ import annotations

from typing import Any

from ...wire import TopicName
from ..errors import RefusedError
from ..metrics.non_persistent_stats import internal_stats, partitions_stats, topic_stats
from ..security import needs
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..topics.non_persistent import NonPersistentTopic
from ..topics.topic import TopicInUseError
from . import bodies
from .messages import HttpError, Request, Response
from .names import check_topics_namespace, namespace_name, topics_in_bundle, why_absent
from .route import Route
from .topics import NOT_PARTITIONED, check_no_partition, stats_options

__all__ = ["ROUTES"]

DOMAIN = "non-persistent"


def _name(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    if not request.services.topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, "Namespace not found")
    return request.services.topics.parse(f"{DOMAIN}://{tenant}/{namespace}/{topic}")


def _open(request: Request, tenant: str, namespace: str, topic: str) -> NonPersistentTopic:
    name = _name(request, tenant, namespace, topic)
    found = request.services.topics.non_persistent.open_topics.get(str(name))
    if found is None:
        raise HttpError(404, why_absent(request, name))
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
    if not topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
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


async def in_bundle(request: Request, tenant: str, namespace: str, bundle: str) -> Response:
    """The namespace's open topics of one bundle."""
    full = namespace_name(request, tenant, namespace)
    names = topics_in_bundle(request, full, bundle)
    return Response.of_json([name for name in names if name.startswith(f"{DOMAIN}:")])


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
    check_no_partition(name)
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
    if request.services.topics.partitions_of(_name(request, tenant, namespace, topic)):
        raise HttpError(404, "Subscription not found")
    opened = _open(request, tenant, namespace, topic)
    found = _subscription(opened, name)
    if found.consumers and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    await request.services.topics.turns.work(opened.drop_subscription(found))
    return Response()


async def reset_cursor(
    request: Request, tenant: str, namespace: str, topic: str, name: str, time: str
) -> Response:
    """A success without effect: nothing is stored."""
    partitions = _partitions(request, tenant, namespace, topic)
    for part in partitions or (_open(request, tenant, namespace, topic),):
        _subscription(part, name)
    return Response()


async def analyze_backlog(
    request: Request, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Refused: nothing is stored."""
    opened = _open(request, tenant, namespace, topic)
    _subscription(opened, name)
    raise HttpError(405, f"{opened.name} is not stored")


def _partitions(
    request: Request, tenant: str, namespace: str, topic: str
) -> list[NonPersistentTopic]:
    """The open partitions of a partitioned topic; none for others."""
    name, topics = _name(request, tenant, namespace, topic), request.services.topics
    return topics.non_persistent.partitions(name, range(topics.partitions_of(name)))


def _subscription(opened: NonPersistentTopic, name: str) -> NonPersistentSubscription:
    """Raises `HttpError` 404."""
    found = opened.subscriptions.get(name)
    if not isinstance(found, NonPersistentSubscription):
        raise HttpError(404, f"Subscription {name} not found for topic {opened.name}")
    return found


def _refused(reason: str, of_partitioned: str) -> Any:
    async def refuse(
        request: Request, tenant: str, namespace: str, topic: str, *_: str
    ) -> Response:
        if not of_partitioned:
            check_topics_namespace(request, DOMAIN, tenant, namespace, topic)
        name = _name(request, tenant, namespace, topic)
        if of_partitioned and request.services.topics.partitions_of(name):
            raise HttpError(405, of_partitioned)
        _open(request, tenant, namespace, topic)
        raise HttpError(405, reason)

    return refuse


def _always_refused(status: int, reason: str) -> Any:
    async def refuse(request: Request, *_: str) -> Response:
        raise HttpError(status, reason)

    return refuse


async def terminate_partitions(
    request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """Not possible."""
    name = _name(request, tenant, namespace, topic)
    if not request.services.topics.partitions_of(name):
        raise HttpError(405, NOT_PARTITIONED)
    raise HttpError(406, NOT_PERSISTENT)


TOPIC = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
BUNDLE = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{bundle}}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
REPLICATED = f"{SUBSCRIPTION}/replicatedSubscriptionStatus"
NOT_ALLOWED = "{} on a non-persistent topic is not allowed"

NOT_PERSISTENT = "Need to provide a persistent topic name"
OF_PARTITIONED = "{} on a partitioned topic is not allowed"

#: What is about stored messages: method, path, operation, Pulsar's words for it, and the reason for
#: a partitioned topic.
STORED = (
    ("GET", f"{TOPIC}/lastMessageId", "PEEK_MESSAGES", "GetLastMessageId", ""),
    (
        "GET",
        f"{TOPIC}/messageid/{{time}}",
        "PEEK_MESSAGES",
        "Get message ID by timestamp",
        OF_PARTITIONED.format("Get message ID by timestamp")
        + ", please try do it on specific topic partition",
    ),
    (
        "GET",
        f"{TOPIC}/examinemessage",
        "PEEK_MESSAGES",
        "Examine messages",
        OF_PARTITIONED.format("Examine messages")
        + ", please try examine message on specific topic partition",
    ),
    (
        "GET",
        f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}",
        "PEEK_MESSAGES",
        "Get message by ID",
        "GetMessageById is not allowed on partitioned-topic",
    ),
    (
        "GET",
        f"{SUBSCRIPTION}/position/{{position}}",
        "PEEK_MESSAGES",
        "Peek messages",
        OF_PARTITIONED.format("Peek messages"),
    ),
    (
        "POST",
        f"{SUBSCRIPTION}/skip/{{count}}",
        "SKIP",
        "Skip messages",
        OF_PARTITIONED.format("Skip messages"),
    ),
    (
        "POST",
        f"{SUBSCRIPTION}/skip_all",
        "SKIP",
        "Clear backlog",
        NOT_ALLOWED.format("Clear backlog"),
    ),
    (
        "POST",
        f"{SUBSCRIPTION}/expireMessages/{{time}}",
        "EXPIRE_MESSAGES",
        "Expire messages",
        NOT_ALLOWED.format("Expire messages"),
    ),
    (
        "POST",
        f"{TOPIC}/all_subscription/expireMessages/{{time}}",
        "EXPIRE_MESSAGES",
        "Expire messages for all subscriptions",
        NOT_ALLOWED.format("Expire messages for all subscriptions"),
    ),
)

#: What is refused before the topic is looked for.
NEVER = (
    ("GET", f"{TOPIC}/properties", "GET_METADATA", 406, NOT_PERSISTENT),
    ("PUT", f"{TOPIC}/properties", "UPDATE_METADATA", 406, NOT_PERSISTENT),
    ("DELETE", f"{TOPIC}/properties", "DELETE_METADATA", 406, NOT_PERSISTENT),
    ("POST", f"{TOPIC}/terminate", "TERMINATE", 406, NOT_PERSISTENT),
    ("POST", f"{TOPIC}/trim", "TRIM_TOPIC", 405, NOT_ALLOWED.format("Trim")),
    (
        "GET",
        REPLICATED,
        "GET_REPLICATED_SUBSCRIPTION_STATUS",
        405,
        "Cannot get replicated subscriptions on non-persistent topics",
    ),
    (
        "POST",
        REPLICATED,
        "SET_REPLICATED_SUBSCRIPTION_STATUS",
        405,
        "Cannot enable/disable replicated subscriptions on non-persistent topics",
    ),
)

ROUTES = (
    # These paths have as many segments as a topic's own one.
    Route("PUT", TOPIC, needs.namespace("CREATE_TOPIC"), bodies.TEXTS, create),
    Route("DELETE", TOPIC, needs.namespace("DELETE_TOPIC"), None, delete),
    Route("PUT", f"{TOPIC}/unload", needs.topic("UNLOAD"), None, unload),
    Route("GET", BUNDLE, needs.namespace("GET_TOPICS"), None, in_bundle),
    Route("GET", f"{TOPIC}/stats", needs.topic("GET_STATS"), None, stats),
    Route("GET", f"{TOPIC}/internalStats", needs.topic("GET_STATS"), None, stats_internal),
    Route("GET", f"{TOPIC}/partitioned-stats", needs.topic("GET_STATS"), None, partitioned_stats),
    Route("GET", f"{TOPIC}/subscriptions", needs.topic("GET_SUBSCRIPTIONS"), None, subscriptions),
    Route("PUT", SUBSCRIPTION, needs.topic("SUBSCRIBE"), bodies.PLACE, create_subscription),
    Route("DELETE", SUBSCRIPTION, needs.topic("UNSUBSCRIBE"), None, delete_subscription),
    Route(
        "POST",
        f"{SUBSCRIPTION}/resetcursor/{{time}}",
        needs.topic("RESET_CURSOR"),
        None,
        reset_cursor,
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/analyzeBacklog",
        needs.topic("CONSUME"),
        bodies.PLACE,
        analyze_backlog,
    ),
    Route("GET", f"{SUBSCRIPTION}/properties", needs.topic("CONSUME"), None, analyze_backlog),
    Route(
        "POST",
        f"{TOPIC}/terminate/partitions",
        needs.topic("TERMINATE"),
        None,
        terminate_partitions,
    ),
    *(
        Route(
            method,
            path,
            needs.topic(operation, all_subscriptions="all_subscription" in path),
            None,
            _refused(NOT_ALLOWED.format(what), of_partitioned),
        )
        for method, path, operation, what, of_partitioned in STORED
    ),
    *(
        Route(method, path, needs.topic(operation), None, _always_refused(status, reason))
        for method, path, operation, status, reason in NEVER
    ),
)
