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
    #: What an empty body does: it is refused (400), it removes the value, it is read as null, or
    #: it changes nothing.
    empty: Literal["refused", "removes", "null", "ignored"] = "refused"
    #: What GET shows if no value is set; None: nothing, with `unset_status`.
    unset: Any = None
    unset_status: int = 200
    set_status: int = 204
    #: Whether GET shows the broker's value if no value is set.
    shows_default: bool = False
    #: Whether the request's body counts at all.
    has_body: bool = True
    #: Whether Pulsar says "Namespace policies does not exist" when an absent namespace's value is
    #: changed.
    names_policies: bool = False
    #: Whether DELETE is served.
    is_removable: bool = True
    #: Whether `applied=true` shows the value that applies. Pulsar has topic policies without it.
    shows_applied: bool = True
    #: Whether a topic has a second value, with `isGlobal=true`.
    has_global: bool = True


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
    #: Checks a value that was read for a broker, and whether it is for a topic. Raises
    #: `PolicyValueError`.
    check: Callable[[Any, BrokerConfig, bool], None] | None = None
    #: Whether Pulsar's namespace policies have it as a map of clusters, with one member here.
    by_cluster: bool = False
    #: Other names under which Pulsar's namespace policies show it, too.
    shown_as: tuple[str, ...] = ()
    #: Its value in Pulsar's namespace policies if none is set; None: it is left out.
    absent: Any = None
    #: Whether the broker only stores and shows it, since what it is about is not there.
    is_stored_only: bool = False
    #: Whether it is a policy of this broker's own, which Pulsar does not have.
    is_ours: bool = False
    #: Whether `read` may block, since it imports a plugin.
    read_blocks: bool = False
