"""Schemas and non-persistent topics."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from ..peers import Recorder
from .common import lookup, message, produce, scenario, send, subscribe


@scenario
def schemas(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    string = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    record = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    wider = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}'
    avro = pb.Schema(name="R", type=pb.Schema.Avro, schema_data=record)
    produce(link, topic, schema=avro)
    link.say("get", commands.get_schema(topic, link.next_request()))
    link.say("again", commands.get_or_create_schema(topic, link.next_request(), avro))
    link.say(
        "incompatible",
        commands.get_or_create_schema(
            topic, link.next_request(), pb.Schema(name="R", type=pb.Schema.Avro, schema_data=wider)
        ),
    )
    link.say("other type", commands.producer(topic, 2, link.next_request(), schema=string))
    link.say("no schema", commands.producer(topic, 3, link.next_request()))
    link.say(
        "broken",
        commands.get_or_create_schema(
            topic, link.next_request(), pb.Schema(name="R", type=pb.Schema.Avro, schema_data=b"{")
        ),
    )
    link.say(
        "absent version", commands.get_schema(topic, link.next_request(), (77).to_bytes(8, "big"))
    )
    link.say("absent topic", commands.get_schema(f"{topic}-absent", link.next_request()))


@scenario
def non_persistent(broker: Recorder, topic: str) -> None:
    name = topic.replace("persistent://", "non-persistent://")
    link = broker.connect()
    lookup(link, name)
    subscribe(link, name, 10)
    link.say("flow", commands.flow(10, 10))
    link.say("producer", commands.producer(name, 1, link.next_request()))
    link.say("send", send(1, 0, message(0)))
    link.say("last id", commands.get_last_message_id(10, link.next_request()))
