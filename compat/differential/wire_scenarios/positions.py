"""Seeks, readers and last message ids."""

from __future__ import annotations

from pulsemark.wire import MessageId, commands

from ..peers import Recorder
from .common import fill, produce, received, scenario, subscribe


@scenario
def seeking(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 4, batches=1)
    subscribe(link, topic)
    link.say("flow", commands.flow(10, 20))
    ids = received(broker)
    link.say("seek to id", commands.seek(10, link.next_request(), message_id=ids[1]))
    subscribe(link, topic, 10)
    link.say("flow after seek", commands.flow(10, 20))
    link.say("seek to time 0", commands.seek(10, link.next_request(), publish_time_ms=0))
    subscribe(link, topic, 10)
    link.say("flow after time seek", commands.flow(10, 20))
    link.say("seek far", commands.seek(10, link.next_request(), publish_time_ms=1 << 61))
    subscribe(link, topic, 10)
    link.say("flow after far seek", commands.flow(10, 20))
    link.say("seek unknown consumer", commands.seek(99, link.next_request(), publish_time_ms=0))


@scenario
def readers(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 3, batches=1)
    subscribe(link, topic, 10, "all")
    link.say("flow", commands.flow(10, 20))
    ids = received(broker)
    for number, start in enumerate(
        [ids[1], MessageId(ids[0].ledger_id, 1000), MessageId(ids[0].ledger_id + 500, 0)]
    ):
        subscribe(
            link, topic, 20 + number, f"reader-{number}", durable=False, start_message_id=start
        )
        link.say("flow reader", commands.flow(20 + number, 20))
        link.say("last id", commands.get_last_message_id(20 + number, link.next_request()))


@scenario
def empty_topic(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10)
    link.say("last id", commands.get_last_message_id(10, link.next_request()))
    link.say("seek", commands.seek(10, link.next_request(), publish_time_ms=5))
