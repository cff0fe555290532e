"""Cleaning on demand: `compaction`, `expireMessages`, `truncate`, as in Pulsar.

On a partitioned topic each does its work for every partition.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from ...ledger import EARLIEST, Position
from ...wire import TopicName
from ..cleaning.expiry import ask_to_expire
from ..security import needs
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from . import bodies
from .messages import HttpError, Request, Response
from .policies import int_value, java_topic
from .route import Route
from .topics import TOPIC

__all__ = ["ROUTES"]

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


# -- compaction -----------------------------------------------------------------------------------


async def compaction_status(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """NOT_RUN, RUNNING, SUCCESS or ERROR since the topic was opened; for one partition only."""
    full = f"{domain}://{tenant}/{namespace}/{topic}"
    if not request.services.topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, f"Topic {full} not found")
    name = _name(request, domain, tenant, namespace, topic)
    if request.services.topics.partitions_of(name):
        raise HttpError(404, f"Topic {full} not found")
    figures = (await request.services.topics.open(name, create=False)).cleaning.compaction
    return Response.of_json({"status": figures.status.value, "lastError": figures.last_error})


async def compact(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Compact as soon as possible; 409 if a compaction runs already."""
    refused = False
    for opened in await _opened(request, domain, tenant, namespace, topic):
        refused |= not request.services.cleaning.compact(opened)
    if refused:
        raise HttpError(409, "Compaction already in progress")
    return Response()


# -- truncate -------------------------------------------------------------------------------------


async def truncate(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove all entries of a topic, for all subscriptions and on disk."""
    if domain == "non-persistent":
        raise HttpError(412, "unsupport truncate")
    for opened in await _opened(request, domain, tenant, namespace, topic):
        await request.services.cleaning.truncate(opened)
    return Response()


# -- expireMessages -------------------------------------------------------------------------------


async def expire_by_age(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, age: str
) -> Response:
    """Expire a subscription's messages that are older than a number of seconds."""
    ttl_s = int_value(age)
    topics = await _opened(request, domain, tenant, namespace, topic)
    if not any(name in opened.subscriptions for opened in topics):
        asked = _name(request, domain, tenant, namespace, topic)
        raise HttpError(404, f"Subscription {name} not found for topic {asked}")
    refusals = []
    for opened in topics:
        subscription = opened.subscriptions.get(name)
        if subscription is not None and not await _expire(request, subscription, ttl_s):
            refusals.append(NOT_BY_TIME.format(opened.name, name))
    if refusals:
        raise HttpError(409, refusals[0])
    return Response()


async def expire_all_by_age(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, age: str
) -> Response:
    """Expire old messages of every subscription; 409 names the first one without an effect."""
    ttl_s = int_value(age)
    refusals = []
    for opened in await _opened(request, domain, tenant, namespace, topic):
        refusals += [
            NOT_BY_TIME.format(opened.name, subscription.name)
            for subscription in tuple(opened.subscriptions.values())
            if not await _expire(request, subscription, ttl_s)
        ]
    if refusals:
        raise HttpError(409, refusals[0])
    return Response()


async def _expire(request: Request, subscription: Subscription, ttl_s: int) -> bool:
    last = await request.services.cleaning.due_position(subscription.topic, ttl_s)
    return await ask_to_expire(subscription, last, first_time_known=True)


async def expire_up_to(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Expire a subscription's messages up to and including the message id in the body."""
    position, partition_index = _message_id(request.json())
    if request.services.topics.partitions_of(_name(request, domain, tenant, namespace, topic)):
        reason = "Expire message at position is not supported for partitioned-topic"
        raise HttpError(405, reason)
    (opened,) = await _opened(request, domain, tenant, namespace, topic)
    if partition_index != opened.partition_index:
        raise HttpError(412, WRONG_PARTITION)
    subscription = opened.subscriptions.get(name)
    if subscription is None:
        raise HttpError(404, f"Subscription {name} not found for topic {opened.name}")
    if position >= opened.ledger.end_position:
        raise HttpError(409, NOT_BY_POSITION.format(opened.name, name))
    await ask_to_expire(subscription, position, first_time_known=False)
    return Response()


def _message_id(body: Any) -> tuple[Position, int]:
    """Read a `ResetCursorData`. Missing fields are 0, a missing partition is -1."""
    if body == "earliest":
        return EARLIEST, -1
    if not isinstance(body, dict):
        raise HttpError(400, 'the body must be {"ledgerId": ..., "entryId": ...}')
    ids = [body.get(key, 0) for key in ("ledgerId", "entryId")]
    partition_index = body.get("partitionIndex", -1)
    if not all(map(_is_id, [*ids, partition_index])):
        raise HttpError(400, 'the body must be {"ledgerId": ..., "entryId": ...}')
    return Position(*ids), partition_index


def _is_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and -1 <= value < 1 << 63


# -- topics ---------------------------------------------------------------------------------------


def _name(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404."""
    if domain != "persistent":
        raise HttpError(404, f"Topic {domain}://{tenant}/{namespace}/{topic} not found")
    return java_topic(request, domain, tenant, namespace, topic)


async def _opened(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> list[Topic]:
    """Open a topic, or all its partitions. Raises `HttpError` 404, `RefusedError`."""
    name = _name(request, domain, tenant, namespace, topic)
    topics = request.services.topics
    partitions = topics.partitions_of(name)
    names = [name.partition(index) for index in range(partitions)] if partitions else [name]
    return [await topics.open(each, create=False) for each in names]


SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"

ROUTES = (
    Route("GET", f"{TOPIC}/compaction", needs.topic("COMPACT"), None, compaction_status),
    Route("PUT", f"{TOPIC}/compaction", needs.topic("COMPACT"), None, compact),
    Route("DELETE", f"{TOPIC}/truncate", needs.tenant_admin(), None, truncate),
    Route(
        "POST",
        f"{SUBSCRIPTION}/expireMessages/{{seconds}}",
        needs.topic("EXPIRE_MESSAGES"),
        None,
        expire_by_age,
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/expireMessages",
        needs.topic("EXPIRE_MESSAGES"),
        bodies.PLACE,
        expire_up_to,
    ),
    Route(
        "POST",
        f"{TOPIC}/all_subscription/expireMessages/{{seconds}}",
        needs.topic("EXPIRE_MESSAGES", all_subscriptions=True),
        None,
        expire_all_by_age,
    ),
)
