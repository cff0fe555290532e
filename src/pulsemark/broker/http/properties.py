"""The properties of namespaces and topics over HTTP, with the answers of Apache Pulsar 4.0.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...wire import TopicName
from ..policies.policy import PolicyValueError
from ..policies.pulsar_policies import PROPERTIES, read_properties
from ..security import needs
from ..statistics.internal_stats import stored_index
from . import bodies
from .messages import JSON_TYPE, HttpError, Request, Response
from .names import check_topics_namespace, existing_topic, plain_topic
from .policies import policy_namespace
from .route import Route

if TYPE_CHECKING:
    from ..topics.registry import Topics

__all__ = ["ROUTES", "properties_of", "text_properties"]


def _with_properties(request: Request, tenant: str, name: str) -> str:
    """An existing namespace. Raises `HttpError` 404: of the tenant, if it is absent as well."""
    if tenant not in request.services.topics.namespaces.tenants:
        raise HttpError(404, "Tenant does not exist")
    return policy_namespace(request, tenant, name, PROPERTIES)


async def of_namespace(request: Request, tenant: str, name: str) -> Response:
    """All properties of a namespace."""
    return Response.of_json(_of_namespace(request, _with_properties(request, tenant, name)))


async def add_to_namespace(request: Request, tenant: str, name: str) -> Response:
    """Add properties to a namespace, or replace some."""
    namespace = policy_namespace(request, tenant, name, PROPERTIES)
    return await _change(request, namespace, _given(request) or {})


async def clear_namespace(request: Request, tenant: str, name: str) -> Response:
    """Remove all properties of a namespace."""
    namespace = _with_properties(request, tenant, name)
    await request.services.topics.policies[PROPERTIES].set_for_namespace(namespace, None)
    return Response()


async def one_of_namespace(request: Request, tenant: str, name: str, key: str) -> Response:
    """A property's value; without a body if there is none."""
    namespace = _with_properties(request, tenant, name)
    return _text(_of_namespace(request, namespace).get(key))


async def set_in_namespace(
    request: Request, tenant: str, name: str, key: str, value: str
) -> Response:
    """Set one property of a namespace."""
    return await _change(request, _with_properties(request, tenant, name), {key: value})


async def remove_from_namespace(request: Request, tenant: str, name: str, key: str) -> Response:
    """Remove one property; the answer is its value."""
    namespace = _with_properties(request, tenant, name)
    properties = dict(_of_namespace(request, namespace))
    removed = properties.pop(key, None)
    levels = request.services.topics.policies[PROPERTIES]
    await levels.set_for_namespace(namespace, properties or None)
    return _text(removed)


async def of_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """All properties of a topic."""
    check_topics_namespace(request, domain, tenant, namespace, topic)
    if domain != "persistent":
        raise HttpError(406, "Need to provide a persistent topic name")
    name = plain_topic(request, domain, tenant, namespace, topic)
    topics = request.services.topics
    shown = properties_of(topics, name)
    if topics.partitions_of(name):
        return Response.of_json(shown) if shown else Response(200)
    # Pulsar keeps the index of the last closed ledger among the properties.
    index = stored_index((await topics.open(name, create=False)).ledger)
    return Response.of_json({"index": str(index), **shown})


def properties_of(topics: Topics, name: TopicName) -> dict[str, str]:
    """A topic's properties."""
    found: dict[str, str] = topics.policies[PROPERTIES].of_topic(name) or {}
    return found


def text_properties(value: object) -> dict[str, str]:
    """Properties from JSON; none for null. Raises `HttpError` 400."""
    found: dict[str, str] = {} if value is None else _checked(value) or {}
    return found


async def add_to_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Add properties to a topic, or replace some."""
    if not request.json():  # As in Pulsar: without properties the topic is not looked for.
        return Response()
    name = existing_topic(request, domain, tenant, namespace, topic)
    levels = request.services.topics.policies[PROPERTIES]
    before = levels.of_topic(name) or {}
    await levels.set_for_topic(name, _checked({**before, **(_given(request) or {})}))
    return Response()


async def remove_from_topic(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove the property that the query names."""
    name = existing_topic(request, domain, tenant, namespace, topic)
    levels, key = request.services.topics.policies[PROPERTIES], request.query.get("key")
    left = {each: text for each, text in (levels.of_topic(name) or {}).items() if each != key}
    await levels.set_for_topic(name, left or None)
    return Response()


def _of_namespace(request: Request, namespace: str) -> dict[str, str]:
    levels = request.services.topics.policies[PROPERTIES]
    return levels.of_namespace(namespace) or {}


async def _change(request: Request, namespace: str, given: dict[str, str]) -> Response:
    properties = _checked({**_of_namespace(request, namespace), **given})
    levels = request.services.topics.policies[PROPERTIES]
    await levels.set_for_namespace(namespace, properties)
    return Response()


def _given(request: Request) -> Any:
    return _checked(request.json())


def _checked(value: Any) -> Any:
    try:
        return read_properties(value) or None
    except PolicyValueError as error:
        raise HttpError(error.status, str(error)) from error


def _text(value: str | None) -> Response:
    return Response(200) if value is None else Response(200, value.encode(), JSON_TYPE)


NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"

ROUTES = (
    Route("GET", f"{NAMESPACE}/properties", needs.tenant_admin(), None, of_namespace),
    Route("PUT", f"{NAMESPACE}/properties", needs.tenant_admin(), bodies.TEXTS, add_to_namespace),
    Route("DELETE", f"{NAMESPACE}/properties", needs.tenant_admin(), None, clear_namespace),
    Route("GET", f"{NAMESPACE}/property/{{key}}", needs.tenant_admin(), None, one_of_namespace),
    Route(
        "PUT",
        f"{NAMESPACE}/property/{{key}}/{{value}}",
        needs.tenant_admin(),
        None,
        set_in_namespace,
    ),
    Route(
        "DELETE", f"{NAMESPACE}/property/{{key}}", needs.tenant_admin(), None, remove_from_namespace
    ),
    Route("GET", f"{TOPIC}/properties", needs.topic("GET_METADATA"), None, of_topic),
    Route("PUT", f"{TOPIC}/properties", needs.topic("UPDATE_METADATA"), bodies.TEXTS, add_to_topic),
    Route("DELETE", f"{TOPIC}/properties", needs.topic("DELETE_METADATA"), None, remove_from_topic),
)
