"""Subscriptions: list, create, delete, move."""

from __future__ import annotations

from typing import Any, TypeGuard

from ...ledger import LATEST, Position
from ..commits import durable
from ..handlers.checks import check_name
from ..subscriptions.seek import SeekTarget, reset_subscription
from ..subscriptions.subscription import Subscription
from .messages import HttpError, Request, Response
from .names import open_topic
from .table import Route
from .topics import TOPIC, parse_time

__all__ = ["ROUTES"]


async def list_subscriptions(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Names of the topic's subscriptions."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    return Response.of_json(sorted(opened.subscriptions))


async def create_subscription(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Make a subscription at the message id in the body; without one at the end."""
    opened = await open_topic(request, domain, tenant, namespace, topic)
    check_name("subscription's name", name)
    if name in opened.subscriptions:
        raise HttpError(409, f"Subscription {name} already exists")
    body = request.json()
    start = LATEST if body is None else _position(body)
    await opened.create_subscription(name, opened.clamp(start)).stored()
    return Response()


async def delete_subscription(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Delete a subscription that nobody is connected to; with force=true, whoever is."""
    subscription = await _find(request, domain, tenant, namespace, topic, name)
    if subscription.consumers and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    await durable(subscription.topic.remove_subscription(subscription))
    return Response()


async def reset_to_time(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, time: str
) -> Response:
    """Move a subscription to the first entry at or after a time."""
    subscription = await _find(request, domain, tenant, namespace, topic, name)
    target = await SeekTarget.at_time(
        subscription.topic,
        parse_time(time),
        request.services.run_blocking,
        subscription.compacted,
    )
    await reset_subscription(subscription, target, then=lambda: None)
    return Response()


async def reset_to_position(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Move a subscription to the message id in the body."""
    subscription = await _find(request, domain, tenant, namespace, topic, name)
    position = subscription.topic.clamp(_position(request.json()), subscription.compacted)
    await reset_subscription(subscription, SeekTarget(position), then=lambda: None)
    return Response()


async def skip_all(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Acknowledge everything there is."""
    subscription = await _find(request, domain, tenant, namespace, topic, name)
    last = subscription.log.last_position
    if last is not None:
        await _skip_to(subscription, last)
    return Response()


async def skip(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, count: str
) -> Response:
    """Acknowledge the next `count` entries."""
    subscription = await _find(request, domain, tenant, namespace, topic, name)
    if not count.isascii() or not count.isdigit() or len(count) > 9:
        raise HttpError(400, f"{count[:40]!r} is not a number of entries")
    await subscription.skip(int(count))
    return Response()


async def _skip_to(subscription: Subscription, last: Position) -> None:
    subscription.cursor.ack_cumulative(last)
    await durable(subscription.cursor.persist())


async def _find(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Subscription:
    opened = await open_topic(request, domain, tenant, namespace, topic)
    subscription = opened.subscriptions.get(name)
    if subscription is None:
        raise HttpError(404, f"Subscription {name} not found")
    return subscription


def _position(body: Any) -> Position:
    if isinstance(body, dict):
        ledger_id, entry_id = body.get("ledgerId"), body.get("entryId")
        if _is_id(ledger_id) and _is_id(entry_id):
            return Position(ledger_id, entry_id)
    raise HttpError(400, 'the body must be {"ledgerId": ..., "entryId": ...}')


def _is_id(value: Any) -> TypeGuard[int]:
    return type(value) is int and -1 <= value < 1 << 63


SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"

ROUTES = (
    Route("GET", f"{TOPIC}/subscriptions", list_subscriptions),
    Route("PUT", SUBSCRIPTION, create_subscription),
    Route("DELETE", SUBSCRIPTION, delete_subscription),
    Route("POST", f"{SUBSCRIPTION}/resetcursor/{{time}}", reset_to_time),
    Route("POST", f"{SUBSCRIPTION}/resetcursor", reset_to_position),
    Route("POST", f"{SUBSCRIPTION}/skip_all", skip_all),
    Route("POST", f"{SUBSCRIPTION}/skip/{{count}}", skip),
)
