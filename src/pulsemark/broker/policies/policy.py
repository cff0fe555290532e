"""A policy: its names, how its value is read, and which of its values applies.

A policy has a value as JSON at up to three levels: the broker's configuration, a namespace and a
topic. The most specific value that is set applies. Each policy is described once, by a `Policy`;
the REST routes, the look-up and the checks of a new namespace are made from the description.

`topics.policy_store` has the values, as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from ...records import FactsError, record
from ..configuration.config import BrokerConfig
from ..errors import BrokerError

#: Makes a stored value from a policy's or field's name and JSON. Raises `UnreadableValueError`.
Reader = Callable[[str, Any], Any]

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
    """A JSON value as Pulsar's `int`. Raises as `number`."""
    return number(name, value, INT_MAX)


def long_integer(name: str, value: Any) -> int:
    """A JSON value as Pulsar's `long`. Raises as `number`."""
    return number(name, value, LONG_MAX)


def boolean(name: str, value: Any) -> bool:
    """A JSON value as Pulsar's `boolean`: a number is true unless it is 0, null is false."""
    if isinstance(value, str) and value.strip() in ("true", "True", "TRUE"):
        return True
    if isinstance(value, str) and value.strip() in ("false", "False", "FALSE", *_NOTHING):
        return False
    if value is None or isinstance(value, bool | int):
        return bool(value)
    raise UnreadableValueError(name, value, "must be true or false")


def any_of(*known: str) -> Reader:
    """A reader of an enumeration: an unknown name is None, a number is an index, as in Pulsar."""

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


def fields(**readers: tuple[Reader, Any]) -> Reader:
    """A reader of an object. Each field has a reader, and the value if it is missing.

    A field whose value becomes None is left out, and unknown fields are ignored.
    """

    def read(policy: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UnreadableValueError(policy, value, "must be an object")
        found = {
            name: reader(f"{policy}.{name}", value[name]) if name in value else missing
            for name, (reader, missing) in readers.items()
        }
        return {name: each for name, each in found.items() if each is not None}

    return read


def not_negative(policy: str, value: Any, highest: int = INT_MAX) -> int:
    """A number of at least 0. Raises as `number`, and `InvalidValueError`."""
    found = number(policy, value, highest)
    if found < 0:
        raise InvalidValueError(policy, value, f"{policy} must be 0 or more")
    return found


class PolicyValueError(FactsError, BrokerError, ValueError, text="{policy}: {reason}"):
    """A value that a policy cannot have. `status` is the HTTP status of the answer."""

    policy: str
    value: object
    reason: str
    status: int = 400


class UnreadableValueError(PolicyValueError, text="{policy}: {reason}, not {value!s:.80}"):
    """A JSON value of the wrong type or out of range."""


class InvalidValueError(PolicyValueError, text="{reason}"):
    """A value that the policy cannot have, with Pulsar's text."""

    status: int = 412


@record(frozen=True)
class Place:
    """How a policy is reached over REST at one level."""

    #: The last segment of the path.
    path: str
    #: The method that sets it. GET shows it, DELETE removes it.
    method: str = "POST"
    #: The query parameter that has the value; "": the body has it.
    query: str = ""
    #: The effect of an empty body: it is refused (400), removes the value, is read as null, or
    #: it changes nothing.
    empty: Literal["refused", "removes", "null", "ignored"] = "refused"
    #: The answer to GET if no value is set; None: nothing, with `unset_status`.
    unset: Any = None
    unset_status: int = 200
    set_status: int = 204
    #: Whether GET shows the broker's value if no value is set.
    shows_default: bool = False
    #: Whether DELETE is served.
    is_removable: bool = True
    #: Whether `applied=true` shows the value that applies. Pulsar has topic policies without it.
    shows_applied: bool = True
    #: Whether a topic has a second value, with `isGlobal=true`.
    has_global: bool = True


@record(frozen=True, kw_only=True)
class Policy:
    """The description of a policy."""

    #: Its name in messages, in `pulsemark policies` and in the documentation.
    name: str
    #: Pulsar's name of the permission to read or write it; "": it has routes of its own.
    right: str = ""
    #: Its name in Pulsar's namespace policies, and in our catalog.
    key: str
    #: One sentence about what it decides, for the documentation.
    what: str
    #: Makes the stored JSON value from the name and the value given. Raises `PolicyValueError`.
    reader: Reader
    #: The value of the broker's configuration, as it would be stored.
    default: Callable[[BrokerConfig], Any]
    #: The broker's value for topics that take Kafka's record sets; None: as for others.
    default_of_kafkas: Any = None
    #: The REST path of a namespace's value; None: a namespace has none.
    namespace: Place | None
    #: The REST path of a topic's value; None: a topic has none.
    topic: Place | None
    #: Checks a value that was read for a broker, and whether it is for a topic. Raises
    #: `PolicyValueError`.
    check: Callable[[Any, BrokerConfig, bool], None] | None = None
    #: Whether Pulsar's namespace policies have it as a map of clusters, with one member here.
    by_cluster: bool = False
    #: Other names under which Pulsar's namespace policies show it, too.
    shown_as: tuple[str, ...] = ()
    #: Its value in Pulsar's namespace policies if none is set; None: it is left out.
    absent: Any = None
    #: Whether it is a policy of this broker's own, which Pulsar does not have.
    is_ours: bool = False
    #: Whether reading may block, since it imports a plugin.
    read_blocks: bool = False

    def read(self, value: Any) -> Any:
        """The stored form of a JSON value. Raises `PolicyValueError`."""
        return self.reader(self.name, value)
