"""The backlogs of subscriptions: counted, skipped, expired, cleared, and limited by quotas.

Statuses and bodies are those of Apache Pulsar 4.0.8. A quota that retention makes pointless is
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ...ledger import EARLIEST, LATEST, Position
from ...ledger.would_block import when_read
from ..cleaning.trimming import ask_to_expire
from ..metrics.stats import bytes_from
from ..policies.pulsar_policies import (
    BACKLOG_QUOTAS,
    MESSAGE_AGE,
    RETENTION,
    STORAGE,
    default_quotas,
    exceeds_retention,
    read_quota,
)
from ..security import needs
from ..storage import durable
from ..subscriptions.subscription import Subscription
from . import paths
from .messages import HttpError, Json, Request, UnservedError
from .policies import policy_of, without
from .route import BUNDLE, NAMESPACE, SUBSCRIPTION, TOPIC, Routes, TopicPath

routes = Routes()


@routes.post(f"{SUBSCRIPTION}/skip_all", needs.topic("SKIP"))
async def skip_all(request: Request, path: TopicPath, name: str) -> None:
    """Acknowledge all entries in the topic."""
    asked = paths.existing_topic(request, path)
    for opened in await paths.open_logs(request, path):
        one = opened.subscriptions.get(name)
        if one is None:
            raise paths.subscription_not_found(name, asked)
        await _clear(one)


@routes.post(f"{SUBSCRIPTION}/skip/{{count}}", needs.topic("SKIP"))
async def skip(request: Request, path: TopicPath, name: str, count: str) -> None:
    """Acknowledge the next `count` entries."""
    what = "Skip messages on a partitioned topic is not allowed"
    subscription = await paths.find_subscription(request, path, name, what=what)
    await subscription.skip(paths.int_value(count))


@routes.post(f"{SUBSCRIPTION}/analyzeBacklog", needs.topic("CONSUME"))
async def analyze_backlog(request: Request, path: TopicPath, name: str) -> Json:
    """Count what a subscription has not acknowledged, or all from a message id in the body on."""
    what = "Analyze backlog on a partitioned topic is not allowed, please try do it on specific "
    what += "topic partition"
    one = await paths.find_subscription(request, path, name, what=what)
    first, entries, messages = await when_read(_backlog, one, request.json())
    shown: dict[str, Any] = {
        "entries": entries,
        "messages": messages,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": False,
    }
    last = one.log.last_position
    if entries and last is not None:
        shown |= {"firstMessageId": str(first), "lastMessageId": str(last)}
    return shown


def _backlog(one: Subscription, body: Any) -> tuple[Position, int, int]:
    """A backlog's first position, entries and messages. Raises `HttpError` 400."""
    if body is None:
        cursor = one.cursor
        return cursor.first_unacked, cursor.backlog_entries, cursor.backlog_messages
    log, given = one.log, EARLIEST if body == "earliest" else paths.position_in(body)
    first = one.topic.clamp(given, one.compacted)
    control = log.control_count(first, LATEST)
    entries = log.count_entries(first, LATEST) - control
    return first, entries, log.message_count(first, LATEST) - control


Action = Callable[[Subscription], Awaitable[None]]


@routes.post(f"{NAMESPACE}/clearBacklog", needs.namespace("CLEAR_BACKLOG"))
@routes.post(f"{NAMESPACE}/clearBacklog/{{subscription}}", needs.namespace("CLEAR_BACKLOG"))
async def clear(request: Request, namespace: str, subscription: str | None = None) -> None:
    """Acknowledge all messages of a namespace, for one subscription or for all."""
    await _each(request, request.topics.names_in(namespace), subscription, _clear)


@routes.post(f"{BUNDLE}/clearBacklog", needs.namespace("CLEAR_BACKLOG"))
@routes.post(f"{BUNDLE}/clearBacklog/{{subscription}}", needs.namespace("CLEAR_BACKLOG"))
async def clear_bundle(
    request: Request, namespace: str, bundle: str, subscription: str | None = None
) -> None:
    """Acknowledge all messages of a bundle, for one subscription or for all."""
    await _each(request, paths.topics_in_bundle(request, namespace, bundle), subscription, _clear)


