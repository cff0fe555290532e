"""The policy `entryFormat` of topics: whether Kafka's record sets are stored, and in which format.

The value is an object with settings by Kafka's names (docs/kafka.md), such as
`{"message.format.version": "0.10.0"}`. Settings that are not named keep their values; null gives a
setting its default. The answer to GET has all settings of the topic's own; without a body: the
topic takes no record sets. The policy cannot be unset, since entries in that format stay.
"""

from __future__ import annotations

from typing import Any

from ..topics.entry_formats import KAFKA_POLICY
from ..topics.entry_formats import set_entry_format as change_entry_format
from .messages import HttpError, Request, Response
from .policies import policy_topic
from .table import Route

__all__ = ["ROUTES"]


async def entry_format(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """A topic's settings of its own."""
    name = policy_topic(request, "persistent", tenant, namespace, topic)
    settings = request.services.topics.policy_store.in_topic(name, KAFKA_POLICY)
    return Response(200) if settings is None else Response.of_json(settings)


async def set_entry_format(request: Request, tenant: str, namespace: str, topic: str) -> Response:
    """Change some of a topic's settings; from then on it takes Kafka's record sets."""
    from ...kafka.errors import KafkaError
    from ...kafka.topic_settings import check_settings

    name = policy_topic(request, "persistent", tenant, namespace, topic)
    changes: Any = request.json()
    if not isinstance(changes, dict) or not all(
        value is None or isinstance(value, str) for value in changes.values()
    ):
        raise HttpError(400, "entryFormat must be an object with settings as text")
    store = request.services.topics.policy_store
    before = store.in_topic(name, KAFKA_POLICY) or {}
    try:
        settings = check_settings({**before, **changes})
    except KafkaError as error:
        raise HttpError(400, error.message) from error
    await change_entry_format(request.services.topics, name, settings)
    return Response()


TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/entryFormat"

ROUTES = (
    Route("GET", TOPIC, entry_format),
    Route("POST", TOPIC, set_entry_format),
)
