"""The policies `retention`, `messageTTL` and `compactionThreshold`.

Names, units and rules are Pulsar's. A policy can be set for a topic, for a namespace, and in the
broker's configuration; the most specific one that is set applies. Policies are stored under their
names in Pulsar's namespace policies, so that a namespace can be created with them.

Values are JSON, and are read as in Pulsar: a number may be text, a fraction is cut off, null is 0,
and unknown fields of a policy are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...wire import TopicName
from ..configuration.config import BrokerConfig
from ..errors import BrokerError

if TYPE_CHECKING:
    from ..topics.policy_store import PolicyStore

__all__ = [
    "COMPACTION_THRESHOLD",
    "KINDS",
    "MESSAGE_TTL",
    "RETENTION",
    "AppliedPolicies",
    "CleaningPolicies",
    "InvalidValueError",
    "PolicyKind",
    "RetentionPolicy",
    "UnreadableValueError",
    "check_namespace_settings",
]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MIB = 1024 * 1024
MINUTE_MS = 60_000

SINGLE_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
    "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To "
    "disable retention both limits must be set to 0."
)


class UnreadableValueError(BrokerError, ValueError):
    """A JSON value of the wrong type or out of range; `value` is the value given."""

    def __init__(self, policy: str, value: object, reason: str) -> None:
        super().__init__(f"{policy}: {reason}, not {str(value)[:80]}")
        self.policy = policy
        self.value = value
        self.reason = reason


class InvalidValueError(BrokerError, ValueError):
    """A value that the policy cannot have, with Pulsar's text. `value` is the value given."""

    def __init__(self, policy: str, value: object, reason: str) -> None:
        super().__init__(reason)
        self.policy = policy
        self.value = value
        self.reason = reason


def _number(policy: str, value: Any, highest: int) -> int:
    """A JSON value as Pulsar's `int` or `long`. Raises `UnreadableValueError`."""
    number = value
    if value is None:
        return 0
    if isinstance(value, str):
        if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value) is None:
            raise UnreadableValueError(policy, value, "must be a whole number")
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UnreadableValueError(policy, value, "must be a whole number")
    if not -highest - 1 <= number <= highest:
        raise UnreadableValueError(policy, value, f"must be a number up to {highest}")
    return int(number)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long, and how many bytes of, acknowledged messages are kept. -1 is no limit."""

    time_minutes: int
    size_mb: int

    @classmethod
    def from_json(cls, value: Any) -> RetentionPolicy:
        """Make the policy from a JSON object.

        Raises `UnreadableValueError`, and `InvalidValueError` for limits that contradict.
        """
        if not isinstance(value, dict):
            raise UnreadableValueError("retention", value, "must be an object")
        policy = cls(
            _number("retentionTimeInMinutes", value.get("retentionTimeInMinutes"), INT_MAX),
            _number("retentionSizeInMB", value.get("retentionSizeInMB"), LONG_MAX),
        )
        for limit, name in ((policy.time_minutes, "time"), (policy.size_mb, "size")):
            if limit < -1:
                reason = f"Invalid retention policy: {name} limit must be >= -1"
                raise InvalidValueError("retention", value, reason)
        if (policy.time_minutes == 0) != (policy.size_mb == 0):
            raise InvalidValueError("retention", value, SINGLE_ZERO)
        return policy

    def to_json(self) -> dict[str, int]:
        """The value in Pulsar's format."""
        return {"retentionTimeInMinutes": self.time_minutes, "retentionSizeInMB": self.size_mb}

    @property
    def time_ms(self) -> int | None:
        """None: without limit."""
        return None if self.time_minutes < 0 else self.time_minutes * MINUTE_MS

    @property
    def size_bytes(self) -> int | None:
        """None: without limit."""
        return None if self.size_mb < 0 else self.size_mb * MIB

    @property
    def is_at_once(self) -> bool:
        """Whether acknowledged messages need not be kept at all."""
        return 0 in (self.time_minutes, self.size_mb)

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is ever removed."""
        return self.time_minutes < 0 and self.size_mb < 0


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """One of the policies: its names, and how its value is read."""

    #: The name in the admin interface's paths.
    name: str
    #: The name in Pulsar's namespace policies, and in our catalog.
    key: str
    #: Makes the stored value from JSON. Raises `UnreadableValueError`, `InvalidValueError`.
    read: Callable[[Any], Any]
    #: Pulsar's error texts for a negative number, for a namespace and for a topic.
    negative_in_namespace: str = ""
    negative_in_topic: str = ""


def _read_retention(value: Any) -> Any:
    return None if value is None else RetentionPolicy.from_json(value).to_json()


def _reader(name: str, shown: str, highest: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _number(name, value, highest)
        if number < 0:
            raise InvalidValueError(name, value, f"Invalid value for {shown}")
        return number

    return read


RETENTION = PolicyKind("retention", "retention_policies", _read_retention)
MESSAGE_TTL = PolicyKind(
    "messageTTL",
    "message_ttl_in_seconds",
    _reader("messageTTL", "message TTL", INT_MAX),
    "Invalid value for message TTL, message TTL must >= 0",
    "Invalid value for message TTL",
)
COMPACTION_THRESHOLD = PolicyKind(
    "compactionThreshold",
    "compaction_threshold",
    _reader("compactionThreshold", "compactionThreshold", LONG_MAX),
    "compactionThreshold must be 0 or more",
    "Invalid value for compactionThreshold",
)
KINDS = (RETENTION, MESSAGE_TTL, COMPACTION_THRESHOLD)


def check_namespace_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A new namespace's settings with these policies as they are stored.

    Raises `UnreadableValueError`, `InvalidValueError`.
    """
    checked = dict(settings)
    for kind in (MESSAGE_TTL, COMPACTION_THRESHOLD, RETENTION):  # the order of Pulsar's refusals
        if settings.get(kind.key) is not None:
            checked[kind.key] = kind.read(settings[kind.key])
        else:
            checked.pop(kind.key, None)
    return checked


