"""The policies of namespaces and topics over HTTP: six routes for each description of a policy.

Routes, statuses and bodies are those of Apache Pulsar 4.0.8: the answer is 200 with the value, 200
with an empty body if none is set, and 204 for a change. With `applied=true` the answer for a topic
is the policy that applies to it, from whatever level. There is one difference: Pulsar answers 500
to a number that is out of range, this broker answers 400.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ...wire import TopicName
from ..cleaning.policies import RETENTION
from ..policies.catalogue import POLICIES
from ..policies.levels import Levels
from ..policies.policy import InvalidValueError, Place, Policy, PolicyValueError
from ..policies.values import INT_MAX
from .messages import HttpError, Request, Response
from .names import check_new_namespace, existing_topic
from .table import Route

__all__ = ["ROUTES", "int_value", "java_topic", "policy_topic"]

EMPTY = "The request entity cannot be empty."


# -- namespaces -----------------------------------------------------------------------------------


async def of_namespace(policy: Policy, request: Request, tenant: str, name: str) -> Response:
    """The policy set for a namespace."""
    levels = _levels(request, policy)
    return _answer(levels, levels.of_namespace(_namespace(request, tenant, name, policy)))


async def set_for_namespace(
    policy: Policy, place: Place, request: Request, tenant: str, name: str
) -> Response:
    """Set a namespace's policy."""
    namespace = _namespace(request, tenant, name, policy)
    value = await _value(request, policy, place)
    await _levels(request, policy).set_for_namespace(namespace, value)
    return Response()


async def unset_for_namespace(policy: Policy, request: Request, tenant: str, name: str) -> Response:
    """Remove a namespace's policy; the broker's setting applies again."""
    namespace = _namespace(request, tenant, name, policy)
    await _levels(request, policy).set_for_namespace(namespace, None)
    return Response()


def _namespace(request: Request, tenant: str, name: str, policy: Policy) -> str:
    namespace = check_new_namespace(tenant, name)
    if namespace not in request.services.topics.namespaces:
        if policy.is_ours:
            raise HttpError(404, f"Namespace {namespace} does not exist")
        changes_retention = policy is RETENTION and request.method not in ("GET", "HEAD")
        what = "Namespace policies" if changes_retention else "Namespace"
        raise HttpError(404, f"{what} does not exist")
    return namespace


# -- topics ---------------------------------------------------------------------------------------


async def of_topic(
    policy: Policy, request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """The policy set for a topic; with applied=true the policy that applies to it."""
    name = policy_topic(request, tenant, namespace, topic)
    levels = _levels(request, policy)
    applied = request.flag("applied")
    return _answer(levels, levels.applied(name) if applied else levels.of_topic(name))


async def set_for_topic(
    policy: Policy, place: Place, request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """Set a topic's policy."""
    if place.query:
        # Pulsar reads the query before it looks for the topic.
        text = request.query.get(place.query, "")
        given = int_value(text) if text else None
    name = policy_topic(request, tenant, namespace, topic)
    if place.query:
        value = None if given is None else await _read(request, policy, place, given)
    else:
        value = await _value(request, policy, place)
    await _levels(request, policy).set_for_topic(name, value)
    return Response()


async def unset_for_topic(
    policy: Policy, request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove a topic's policy; the namespace's policy applies again."""
    name = policy_topic(request, tenant, namespace, topic)
    await _levels(request, policy).set_for_topic(name, None)
    return Response()


def java_topic(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404 with Pulsar's reasons."""
    if f"{tenant}/{namespace}" not in request.services.topics.namespaces:
        raise HttpError(404, "Namespace not found")
    return existing_topic(request, "persistent", tenant, namespace, topic)


def policy_topic(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    """An existing topic that can have policies. Raises `HttpError` 404, and 412 for a partition."""
    try:
        name = TopicName.parse(f"persistent://{tenant}/{namespace}/{topic}")
    except ValueError:
        return java_topic(request, tenant, namespace, topic)  # which says what is wrong with it
    if name.partition_index >= 0:
        raise HttpError(412, "Not allowed to set/get topic policy for a partition")
    return java_topic(request, tenant, namespace, topic)


# -- values ---------------------------------------------------------------------------------------


def int_value(text: str) -> int:
    """A number in a path or a query, as Java's int. Raises `HttpError` 404, as Pulsar answers."""
    if not re.fullmatch(r"[-+]?[0-9]{1,10}", text) or not -INT_MAX - 1 <= int(text) <= INT_MAX:
        raise HttpError(404, "HTTP 404 Not Found")
    return int(text)


def _levels(request: Request, policy: Policy) -> Levels[Any]:
    return request.services.topics.policies[policy]


async def _value(request: Request, policy: Policy, place: Place) -> Any:
    """The value in the request's body; None removes it."""
    value = request.json()
    if value is None and place.empty == "removes":
        return None
    if place.empty == "refused" and not request.body.strip():
        raise HttpError(400, EMPTY)
    return await _read(request, policy, place, value)


async def _read(request: Request, policy: Policy, place: Place, value: Any) -> Any:
    try:
        if policy.read_blocks:
            stored = await request.services.run_blocking(policy.read, value)
        else:
            stored = policy.read(value)
    except InvalidValueError as error:
        raise HttpError(error.status, place.negative or error.reason) from error
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error
    return _levels(request, policy).parse(stored)


def _answer(levels: Levels[Any], value: Any) -> Response:
    return Response(200) if value is None else Response.of_json(levels.show(value))


def _routes(policy: Policy) -> list[Route]:
    routes = []
    if (place := policy.namespace) is not None:
        path = f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{place.path}"
        routes += [
            Route("GET", path, partial(of_namespace, policy)),
            Route(place.method, path, partial(set_for_namespace, policy, place)),
            Route("DELETE", path, partial(unset_for_namespace, policy)),
        ]
    if (place := policy.topic) is not None:
        path = f"/admin/v2/persistent/{{tenant}}/{{namespace}}/{{topic}}/{place.path}"
        routes += [
            Route("GET", path, partial(of_topic, policy)),
            Route(place.method, path, partial(set_for_topic, policy, place)),
            Route("DELETE", path, partial(unset_for_topic, policy)),
        ]
    return routes


ROUTES = tuple(route for policy in POLICIES for route in _routes(policy))
