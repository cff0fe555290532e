"""Every command in the states of a connection: before CONNECT, with unknown ids, out of place."""

from __future__ import annotations

from typing import Any

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import MessageId, commands

from ..peers import Recorder
from .common import SUB, batch, lookup, message, produce, received, scenario, send, subscribe

STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")


def every_command(topic: str) -> dict[str, bytes]:
    """A frame of each command that a client may send."""
    return {
        "partitioned metadata": commands.partitioned_metadata(topic, 1),
        "lookup": commands.lookup(topic, 2),
        "lookup with a listener": commands.lookup(topic, 3, advertised_listener_name="x"),
        "authoritative lookup": commands.lookup(topic, 4, authoritative=True),
        "producer": commands.producer(topic, 5, 5),
        "send": send(5, 0, message(0)),
        "subscribe": commands.subscribe(topic, "s", 6, 6),
        "flow": commands.flow(6, 1),
        "ack": commands.ack(6, [MessageId(1, 1)], request_id=7),
        "ack without request id": commands.ack(6, [MessageId(1, 1)]),
        "redeliver": commands.redeliver_unacknowledged_messages(6),
        "seek": commands.seek(6, 8, publish_time_ms=1),
        "last id": commands.get_last_message_id(6, 9),
        "stats": commands.consumer_stats(6, 10),
        "unsubscribe": commands.unsubscribe(6, 11),
        "close consumer": commands.close_consumer(6, 12),
        "close producer": commands.close_producer(5, 13),
        "get schema": commands.get_schema(topic, 14),
        "get or create schema": commands.get_or_create_schema(topic, 15, STRING),
        "topics": commands.get_topics_of_namespace("public/absent", 16),
        "watch": commands.watch_topic_list("public/absent", 17, 1, "x.*"),
        "watch close": commands.watch_topic_list_close(18, 1),
        "pong": commands.PONG,
        "ping": commands.PING,
    }


def answers_of_a_broker() -> dict[str, bytes]:
    """Commands that only a broker sends."""
    return {
        name: commands.frame(body)
        for name, body in (
            ("success", pb.CommandSuccess(request_id=1)),
            ("error", pb.CommandError(request_id=1, error=pb.UnknownError, message="")),
            ("connected", pb.CommandConnected(server_version="x", protocol_version=19)),
            ("producer success", pb.CommandProducerSuccess(request_id=1, producer_name="x")),
            ("receipt", pb.CommandSendReceipt(producer_id=1, sequence_id=1)),
            ("end of topic", pb.CommandReachedEndOfTopic(consumer_id=1)),
            ("active consumer", pb.CommandActiveConsumerChange(consumer_id=1)),
            ("ack response", pb.CommandAckResponse(consumer_id=1, request_id=1)),
        )
    }


@scenario
def before_connect(broker: Recorder, topic: str) -> None:
    for label, frame in every_command(topic).items():
        link = broker.connect(handshake=False)
        link.say(label, frame)
        link.close()


@scenario
def with_unknown_ids(broker: Recorder, topic: str) -> None:
    for label, frame in every_command(f"{topic}-absent").items():
        if label in {"producer", "subscribe", "lookup", "partitioned metadata"}:
            continue
        link = broker.connect()
        link.say(label, frame)
        link.say("ping", commands.PING)
        link.close()


@scenario
def commands_of_brokers(broker: Recorder, topic: str) -> None:
    for label, frame in answers_of_a_broker().items():
        link = broker.connect()
        link.say(label, frame)
        link.say("ping", commands.PING)
        link.close()


@scenario
def protocol_versions(broker: Recorder, topic: str) -> None:
    for version in (-1, 0, 1, 5, 8, 12, 13, 15, 17, 18, 19, 20, 21, 22, 99):
        link = broker.connect(handshake=False)
        link.say(f"version {version}", commands.connect("c", protocol_version=version))
        link.say("metadata", commands.partitioned_metadata(topic, 1))
        link.say("last id", commands.get_last_message_id(5, 2))
        link.close()


