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
        "persistent://public/default/a/b",
        f"{topic}-ä",
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
