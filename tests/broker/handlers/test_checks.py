"""Policies that limit producers, consumers, subscriptions and topics: Pulsar's codes and texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pulsemark.client import RequestRefusedError, SendRefusedError
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from pulsemark.testing import RawClient, running_broker

_numbers = itertools.count()
Shared, Failover = CommandSubscribe.Shared, CommandSubscribe.Failover


@pytest.fixture
def namespace(http: Callable[..., Any]) -> str:
    """A namespace of the test's own."""
    name = f"public/limits{next(_numbers)}"
    assert http("PUT", f"/admin/v2/namespaces/{name}").status == 204
    return name


@pytest.fixture
def change(http: Callable[..., Any], namespace: str) -> Callable[..., None]:
    """Set a policy of the namespace, or of its topic `t`."""

    def work(policy: str, value: Any, method: str = "POST", topic: str = "") -> None:
        at = f"persistent/{namespace}/{topic}" if topic else f"namespaces/{namespace}"
        answer = http(method, f"/admin/v2/{at}/{policy}", value)
        assert answer.status == 204, answer

    return work


def refused(work: Callable[[], Any]) -> tuple[int, str]:
    """The code and text with which a request is refused."""
    with pytest.raises(RequestRefusedError) as caught:
        work()
    return caught.value.error, caught.value.message


def test_producers(raw: RawClient, namespace: str, change: Callable[..., None]) -> None:
    """At the limit the next one is refused; one that leaves makes room; 0 is without limit."""
    topic = f"persistent://{namespace}/t"
    change("maxProducersPerTopic", 1)
    first = raw.create_producer(topic)
    full = (ServerError.ProducerBusy, f"Topic '{topic}' reached max producers limit")
    assert refused(lambda: raw.create_producer(topic)) == full
    change("maxProducers", 2, topic="t")
    raw.create_producer(topic)
    assert refused(lambda: raw.create_producer(topic)) == full
    first.close()
    raw.create_producer(topic)
    change("maxProducers", 0, topic="t")
    raw.create_producer(topic)


def test_consumers(raw: RawClient, namespace: str, change: Callable[..., None]) -> None:
    """Of a topic, and of a subscription."""
    topic = f"persistent://{namespace}/t"
    change("maxConsumersPerTopic", 3)
    change("maxConsumersPerSubscription", 1)
    raw.subscribe(topic, "a", sub_type=Shared)
    of_subscription = (ServerError.ConsumerBusy, "Subscription reached max consumers limit")
    assert refused(lambda: raw.subscribe(topic, "a", sub_type=Shared)) == of_subscription
    raw.subscribe(topic, "b", sub_type=Failover)
    assert refused(lambda: raw.subscribe(topic, "b", sub_type=Failover)) == of_subscription
    raw.subscribe(topic, "c", sub_type=Shared)
    of_topic = (ServerError.ConsumerBusy, "Topic reached max consumers limit")
    assert refused(lambda: raw.subscribe(topic, "d", sub_type=Shared)) == of_topic


def test_subscriptions(
    raw: RawClient, http: Callable[..., Any], namespace: str, change: Callable[..., None]
) -> None:
    """NotAllowedError on the wire, 409 over HTTP."""
    topic = f"persistent://{namespace}/t"
    change("maxSubscriptionsPerTopic", 1)
    raw.subscribe(topic, "a")
    text = f"Exceed the maximum number of subscriptions of the topic: {topic}"
    assert refused(lambda: raw.subscribe(topic, "b")) == (ServerError.NotAllowedError, text)
    answer = http("PUT", f"/admin/v2/persistent/{namespace}/t/subscription/b")
    assert (answer.status, answer.json) == (409, {"reason": text})


def test_topics(
    raw: RawClient, http: Callable[..., Any], namespace: str, change: Callable[..., None]
) -> None:
    """Each partition counts; NotAllowedError on the wire, 409 and 412 over HTTP."""
    change("maxTopicsPerNamespace", 1)
    path, text = (
        f"/admin/v2/persistent/{namespace}",
        "Exceed maximum number of topics in namespace.",
    )
    assert http("PUT", f"{path}/a").status == 204
    assert (http("PUT", f"{path}/b").status, http("PUT", f"{path}/b").json["reason"]) == (409, text)
    assert http("PUT", f"{path}/p/partitions", 2).status == 412
    topic = f"persistent://{namespace}/c"
    assert refused(lambda: raw.create_producer(topic)) == (ServerError.NotAllowedError, text)
    change("maxTopicsPerNamespace", None, "DELETE")
    raw.create_producer(topic)