@dataclass(frozen=True, slots=True)
class AppliedPolicies:
    """The policies that apply to a topic."""

    retention: RetentionPolicy
    #: 0: messages do not expire.
    ttl_s: int
    #: 0: compacted only on request.
    compaction_threshold_bytes: int

    @property
    def asks_for_work(self) -> bool:
        """Whether a topic must be cleaned even if no client uses it."""
        limited = not (self.retention.is_unlimited or self.retention.is_at_once)
        return limited or self.ttl_s > 0 or self.compaction_threshold_bytes > 0


class CleaningPolicies:
    """The policies at all levels. Reading needs no lock, and is possible from any thread."""

    def __init__(self, store: PolicyStore, config: BrokerConfig) -> None:
        self._store = store
        retention = RetentionPolicy(
            config.default_retention_time_minutes, config.default_retention_size_mb
        )
        self._defaults: dict[str, Any] = {
            RETENTION.key: retention.to_json(),
            MESSAGE_TTL.key: config.default_message_ttl_s,
            COMPACTION_THRESHOLD.key: config.default_compaction_threshold_bytes,
        }

    def of_namespace(self, namespace: str, kind: PolicyKind) -> Any:
        """The policy set for a namespace, as JSON; None if none is set."""
        return self._store.in_namespace(namespace, kind.key)

    def of_topic(self, name: TopicName, kind: PolicyKind) -> Any:
        """The policy set for a topic, as JSON; None if none is set."""
        return self._store.in_topic(name, kind.key)

    def applied_value(self, name: TopicName, kind: PolicyKind) -> Any:
        """The policy that applies to a topic, as JSON."""
        for value in (self.of_topic(name, kind), self.of_namespace(name.namespace, kind)):
            if value is not None:
                return value
        return self._defaults[kind.key]

    def applied(self, name: TopicName) -> AppliedPolicies:
        """The policies that apply to a topic."""
        retention = self.applied_value(name, RETENTION)
        return AppliedPolicies(
            RetentionPolicy(retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]),
            self.applied_value(name, MESSAGE_TTL),
            self.applied_value(name, COMPACTION_THRESHOLD),
        )

    def is_used(self, kind: PolicyKind) -> bool:
        """Whether any topic has a TTL or a threshold above 0; 0 switches them off."""
        settings = (values for _, values in self._store.owners())
        return bool(self._defaults[kind.key]) or any(values.get(kind.key) for values in settings)

    async def set_for_namespace(self, namespace: str, kind: PolicyKind, value: Any) -> None:
        """Set a namespace's policy to a stored value; None unsets it.

        Raises `RefusedError`, `LedgerError`.
        """
        await self._store.set_in_namespace(namespace, kind.key, value)

    async def set_for_topic(self, name: TopicName, kind: PolicyKind, value: Any) -> None:
        """Set a topic's policy, not a partition's; None unsets it.

        Raises `RefusedError`, `LedgerError`.
        """
        await self._store.set_in_topic(name, kind.key, value)
