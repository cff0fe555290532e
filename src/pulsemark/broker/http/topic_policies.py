"""Policies of a topic that are no row of the catalogue: rates of single subscriptions, and all.

Statuses and bodies are those of Apache Pulsar 4.0.8. A subscription need not exist to have a rate.
"""

from __future__ import annotations

from typing import Any

from ..handlers.checks import check_name
from ..policies.catalogue import POLICIES
from ..policies.policy import PolicyValueError
from ..policies.pulsar_policies import (
    PROPERTIES,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIPTION_RATES,
    read_dispatch_rate,
)
from ..security import needs
from . import bodies
from .messages import HttpError, Request, Response
from .policies import policy_topic
from .route import Route

__all__ = ["ROUTES"]

#: Rates for single subscriptions that one topic can have.
MAX_SUBSCRIPTION_RATES = 1_000


async def rate_of(request: Request, *names: str) -> Response:
    """The dispatch rate set for a subscription; with applied=true the one that applies to it."""
    *place, subscription = names
    name, topics = policy_topic(request, *place), request.services.topics
    is_applied = request.flag("applied")
    keys = (
        [_key(request)] if not is_applied else [SUBSCRIPTION_RATES, f"global:{SUBSCRIPTION_RATES}"]
    )
    for key in keys:
        found = (topics.policy_store.in_topic(name, key) or {}).get(subscription)
        if found is not None:
            return Response.of_json(found)
    if is_applied:
        return Response.of_json(topics.policies.applied(name, SUBSCRIPTION_DISPATCH_RATE))
    return Response(200)


async def set_rate(request: Request, *names: str) -> Response:
    """Set the dispatch rate of a subscription; an empty body changes nothing."""
    *place, subscription = names
    name, value = policy_topic(request, *place), request.json()
    check_name("subscription's name", subscription)
    if value is None:
        return Response()
    try:
        rate = read_dispatch_rate(value)
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error
    await _revise(request, name, subscription, rate)
    return Response()


async def unset_rate(request: Request, *names: str) -> Response:
    """Remove the dispatch rate of a subscription; the topic's applies again."""
    *place, subscription = names
    await _revise(request, policy_topic(request, *place), subscription, None)
    return Response()


async def _revise(request: Request, name: Any, subscription: str, rate: Any) -> None:
    def revise(rates: dict[str, Any] | None) -> dict[str, Any] | None:
        left = {each: old for each, old in (rates or {}).items() if each != subscription}
        if rate is not None:
            if len(left) >= MAX_SUBSCRIPTION_RATES:
                reason = f"a topic has rates for at most {MAX_SUBSCRIPTION_RATES} subscriptions"
                raise HttpError(412, reason)
            left[subscription] = rate
        return left or None

    await request.services.topics.policy_store.revise_in_topic(name, _key(request), revise)


def _key(request: Request) -> str:
    return f"global:{SUBSCRIPTION_RATES}" if request.flag("isGlobal") else SUBSCRIPTION_RATES


async def delete_policies(request: Request, *names: str) -> Response:
    """Remove all policies of a topic that Pulsar has, also with isGlobal; its properties stay."""
    domain, tenant, namespace, topic = names
    topics = request.services.topics
    if f"{tenant}/{namespace}" not in topics.namespaces:
        return Response()
    name = topics.parse(f"{domain}://{tenant}/{namespace}/{topic}")
    if name.partition_index >= 0 or not topics.exists(name):
        return Response()
    theirs = [each for each in POLICIES if not each.is_ours and each is not PROPERTIES]
    keys = {SUBSCRIPTION_RATES, *(each.key for each in theirs)}
    stored = topics.policy_store.policies_of_topic(name)
    gone = [key for key in stored if key.removeprefix("global:") in keys]
    if gone:
        await topics.policy_store.change_in_topic(name, dict.fromkeys(gone))
    for policy in theirs:
        if {policy.key, f"global:{policy.key}"} & set(gone):
            await topics.policies[policy].changed_in_topic(name)
    return Response()


TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
RATE = f"{TOPIC}/{{subscription}}/dispatchRate"

ROUTES = (
    Route("GET", RATE, needs.topic_policy("RATE", "READ"), None, rate_of),
    Route(
        "POST", RATE, needs.topic_policy("RATE", "WRITE"), bodies.SETTINGS["dispatchRate"], set_rate
    ),
    Route("DELETE", RATE, needs.topic_policy("RATE", "WRITE"), None, unset_rate),
    Route("DELETE", f"{TOPIC}/policies", needs.namespace("DELETE_TOPIC"), None, delete_policies),
)
