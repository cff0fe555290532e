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
from ..policies.catalogue import POLICIES
from ..policies.cleaning_policies import RETENTION
from ..policies.levels import Levels
from ..policies.policy import INT_MAX, InvalidValueError, Place, Policy, PolicyValueError
from ..policies.pulsar_policies import BACKLOG_QUOTAS, REPLICATION, exceeds_retention
from ..security import needs
from . import bodies
from .bodies import EMPTY
from .messages import JSON_TYPE, HttpError, Request, Response, UnservedError
from .names import check_new_namespace, existing_topic
from .route import Route

__all__ = ["ROUTES", "int_value", "java_topic", "policy_namespace", "policy_topic"]

TOO_SMALL = (
    "Retention Quota must exceed configured backlog quota for {}. Please increase retention quota "
    "and retry"
)


# -- namespaces -----------------------------------------------------------------------------------


async def of_namespace(
    policy: Policy, place: Place, request: Request, tenant: str, name: str
) -> Response:
    """The policy set for a namespace."""
    levels = _levels(request, policy)
    value = levels.of_namespace(policy_namespace(request, tenant, name, policy))
    return _answer(levels, place, value)


async def set_for_namespace(
    policy: Policy, place: Place, request: Request, tenant: str, name: str
) -> Response:
    """Set a namespace's policy."""
    if policy is REPLICATION and request.json() is None:
        await _value(request, policy, place)  # Pulsar refuses it before it looks for the namespace
    namespace = policy_namespace(request, tenant, name, policy)
    value = await _value(request, policy, place)
    if policy is RETENTION and value is not None:
        quotas = _levels(request, BACKLOG_QUOTAS).of_namespace(namespace)
        _check_retention(value, quotas or {}, "namespace")
    await _levels(request, policy).set_for_namespace(namespace, value)
    return Response(place.set_status)


async def unset_for_namespace(
    policy: Policy, place: Place, request: Request, tenant: str, name: str
) -> Response:
    """Remove a namespace's policy; the broker's setting applies again."""
    namespace = policy_namespace(request, tenant, name, policy)
    await _levels(request, policy).set_for_namespace(namespace, None)
    return Response()


def policy_namespace(request: Request, tenant: str, name: str, policy: Policy) -> str:
    """An existing namespace whose policy is asked for or changed. Raises `HttpError` 412, 404."""
    namespace = check_new_namespace(tenant, name)
    if namespace not in request.services.topics.namespaces:
        if policy.is_ours:
            raise HttpError(404, f"Namespace {namespace} does not exist")
        place, is_changed = policy.namespace, request.method not in ("GET", "HEAD")
        names_policies = place is not None and place.names_policies and is_changed
        what = "Namespace policies" if names_policies else "Namespace"
        raise HttpError(404, f"{what} does not exist")
    return namespace


# -- topics ---------------------------------------------------------------------------------------


async def of_topic(policy: Policy, place: Place, request: Request, *names: str) -> Response:
    """The policy set for a topic; with applied=true the policy that applies to it."""
    name = policy_topic(request, *names)
    levels = _levels(request, policy)
    if place.shows_applied and request.flag("applied"):
        return _answer(levels, place, levels.applied(name))
    return _answer(levels, place, levels.of_topic(name, is_global=_is_global(request, place)))


async def set_for_topic(policy: Policy, place: Place, request: Request, *names: str) -> Response:
    """Set a topic's policy."""
    # Pulsar reads the query before it looks for the topic.
    text = request.query.get(place.query, "")
    given = int_value(text) if text else None
    name = policy_topic(request, *names)
    value = None
    if not place.query:
        value = await _value(request, policy, place)
        if value is None and place.empty == "ignored":
            return Response()
    elif given is not None:
        value = await _read(request, policy, place, given)
    if policy is RETENTION and value is not None:
        _check_retention(value, _levels(request, BACKLOG_QUOTAS).applied(name), "topic")
    is_global = _is_global(request, place)
    await _levels(request, policy).set_for_topic(name, value, is_global=is_global)
    return Response(place.set_status)


async def unset_for_topic(policy: Policy, place: Place, request: Request, *names: str) -> Response:
    """Remove a topic's policy; the namespace's policy applies again."""
    name = policy_topic(request, *names)
    is_global = _is_global(request, place)
    await _levels(request, policy).set_for_topic(name, None, is_global=is_global)
    return Response()


def _check_retention(retention: Any, quotas: dict[str, Any], level: str) -> None:
    if any(exceeds_retention(quota, retention) for quota in quotas.values()):
        raise HttpError(412, TOO_SMALL.format(level))


def _is_global(request: Request, place: Place) -> bool:
    return place.has_global and request.flag("isGlobal")


def java_topic(request: Request, domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """The name of an existing topic. Raises `HttpError` 404 with Pulsar's reasons."""
    if not request.services.topics.namespaces.may_have_topics(f"{tenant}/{namespace}"):
        raise HttpError(404, "Namespace not found")
    return existing_topic(request, domain, tenant, namespace, topic)


def policy_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> TopicName:
    """An existing topic that can have policies. Raises `HttpError` 404, and 412 for a partition."""
    try:
        name = TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}")
    except ValueError:
        return java_topic(
            request, domain, tenant, namespace, topic
        )  # which says what is wrong with it
    if name.partition_index >= 0:
        raise HttpError(412, "Not allowed to set/get topic policy for a partition")
    if not request.services.config.topic_level_policies_enabled:
        raise HttpError(
            405, "Topic level policies is disabled, to enable the topic level policy and retry."
        )
    return java_topic(request, domain, tenant, namespace, topic)


