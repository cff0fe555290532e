"""Consumers: subscribing, permits, acknowledgements."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import MessageId, commands

from ..peers import Recorder
from .common import SUB, fill, lookup, received, scenario, subscribe


@scenario
def consuming(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 5)
    subscribe(link, topic)
    link.say("flow 2", commands.flow(10, 2))
    link.say("flow 10", commands.flow(10, 10))
    ids = received(broker)
    link.say("ack one", commands.ack(10, ids[:1], request_id=link.next_request()))
    link.say(
        "ack cumulative",
        commands.ack(10, ids[2:3], pb.CommandAck.Cumulative, request_id=link.next_request()),
    )
    link.say(
        "ack backwards",
        commands.ack(10, ids[:1], pb.CommandAck.Cumulative, request_id=link.next_request()),
    )
    absent = MessageId(ids[0].ledger_id, 1000)
    link.say("ack absent", commands.ack(10, [absent], request_id=link.next_request()))
    link.say(
        "ack beyond the end",
        commands.ack(10, [absent], pb.CommandAck.Cumulative, request_id=link.next_request()),
    )
    link.say("last id", commands.get_last_message_id(10, link.next_request()))
    link.say("stats", commands.consumer_stats(10, link.next_request()))
    link.say("close", commands.close_consumer(10, link.next_request()))
    link.say("close again", commands.close_consumer(10, link.next_request()))
    subscribe(link, topic, 11)
    link.say("flow", commands.flow(11, 10))


@scenario
def later_ledger_ack(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 3)
    subscribe(link, topic)
    link.say("flow", commands.flow(10, 10))
    later = MessageId(received(broker)[0].ledger_id + 1000, 0)
    link.say(
        "ack later ledger",
        commands.ack(10, [later], pb.CommandAck.Cumulative, request_id=link.next_request()),
    )
    link.say("close", commands.close_consumer(10, link.next_request()))
    subscribe(link, topic, 11)
    link.say("flow again", commands.flow(11, 10))


@scenario
def batches_and_permits(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 0, batches=6)
    subscribe(link, topic, kind=SUB.Shared)
    for permits in (1, 1, 3, 1, 5, 5):
        link.say(f"flow {permits}", commands.flow(10, permits))


@scenario
def batch_acks(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 0, batches=2)
    subscribe(link, topic, kind=SUB.Shared)
    link.say("flow", commands.flow(10, 10))
    first = received(broker)[0]
    partly = MessageId(
        first.ledger_id, first.entry_id, batch_index=0, ack_set=(0b11110,), batch_size=5
    )
    link.say("ack one of five", commands.ack(10, [partly], request_id=link.next_request()))
    link.say("redeliver", commands.redeliver_unacknowledged_messages(10))
    longer = MessageId(
        first.ledger_id, first.entry_id, ack_set=((1 << 63) - 1,) * 3, batch_size=192
    )
    link.say("ack set too long", commands.ack(10, [longer], request_id=link.next_request()))
    link.say(
        "redeliver again", commands.redeliver_unacknowledged_messages(10), commands.flow(10, 20)
    )


@scenario
def subscription_conflicts(broker: Recorder, topic: str) -> None:
    kinds = [SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared]
    link = broker.connect()
    lookup(link, topic)
    consumer_id = 10
    for held in kinds:
        for asked in kinds:
            broker.record("pair", [int(held), int(asked)])
            subscribe(link, topic, consumer_id, kind=held, consumer_name="a")
            subscribe(link, topic, consumer_id + 1, kind=asked, consumer_name="b")
            link.say(
                "close both",
                commands.close_consumer(consumer_id, link.next_request()),
                commands.close_consumer(consumer_id + 1, link.next_request()),
            )
            consumer_id += 2


@scenario
def unsubscribing(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    subscribe(link, topic, 10, kind=SUB.Shared)
    subscribe(link, topic, 11, kind=SUB.Shared)
    link.say("with two", commands.unsubscribe(10, link.next_request()))
    link.say("close one", commands.close_consumer(11, link.next_request()))
    link.say("alone", commands.unsubscribe(10, link.next_request()))
    link.say("again", commands.unsubscribe(10, link.next_request()))
