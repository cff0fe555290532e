"""Pulsar's policies: what each decides, how its value is read, and what applies without one.

Features that this broker lacks (persistence on bookies, offload, entry filters, replication rates)
have no policy here: a value without effect would mislead.

Names, units and rules are Pulsar's. A policy can be set for a topic, for a namespace, and in the
broker's configuration; the most specific one that is set applies. Policies are stored under their
names in Pulsar's namespace policies, so that a namespace can be created with them.

Values are JSON, and are read as in Pulsar: a number may be text, a fraction is cut off, null is 0,
and unknown fields of a policy are ignored.
"""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...records import record
from ..configuration.config import DELETE_MODES, SCHEMA_STRATEGIES, BrokerConfig
from ..security.permissions import MODES
from .own_policies import EPOCHS, MIRRORS, STAMPS
from .policy import (
    INT_MAX,
    LONG_MAX,
    InvalidValueError,
    Place,
    Policy,
    UnreadableValueError,
    any_of,
    boolean,
    fields,
    integer,
    long_integer,
    names,
    not_negative,
    number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


# Limits of numbers, such as consumers of a topic. 0: no limit.


def _limit(
    name: str, right: str, what: str, topic: Place | None, namespace: Place | None = None
) -> Policy:
    """Describe a limit. Its key in namespace policies and settings is the name with underscores."""
    key = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
    return Policy(
        name=name,
        right=right,
        key=key,
        what=what,
        reader=not_negative,
        default=attrgetter(key),
        namespace=namespace or Place(name),
        topic=topic,
    )


MAX_PRODUCERS = _limit(
    "maxProducersPerTopic", "MAX_PRODUCERS", "the most producers of a topic", Place("maxProducers")
)
MAX_CONSUMERS = _limit(
    "maxConsumersPerTopic", "MAX_CONSUMERS", "the most consumers of a topic", Place("maxConsumers")
)
MAX_CONSUMERS_PER_SUBSCRIPTION = _limit(
    "maxConsumersPerSubscription",
    "MAX_CONSUMERS",
    "the most consumers of a subscription",
    Place("maxConsumersPerSubscription", unset_status=204, shows_applied=False),
)
MAX_SUBSCRIPTIONS = _limit(
    "maxSubscriptionsPerTopic",
    "MAX_SUBSCRIPTIONS",
    "the most subscriptions of a topic",
    Place("maxSubscriptionsPerTopic", unset_status=204, shows_applied=False),
)
MAX_TOPICS = _limit(
    "maxTopicsPerNamespace",
    "MAX_TOPICS",
    "the most topics of a namespace, with each partition",
    None,
    Place("maxTopicsPerNamespace", unset=0),
)
MAX_UNACKED_PER_CONSUMER = _limit(
    "maxUnackedMessagesPerConsumer",
    "MAX_UNACKED",
    "the most unacknowledged messages of a consumer that shares its subscription",
    Place("maxUnackedMessagesOnConsumer", empty="removes"),
)
MAX_UNACKED_PER_SUBSCRIPTION = _limit(
    "maxUnackedMessagesPerSubscription",
    "MAX_UNACKED",
    "the most unacknowledged messages of a shared subscription",
    Place("maxUnackedMessagesOnSubscription", empty="removes"),
)


_SIZE = (
    "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that "
    "in the broker-level"
)


def _check_size(value: Any, config: BrokerConfig, of_topic: bool) -> None:
    if value > config.max_message_size_bytes:
        raise InvalidValueError("maxMessageSize", value, _SIZE)


MAX_MESSAGE_SIZE = Policy(
    name="maxMessageSize",
    right="MAX_MESSAGE_SIZE",
    key="max_message_size",
    what="the most bytes of a message, below the broker's own limit; 0: only that limit",
    reader=not_negative,
    default=lambda config: 0,
    check=_check_size,
    namespace=None,
    topic=Place("maxMessageSize", unset_status=204, shows_applied=False),
)

LIMITS = (
    MAX_PRODUCERS,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_SUBSCRIPTIONS,
    MAX_TOPICS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MAX_MESSAGE_SIZE,
)


# Policies that limit rates: publishing, dispatch and subscribing.


#: Reads Pulsar's `DispatchRate`. 0 or below means no limit.
_read_dispatch_rate = fields(
    dispatchThrottlingRateInMsg=(integer, 0),
    dispatchThrottlingRateInByte=(long_integer, 0),
    relativeToPublishRate=(boolean, False),
    ratePeriodInSecond=(integer, 0),
)


def _dispatch_rate(messages: int, size_bytes: int) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }


