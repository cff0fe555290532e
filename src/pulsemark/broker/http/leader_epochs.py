"""The policy `leaderEpochs` of namespaces and topics, and the epochs of a topic.

As with Pulsar's own policies the answer is 200 with the value, 200 with an empty body if none is
set, and 204 for a change. With `applied=true` the answer for a topic is the policy that applies.
"""

from __future__ import annotations

from ..topics.leader_epochs import InvalidEpochPolicyError, LeaderEpochs, check_leader_epochs
from .messages import HttpError, Request, Response
from .names import open_one_log, policy_namespace, policy_topic
from .table import Route

__all__ = ["ROUTES"]


async def of_namespace(request: Request, tenant: str, name: str) -> Response:
    """The policy set for a namespace."""
    return _answer(_epochs(request).of_namespace(policy_namespace(request, tenant, name)))


async def set_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Set a namespace's policy."""
    namespace = policy_namespace(request, tenant, name)
    await _epochs(request).set_for_namespace(namespace, _value(request))
    return Response()


async def unset_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Remove a namespace's policy; the broker's setting applies again."""
    namespace = policy_namespace(request, tenant, name)
    await _epochs(request).set_for_namespace(namespace, None)
    return Response()


async def of_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The policy set for a topic; with applied=true the policy that applies to it."""
    name = policy_topic(request, tenant, namespace, topic)
    epochs = _epochs(request)
    return _answer(epochs.applied(name) if request.flag("applied") else epochs.of_topic(name))


async def set_for_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Set a topic's policy."""
    name = policy_topic(request, tenant, namespace, topic)
    await _epochs(request).set_for_topic(name, _value(request))
    return Response()


async def unset_for_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Remove a topic's policy; the namespace's policy applies again."""
    name = policy_topic(request, tenant, namespace, topic)
    await _epochs(request).set_for_topic(name, None)
    return Response()


async def epochs_of(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Where each leader epoch of a topic begins, oldest first, and where the last one ends."""
    opened = await open_one_log(request, domain, tenant, namespace, topic, what="Get epochs")
    history = await request.services.run_blocking(opened.ledger.epoch_history)
    starts = [
        {
            "epoch": start.epoch,
            "firstIndex": start.first_index,
            "ledgerId": start.position.ledger_id,
            "entryId": start.position.entry_id,
            "leader": start.leader,
        }
        for start in history.starts
    ]
    return Response.of_json({"epochs": starts, "nextIndex": history.next_index})


def _epochs(request: Request) -> LeaderEpochs:
    return request.services.topics.leader_epochs


def _value(request: Request) -> bool:
    try:
        return check_leader_epochs(request.json())
    except InvalidEpochPolicyError as error:
        raise HttpError(400, str(error)) from error


def _answer(value: bool | None) -> Response:
    return Response(200) if value is None else Response.of_json(value)


NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/leaderEpochs"
TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/leaderEpochs"

ROUTES = (
    Route("GET", NAMESPACE, of_namespace),
    Route("POST", NAMESPACE, set_for_namespace),
    Route("DELETE", NAMESPACE, unset_for_namespace),
    Route("GET", TOPIC, of_topic),
    Route("POST", TOPIC, set_for_topic),
    Route("DELETE", TOPIC, unset_for_topic),
    Route("GET", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/epochs", epochs_of),
)
