"""What is wrong with a topic's name, in Pulsar's words: clients show these texts."""

from __future__ import annotations

from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError
from ...wire.topic_name import is_entity_name
from ..errors import RefusedError

__all__ = ["invalid_name"]

DOMAINS = ("persistent", "non-persistent")


def invalid_name(name: str, error: InvalidTopicNameError) -> RefusedError:
    """The refusal of a name that was found invalid with `error`."""
    text = f"Invalid topic name: {_reason(name) or error}"
    return RefusedError(ServerError.InvalidTopicName, text)


def _reason(name: str) -> str | None:
    domain, separator, rest = name.partition("://")
    parts = rest.split("/", 3) if separator else name.split("/")
    if not separator and (not name or len(parts) not in {1, 3}):
        return (
            f"Invalid short topic name '{name}', it should be in the format of "
            "<tenant>/<namespace>/<topic> or <topic>"
        )
    if separator and domain not in DOMAINS:
        return f"Invalid topic domain: '{domain}'"
    if separator and len(parts) < 3:
        return f"Invalid topic name: {name}"
    local, namespace = parts[-1], "/".join(parts[:-1])
    if len(parts) < 3:
        return None
    if not all(parts[:-1]):
        return f"Invalid namespace format. namespace: {namespace}"
    for part in parts[:-1]:
        if not is_entity_name(part):
            return f"Invalid named entity: {part}"
    if not local.strip():
        full = name if separator else f"persistent://{name}"
        return f"Invalid topic name: {full}. Topic local name must not be blank."
    return None
