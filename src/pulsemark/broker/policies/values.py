"""Reads the values of policies from JSON, as Pulsar reads them.

A number may be text, a fraction is cut off, null is 0, and unknown fields of an object are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .policy import InvalidValueError, UnreadableValueError

__all__ = ["INT_MAX", "LONG_MAX", "not_negative", "number"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def number(policy: str, value: Any, highest: int) -> int:
    """A JSON value as Pulsar's `int` or `long`. Raises `UnreadableValueError`."""
    found = value
    if value is None:
        return 0
    if isinstance(value, str):
        if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value) is None:
            raise UnreadableValueError(policy, value, "must be a whole number")
        found = int(value)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise UnreadableValueError(policy, value, "must be a whole number")
    if not -highest - 1 <= found <= highest:
        raise UnreadableValueError(policy, value, f"must be a number up to {highest}")
    return int(found)


def not_negative(name: str, shown: str, highest: int) -> Callable[[Any], int]:
    """A reader of a number of at least 0. `shown` is the policy's name in Pulsar's refusal."""

    def read(value: Any) -> int:
        found = number(name, value, highest)
        if found < 0:
            raise InvalidValueError(name, value, f"Invalid value for {shown}")
        return found

    return read
