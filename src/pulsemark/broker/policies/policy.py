"""What a policy is: its names, how its value is read, and what it is without one.

A policy has a value as JSON at up to three levels: the broker's configuration, a namespace and a
topic. The most specific value that is set applies. Each policy is described once, by a `Policy`;
the REST routes, the look-up and the checks of a new namespace are made from the description.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..configuration.config import BrokerConfig
from ..errors import BrokerError

__all__ = ["InvalidValueError", "Place", "Policy", "PolicyValueError", "UnreadableValueError"]


class PolicyValueError(BrokerError, ValueError):
    """A value that a policy cannot have.

    `policy` is its name, `value` the value given, `reason` what is wrong, and `status` the HTTP
    status of the answer.
    """

    def __init__(
        self, policy: str, value: object, reason: str, *, status: int = 400, text: str = ""
    ) -> None:
        super().__init__(text or f"{policy}: {reason}")
        self.policy = policy
        self.value = value
        self.reason = reason
        self.status = status


class UnreadableValueError(PolicyValueError):
    """A JSON value of the wrong type or out of range; `value` is the value given."""

    def __init__(self, policy: str, value: object, reason: str) -> None:
        super().__init__(policy, value, reason, text=f"{policy}: {reason}, not {str(value)[:80]}")


class InvalidValueError(PolicyValueError):
    """A value that the policy cannot have, with Pulsar's text. `value` is the value given."""

    def __init__(self, policy: str, value: object, reason: str, *, status: int = 412) -> None:
        super().__init__(policy, value, reason, status=status, text=reason)


@dataclass(frozen=True, slots=True)
class Place:
    """How a policy is reached over REST at one level."""

    #: The last segment of the path.
    path: str
    #: The method that sets it. GET shows it, DELETE removes it.
    method: str = "POST"
    #: The query parameter that has the value; "": the body has it.
    query: str = ""
    #: Pulsar's text for a number below the lowest one, if it differs from the reader's.
    negative: str = ""
    #: What an empty body does: it is refused (400), it removes the value, or it is read as null.
    empty: Literal["refused", "removes", "null"] = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The description of a policy."""

    #: Its name in messages, in `pulsemark policies` and in the documentation.
    name: str
    #: Its name in Pulsar's namespace policies, and in our catalog.
    key: str
    #: What it decides, in one sentence for the documentation.
    what: str
    #: Makes the stored JSON value from the value given. Raises `PolicyValueError`.
    read: Callable[[Any], Any]
    #: The value of the broker's configuration, as it would be stored.
    default: Callable[[BrokerConfig], Any]
    #: Where a namespace's value is reached; None: a namespace has none.
    namespace: Place | None
    #: Where a topic's value is reached; None: a topic has none.
    topic: Place | None
    #: Whether it is a policy of this broker's own, which Pulsar does not have.
    is_ours: bool = False
    #: Whether `read` may block, since it imports a plugin.
    read_blocks: bool = False
