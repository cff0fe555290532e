"""Finding topics: names, lookups, lists."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

from ..peers import Recorder
from .common import produce, scenario


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
        f"{topic}/b",
        f"{topic}-ä",
    ):
        broker.record("name", name.replace(topic, "T"))
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
    tag = topic.rpartition("-")[2]
    namespace = f"public/lists-{tag}"
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}", quiet=True)
    link = broker.connect()
    first = f"persistent://{namespace}/a-first"
    produce(link, first)
    modes = pb.CommandGetTopicsOfNamespace
    ask = commands.get_topics_of_namespace
    for mode in (modes.PERSISTENT, modes.NON_PERSISTENT, modes.ALL):
        for pattern in (
            None,
            f"persistent://{namespace}/.*",
            f"{namespace}/a-.*",
            f"persistent://{namespace}/none",
            "x" * 51,
            "[",
        ):
            broker.record("asked", [int(mode), pattern and pattern.replace(tag, "")])
            link.say("topics", ask(namespace, link.next_request(), mode, topics_pattern=pattern))
    digest = broker.last("GET_TOPICS_OF_NAMESPACE_RESPONSE").topics_hash
    link.say(
        "known hash", ask(namespace, link.next_request(), modes.PERSISTENT, topics_hash=digest)
    )
    link.say(
        "other hash", ask(namespace, link.next_request(), modes.PERSISTENT, topics_hash="00000000")
    )
    link.say("absent namespace", ask("public/absent", link.next_request()))


@scenario
def watched_lists(broker: Recorder, topic: str) -> None:
    tag = topic.rpartition("-")[2]
    namespace = f"public/watched-{tag}"
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}", quiet=True)
    link = broker.connect()
    watch = commands.watch_topic_list
    pattern = f"persistent://{namespace}/a.*"
    link.say("empty", watch(namespace, link.next_request(), 1, pattern))
    link.say("same id", watch(namespace, link.next_request(), 1, pattern))
    produce(link, f"persistent://{namespace}/a1")
    produce(link, f"persistent://{namespace}/b1", 2)
    link.say("one", watch(namespace, link.next_request(), 2, pattern))
    digest = broker.last("WATCH_TOPIC_LIST_SUCCESS").topics_hash
    link.say("known hash", watch(namespace, link.next_request(), 3, pattern, digest))
    link.say("end 3", commands.watch_topic_list_close(link.next_request(), 3))
    link.say("end 2", commands.watch_topic_list_close(link.next_request(), 2))
    link.say("end again", commands.watch_topic_list_close(link.next_request(), 2))
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/a2/partitions", 2, quiet=True)
    link.listen("partitions came", quiet_s=1.5)
    link.say("close", commands.close_producer(1, link.next_request()))
    broker.rest("DELETE", f"/admin/v2/persistent/{namespace}/a1", quiet=True)
    link.listen("one went", quiet_s=1.5)
    link.say(
        "absent namespace",
        watch("public/absent", link.next_request(), 5, "persistent://public/absent/.*"),
    )
    link.say(
        "malformed namespace", watch("x", link.next_request(), 6, "persistent://public/absent/.*")
    )
