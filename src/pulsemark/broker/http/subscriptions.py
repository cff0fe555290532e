"""Subscriptions: list, create, delete, move."""

from __future__ import annotations

from typing import Any, TypeGuard

from ...ledger import LATEST, Position
from ..commits import durable
from ..handlers.checks import check_name
from ..subscriptions.seek import SeekTarget, reset_subscription
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from .messages import HttpError, Request, Response
from .names import open_logs, open_one_log
from .table import Route
from .topics import TOPIC, parse_time

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
    """Create a subscription at the message id in the body; without a body at the end."""
    opened = await open_logs(request, domain, tenant, namespace, topic)
    check_name("subscription's name", name)
    if any(name in one.subscriptions for one in opened):
        raise HttpError(409, f"Subscription {name} already exists")
    body = request.json()
    start = LATEST if body is None else _position(body)
    for one in opened:
        await one.create_subscription(name, one.clamp(start)).stored()
    return Response()


async def delete_subscription(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Delete a subscription without consumers; with force=true also one with consumers."""
    opened = await open_logs(request, domain, tenant, namespace, topic)
    found = [one.subscriptions[name] for one in opened if name in one.subscriptions]
    if not found:
        raise HttpError(404, f"Subscription {name} not found")
    if any(one.consumers for one in found) and not request.flag("force"):
        raise HttpError(412, "Subscription has active connected consumers")
    for one in found:
        await durable(one.topic.remove_subscription(one))
    return Response()


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
    """Move a subscription to the message id in the body."""
    what = "Reset-cursor at position"
    subscription = await _find(request, domain, tenant, namespace, topic, name, what=what)
    position = subscription.topic.clamp(_position(request.json()), subscription.compacted)
    await reset_subscription(subscription, SeekTarget(position), then=lambda: None)
    return Response()


async def skip_all(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str
) -> Response:
    """Acknowledge all entries in the topic."""
    for one in await _find_all(request, domain, tenant, namespace, topic, name):
        last = one.log.last_position
        if last is not None:
            one.give_up(last)
            await durable(one.cursor.persist())
    return Response()


async def skip(
    request: Request, domain: str, tenant: str, namespace: str, topic: str, name: str, count: str
) -> Response:
    """Acknowledge the next `count` entries."""
    what = "Skip messages"
    subscription = await _find(request, domain, tenant, namespace, topic, name, what=what)
    digits = count.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise HttpError(404, f"{count[:40]!r} is not a number of entries")
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
        raise HttpError(404, f"Subscription {name} not found")
    return found


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
