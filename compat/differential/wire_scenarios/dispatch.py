"""Which consumer gets which message, and how often."""

from __future__ import annotations

from pulsemark.wire import commands

from ..peers import Recorder
from .common import SUB, fill, received, scenario, subscribe


@scenario
def shared_redelivery(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 4)
    subscribe(link, topic, kind=SUB.Shared)
    link.say("flow", commands.flow(10, 4))
    ids = received(broker)
    link.say(
        "redeliver two",
        commands.redeliver_unacknowledged_messages(10, ids[:2]),
        commands.flow(10, 10),
    )
    link.say(
        "redeliver two again",
        commands.redeliver_unacknowledged_messages(10, ids[:2]),
        commands.flow(10, 10),
    )
    subscribe(link, topic, 11, kind=SUB.Shared)
    link.say("second flows", commands.flow(11, 10))
    link.say("first closes", commands.close_consumer(10, link.next_request()))
    link.say("redeliver all", commands.redeliver_unacknowledged_messages(11), commands.flow(11, 10))
    link.say("second closes", commands.close_consumer(11, link.next_request()))
    subscribe(link, topic, 12, kind=SUB.Shared)
    link.say("third flows", commands.flow(12, 10))


@scenario
def failover(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 4)
    subscribe(link, topic, 10, kind=SUB.Failover, consumer_name="b")
    subscribe(link, topic, 11, kind=SUB.Failover, consumer_name="a")
    link.listen("after the delay", quiet_s=2.0)
    link.say("flows", commands.flow(10, 2), commands.flow(11, 2), quiet_s=1.5)
    subscribe(link, topic, 12, kind=SUB.Failover, consumer_name="c", priority_level=0)
    link.say("active one closes", commands.close_consumer(11, link.next_request()), quiet_s=2.0)
    link.say("flow", commands.flow(10, 10), quiet_s=1.0)