def _default_publish_rate(config: BrokerConfig) -> Any:
    return {
        "publishThrottlingRateInMsg": config.max_publish_rate_per_topic_in_messages,
        "publishThrottlingRateInByte": config.max_publish_rate_per_topic_in_bytes,
    }


PUBLISH_RATE = Policy(
    name="publishRate",
    right="RATE",
    key="publishMaxMessageRate",
    what="the most messages and bytes that a topic takes in a second; 0 and below: no limit",
    reader=fields(
        publishThrottlingRateInMsg=(integer, -1),
        publishThrottlingRateInByte=(long_integer, -1),
    ),
    default=_default_publish_rate,
    namespace=Place("publishRate", empty="removes"),
    topic=Place("publishRate", empty="ignored", unset_status=204, shows_applied=False),
    by_cluster=True,
    absent={},
)
DISPATCH_RATE = Policy(
    name="dispatchRate",
    right="RATE",
    key="topicDispatchRate",
    what="the most messages and bytes that a topic's subscriptions together get in a period",
    reader=_read_dispatch_rate,
    default=lambda config: _dispatch_rate(
        config.dispatch_throttling_rate_per_topic_in_msg,
        config.dispatch_throttling_rate_per_topic_in_byte,
    ),
    namespace=Place("dispatchRate", empty="removes"),
    topic=Place("dispatchRate", empty="ignored"),
    by_cluster=True,
    shown_as=("clusterDispatchRate",),
    absent={},
)
SUBSCRIPTION_DISPATCH_RATE = Policy(
    name="subscriptionDispatchRate",
    right="RATE",
    key="subscriptionDispatchRate",
    what="the most messages and bytes that one subscription gets in a period",
    reader=_read_dispatch_rate,
    default=lambda config: _dispatch_rate(
        config.dispatch_throttling_rate_per_subscription_in_msg,
        config.dispatch_throttling_rate_per_subscription_in_byte,
    ),
    namespace=Place("subscriptionDispatchRate", empty="removes"),
    topic=Place("subscriptionDispatchRate", empty="ignored"),
    by_cluster=True,
    absent={},
)
#: A topic's dispatch rates of single subscriptions, by their names, in the store of policies. Such
#: a rate applies instead of the topic's `subscriptionDispatchRate`.
SUBSCRIPTION_RATES = "subscriptionDispatchRates"
SUBSCRIBE_RATE = Policy(
    name="subscribeRate",
    right="RATE",
    key="clusterSubscribeRate",
    what="how often one consumer may subscribe in a period; 0 and below: no limit",
    reader=fields(
        subscribeThrottlingRatePerConsumer=(integer, -1), ratePeriodInSecond=(integer, 30)
    ),
    default=lambda config: {
        "subscribeThrottlingRatePerConsumer": config.subscribe_throttling_rate_per_consumer,
        "ratePeriodInSecond": config.subscribe_rate_period_per_consumer_s,
    },
    namespace=Place("subscribeRate", empty="removes"),
    topic=Place("subscribeRate", empty="ignored"),
    by_cluster=True,
    absent={},
)
RATES = (PUBLISH_RATE, DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE, SUBSCRIBE_RATE)


# Policies about what is taken from producers and how it is delivered.


