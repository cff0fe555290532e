"""Connections: the handshake, violations, unknown things, transactions."""

from __future__ import annotations

from pulsemark.wire import MessageId, commands

from ..peers import Recorder
from .common import message, scenario, send


@scenario
def handshake(broker: Recorder, topic: str) -> None:
    link = broker.connect(handshake=False)
    link.say("ping before connect", commands.PING)
    link.say("connect", commands.connect("comparison", protocol_version=19))
    link.say("ping", commands.PING)
    link.say("second connect", commands.connect("comparison"))


@scenario
def unknown_things(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    link.say("unsubscribe", commands.unsubscribe(5, link.next_request()))
    link.say("last id", commands.get_last_message_id(5, link.next_request()))
    link.say("close consumer", commands.close_consumer(5, link.next_request()))
    link.say("close producer", commands.close_producer(5, link.next_request()))
    link.say("ack", commands.ack(5, [MessageId(1, 1)], request_id=link.next_request()))
    link.say("redeliver", commands.redeliver_unacknowledged_messages(5))
    link.say("flow", commands.flow(5, 5))
    link.say("stats", commands.consumer_stats(5, link.next_request()))


@scenario
def violations(broker: Recorder, topic: str) -> None:
    for label, frame in (
        ("size zero", b"\0\0\0\0"),
        ("flow zero", commands.flow(1, 1)[:-1] + b"\0"),
        ("garbage", b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff"),
        ("send to unknown producer", send(9, 0, message(0))),
        ("auth response", commands.auth_response("c", 19, "token", b"x")),
        ("lookup without namespace", commands.lookup("x", 1)),
    ):
        link = broker.connect()
        link.say(label, frame)
        link.close()