@routes.post(f"{NAMESPACE}/unsubscribe/{{subscription}}", needs.namespace("UNSUBSCRIBE"))
async def unsubscribe(request: Request, namespace: str, subscription: str) -> None:
    """Delete a subscription from all topics of a namespace."""
    _check_no_replicator(subscription)
    await _each(request, request.topics.names_in(namespace), subscription, _unsubscribe)


@routes.post(f"{BUNDLE}/unsubscribe/{{subscription}}", needs.namespace("UNSUBSCRIBE"))
async def unsubscribe_bundle(
    request: Request, namespace: str, bundle: str, subscription: str
) -> None:
    """Delete a subscription from all topics of a bundle."""
    _check_no_replicator(subscription)
    names = paths.topics_in_bundle(request, namespace, bundle)
    await _each(request, names, subscription, _unsubscribe)


def _check_no_replicator(subscription: str) -> None:
    if subscription.startswith("pulsar.repl."):
        raise HttpError(412, "Cannot unsubscribe a replication cursor")


async def _each(
    request: Request, names: list[str], subscription: str | None, action: Action
) -> None:
    topics = request.topics
    for name in names:
        parsed = topics.parse(name)
        if not parsed.is_persistent or not topics.exists(parsed):
            continue
        opened = await topics.open(parsed, create=False)
        for one in tuple(opened.subscriptions.values()):
            if subscription in (None, one.name) and one.exists:
                await action(one)


async def _clear(subscription: Subscription) -> None:
    last = await when_read(lambda: subscription.log.last_position)
    if last is not None:
        await when_read(subscription.give_up, last)
        await durable(subscription.cursor.persist())


async def _unsubscribe(subscription: Subscription) -> None:
    if subscription.consumers:
        raise HttpError(412, "Subscription has active connected consumers")
    await durable(subscription.topic.remove_subscription(subscription))


NOT_BY_TIME = (
    "Expire message by timestamp not issued on topic {} for subscription {} due to ongoing message "
    "expiration not finished or subscription almost catch  up. If it's performed on a partitioned "
    "topic operation might succeeded on other partitions, please check stats of individual "
    "partition."
)
NOT_BY_POSITION = (
    "Expire message by position not issued on topic {} for subscription {} due to ongoing message "
    "expiration not finished or invalid message position provided."
)
WRONG_PARTITION = (
    "Invalid parameter for expire message by position, partition index of passed in message "
    "position doesn't match partition index for the topic"
)


@routes.post(f"{SUBSCRIPTION}/expireMessages/{{seconds}}", needs.topic("EXPIRE_MESSAGES"))
async def expire_by_age(request: Request, path: TopicPath, name: str, age: str) -> None:
    """Expire a subscription's messages that are older than a number of seconds."""
    ttl_s = paths.int_value(age)
    topics = await paths.open_logs(request, path)
    found = [opened.subscriptions[name] for opened in topics if name in opened.subscriptions]
    if not found:
        raise paths.subscription_not_found(name, paths.existing_topic(request, path))
    await _expire_each(request, found, ttl_s)


@routes.post(
    f"{TOPIC}/all_subscription/expireMessages/{{seconds}}",
    needs.topic("EXPIRE_MESSAGES", all_subscriptions=True),
)
async def expire_all_by_age(request: Request, path: TopicPath, age: str) -> None:
    """Expire old messages of every subscription; 409 names the first one without an effect."""
    ttl_s = paths.int_value(age)
    topics = await paths.open_logs(request, path)
    found = [one for opened in topics for one in tuple(opened.subscriptions.values())]
    await _expire_each(request, found, ttl_s)


async def _expire_each(request: Request, found: list[Subscription], ttl_s: int) -> None:
    refusals = []
    for one in found:
        last = await request.services.cleaning.due_position(one.topic, ttl_s)
        if not await ask_to_expire(one, last, first_time_known=True):
            refusals.append(NOT_BY_TIME.format(one.topic.name, one.name))
    if refusals:
        raise HttpError(409, refusals[0])


