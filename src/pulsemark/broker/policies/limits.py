"""Policies that limit how many there may be of something. 0 is without limit."""

from __future__ import annotations

from operator import attrgetter
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


def _limit(
    name: str, key: str, what: str, topic: Place | None, namespace: Place | None = None
) -> Policy:
    """A number with one name in paths and messages, and one in namespace policies and settings."""
    return Policy(
        name=name,
        key=key,
        what=what,
        read=not_negative(name, f"{name} must be 0 or more"),
        default=attrgetter(key),
        namespace=namespace or Place(name),
        topic=topic,
    )


_UNACKED = "maxUnackedNum must be 0 or more"
MAX_PRODUCERS = _limit(
    "maxProducersPerTopic",
    "max_producers_per_topic",
    "the most producers of a topic",
    Place("maxProducers", negative="maxProducers must be 0 or more"),
)
MAX_CONSUMERS = _limit(
    "maxConsumersPerTopic",
    "max_consumers_per_topic",
    "the most consumers of a topic",
    Place("maxConsumers", negative="maxConsumers must be 0 or more"),
)
MAX_CONSUMERS_PER_SUBSCRIPTION = _limit(
    "maxConsumersPerSubscription",
    "max_consumers_per_subscription",
    "the most consumers of a subscription",
    Place(
        "maxConsumersPerSubscription",
        negative="Invalid value for maxConsumersPerSubscription",
        unset_status=204,
        shows_applied=False,
    ),
)
MAX_SUBSCRIPTIONS = _limit(
    "maxSubscriptionsPerTopic",
    "max_subscriptions_per_topic",
    "the most subscriptions of a topic",
    Place("maxSubscriptionsPerTopic", unset_status=204, shows_applied=False),
    Place("maxSubscriptionsPerTopic", names_policies=True),
)
MAX_TOPICS = _limit(
    "maxTopicsPerNamespace",
    "max_topics_per_namespace",
    "the most topics of a namespace, with each partition",
    None,
    Place("maxTopicsPerNamespace", unset=0, names_policies=True),
)
MAX_UNACKED_PER_CONSUMER = _limit(
    "maxUnackedMessagesPerConsumer",
    "max_unacked_messages_per_consumer",
    "the most unacknowledged messages of a consumer that shares its subscription",
    Place("maxUnackedMessagesOnConsumer", negative=_UNACKED, empty="removes"),
)
MAX_UNACKED_PER_SUBSCRIPTION = _limit(
    "maxUnackedMessagesPerSubscription",
    "max_unacked_messages_per_subscription",
    "the most unacknowledged messages of a shared subscription",
    Place("maxUnackedMessagesOnSubscription", negative=_UNACKED, empty="removes"),
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
