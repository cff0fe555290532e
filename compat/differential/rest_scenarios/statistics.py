"""A topic's statistics in the states that clients bring about."""

from __future__ import annotations

import time
from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import EARLIEST, MessageId, commands

from ..peers import RawConnection, Recorder
from ..wire_scenarios.common import (
    SUB,
    batch,
    fill,
    lookup,
    message,
    produce,
    received,
    send,
    subscribe,
)
from .registry import ADMIN, path_of, scenario, unique

KINDS = {
    "exclusive": SUB.Exclusive,
    "shared": SUB.Shared,
    "failover": SUB.Failover,
    "key": SUB.Key_Shared,
}
CUMULATIVE = pb.CommandAck.Cumulative


def stats(broker: Recorder, topic: str, label: str) -> None:
    """Record a topic's statistics, and the internal ones."""
    query = "?getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true"
    broker.rest("GET", f"{path_of(topic)}/stats", label=f"stats {label}")
    broker.rest("GET", f"{path_of(topic)}/stats{query}", label=f"precise stats {label}")
    broker.rest("GET", f"{path_of(topic)}/internalStats", label=f"internal stats {label}")


def policy(broker: Recorder, topic: str, name: str, value: Any, method: str = "POST") -> None:
    """Set a policy of a topic, and wait until the peer has stored it."""
    broker.rest(method, f"{path_of(topic)}/{name}", value, label=f"set {name}")
    time.sleep(1.0)


def keyed(link: RawConnection, count: int, first: int = 0) -> None:
    """Send messages, each with a key of its own."""
    numbers = range(first, first + count)
    link.say("keyed", *(send(1, n, message(n, key=f"k{n}")) for n in numbers))


@scenario
def stats_of_types(broker: Recorder, topic: str) -> None:
    """Each type: nothing yet, some delivered, some acknowledged, given back, closed."""
    for name, kind in KINDS.items():
        here = f"{topic}-{name}"
        link = broker.connect()
        fill(link, here, 4, batches=1)
        stats(broker, here, f"{name} published")
        subscribe(link, here, 10, "s", kind, consumer_name="c", properties={"a": "b"})
        stats(broker, here, f"{name} subscribed")
        link.say("flow", commands.flow(10, 20), quiet_s=1.2)
        ids = received(broker)[-5:]
        stats(broker, here, f"{name} delivered")
        link.say("ack", commands.ack(10, ids[1:2], request_id=link.next_request()))
        stats(broker, here, f"{name} acknowledged")
        link.say(
            "ack cumulatively",
            commands.ack(10, ids[2:3], CUMULATIVE, request_id=link.next_request()),
        )
        stats(broker, here, f"{name} acknowledged cumulatively")
        link.say("redeliver", commands.redeliver_unacknowledged_messages(10), quiet_s=1.2)
        stats(broker, here, f"{name} given back")
        subscribe(link, here, 11, "s", kind, consumer_name="d")
        stats(broker, here, f"{name} with another")
        link.say("close", commands.close_consumer(10, link.next_request()), quiet_s=1.2)
        stats(broker, here, f"{name} one closed")
        link.say("close", commands.close_consumer(11, link.next_request()))
        stats(broker, here, f"{name} all closed")
        link.close()


@scenario
def stats_of_waiting_messages(broker: Recorder, topic: str) -> None:
    """Delayed messages, messages given back to a consumer without permits, and blocked consumers."""
    link = broker.connect()
    produce(link, topic, producer_name="p")
    subscribe(link, topic, 10, "shared", SUB.Shared, consumer_name="c")
    subscribe(link, topic, 11, "key", SUB.Key_Shared, consumer_name="c")
    link.say("flow", commands.flow(10, 3), commands.flow(11, 3))
    later_ms = int(time.time() * 1000) + 600_000
    frames = [send(1, n, message(n, deliver_at_time=later_ms)) for n in range(2)]
    link.say("delayed", *frames)
    stats(broker, topic, "delayed")
    keyed(link, 3, 2)
    stats(broker, topic, "without permits")
    ids = received(broker)
    for number in (10, 11):
        link.say("nack", commands.redeliver_unacknowledged_messages(number, ids))
    stats(broker, topic, "given back")
    link.say("flow", commands.flow(10, 1), commands.flow(11, 1))
    stats(broker, topic, "one more permit")