@scenario
def feature_flags(broker: Recorder, topic: str) -> None:
    names = [field.name for field in pb.FeatureFlags.DESCRIPTOR.fields]
    for chosen in ([], *([name] for name in names), names):
        flags = pb.FeatureFlags(**dict.fromkeys(chosen, True))
        link = broker.connect(handshake=False)
        link.say(f"flags {chosen}", commands.connect("c", feature_flags=flags))
        link.close()


@scenario
def connect_fields(broker: Recorder, topic: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "proxy": {"proxy_to_broker_url": "localhost:6650"},
        "original principal": {"original_principal": "me"},
        "unknown method": {"auth_method_name": "zzz", "auth_data": b"x"},
        "token": {"auth_method_name": "token", "auth_data": b"x"},
        "none": {"auth_method_name": "none"},
    }
    for label, options in cases.items():
        link = broker.connect(handshake=False)
        link.say(label, commands.connect("c", **options))
        link.say("ping", commands.PING)
        link.close()
    link = broker.connect(handshake=False)
    link.say("empty version", commands.connect(""))


@scenario
def closed_things(broker: Recorder, topic: str) -> None:
    """Commands for a consumer and a producer after they were closed."""
    for label, frame in every_command(topic).items():
        if label in {"producer", "subscribe"}:
            continue
        link = broker.connect()
        produce(link, topic, 5)
        subscribe(link, topic, 6)
        link.say("close producer", commands.close_producer(5, link.next_request()))
        link.say("close consumer", commands.close_consumer(6, link.next_request()))
        link.say(label, frame)
        link.close()


@scenario
def names_of_all_kinds(broker: Recorder, topic: str) -> None:
    names = (
        "",
        "x",
        "public/default/x",
        "persistent://",
        "persistent://public",
        "persistent://public/default",
        "persistent://public/default/",
        "persistent:///default/x",
        "persistent://public//x",
        "absent://public/default/x",
        "persistent://absent/default/x",
        "persistent://public/absent/x",
        f"{topic} space",
        f"{topic}?a=b#c",
        f"{topic}-partition-",
        f"{topic}-partition--1",
        f"{topic}-partition-01",
        f"{topic}-partition-99999999999",
        f"{topic}-DLQ",
        f"{topic}%2Fx",
    )
    for name in names:
        broker.record("name", name.replace(topic, "T"))
        link = broker.connect()
        link.say("partitions", commands.partitioned_metadata(name, 1))
        link.say("lookup", commands.lookup(name, 2))
        link.say("producer", commands.producer(name, 1, 3))
        link.say("subscribe", commands.subscribe(name, "s", 1, 4))
        link.say("schema", commands.get_schema(name, 5))
        link.close()


