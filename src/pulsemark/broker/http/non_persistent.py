"""Non-persistent topics: statistics, subscriptions, creating and deleting.

These routes come before those of `topics` and others, whose `{domain}` would match, too. Those are
for topics in memory as well where nothing here differs, and refuse what is about stored messages.
"""

from __future__ import annotations

from ..errors import RefusedError
from ..metrics.stats import (
    non_persistent_internal_stats,
    non_persistent_partitions_stats,
    non_persistent_stats,
)
from ..security import needs
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..topics.non_persistent import NonPersistentTopic
from ..topics.topic import TopicInUseError
from .messages import HttpError, Request, Response
from .paths import check_no_partition, namespace_name, topic_name, topics_in_bundle
from .route import Routes, TopicPath
from .topics import stats_options

routes = Routes()
DOMAIN = "non-persistent"
TOPIC = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
BUNDLE = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{bundle}}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"


def _open(request: Request, path: TopicPath) -> NonPersistentTopic:
    name = topic_name(request, path)
    found = request.services.topics.non_persistent.open_topics.get(str(name))
    if found is None:
        raise HttpError(404, f"Topic {name} not found")
    return found


@routes.put(TOPIC, needs.namespace("CREATE_TOPIC"))
async def create(request: Request, path: TopicPath) -> Response:
    """Create a topic without partitions; it exists until the broker ends."""
    name = topic_name(request, path)
    if request.services.topics.exists(name):
        raise HttpError(409, "This topic already exists")
    request.services.topics.non_persistent.open(name, create=True)
    return Response()


@routes.delete(TOPIC, needs.namespace("DELETE_TOPIC"))
async def delete(request: Request, path: TopicPath) -> Response:
    """Delete a topic without producers and consumers; with force=true also one with some.

    A topic that is not there is a success, as in Pulsar.
    """
    topics = request.services.topics
    if not topics.namespaces.may_have_topics(path.full_namespace):
        return Response()
    name = topic_name(request, path)
    if str(name) not in topics.non_persistent.open_topics:
        if topics.partitioned.count_of(name):
            text = f"{name} is a partitioned topic, instead of calling delete topic, "
            raise HttpError(409, f"{text}please call delete-partitioned-topic.")
        return Response()
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, "Topic has active producers/subscriptions") from error
    except RefusedError as refusal:
        raise HttpError(404, f"Topic {name} not found") from refusal
    return Response()


@routes.get(BUNDLE, needs.namespace("GET_TOPICS"))
async def in_bundle(request: Request, tenant: str, namespace: str, bundle: str) -> Response:
    """The namespace's open topics of one bundle."""
    full = namespace_name(request, tenant, namespace)
    names = topics_in_bundle(request, full, bundle)
    return Response.of_json([name for name in names if name.startswith(f"{DOMAIN}:")])


@routes.put(f"{TOPIC}/unload", needs.topic("UNLOAD"))
async def unload(request: Request, path: TopicPath) -> Response:
    """Disconnect all clients and forget the topic; its next use makes it again."""
    opened, topics = _open(request, path), request.services.topics
    await topics.turns.work(topics.non_persistent.remove(opened.topic_name, force=True))
    return Response()


@routes.get(f"{TOPIC}/stats", needs.topic("GET_STATS"))
async def stats(request: Request, path: TopicPath) -> Response:
    """Counters, producers, subscriptions with what they dropped, and their consumers."""
    opened = _open(request, path)
    shown = non_persistent_stats(opened, stats_options(request))
    return await Response.of_long_json(shown, request.services.topics.turns)


@routes.get(f"{TOPIC}/internalStats", needs.topic("GET_STATS"))
async def stats_internal(request: Request, path: TopicPath) -> Response:
    """The figures that persistent topics have, all zero: nothing is stored."""
    try:
        opened = _open(request, path)
    except HttpError as error:
        raise HttpError(404, "Topic not found") from error
    return Response.of_json(non_persistent_internal_stats(opened))


@routes.get(f"{TOPIC}/partitioned-stats", needs.topic("GET_STATS"))
async def partitioned_stats(request: Request, path: TopicPath) -> Response:
    """The sum of the partitions' stats; with perPartition=true each partition's, too."""
    name, topics = topic_name(request, path), request.services.topics
    check_no_partition(name)
    count = topics.partitioned.count_of(name)
    if not count:
        raise HttpError(404, f"Partitioned topic not found {name}")
    parts = topics.non_persistent.partitions(name, range(count))
    shows_each = request.query.get("perPartition", "true").lower() == "true"
    options = stats_options(request)
    body = non_persistent_partitions_stats(parts, count, options, shows_each=shows_each)
    return await Response.of_long_json(body, topics.turns)


@routes.get(f"{TOPIC}/subscriptions", needs.topic("GET_SUBSCRIPTIONS"))
async def subscriptions(request: Request, path: TopicPath) -> Response:
    """The names of the topic's subscriptions; for a partitioned topic each name once."""
    name, topics = topic_name(request, path), request.services.topics
    count = topics.partitioned.count_of(name)
    if not count:
        return Response.of_json(sorted(_open(request, path).subscriptions))
    parts = topics.non_persistent.partitions(name, range(count))
    return Response.of_json(sorted({one for part in parts for one in part.subscriptions}))


@routes.put(SUBSCRIPTION, needs.topic("SUBSCRIBE"))
async def create_subscription(request: Request, path: TopicPath, name: str) -> Response:
    """Not possible: a subscription of a non-persistent topic begins with its first consumer."""
    reason = "Create subscription on non-persistent topic can only be done through client"
    raise HttpError(400, reason)


@routes.delete(SUBSCRIPTION, needs.topic("UNSUBSCRIBE"))
async def delete_subscription(request: Request, path: TopicPath, name: str) -> Response:
    """Delete a subscription without consumers; with force=true also one with consumers."""
    if request.services.topics.partitioned.count_of(topic_name(request, path)):
        raise HttpError(404, "Subscription not found")
    opened = _open(request, path)
    found = _subscription(opened, name)
    if found.consumers and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    await request.services.topics.turns.work(opened.drop_subscription(found))
    return Response()


@routes.post(f"{SUBSCRIPTION}/resetcursor/{{time}}", needs.topic("RESET_CURSOR"))
async def reset_cursor(request: Request, path: TopicPath, name: str, time: str) -> Response:
    """A success without effect: nothing is stored."""
    asked, topics = topic_name(request, path), request.services.topics
    partitions = topics.non_persistent.partitions(asked, range(topics.partitioned.count_of(asked)))
    for part in partitions or (_open(request, path),):
        _subscription(part, name)
    return Response()


def _subscription(opened: NonPersistentTopic, name: str) -> NonPersistentSubscription:
    """Raises `HttpError` 404."""
    found = opened.subscriptions.get(name)
    if not isinstance(found, NonPersistentSubscription):
        raise HttpError(404, f"Subscription {name} not found for topic {opened.name}")
    return found
