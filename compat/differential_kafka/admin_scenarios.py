"""Topics, settings and what a broker says of itself."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from pulsemark.testing.raw_kafka import produce_fields

from .peers import Peer
from .record_sets import FORMATS, ONE, set_of

_Topic = CreateTopicsRequest.CreatableTopic
_Assigned = _Topic.CreatableReplicaAssignment
_Config = _Topic.CreatableTopicConfig


def topic_fields(
    name: str | None,
    partitions: int = 1,
    replicas: int = 1,
    assigned: Any = (),
    configs: Any = (),
) -> Any:
    """One topic of a CreateTopics."""
    return _Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[_Assigned(partition_index=i, broker_ids=b) for i, b in assigned],
        configs=[_Config(name=key, value=value) for key, value in configs],
    )


def make_topic(peer: Peer, name: str, magic: int = 2, partitions: int = 1, **configs: str) -> str:
    """A topic that takes records, with one record at offset 0 of each partition."""
    topic = peer.topic(name)
    if peer.converts:
        configs = {**configs, "message.format.version": FORMATS[magic]}
    fields = topic_fields(topic, partitions, configs=configs.items())
    peer.quietly(CreateTopicsRequest, 2, topics=[fields], timeout_ms=10_000, validate_only=False)
    for index in range(partitions):
        peer.eventually(partial(takes, peer, topic, index), f"topic {topic}")
    return topic


def takes(peer: Peer, topic: str, index: int) -> bool:
    """Produce one record."""
    one = set_of(2, "none", ONE)
    answer = peer.quietly(ProduceRequest, 7, **produce_fields([(topic, index, one)], -1))
    return bool(answer.responses[0].partition_responses[0].error_code == 0)


def create(peer: Peer, label: str, version: int, *topics: Any, check: bool = False) -> None:
    fields: dict[str, Any] = {"topics": list(topics), "timeout_ms": 10_000}
    peer.ask(label, CreateTopicsRequest, version, **fields, validate_only=check)


def alter(peer: Peer, label: str, topic: str, settings: dict[str, str | None]) -> None:
    """AlterConfigs of a topic."""
    change(peer, label, AlterConfigsRequest, 1, 2, topic, list(settings.items()))


def change(
    peer: Peer, label: str, request: Any, version: int, kind: int, name: str, configs: Any,
    check: bool = False,
) -> None:  # fmt: skip
    resource = request.AlterConfigsResource
    made = [
        resource.AlterableConfig(
            name=each[0], value=each[1], **({"config_operation": each[2]} if each[2:] else {})
        )
        for each in configs
    ]
    asked = resource(resource_type=kind, resource_name=name, configs=made)
    peer.ask(label, request, version, resources=[asked], validate_only=check)


def describe(
    peer: Peer, label: str, version: int, kind: int, name: str, keys: list[str] | None
) -> None:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    peer.ask(
        label, DescribeConfigsRequest, version,
        resources=[asked], include_synonyms=False, include_documentation=False,
    )  # fmt: skip


def discovery(peer: Peer) -> None:
    topic = make_topic(peer, "found", partitions=2)
    named = MetadataRequest.MetadataRequestTopic
    for version in peer.versions(MetadataRequest):
        fields: dict[str, Any] = {"allow_auto_topic_creation": False}
        peer.ask("a topic", MetadataRequest, version, topics=[named(name=topic)], **fields)
        peer.ask("twice", MetadataRequest, version, topics=[named(name=topic)] * 2, **fields)
        for bad in ("a/b", "", "x" * 250, ".", "no-such-topic"):
            if version >= 4 or bad != "no-such-topic":
                asked = [named(name=bad)]
                peer.ask(f"topic {bad[:5]!r}", MetadataRequest, version, topics=asked, **fields)
        if version:
            peer.ask("no topics", MetadataRequest, version, topics=[], **fields)
    for version in peer.versions(FindCoordinatorRequest)[:3]:
        for kind, key in ((0, "group"), (0, ""), (9, "x")):
            peer.ask(
                f"coordinator of {kind} {key!r}", FindCoordinatorRequest, version,
                key=key, key_type=kind,
            )  # fmt: skip
    for version in peer.versions(SaslHandshakeRequest):
        on = peer.connect()
        peer.ask("mechanism", SaslHandshakeRequest, version, on, mechanism="PLAIN")
    for version in peer.versions(SaslAuthenticateRequest):
        peer.ask("no handshake", SaslAuthenticateRequest, version, peer.connect(), auth_bytes=b"")
    for version in (0, 1, 2):
        peer.quietly(ApiVersionsRequest, version)


def topics(peer: Peer) -> None:
    for version in peer.versions(CreateTopicsRequest):
        name = peer.topic(f"made{version}")
        create(peer, "made", version, topic_fields(name, 3))
        create(peer, "again", version, topic_fields(name, 3))
        create(peer, "two", version, topic_fields(f"{name}a"), topic_fields(f"{name}b"))
        create(peer, "the same twice", version, topic_fields(f"{name}c"), topic_fields(f"{name}c"))
        create(peer, "none", version)
        if version:
            create(peer, "checked", version, topic_fields(f"{name}d"), check=True)
            create(peer, "checked, exists", version, topic_fields(name), check=True)
        for number, (label, fields) in enumerate(_odd_topics(peer, version).items()):
            named_fields = {"name": peer.topic(f"odd{version}-{number}"), **fields}
            create(peer, label, version, topic_fields(**named_fields))
    _partitions(peer)
    for version in peer.versions(DeleteTopicsRequest)[:4]:
        for label, names in {
            "deleted": [peer.topic(f"made{version}")], "again": [peer.topic(f"made{version}")],
            "none": [], "two, one missing": [peer.topic("nothing"), peer.topic("madeasg1")],
            "illegal": ["a/b"], "empty": [""],
        }.items():  # fmt: skip
            peer.ask(label, DeleteTopicsRequest, version, topic_names=names, timeout_ms=10_000)


def _odd_topics(peer: Peer, version: int) -> dict[str, dict[str, Any]]:
    plain = {"partitions": -1, "replicas": -1}
    return {
        "0 partitions": {"partitions": 0},
        "-2 partitions": {"partitions": -2},
        "replication factor 0": {"replicas": 0},
        "replication factor 3": {"replicas": 3},
        "replication factor -2": {"replicas": -2},
        "empty name": {"name": ""},
        "name .": {"name": "."},
        "name ..": {"name": ".."},
        "name a/b": {"name": "a/b"},
        "name too long": {"name": "n" * 250},
        "assigned": {
            "name": peer.topic(f"madeasg{version}"),
            "assigned": [(0, [1]), (1, [1])],
            **plain,
        },
        "assigned with partitions": {"assigned": [(0, [1])]},
        "assigned with a gap": {"assigned": [(0, [1]), (2, [1])], **plain},
        "assigned twice": {"assigned": [(0, [1]), (0, [1])], **plain},
        "assigned to no one": {"assigned": [(0, [])], **plain},
        "assigned to another": {"assigned": [(0, [7])], **plain},
        "assigned to one twice": {"assigned": [(0, [1, 1])], **plain},
        "defaults": plain,
        "unknown setting": {"configs": [("no.such.setting", "1")]},
        "bad value": {"configs": [("retention.ms", "soon")]},
        "too small": {"configs": [("retention.ms", "-2")]},
        "null value": {"configs": [("retention.ms", None)]},
        "the same setting twice": {"configs": [("retention.ms", "1"), ("retention.ms", "2")]},
        "empty value": {"configs": [("cleanup.policy", "")]},
        **{f"setting {key}={value}": {"configs": [(key, value)]} for key, value in TOPIC_SETTINGS},
    }


TOPIC_SETTINGS = [
    ("segment.bytes", "1048576"), ("segment.ms", "60000"), ("min.insync.replicas", "1"),
    ("compression.type", "producer"), ("flush.messages", "1"), ("delete.retention.ms", "1000"),
    ("min.cleanable.dirty.ratio", "0.1"), ("unclean.leader.election.enable", "true"),
    ("cleanup.policy", "compact,delete"), ("cleanup.policy", "compact, delete"),
    ("max.message.bytes", "2000000"), ("file.delete.delay.ms", "1"), ("preallocate", "false"),
    ("index.interval.bytes", "4096"), ("segment.index.bytes", "1048576"), ("flush.ms", "1000"),
    ("max.compaction.lag.ms", "1000"), ("min.compaction.lag.ms", "10"), ("segment.jitter.ms", "0"),
    ("leader.replication.throttled.replicas", "*"), ("message.timestamp.type", "LogAppendTime"),
    ("segment.bytes", "x"), ("preallocate", "yes"), ("min.insync.replicas", "0"),
    ("min.cleanable.dirty.ratio", "2"), ("compression.type", "brotli"),
    ("message.timestamp.type", "Never"), ("max.message.bytes", "-1"), ("retention.ms", " 5"),
]  # fmt: skip


def _partitions(peer: Peer) -> None:
    name = make_topic(peer, "more")
    asked = CreatePartitionsRequest.CreatePartitionsTopic
    placed = asked.CreatePartitionsAssignment
    for version in peer.versions(CreatePartitionsRequest)[:2]:
        steps: dict[str, tuple[str, int, Any, bool]] = {
            "checked": (name, 5, None, True), "more": (name, 2 + version, None, False),
            "the same": (name, 2 + version, None, False), "fewer": (name, 1, None, False),
            "0": (name, 0, None, False), "-1": (name, -1, None, False),
            "of a missing topic": (peer.topic("nothing"), 2, None, False),
            "illegal name": ("a/b", 2, None, False),
            "assigned": (name, 4 + version, [[1]] * 2, False),
            "assigned too few": (name, 20, [[1]], False),
            "assigned to another": (name, 5 + version, [[9]], False),
        }  # fmt: skip
        for label, (topic, count, places, check) in steps.items():
            assigned = None if places is None else [placed(broker_ids=each) for each in places]
            peer.ask(
                label, CreatePartitionsRequest, version,
                topics=[asked(name=topic, count=count, assignments=assigned)],
                timeout_ms=10_000, validate_only=check,
            )  # fmt: skip


def settings(peer: Peer) -> None:
    topic = make_topic(peer, "settings")
    known = ["cleanup.policy", "max.message.bytes", "retention.bytes", "message.timestamp.type"]
    for version in peer.versions(DescribeConfigsRequest)[:4]:
        describe(peer, "some", version, 2, topic, known)
        describe(peer, "none", version, 2, topic, [])
        describe(peer, "unknown", version, 2, topic, ["no.such.setting"])
        describe(peer, "missing topic", version, 2, peer.topic("nothing"), None)
        describe(peer, "illegal topic", version, 2, "a/b", None)
        describe(peer, "empty topic", version, 2, "", None)
        describe(peer, "broker 9", version, 4, "9", None)
        describe(peer, "broker x", version, 4, "x", None)
        describe(peer, "kind 77", version, 77, "x", None)
    for version in peer.versions(AlterConfigsRequest)[:2]:
        _alters(peer, topic, version)
        describe(peer, "after it", 1, 2, topic, known)
    for version in peer.versions(IncrementalAlterConfigsRequest)[:1]:
        _increments(peer, topic, version)


def _alters(peer: Peer, topic: str, version: int) -> None:
    steps: dict[str, tuple[int, str, list[tuple[str, str | None]], bool]] = {
        "one": (2, topic, [("retention.bytes", "1000000")], False),
        "checked": (2, topic, [("retention.bytes", "2000000")], True),
        "another, which resets it": (2, topic, [("max.message.bytes", "2000")], False),
        "none": (2, topic, [], False),
        "unknown": (2, topic, [("no.such.setting", "1")], False),
        "bad": (2, topic, [("retention.bytes", "x")], False),
        "null": (2, topic, [("retention.bytes", None)], False),
        "twice": (2, topic, [("retention.bytes", "1"), ("retention.bytes", "2")], False),
        "missing topic": (2, peer.topic("nothing"), [("retention.bytes", "1")], False),
        "illegal topic": (2, "a/b", [("retention.bytes", "1")], False),
        "kind 77": (77, topic, [("retention.bytes", "1")], False),
    }
    for label, (kind, name, configs, check) in steps.items():
        change(peer, label, AlterConfigsRequest, version, kind, name, configs, check)


def _increments(peer: Peer, topic: str, version: int) -> None:
    put, delete, append, subtract = range(4)
    steps: dict[str, list[tuple[str, str | None, int]]] = {
        "set": [("retention.bytes", "1000000", put)],
        "set another": [("max.message.bytes", "2000", put)],
        "delete": [("retention.bytes", None, delete)],
        "delete again": [("retention.bytes", None, delete)],
        "append": [("cleanup.policy", "compact", append)],
        "append again": [("cleanup.policy", "compact", append)],
        "subtract": [("cleanup.policy", "delete", subtract)],
        "subtract the last": [("cleanup.policy", "compact", subtract)],
        "append to none": [("cleanup.policy", "delete", append)],
        "append to a number": [("retention.bytes", "1", append)],
        "unknown": [("no.such.setting", "1", put)],
        "delete unknown": [("no.such.setting", None, delete)],
        "null": [("retention.bytes", None, put)],
        "twice": [("retention.bytes", "1", put), ("retention.bytes", None, delete)],
        "operation 9": [("retention.bytes", "1", 9)],
        "none": [],
    }
    known = ["cleanup.policy", "max.message.bytes", "retention.bytes"]
    for label, configs in steps.items():
        change(peer, label, IncrementalAlterConfigsRequest, version, 2, topic, configs)
        time.sleep(0.1)
        describe(peer, f"after {label}", 1, 2, topic, known)


VALUES = {
    "number": (
        "0",
        "1",
        "-1",
        "-2",
        "14",
        "1.5",
        "x",
        "",
        " 7 ",
        "2147483648",
        "9223372036854775808",
    ),
    "switch": ("true", "FALSE", "1", "", "yes"),
}
EACH = {
    "cleanup.policy": ("delete", "compact", "compact,delete", "delete, compact", "x", "", "Delete"),
    "compression.type": ("gzip", "zstd", "none", "uncompressed", "producer", "GZIP", "x", ""),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "logappendtime", ""),
    "min.cleanable.dirty.ratio": ("0", "1", "0.3", "1.1", "-0.1", "x", ""),
    "unclean.leader.election.enable": VALUES["switch"],
    "preallocate": VALUES["switch"],
} | dict.fromkeys(
    (
        "max.message.bytes", "retention.ms", "retention.bytes", "delete.retention.ms",
        "file.delete.delay.ms", "flush.messages", "flush.ms", "index.interval.bytes",
        "max.compaction.lag.ms", "min.compaction.lag.ms", "min.insync.replicas", "segment.bytes",
        "segment.index.bytes", "segment.jitter.ms", "segment.ms", "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms", "message.downconversion.enable",
        "message.timestamp.difference.max.ms", "local.retention.ms", "compression.gzip.level",
    ),
    VALUES["number"],
)  # fmt: skip


def each_setting(peer: Peer) -> None:
    """Every setting of a topic with good and bad values: whether it is taken, and how it is shown."""
    topic = make_topic(peer, "each")
    for name, values in EACH.items():
        for value in values:
            label = f"{name}={value!r}"
            change(peer, label, IncrementalAlterConfigsRequest, 0, 2, topic, [(name, value, 0)])
            time.sleep(0.1)  # Kafka shows a change a little after it has answered
            describe(peer, f"after {label}", 1, 2, topic, [name])
        change(peer, f"no {name}", IncrementalAlterConfigsRequest, 0, 2, topic, [(name, None, 1)])


ADMIN_SCENARIOS = {
    "discovery": discovery,
    "topics": topics,
    "settings": settings,
    "each-setting": each_setting,
}
