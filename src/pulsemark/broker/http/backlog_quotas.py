"""The backlog quotas of namespaces and topics over HTTP: the map is shown, one quota is set.

Statuses and bodies are those of Apache Pulsar 4.0.8. A quota that retention makes pointless is
refused.
"""

from __future__ import annotations

from typing import Any

from ..policies.cleaning_policies import RETENTION
from ..policies.policy import PolicyValueError
from ..policies.pulsar_policies import (
    BACKLOG_QUOTAS,
    MESSAGE_AGE,
    STORAGE,
    default_quotas,
    exceeds_retention,
    read_quota,
)
from ..security import needs
from . import bodies
from .messages import HttpError, Request, Response, UnservedError
from .policies import policy_namespace, policy_topic
from .route import Route

__all__ = ["ROUTES"]

TOO_LARGE = (
    "Backlog Quota exceeds configured retention quota for {}. Please increase retention quota and "
    "retry"
)


async def of_namespace(request: Request, tenant: str, name: str) -> Response:
    """The quotas set for a namespace."""
    namespace = policy_namespace(request, tenant, name, BACKLOG_QUOTAS)
    levels = request.services.topics.policies[BACKLOG_QUOTAS]
    return Response.of_json(levels.of_namespace(namespace) or {})


async def set_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Set one of a namespace's quotas."""
    namespace = policy_namespace(request, tenant, name, BACKLOG_QUOTAS)
    policies = request.services.topics.policies
    kind, quota = _kind(request), _quota(request, namespace)
    _check(quota, policies[RETENTION].of_namespace(namespace), "namespace")
    levels = policies[BACKLOG_QUOTAS]
    await levels.set_for_namespace(
        namespace, {**(levels.of_namespace(namespace) or {}), kind: quota}
    )
    return Response()


async def unset_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Remove one of a namespace's quotas."""
    if f"{tenant}/{name}" not in request.services.topics.namespaces:
        raise HttpError(404, "")  # As in Pulsar, which gives no reason.
    namespace = policy_namespace(request, tenant, name, BACKLOG_QUOTAS)
    kind, levels = _kind(request), request.services.topics.policies[BACKLOG_QUOTAS]
    await levels.set_for_namespace(namespace, _without(levels.of_namespace(namespace), kind))
    return Response()


async def of_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """The quotas set for a topic; with applied=true those that apply to it."""
    name = policy_topic(request, domain, tenant, namespace, topic)
    levels = request.services.topics.policies[BACKLOG_QUOTAS]
    if request.flag("applied"):
        applied = levels.applied(name)
        set_for = levels.of_topic(name) or levels.of_namespace(name.namespace)
        shown = applied if set_for else default_quotas(request.services.config)
        return Response.of_json(shown)
    return Response.of_json(levels.of_topic(name, is_global=request.flag("isGlobal")) or {})


async def set_for_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Set one of a topic's quotas; an empty body removes it."""
    name = policy_topic(request, domain, tenant, namespace, topic)
    policies, is_global = request.services.topics.policies, request.flag("isGlobal")
    levels, kind = policies[BACKLOG_QUOTAS], _kind(request)
    quotas = levels.of_topic(name, is_global=is_global)
    if request.json() is None:
        quotas = _without(quotas, kind)
    else:
        quota = _quota(request, name.namespace)
        _check(quota, policies[RETENTION].of_topic(name), "topic")
        quotas = {**(quotas or {}), kind: quota}
    await levels.set_for_topic(name, quotas, is_global=is_global)
    return Response()


async def unset_for_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove one of a topic's quotas."""
    name = policy_topic(request, domain, tenant, namespace, topic)
    levels, is_global = request.services.topics.policies[BACKLOG_QUOTAS], request.flag("isGlobal")
    quotas = _without(levels.of_topic(name, is_global=is_global), _kind(request))
    await levels.set_for_topic(name, quotas, is_global=is_global)
    return Response()


def _kind(request: Request) -> str:
    kind = request.query.get("backlogQuotaType", STORAGE)
    if kind not in (STORAGE, MESSAGE_AGE):
        raise UnservedError(404)
    return kind


def _quota(request: Request, owner: str) -> Any:
    body = request.json()
    try:
        return read_quota(body, owner)
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error


def _check(quota: Any, retention: Any, level: str) -> None:
    """Refuse a quota above what retention keeps anyway."""
    if retention is not None and exceeds_retention(quota, retention):
        raise HttpError(412, TOO_LARGE.format(level))


def _without(quotas: Any, kind: str) -> Any:
    left = {name: quota for name, quota in (quotas or {}).items() if name != kind}
    return left or None


NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route(
        "GET",
        f"{NAMESPACE}/backlogQuotaMap",
        needs.namespace_policy("BACKLOG", "READ"),
        None,
        of_namespace,
    ),
    Route(
        "POST",
        f"{NAMESPACE}/backlogQuota",
        needs.namespace_policy("BACKLOG", "WRITE"),
        bodies.SETTINGS["backlogQuota"],
        set_for_namespace,
    ),
    Route(
        "DELETE",
        f"{NAMESPACE}/backlogQuota",
        needs.namespace_policy("BACKLOG", "WRITE"),
        None,
        unset_for_namespace,
    ),
    Route("GET", f"{TOPIC}/backlogQuotaMap", needs.topic_policy("BACKLOG", "READ"), None, of_topic),
    Route(
        "POST",
        f"{TOPIC}/backlogQuota",
        needs.topic_policy("BACKLOG", "WRITE"),
        bodies.SETTINGS["backlogQuota"],
        set_for_topic,
    ),
    Route(
        "DELETE",
        f"{TOPIC}/backlogQuota",
        needs.topic_policy("BACKLOG", "WRITE"),
        None,
        unset_for_topic,
    ),
)
