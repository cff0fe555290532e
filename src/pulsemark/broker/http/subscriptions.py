"""Subscriptions: list, create, delete, move."""

from __future__ import annotations

from typing import Any

from ...ledger import EARLIEST, LATEST, InvalidCursorError, Position
from ...ledger.being_read import when_read
from ...proto.pulsar_api_pb2 import KeyValue, ServerError
from ..commits import durable
from ..errors import RefusedError
from ..handlers.checks import check_name, check_properties
from ..policies.policy import boolean
from ..security import needs
from ..subscriptions.replicated import is_replicated, mark_replicated
from ..subscriptions.seek import SeekTarget, reset_subscription
from ..subscriptions.subscription import Subscription
from ..topics.creation import creates
from ..topics.topic import Topic
from . import bodies
from .messages import HttpError, Request, Response, UnservedError
from .names import existing_topic, open_logs, open_one_log, topic_name
from .properties import text_properties
from .route import Route
from .topics import TOPIC, after, parse_time, position_in

__all__ = ["ROUTES"]


async def list_subscriptions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The names of the topic's subscriptions; for a partitioned topic each name once."""
    opened = await open_logs(request, domain, tenant, namespace, topic)
    names = sorted({name for one in opened for name in one.subscriptions})
    return await Response.of_long_json(names, request.services.topics.turns)


