"""Permissions of namespaces, topics and subscriptions, and the mode of subscriptions' names.

As in Apache Pulsar 4.0.8: a grant replaces the role's actions, a revocation of what was not granted
succeeds, and a topic's permissions are shown together with its namespace's. Two answers differ: an
unknown action is refused with 400 (Pulsar ignores it), and so is a role without a name.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...wire import TopicName
from ..security import needs, permissions
from . import route
from .messages import HttpError, Json, Request
from .paths import existing_namespace, existing_topic
from .route import Routes, TopicPath

routes = Routes()
IN_NAMESPACE, ON_TOPIC = f"{route.NAMESPACE}/permissions", f"{route.TOPIC}/permissions"


def _actions(request: Request) -> list[str]:
    value = request.json()
    if value is None:
        raise HttpError(400, "Actions should not be null")
    return permissions.check_actions(value)


async def _change(request: Request, namespace: str, change: Any) -> None:
    try:
        await request.topics.namespaces.change(namespace, change)
    except permissions.InvalidPermissionError as error:
        raise HttpError(412, str(error)) from error


# -- namespaces -----------------------------------------------------------------------------------


@routes.get(IN_NAMESPACE, needs.namespace("GET_PERMISSION"))
async def of_namespace(request: Request, namespace: str) -> Json:
    """The actions of each role."""
    policies = request.topics.namespaces[existing_namespace(request, namespace)]
    return permissions.part_of(policies, permissions.NAMESPACE)


@routes.post(f"{IN_NAMESPACE}/{{role}}", needs.namespace("GRANT_PERMISSION"))
async def grant_in_namespace(request: Request, namespace: str, role: str) -> None:
    """Give a role exactly the actions in the body."""
    existing_namespace(request, namespace)
    actions = _actions(request)
    permissions.check_role(role)
    change = partial(permissions.grant_namespace, role=role, actions=actions)
    await _change(request, namespace, change)


@routes.delete(f"{IN_NAMESPACE}/{{role}}", needs.namespace("REVOKE_PERMISSION"))
async def revoke_in_namespace(request: Request, namespace: str, role: str) -> None:
    """Take all actions in the namespace from a role."""
    existing_namespace(request, namespace)
    change = partial(permissions.grant_namespace, role=role, actions=None)
    await _change(request, namespace, change)


@routes.get(f"{IN_NAMESPACE}/subscription", needs.namespace("GET_PERMISSION"))
async def of_subscriptions(request: Request, namespace: str) -> Json:
    """The roles of each subscription that is restricted to some."""
    policies = request.topics.namespaces[existing_namespace(request, namespace)]
    return permissions.part_of(policies, permissions.SUBSCRIPTION)


@routes.post(f"{IN_NAMESPACE}/subscription/{{subscription}}", needs.namespace("GRANT_PERMISSION"))
async def grant_on_subscription(request: Request, namespace: str, subscription: str) -> None:
    """Restrict a subscription to the roles in the body."""
    if request.json() is None:
        raise HttpError(400, "Roles should not be null")
    existing_namespace(request, namespace)
    roles = permissions.check_roles(request.json())
    permissions.check_role(subscription)
    change = partial(permissions.grant_subscription, name=subscription, roles=roles)
    await _change(request, namespace, change)


@routes.delete(f"{IN_NAMESPACE}/{{subscription}}/{{role}}", needs.namespace("REVOKE_PERMISSION"))
async def revoke_on_subscription(
    request: Request, namespace: str, subscription: str, role: str
) -> None:
    """Take a role out of a subscription's roles. After the last one every consumer may use it."""
    existing_namespace(request, namespace)
    change = partial(permissions.revoke_subscription, name=subscription, role=role)
    await _change(request, namespace, change)


# -- topics ---------------------------------------------------------------------------------------


@routes.get(ON_TOPIC, needs.tenant_admin())
async def of_one_topic(request: Request, path: TopicPath) -> Json:
    """The actions of each role on a topic: its own and its namespace's."""
    name = _permitted_topic(request, path)
    policies = request.topics.namespaces[name.namespace]
    return permissions.of_topic(policies, (str(name), str(name.partitioned)))


def _permitted_topic(request: Request, path: TopicPath) -> TopicName:
    name = existing_topic(request, path)
    if name.namespace not in request.topics.namespaces:  # a name of Pulsar 1
        raise HttpError(404, "Namespace does not exist")
    return name


@routes.post(f"{ON_TOPIC}/{{role}}", needs.tenant_admin())
async def grant_on_topic(request: Request, path: TopicPath, role: str) -> None:
    """Give a role exactly the actions in the body on a topic, with all its partitions."""
    name = _permitted_topic(request, path)
    if request.json() is None:  # As in Pulsar: nothing is granted.
        return
    await _set_on_topic(request, name, permissions.check_role(role), _actions(request))


@routes.delete(f"{ON_TOPIC}/{{role}}", needs.tenant_admin())
async def revoke_on_topic(request: Request, path: TopicPath, role: str) -> None:
    """Take the actions on a topic from a role; those in the namespace stay."""
    await _set_on_topic(request, _permitted_topic(request, path), role, None)


async def _set_on_topic(
    request: Request, name: TopicName, role: str, actions: list[str] | None
) -> None:
    change = partial(permissions.grant_topic, topic=str(name), role=role, actions=actions)
    await _change(request, name.namespace, change)
