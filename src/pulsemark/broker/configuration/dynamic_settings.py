"""Settings that change while the broker runs: over REST, and by reading the file again (SIGHUP).

A setting that is changed over REST (Pulsar's dynamic configuration) is stored in the catalog and
overrides the configuration file, also after a restart. What `RELOADABLE` lists is in force at once;
the others of `DYNAMIC_NAMES` from the broker's next start on. Settings that this broker does not
have, or that Pulsar cannot change while it runs, are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from .config import BrokerConfig
from .settings import SettingError, parse_settings

if TYPE_CHECKING:
    from ...ledger.store import MetadataStore
    from ..policies.levels import Policies
    from ..services import Services

__all__ = [
    "DYNAMIC_KIND",
    "DYNAMIC_NAMES",
    "RELOADABLE",
    "change_setting",
    "changed_fields",
    "put_in_force",
    "reload_policies",
    "stored_settings",
    "with_settings",
]

#: The settings of this broker that Apache Pulsar 4.0.8 can change while it runs, without
#: `superUserRoles`: here the rights of roles are read when the broker starts.
DYNAMIC_NAMES = frozenset(
    {
        "allowAutoSubscriptionCreation",
        "allowAutoTopicCreation",
        "allowAutoTopicCreationType",
        "autoSkipNonRecoverableData",
        "brokerDeleteInactiveTopicsEnabled",
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "brokerDeleteInactiveTopicsMode",
        "brokerShutdownTimeoutMs",
        "defaultNumPartitions",
        "dispatchThrottlingRatePerSubscriptionInByte",
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "dispatchThrottlingRatePerTopicInByte",
        "dispatchThrottlingRatePerTopicInMsg",
        "dispatcherMaxReadSizeBytes",
        "forceDeleteNamespaceAllowed",
        "isAllowAutoUpdateSchemaEnabled",
        "managedLedgerCacheSizeMB",
        "maxMessagePublishBufferSizeInMB",
        "maxNamespacesPerTenant",
        "maxNumPartitionsPerPartitionedTopic",
        "maxPublishRatePerTopicInBytes",
        "maxPublishRatePerTopicInMessages",
        "maxTenants",
        "maxTopicsPerNamespace",
        "subscribeRatePeriodPerConsumerInSecond",
        "subscribeThrottlingRatePerConsumer",
        "subscriptionTypesEnabled",
    }
)

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


log = logging.getLogger(__name__)

DYNAMIC_KIND = "dynamic-setting"


def stored_settings(catalog: MetadataStore) -> dict[str, str]:
    """The changed settings of a data folder. Blocks."""
    return {name: value.decode() for name, value in catalog.items(DYNAMIC_KIND)}


def with_settings(config: BrokerConfig, changed: Mapping[str, str]) -> BrokerConfig:
    """A configuration with changed settings. One that is no longer valid is logged and left out."""
    for name, value in changed.items():
        try:
            config = replace(config, **parse_settings({name: value}).broker)
        except SettingError as error:
            log.error("a setting that was changed over REST is not used: %s", error)
    return config


def put_in_force(services: Services) -> None:
    """Use what the configuration file and the changed settings say, as far as it can change now."""
    wanted = with_settings(services.configured, services.dynamic)
    services.config = reload_policies(services.topics.policies, services.config, wanted)


async def change_setting(services: Services, name: str, value: str | None) -> None:
    """Store a setting and put it in force; None: what the configuration file says holds again.

    As in Pulsar a value that is not valid is stored too. It has no effect, and the log says so.

    Raises `KeyError` for a setting that is not one of `DYNAMIC_NAMES`, and `LedgerError`.
    """
    if name not in DYNAMIC_NAMES:
        raise KeyError(name)

    def show() -> None:
        if value is None:
            services.dynamic.pop(name, None)
        else:
            services.dynamic[name] = value
        put_in_force(services)

    stored = None if value is None else value.encode()
    await services.topics.catalog_writer.put(DYNAMIC_KIND, name, stored, show)