async def create_subscription(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Create a subscription at the message id in the body; without a body at the end.

    A topic that is missing is created, if clients may create topics.
    """
    start, given = _start(request.json())
    opened = await _open_or_create(request, domain, tenant, namespace, topic)
    check_name("subscription's name", name)
    if any(name in one.subscriptions for one in opened):
        raise HttpError(409, "Subscription already exists for topic")
    for one in opened:
        made = one.create_subscription(name, one.clamp(start), properties=given)
        await made.stored()
    return Response()


async def _open_or_create(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> list[Topic]:
    topics = request.services.topics
    parsed = topic_name(request, domain, tenant, namespace, topic)
    if not topics.exists(parsed) and creates(topics, parsed):
        return [await topics.open(parsed, create=True)]
    return await open_logs(request, domain, tenant, namespace, topic)


def _start(body: Any) -> tuple[Position, dict[str, str]]:
    """Where a new subscription begins, and its properties. Raises `HttpError` 400."""
    if body is None or body == "latest":
        return LATEST, {}
    if body == "earliest":
        return EARLIEST, {}
    given = _properties_in(body.get("properties")) if isinstance(body, dict) else {}
    return position_in(body), given


def _properties_in(value: object) -> dict[str, str]:
    """A subscription's properties from JSON. Raises `HttpError` 400, `RefusedError`."""
    given = text_properties(value)
    pairs = (KeyValue(key=key, value=text) for key, text in given.items())
    check_properties("subscription's properties", pairs)
    return given


async def delete_subscription(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Delete a subscription without consumers; with force=true also one with consumers."""
    opened = await open_logs(request, domain, tenant, namespace, topic)
    found = [one.subscriptions[name] for one in opened if name in one.subscriptions]
    if not found:
        asked = existing_topic(request, domain, tenant, namespace, topic)
        if request.services.topics.partitions_of(asked):
            raise HttpError(404, "Subscription not found")
        raise _not_found(name, asked)
    if any(one.consumers for one in found) and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    for one in found:
        await durable(one.topic.remove_subscription(one))
    return Response()


def _not_found(name: str, topic: object) -> HttpError:
    return HttpError(404, f"Subscription {name} not found for topic {topic}")


async def reset_to_time(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, time: str
) -> Response:
    """Move a subscription to the first entry at or after a time."""
    time_ms = parse_time(time)
    for one in await _find_all(request, domain, tenant, namespace, topic, name):
        target = await SeekTarget.at_time(
            one.topic, time_ms, request.services.run_blocking, one.compacted
        )
        await reset_subscription(one, target, then=lambda: None)
    return Response()


async def reset_to_position(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Move a subscription to the message id in the body; with `excluded` to the one after it."""
    what = "Reset-cursor at position is not allowed for partitioned-topic"
    body = request.json()
    target = position_in(body)
    if body.get("excluded") is True:
        target = after(target)
    subscription = await _find(request, domain, tenant, namespace, topic, name, what=what)
    position = await when_read(subscription.topic.clamp, target, subscription.compacted)
    await reset_subscription(subscription, SeekTarget(position), then=lambda: None)
    return Response()


async def skip_all(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Acknowledge all entries in the topic."""
    asked = existing_topic(request, domain, tenant, namespace, topic)
    for opened in await open_logs(request, domain, tenant, namespace, topic):
        one = opened.subscriptions.get(name)
        if one is None:
            raise _not_found(name, asked)
        last = await when_read(_last_position, one)
        if last is not None:
            await when_read(one.give_up, last)
            await durable(one.cursor.persist())
    return Response()


def _last_position(one: Subscription) -> Position | None:
    return one.log.last_position


async def skip(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, count: str
) -> Response:
    """Acknowledge the next `count` entries."""
    what = "Skip messages on a partitioned topic is not allowed"
    subscription = await _find(request, domain, tenant, namespace, topic, name, what=what)
    digits = count.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise UnservedError(404)
    await subscription.skip(int(count))
    return Response()


async def _find(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, *, what: str
) -> Subscription:
    """The subscription, for `what`, which needs exactly one log."""
    opened = await open_one_log(request, domain, tenant, namespace, topic, what=what)
    return _subscription_of(opened, name)


async def _find_all(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> list[Subscription]:
    """The subscription, or that of each partition. Raises `HttpError` 404 if one has none."""
    opened = await open_logs(request, domain, tenant, namespace, topic)
    return [_subscription_of(one, name) for one in opened]


def _subscription_of(opened: Topic, name: str) -> Subscription:
    found = opened.subscriptions.get(name)
    if found is None:
        raise _not_found(name, opened.name)
    return found


# -- properties, replication, analysis ------------------------------------------------------------


async def properties(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """A subscription's properties."""
    found = await _find_all(request, domain, tenant, namespace, topic, name)
    return Response.of_json({key: v for one in found for key, v in one.properties.items()})


async def set_properties(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Replace a subscription's properties."""
    given = _properties_in(request.json())
    for one in await _find_all(request, domain, tenant, namespace, topic, name):
        before = one.properties
        try:
            await durable(one.cursor.set_subscription_properties(given))
        except InvalidCursorError as error:
            raise RefusedError(ServerError.NotAllowedError, str(error)) from error
        except BaseException:
            one.cursor.subscription_properties = before
            raise
    return Response()


async def replicated(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Whether a subscription is marked as replicated."""
    found = await _find_all(request, domain, tenant, namespace, topic, name)
    return Response.of_json({one.topic.name: is_replicated(one) for one in found})


async def set_replicated(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Mark a subscription as replicated, or not. It has no effect: there is one cluster."""
    wanted = boolean("replicated", request.json())
    for one in await _find_all(request, domain, tenant, namespace, topic, name):
        await mark_replicated(one, marked=wanted)
    return Response()


async def analyze_backlog(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Count what a subscription has not acknowledged.

    With a message id in the body, all from there on is counted, as Pulsar does.
    """
    what = (
        "Analyze backlog on a partitioned topic is not allowed, "
        "please try do it on specific topic partition"
    )
    one = await _find(request, domain, tenant, namespace, topic, name, what=what)
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
        shown["firstMessageId"] = f"{first.ledger_id}:{first.entry_id}"
        shown["lastMessageId"] = f"{last.ledger_id}:{last.entry_id}"
    return Response.of_json(shown)


def _backlog(one: Subscription, body: Any) -> tuple[Position, int, int]:
    """Where a backlog begins, its entries and its messages. Raises `HttpError` 400."""
    if body is None:
        cursor = one.cursor
        return cursor.first_unacked, cursor.backlog_entries, cursor.backlog_messages
    log, given = one.log, EARLIEST if body == "earliest" else position_in(body)
    first = one.topic.clamp(given, one.compacted)
    control = log.control_count(first, LATEST)
    entries = log.count_entries(first, LATEST) - control
    return first, entries, log.message_count(first, LATEST) - control


SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"

REPLICATED = f"{SUBSCRIPTION}/replicatedSubscriptionStatus"

ROUTES = (
    Route(
        "GET", f"{TOPIC}/subscriptions", needs.topic("GET_SUBSCRIPTIONS"), None, list_subscriptions
    ),
    Route("PUT", SUBSCRIPTION, needs.topic("SUBSCRIBE"), bodies.PLACE, create_subscription),
    Route("DELETE", SUBSCRIPTION, needs.topic("UNSUBSCRIBE"), None, delete_subscription),
    Route(
        "POST",
        f"{SUBSCRIPTION}/resetcursor/{{time}}",
        needs.topic("RESET_CURSOR"),
        None,
        reset_to_time,
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/resetcursor",
        needs.topic("RESET_CURSOR"),
        bodies.PLACE,
        reset_to_position,
    ),
    Route("POST", f"{SUBSCRIPTION}/skip_all", needs.topic("SKIP"), None, skip_all),
    Route("POST", f"{SUBSCRIPTION}/skip/{{count}}", needs.topic("SKIP"), None, skip),
    Route("GET", f"{SUBSCRIPTION}/properties", needs.topic("CONSUME"), None, properties),
    Route(
        "PUT", f"{SUBSCRIPTION}/properties", needs.topic("SUBSCRIBE"), bodies.TEXTS, set_properties
    ),
    Route("GET", REPLICATED, needs.topic("GET_REPLICATED_SUBSCRIPTION_STATUS"), None, replicated),
    Route(
        "POST",
        REPLICATED,
        needs.topic("SET_REPLICATED_SUBSCRIPTION_STATUS"),
        bodies.BOOLEAN,
        set_replicated,
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/analyzeBacklog",
        needs.topic("CONSUME"),
        bodies.PLACE,
        analyze_backlog,
    ),
)