@scenario
def namespaces_of_all_kinds(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    for name in ("", "public", "public/", "/default", "a/b/c/d", "public/a b", "public/default/x"):
        link.say(f"topics {name!r}", commands.get_topics_of_namespace(name, link.next_request()))
        if link.closed:
            link = broker.connect()
        link.say(f"watch {name!r}", commands.watch_topic_list(name, link.next_request(), 1, "x.*"))
        if link.closed:
            link = broker.connect()


@scenario
def types_switched(broker: Recorder, topic: str) -> None:
    """A subscription that was of one type is used with another, with messages left."""
    link = broker.connect()
    produce(link, topic, 1, producer_name="p")
    link.say("send", *(send(1, n, message(n, key=str(n))) for n in range(4)))
    link.say("a batch", send(1, 4, batch(4, 3), num_messages=3, highest_sequence_id=6))
    number = 10
    kinds = (SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared)
    for before in kinds:
        for after in kinds:
            name = f"s{number}"
            subscribe(link, topic, number, name, before)
            link.say("flow", commands.flow(number, 2), quiet_s=1.2)
            got = received(broker)[-1:]
            link.say("ack the last", commands.ack(number, got, request_id=link.next_request()))
            link.say("close", commands.close_consumer(number, link.next_request()))
            subscribe(link, topic, number + 1, name, after)
            link.say("flow again", commands.flow(number + 1, 10), quiet_s=1.2)
            link.say("close", commands.close_consumer(number + 1, link.next_request()))
            number += 2


@scenario
def seeks_of_types(broker: Recorder, topic: str) -> None:
    """Seek by id and by time on each type; the counts, and what is acknowledged afterwards."""
    owner = broker.connect()
    produce(owner, topic, 1, producer_name="p")
    owner.say("send", *(send(1, n, message(n, key=str(n))) for n in range(4)))
    for kind in (SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared):
        link = broker.connect()
        name = f"s{int(kind)}"
        lookup(link, topic)
        subscribe(link, topic, 10, name, kind)
        link.say("flow", commands.flow(10, 10), quiet_s=1.2)
        ids = received(broker)[-4:]
        link.say("ack two", commands.ack(10, ids[1:3], request_id=link.next_request()))
        link.say("nack", commands.redeliver_unacknowledged_messages(10, ids[3:]))
        link.say("to the second", commands.seek(10, link.next_request(), message_id=ids[1]))
        subscribe(link, topic, 10, name, kind)
        link.say("flow", commands.flow(10, 10), quiet_s=1.2)
        link.say("by time", commands.seek(10, link.next_request(), publish_time_ms=1))
        subscribe(link, topic, 10, name, kind)
        link.say("flow", commands.flow(10, 10), quiet_s=1.2)
        link.say("neither", commands.seek(10, link.next_request()))
        subscribe(link, topic, 10, name, kind)
        link.say("stats", commands.consumer_stats(10, link.next_request()))
        link.close()


@scenario
def chunks_on_types(broker: Recorder, topic: str) -> None:
    """Chunks of two messages, interleaved, on each type."""
    owner = broker.connect()
    produce(owner, topic, 1, producer_name="p")
    for chunk in range(2):
        for number in range(2):
            owner.say(
                "chunk",
                send(
                    1,
                    number,
                    message(
                        number,
                        uuid=f"p-{number}",
                        num_chunks_from_msg=2,
                        chunk_id=chunk,
                        total_chunk_msg_size=2,
                    ),
                    is_chunk=True,
                ),
            )
    for kind in (SUB.Exclusive, SUB.Shared, SUB.Failover, SUB.Key_Shared):
        link = broker.connect()
        lookup(link, topic)
        subscribe(link, topic, 10, f"s{int(kind)}", kind)
        subscribe(link, topic, 11, f"s{int(kind)}", kind)
        for permits in (1, 1, 2):
            link.say("flow", commands.flow(10, permits), quiet_s=1.0)
        link.say("other", commands.flow(11, 5), quiet_s=1.0)
        ids = received(broker)[-1:]
        link.say("nack", commands.redeliver_unacknowledged_messages(10, ids), quiet_s=1.0)
        link.say("stats", commands.consumer_stats(10, link.next_request()))
        link.close()


@scenario
def watchers(broker: Recorder, topic: str) -> None:
    """WATCH_TOPIC_LIST: the same id twice, topics that come and go, closing."""
    namespace = f"public/watch-{topic.rpartition('-')[2]}"
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}", quiet=True)
    link, other = broker.connect(), broker.connect()
    pattern = f"persistent://{namespace}/a.*"
    link.say("watch", commands.watch_topic_list(namespace, link.next_request(), 1, pattern))
    link.say("again", commands.watch_topic_list(namespace, link.next_request(), 1, pattern))
    produce(other, f"persistent://{namespace}/a1")
    produce(other, f"persistent://{namespace}/b1", 2)
    link.listen("hears", quiet_s=1.5)
    other.close()
    broker.rest("DELETE", f"/admin/v2/persistent/{namespace}/a1", quiet=True)
    link.listen("after the deletion", quiet_s=1.5)
    link.say("close", commands.watch_topic_list_close(link.next_request(), 1))
    link.say("close again", commands.watch_topic_list_close(link.next_request(), 1))
    link.say("close unknown", commands.watch_topic_list_close(link.next_request(), 77))
