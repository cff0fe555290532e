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
from .messages import HttpError, Json, Request
from .paths import check_no_partition, topic_name, topics_in_bundle
from .route import Routes, TopicPath
from .topics import stats_options

routes = Routes()
DOMAIN = "non-persistent"
TOPIC = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{topic}}"
BUNDLE = f"/admin/v2/{DOMAIN}/{{tenant}}/{{namespace}}/{{bundle}}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"


def _open(request: Request, path: TopicPath) -> NonPersistentTopic:
    name = topic_name(request, path)
    found = request.topics.non_persistent.open_topics.get(str(name))
    if found is None:
        raise HttpError(404, f"Topic {name} not found")
    return found


@routes.put(TOPIC, needs.namespace("CREATE_TOPIC"))
async def create(request: Request, path: TopicPath) -> None:
    """Create a topic without partitions; it exists until the broker ends."""
    name = topic_name(request, path)
    if request.topics.exists(name):
        raise HttpError(409, "This topic already exists")
    request.topics.non_persistent.open(name, create=True)


@routes.delete(TOPIC, needs.namespace("DELETE_TOPIC"))
async def delete(request: Request, path: TopicPath) -> None:
    """Delete a topic without producers and consumers; with force=true also one with some.

    A topic that is not there is a success, as in Pulsar.
    """
    topics = request.topics
    if not topics.namespaces.may_have_topics(path.full_namespace):
        return
    name = topic_name(request, path)
    if str(name) not in topics.non_persistent.open_topics:
        if topics.partitioned.count_of(name):
            text = f"{name} is a partitioned topic, instead of calling delete topic, "
            raise HttpError(409, f"{text}please call delete-partitioned-topic.")
        return
    try:
        await topics.delete(name, force=request.flag("force"))
    except TopicInUseError as error:
        raise HttpError(412, "Topic has active producers/subscriptions") from error
    except RefusedError as refusal:
        raise HttpError(404, f"Topic {name} not found") from refusal


@routes.get(BUNDLE, needs.namespace("GET_TOPICS"))
async def in_bundle(request: Request, namespace: str, bundle: str) -> Json:
    """The namespace's open topics of one bundle."""
    names = topics_in_bundle(request, namespace, bundle)
    return [name for name in names if name.startswith(f"{DOMAIN}:")]


@routes.put(f"{TOPIC}/unload", needs.topic("UNLOAD"))
async def unload(request: Request, path: TopicPath) -> None:
    """Disconnect all clients and forget the topic; its next use makes it again."""
    opened, topics = _open(request, path), request.topics
    await topics.turns.work(topics.non_persistent.remove(opened.topic_name, force=True))


@routes.get(f"{TOPIC}/stats", needs.topic("GET_STATS"))
async def stats(request: Request, path: TopicPath) -> Json:
    """Counters, producers, subscriptions with what they dropped, and their consumers."""
    opened = _open(request, path)
    return non_persistent_stats(opened, stats_options(request))


@routes.get(f"{TOPIC}/internalStats", needs.topic("GET_STATS"))
async def stats_internal(request: Request, path: TopicPath) -> Json:
    """The figures that persistent topics have, all zero: nothing is stored."""
    try:
        opened = _open(request, path)
    except HttpError as error:
        raise HttpError(404, "Topic not found") from error
    return non_persistent_internal_stats(opened)


@routes.get(f"{TOPIC}/partitioned-stats", needs.topic("GET_STATS"))
async def partitioned_stats(request: Request, path: TopicPath) -> Json:
    """The sum of the partitions' stats; with perPartition=true each partition's, too."""
    name, topics = topic_name(request, path), request.topics
    check_no_partition(name)
    count = topics.partitioned.count_of(name)
    if not count:
        raise HttpError(404, f"Partitioned topic not found {name}")
    parts = topics.non_persistent.partitions(name, range(count))
    shows_each = request.flag("perPartition", "true")
    options = stats_options(request)
    return non_persistent_partitions_stats(parts, count, options, shows_each=shows_each)


@routes.get(f"{TOPIC}/subscriptions", needs.topic("GET_SUBSCRIPTIONS"))
async def subscriptions(request: Request, path: TopicPath) -> Json:
    """The names of the topic's subscriptions; for a partitioned topic each name once."""
    name, topics = topic_name(request, path), request.topics
    count = topics.partitioned.count_of(name)
    if not count:
        return sorted(_open(request, path).subscriptions)
    parts = topics.non_persistent.partitions(name, range(count))
    return sorted({one for part in parts for one in part.subscriptions})


@routes.put(SUBSCRIPTION, needs.topic("SUBSCRIBE"))
async def create_subscription(request: Request, path: TopicPath, name: str) -> None:
    """Not possible: a subscription of a non-persistent topic begins with its first consumer."""
    reason = "Create subscription on non-persistent topic can only be done through client"
    raise HttpError(400, reason)


@routes.delete(SUBSCRIPTION, needs.topic("UNSUBSCRIBE"))
async def delete_subscription(request: Request, path: TopicPath, name: str) -> None:
    """Delete a subscription without consumers; with force=true also one with consumers."""
    if request.topics.partitioned.count_of(topic_name(request, path)):
        raise HttpError(404, "Subscription not found")
    opened = _open(request, path)
    found = _subscription(opened, name)
    if found.consumers and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    await request.topics.turns.work(opened.drop_subscription(found))


@routes.post(f"{SUBSCRIPTION}/resetcursor/{{time}}", needs.topic("RESET_CURSOR"))
async def reset_cursor(request: Request, path: TopicPath, name: str, time: str) -> None:
    """A success without effect: nothing is stored."""
    asked, topics = topic_name(request, path), request.topics
    partitions = topics.non_persistent.partitions(asked, range(topics.partitioned.count_of(asked)))
    for part in partitions or (_open(request, path),):
        _subscription(part, name)


def _subscription(opened: NonPersistentTopic, name: str) -> NonPersistentSubscription:
    """Raises `HttpError` 404."""
    found = opened.subscriptions.get(name)
    if not isinstance(found, NonPersistentSubscription):
        raise HttpError(404, f"Subscription {name} not found for topic {opened.name}")
    return found
