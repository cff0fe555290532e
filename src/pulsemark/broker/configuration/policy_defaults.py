"""The settings that apply to namespaces and topics without a policy of their own.

Names, units and defaults are those of Pulsar's `broker.conf`, with the unit last. Where Pulsar's
`standalone.conf` has another default, it is that one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHOICES", "LOWEST_OF_POLICIES", "POLICY_SETTINGS", "PolicyDefaults"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDefaults:
    """The broker's level of the policies (docs/policies.md)."""

    #: Whether topics may have policies of their own over REST.
    topic_level_policies_enabled: bool = True

    # Limits; 0: without limit
    #: Tenants of the broker.
    max_tenants: int = 0
    #: Namespaces of a tenant.
    max_namespaces_per_tenant: int = 0
    #: Producers of a topic.
    max_producers_per_topic: int = 0
    #: Consumers of a topic.
    max_consumers_per_topic: int = 0
    #: Consumers of a subscription.
    max_consumers_per_subscription: int = 0
    #: Topics of a namespace.
    max_topics_per_namespace: int = 0

    # Backlog quotas
    #: Whether backlog quotas are enforced.
    backlog_quota_check_enabled: bool = True
    #: How often backlogs are compared with their quotas.
    backlog_quota_check_interval_ms: int = 60_000
    #: -1 and 0: without limit.
    backlog_quota_default_limit_bytes: int = -1
    #: The older form, which counts if it is above 0.
    backlog_quota_default_limit_gb: int = -1
    #: The quota by the age of the oldest message; -1 and 0: without limit.
    backlog_quota_default_limit_s: int = -1
    #: producer_request_hold, producer_exception or consumer_backlog_eviction.
    backlog_quota_default_retention_policy: str = "producer_request_hold"

    # Creation and deletion
    #: "partitioned" or "non-partitioned".
    allow_auto_topic_creation_type: str = "non-partitioned"
    #: Partitions of topics that are created as partitioned ones.
    default_num_partitions: int = 1
    #: Whether consumers create subscriptions that do not exist.
    allow_auto_subscription_creation: bool = True
    #: Whether topics that no one uses are deleted.
    broker_delete_inactive_topics_enabled: bool = False
    #: delete_when_no_subscriptions or delete_when_subscriptions_caught_up.
    broker_delete_inactive_topics_mode: str = "delete_when_no_subscriptions"
    #: How often inactive topics are looked for.
    broker_delete_inactive_topics_frequency_ms: int = 60_000
    #: None: as the frequency.
    broker_delete_inactive_topics_max_inactive_duration_s: int | None = None
    #: A subscription without consumers is deleted after so long; 0: never.
    subscription_expiration_time_minutes: int = 0
    #: How often subscriptions without consumers are looked for.
    subscription_expiry_check_interval_ms: int = 300_000
    #: The types that consumers may use.
    subscription_types_enabled: tuple[str, ...] = ("Exclusive", "Shared", "Failover", "Key_Shared")

    # Deduplication
    #: Whether messages that a producer sends again are stored once.
    broker_deduplication_enabled: bool = False
    #: A snapshot of the producers' sequence ids is stored after so many entries of a topic.
    broker_deduplication_entries_interval: int = 1_000
    #: How often topics are looked at for a snapshot that is due.
    broker_deduplication_snapshot_frequency_ms: int = 120_000
    #: A snapshot is stored after so long, if a topic got entries; 0: only after so many entries.
    broker_deduplication_snapshot_interval_s: int = 120
    #: A producer that is gone for so long is forgotten.
    broker_deduplication_producer_inactivity_timeout_ms: int = 360 * 60_000
    #: The most producers in a snapshot; those that published last stay.
    broker_deduplication_max_number_of_producers: int = 10_000

    # Delivery
    #: Whether messages are held back until their delivery time.
    delayed_delivery_enabled: bool = True
    #: How exactly delivery times are kept.
    delayed_delivery_tick_time_ms: int = 1_000
    #: 0: without limit.
    delayed_delivery_max_delay_ms: int = 0

    # Rates, per second; 0: without limit
    #: Messages that a topic takes.
    max_publish_rate_per_topic_in_messages: int = 0
    #: Bytes that a topic takes.
    max_publish_rate_per_topic_in_bytes: int = 0
    #: Messages that a topic delivers.
    dispatch_throttling_rate_per_topic_in_msg: int = 0
    #: Bytes that a topic delivers.
    dispatch_throttling_rate_per_topic_in_byte: int = 0
    #: Messages that a subscription gets.
    dispatch_throttling_rate_per_subscription_in_msg: int = 0
    #: Bytes that a subscription gets.
    dispatch_throttling_rate_per_subscription_in_byte: int = 0
    #: How often a consumer may subscribe, in a period.
    subscribe_throttling_rate_per_consumer: int = 0
    #: The period of `subscribe_throttling_rate_per_consumer`.
    subscribe_rate_period_per_consumer_s: int = 30

    # Schemas
    #: Which new schemas a topic accepts.
    schema_compatibility_strategy: str = "FULL"
    #: Whether producers may add a new version of a schema.
    is_allow_auto_update_schema_enabled: bool = True
    #: Whether producers without a schema are refused where a topic has one.
    is_schema_validation_enforced: bool = False


