"""All policies, in the order in which a new namespace's values are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..cleaning.policies import CLEANING
from ..topics.leader_epochs import EPOCHS
from ..topics.mirror_policies import MIRRORS
from ..topics.stamp_policies import STAMPS
from .pulsar_policies import (
    BACKLOG_QUOTAS,
    DELIVERY,
    LIFETIMES,
    LIMITS,
    PROPERTIES,
    RATES,
    SCHEMA_RULES,
)
from .stored import STORED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .policy import Policy

__all__ = ["POLICIES", "read_settings", "shown_settings"]

POLICIES: tuple[Policy, ...] = (
    STAMPS,
    MIRRORS,
    EPOCHS,
    *CLEANING,
    BACKLOG_QUOTAS,
    *LIMITS,
    *RATES,
    *LIFETIMES,
    *DELIVERY,
    *SCHEMA_RULES,
    *STORED,
    PROPERTIES,
)


def read_settings(settings: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A new namespace's settings, with its policies as they are stored. May block.

    Raises `PolicyValueError`.
    """
    checked = {name: value for name, value in settings.items() if name in _KNOWN}
    for policy in POLICIES:
        if policy.key not in settings:
            continue
        value = settings[policy.key]
        if policy.by_cluster and isinstance(value, dict):
            value = value.get(cluster)
        stored = None if value is None else policy.read(value)
        if stored is None:
            del checked[policy.key]
        else:
            checked[policy.key] = stored
    return checked


#: What Pulsar's namespace policies have, too, in a broker without these features.
_ALWAYS: dict[str, Any] = {
    "auth_policies": {
        "namespace_auth": {},
        "destination_auth": {},
        "subscription_auth_roles": {},
    },
    "bundles": {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        "numBundles": 4,
    },
    "latency_stats_sample_rate": {},
    "deleted": False,
    "migrated": False,
}


#: The fields of Pulsar's namespace policies. Others in a new namespace's settings are ignored.
_KNOWN = frozenset(
    {
        *_ALWAYS,
        *(policy.key for policy in POLICIES),
        "replication_clusters",
        "resource_group_name",
        "namespaceAntiAffinityGroup",
        "bookieAffinity",
    }
)


#: The order of the fields in Pulsar's namespace policies.
_ORDER = (
    "auth_policies", "replication_clusters", "allowed_clusters", "bundles", "backlog_quota_map",
    "clusterDispatchRate", "topicDispatchRate", "subscriptionDispatchRate",
    "replicatorDispatchRate", "clusterSubscribeRate", "persistence", "deduplicationEnabled",
    "autoTopicCreationOverride", "autoSubscriptionCreationOverride", "publishMaxMessageRate",
    "latency_stats_sample_rate", "message_ttl_in_seconds", "subscription_expiration_time_minutes",
    "retention_policies", "deleted", "encryption_required", "delayed_delivery_policies",
    "inactive_topic_policies", "subscription_auth_mode", "max_producers_per_topic",
    "max_consumers_per_topic", "max_consumers_per_subscription",
    "max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription",
    "max_subscriptions_per_topic", "compaction_threshold", "offload_threshold",
    "offload_threshold_in_seconds", "offload_deletion_lag_ms", "max_topics_per_namespace",
    "schema_auto_update_compatibility_strategy", "schema_compatibility_strategy",
    "is_allow_auto_update_schema", "schema_validation_enforced", "offload_policies",
    "deduplicationSnapshotIntervalSeconds", "subscription_types_enabled", "properties",
    "resource_group_name", "migrated", "dispatcherPauseOnAckStatePersistentEnabled", "entryFilters",
    "clusterThatCanDeleteNamespace",
)  # fmt: skip


def shown_settings(settings: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A namespace's settings in the format of Pulsar's namespace policies."""
    shown: dict[str, Any] = {
        **_ALWAYS,
        "replication_clusters": [cluster],
        "clusterThatCanDeleteNamespace": cluster,
    }
    for policy in POLICIES:
        stored = settings.get(policy.key)
        value = policy.absent if stored is None else stored
        if policy.by_cluster and stored is not None:
            value = {cluster: stored}
        if value is not None:
            shown.update(dict.fromkeys((policy.key, *policy.shown_as), value))
    known = {policy.key for policy in POLICIES}
    shown |= {name: each for name, each in settings.items() if name not in known}
    first = {name: shown[name] for name in _ORDER if name in shown}
    return {**first, **shown}
