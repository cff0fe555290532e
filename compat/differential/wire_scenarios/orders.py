"""Commands sent before the answers to the ones before them, and lookups of all kinds."""

from __future__ import annotations

from pulsemark.wire import EARLIEST, commands

from ..peers import Recorder
from .common import SUB, batch, fill, lookup, message, scenario, send, subscribe


@scenario
def pipelined_commands(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    lookup(link, topic)
    link.say(
        "producer and sends",
        commands.producer(topic, 1, link.next_request(), producer_name="p"),
        send(1, 0, message(0)),
        send(1, 1, message(1)),
    )
    if link.closed:
        link = broker.connect()
        lookup(link, topic)
        link.say("producer", commands.producer(topic, 1, link.next_request(), producer_name="p"))
    link.say("sends", send(1, 2, message(2)), send(1, 3, batch(3, 3), num_messages=3))
    link.say(
        "subscribe and flow",
        commands.subscribe(topic, "s", 10, link.next_request(), initial_position=SUB.Earliest),
        commands.flow(10, 1),
    )
    link.say("flow", commands.flow(10, 20))
    link.say(
        "two producers of one id",
        commands.producer(topic, 2, link.next_request()),
        commands.producer(topic, 2, link.next_request()),
    )
    link.say(
        "two producers of one name",
        commands.producer(topic, 3, link.next_request(), producer_name="q"),
        commands.producer(topic, 4, link.next_request(), producer_name="q"),
    )
    link.say(
        "a consumer that is closed",
        commands.subscribe(topic, "t", 11, link.next_request(), SUB.Shared),
        commands.close_consumer(11, link.next_request()),
    )
    link.say("stats", commands.flow(11, 1))
    link.say(
        "a producer that is closed",
        commands.producer(topic, 5, link.next_request()),
        commands.close_producer(5, link.next_request()),
    )
    link.say(
        "send and close",
        send(1, 6, message(6)),
        commands.close_producer(1, link.next_request()),
    )
    link.say("pings", commands.PING, commands.PING, commands.PONG)


@scenario
def pipelined_seeks(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 4)
    subscribe(link, topic, 10)
    link.say("flow", commands.flow(10, 20))
    link.say(
        "seek and subscribe",
        commands.seek(10, link.next_request(), message_id=EARLIEST),
        commands.flow(10, 5),
    )
    subscribe(link, topic, 10)
    link.say("flow", commands.flow(10, 20))
    link.say("close", commands.close_consumer(10, link.next_request()))
    link.say("seek closed", commands.seek(10, link.next_request(), message_id=EARLIEST))
    link.say("unsubscribe closed", commands.unsubscribe(10, link.next_request()))
    link.say("last id closed", commands.get_last_message_id(10, link.next_request()))
    link.say("redeliver closed", commands.redeliver_unacknowledged_messages(10))
    link.say("ack closed", commands.ack(10, [EARLIEST], request_id=link.next_request()))
    link.say("ping", commands.PING)


@scenario
def sequence_ids(broker: Recorder, topic: str) -> None:
    """Sequence ids that go back, repeat and jump; batches with odd counts."""
    link = broker.connect()
    lookup(link, topic)
    link.say("producer", commands.producer(topic, 1, link.next_request(), producer_name="p"))
    for sequence in (5, 5, 3, 100, 0, 2**63 - 1):
        link.say(f"sequence {sequence}", send(1, sequence, message(sequence)))
    for label, highest, count in (("as it is", 12, 3), ("lower", 5, 3), ("count 0", 12, 0)):
        link.say(
            f"batch {label}",
            send(1, 10, batch(10, 3), num_messages=count, highest_sequence_id=highest),
        )
    link.say("empty payload", send(1, 20, message(20, b"")))
    subscribe(link, topic, 10)
    link.say("flow", commands.flow(10, 50))
    link.say("close", commands.close_producer(1, link.next_request()))
    link.say("producer again", commands.producer(topic, 1, link.next_request(), producer_name="p"))


@scenario
def lookups(broker: Recorder, topic: str) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}"
    broker.rest("PUT", f"{path}/partitions", 2, quiet=True)
    link = broker.connect()
    names = {
        "partitioned": topic,
        "partition": f"{topic}-partition-1",
        "partition beyond": f"{topic}-partition-2",
        "absent": f"{topic}-absent",
        "in memory": topic.replace("persistent", "non-persistent"),
        "short": topic.rpartition("/")[2],
        "half": topic.partition("://")[2],
        "system": "persistent://public/default/__change_events",
    }
    for label, name in names.items():
        for authoritative in (False, True):
            link.say(
                f"lookup {label} {authoritative}",
                commands.lookup(name, link.next_request(), authoritative=authoritative),
            )
        link.say(
            f"listener {label}",
            commands.lookup(name, link.next_request(), advertised_listener_name="x"),
        )
        link.say(
            f"no creation {label}",
            commands.partitioned_metadata(
                name, link.next_request(), metadata_auto_creation_enabled=False
            ),
        )
        if label != "system":
            link.say(
                f"partitions {label}", commands.partitioned_metadata(name, link.next_request())
            )


@scenario
def a_namespace_without_creation(broker: Recorder, topic: str) -> None:
    """Topics and subscriptions that must not be made by clients; encryption that is required."""
    namespace = f"public/{topic.rpartition('/')[2]}"
    admin = f"/admin/v2/namespaces/{namespace}"
    broker.rest("PUT", admin, quiet=True)
    broker.rest("POST", f"{admin}/autoTopicCreation", {"allowAutoTopicCreation": False})
    broker.rest(
        "POST", f"{admin}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}
    )
    broker.rest("POST", f"{admin}/encryptionRequired", True, label="encryptionRequired")
    name = f"persistent://{namespace}/t"
    link = broker.connect()
    for label in ("absent", "there"):
        link.say(f"partitions {label}", commands.partitioned_metadata(name, link.next_request()))
        link.say(f"lookup {label}", commands.lookup(name, link.next_request()))
        link.say(f"producer {label}", commands.producer(name, 1, link.next_request()))
        link.say(
            f"encrypted {label}", commands.producer(name, 2, link.next_request(), encrypted=True)
        )
        link.say(f"subscribe {label}", commands.subscribe(name, "s", 1, link.next_request()))
        link.say(
            f"reader {label}",
            commands.subscribe(
                name, "r", 2, link.next_request(), durable=False, start_message_id=EARLIEST
            ),
        )
        link.say(f"schema {label}", commands.get_schema(name, link.next_request()))
        if label == "absent":
            broker.rest("PUT", f"/admin/v2/{name.replace('://', '/')}", label="create")
    link.say("send", send(2, 0, message(0)))
    link.say("topics", commands.get_topics_of_namespace(namespace, link.next_request()))
