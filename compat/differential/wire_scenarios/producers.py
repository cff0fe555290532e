"""Producers: names, and the answers to SEND."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import seal, with_wrong_checksum
from pulsemark.wire import commands

from ..peers import Recorder
from .common import batch, lookup, message, produce, scenario, send, subscribe


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


@scenario
def send_errors(broker: Recorder, topic: str) -> None:
    for label, frame in (
        ("no magic", send(1, 0, message(0, checksum=False))),
        ("rubbish", send(1, 0, b"rubbish")),
        ("empty", send(1, 0, b"")),
        ("magic only", send(1, 0, b"\x0e\x01")),
        ("cut metadata", send(1, 0, seal(b"\x0a", b""))),
        ("required fields absent", send(1, 0, seal(b"", b"x"))),
        ("count differs", send(1, 0, batch(0, 5), num_messages=2)),
        ("sequence id differs", send(1, 5, message(9))),
        ("producer name differs", send(1, 6, message(6))),
        ("highest below first", send(1, 9, batch(9, 3), num_messages=3, highest_sequence_id=2)),
        (
            "chunk",
            send(
                1,
                10,
                message(10, uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=2),
                is_chunk=True,
            ),
        ),
        # The last one: a broker that stores it gives the later ones other ids.
        ("stamped", send(1, 0, b"\x0e\x02\x00\x00\x00\x02\x08\x01" + message(0))),
    ):
        link = broker.connect()
        produce(link, topic)
        link.say(label, frame)
        link.close()
    reader = broker.connect()
    subscribe(reader, topic)
    reader.say("flow", commands.flow(10, 100))


@scenario
def producer_ids(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic, producer_name="a", access_mode=pb.Exclusive)
    link.say("id again", commands.producer(topic, 1, link.next_request(), producer_name="b"))
    link.say("id for another topic", commands.producer(f"{topic}-2", 1, link.next_request()))
    link.say(
        "epoch again",
        commands.producer(
            topic, 1, link.next_request(), producer_name="a", epoch=3, access_mode=pb.Exclusive
        ),
    )
    link.say(
        "twice at once",
        commands.producer(topic, 2, link.next_request(), producer_name="c"),
        commands.producer(topic, 2, link.next_request(), producer_name="d"),
    )
    link.say(
        "name in use here", commands.producer(topic, 3, link.next_request(), producer_name="a")
    )
    link.say(
        "close and open",
        commands.close_producer(1, link.next_request()),
        commands.producer(topic, 1, link.next_request(), producer_name="a"),
    )
    link.say(
        "initial subscription",
        commands.producer(
            topic, 4, link.next_request(), producer_name="i", initial_subscription_name="first"
        ),
    )
    link.say(
        "negative id", commands.producer(topic, 2**64 - 1, link.next_request(), producer_name="n")
    )


@scenario
def name_returns(broker: Recorder, topic: str) -> None:
    """The same name with a higher epoch: the client has lost its connection, and returns."""
    for number, (epoch, user_named) in enumerate(((1, True), (0, True), (2, False), (0, False))):
        first, second = broker.connect(), broker.connect()
        name = f"{topic}-{number}"
        for link, its_epoch in ((first, 0), (second, epoch)):
            lookup(link, name)
            body = pb.CommandProducer(
                topic=name,
                producer_id=1,
                request_id=link.next_request(),
                producer_name="n",
                epoch=its_epoch,
                user_provided_producer_name=user_named,
            )
            link.say("producer", commands.frame(body))
        first.listen("first hears")
        first.say("first sends", send(1, 0, message(0)))
        second.say("second sends", send(1, 0, message(0)))


@scenario
def dead_owner(broker: Recorder, topic: str) -> None:
    """The owner of a name does not answer a ping: after 5 s the newcomer gets the name."""
    first, second = broker.connect(), broker.connect()
    produce(first, topic, producer_name="n")
    first.answers_pings = False
    lookup(second, topic)
    second.say("newcomer", commands.producer(topic, 1, second.next_request(), producer_name="n"))
    first.listen("owner")
    second.listen("newcomer hears", quiet_s=2.0)


@scenario
def unloaded_producer(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic, producer_name="n")
    link.say("before", send(1, 0, message(0)))
    broker.rest("PUT", f"/admin/v2/persistent/{topic.partition('://')[2]}/unload", quiet=True)
    link.listen("closed by the broker", quiet_s=2.0)
    link.say("send after", send(1, 1, message(1)))
    produce(link, topic, producer_name="n", epoch=1)
    link.say("send again", send(1, 1, message(1)))
