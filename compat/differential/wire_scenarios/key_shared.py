"""Key_Shared: which consumer gets which key, and the order of each key."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from ..peers import RawConnection, Recorder
from .common import SUB, lookup, message, produce, received, scenario, send, subscribe

STICKY = pb.STICKY


def ranges(*pairs: tuple[int, int], disorder: bool = False) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=STICKY,
        hashRanges=[pb.IntRange(start=start, end=end) for start, end in pairs],
        allowOutOfOrderDelivery=disorder,
    )


def keyed(link: RawConnection, topic: str, keys: list[str], first: int = 0) -> None:
    frames = [
        send(1, first + n, message(first + n, partition_key_b64_encoded=False, key=key))
        for n, key in enumerate(keys)
    ]
    link.say("send", *frames)


@scenario
def sticky_ranges(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    for number, meta in enumerate(
        (
            ranges((0, 30000)),
            ranges((30000, 65535)),
            ranges((30001, 40000), (50000, 65535)),
            ranges((40001, 49999)),
            ranges(),
            ranges((5, 3)),
            ranges((-1, 3)),
            ranges((65536, 65537)),
            ranges((1, 5), (4, 6)),
            pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT),
            ranges((0, 1), disorder=True),
        )
    ):
        subscribe(
            link,
            topic,
            10 + number,
            "s",
            SUB.Key_Shared,
            keySharedMeta=meta,
            consumer_name=f"c{number}",
        )
    produce(link, topic)
    keyed(link, topic, [f"key-{n}" for n in range(20)])
    for consumer in range(10, 21):
        link.say("flow", commands.flow(consumer, 100))


@scenario
def sticky_invalid_first(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    for number, meta in enumerate(
        (
            ranges(),
            ranges((5, 3)),
            ranges((-1, 3)),
            ranges((65536, 65537)),
            ranges((1, 5), (4, 6)),
            ranges((0, 70000)),
        )
    ):
        subscribe(link, topic, 10 + number, f"s{number}", SUB.Key_Shared, keySharedMeta=meta)
        link.say("stats", commands.get_last_message_id(10 + number, link.next_request()))


@scenario
def sticky_uncovered(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10, "s", SUB.Key_Shared, keySharedMeta=ranges((0, 32767)))
    keyed(link, topic, [f"key-{n}" for n in range(20)])
    link.say("flow", commands.flow(10, 100))
    subscribe(link, topic, 11, "s", SUB.Key_Shared, keySharedMeta=ranges((32768, 65535)))
    link.say("flow the rest", commands.flow(11, 100))


@scenario
def auto_split(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    for number, name in enumerate(("a", "b", "c")):
        subscribe(link, topic, 10 + number, "s", SUB.Key_Shared, consumer_name=name)
    keyed(link, topic, [f"key-{n % 30}" for n in range(60)])
    for number in range(3):
        link.say("flow", commands.flow(10 + number, 100))
    link.say("close b", commands.close_consumer(11, link.next_request()), quiet_s=1.0)


@scenario
def auto_split_same_names(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    for number in range(3):
        subscribe(link, topic, 10 + number, "s", SUB.Key_Shared)
    keyed(link, topic, [f"key-{n}" for n in range(30)])
    for number in range(3):
        link.say("flow", commands.flow(10 + number, 100))


@scenario
def key_order_when_one_comes(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10, "s", SUB.Key_Shared, consumer_name="a")
    keys = [f"key-{n % 10}" for n in range(20)]
    keyed(link, topic, keys)
    link.say("a flows", commands.flow(10, 100))
    ids = received(broker)
    subscribe(link, topic, 11, "s", SUB.Key_Shared, consumer_name="b")
    link.say("b flows", commands.flow(11, 100))
    keyed(link, topic, keys, 20)
    link.say("half acked", *(commands.ack(10, [one]) for one in ids[:10]), quiet_s=1.0)
    link.say("all acked", *(commands.ack(10, [one]) for one in ids[10:]), quiet_s=1.0)


@scenario
def key_order_when_one_goes(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    for number, name in enumerate(("a", "b")):
        subscribe(link, topic, 10 + number, "s", SUB.Key_Shared, consumer_name=name)
    keys = [f"key-{n % 10}" for n in range(20)]
    keyed(link, topic, keys)
    link.say("a flows", commands.flow(10, 100))
    link.say("b flows", commands.flow(11, 3))
    link.say("a closes", commands.close_consumer(10, link.next_request()), quiet_s=1.0)
    link.say("b flows more", commands.flow(11, 100))


@scenario
def key_sources(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    produce(link, topic)
    subscribe(link, topic, 10, "s", SUB.Key_Shared, keySharedMeta=ranges((0, 32767)))
    subscribe(link, topic, 11, "s", SUB.Key_Shared, keySharedMeta=ranges((32768, 65535)))
    frames = [
        message(0, key="k1"),
        message(1, key="azE=", partition_key_b64_encoded=True),
        message(2, key="k1", ordering_key=b"other"),
        message(3, ordering_key=b""),
        message(4, key=""),
        message(5),
        message(6),
        message(7, key="ä"),
    ]
    link.say("send", *(send(1, n, frame) for n, frame in enumerate(frames)))
    link.say("flow first", commands.flow(10, 100))
    link.say("flow second", commands.flow(11, 100))