def test_what_is_not_created_by_itself(
    raw: RawClient, http: Callable[..., Any], namespace: str, change: Callable[..., None]
) -> None:
    """Topics and durable subscriptions; a reader's subscription is."""
    change("autoTopicCreation", {"allowAutoTopicCreation": False})
    topic = f"persistent://{namespace}/t"
    assert refused(lambda: raw.create_producer(topic))[0] == ServerError.TopicNotFound
    assert refused(lambda: raw.subscribe(topic, "s"))[0] == ServerError.TopicNotFound
    assert http("PUT", f"/admin/v2/persistent/{namespace}/t").status == 204
    change("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    absent = (ServerError.SubscriptionNotFound, "Subscription does not exist")
    assert refused(lambda: raw.subscribe(topic, "s")) == absent
    raw.subscribe(topic, "reader", durable=False)
    change("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True}, topic="t")
    raw.subscribe(topic, "s")


def test_topics_that_are_created_with_partitions(
    http: Callable[..., Any], namespace: str, change: Callable[..., None], client: Any
) -> None:
    """An official client's producer creates them."""
    policy = {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    }
    change("autoTopicCreation", policy)
    client.create_producer(f"persistent://{namespace}/parts").send(b"x")
    path = f"/admin/v2/persistent/{namespace}/parts/partitions"
    assert http("GET", path).json["partitions"] == 3


def test_types_of_subscriptions(
    raw: RawClient, namespace: str, change: Callable[..., None]
) -> None:
    """Only those named; an empty list allows those of the level above."""
    topic = f"persistent://{namespace}/t"
    change("subscriptionTypesEnabled", ["Shared"])
    text = f"Topic[{{{topic}}}] doesn't support Exclusive sub type!"
    assert refused(lambda: raw.subscribe(topic, "s")) == (ServerError.NotAllowedError, text)
    raw.subscribe(topic, "s", sub_type=Shared)
    change("subscriptionTypesEnabled", [])
    raw.subscribe(topic, "e")


def test_how_often_a_consumer_subscribes(
    raw: RawClient, namespace: str, change: Callable[..., None]
) -> None:
    """The same consumer above its rate is refused, another one is not."""
    topic = f"persistent://{namespace}/t"
    change("subscribeRate", {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600})

    def subscribe(number: int) -> None:
        raw.subscribe(topic, "s", consumer_id=number, consumer_name="c").close()

    subscribe(1_000_001)
    subscribe(1_000_001)
    code, text = refused(lambda: subscribe(1_000_001))
    assert code == ServerError.NotAllowedError
    assert text == "Subscribe limited by subscribe rate limit per consumer."
    subscribe(1_000_002)


def test_messages_that_are_refused(
    raw: RawClient, namespace: str, change: Callable[..., None]
) -> None:
    """Too large, to be delivered too late; the connection stays, and others are taken."""
    topic = f"persistent://{namespace}/t"
    producer = raw.create_producer(topic)
    change("maxMessageSize", 200, topic="t")
    with pytest.raises(SendRefusedError) as caught:
        producer.send(b"x" * 300, sequence_id=0)
    assert caught.value.error == ServerError.NotAllowedError
    assert caught.value.message == "Exceed maximum message size"
    producer.send(b"x" * 10, sequence_id=1)
    change(
        "delayedDelivery", {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 60_000}
    )
    with pytest.raises(SendRefusedError) as caught:
        producer.send(b"x", sequence_id=2, deliver_at_time=1 << 50)
    assert "60000 milliseconds" in caught.value.message
    producer.send(b"x", sequence_id=3)


def test_encryption(raw: RawClient, namespace: str, change: Callable[..., None]) -> None:
    """Producers that do not encrypt are closed and refused."""
    topic = f"persistent://{namespace}/t"
    raw.create_producer(topic)
    change("encryptionRequired", True)
    text = f"Encryption is required in {topic}"
    assert refused(lambda: raw.create_producer(topic)) == (ServerError.MetadataError, text)
    encrypting = raw.create_producer(topic, encrypted=True)
    with pytest.raises(SendRefusedError) as caught:
        encrypting.send(b"x")
    assert caught.value.error == ServerError.MetadataError


def test_unacknowledged_messages(
    raw: RawClient, namespace: str, change: Callable[..., None], drain: Callable[..., Any]
) -> None:
    """A shared consumer gets no more than it may hold; a higher limit is in force at once."""
    topic = f"persistent://{namespace}/t"
    change("maxUnackedMessagesPerConsumer", 2)
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=Shared)
    consumer.flow(100)
    for n in range(6):
        producer.send(b"%d" % n)
    got = drain(consumer)
    assert len(got) == 2
    for message in got:
        consumer.ack(message.message_id)
    assert len(drain(consumer)) == 2
    change("maxUnackedMessagesPerConsumer", 0)
    assert len(drain(consumer)) == 2


def test_delays_that_end(
    raw: RawClient, namespace: str, change: Callable[..., None], drain: Callable[..., Any]
) -> None:
    """When delayed delivery is switched off, what waits is delivered at once."""
    topic = f"persistent://{namespace}/t"
    producer = raw.create_producer(topic)
    consumer = raw.subscribe(topic, "s", sub_type=Shared)
    consumer.flow(100)
    producer.send(b"later", deliver_at_time=1 << 50)
    assert drain(consumer) == []
    change("delayedDelivery", {"tickTime": 1000, "active": False})
    assert len(drain(consumer)) == 1
    producer.send(b"at once", deliver_at_time=1 << 50)
    assert len(drain(consumer)) == 1


def test_settings_of_the_file() -> None:
    """The broker's level comes from the configuration."""
    with (
        running_broker(max_producers_per_topic=1) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        client.create_producer("persistent://public/default/t")
        code, _ = refused(lambda: client.create_producer("persistent://public/default/t"))
        assert code == ServerError.ProducerBusy
