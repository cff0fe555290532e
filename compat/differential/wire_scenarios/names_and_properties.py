"""Names with odd characters, and what producers, consumers and subscriptions carry with them."""

from __future__ import annotations

from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from ..peers import Recorder
from .common import SUB, fill, lookup, message, produce, received, scenario, send, subscribe

VALIDATION_ERRORS: Any = pb.CommandAck.ValidationError.keys()
ODD = (
    "a b",
    "a/b",
    "ä-ö",
    "a:b",
    "%2F",
    "a\nb",
    "\u0000",
    "日本",
    "x" * 300,
    ".",
    "a,b",
    '"quoted"',
)


@scenario
def odd_subscription_names(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 1)
    for number, name in enumerate(("", *ODD)):
        broker.record("name", repr(name))
        subscribe(link, topic, 10 + number, name)
        link.say("flow", commands.flow(10 + number, 1))
        link.say("unsubscribe", commands.unsubscribe(10 + number, link.next_request()))
        if link.closed:
            link = broker.connect()
            lookup(link, topic)


@scenario
def odd_consumer_names(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    for number, name in enumerate(("", *ODD)):
        broker.record("name", repr(name))
        subscribe(link, topic, 10 + number, "s", SUB.Shared, consumer_name=name)
        link.say("stats", commands.consumer_stats(10 + number, link.next_request()))
        if link.closed:
            link = broker.connect()
            lookup(link, topic)


@scenario
def odd_producer_names(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    for number, name in enumerate(("", *ODD)):
        broker.record("name", repr(name))
        produce(link, topic, number, producer_name=name)
        link.say("send", send(number, 0, message(0)))
        if link.closed:
            link = broker.connect()


@scenario
def properties(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic, 1, properties={"a": "1", "": "empty key", "ä": "ö"})
    subscribe(link, topic, 10, properties={"c": "1"}, subscription_properties={"s": "1", "": "x"})
    link.say("stats", commands.consumer_stats(10, link.next_request()))
    subscribe(link, topic, 11, "t", subscription_properties={"s": "2"}, durable=False)


@scenario
def replicated_flags(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    body = pb.CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=SUB.Exclusive,
        consumer_id=10,
        request_id=link.next_request(),
        replicate_subscription_state=True,
        initialPosition=SUB.Earliest,
    )
    link.say("replicated subscription", commands.frame(body))
    produce(link, topic, 1)
    link.say(
        "replicated message",
        send(1, 0, message(0, replicated_from="elsewhere", replicate_to=["x"])),
    )
    link.say("marker", send(1, 1, message(1, marker_type=10), marker=True))
    link.say("flow", commands.flow(10, 10))
    again = pb.CommandSubscribe()
    again.CopyFrom(body)
    again.replicate_subscription_state = False
    again.request_id = link.next_request()
    link.say("close", commands.close_consumer(10, link.next_request()))
    link.say("without the flag", commands.frame(again))


@scenario
def encryption(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic, 1, encrypted=True)
    keys = [pb.EncryptionKeys(key="k", value=b"secret", metadata=[pb.KeyValue(key="a", value="b")])]
    link.say(
        "encrypted",
        send(
            1,
            0,
            message(
                0, encryption_keys=keys, encryption_algo="AES", encryption_param=b"123456789012"
            ),
        ),
    )
    link.say("plain", send(1, 1, message(1)))
    subscribe(link, topic)
    link.say("flow", commands.flow(10, 10))
    ids = received(broker)
    for number, name in enumerate(VALIDATION_ERRORS):
        link.say(
            name,
            commands.ack(
                10,
                ids[number % 2 : number % 2 + 1],
                request_id=link.next_request(),
                validation_error=getattr(pb.CommandAck, name),
            ),
        )
