"""The policies that apply to a topic, as its producers and consumers need them at each command.

They are computed when the topic is opened and when a policy changes, and shared by all topics that
have the same ones.
"""

from __future__ import annotations

from typing import Any

from ...records import record
from ...wire import TopicName
from .policy import Policies
from .pulsar_policies import (
    AUTO_SUBSCRIPTION_CREATION,
    BACKLOG_QUOTAS,
    DEDUPLICATION,
    DELAYED_DELIVERY,
    DISPATCH_RATE,
    ENCRYPTION,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_MESSAGE_SIZE,
    MAX_PRODUCERS,
    MAX_SUBSCRIPTIONS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MESSAGE_AGE,
    PUBLISH_RATE,
    STORAGE,
    SUBSCRIBE_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIPTION_RATES,
    SUBSCRIPTION_TYPES,
    TYPES,
)

UNLIMITED = 2**31 - 1
#: What a standalone Pulsar shows of a topic without a quota.
STANDALONE_BYTES = 10 * 1024**3

#: The keys of the policies that rules are made of.
RULED = frozenset(
    policy.key
    for policy in (
        DEDUPLICATION,
        DELAYED_DELIVERY,
        ENCRYPTION,
        AUTO_SUBSCRIPTION_CREATION,
        SUBSCRIPTION_TYPES,
        MAX_CONSUMERS,
        MAX_CONSUMERS_PER_SUBSCRIPTION,
        MAX_MESSAGE_SIZE,
        MAX_PRODUCERS,
        MAX_SUBSCRIPTIONS,
        MAX_UNACKED_PER_CONSUMER,
        MAX_UNACKED_PER_SUBSCRIPTION,
        DISPATCH_RATE,
        PUBLISH_RATE,
        SUBSCRIBE_RATE,
        SUBSCRIPTION_DISPATCH_RATE,
        BACKLOG_QUOTAS,
    )
) | {SUBSCRIPTION_RATES}

_Rate = tuple[tuple[str, Any], ...]
_NO_DISPATCH_RATE: _Rate = (
    ("dispatchThrottlingRateInMsg", 0),
    ("dispatchThrottlingRateInByte", 0),
    ("relativeToPublishRate", False),
    ("ratePeriodInSecond", 1),
)


@record(frozen=True)
class TopicRules:
    """Numbers are limits; 0 is without limit, except for those of unacknowledged messages."""

    max_producers: int = 0
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_unacked_per_consumer: int = UNLIMITED
    max_unacked_per_subscription: int = UNLIMITED
    max_message_size_bytes: int = 0
    needs_encryption: bool = False
    deduplicates: bool = False
    creates_subscriptions: bool = True
    subscription_types: tuple[str, ...] = TYPES
    delays_delivery: bool = True
    max_delay_ms: int = 0
    #: The limits of a backlog, as statistics show them.
    backlog_limit_bytes: int = STANDALONE_BYTES
    backlog_limit_s: int = -1
    #: The policies about rates, as they are stored.
    publish_rate: _Rate = (("publishThrottlingRateInMsg", 0), ("publishThrottlingRateInByte", 0))
    dispatch_rate: _Rate = _NO_DISPATCH_RATE
    subscription_dispatch_rate: _Rate = _NO_DISPATCH_RATE
    #: Those of single subscriptions, by name.
    subscription_rates: tuple[tuple[str, _Rate], ...] = ()
    subscribe_rate: _Rate = (("subscribeThrottlingRatePerConsumer", 0), ("ratePeriodInSecond", 30))


#: Those of a topic before its policies are applied.
NO_RULES = TopicRules()


def rules_of(policies: Policies, name: TopicName) -> TopicRules:
    """The rules that apply to a topic."""
    applied = policies.applied
    delay = applied(name, DELAYED_DELIVERY)
    quotas = applied(name, BACKLOG_QUOTAS) or {}
    creation = applied(name, AUTO_SUBSCRIPTION_CREATION)
    return TopicRules(
        max_producers=applied(name, MAX_PRODUCERS),
        max_consumers=applied(name, MAX_CONSUMERS),
        max_consumers_per_subscription=applied(name, MAX_CONSUMERS_PER_SUBSCRIPTION),
        max_subscriptions=applied(name, MAX_SUBSCRIPTIONS),
        max_unacked_per_consumer=applied(name, MAX_UNACKED_PER_CONSUMER) or UNLIMITED,
        max_unacked_per_subscription=applied(name, MAX_UNACKED_PER_SUBSCRIPTION) or UNLIMITED,
        max_message_size_bytes=applied(name, MAX_MESSAGE_SIZE),
        needs_encryption=applied(name, ENCRYPTION),
        deduplicates=applied(name, DEDUPLICATION),
        creates_subscriptions=creation["allowAutoSubscriptionCreation"],
        subscription_types=_types(policies, name),
        delays_delivery=delay["active"],
        max_delay_ms=max(delay["maxDeliveryDelayInMillis"], 0),
        backlog_limit_bytes=quotas.get(STORAGE, {}).get("limitSize") or STANDALONE_BYTES,
        backlog_limit_s=quotas.get(MESSAGE_AGE, {}).get("limitTime") or -1,
        publish_rate=_rate(applied(name, PUBLISH_RATE)),
        dispatch_rate=_rate(applied(name, DISPATCH_RATE)),
        subscription_dispatch_rate=_rate(applied(name, SUBSCRIPTION_DISPATCH_RATE)),
        subscription_rates=_rates_of_subscriptions(policies, name),
        subscribe_rate=_rate(applied(name, SUBSCRIBE_RATE)),
    )


def _types(policies: Policies, name: TopicName) -> tuple[str, ...]:
    """The allowed types; an empty list is as if it were not set."""
    levels = policies[SUBSCRIPTION_TYPES]
    found = levels.of_topic(name) or levels.of_namespace(name.namespace) or levels.default
    return tuple(found) or TYPES


def _rates_of_subscriptions(policies: Policies, name: TopicName) -> tuple[tuple[str, _Rate], ...]:
    rates: dict[str, Any] = {}
    for key in (f"global:{SUBSCRIPTION_RATES}", SUBSCRIPTION_RATES):
        rates |= policies.store.in_topic(name, key) or {}
    return tuple((each, _rate(rate)) for each, rate in sorted(rates.items()))


def _rate(rate: dict[str, Any]) -> _Rate:
    return tuple(rate.items())
