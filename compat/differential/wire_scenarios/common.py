"""What the scenarios share: their table, and the steps of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import batched_message, unbatched_message
from pulsemark.wire import MessageId, commands

from ..peers import QUIET_S, RawConnection, Recorder

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


def message(sequence_id: int, payload: bytes | None = b"x", **options: Any) -> bytes:
    """An unbatched message; payload None is a null value."""
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
        # Failover consumers become active after a second.
        quiet_s=1.8 if kind == SUB.Failover else QUIET_S,
    )


def received(broker: Recorder) -> list[MessageId]:
    """The ids of the messages received so far in this scenario."""
    return [
        MessageId.from_data(body.message_id) for kind, body in broker.bodies if kind == "MESSAGE"
    ]
