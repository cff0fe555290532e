"""Which settings may change while a broker runs, and how they do (SIGHUP).

They are those that may change without disconnecting clients: rates, quotas, limits
for new producers and consumers, retention, and what is logged. All others need a restart.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from .config import BrokerConfig

if TYPE_CHECKING:
    from ..policies.levels import Policies

__all__ = ["RELOADABLE", "changed_fields", "reload_policies"]

RELOADABLE = frozenset(
    {
        "allow_auto_subscription_creation",
        "allow_auto_topic_creation",
        "allow_auto_topic_creation_type",
        "backlog_quota_default_limit_bytes",
        "backlog_quota_default_limit_gb",
        "backlog_quota_default_limit_s",
        "backlog_quota_default_retention_policy",
        "default_compaction_threshold_bytes",
        "default_message_ttl_s",
        "default_num_partitions",
        "default_retention_size_mb",
        "default_retention_time_minutes",
        "dispatch_throttling_rate_per_subscription_in_byte",
        "dispatch_throttling_rate_per_subscription_in_msg",
        "dispatch_throttling_rate_per_topic_in_byte",
        "dispatch_throttling_rate_per_topic_in_msg",
        "force_delete_namespace_allowed",
        "log_format",
        "log_level",
        "max_consumers_per_subscription",
        "max_consumers_per_topic",
        "max_namespaces_per_tenant",
        "max_num_partitions_per_partitioned_topic",
        "max_producers_per_topic",
        "max_publish_rate_per_topic_in_bytes",
        "max_publish_rate_per_topic_in_messages",
        "max_tenants",
        "max_topics_per_namespace",
        "subscribe_rate_period_per_consumer_s",
        "subscribe_throttling_rate_per_consumer",
    }
)


def changed_fields(before: BrokerConfig, after: BrokerConfig) -> list[str]:
    """The fields whose values differ, without those that no file says."""
    skipped = ("clock", "memory")
    return [
        spec.name
        for spec in fields(BrokerConfig)
        if spec.name not in skipped and getattr(before, spec.name) != getattr(after, spec.name)
    ]


def reload_policies(policies: Policies, before: BrokerConfig, after: BrokerConfig) -> BrokerConfig:
    """Put the reloadable settings of ``after`` in force; returns the configuration in force now.

    On the broker's event loop.
    """
    names = [name for name in changed_fields(before, after) if name in RELOADABLE]
    in_force = replace(before, **{name: getattr(after, name) for name in names})
    policies.use_defaults(in_force)
    return in_force
