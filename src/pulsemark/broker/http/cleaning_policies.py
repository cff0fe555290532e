"""The policies `retention`, `messageTTL` and `compactionThreshold` over HTTP.

Routes, statuses and bodies are those of Apache Pulsar 4.0.8: a namespace's compaction threshold is
PUT and the other values are POSTed, and a topic's TTL is in the query. There is one difference:
Pulsar answers 500 to a number that is out of range, this broker answers 400.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ...wire import TopicName
from ..cleaning.policies import (
    COMPACTION_THRESHOLD,
    INT_MAX,
    KINDS,
    MESSAGE_TTL,
    RETENTION,
    CleaningPolicies,
    InvalidValueError,
    PolicyKind,
    UnreadableValueError,
)
from .messages import HttpError, Request, Response
from .names import existing_topic
from .table import Handler, Route

__all__ = ["ROUTES", "int_value", "java_topic"]

EMPTY = "The request entity cannot be empty."


def java_topic(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404 with Pulsar's reasons."""
    if f"{tenant}/{namespace}" not in request.services.topics.namespaces:
        raise HttpError(404, "Namespace not found")
    return existing_topic(request, "persistent", tenant, namespace, topic)


def int_value(text: str) -> int:
    """A number in a path or a query, as Java's int. Raises `HttpError` 404, as Pulsar answers."""
    if not re.fullmatch(r"[-+]?[0-9]{1,10}", text) or not -INT_MAX - 1 <= int(text) <= INT_MAX:
        raise HttpError(404, "HTTP 404 Not Found")
    return int(text)


# -- namespaces -----------------------------------------------------------------------------------


async def of_namespace(kind: PolicyKind, request: Request, tenant: str, name: str) -> Response:
    """The policy set for a namespace."""
    return _shown(_policies(request).of_namespace(_namespace(request, tenant, name, kind), kind))


async def set_for_namespace(kind: PolicyKind, request: Request, tenant: str, name: str) -> Response:
    """Set a namespace's policy; a retention of null unsets it."""
    namespace = _namespace(request, tenant, name, kind)
    value = _read(request, kind, kind.negative_in_namespace)
    await _policies(request).set_for_namespace(namespace, kind, value)
    return Response()


async def unset_for_namespace(
    kind: PolicyKind, request: Request, tenant: str, name: str
) -> Response:
    """Remove a namespace's policy; the broker's setting applies again."""
    namespace = _namespace(request, tenant, name, kind)
    await _policies(request).set_for_namespace(namespace, kind, None)
    return Response()


def _namespace(request: Request, tenant: str, name: str, kind: PolicyKind) -> str:
    namespace = f"{tenant}/{name}"
    if namespace not in request.services.topics.namespaces:
        changes_retention = kind is RETENTION and request.method not in ("GET", "HEAD")
        what = "Namespace policies" if changes_retention else "Namespace"
        raise HttpError(404, f"{what} does not exist")
    return namespace


# -- topics ---------------------------------------------------------------------------------------


async def of_topic(
    kind: PolicyKind, request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """The policy set for a topic; with applied=true the policy that applies to it."""
    name = _topic(request, tenant, namespace, topic)
    policies = _policies(request)
    applied = request.flag("applied")
    return _shown(policies.applied_value(name, kind) if applied else policies.of_topic(name, kind))


async def set_for_topic(
    kind: PolicyKind, request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """Set a topic's policy; a retention of null unsets it."""
    name = _topic(request, tenant, namespace, topic)
    value = _read(request, kind, kind.negative_in_topic)
    await _policies(request).set_for_topic(name, kind, value)
    return Response()


async def set_ttl(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Set a topic's TTL to the query's seconds; without them it is unset."""
    text = request.query.get("messageTTL", "")
    ttl_s = int_value(text) if text else None
    name = _topic(request, tenant, namespace, topic)
    if ttl_s is not None and ttl_s < 0:
        raise HttpError(412, MESSAGE_TTL.negative_in_topic)
    await _policies(request).set_for_topic(name, MESSAGE_TTL, ttl_s)
    return Response()


async def unset_for_topic(
    kind: PolicyKind, request: Request, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove a topic's policy; the namespace's policy applies again."""
    name = _topic(request, tenant, namespace, topic)
    await _policies(request).set_for_topic(name, kind, None)
    return Response()


def _topic(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    try:
        name = TopicName.parse(f"persistent://{tenant}/{namespace}/{topic}")
    except ValueError:
        return java_topic(request, tenant, namespace, topic)  # which says what is wrong with it
    if name.partition_index >= 0:
        raise HttpError(412, "Not allowed to set/get topic policy for a partition")
    return java_topic(request, tenant, namespace, topic)


# -- values ---------------------------------------------------------------------------------------


def _policies(request: Request) -> CleaningPolicies:
    return request.services.cleaning.policies


def _read(request: Request, kind: PolicyKind, negative: str) -> Any:
    if kind is not RETENTION and not request.body.strip():
        raise HttpError(400, EMPTY)
    try:
        return kind.read(request.json())
    except UnreadableValueError as error:
        raise HttpError(400, str(error)) from error
    except InvalidValueError as error:
        if kind is RETENTION:
            raise HttpError(400, error.reason) from error
        raise HttpError(412, negative) from error


def _shown(value: Any) -> Response:
    return Response(200) if value is None else Response.of_json(value)


def _routes(kind: PolicyKind) -> tuple[Route, ...]:
    namespace = f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{kind.name}"
    topic = f"/admin/v2/persistent/{{tenant}}/{{namespace}}/{{topic}}/{kind.name}"
    setting: Handler = set_ttl if kind is MESSAGE_TTL else partial(set_for_topic, kind)
    return (
        Route("GET", namespace, partial(of_namespace, kind)),
        Route(
            "PUT" if kind is COMPACTION_THRESHOLD else "POST",
            namespace,
            partial(set_for_namespace, kind),
        ),
        Route("DELETE", namespace, partial(unset_for_namespace, kind)),
        Route("GET", topic, partial(of_topic, kind)),
        Route("POST", topic, setting),
        Route("DELETE", topic, partial(unset_for_topic, kind)),
    )


ROUTES = tuple(route for kind in KINDS for route in _routes(kind))