DEDUPLICATION = Policy(
    name="deduplication",
    right="DEDUPLICATION",
    key="deduplicationEnabled",
    what="whether messages that a producer sends again are dropped",
    reader=boolean,
    default=lambda config: config.broker_deduplication_enabled,
    namespace=Place("deduplication"),
    topic=Place("deduplicationEnabled", empty="removes"),
)
SNAPSHOT_INTERVAL = Policy(
    name="deduplicationSnapshotInterval",
    right="DEDUPLICATION_SNAPSHOT",
    key="deduplicationSnapshotIntervalSeconds",
    what="after how many seconds the producers' sequence ids are stored; 0: only by entries",
    reader=not_negative,
    default=lambda config: config.broker_deduplication_snapshot_interval_s,
    namespace=Place("deduplicationSnapshotInterval", empty="removes", is_removable=False),
    topic=Place("deduplicationSnapshotInterval", empty="removes", shows_applied=False),
)
DELAYED_DELIVERY = Policy(
    name="delayedDelivery",
    right="DELAYED_DELIVERY",
    key="delayed_delivery_policies",
    what="whether messages wait for their delivery time, and how long at most (0: no limit)",
    reader=fields(
        tickTime=(long_integer, 0),
        active=(boolean, False),
        maxDeliveryDelayInMillis=(long_integer, 0),
    ),
    default=lambda config: {
        "tickTime": config.delayed_delivery_tick_time_ms,
        "active": config.delayed_delivery_enabled,
        "maxDeliveryDelayInMillis": config.delayed_delivery_max_delay_ms,
    },
    namespace=Place("delayedDelivery", empty="removes"),
    topic=Place("delayedDelivery", empty="removes"),
)
ENCRYPTION = Policy(
    name="encryptionRequired",
    right="ENCRYPTION",
    key="encryption_required",
    what="whether only encrypted messages are taken",
    reader=boolean,
    default=lambda config: False,
    namespace=Place("encryptionRequired", unset=False, is_removable=False),
    topic=None,
    absent=False,
)
DELIVERY = (DEDUPLICATION, SNAPSHOT_INTERVAL, DELAYED_DELIVERY, ENCRYPTION)


# Policies about what is created and deleted by itself, and which subscriptions there may be.


TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


def _text(name: str, value: Any) -> str | None:
    return None if value is None else str(value)


def _optional_integer(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value)


_read_creation = fields(
    allowAutoTopicCreation=(boolean, False),
    topicType=(_text, None),
    defaultNumPartitions=(_optional_integer, None),
)


def _read_auto_topic_creation(name: str, value: Any) -> Any:
    found = _read_creation(name, value)
    if not found["allowAutoTopicCreation"]:
        return found
    kind, partitions = found.get("topicType"), found.get("defaultNumPartitions")
    detail = ""
    if kind not in ("partitioned", "non-partitioned"):
        detail = f"Unknown topic type [{'null' if kind is None else kind}]"
    elif kind == "partitioned" and partitions is None:
        detail = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif kind == "partitioned" and partitions < 1:
        detail = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif kind == "non-partitioned" and partitions is not None:
        detail = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    if detail:
        reason = f"Invalid configuration for autoTopicCreationOverride. the detail is {detail}"
        raise InvalidValueError(name, value, reason)
    return found


def _default_creation(config: BrokerConfig) -> Any:
    found = {
        "allowAutoTopicCreation": config.allow_auto_topic_creation,
        "topicType": config.allow_auto_topic_creation_type,
    }
    if config.allow_auto_topic_creation_type == "partitioned":
        found["defaultNumPartitions"] = config.default_num_partitions
    return found


AUTO_TOPIC_CREATION = Policy(
    name="autoTopicCreation",
    right="AUTO_TOPIC_CREATION",
    key="autoTopicCreationOverride",
    what="whether a topic is created when a client uses it, and with how many partitions",
    reader=_read_auto_topic_creation,
    default=_default_creation,
    namespace=Place("autoTopicCreation", empty="removes"),
    topic=None,
)
_read_subscription_creation = fields(
    allowAutoSubscriptionCreation=(boolean, False),
)


