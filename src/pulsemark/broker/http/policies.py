"""The policy `brokerEntryMetadata` of namespaces and topics.

As with Pulsar's own policies the answer is 200 with the value, 200 with an empty body if none is
set, and 204 for a change. With `applied=true` the answer for a topic is the policy that applies to
it, from whatever level.
"""

from __future__ import annotations

from ..topics.stamp_policies import POLICY_NAME, InvalidPolicyError, StampPolicy
from .messages import HttpError, Request, Response
from .names import policy_namespace, policy_topic
from .table import Route

__all__ = ["ROUTES", "checked_policy"]


async def of_namespace(request: Request, tenant: str, name: str) -> Response:
    """The policy set for a namespace."""
    policies = request.services.topics.stamp_policies
    return _answer(policies.of_namespace(policy_namespace(request, tenant, name)))


async def set_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Set a namespace's policy."""
    namespace = policy_namespace(request, tenant, name)
    policy = await _policy(request)
    await request.services.topics.stamp_policies.set_for_namespace(namespace, policy)
    return Response()


async def unset_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Remove a namespace's policy; the broker's policy applies again."""
    namespace = policy_namespace(request, tenant, name)
    await request.services.topics.stamp_policies.set_for_namespace(namespace, None)
    return Response()


async def of_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The policy set for a topic; with applied=true the policy that applies to it."""
    policies = request.services.topics.stamp_policies
    name = policy_topic(request, tenant, namespace, topic)
    return _answer(policies.applied(name) if request.flag("applied") else policies.of_topic(name))


async def set_for_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Set a topic's policy."""
    name = policy_topic(request, tenant, namespace, topic)
    policy = await _policy(request)
    await request.services.topics.stamp_policies.set_for_topic(name, policy)
    return Response()


async def unset_for_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Remove a topic's policy; the namespace's policy applies again."""
    name = policy_topic(request, tenant, namespace, topic)
    await request.services.topics.stamp_policies.set_for_topic(name, None)
    return Response()


async def checked_policy(request: Request, value: object) -> StampPolicy:
    """Make the policy from its JSON value. Raises `HttpError` 400."""
    try:
        policy: StampPolicy = await request.services.run_blocking(StampPolicy.from_json, value)
    except InvalidPolicyError as error:
        raise HttpError(400, str(error)) from error
    return policy


async def _policy(request: Request) -> StampPolicy:
    return await checked_policy(request, request.json())


def _answer(policy: StampPolicy | None) -> Response:
    return Response(200) if policy is None else Response.of_json(policy.to_json())


NAMESPACE = f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{POLICY_NAME}"
TOPIC = f"/admin/v2/persistent/{{tenant}}/{{namespace}}/{{topic}}/{POLICY_NAME}"

ROUTES = (
    Route("GET", NAMESPACE, of_namespace),
    Route("POST", NAMESPACE, set_for_namespace),
    Route("DELETE", NAMESPACE, unset_for_namespace),
    Route("GET", TOPIC, of_topic),
    Route("POST", TOPIC, set_for_topic),
    Route("DELETE", TOPIC, unset_for_topic),
)
