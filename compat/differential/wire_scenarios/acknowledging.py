"""Acknowledgements, and what comes again after redelivery, seeks and closed consumers."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import EARLIEST, LATEST, MessageId, commands

from ..peers import RawConnection, Recorder
from .common import (
    PUBLISHED_MS,
    SUB,
    batch,
    fill,
    message,
    produce,
    received,
    scenario,
    send,
    subscribe,
)

CUMULATIVE = pb.CommandAck.Cumulative


@scenario
def several_ids(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 8)
    subscribe(link, topic, 10)
    subscribe(link, topic, 11, "shared", SUB.Shared)
    link.say("flow", commands.flow(10, 20), commands.flow(11, 20))
    ids = received(broker)[:8]
    link.say("several", commands.ack(10, ids[2:5], request_id=link.next_request()))
    link.say("none", commands.ack(10, [], request_id=link.next_request()))
    link.say(
        "cumulative, several", commands.ack(10, ids[:2], CUMULATIVE, request_id=link.next_request())
    )
    link.say("cumulative, none", commands.ack(10, [], CUMULATIVE, request_id=link.next_request()))
    link.say(
        "cumulative on shared",
        commands.ack(11, ids[3:4], CUMULATIVE, request_id=link.next_request()),
    )
    link.say("twice the same", commands.ack(11, [ids[5], ids[5]], request_id=link.next_request()))
    link.say("earliest", commands.ack(10, [EARLIEST], CUMULATIVE, request_id=link.next_request()))
    link.say("latest", commands.ack(10, [LATEST], CUMULATIVE, request_id=link.next_request()))
    link.say(
        "entry -1",
        commands.ack(
            10, [MessageId(ids[0].ledger_id, -1)], CUMULATIVE, request_id=link.next_request()
        ),
    )
    link.say(
        "individual entry -1",
        commands.ack(11, [MessageId(ids[0].ledger_id, -1)], request_id=link.next_request()),
    )
    if link.closed:
        link = broker.connect()
        produce(link, topic)
    for number in (10, 11):
        link.say("close", commands.close_consumer(number, link.next_request()))
    subscribe(link, topic, 12)
    subscribe(link, topic, 13, "shared", SUB.Shared)
    link.say("left", commands.flow(12, 20))
    link.say("left of shared", commands.flow(13, 20))
    link.say("last", commands.get_last_message_id(12, link.next_request()))


@scenario
def cumulative_in_batches(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 0, batches=3)
    subscribe(link, topic, 10)
    link.say("flow", commands.flow(10, 15))
    ids = received(broker)
    partly = MessageId(
        ids[1].ledger_id, ids[1].entry_id, batch_index=1, ack_set=(0b11100,), batch_size=5
    )
    link.say(
        "part of the second", commands.ack(10, [partly], CUMULATIVE, request_id=link.next_request())
    )
    link.say("mark", commands.get_last_message_id(10, link.next_request()))
    link.say("redeliver", commands.redeliver_unacknowledged_messages(10), commands.flow(10, 15))
    whole = MessageId(ids[1].ledger_id, ids[1].entry_id, batch_index=4, batch_size=5)
    link.say("whole second", commands.ack(10, [whole], CUMULATIVE, request_id=link.next_request()))
    link.say("mark again", commands.get_last_message_id(10, link.next_request()))


@scenario
def members_one_by_one(broker: Recorder, topic: str) -> None:
    """Each member of a batch acknowledged with its own ack set."""
    link = broker.connect()
    fill(link, topic, 0, batches=2)
    for number, kind in ((10, SUB.Shared), (11, SUB.Exclusive), (12, SUB.Key_Shared)):
        subscribe(link, topic, number, f"s{number}", kind)
        link.say("flow", commands.flow(number, 10))
        first = received(broker)[-2]
        for member in range(5):
            one = MessageId(
                first.ledger_id,
                first.entry_id,
                batch_index=member,
                ack_set=(0b11111 ^ (1 << member),),
                batch_size=5,
            )
            link.say(
                f"member {member}", commands.ack(number, [one], request_id=link.next_request())
            )
        link.say("stats", commands.consumer_stats(number, link.next_request()))
        nothing_left = MessageId(first.ledger_id, first.entry_id, ack_set=(0,), batch_size=5)
        link.say("empty set", commands.ack(number, [nothing_left], request_id=link.next_request()))
        link.say("stats", commands.consumer_stats(number, link.next_request()))
        link.say(
            "redeliver",
            commands.redeliver_unacknowledged_messages(number),
            commands.flow(number, 20),
        )


@scenario
def another_consumers_messages(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 4)
    subscribe(link, topic, 10, kind=SUB.Shared)
    subscribe(link, topic, 11, kind=SUB.Shared)
    link.say("flow", commands.flow(10, 2))
    link.say("flow other", commands.flow(11, 2))
    ids = received(broker)
    link.say("ack the other's", commands.ack(11, ids[:1], request_id=link.next_request()))
    link.say(
        "redeliver the other's",
        commands.redeliver_unacknowledged_messages(11, ids[1:2]),
        commands.flow(11, 10),
    )
    link.say("stats", commands.consumer_stats(10, link.next_request()))
    link.say("other's stats", commands.consumer_stats(11, link.next_request()))
    link.say(
        "redeliver absent",
        commands.redeliver_unacknowledged_messages(10, [MessageId(ids[0].ledger_id, 77)]),
    )
    link.say("first closes", commands.close_consumer(10, link.next_request()), quiet_s=1.0)


@scenario
def counts_after_events(broker: Recorder, topic: str) -> None:
    """Redelivery counts after a nack, a closed consumer, a lost connection, a seek, the last one left."""
    for kind in (SUB.Shared, SUB.Key_Shared, SUB.Failover, SUB.Exclusive):
        name = f"{topic}-{int(kind)}"
        owner, link, other = broker.connect(), broker.connect(), broker.connect()
        fill(owner, name, 2)
        for one in (link, other):
            produce(one, name, 5)
        subscribe(link, name, 10, kind=kind, consumer_name="a")
        link.say("flow", commands.flow(10, 10), quiet_s=1.5)
        ids = received(broker)[-2:]
        link.say("nack", commands.redeliver_unacknowledged_messages(10, ids), commands.flow(10, 10))
        link.say(
            "nack again", commands.redeliver_unacknowledged_messages(10, ids), commands.flow(10, 10)
        )
        subscribe(other, name, 11, kind=kind, consumer_name="b")
        other.say("flow", commands.flow(11, 10), quiet_s=1.5)
        link.close()
        other.listen("after a lost connection", quiet_s=2.5)
        other.say("seek", commands.seek(11, other.next_request(), message_id=EARLIEST))
        subscribe(other, name, 12, kind=kind, consumer_name="c")
        other.say("flow after seek", commands.flow(12, 10), quiet_s=1.5)
        other.say("close the last", commands.close_consumer(12, other.next_request()))
        subscribe(other, name, 13, kind=kind, consumer_name="d")
        other.say("flow of the next", commands.flow(13, 10), quiet_s=1.5)


@scenario
def consumer_epochs(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    for number, kind in ((10, SUB.Exclusive), (11, SUB.Failover), (12, SUB.Shared)):
        subscribe(link, topic, number, f"s{number}", kind, consumer_epoch=0)
        link.say("flow", commands.flow(number, 10), quiet_s=1.5)
        link.say(
            "epoch 1",
            commands.redeliver_unacknowledged_messages(number, consumer_epoch=1),
            commands.flow(number, 10),
        )
        link.say(
            "epoch 0",
            commands.redeliver_unacknowledged_messages(number, consumer_epoch=0),
            commands.flow(number, 10),
        )


@scenario
def chunks_stay_together(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10, kind=SUB.Shared)
    subscribe(link, topic, 11, kind=SUB.Shared)
    frames = [(uuid, part) for part in range(3) for uuid in ("u1", "u2", "u3")]
    link.say("flows", commands.flow(10, 9), commands.flow(11, 9))
    for number, (uuid, part) in enumerate(frames):
        body = unbatched_message(
            b"x",
            publish_time_ms=PUBLISHED_MS,
            sequence_id=number,
            producer_name="p",
            uuid=uuid,
            num_chunks_from_msg=3,
            chunk_id=part,
            total_chunk_msg_size=3,
        )
        link.say("chunk", send(1, number, body, is_chunk=True))
    link.say("first flows", commands.flow(10, 10))
    link.say("second flows", commands.flow(11, 10))
    link.say("first closes", commands.close_consumer(10, link.next_request()), quiet_s=1.0)


@scenario
def priority_levels(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    for number, level in ((10, 1), (11, 0), (12, 0), (13, 2)):
        subscribe(link, topic, number, kind=SUB.Shared, priority_level=level)
    link.say("flows", *(commands.flow(number, 3) for number in (10, 11, 12, 13)))
    for number in range(12):
        link.say("one", send(1, number, message(number)))


@scenario
def failover_of_partitions(broker: Recorder, topic: str) -> None:
    path = topic.partition("://")[2]
    broker.rest("PUT", f"/admin/v2/persistent/{path}/partitions", 3, quiet=True)
    link = broker.connect()
    for partition in range(3):
        name = f"{topic}-partition-{partition}"
        produce(link, name, 1 + partition)
        for number, (consumer, level) in enumerate((("b", 0), ("a", 0), ("c", 1))):
            subscribe(
                link,
                name,
                10 * (1 + partition) + number,
                "s",
                SUB.Failover,
                consumer_name=consumer,
                priority_level=level,
            )
    link.listen("who is active", quiet_s=2.0)
    for partition in range(3):
        body = message(0)
        link.say("send", send(1 + partition, 0, body))
        link.say("flow", *(commands.flow(10 * (1 + partition) + number, 5) for number in range(3)))


@scenario
def failover_same_names(broker: Recorder, topic: str) -> None:
    for name in (None, "same"):
        link = broker.connect()
        produce(link, f"{topic}-{name}")
        for number in (10, 11, 12):
            subscribe(link, f"{topic}-{name}", number, "s", SUB.Failover, consumer_name=name)
        for number in (11, 12):
            link.say("close", commands.close_consumer(number, link.next_request()), quiet_s=2.0)


@scenario
def failover_levels(broker: Recorder, topic: str) -> None:
    for round_ in range(4):
        link = broker.connect()
        name = f"{topic}-{round_}"
        produce(link, name)
        for number, level in enumerate((1, 0, 0, 2)):
            subscribe(
                link,
                name,
                10 + number,
                "s",
                SUB.Failover,
                consumer_name=f"c{number}",
                priority_level=level,
            )
        link.listen("who is active", quiet_s=2.0)


@scenario
def permits_of_exclusive(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 1, batches=5)
    for number, kind in ((10, SUB.Exclusive), (11, SUB.Failover), (12, SUB.Key_Shared)):
        subscribe(link, topic, number, f"s{number}", kind)
        link.listen("active", quiet_s=1.5)
        for permits in (1, 1, 3, 1, 5, 5):
            link.say(f"flow {permits}", commands.flow(number, permits))
        link.say("stats", commands.consumer_stats(number, link.next_request()))


def _seek(link: RawConnection, topic: str, label: str, target: MessageId) -> None:
    link.say(label, commands.seek(10, link.next_request(), message_id=target))
    subscribe(link, topic, 10)
    link.say("flow", commands.flow(10, 30))
    link.say("mark", commands.get_last_message_id(10, link.next_request()))


@scenario
def seek_targets(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 3, batches=2)
    subscribe(link, topic)
    link.say("flow", commands.flow(10, 30))
    first = received(broker)[0]
    ledger = first.ledger_id
    for label, target in (
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("in a batch", MessageId(ledger, 3, batch_index=2, ack_set=(0b11100,), batch_size=5)),
        ("entry -1", MessageId(ledger, -1)),
        ("past the end", MessageId(ledger, 99)),
        ("just past the end", MessageId(ledger, 5)),
        ("later ledger", MessageId(ledger + 1_000_000, 0)),
        ("earlier ledger", MessageId(0, 3)),
    ):
        _seek(link, topic, label, target)
    link.say("neither", commands.seek(10, link.next_request()))


@scenario
def seek_of_many(broker: Recorder, topic: str) -> None:
    first, second = broker.connect(), broker.connect()
    fill(first, topic, 3)
    produce(second, topic, 2)
    subscribe(first, topic, 10, kind=SUB.Shared)
    subscribe(second, topic, 11, kind=SUB.Shared)
    first.say("flow", commands.flow(10, 2))
    second.say("flow", commands.flow(11, 2))
    first.say("seek", commands.seek(10, first.next_request(), message_id=EARLIEST))
    second.listen("other hears")
    second.say("flow closed", commands.flow(11, 2))
    second.say("ack closed", commands.ack(11, [EARLIEST], request_id=second.next_request()))
    second.say("close closed", commands.close_consumer(11, second.next_request()))
    subscribe(second, topic, 11, kind=SUB.Shared)
    second.say("flow again", commands.flow(11, 10))
    second.say(
        "two seeks",
        commands.seek(11, second.next_request(), message_id=EARLIEST),
        commands.seek(11, second.next_request(), publish_time_ms=0),
    )


@scenario
def seek_of_reader(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    link.say(
        "send", *(send(1, n, message(n)) for n in range(3)), send(1, 3, batch(3, 4), num_messages=4)
    )
    subscribe(link, topic, 10, "r", durable=False, start_message_id=EARLIEST)
    link.say("flow", commands.flow(10, 2))
    link.say("seek", commands.seek(10, link.next_request(), publish_time_ms=1))
    subscribe(link, topic, 10, "r", durable=False)
    link.say("flow", commands.flow(10, 20))
    link.say("mark", commands.get_last_message_id(10, link.next_request()))
    link.say(
        "ack", commands.ack(10, [received(broker)[-1]], CUMULATIVE, request_id=link.next_request())
    )
    link.say("mark", commands.get_last_message_id(10, link.next_request()))