@scenario
def stats_of_blocked_consumers(broker: Recorder, topic: str) -> None:
    """Limits of unacknowledged messages, of a consumer and of a subscription."""
    for name in ("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"):
        here = f"{topic}-{name[-8:]}"
        link = broker.connect()
        produce(link, here, producer_name="p")
        policy(broker, here, name, 2)
        subscribe(link, here, 10, "shared", SUB.Shared, consumer_name="c")
        link.say("flow", commands.flow(10, 20))
        link.say("send", *(send(1, n, message(n)) for n in range(2)))
        stats(broker, here, f"{name} at the limit")
        link.say("send", *(send(1, n, message(n)) for n in range(2, 4)))
        stats(broker, here, f"{name} beyond the limit")
        ids = received(broker)[-2:]
        link.say("ack", commands.ack(10, ids, request_id=link.next_request()))
        stats(broker, here, f"{name} after the acknowledgement")
        link.close()


@scenario
def stats_of_keys(broker: Recorder, topic: str) -> None:
    """Key_Shared while keys move from one consumer to others, and sticky ranges."""
    link = broker.connect()
    produce(link, topic, producer_name="p")
    subscribe(link, topic, 10, "k", SUB.Key_Shared, consumer_name="a")
    link.say("flow", commands.flow(10, 100))
    keyed(link, 12)
    subscribe(link, topic, 11, "k", SUB.Key_Shared, consumer_name="b")
    link.say("flow", commands.flow(11, 100))
    stats(broker, topic, "joined")
    keyed(link, 12, 12)
    link.say("the same keys", *(send(1, 24 + n, message(24 + n, key=f"k{n}")) for n in range(12)))
    stats(broker, topic, "the same keys")
    ids = received(broker)[:12]
    link.say("ack half", commands.ack(10, ids[:6], request_id=link.next_request()))
    stats(broker, topic, "half acknowledged")
    link.say("ack all", commands.ack(10, ids[6:], request_id=link.next_request()))
    stats(broker, topic, "acknowledged")
    link.say("close", commands.close_consumer(10, link.next_request()))
    stats(broker, topic, "one left")
    sticky = pb.KeySharedMeta(keySharedMode=pb.STICKY, allowOutOfOrderDelivery=True)
    for number, (start, end) in enumerate(((0, 1000), (2000, 65535))):
        own = pb.KeySharedMeta()
        own.CopyFrom(sticky)
        own.hashRanges.add(start=start, end=end)
        subscribe(link, topic, 20 + number, "sticky", SUB.Key_Shared, keySharedMeta=own)
    stats(broker, topic, "sticky")


@scenario
def stats_of_chunks(broker: Recorder, topic: str) -> None:
    """Chunks, batches, keys, compressed and encrypted messages, and what a producer shows."""
    link = broker.connect()
    produce(link, topic, producer_name="p", properties={"x": "y"})
    subscribe(link, topic, 10, "s", SUB.Shared, consumer_name="c")
    frames = [
        message(0, uuid="u", num_chunks_from_msg=2, chunk_id=n, total_chunk_msg_size=2)
        for n in range(2)
    ]
    link.say("chunks", *(send(1, 0, frame, is_chunk=True) for frame in frames))
    stats(broker, topic, "chunks")
    link.say("batch", send(1, 1, batch(1, 5), num_messages=5, highest_sequence_id=5))
    link.say("flow", commands.flow(10, 20))
    stats(broker, topic, "all")


@scenario
def stats_of_access_modes(broker: Recorder, topic: str) -> None:
    """Producers of each access mode, and one that waits."""
    for name, mode in pb.ProducerAccessMode.items():
        here = f"{topic}-{name}"
        link = broker.connect()
        produce(link, here, 1, producer_name="p", access_mode=mode)
        link.say("send", send(1, 0, message(0)))
        link.say(
            "waits",
            commands.producer(here, 2, link.next_request(), access_mode=pb.WaitForExclusive),
        )
        stats(broker, here, name)
        link.say("close", commands.close_producer(1, link.next_request()))
        stats(broker, here, f"{name} closed")
        link.close()


