"""Subscriptions: list, create, delete, move."""

from __future__ import annotations

from typing import Any

from ...ledger import EARLIEST, LATEST, InvalidCursorError, Position
from ...ledger.would_block import when_read
from ...proto.pulsar_api_pb2 import KeyValue, ServerError
from ..errors import RefusedError
from ..handlers.checks import check_name, check_properties
from ..policies.policy import boolean
from ..security import needs
from ..storage import durable
from ..subscriptions.seek import SeekTarget, reset_subscription
from ..subscriptions.subscription import (
    InvalidFilterError,
    TagFilter,
    is_replicated,
    mark_replicated,
)
from ..topics.registry import creates
from ..topics.topic import Topic
from . import paths
from .messages import HttpError, Json, Request
from .policies import text_properties
from .route import SUBSCRIPTION, TOPIC, Routes, TopicPath

routes = Routes()
REPLICATED = f"{SUBSCRIPTION}/replicatedSubscriptionStatus"


@routes.get(f"{TOPIC}/subscriptions", needs.topic("GET_SUBSCRIPTIONS"))
async def list_subscriptions(request: Request, path: TopicPath) -> Json:
    """The names of the topic's subscriptions; for a partitioned topic each name once."""
    opened = await paths.open_logs(request, path)
    return sorted({name for one in opened for name in one.subscriptions})


@routes.put(SUBSCRIPTION, needs.topic("SUBSCRIBE"))
async def create_subscription(request: Request, path: TopicPath, name: str) -> None:
    """Create a subscription at the message id in the body; without a body at the end.

    A topic that is missing is created, if clients may create topics.
    """
    start, given = _start(request.json())
    opened = await _open_or_create(request, path)
    check_name("subscription's name", name)
    if any(name in one.subscriptions for one in opened):
        raise HttpError(409, "Subscription already exists for topic")
    for one in opened:
        made = one.create_subscription(name, one.clamp(start), properties=given)
        await made.stored()


async def _open_or_create(request: Request, path: TopicPath) -> list[Topic]:
    topics = request.topics
    parsed = paths.topic_name(request, path)
    if not topics.exists(parsed) and creates(topics, parsed):
        return [await topics.open(parsed, create=True)]
    return await paths.open_logs(request, path)


def _start(body: Any) -> tuple[Position, dict[str, str]]:
    """A new subscription's first position, and its properties. Raises `HttpError` 400."""
    if body is None or body == "latest":
        return LATEST, {}
    if body == "earliest":
        return EARLIEST, {}
    given = _properties_in(body.get("properties")) if isinstance(body, dict) else {}
    return paths.position_in(body), given


def _properties_in(value: object) -> dict[str, str]:
    """A subscription's properties from JSON. Raises `HttpError` 400, `RefusedError`."""
    given = text_properties(value)
    pairs = (KeyValue(key=key, value=text) for key, text in given.items())
    try:
        check_properties("subscription's properties", pairs)
        TagFilter.of(given)
    except UnicodeEncodeError as error:
        raise HttpError(400, f"a property is not UTF-8: {error}") from error
    except InvalidFilterError as error:
        raise HttpError(400, error.message) from error
    return given


@routes.delete(SUBSCRIPTION, needs.topic("UNSUBSCRIBE"))
async def delete_subscription(request: Request, path: TopicPath, name: str) -> None:
    """Delete a subscription without consumers; with force=true also one with consumers."""
    opened = await paths.open_logs(request, path)
    found = [one.subscriptions[name] for one in opened if name in one.subscriptions]
    if not found:
        asked = paths.existing_topic(request, path)
        if request.topics.partitioned.count_of(asked):
            raise HttpError(404, "Subscription not found")
        raise paths.subscription_not_found(name, asked)
    if any(one.consumers for one in found) and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    for one in found:
        await durable(one.topic.remove_subscription(one))


@routes.post(f"{SUBSCRIPTION}/resetcursor/{{time}}", needs.topic("RESET_CURSOR"))
async def reset_to_time(request: Request, path: TopicPath, name: str, time: str) -> None:
    """Move a subscription to the first entry at or after a time."""
    time_ms = max(paths.long_value(time), 0)
    for one in await paths.find_subscriptions(request, path, name):
        target = await SeekTarget.at_time(
            one.topic, time_ms, request.services.run_blocking, one.compacted
        )
        await reset_subscription(one, target, then=lambda: None)


@routes.post(f"{SUBSCRIPTION}/resetcursor", needs.topic("RESET_CURSOR"))
async def reset_to_position(request: Request, path: TopicPath, name: str) -> None:
    """Move a subscription to the message id in the body; with `excluded` to the one after it."""
    what = "Reset-cursor at position is not allowed for partitioned-topic"
    body = request.json()
    target = paths.position_in(body)
    if body.get("excluded") is True:
        target = target.following
    subscription = await paths.find_subscription(request, path, name, what=what)
    position = await when_read(subscription.topic.clamp, target, subscription.compacted)
    await reset_subscription(subscription, SeekTarget(position), then=lambda: None)


@routes.get(f"{SUBSCRIPTION}/properties", needs.topic("CONSUME"))
async def properties(request: Request, path: TopicPath, name: str) -> Json:
    """A subscription's properties."""
    found = await paths.find_subscriptions(request, path, name)
    return {key: v for one in found for key, v in one.properties.items()}


@routes.put(f"{SUBSCRIPTION}/properties", needs.topic("SUBSCRIBE"))
async def set_properties(request: Request, path: TopicPath, name: str) -> None:
    """Replace a subscription's properties."""
    given = _properties_in(request.json())
    for one in await paths.find_subscriptions(request, path, name):
        before = one.properties
        try:
            await durable(one.cursor.set_subscription_properties(given))
            one.properties_changed()
        except InvalidCursorError as error:
            raise RefusedError(ServerError.NotAllowedError, str(error)) from error
        except BaseException:
            one.cursor.subscription_properties = before
            raise


@routes.get(REPLICATED, needs.topic("GET_REPLICATED_SUBSCRIPTION_STATUS"))
async def replicated(request: Request, path: TopicPath, name: str) -> Json:
    """Whether a subscription is marked as replicated."""
    found = await paths.find_subscriptions(request, path, name)
    return {one.topic.name: is_replicated(one) for one in found}


@routes.post(REPLICATED, needs.topic("SET_REPLICATED_SUBSCRIPTION_STATUS"))
async def set_replicated(request: Request, path: TopicPath, name: str) -> None:
    """Mark a subscription as replicated, or not. It has no effect: there is one cluster."""
    wanted = boolean("replicated", request.required_json())
    for one in await paths.find_subscriptions(request, path, name):
        await mark_replicated(one, marked=wanted)