# -- values ---------------------------------------------------------------------------------------


def int_value(text: str) -> int:
    """A number in a path or a query, as Java's int. Raises `UnservedError` 404, as Pulsar."""
    if not re.fullmatch(r"[-+]?[0-9]{1,10}", text) or not -INT_MAX - 1 <= int(text) <= INT_MAX:
        raise UnservedError(404)
    return int(text)


def _levels(request: Request, policy: Policy) -> Levels[Any]:
    return request.services.topics.policies[policy]


async def _value(request: Request, policy: Policy, place: Place) -> Any:
    """The value in the request's body; None removes it."""
    value = request.json() if place.has_body else None
    if value is None and place.empty in ("removes", "ignored"):
        return None
    if place.has_body and place.empty == "refused" and not request.body.strip():
        raise HttpError(400, EMPTY, text_type=JSON_TYPE)
    return await _read(request, policy, place, value)


async def _read(request: Request, policy: Policy, place: Place, value: Any) -> Any:
    try:
        if policy.read_blocks:
            stored = await request.services.run_blocking(policy.read, value)
        else:
            stored = policy.read(value)
        if policy.check is not None and stored is not None:
            policy.check(stored, request.services.config, place is policy.topic)
    except InvalidValueError as error:
        raise HttpError(error.status, place.negative or error.reason) from error
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error
    return None if stored is None else _levels(request, policy).parse(stored)


def _answer(levels: Levels[Any], place: Place, value: Any) -> Response:
    if value is None and place.shows_default:
        value = levels.default
    if value is not None:
        return Response.of_json(levels.show(value))
    return Response(place.unset_status) if place.unset is None else Response.of_json(place.unset)


#: By the names of policies: what Pulsar calls the right to read or write them.
RIGHTS = {
    "autoSubscriptionCreation": "AUTO_SUBSCRIPTION_CREATION",
    "autoTopicCreation": "AUTO_TOPIC_CREATION",
    "brokerEntryMetadata": "ENTRY_METADATA",
    "compactionThreshold": "COMPACTION",
    "deduplication": "DEDUPLICATION",
    "deduplicationSnapshotInterval": "DEDUPLICATION_SNAPSHOT",
    "delayedDelivery": "DELAYED_DELIVERY",
    "dispatchRate": "RATE",
    "encryptionRequired": "ENCRYPTION",
    "inactiveTopicPolicies": "INACTIVE_TOPIC",
    "isAllowAutoUpdateSchema": "SCHEMA_COMPATIBILITY_STRATEGY",
    "leaderEpochs": "LEADER_EPOCHS",
    "maxConsumersPerSubscription": "MAX_CONSUMERS",
    "maxConsumersPerTopic": "MAX_CONSUMERS",
    "maxMessageSize": "MAX_MESSAGE_SIZE",
    "maxProducersPerTopic": "MAX_PRODUCERS",
    "maxSubscriptionsPerTopic": "MAX_SUBSCRIPTIONS",
    "maxTopicsPerNamespace": "MAX_TOPICS",
    "maxUnackedMessagesPerConsumer": "MAX_UNACKED",
    "maxUnackedMessagesPerSubscription": "MAX_UNACKED",
    "messageTTL": "TTL",
    "mirrorSources": "MIRROR_SOURCES",
    "publishRate": "RATE",
    "replication": "REPLICATION",
    "retention": "RETENTION",
    "schemaAutoUpdateCompatibilityStrategy": "SCHEMA_COMPATIBILITY_STRATEGY",
    "schemaCompatibilityStrategy": "SCHEMA_COMPATIBILITY_STRATEGY",
    "schemaValidationEnforced": "SCHEMA_COMPATIBILITY_STRATEGY",
    "subscribeRate": "RATE",
    "subscriptionAuthMode": "SUBSCRIPTION_AUTH_MODE",
    "subscriptionDispatchRate": "RATE",
    "subscriptionExpirationTime": "SUBSCRIPTION_EXPIRATION_TIME",
    "subscriptionTypesEnabled": "SUBSCRIPTION_AUTH_MODE",
}


def _routes(policy: Policy) -> list[Route]:
    routes = []
    levels = (
        (policy.namespace, NAMESPACE, needs.namespace_policy, ON_NAMESPACE),
        (policy.topic, TOPIC, needs.topic_policy, ON_TOPIC),
    )
    for place, base, right, handlers in levels:
        if place is None:
            continue
        path = f"{base}/{place.path}"
        show, change, remove = (partial(handler, policy, place) for handler in handlers)
        read, write = (right(RIGHTS[policy.name], operation) for operation in ("READ", "WRITE"))
        body = None if place.query else bodies.SETTINGS.get(place.path)
        routes.append(Route("GET", path, read, None, show))
        routes.append(Route(place.method, path, write, body, change))
        # Without this route the path is that of a bundle to be deleted, as in Pulsar.
        if place.is_removable:
            routes.append(Route("DELETE", path, write, None, remove))
    return routes


ON_NAMESPACE = (of_namespace, set_for_namespace, unset_for_namespace)
ON_TOPIC = (of_topic, set_for_topic, unset_for_topic)
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = tuple(route for policy in POLICIES for route in _routes(policy))
