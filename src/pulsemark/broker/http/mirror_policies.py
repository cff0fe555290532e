"""The policy `mirrorSources` of namespaces and topics, with the answers of Pulsar's policies."""

from __future__ import annotations

from ...wire import TopicName
from ..topics.mirror_policies import MIRROR_SOURCES, InvalidSourcesError, check_sources
from .messages import HttpError, Request, Response
from .names import check_new_namespace, existing_topic, namespace_name, topic_name
from .table import Route

__all__ = ["ROUTES", "checked_sources"]


async def of_namespace(request: Request, tenant: str, name: str) -> Response:
    """The value set for a namespace."""
    policies = request.services.topics.mirror_policies
    return _answer(policies.of_namespace(_namespace(request, tenant, name)))


async def set_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Set a namespace's value."""
    namespace = _namespace(request, tenant, name)
    value = checked_sources(request.json())
    await request.services.topics.mirror_policies.set_for_namespace(namespace, value)
    return Response()


async def unset_for_namespace(request: Request, tenant: str, name: str) -> Response:
    """Remove a namespace's value."""
    namespace = _namespace(request, tenant, name)
    await request.services.topics.mirror_policies.set_for_namespace(namespace, None)
    return Response()


async def of_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """The value set for a topic; with applied=true the one that applies to it."""
    policies = request.services.topics.mirror_policies
    name = _topic(request, tenant, namespace, topic)
    return _answer(policies.applied(name) if request.flag("applied") else policies.of_topic(name))


async def set_for_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Set a topic's value."""
    name = _topic(request, tenant, namespace, topic)
    value = checked_sources(request.json())
    await request.services.topics.mirror_policies.set_for_topic(name, value)
    return Response()


async def unset_for_topic(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Remove a topic's value."""
    name = _topic(request, tenant, namespace, topic)
    await request.services.topics.mirror_policies.set_for_topic(name, None)
    return Response()


def checked_sources(value: object) -> list[str]:
    """The policy's value from JSON. Raises `HttpError` 400."""
    try:
        return check_sources(value)
    except InvalidSourcesError as error:
        raise HttpError(400, str(error)) from error


def _answer(value: list[str] | None) -> Response:
    return Response(200) if value is None else Response.of_json(value)


def _namespace(request: Request, tenant: str, name: str) -> str:
    check_new_namespace(tenant, name)
    return namespace_name(request, tenant, name)


def _topic(request: Request, tenant: str, namespace: str, topic: str) -> TopicName:
    name = topic_name(request, "persistent", tenant, namespace, topic)
    if name.partition_index >= 0:
        raise HttpError(412, "a partition has no policies; use its partitioned topic")
    return existing_topic(request, "persistent", tenant, namespace, topic)


NAMESPACE = f"/admin/v2/namespaces/{{tenant}}/{{namespace}}/{MIRROR_SOURCES}"
TOPIC = f"/admin/v2/persistent/{{tenant}}/{{namespace}}/{{topic}}/{MIRROR_SOURCES}"

ROUTES = (
    Route("GET", NAMESPACE, of_namespace),
    Route("POST", NAMESPACE, set_for_namespace),
    Route("DELETE", NAMESPACE, unset_for_namespace),
    Route("GET", TOPIC, of_topic),
    Route("POST", TOPIC, set_for_topic),
    Route("DELETE", TOPIC, unset_for_topic),
)
