"""The policy of backlog quotas: how large or old a topic's backlog may be, and what happens then.

A topic has up to two quotas: `destination_storage` limits the bytes, `message_age` the age of the
oldest unacknowledged message. Each has its own retention policy, which says what happens when it is
exceeded. The value is a map from type to quota, as in Pulsar's namespace policies.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import BrokerConfig
from .policy import InvalidValueError, Policy, UnreadableValueError
from .values import any_of, integer, long_integer

__all__ = [
    "BACKLOG_QUOTAS",
    "EVICT",
    "HOLD",
    "MESSAGE_AGE",
    "REFUSE",
    "STORAGE",
    "default_quotas",
    "exceeds_retention",
    "read_quota",
]

STORAGE = "destination_storage"
MESSAGE_AGE = "message_age"
HOLD = "producer_request_hold"
REFUSE = "producer_exception"
EVICT = "consumer_backlog_eviction"
MIB, GIB = 1024**2, 1024**3
_policy = any_of(HOLD, REFUSE, EVICT)


def read_quota(value: Any, owner: str = "") -> Any:
    """One quota. Raises `PolicyValueError`. `owner` is named in Pulsar's refusal."""
    if not isinstance(value, dict):
        raise UnreadableValueError("backlogQuota", value, "must be an object")
    limit = value.get("limitSize", value.get("limit"))
    size_bytes = long_integer("backlogQuota.limitSize", limit)
    policy = _policy("backlogQuota.policy", value.get("policy"))
    if policy is None:
        reason = (
            f"Set namespace[{owner}] backlog quota failed because the data validation failed. "
            "the attribute policy cannot be null"
        )
        raise InvalidValueError("backlogQuota", value, reason, status=400)
    return {
        "limit": size_bytes,
        "limitSize": size_bytes,
        "limitTime": integer("backlogQuota.limitTime", value.get("limitTime")),
        "policy": policy,
    }


def _read_map(value: Any) -> Any:
    if not isinstance(value, dict):
        raise UnreadableValueError("backlogQuotaMap", value, "must be an object")
    return {kind: read_quota(value[kind]) for kind in (STORAGE, MESSAGE_AGE) if kind in value}


def exceeds_retention(quota: Any, retention: Any) -> bool:
    """Whether retention with both limits keeps no more than what a quota allows as backlog."""
    minutes, megabytes = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    if minutes <= 0 or megabytes <= 0:
        return False
    return bool(quota["limitSize"] >= megabytes * MIB or quota["limitTime"] >= minutes * 60)


def default_quotas(config: BrokerConfig) -> Any:
    """What applies without a policy, as Pulsar shows it: the same for both types."""
    size_bytes, age_s = _default_limits(config)
    quota = {
        "limit": size_bytes,
        "limitSize": size_bytes,
        "limitTime": age_s,
        "policy": config.backlog_quota_default_retention_policy,
    }
    return {STORAGE: quota, MESSAGE_AGE: quota}


def _default_limits(config: BrokerConfig) -> tuple[int, int]:
    """Bytes and seconds; -1 is no limit."""
    size_bytes = config.backlog_quota_default_limit_bytes
    if config.backlog_quota_default_limit_gb > 0:
        size_bytes = config.backlog_quota_default_limit_gb * GIB
    return size_bytes, config.backlog_quota_default_limit_s


def _default(config: BrokerConfig) -> Any:
    policy = config.backlog_quota_default_retention_policy
    size_bytes, age_s = _default_limits(config)
    quotas = {}
    if size_bytes > 0:
        quotas[STORAGE] = {
            "limit": size_bytes, "limitSize": size_bytes, "limitTime": -1, "policy": policy,
        }  # fmt: skip
    if age_s > 0:
        quotas[MESSAGE_AGE] = {"limit": -1, "limitSize": -1, "limitTime": age_s, "policy": policy}
    return quotas


BACKLOG_QUOTAS = Policy(
    name="backlogQuota",
    key="backlog_quota_map",
    what="how large or old a topic's backlog may be, and what happens then",
    read=_read_map,
    default=_default,
    # Its routes are in `http/backlog_quotas.py`: they set one quota, and show the map.
    namespace=None,
    topic=None,
    absent={},
)