POLICY_SETTINGS = {
    "topicLevelPoliciesEnabled": ("topic_level_policies_enabled", "boolean"),
    "maxTenants": ("max_tenants", "integer"),
    "maxNamespacesPerTenant": ("max_namespaces_per_tenant", "integer"),
    "maxProducersPerTopic": ("max_producers_per_topic", "integer"),
    "maxConsumersPerTopic": ("max_consumers_per_topic", "integer"),
    "maxConsumersPerSubscription": ("max_consumers_per_subscription", "integer"),
    "maxTopicsPerNamespace": ("max_topics_per_namespace", "integer"),
    "backlogQuotaCheckEnabled": ("backlog_quota_check_enabled", "boolean"),
    "backlogQuotaCheckIntervalInSeconds": ("backlog_quota_check_interval_ms", "seconds"),
    "backlogQuotaDefaultLimitBytes": ("backlog_quota_default_limit_bytes", "integer"),
    "backlogQuotaDefaultLimitGB": ("backlog_quota_default_limit_gb", "integer"),
    "backlogQuotaDefaultLimitSecond": ("backlog_quota_default_limit_s", "integer"),
    "backlogQuotaDefaultRetentionPolicy": ("backlog_quota_default_retention_policy", "text"),
    "allowAutoTopicCreationType": ("allow_auto_topic_creation_type", "text"),
    "defaultNumPartitions": ("default_num_partitions", "integer"),
    "allowAutoSubscriptionCreation": ("allow_auto_subscription_creation", "boolean"),
    "brokerDeleteInactiveTopicsEnabled": ("broker_delete_inactive_topics_enabled", "boolean"),
    "brokerDeleteInactiveTopicsMode": ("broker_delete_inactive_topics_mode", "text"),
    "brokerDeleteInactiveTopicsFrequencySeconds": (
        "broker_delete_inactive_topics_frequency_ms",
        "seconds",
    ),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": (
        "broker_delete_inactive_topics_max_inactive_duration_s",
        "integer or none",
    ),
    "subscriptionExpirationTimeMinutes": ("subscription_expiration_time_minutes", "integer"),
    "subscriptionExpiryCheckIntervalInMinutes": (
        "subscription_expiry_check_interval_ms",
        "minutes",
    ),
    "subscriptionTypesEnabled": ("subscription_types_enabled", "names"),
    "brokerDeduplicationEnabled": ("broker_deduplication_enabled", "boolean"),
    "brokerDeduplicationEntriesInterval": ("broker_deduplication_entries_interval", "integer"),
    "brokerDeduplicationSnapshotFrequencyInSeconds": (
        "broker_deduplication_snapshot_frequency_ms",
        "seconds",
    ),
    "brokerDeduplicationSnapshotIntervalSeconds": (
        "broker_deduplication_snapshot_interval_s",
        "integer",
    ),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": (
        "broker_deduplication_producer_inactivity_timeout_ms",
        "minutes",
    ),
    "brokerDeduplicationMaxNumberOfProducers": (
        "broker_deduplication_max_number_of_producers",
        "integer",
    ),
    "delayedDeliveryEnabled": ("delayed_delivery_enabled", "boolean"),
    "delayedDeliveryTickTimeMillis": ("delayed_delivery_tick_time_ms", "integer"),
    "delayedDeliveryMaxDelayInMillis": ("delayed_delivery_max_delay_ms", "integer"),
    "maxPublishRatePerTopicInMessages": ("max_publish_rate_per_topic_in_messages", "integer"),
    "maxPublishRatePerTopicInBytes": ("max_publish_rate_per_topic_in_bytes", "integer"),
    "dispatchThrottlingRatePerTopicInMsg": (
        "dispatch_throttling_rate_per_topic_in_msg",
        "integer",
    ),
    "dispatchThrottlingRatePerTopicInByte": (
        "dispatch_throttling_rate_per_topic_in_byte",
        "integer",
    ),
    "dispatchThrottlingRatePerSubscriptionInMsg": (
        "dispatch_throttling_rate_per_subscription_in_msg",
        "integer",
    ),
    "dispatchThrottlingRatePerSubscriptionInByte": (
        "dispatch_throttling_rate_per_subscription_in_byte",
        "integer",
    ),
    "subscribeThrottlingRatePerConsumer": ("subscribe_throttling_rate_per_consumer", "integer"),
    "subscribeRatePeriodPerConsumerInSecond": ("subscribe_rate_period_per_consumer_s", "integer"),
    "schemaCompatibilityStrategy": ("schema_compatibility_strategy", "text"),
    "isAllowAutoUpdateSchemaEnabled": ("is_allow_auto_update_schema_enabled", "boolean"),
    "isSchemaValidationEnforced": ("is_schema_validation_enforced", "boolean"),
}
"""Pulsar's name of each setting, the field, and how its value is written in a file."""