def _read_auto_subscription_creation(name: str, value: Any) -> Any:
    if isinstance(value, bool):  # Java's class has a constructor with only the boolean
        value = {"allowAutoSubscriptionCreation": value}
    return _read_subscription_creation(name, value)


AUTO_SUBSCRIPTION_CREATION = Policy(
    name="autoSubscriptionCreation",
    right="AUTO_SUBSCRIPTION_CREATION",
    key="autoSubscriptionCreationOverride",
    what="whether a durable subscription is created when a client uses it",
    reader=_read_auto_subscription_creation,
    default=lambda config: {
        "allowAutoSubscriptionCreation": config.allow_auto_subscription_creation
    },
    namespace=Place("autoSubscriptionCreation", empty="removes"),
    topic=Place("autoSubscriptionCreation", empty="removes"),
)


def _default_inactive(config: BrokerConfig) -> Any:
    duration_s = config.broker_delete_inactive_topics_max_inactive_duration_s
    if duration_s is None:
        duration_s = config.broker_delete_inactive_topics_frequency_ms // 1000
    return {
        "inactiveTopicDeleteMode": config.broker_delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": duration_s,
        "deleteWhileInactive": config.broker_delete_inactive_topics_enabled,
    }


INACTIVE_TOPICS = Policy(
    name="inactiveTopicPolicies",
    right="INACTIVE_TOPIC",
    key="inactive_topic_policies",
    what="when a topic that is not used is deleted",
    reader=fields(
        inactiveTopicDeleteMode=(any_of(*DELETE_MODES), None),
        maxInactiveDurationSeconds=(integer, 0),
        deleteWhileInactive=(boolean, False),
    ),
    default=_default_inactive,
    namespace=Place("inactiveTopicPolicies", empty="removes"),
    topic=Place("inactiveTopicPolicies", empty="removes"),
)
SUBSCRIPTION_EXPIRATION = Policy(
    name="subscriptionExpirationTime",
    right="SUBSCRIPTION_EXPIRATION_TIME",
    key="subscription_expiration_time_minutes",
    what="after how many minutes without consumers a subscription is deleted; 0: never",
    reader=not_negative,
    default=lambda config: config.subscription_expiration_time_minutes,
    namespace=Place("subscriptionExpirationTime"),
    topic=None,
)


def _read_types(name: str, value: Any) -> list[str]:
    read = any_of(*TYPES)
    known = [read(name, kind) for kind in (value if isinstance(value, list) else [None])]
    if None in known:
        raise UnreadableValueError(name, value, f"must be a list of {', '.join(TYPES)}")
    return [kind for kind in TYPES if kind in known]


SUBSCRIPTION_TYPES = Policy(
    name="subscriptionTypesEnabled",
    right="SUBSCRIPTION_AUTH_MODE",
    key="subscription_types_enabled",
    what="the types that subscriptions may have; an empty list: those of the level above",
    reader=_read_types,
    default=lambda config: list(config.subscription_types_enabled),
    namespace=Place("subscriptionTypesEnabled", empty="null", unset=[]),
    topic=Place("subscriptionTypesEnabled", empty="null", unset_status=204, shows_applied=False),
    absent=[],
)
LIFETIMES = (
    AUTO_TOPIC_CREATION,
    AUTO_SUBSCRIPTION_CREATION,
    INACTIVE_TOPICS,
    SUBSCRIPTION_EXPIRATION,
    SUBSCRIPTION_TYPES,
)


# The policy of backlog quotas: how large or old a topic's backlog may be, and what happens then.
#
# A topic has up to two quotas: `destination_storage` limits the bytes, `message_age` the age of the
# oldest unacknowledged message. Each has its own retention policy, which says what happens when it
# is exceeded. The value is a map from type to quota, as in Pulsar's namespace policies.


