"""Policies that limit rates: publishing, dispatch and subscribing."""

from __future__ import annotations

from typing import Any

from ..configuration.config import BrokerConfig
from .policy import Place, Policy
from .values import boolean, fields, integer, long_integer

__all__ = [
    "DISPATCH_RATE",
    "PUBLISH_RATE",
    "RATES",
    "REPLICATOR_DISPATCH_RATE",
    "SUBSCRIBE_RATE",
    "SUBSCRIPTION_DISPATCH_RATE",
    "SUBSCRIPTION_RATES",
    "read_dispatch_rate",
]


def read_dispatch_rate(value: Any) -> Any:
    """Pulsar's `DispatchRate`. 0 or below means no limit."""
    return _read_dispatch_rate(value)


_read_dispatch_rate = fields(
    "dispatchRate",
    {
        "dispatchThrottlingRateInMsg": (integer, 0),
        "dispatchThrottlingRateInByte": (long_integer, 0),
        "relativeToPublishRate": (boolean, False),
        "ratePeriodInSecond": (integer, 0),
    },
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
    key="publishMaxMessageRate",
    what="the most messages and bytes that a topic takes in a second; 0 and below: no limit",
    read=fields(
        "publishRate",
        {
            "publishThrottlingRateInMsg": (integer, -1),
            "publishThrottlingRateInByte": (long_integer, -1),
        },
    ),
    default=_default_publish_rate,
    namespace=Place("publishRate", empty="removes"),
    topic=Place("publishRate", empty="ignored", unset_status=204, shows_applied=False),
    by_cluster=True,
    absent={},
)
DISPATCH_RATE = Policy(
    name="dispatchRate",
    key="topicDispatchRate",
    what="the most messages and bytes that a topic's subscriptions together get in a period",
    read=read_dispatch_rate,
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
    key="subscriptionDispatchRate",
    what="the most messages and bytes that one subscription gets in a period",
    read=read_dispatch_rate,
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
REPLICATOR_DISPATCH_RATE = Policy(
    name="replicatorDispatchRate",
    key="replicatorDispatchRate",
    what="the most messages and bytes that replication sends in a period",
    read=read_dispatch_rate,
    default=lambda config: _dispatch_rate(0, 0),
    namespace=Place("replicatorDispatchRate", empty="removes"),
    topic=Place("replicatorDispatchRate", empty="removes"),
    by_cluster=True,
    absent={},
    is_stored_only=True,
)
SUBSCRIBE_RATE = Policy(
    name="subscribeRate",
    key="clusterSubscribeRate",
    what="how often one consumer may subscribe in a period; 0 and below: no limit",
    read=fields(
        "subscribeRate",
        {
            "subscribeThrottlingRatePerConsumer": (integer, -1),
            "ratePeriodInSecond": (integer, 30),
        },
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
RATES = (
    PUBLISH_RATE,
    DISPATCH_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIBE_RATE,
    REPLICATOR_DISPATCH_RATE,
)
