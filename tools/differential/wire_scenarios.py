"""Raw command sequences. Each scenario gets a broker and its own topic name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import batched_message, unbatched_message, with_wrong_checksum
from pulsemark.wire import MessageId, commands

from .peers import RawConnection, Recorder

Scenario = Callable[[Recorder, str], None]
SCENARIOS: dict[str, Scenario] = {}
SUB = pb.CommandSubscribe
PUBLISHED_MS = 1_700_000_000_000


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


def lookup(link: RawConnection, topic: str) -> None:
    """The commands that a client sends before PRODUCER and SUBSCRIBE."""
    link.say("partitions", commands.partitioned_metadata(topic, link.next_request()))
    link.say("lookup", commands.lookup(topic, link.next_request()))


def produce(link: RawConnection, topic: str, producer_id: int = 1, **options: Any) -> None:
    """Open a producer."""
    lookup(link, topic)
    link.say("producer", commands.producer(topic, producer_id, link.next_request(), **options))


def send(producer_id: int, sequence_id: int, body: bytes, **options: Any) -> bytes:
    """A SEND frame in one piece."""
    return b"".join(commands.send(producer_id, sequence_id, body, **options))


def message(sequence_id: int, payload: bytes = b"x", **options: Any) -> bytes:
    """An unbatched message."""
    return unbatched_message(
        payload,
        publish_time_ms=PUBLISHED_MS + sequence_id,
        sequence_id=sequence_id,
        producer_name="p",
        **options,
    )


def batch(sequence_id: int, count: int) -> bytes:
    """A batch of `count` messages."""
    return batched_message(
        [b"m"] * count,
        publish_time_ms=PUBLISHED_MS + sequence_id,
        sequence_id=sequence_id,
        producer_name="p",
    )


def fill(link: RawConnection, topic: str, count: int = 5, *, batches: int = 0) -> None:
    """Open producer 1 and send messages, then batches of 5."""
    produce(link, topic, producer_name="p")
    frames = [send(1, n, message(n)) for n in range(count)]
    frames += [
        send(
            1,
            count + 5 * n,
            batch(count + 5 * n, 5),
            num_messages=5,
            highest_sequence_id=count + 5 * n + 4,
        )
        for n in range(batches)
    ]
    link.say("send", *frames)


def subscribe(
    link: RawConnection,
    topic: str,
    consumer_id: int = 10,
    name: str = "s",
    kind: pb.CommandSubscribe.SubType = SUB.Exclusive,
    *,
    earliest: bool = True,
    **options: Any,
) -> None:
    """Open a consumer."""
    position = SUB.Earliest if earliest else SUB.Latest
    link.say(
        "subscribe",
        commands.subscribe(
            topic,
            name,
            consumer_id,
            link.next_request(),
            kind,
            initial_position=position,
            **options,
        ),
    )


def received(broker: Recorder) -> list[MessageId]:
    """The ids of the messages received so far in this scenario."""
    return [
        MessageId.from_data(body.message_id) for kind, body in broker.bodies if kind == "MESSAGE"
    ]


@scenario
def handshake(broker: Recorder, topic: str) -> None:
    link = broker.connect(handshake=False)
    link.say("ping before connect", commands.ping())
    link.say("connect", commands.connect("comparison", protocol_version=19))
    link.say("ping", commands.ping())
    link.say("second connect", commands.connect("comparison"))


@scenario
def producing(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    link.say("one", send(1, 0, message(0)))
    link.say("batch", send(1, 1, batch(1, 5), num_messages=5, highest_sequence_id=5))
    link.say("bad checksum", send(1, 6, with_wrong_checksum(message(6))))
    link.say("same sequence id again", send(1, 0, message(0)))
    link.say("zero messages", send(1, 7, message(7), num_messages=0))
    link.say("negative messages", send(1, 7, message(7), num_messages=-3))
    link.say("producer id again", commands.producer(topic, 1, link.next_request()))
    link.say("close", commands.close_producer(1, link.next_request()))
    link.say("close again", commands.close_producer(1, link.next_request()))
    link.say("send after close", send(1, 8, message(8)))


@scenario
def named_producers(broker: Recorder, topic: str) -> None:
    first, second = broker.connect(), broker.connect()
    produce(first, topic, producer_name="taken")
    produce(second, topic, producer_name="taken")
    first.close()
    produce(second, topic, 2, producer_name="taken")
    second.say(
        "same name on this connection",
        commands.producer(topic, 3, second.next_request(), producer_name="taken"),
    )


MODES = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait": pb.WaitForExclusive,
    "fencing": pb.ExclusiveWithFencing,
}


def _access_modes(held: pb.ProducerAccessMode, asked: pb.ProducerAccessMode) -> Scenario:
    def run(broker: Recorder, topic: str) -> None:
        first, second = broker.connect(), broker.connect()
        produce(first, topic, producer_name="a", access_mode=held)
        produce(second, topic, producer_name="b", access_mode=asked)
        first.listen("first hears")
        first.say("first sends", send(1, 0, message(0)))
        second.say("second sends", send(1, 0, message(0)))
        first.say("first closes", commands.close_producer(1, first.next_request()))
        second.listen("second hears")

    return run


SCENARIOS.update(
    {
        f"access_{held_name}_{asked_name}": _access_modes(held, asked)
        for held_name, held in MODES.items()
        for asked_name, asked in MODES.items()
    }
)


@scenario
def stale_topic_epoch(broker: Recorder, topic: str) -> None:
    first, second = broker.connect(), broker.connect()
    produce(first, topic, producer_name="a", access_mode=pb.Exclusive)
    produce(second, topic, producer_name="b", access_mode=pb.ExclusiveWithFencing)
    first.close()
    third = broker.connect()
    produce(third, topic, producer_name="a", access_mode=pb.Exclusive, topic_epoch=0)
    second.say("second sends", send(1, 0, message(0)))
    fourth = broker.connect()
    produce(fourth, topic, producer_name="c", access_mode=pb.ExclusiveWithFencing, topic_epoch=7)
    fourth.say("fourth sends", send(1, 0, message(0)))


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
def names(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    for name in (
        "persistent://public/absent/t",
        "persistent://absent/ns/t",
        "persistent://public/default/",
        "rubbish://public/default/t",
        f"{topic}-partition-0",
        f"{topic}-partition-x",
        "persistent://public/default/a/b",
        "persistent://public/default/ä",
    ):
        broker.record("name", name)
        link.say("partitions", commands.partitioned_metadata(name, link.next_request()))
        link.say(
            "no creation",
            commands.partitioned_metadata(
                name, link.next_request(), metadata_auto_creation_enabled=False
            ),
        )
        link.say("lookup", commands.lookup(name, link.next_request()))
        link.say("producer", commands.producer(name, 50, link.next_request()))
        if link.closed:
            link = broker.connect()
        link.say("close", commands.close_producer(50, link.next_request()))


@scenario
def topic_lists(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    modes = pb.CommandGetTopicsOfNamespace
    for mode in (modes.PERSISTENT, modes.NON_PERSISTENT, modes.ALL):
        link.say(
            "topics",
            commands.get_topics_of_namespace(
                "public/default", link.next_request(), mode, topics_pattern=f"{topic}.*"
            ),
        )
    link.say(
        "absent namespace", commands.get_topics_of_namespace("public/absent", link.next_request())
    )
    link.say(
        "watch", commands.watch_topic_list("public/default", link.next_request(), 1, f"{topic}.*")
    )
    produce(link, f"{topic}-more", 2)
    link.listen("update", quiet_s=1.0)
    link.say("end of watch", commands.watch_topic_list_close(link.next_request(), 1))


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


@scenario
def empty_topic(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10)
    link.say("last id", commands.get_last_message_id(10, link.next_request()))
    link.say("seek", commands.seek(10, link.next_request(), publish_time_ms=5))


@scenario
def transactions_off(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    body = pb.BaseCommand(type=pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST)
    encoded = body.SerializeToString()
    size = len(encoded).to_bytes(4, "big")
    link.say("transaction coordinator", (len(encoded) + 4).to_bytes(4, "big") + size + encoded)


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
