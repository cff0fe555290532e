"""The policy `properties`: texts by name, which the broker stores and shows, and does not use."""

from __future__ import annotations

from typing import Any

from .policy import Policy, UnreadableValueError

__all__ = ["MAX_PROPERTIES", "PROPERTIES", "read_properties"]

MAX_PROPERTIES = 1_000


def read_properties(value: Any) -> dict[str, str]:
    """Texts by name. Raises `UnreadableValueError`."""
    if not isinstance(value, dict):
        raise UnreadableValueError("properties", value, "must be an object")
    if len(value) > MAX_PROPERTIES:
        raise UnreadableValueError("properties", len(value), f"at most {MAX_PROPERTIES}")
    if any(isinstance(each, dict | list) for each in value.values()):
        raise UnreadableValueError("properties", value, "must have texts as values")
    return {name: _text(each) for name, each in value.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


PROPERTIES = Policy(
    name="properties",
    key="properties",
    what="texts by name, which the broker stores and shows",
    read=read_properties,
    default=lambda config: {},
    # Its routes are in `http/properties.py`: they add to the map.
    namespace=None,
    topic=None,
    absent={},
    is_stored_only=True,
)