@routes.post(f"{SUBSCRIPTION}/expireMessages", needs.topic("EXPIRE_MESSAGES"))
async def expire_up_to(request: Request, path: TopicPath, name: str) -> None:
    """Expire a subscription's messages up to and including the message id in the body."""
    position, partition_index = _message_id(request.json())
    if request.topics.partitioned.count_of(paths.stored_topic(request, path)):
        reason = "Expire message at position is not supported for partitioned-topic"
        raise HttpError(405, reason)
    (opened,) = await paths.open_stored(request, path)
    if partition_index != opened.partition_index:
        raise HttpError(412, WRONG_PARTITION)
    subscription = opened.subscriptions.get(name)
    if subscription is None:
        raise paths.subscription_not_found(name, opened.name)
    if position >= opened.ledger.end_position:
        raise HttpError(409, NOT_BY_POSITION.format(opened.name, name))
    await ask_to_expire(subscription, position, first_time_known=False)


def _message_id(body: Any) -> tuple[Position, int]:
    """Read a `ResetCursorData`. Missing fields are 0, a missing partition is -1."""
    if body == "earliest":
        return EARLIEST, -1
    position = paths.position_in(body)
    partition_index = body.get("partitionIndex", -1)
    if type(partition_index) is not int:
        raise HttpError(400, "partitionIndex must be a whole number", text_type="text/plain")
    return position, partition_index


@routes.put(f"{TOPIC}/backlogSize", needs.topic("GET_BACKLOG_SIZE"))
async def backlog_size(request: Request, path: TopicPath) -> Json:
    """The bytes of the entries after the message id in the body."""
    what = "calculate backlog size is not allowed for partitioned-topic"
    opened = await paths.open_topic(request, path, what=what)
    start = opened.clamp(paths.position_in(request.json()).following)
    return await request.topics.turns.result(bytes_from(opened, start))


TOO_LARGE = (
    "Backlog Quota exceeds configured retention quota for {}. Please increase retention quota and "
    "retry"
)


@routes.get(f"{NAMESPACE}/backlogQuotaMap", needs.namespace_policy("BACKLOG", "READ"))
@routes.get(f"{TOPIC}/backlogQuotaMap", needs.topic_policy("BACKLOG", "READ"))
async def quotas(request: Request, where: TopicPath | str) -> Json:
    """The quotas that are set; with applied=true those that apply to a topic."""
    found = policy_of(request, BACKLOG_QUOTAS, where)
    if found.topic is not None and request.flag("applied"):
        levels = found.levels
        is_set = levels.of(found.topic) or levels.of(found.namespace)
        return levels.applied(found.topic) if is_set else default_quotas(request.services.config)
    return found.value or {}


@routes.post(f"{NAMESPACE}/backlogQuota", needs.namespace_policy("BACKLOG", "WRITE"))
@routes.post(f"{TOPIC}/backlogQuota", needs.topic_policy("BACKLOG", "WRITE"))
async def set_quota(request: Request, where: TopicPath | str) -> None:
    """Set one of the quotas; an empty body removes that of a topic."""
    found, kind = policy_of(request, BACKLOG_QUOTAS, where), _kind(request)
    if found.topic is not None and request.json() is None:
        await found.revise(partial(without, key=kind))
        return
    quota = read_quota(request.json(), found.namespace)
    limits = request.topics.policies[RETENTION]
    if found.topic is None:
        _check(quota, limits.of(found.namespace), "namespace")
    else:
        _check(quota, limits.of(found.topic), "topic")
    await found.revise(lambda before: {**(before or {}), kind: quota})


@routes.delete(f"{NAMESPACE}/backlogQuota", needs.namespace_policy("BACKLOG", "WRITE"))
@routes.delete(f"{TOPIC}/backlogQuota", needs.topic_policy("BACKLOG", "WRITE"))
async def unset_quota(request: Request, where: TopicPath | str) -> None:
    """Remove one of the quotas."""
    found = policy_of(request, BACKLOG_QUOTAS, where)
    await found.revise(partial(without, key=_kind(request)))


def _kind(request: Request) -> str:
    kind = request.query.get("backlogQuotaType", STORAGE)
    if kind not in (STORAGE, MESSAGE_AGE):
        raise UnservedError(404)
    return kind


def _check(quota: Any, retention: Any, level: str) -> None:
    """Refuse a quota above what retention keeps anyway."""
    if retention is not None and exceeds_retention(quota, retention):
        raise HttpError(412, TOO_LARGE.format(level))
