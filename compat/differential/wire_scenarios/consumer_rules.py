"""What SUBSCRIBE asks for: start, durability, compaction, properties; and consumers' other commands."""

from __future__ import annotations

import time

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import EARLIEST, LATEST, MessageId, commands

from ..peers import Recorder
from .common import (
    SUB,
    batch,
    fill,
    lookup,
    message,
    produce,
    received,
    scenario,
    send,
    subscribe,
)

TYPES = {
    "exclusive": SUB.Exclusive,
    "shared": SUB.Shared,
    "failover": SUB.Failover,
    "key": SUB.Key_Shared,
}


@scenario
def consumer_ids(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    subscribe(link, topic, 10)
    subscribe(link, topic, 10)
    subscribe(link, topic, 10, "other")
    subscribe(link, topic, 11)
    link.say(
        "twice at once",
        *(
            commands.subscribe(topic, f"t{n}", 12, link.next_request(), SUB.Shared)
            for n in range(2)
        ),
    )
    link.say("flow unknown", commands.flow(99, 1))
    link.say("flow", commands.flow(10, 1))


@scenario
def dead_exclusive_consumer(broker: Recorder, topic: str) -> None:
    first, second = broker.connect(), broker.connect()
    fill(first, topic, 1)
    subscribe(first, topic)
    first.answers_pings = False
    lookup(second, topic)
    subscribe(second, topic)
    first.listen("first hears")
    second.say("flow", commands.flow(10, 10), quiet_s=1.0)


@scenario
def compacted_types(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    for number, (name, kind) in enumerate(TYPES.items()):
        broker.record("type", name)
        subscribe(link, topic, 10 + number, f"d-{name}", kind, read_compacted=True)
        subscribe(
            link,
            topic,
            20 + number,
            f"n-{name}",
            kind,
            read_compacted=True,
            durable=False,
            start_message_id=EARLIEST,
        )


@scenario
def non_durable_types(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 3)
    for number, (name, kind) in enumerate(TYPES.items()):
        subscribe(
            link, topic, 10 + number, f"n-{name}", kind, durable=False, start_message_id=EARLIEST
        )
        link.say("flow", commands.flow(10 + number, 10), quiet_s=1.5)
    subscribe(link, topic, 20, "d")
    subscribe(link, topic, 21, "d", durable=False, start_message_id=EARLIEST)
    subscribe(link, topic, 22, "n-shared", SUB.Shared)
    link.say("close", commands.close_consumer(20, link.next_request()))
    subscribe(link, topic, 23, "d", durable=False, start_message_id=EARLIEST)


@scenario
def reader_starts(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 3, batches=1)
    subscribe(link, topic, 10, "all")
    link.say("flow", commands.flow(10, 20))
    first = received(broker)[0]
    starts: list[MessageId | None] = [
        None,
        EARLIEST,
        LATEST,
        first,
        MessageId(first.ledger_id, -1),
        MessageId(first.ledger_id, 3, batch_index=2),
        MessageId(first.ledger_id, 3, batch_index=0, batch_size=5),
        MessageId(first.ledger_id, 2, batch_index=0),
        MessageId(first.ledger_id, 4),
        MessageId(first.ledger_id, 99),
        MessageId(first.ledger_id + 1_000_000, 0),
        MessageId(0, 0),
        MessageId(0, 5),
    ]
    number = 20
    for earliest in (True, False):
        for start in starts:
            broker.record("start", [earliest, None if start is None else list(start[1:])])
            subscribe(
                link,
                topic,
                number,
                f"r{number}",
                durable=False,
                start_message_id=start,
                earliest=earliest,
            )
            link.say("flow", commands.flow(number, 20))
            link.say("last id", commands.get_last_message_id(number, link.next_request()))
            number += 1


@scenario
def absent_topics(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    for number, force in enumerate((True, False)):
        name = f"{topic}-{number}"
        link.say("lookup", commands.lookup(name, link.next_request()))
        body = pb.CommandSubscribe(
            topic=name,
            subscription="s",
            subType=SUB.Exclusive,
            consumer_id=10 + number,
            request_id=link.next_request(),
            force_topic_creation=force,
        )
        link.say("subscribe", commands.frame(body))
        link.say(
            "partitions",
            commands.partitioned_metadata(
                name, link.next_request(), metadata_auto_creation_enabled=False
            ),
        )


@scenario
def initial_positions(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 3)
    for number, earliest in enumerate((True, False)):
        subscribe(link, topic, 10 + number, f"s{number}", earliest=earliest)
        link.say("flow", commands.flow(10 + number, 10))
        link.say("last id", commands.get_last_message_id(10 + number, link.next_request()))
    for number, ago_s in enumerate((5, 0, 10**6)):
        subscribe(
            link,
            topic,
            20 + number,
            f"back{number}",
            earliest=False,
            start_message_rollback_duration_sec=ago_s,
        )
        link.say("flow", commands.flow(20 + number, 10))
    start = received(broker)[1]
    subscribe(link, topic, 30, "durable start", start_message_id=start)
    link.say("flow", commands.flow(30, 10))


@scenario
def delayed(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10, "shared", SUB.Shared)
    subscribe(link, topic, 11, "exclusive")
    subscribe(link, topic, 12, "key", SUB.Key_Shared)
    link.say("flow", *(commands.flow(number, 10) for number in (10, 11, 12)))
    later_ms = int(time.time() * 1000) + 4000
    link.say("send", send(1, 0, message(0, deliver_at_time=later_ms)), send(1, 1, message(1)))
    link.say("stats", commands.consumer_stats(10, link.next_request()))
    link.listen("due", quiet_s=5.0)


@scenario
def statistics(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2, batches=3)
    for number, (name, kind) in enumerate(TYPES.items()):
        subscribe(link, topic, 10 + number, name, kind, consumer_name="c")
        link.say("fresh", commands.consumer_stats(10 + number, link.next_request()))
        link.say("flow", commands.flow(10 + number, 3), quiet_s=1.5)
        link.say("with messages", commands.consumer_stats(10 + number, link.next_request()))


@scenario
def unacked_limit(broker: Recorder, topic: str) -> None:
    """Two batches have as many messages as a consumer may hold."""
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10, kind=SUB.Shared)
    frames = [batch(n, 25_000) for n in range(4)]
    link.say("send", *(send(1, n, frame, num_messages=25_000) for n, frame in enumerate(frames)))
    link.say("flow", commands.flow(10, 200_000))
    link.say("blocked", commands.consumer_stats(10, link.next_request()))
    ids = received(broker)
    link.say("ack one", commands.ack(10, ids[:1], request_id=link.next_request()))
    link.say("resumed", commands.consumer_stats(10, link.next_request()))
    link.say("redeliver", commands.redeliver_unacknowledged_messages(10))
    link.say("after redelivery", commands.consumer_stats(10, link.next_request()))


@scenario
def unsubscribing_others(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    for number, (name, kind) in enumerate(TYPES.items()):
        subscribe(link, topic, 10, name, kind)
        if kind != SUB.Exclusive:
            subscribe(link, topic, 11, name, kind)
        link.say("flow", commands.flow(10, 1))
        link.say("unsubscribe", commands.unsubscribe(10, link.next_request()))
        link.say("forced", commands.unsubscribe(10, link.next_request(), force=True), quiet_s=1.0)
        link.say(
            "close",
            commands.close_consumer(11, link.next_request()),
            commands.close_consumer(10, link.next_request()),
        )
        del number
    subscribe(link, topic, 20, "n", durable=False, start_message_id=EARLIEST)
    link.say("unsubscribe a reader", commands.unsubscribe(20, link.next_request()))
    link.say("close it", commands.close_consumer(20, link.next_request()))


@scenario
def end_of_topic(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    subscribe(link, topic, 10)
    subscribe(link, topic, 11, "shared", SUB.Shared)
    link.say("flow", commands.flow(10, 10), commands.flow(11, 10))
    ids = received(broker)
    broker.rest("POST", f"/admin/v2/persistent/{topic.partition('://')[2]}/terminate", quiet=True)
    link.listen("terminated", quiet_s=1.0)
    link.say("send", send(1, 5, message(5)))
    link.say(
        "ack all",
        commands.ack(10, [ids[1]], pb.CommandAck.Cumulative, request_id=link.next_request()),
    )
    link.say("ack shared", commands.ack(11, ids[:2], request_id=link.next_request()))
    subscribe(link, topic, 12, "late")
    link.say("flow late", commands.flow(12, 10))
    link.say("new producer", commands.producer(topic, 2, link.next_request()))
