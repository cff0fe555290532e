"""The policies `retention`, `messageTTL` and `compactionThreshold`.

Names, units and rules are Pulsar's. A policy can be set for a topic, for a namespace, and in the
broker's configuration; the most specific one that is set applies. Policies are stored under their
names in Pulsar's namespace policies, so that a namespace can be created with them.

Values are JSON, and are read as in Pulsar: a number may be text, a fraction is cut off, null is 0,
and unknown fields of a policy are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...wire import TopicName
from ..configuration.config import BrokerConfig
from .policy import (
    INT_MAX,
    LONG_MAX,
    InvalidValueError,
    Place,
    Policy,
    UnreadableValueError,
    not_negative,
    number,
)

if TYPE_CHECKING:
    from .levels import Policies

__all__ = [
    "CLEANING",
    "COMPACTION_THRESHOLD",
    "MESSAGE_TTL",
    "RETENTION",
    "AppliedPolicies",
    "CleaningPolicies",
    "InvalidValueError",
    "RetentionPolicy",
    "UnreadableValueError",
]

MIB = 1024 * 1024
MINUTE_MS = 60_000

SINGLE_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
    "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To "
    "disable retention both limits must be set to 0."
)


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
            number("retentionTimeInMinutes", value.get("retentionTimeInMinutes"), INT_MAX),
            number("retentionSizeInMB", value.get("retentionSizeInMB"), LONG_MAX),
        )
        for limit, name in ((policy.time_minutes, "time"), (policy.size_mb, "size")):
            if limit < -1:
                reason = f"Invalid retention policy: {name} limit must be >= -1"
                raise InvalidValueError("retention", value, reason, status=400)
        if (policy.time_minutes == 0) != (policy.size_mb == 0):
            raise InvalidValueError("retention", value, SINGLE_ZERO, status=400)
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
        """Whether acknowledged messages need not be kept."""
        return 0 in (self.time_minutes, self.size_mb)

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is ever removed."""
        return self.time_minutes < 0 and self.size_mb < 0


def _read_retention(value: Any) -> Any:
    return RetentionPolicy.from_json(value).to_json()


def _default_retention(config: BrokerConfig) -> Any:
    minutes, megabytes = config.default_retention_time_minutes, config.default_retention_size_mb
    return RetentionPolicy(minutes, megabytes).to_json()


RETENTION = Policy(
    name="retention",
    key="retention_policies",
    what="how long, and how many bytes of, acknowledged messages are kept",
    read=_read_retention,
    default=_default_retention,
    namespace=Place("retention", empty="removes", names_policies=True),
    topic=Place("retention", empty="removes"),
)
MESSAGE_TTL = Policy(
    name="messageTTL",
    key="message_ttl_in_seconds",
    what="after how many seconds unacknowledged messages expire; 0: never",
    read=not_negative("messageTTL", "Invalid value for message TTL"),
    default=lambda config: config.default_message_ttl_s,
    namespace=Place("messageTTL", negative="Invalid value for message TTL, message TTL must >= 0"),
    topic=Place("messageTTL", query="messageTTL"),
)
COMPACTION_THRESHOLD = Policy(
    name="compactionThreshold",
    key="compaction_threshold",
    what="after how many new bytes a topic is compacted; 0: only on request",
    read=not_negative("compactionThreshold", "Invalid value for compactionThreshold", LONG_MAX),
    default=lambda config: config.default_compaction_threshold_bytes,
    namespace=Place("compactionThreshold", "PUT", negative="compactionThreshold must be 0 or more"),
    topic=Place("compactionThreshold"),
)
CLEANING = (MESSAGE_TTL, COMPACTION_THRESHOLD, RETENTION)
"""In the order of Pulsar's refusals, if a namespace is created with several wrong values."""


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

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def applied(self, name: TopicName) -> AppliedPolicies:
        """The policies that apply to a topic."""
        retention = self._policies.applied(name, RETENTION)
        return AppliedPolicies(
            RetentionPolicy(retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]),
            self._policies.applied(name, MESSAGE_TTL),
            self._policies.applied(name, COMPACTION_THRESHOLD),
        )

    def is_used(self, policy: Policy) -> bool:
        """Whether any topic has a TTL or a threshold above 0; 0 switches them off."""
        return self._policies.is_used(policy)
