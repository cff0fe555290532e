"""The policies that apply to a topic, in the form in which commands check them.

`topics.policy_store` makes them when a topic is opened and when a policy changes. Topics with equal
rules share one object.
"""

from __future__ import annotations

from typing import Any

from ...records import record
from .pulsar_policies import TYPES

UNLIMITED = 2**31 - 1
#: The quotas that a standalone Pulsar shows for a topic without one.
STANDALONE_BYTES = 10 * 1024**3

Rate = tuple[tuple[str, Any], ...]
"""A policy about rates, as it is stored."""

_NO_DISPATCH_RATE: Rate = (
    ("dispatchThrottlingRateInMsg", 0),
    ("dispatchThrottlingRateInByte", 0),
    ("relativeToPublishRate", False),
    ("ratePeriodInSecond", 1),
)


@record(frozen=True)
class TopicRules:
    """Numbers are limits; 0 is no limit, except for unacknowledged messages."""

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
    publish_rate: Rate = (("publishThrottlingRateInMsg", 0), ("publishThrottlingRateInByte", 0))
    dispatch_rate: Rate = _NO_DISPATCH_RATE
    subscription_dispatch_rate: Rate = _NO_DISPATCH_RATE
    #: Dispatch rates of single subscriptions, by name.
    subscription_rates: tuple[tuple[str, Rate], ...] = ()
    subscribe_rate: Rate = (("subscribeThrottlingRatePerConsumer", 0), ("ratePeriodInSecond", 30))


#: The rules of a topic before its policies are applied.
NO_RULES = TopicRules()
