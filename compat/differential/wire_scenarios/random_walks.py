"""Commands in random orders, the same for both brokers: what nobody thought of.

Each walk has a seed and a kind of subscription. It sends messages and batches, grants permits,
acknowledges, asks again for messages, seeks, closes, subscribes again, and asks for last ids, figures
and statistics. Messages are named by the order in which they arrived. After the first difference of a
walk the following ones may be its consequences. And which consumer of Shared gets a message depends
on how Pulsar's threads run. So walks are not part of the ordinary run: they show where to look.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import MessageId, commands

from ..peers import RawConnection, Recorder
from .common import SUB, Scenario, batch, lookup, message, produce, received, send

STEPS = 30
CONSUMERS = (10, 11)
CUMULATIVE = pb.CommandAck.Cumulative
FAR_MS = 1 << 61


class Walk:
    """One walk: its connection, what it has sent, and what it may do next."""

    def __init__(self, broker: Recorder, topic: str, kind: SUB.SubType, seed: int) -> None:
        self.broker, self.topic, self.kind = broker, topic, kind
        self.random = Random(f"{kind} {seed}")
        self.link: RawConnection = broker.connect()
        self.sequence = 0
        self.path = f"/admin/v2/{topic.replace('://', '/')}"
        self.quiet_s = 1.6 if kind == SUB.Failover else 0.5

    def run(self) -> None:
        """Open everything, then take the steps."""
        produce(self.link, self.topic, producer_name="p")
        for consumer_id in CONSUMERS:
            self.subscribe(consumer_id)
        for number in range(STEPS):
            step = self.random.choice(ACTIONS)
            if self.link.closed:
                self.reconnect()
            step(self, f"{number} {step.__name__}")

    def reconnect(self) -> None:
        """The broker has closed the connection."""
        self.link = self.broker.connect()
        produce(self.link, self.topic, producer_name="p")
        for consumer_id in CONSUMERS:
            self.subscribe(consumer_id)

    def subscribe(self, consumer_id: int) -> None:
        """Open a consumer; its name decides which one is active."""
        lookup(self.link, self.topic)
        self.say(
            "subscribe",
            commands.subscribe(
                self.topic,
                "s",
                consumer_id,
                self.link.next_request(),
                self.kind,
                consumer_name=f"c{consumer_id}",
                initial_position=SUB.Earliest,
            ),
        )

    def say(self, label: str, *frames: bytes) -> None:
        """Send, and record what comes."""
        self.link.say(label, *frames, quiet_s=self.quiet_s)

    def some(self, most: int = 3) -> list[MessageId]:
        """Some of the last messages that arrived."""
        found = received(self.broker)[-12:]
        return self.random.sample(found, min(len(found), self.random.randint(1, most)))

    def consumer(self) -> int:
        """One of the consumers' ids."""
        return self.random.choice(CONSUMERS)


def publish(walk: Walk, label: str) -> None:
    frames = []
    for _ in range(walk.random.randint(1, 3)):
        count = walk.random.choice((1, 1, 3))
        first = walk.sequence
        walk.sequence += count
        key = f"k{walk.random.randrange(3)}"
        if count == 1:
            frames.append(send(1, first, message(first, key=key)))
        else:
            last = first + count - 1
            frames.append(
                send(1, first, batch(first, count), num_messages=count, highest_sequence_id=last)
            )
    walk.say(label, *frames)


def flow(walk: Walk, label: str) -> None:
    walk.say(label, commands.flow(walk.consumer(), walk.random.randint(1, 6)))


def acknowledge(walk: Walk, label: str) -> None:
    request = walk.link.next_request()
    walk.say(label, commands.ack(walk.consumer(), walk.some(), request_id=request))


def acknowledge_cumulatively(walk: Walk, label: str) -> None:
    request = walk.link.next_request()
    walk.say(label, commands.ack(walk.consumer(), walk.some(1), CUMULATIVE, request_id=request))


def redeliver(walk: Walk, label: str) -> None:
    walk.say(label, commands.redeliver_unacknowledged_messages(walk.consumer(), walk.some()))


def redeliver_all(walk: Walk, label: str) -> None:
    walk.say(label, commands.redeliver_unacknowledged_messages(walk.consumer()))


def seek(walk: Walk, label: str) -> None:
    targets = walk.some(1) or [MessageId(-1, -1)]
    request = walk.link.next_request()
    walk.say(label, commands.seek(walk.consumer(), request, message_id=targets[0]))
    for consumer_id in CONSUMERS:
        walk.subscribe(consumer_id)


def seek_by_time(walk: Walk, label: str) -> None:
    time_ms = walk.random.choice((0, FAR_MS))
    request = walk.link.next_request()
    walk.say(label, commands.seek(walk.consumer(), request, publish_time_ms=time_ms))
    for consumer_id in CONSUMERS:
        walk.subscribe(consumer_id)


def close(walk: Walk, label: str) -> None:
    consumer_id = walk.consumer()
    walk.say(label, commands.close_consumer(consumer_id, walk.link.next_request()))
    walk.subscribe(consumer_id)


def unsubscribe(walk: Walk, label: str) -> None:
    walk.say(label, commands.unsubscribe(walk.consumer(), walk.link.next_request()))
    for consumer_id in CONSUMERS:
        walk.subscribe(consumer_id)


def last_id(walk: Walk, label: str) -> None:
    walk.say(label, commands.get_last_message_id(walk.consumer(), walk.link.next_request()))


def figures(walk: Walk, label: str) -> None:
    walk.say(label, commands.consumer_stats(walk.consumer(), walk.link.next_request()))


def statistics(walk: Walk, label: str) -> None:
    walk.broker.rest("GET", f"{walk.path}/stats", label=label)
    walk.broker.rest("GET", f"{walk.path}/internalStats", label=f"{label}, internal")


def skip(walk: Walk, label: str) -> None:
    count = walk.random.randint(1, 3)
    walk.broker.rest("POST", f"{walk.path}/subscription/s/skip/{count}", label=label)


def skip_all(walk: Walk, label: str) -> None:
    walk.broker.rest("POST", f"{walk.path}/subscription/s/skip_all", label=label)


ACTIONS: tuple[Callable[[Walk, str], None], ...] = (
    *(publish, flow, flow, acknowledge) * 3,
    acknowledge_cumulatively,
    redeliver,
    redeliver_all,
    seek,
    seek_by_time,
    close,
    unsubscribe,
    last_id,
    figures,
    statistics,
    statistics,
    skip,
    skip_all,
)


def _in_own_namespace(broker: Recorder, topic: str) -> str:
    """The topic in a namespace that no other user of the peer has changed."""
    name = topic.rpartition("/")[2]
    broker.rest("PUT", f"/admin/v2/namespaces/public/{name}", quiet=True)
    return f"persistent://public/{name}/t"


def _walk(kind: SUB.SubType, seed: int) -> Callable[[Recorder, str], None]:
    return lambda broker, topic: Walk(broker, _in_own_namespace(broker, topic), kind, seed).run()


KINDS = {
    "exclusive": SUB.Exclusive,
    "shared": SUB.Shared,
    "failover": SUB.Failover,
    "key_shared": SUB.Key_Shared,
}


def walks(seeds: range) -> dict[str, Scenario]:
    """The walks with these seeds, for each kind of subscription."""
    return {
        f"walk_{name}_{seed}": _walk(kind, seed) for seed in seeds for name, kind in KINDS.items()
    }
