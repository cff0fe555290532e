"""Policies about what is created and deleted by itself, and which subscriptions there may be."""

from __future__ import annotations

from typing import Any

from ..configuration.config import BrokerConfig
from ..configuration.policy_defaults import CHOICES
from .policy import InvalidValueError, Place, Policy, UnreadableValueError
from .values import any_of, boolean, fields, integer, not_negative

__all__ = [
    "AUTO_SUBSCRIPTION_CREATION",
    "AUTO_TOPIC_CREATION",
    "DELETE_MODES",
    "INACTIVE_TOPICS",
    "LIFETIMES",
    "SUBSCRIPTION_EXPIRATION",
    "SUBSCRIPTION_TYPES",
    "TYPES",
]

TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
DELETE_MODES = CHOICES["broker_delete_inactive_topics_mode"]


def _text(name: str, value: Any) -> str | None:
    return None if value is None else str(value)


def _optional_integer(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value)


_read_creation = fields(
    "autoTopicCreation",
    {
        "allowAutoTopicCreation": (boolean, False),
        "topicType": (_text, None),
        "defaultNumPartitions": (_optional_integer, None),
    },
)


def _read_auto_topic_creation(value: Any) -> Any:
    found = _read_creation(value)
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
        raise InvalidValueError("autoTopicCreation", value, reason)
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
    key="autoTopicCreationOverride",
    what="whether a topic is created when a client uses it, and with how many partitions",
    read=_read_auto_topic_creation,
    default=_default_creation,
    namespace=Place("autoTopicCreation", empty="removes"),
    topic=None,
)
_read_subscription_creation = fields(
    "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": (boolean, False)}
)


def _read_auto_subscription_creation(value: Any) -> Any:
    # Java's class has a constructor with only the boolean.
    is_short = isinstance(value, bool)
    return _read_subscription_creation(
        {"allowAutoSubscriptionCreation": value} if is_short else value
    )


AUTO_SUBSCRIPTION_CREATION = Policy(
    name="autoSubscriptionCreation",
    key="autoSubscriptionCreationOverride",
    what="whether a durable subscription is created when a client uses it",
    read=_read_auto_subscription_creation,
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
    key="inactive_topic_policies",
    what="when a topic that is not used is deleted",
    read=fields(
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": (any_of(*DELETE_MODES), None),
            "maxInactiveDurationSeconds": (integer, 0),
            "deleteWhileInactive": (boolean, False),
        },
    ),
    default=_default_inactive,
    namespace=Place("inactiveTopicPolicies", empty="removes", names_policies=True),
    topic=Place("inactiveTopicPolicies", empty="removes"),
)
SUBSCRIPTION_EXPIRATION = Policy(
    name="subscriptionExpirationTime",
    key="subscription_expiration_time_minutes",
    what="after how many minutes without consumers a subscription is deleted; 0: never",
    read=not_negative(
        "subscriptionExpirationTime", "Invalid value for subscription expiration time"
    ),
    default=lambda config: config.subscription_expiration_time_minutes,
    namespace=Place("subscriptionExpirationTime"),
    topic=None,
)


def _read_types(value: Any) -> list[str]:
    known = _types(value) if isinstance(value, list) else [None]
    if None in known:
        reason = f"must be a list of {', '.join(TYPES)}"
        raise UnreadableValueError("subscriptionTypesEnabled", value, reason)
    return [kind for kind in TYPES if kind in known]


def _types(value: list[Any]) -> list[str | None]:
    read = any_of(*TYPES)
    return [read("subscriptionTypesEnabled", kind) for kind in value]


SUBSCRIPTION_TYPES = Policy(
    name="subscriptionTypesEnabled",
    key="subscription_types_enabled",
    what="the types that subscriptions may have; an empty list: those of the level above",
    read=_read_types,
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
