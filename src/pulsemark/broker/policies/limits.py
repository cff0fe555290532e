"""Policies that limit how many there may be of something. 0 is without limit."""

from __future__ import annotations

from typing import Any

from ..configuration.config import BrokerConfig
from .policy import InvalidValueError, Place, Policy
from .values import not_negative

__all__ = [
    "LIMITS",
    "MAX_CONSUMERS",
    "MAX_CONSUMERS_PER_SUBSCRIPTION",
    "MAX_MESSAGE_SIZE",
    "MAX_PRODUCERS",
    "MAX_SUBSCRIPTIONS",
    "MAX_TOPICS",
    "MAX_UNACKED_PER_CONSUMER",
    "MAX_UNACKED_PER_SUBSCRIPTION",
]


def _limit(name: str) -> Any:
    return not_negative(name, f"{name} must be 0 or more")


MAX_PRODUCERS = Policy(
    name="maxProducersPerTopic",
    key="max_producers_per_topic",
    what="the most producers of a topic",
    read=_limit("maxProducersPerTopic"),
    default=lambda config: config.max_producers_per_topic,
    namespace=Place("maxProducersPerTopic"),
    topic=Place("maxProducers", negative="maxProducers must be 0 or more"),
)
MAX_CONSUMERS = Policy(
    name="maxConsumersPerTopic",
    key="max_consumers_per_topic",
    what="the most consumers of a topic",
    read=_limit("maxConsumersPerTopic"),
    default=lambda config: config.max_consumers_per_topic,
    namespace=Place("maxConsumersPerTopic"),
    topic=Place("maxConsumers", negative="maxConsumers must be 0 or more"),
)
MAX_CONSUMERS_PER_SUBSCRIPTION = Policy(
    name="maxConsumersPerSubscription",
    key="max_consumers_per_subscription",
    what="the most consumers of a subscription",
    read=_limit("maxConsumersPerSubscription"),
    default=lambda config: config.max_consumers_per_subscription,
    namespace=Place("maxConsumersPerSubscription"),
    topic=Place(
        "maxConsumersPerSubscription",
        negative="Invalid value for maxConsumersPerSubscription",
        unset_status=204,
        shows_applied=False,
    ),
)
MAX_SUBSCRIPTIONS = Policy(
    name="maxSubscriptionsPerTopic",
    key="max_subscriptions_per_topic",
    what="the most subscriptions of a topic",
    read=_limit("maxSubscriptionsPerTopic"),
    default=lambda config: config.max_subscriptions_per_topic,
    namespace=Place("maxSubscriptionsPerTopic", names_policies=True),
    topic=Place("maxSubscriptionsPerTopic", unset_status=204, shows_applied=False),
)
MAX_TOPICS = Policy(
    name="maxTopicsPerNamespace",
    key="max_topics_per_namespace",
    what="the most topics of a namespace, with each partition",
    read=_limit("maxTopicsPerNamespace"),
    default=lambda config: config.max_topics_per_namespace,
    namespace=Place("maxTopicsPerNamespace", unset=0, names_policies=True),
    topic=None,
)
_UNACKED = "maxUnackedNum must be 0 or more"
MAX_UNACKED_PER_CONSUMER = Policy(
    name="maxUnackedMessagesPerConsumer",
    key="max_unacked_messages_per_consumer",
    what="the most unacknowledged messages of a consumer that shares its subscription",
    read=_limit("maxUnackedMessagesPerConsumer"),
    default=lambda config: config.max_unacked_messages_per_consumer,
    namespace=Place("maxUnackedMessagesPerConsumer"),
    topic=Place("maxUnackedMessagesOnConsumer", negative=_UNACKED, empty="removes"),
)
MAX_UNACKED_PER_SUBSCRIPTION = Policy(
    name="maxUnackedMessagesPerSubscription",
    key="max_unacked_messages_per_subscription",
    what="the most unacknowledged messages of a shared subscription",
    read=_limit("maxUnackedMessagesPerSubscription"),
    default=lambda config: config.max_unacked_messages_per_subscription,
    namespace=Place("maxUnackedMessagesPerSubscription"),
    topic=Place("maxUnackedMessagesOnSubscription", negative=_UNACKED, empty="removes"),
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
    key="max_message_size",
    what="the most bytes of a message, below the broker's own limit; 0: only that limit",
    read=not_negative("maxMessageSize", _SIZE),
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
