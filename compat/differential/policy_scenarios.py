"""Policies: every one of them over REST, and what clients get when one is in force."""

from __future__ import annotations

import time
from typing import Any

from pulsemark.broker.policies.policy import Place
from pulsemark.broker.policies.pulsar_policies import POLICIES

from .peers import Recorder
from .rest_scenarios.registry import ADMIN, path_of, unique
from .wire_scenarios import SUB, Scenario, batch, lookup, message, produce, send, subscribe

POLICY_SCENARIOS: dict[str, Scenario] = {}

#: Pulsar's answer to these is an error of its own (500), or comes from its Java library.
VALUES: tuple[Any, ...] = (7, 0, -1, "8", 1.5, "x", True, {}, [], None)
DISPATCH_RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": 1000,
    "ratePeriodInSecond": 1,
}
GOOD: dict[str, tuple[Any, ...]] = {
    "publishRate": ({"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000},),
    "dispatchRate": (DISPATCH_RATE,),
    "subscriptionDispatchRate": (DISPATCH_RATE,),
    "subscribeRate": ({"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30},),
    "autoTopicCreation": (
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
        {"allowAutoTopicCreation": True, "topicType": "x"},
        {"allowAutoTopicCreation": False},
    ),
    "autoSubscriptionCreation": ({"allowAutoSubscriptionCreation": False},),
    "inactiveTopicPolicies": (
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
    ),
    "delayedDelivery": ({"tickTime": 1000, "active": False},),
    "subscriptionTypesEnabled": (["Shared"], ["Exclusive", "Shared"]),
    "schemaCompatibilityStrategy": ("FULL", "BACKWARD", "UNDEFINED"),
    "replication": (["standalone"], ["x"]),
}
QUOTAS: tuple[Any, ...] = (
    {"limitSize": 1000, "limitTime": 60, "policy": "producer_exception"},
    {"limit": 1000, "policy": "producer_request_hold"},
    {"limitTime": -1, "limitSize": -1, "policy": "consumer_backlog_eviction"},
    {"policy": "x"},
    {},
)


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    POLICY_SCENARIOS[function.__name__] = function
    return function


def namespace_of(broker: Recorder, topic: str) -> str:
    """The path of a new namespace."""
    path = f"{ADMIN}/namespaces/public/{unique(topic)}"
    broker.rest("PUT", path, {}, quiet=True)
    return path


def in_own_namespace(broker: Recorder, topic: str) -> tuple[str, str]:
    """The path of a new namespace, and the name of a topic in it."""
    return namespace_of(broker, topic), f"persistent://public/{unique(topic)}/t"


def cycle(broker: Recorder, path: str, name: str, place: Place) -> None:
    """Show, set, show, remove and show one policy at one level."""
    at = f"{path}/{place.path}"
    broker.rest("GET", at, label=f"{place.path} unset")
    for value in (*GOOD.get(name, ()), *VALUES):
        broker.rest(place.method, at, value, label=f"{place.path} = {value!r}")
        broker.rest("GET", at, label=f"{place.path} after {value!r}")
    broker.rest("DELETE", at, label=f"{place.path} removed")
    broker.rest("GET", at, label=f"{place.path} after its removal")


@scenario
def rest_namespace_policies(broker: Recorder, topic: str) -> None:
    path = namespace_of(broker, topic)
    broker.rest("GET", path, label="a new namespace's policies")
    for policy in POLICIES:
        if policy.namespace is not None and not policy.is_ours:
            cycle(broker, path, policy.name, policy.namespace)
    broker.rest("GET", path, label="all policies")


@scenario
def rest_topic_policies(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    broker.rest("PUT", path, label="create")
    for policy in POLICIES:
        if policy.topic is not None and not policy.is_ours and not policy.topic.query:
            cycle(broker, path, policy.name, policy.topic)
            at = policy.topic.path
            broker.rest("GET", f"{path}/{at}?applied=true", label=f"{at} applied")
            broker.rest("GET", f"{path}-absent/{at}", label=f"{at} of an absent topic")
            broker.rest("GET", f"{path}-partition-0/{at}", label=f"{at} of a partition")


@scenario
def rest_backlog_quotas(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    broker.rest("PUT", path_of(name), quiet=True)
    for path in (namespace, path_of(name)):
        for kind in ("", "?backlogQuotaType=message_age", "?backlogQuotaType=x"):
            for quota in QUOTAS:
                broker.rest("POST", f"{path}/backlogQuota{kind}", quota, label=f"{kind} {quota}")
                broker.rest("GET", f"{path}/backlogQuotaMap", label="the map")
        broker.rest("GET", f"{path_of(name)}/backlogQuotaMap?applied=true", label="applied")
        for kind in ("", "?backlogQuotaType=message_age"):
            broker.rest("DELETE", f"{path}/backlogQuota{kind}", label=f"remove {kind}")
            broker.rest("GET", f"{path}/backlogQuotaMap", label="the map")


@scenario
def limits_of_producers_and_consumers(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    link = broker.connect()
    broker.rest("PUT", path_of(name), quiet=True)
    broker.rest("POST", f"{namespace}/maxProducersPerTopic", 1, label="one producer")
    broker.rest("POST", f"{namespace}/maxConsumersPerTopic", 2, label="two consumers")
    broker.rest("POST", f"{namespace}/maxConsumersPerSubscription", 1, label="one a subscription")
    broker.rest("POST", f"{namespace}/maxSubscriptionsPerTopic", 2, label="two subscriptions")
    time.sleep(1)
    produce(link, name, 1, producer_name="a")
    produce(link, name, 2, producer_name="b")
    subscribe(link, name, 10, "s", SUB.Shared)
    subscribe(link, name, 11, "s", SUB.Shared)
    subscribe(link, name, 12, "f", SUB.Failover)
    subscribe(link, name, 13, "f", SUB.Failover)
    subscribe(link, name, 14, "u", SUB.Shared)
    broker.rest("DELETE", f"{namespace}/maxConsumersPerSubscription", quiet=True)
    broker.rest("PUT", f"{path_of(name)}/subscription/v", label="a third subscription over REST")
    time.sleep(1)
    subscribe(link, name, 15, "s", SUB.Shared)
    subscribe(link, name, 16, "f", SUB.Failover)


@scenario
def limits_of_topics(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    broker.rest("POST", f"{namespace}/maxTopicsPerNamespace", 1, label="one topic")
    time.sleep(1)
    broker.rest("PUT", path_of(name), label="the first")
    broker.rest("PUT", path_of(name) + "2", label="the second")
    broker.rest("PUT", path_of(name) + "3/partitions", 2, label="partitions")
    link = broker.connect()
    produce(link, name + "4")


@scenario
def automatic_creation(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    no_topics = {"allowAutoTopicCreation": False}
    broker.rest("POST", f"{namespace}/autoTopicCreation", no_topics, label="no topics")
    time.sleep(1)
    link = broker.connect()
    produce(link, name)
    subscribe(link, name)
    broker.rest("PUT", path_of(name), label="explicitly")
    no_subscriptions = {"allowAutoSubscriptionCreation": False}
    path = f"{namespace}/autoSubscriptionCreation"
    broker.rest("POST", path, no_subscriptions, label="no subscriptions")
    time.sleep(1)
    subscribe(link, name, 11, "s")
    subscribe(link, name, 12, "reader", durable=False)
    broker.rest("PUT", f"{path_of(name)}/subscription/s", label="explicitly")
    subscribe(link, name, 13, "s")
    partitioned = {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 2,
    }
    broker.rest("POST", f"{namespace}/autoTopicCreation", partitioned, label="partitioned")
    broker.rest("DELETE", path, quiet=True)
    time.sleep(1)
    lookup(link, name + "-new")
    broker.rest("GET", f"{path_of(name)}-new/partitions", label="its partitions")


@scenario
def allowed_subscription_types(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    broker.rest("PUT", path_of(name), quiet=True)
    path = f"{namespace}/subscriptionTypesEnabled"
    broker.rest("POST", path, ["Shared"], label="only Shared")
    time.sleep(1)
    link = broker.connect()
    lookup(link, name)
    for number, kind in enumerate((SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared)):
        subscribe(link, name, 10 + number, f"s{number}", kind)
    subscribe(link, name, 20, "reader", durable=False)


@scenario
def refused_messages(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    broker.rest("PUT", path_of(name), quiet=True)
    link = broker.connect()
    produce(link, name, producer_name="p")
    broker.rest("POST", f"{path_of(name)}/maxMessageSize", 100, label="100 bytes")
    time.sleep(1)
    link.say("small", send(1, 0, message(0)))
    link.say("large", send(1, 1, message(1, b"x" * 200)))
    link.say("small again", send(1, 2, message(2)))
    broker.rest("POST", f"{namespace}/encryptionRequired", True, label="encryption")
    time.sleep(1)
    link.say("not encrypted", send(1, 3, message(3)))
    produce(link, name, 2, producer_name="q")


@scenario
def deduplicated_messages(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    broker.rest("POST", f"{namespace}/deduplication", True, label="on")
    time.sleep(1)
    link = broker.connect()
    produce(link, name, producer_name="p")
    link.say("send", *(send(1, n, message(n)) for n in range(3)))
    link.say("again", *(send(1, n, message(n)) for n in range(4)))
    link.say("a batch", send(1, 4, batch(4, 3), num_messages=3, highest_sequence_id=6))
    link.say("half new", send(1, 5, batch(5, 3), num_messages=3, highest_sequence_id=7))
    link.say("all old", send(1, 5, batch(5, 3), num_messages=3, highest_sequence_id=7))
    other = broker.connect()
    produce(other, name, producer_name="p")
    link.close()
    time.sleep(0.5)
    produce(other, name, 2, producer_name="p")
    subscribe(other, name)
    other.say("flow", b"")
    broker.rest("POST", f"{namespace}/deduplication", False, label="off")
    time.sleep(1)
    other.say("after it is off", send(2, 0, message(0)))


@scenario
def a_full_backlog(broker: Recorder, topic: str) -> None:
    namespace, name = in_own_namespace(broker, topic)
    broker.rest("PUT", path_of(name), quiet=True)
    broker.rest("PUT", f"{path_of(name)}/subscription/s", quiet=True)
    link = broker.connect()
    produce(link, name, producer_name="p")
    quota = {"limitSize": 10, "policy": "producer_exception"}
    broker.rest("POST", f"{namespace}/backlogQuota", quota, label="producer_exception")
    link.say("send", *(send(1, n, message(n)) for n in range(5)))
    time.sleep(8)
    link.listen("what the producer gets")
    link.say("send more", send(1, 5, message(5)))
    produce(link, name, 2, producer_name="q")
    quota["policy"] = "producer_request_hold"
    broker.rest("POST", f"{namespace}/backlogQuota", quota, label="producer_request_hold")
    time.sleep(1)
    produce(link, name, 3, producer_name="r")