@scenario
def stats_of_positions(broker: Recorder, topic: str) -> None:
    """Seeks, resets, skips, expiry, unloading, termination, truncation, compaction."""
    link = broker.connect()
    fill(link, topic, 6)
    subscribe(link, topic, 10, "s", SUB.Shared, consumer_name="c")
    link.say("flow", commands.flow(10, 3))
    ids = received(broker)
    link.say("ack", commands.ack(10, ids[1:2], request_id=link.next_request()))
    link.say("close", commands.close_consumer(10, link.next_request()))
    one = f"{path_of(topic)}/subscription/s"
    broker.rest("POST", f"{one}/skip/1", label="skip")
    stats(broker, topic, "skipped")
    broker.rest("POST", f"{one}/resetcursor/0", label="reset to the beginning")
    stats(broker, topic, "reset")
    broker.rest("POST", f"{one}/skip/2", label="skip two")
    broker.rest("POST", f"{one}/expireMessages/0", label="expire 0")
    time.sleep(2.5)
    broker.rest("POST", f"{one}/expireMessages/1", label="expire")
    time.sleep(0.5)
    stats(broker, topic, "expired")
    subscribe(link, topic, 11, "reader", durable=False, start_message_id=EARLIEST)
    link.say("flow", commands.flow(11, 2))
    stats(broker, topic, "with a reader")
    link.say("seek", commands.seek(11, link.next_request(), message_id=ids[2]))
    stats(broker, topic, "reader gone")
    broker.rest("POST", f"{one}/skip_all", label="clear")
    stats(broker, topic, "cleared")
    broker.rest("PUT", f"{path_of(topic)}/compaction", label="compact")
    time.sleep(2.0)
    broker.rest("GET", f"{path_of(topic)}/compaction", label="compaction")
    broker.rest("GET", f"{path_of(topic)}/lastMessageId", label="last id")
    broker.rest("POST", f"{path_of(topic)}/terminate", label="terminate")
    stats(broker, topic, "terminated")


@scenario
def stats_of_policies(broker: Recorder, topic: str) -> None:
    """Quotas, retention, deduplication, publish rates: what statistics show of them."""
    link = broker.connect()
    fill(link, topic, 2)
    subscribe(link, topic, 10, "s", SUB.Shared, consumer_name="c")
    for kind, value in (
        ("destination_storage", {"limitSize": 1000000, "policy": "producer_exception"}),
        ("message_age", {"limitTime": 500, "policy": "consumer_backlog_eviction"}),
    ):
        broker.rest(
            "POST",
            f"{path_of(topic)}/backlogQuota?backlogQuotaType={kind}",
            value,
            label=f"quota {kind}",
        )
    time.sleep(1.0)
    stats(broker, topic, "quotas")
    policy(broker, topic, "deduplicationEnabled", True)
    link.say("send", send(1, 7, message(7)), send(1, 7, message(7)))
    stats(broker, topic, "deduplication")
    namespace = f"public/{unique(topic)}"
    broker.rest("PUT", f"{ADMIN}/namespaces/{namespace}", quiet=True)
    quota = {"limitSize": 5000, "limitTime": 77, "policy": "producer_request_hold"}
    broker.rest("POST", f"{ADMIN}/namespaces/{namespace}/backlogQuota", quota, label="namespace")
    other = f"persistent://{namespace}/t"
    fill(link, other, 2)
    stats(broker, other, "namespace's quota")
    broker.rest("GET", f"{ADMIN}/namespaces/{namespace}/backlogQuotaMap", label="quotas")


@scenario
def stats_of_partitions(broker: Recorder, topic: str) -> None:
    """A partitioned topic's sums with producers and consumers of each type."""
    base = path_of(topic)
    broker.rest("PUT", f"{base}/partitions", 2, quiet=True)
    link = broker.connect()
    for partition in range(2):
        name = f"{topic}-partition-{partition}"
        lookup(link, name)
        number = 1 + partition
        link.say(
            "producer", commands.producer(name, number, link.next_request(), producer_name="p")
        )
        link.say("send", *(send(number, n, message(n)) for n in range(3)))
        for at, (kind, sub_type) in enumerate(KINDS.items()):
            subscribe(link, name, 10 * number + at, kind, sub_type, consumer_name="c")
            link.say("flow", commands.flow(10 * number + at, 2), quiet_s=1.2)
    for query in (
        "",
        "?perPartition=false",
        "?getPreciseBacklog=true&subscriptionBacklogSize=true",
    ):
        broker.rest("GET", f"{base}/partitioned-stats{query}", label=f"partitioned {query}")
    for query in ("?excludePublishers=true", "?excludeConsumers=true"):
        broker.rest("GET", f"{base}/partitioned-stats{query}", label=f"partitioned {query}")
        broker.rest("GET", f"{base}-partition-0/stats{query}", label=f"partition {query}")
    broker.rest("GET", f"{base}/partitioned-internalStats", label="partitioned internal")
    broker.rest("GET", f"{base}-partition-0/stats", label="partition 0")
    broker.rest("GET", f"{base}/subscriptions", label="subscriptions")
    request = link.next_request()
    last = MessageId(-1, -1)
    link.say("ack nothing", commands.ack(10, [last], request_id=request))
    broker.rest("GET", f"{base}/subscription/shared/properties", label="properties")
    broker.rest("POST", f"{base}/subscription/shared/skip_all", label="clear")
    broker.rest("GET", f"{base}/partitioned-stats", label="partitioned, cleared")