LOWEST_OF_POLICIES = {
    "max_tenants": 0,
    "max_namespaces_per_tenant": 0,
    "max_producers_per_topic": 0,
    "max_consumers_per_topic": 0,
    "max_consumers_per_subscription": 0,
    "max_topics_per_namespace": 0,
    "backlog_quota_default_limit_bytes": -1,
    "backlog_quota_default_limit_gb": -1,
    "backlog_quota_default_limit_s": -1,
    "default_num_partitions": 1,
    "subscription_expiration_time_minutes": 0,
    "broker_deduplication_entries_interval": 1,
    "broker_deduplication_snapshot_interval_s": 0,
    "broker_deduplication_max_number_of_producers": 1,
    "delayed_delivery_max_delay_ms": 0,
    "max_publish_rate_per_topic_in_messages": 0,
    "max_publish_rate_per_topic_in_bytes": 0,
    "dispatch_throttling_rate_per_topic_in_msg": 0,
    "dispatch_throttling_rate_per_topic_in_byte": 0,
    "dispatch_throttling_rate_per_subscription_in_msg": 0,
    "dispatch_throttling_rate_per_subscription_in_byte": 0,
    "subscribe_throttling_rate_per_consumer": 0,
    "subscribe_rate_period_per_consumer_s": 1,
}

CHOICES = {
    "backlog_quota_default_retention_policy": (
        "producer_request_hold",
        "producer_exception",
        "consumer_backlog_eviction",
    ),
    "allow_auto_topic_creation_type": ("partitioned", "non-partitioned"),
    "broker_delete_inactive_topics_mode": (
        "delete_when_no_subscriptions",
        "delete_when_subscriptions_caught_up",
    ),
    # In the order of Pulsar's enumeration.
    "schema_compatibility_strategy": (
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    ),
}
"""Fields that have one of a few values."""
