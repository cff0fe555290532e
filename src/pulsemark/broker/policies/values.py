"""Reads the values of policies from JSON, as Pulsar reads them.

A number may be text, a fraction is cut off, null is 0, and unknown fields of an object are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .policy import InvalidValueError, UnreadableValueError

__all__ = [
    "INT_MAX",
    "LONG_MAX",
    "Reader",
    "any_of",
    "boolean",
    "decimal",
    "fields",
    "integer",
    "long_integer",
    "names",
    "not_negative",
    "number",
]

Reader = Callable[[str, Any], Any]
"""Makes a stored value from a policy's or field's name and JSON. Raises `UnreadableValueError`."""

#: Texts that Pulsar reads as null.
_NOTHING = ("", "null")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def number(policy: str, value: Any, highest: int) -> int:
    """A JSON value as Pulsar's `int` or `long`. Raises `UnreadableValueError`."""
    found = value
    if value is None:
        return 0
    if isinstance(value, str):
        if value.strip() in _NOTHING:
            return 0
        if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value) is None:
            raise UnreadableValueError(policy, value, "must be a whole number")
        found = int(value)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise UnreadableValueError(policy, value, "must be a whole number")
    if not -highest - 1 <= found <= highest:
        raise UnreadableValueError(policy, value, f"must be a number up to {highest}")
    return int(found)


def integer(name: str, value: Any) -> int:
    """Pulsar's `int`."""
    return number(name, value, INT_MAX)


def long_integer(name: str, value: Any) -> int:
    """Pulsar's `long`."""
    return number(name, value, LONG_MAX)


def boolean(name: str, value: Any) -> bool:
    """Pulsar's `boolean`: a number is whether it is not 0, null is false."""
    if isinstance(value, str) and value.strip() in ("true", "True", "TRUE"):
        return True
    if isinstance(value, str) and value.strip() in ("false", "False", "FALSE", *_NOTHING):
        return False
    if value is None or isinstance(value, bool | int):
        return bool(value)
    raise UnreadableValueError(name, value, "must be true or false")


def decimal(name: str, value: Any) -> float:
    """Pulsar's `double`."""
    try:
        return float(value or 0)
    except (TypeError, ValueError) as error:
        raise UnreadableValueError(name, value, "must be a number") from error


def any_of(*known: str) -> Reader:
    """A reader of an enumeration: an unknown name is None, and a number chooses, as in Pulsar."""

    def read(name: str, value: Any) -> str | None:
        if isinstance(value, bool | float | list | dict):
            raise UnreadableValueError(name, value, f"must be one of {', '.join(known)}")
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:9])
        if isinstance(value, int):
            return known[value] if 0 <= value < len(known) else None
        return value if value in known else None

    return read


def names(name: str, value: Any) -> list[str]:
    """A list of texts; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str | int) for each in value):
        raise UnreadableValueError(name, value, "must be a list of names")
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in value]


def fields(policy: str, readers: Mapping[str, tuple[Reader, Any]]) -> Callable[[Any], Any]:
    """A reader of an object. Each field has a reader, and the value if it is missing.

    A field whose value becomes None is left out, and unknown fields are ignored.
    """

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UnreadableValueError(policy, value, "must be an object")
        found = {
            name: reader(f"{policy}.{name}", value[name]) if name in value else missing
            for name, (reader, missing) in readers.items()
        }
        return {name: each for name, each in found.items() if each is not None}

    return read


def not_negative(
    name: str, refusal: str, highest: int = INT_MAX, *, status: int = 412
) -> Callable[[Any], int]:
    """A reader of a number of at least 0; `refusal` is Pulsar's text for a lower one."""

    def read(value: Any) -> int:
        found = number(name, value, highest)
        if found < 0:
            raise InvalidValueError(name, value, refusal, status=status)
        return found

    return read
