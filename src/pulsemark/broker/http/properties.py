"""Properties of topics: texts that clients keep with a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...wire import TopicName
from ..statistics.internal_stats import stored_index
from .messages import HttpError, Request, Response
from .names import existing_topic
from .table import Route

if TYPE_CHECKING:
    from ..topics.registry import Topics

__all__ = ["PROPERTIES", "ROUTES", "properties_of", "text_properties"]

#: Their name in the topic's policies.
PROPERTIES = "properties"
MAX_PROPERTIES = 1000


def properties_of(topics: Topics, name: TopicName) -> dict[str, str]:
    """A topic's properties."""
    found: dict[str, str] = topics.policy_store.in_topic(name, PROPERTIES) or {}
    return found


def text_properties(value: object) -> dict[str, str]:
    """Properties from JSON; numbers become texts, as in Pulsar. Raises `HttpError` 400."""
    if value is None:
        return {}
    if not isinstance(value, dict) or any(isinstance(v, dict | list) for v in value.values()):
        raise HttpError(400, "properties must be an object with texts", as_text=True)
    if len(value) > MAX_PROPERTIES:
        raise HttpError(412, f"a topic has at most {MAX_PROPERTIES} properties")
    return {
        key: str(text).lower() if isinstance(text, bool) else str(text)
        for key, text in value.items()
        if text is not None
    }


async def properties(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """A topic's properties."""
    topics = request.services.topics
    name = existing_topic(request, domain, tenant, namespace, topic)
    shown = properties_of(topics, name)
    if name.is_persistent and not topics.partitions_of(name):
        # Pulsar keeps the index of the last closed ledger among the properties.
        index = stored_index((await topics.open(name, create=False)).ledger)
        shown = {"index": str(index), **shown}
    return Response.of_json(shown)


async def update(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Add properties, or change their values."""
    name = existing_topic(request, domain, tenant, namespace, topic)
    given = text_properties(request.json())
    before = properties_of(request.services.topics, name)
    await _store(request, name, {**before, **given})
    return Response()


async def remove(
    request: Request, domain: str, tenant: str, namespace: str, topic: str
) -> Response:
    """Remove the property that the query's `key` names; it may be absent."""
    name = existing_topic(request, domain, tenant, namespace, topic)
    before = properties_of(request.services.topics, name)
    key = request.query.get("key")
    if key in before:
        await _store(request, name, {k: v for k, v in before.items() if k != key})
    return Response()


async def _store(request: Request, name: TopicName, value: dict[str, str]) -> None:
    text_properties(value)
    await request.services.topics.policy_store.set_in_topic(name, PROPERTIES, value or None)


PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/properties"

ROUTES = (
    Route("GET", PATH, properties, (404,)),
    Route("PUT", PATH, update, (400, 404, 412)),
    Route("DELETE", PATH, remove, (404,)),
)