STORAGE = "destination_storage"
MESSAGE_AGE = "message_age"
HOLD = "producer_request_hold"
REFUSE = "producer_exception"
EVICT = "consumer_backlog_eviction"
MIB, GIB = 1024**2, 1024**3
_policy = any_of(HOLD, REFUSE, EVICT)


def read_quota(value: Any, owner: str = "") -> Any:
    """Read one quota. Raises `PolicyValueError`. `owner` is named in Pulsar's refusal."""
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
    age_s = integer("backlogQuota.limitTime", value.get("limitTime"))
    return _quota(size_bytes, age_s, policy)


def _quota(size_bytes: int, age_s: int, policy: str) -> dict[str, Any]:
    return {"limit": size_bytes, "limitSize": size_bytes, "limitTime": age_s, "policy": policy}


def _read_map(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise UnreadableValueError("backlogQuotaMap", value, "must be an object")
    return {kind: read_quota(value[kind]) for kind in (STORAGE, MESSAGE_AGE) if kind in value}


def exceeds_retention(quota: Any, retention: Any) -> bool:
    """Whether retention keeps at most as much as the quota allows as backlog."""
    minutes, megabytes = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    if minutes <= 0 or megabytes <= 0:
        return False
    return bool(quota["limitSize"] >= megabytes * MIB or quota["limitTime"] >= minutes * 60)


def default_quotas(config: BrokerConfig) -> Any:
    """The quotas without a policy, as Pulsar shows them: the same for both types."""
    size_bytes, age_s = _default_limits(config)
    quota = _quota(size_bytes, age_s, config.backlog_quota_default_retention_policy)
    return {STORAGE: quota, MESSAGE_AGE: quota}


def _default_limits(config: BrokerConfig) -> tuple[int, int]:
    """The default quota's bytes and seconds; -1 is no limit."""
    size_bytes = config.backlog_quota_default_limit_bytes
    if config.backlog_quota_default_limit_gb > 0:
        size_bytes = config.backlog_quota_default_limit_gb * GIB
    return size_bytes, config.backlog_quota_default_limit_s


def _default(config: BrokerConfig) -> Any:
    policy = config.backlog_quota_default_retention_policy
    size_bytes, age_s = _default_limits(config)
    quotas = {}
    if size_bytes > 0:
        quotas[STORAGE] = _quota(size_bytes, -1, policy)
    if age_s > 0:
        quotas[MESSAGE_AGE] = _quota(-1, age_s, policy)
    return quotas


BACKLOG_QUOTAS = Policy(
    name="backlogQuota",
    key="backlog_quota_map",
    what="how large or old a topic's backlog may be, and what happens then",
    reader=_read_map,
    default=_default,
    # Its routes are in `http/backlogs.py`: they set one quota, and show the map.
    namespace=None,
    topic=None,
    absent={},
)


# Policies about schemas. `topics/schemas.py` goes by them.


#: In the order of Pulsar's enumeration: a number in JSON chooses one.
STRATEGIES = ("UNDEFINED", *SCHEMA_STRATEGIES)
#: The strategy that each value of the older policy means.
AUTO_UPDATE_STRATEGIES = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
_strategy = any_of(*STRATEGIES)


def _read_strategy(name: str, value: Any) -> str | None:
    found = _strategy(name, value)
    return None if found == "UNDEFINED" else found


COMPATIBILITY_STRATEGY = Policy(
    name="schemaCompatibilityStrategy",
    right="SCHEMA_COMPATIBILITY_STRATEGY",
    key="schema_compatibility_strategy",
    what="which new schemas are compatible with a topic's earlier ones",
    reader=_read_strategy,
    default=lambda config: config.schema_compatibility_strategy,
    namespace=Place(
        "schemaCompatibilityStrategy", "PUT", empty="removes", unset="UNDEFINED", is_removable=False
    ),
    topic=Place("schemaCompatibilityStrategy", "PUT", empty="removes", has_global=False),
    absent="UNDEFINED",
)
AUTO_UPDATE_STRATEGY = Policy(
    name="schemaAutoUpdateCompatibilityStrategy",
    right="SCHEMA_COMPATIBILITY_STRATEGY",
    key="schema_auto_update_compatibility_strategy",
    what="the older form of schemaCompatibilityStrategy, which counts if that is not set",
    reader=any_of(*AUTO_UPDATE_STRATEGIES),
    default=lambda config: None,
    namespace=Place(
        "schemaAutoUpdateCompatibilityStrategy",
        "PUT",
        empty="removes",
        unset_status=204,
        is_removable=False,
    ),
    topic=None,
)
ALLOWS_AUTO_UPDATE = Policy(
    name="isAllowAutoUpdateSchema",
    right="SCHEMA_COMPATIBILITY_STRATEGY",
    key="is_allow_auto_update_schema",
    what="whether producers and consumers may add a schema",
    reader=boolean,
    default=lambda config: config.is_allow_auto_update_schema_enabled,
    namespace=Place("isAllowAutoUpdateSchema", unset=True, is_removable=False),
    topic=None,
    absent=True,
)
VALIDATION_ENFORCED = Policy(
    name="schemaValidationEnforced",
    right="SCHEMA_COMPATIBILITY_STRATEGY",
    key="schema_validation_enforced",
    what="whether producers without a schema are refused on a topic that has one",
    reader=boolean,
    default=lambda config: config.is_schema_validation_enforced,
    namespace=Place("schemaValidationEnforced", unset=False, is_removable=False),
    topic=Place("schemaValidationEnforced", unset=False, is_removable=False, has_global=False),
    absent=False,
)
SCHEMA_RULES = (
    COMPATIBILITY_STRATEGY,
    AUTO_UPDATE_STRATEGY,
    ALLOWS_AUTO_UPDATE,
    VALIDATION_ENFORCED,
)


# The policy `properties`: texts by name, which the broker stores and shows, and does not use.


MAX_PROPERTIES = 1_000


def _read_properties(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UnreadableValueError(name, value, "must be an object")
    if len(value) > MAX_PROPERTIES:
        raise UnreadableValueError(name, len(value), f"at most {MAX_PROPERTIES}")
    if any(isinstance(each, dict | list) for each in value.values()):
        raise UnreadableValueError(name, value, "must have texts as values")
    return {
        key: str(each).lower() if isinstance(each, bool) else str(each)
        for key, each in value.items()
    }


PROPERTIES = Policy(
    name="properties",
    key="properties",
    what="texts by name, which the broker stores and shows",
    reader=_read_properties,
    default=lambda config: {},
    # Its routes are in `http/policies.py`: they add to the map.
    namespace=None,
    topic=None,
    absent={},
)


# Which clusters have the topics, and which subscriptions a role may use.


def _read_clusters(name: str, value: Any) -> list[str]:
    found = sorted(set(names(name, value)))
    if not found:
        raise InvalidValueError(name, value, "ClusterIds should not be null or empty")
    return found


def _check_clusters(value: Any, config: BrokerConfig, of_topic: bool) -> None:
    if "global" in value:
        reason = "Cannot specify global in the list of replication clusters"
        raise InvalidValueError("replication", value, reason)
    if value == [config.cluster]:
        return
    if of_topic:
        local = "local cluster from the local topic-level replication clusters policy"
        raise InvalidValueError("replication", value, f"Can not remove {local}")
    unknown = next(name for name in value if name != config.cluster)
    raise InvalidValueError("replication", value, f"Invalid cluster id: {unknown}", status=403)


REPLICATION = Policy(
    name="replication",
    right="REPLICATION",
    key="replication_clusters",
    what="the clusters to which a topic is replicated: only this one",
    reader=_read_clusters,
    default=lambda config: [config.cluster],
    check=_check_clusters,
    namespace=Place(
        "replication", empty="null", shows_default=True, set_status=200, is_removable=False
    ),
    topic=Place("replication", empty="null"),
)
_known_auth_mode = any_of(*MODES)


def _auth_mode(name: str, value: Any) -> str | None:
    """Read the mode, but refuse unknown ones, which Pulsar takes for None: that opens all."""
    mode: str | None = _known_auth_mode(name, value)
    if mode is None and value is not None:
        raise UnreadableValueError(name, value, "must be None or Prefix")
    return mode


AUTH_MODE = Policy(
    name="subscriptionAuthMode",
    right="SUBSCRIPTION_AUTH_MODE",
    key="subscription_auth_mode",
    what="whether a subscription's name must begin with the role",
    reader=_auth_mode,
    default=lambda config: "None",
    namespace=Place("subscriptionAuthMode", empty="removes", unset="None", is_removable=False),
    topic=None,
    absent="None",
)


MINUTE_MS = 60_000
SINGLE_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
    "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To "
    "disable retention both limits must be set to 0."
)


@record(frozen=True)
class RetentionPolicy:
    """How long, and how many bytes of, acknowledged messages are kept; -1: no limit."""

    time_minutes: int
    size_mb: int

    @classmethod
    def from_json(cls, value: Any) -> RetentionPolicy:
        """Make the policy from a JSON object. Raises `PolicyValueError`."""
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
        """The time limit in milliseconds; None: no limit."""
        return None if self.time_minutes < 0 else self.time_minutes * MINUTE_MS

    @property
    def size_bytes(self) -> int | None:
        """The size limit in bytes; None: no limit."""
        return None if self.size_mb < 0 else self.size_mb * MIB

    @property
    def is_at_once(self) -> bool:
        """Whether acknowledged messages need not be kept."""
        return 0 in (self.time_minutes, self.size_mb)

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is ever removed."""
        return self.time_minutes < 0 and self.size_mb < 0


def _default_retention(config: BrokerConfig) -> Any:
    minutes, megabytes = config.default_retention_time_minutes, config.default_retention_size_mb
    return RetentionPolicy(minutes, megabytes).to_json()


RETENTION = Policy(
    name="retention",
    right="RETENTION",
    key="retention_policies",
    what="how long, and how many bytes of, acknowledged messages are kept",
    reader=lambda _, value: RetentionPolicy.from_json(value).to_json(),
    default=_default_retention,
    namespace=Place("retention", empty="removes"),
    topic=Place("retention", empty="removes"),
)
MESSAGE_TTL = Policy(
    name="messageTTL",
    right="TTL",
    key="message_ttl_in_seconds",
    what="after how many seconds unacknowledged messages expire; 0: never",
    reader=not_negative,
    default=lambda config: config.default_message_ttl_s,
    namespace=Place("messageTTL"),
    topic=Place("messageTTL", query="messageTTL"),
)
COMPACTION_THRESHOLD = Policy(
    name="compactionThreshold",
    right="COMPACTION",
    key="compaction_threshold",
    what="after how many new bytes a topic is compacted; 0: only on request",
    reader=partial(not_negative, highest=LONG_MAX),
    default=lambda config: config.default_compaction_threshold_bytes,
    namespace=Place("compactionThreshold", "PUT"),
    topic=Place("compactionThreshold"),
)
#: In the order of Pulsar's refusals, if a namespace is created with several wrong values.
CLEANING = (MESSAGE_TTL, COMPACTION_THRESHOLD, RETENTION)


#: All policies, in the order in which a new namespace's values are checked.
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
    AUTH_MODE,
    REPLICATION,
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


#: Values of Pulsar's namespace policies for features that this broker lacks.
_ALWAYS: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "bundles": {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        "numBundles": 4,
    },
    "latency_stats_sample_rate": {},
    "deleted": False,
    "migrated": False,
}


#: The fields of Pulsar's namespace policies. Others in a new namespace's settings are ignored.
_KNOWN = frozenset({*_ALWAYS, *(policy.key for policy in POLICIES)})


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
    known = _KNOWN - {policy.key for policy in POLICIES}
    return shown | {name: each for name, each in settings.items() if name in known}
