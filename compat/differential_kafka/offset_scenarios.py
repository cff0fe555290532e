"""Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where offsets are, and are not."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

from pulsemark.testing.raw_kafka import fetch_fields

from .admin_scenarios import make_topic
from .peers import Peer
from .record_scenarios import complete, records_of, send
from .record_sets import MANY, MIXED, set_of

_Listed = ListOffsetsRequest.ListOffsetsTopic
_Epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
_Deleted = DeleteRecordsRequest.DeleteRecordsTopic


def fetch(peer: Peer, label: str, version: int, fields: dict[str, Any]) -> None:
    """A Fetch; of its records only offsets and count are recorded."""
    if version not in peer.versions(FetchRequest):
        return
    try:
        made = peer.main.call(FetchRequest, version, **fields)
    except OSError:
        peer.record(f"{label} (v{version})", "<closed>")
        peer.forget()
        return
    answer = made.to_dict()
    for topic, shown in zip(made.responses, answer["responses"], strict=True):
        for asked, part in zip(topic.partitions, shown["partitions"], strict=True):
            data = bytes(asked.records or b"")
            part["records"] = [record[0] for record in records_of(data)]
            part["complete"] = complete(data) == data or version < 3
    peer.record(f"{label} (v{version})", answer)


def fetches(peer: Peer) -> None:
    topic = make_topic(peer, "fetched")
    for rows in (MIXED, MANY):
        for codec in ("none", "gzip", "none"):
            send(peer, f"{codec}", topic, 7, set_of(2, codec, rows))
    for version in peer.versions(FetchRequest)[:12]:
        for offset in (0, 1, 3, 5, 20, 225, 226, 227, -1, -2, 2**62):
            fields = fetch_fields([(topic, 0, offset, 1 << 20, -1)], 0, 1, 1 << 20)
            fetch(peer, f"from {offset}", version, fields)
        for epoch in (-1, 0, 5, -2):
            fields = fetch_fields([(topic, 0, 3, 1 << 20, epoch)], 0, 1, 1 << 20)
            fetch(peer, f"epoch {epoch}", version, fields)
        for name, partition in ((topic, 1), (topic, -1), ("no-such-topic", 0), ("a/b", 0), ("", 0)):
            fields = fetch_fields([(name, partition, 0, 1 << 20, -1)], 0, 1, 1 << 20)
            fetch(peer, f"topic {name[:9]!r} partition {partition}", version, fields)
        _limits(peer, topic, version)


def _limits(peer: Peer, topic: str, version: int) -> None:
    if version >= 3:
        for most, partition_most in ((1, 1 << 20), (1 << 20, 1), (0, 0), (-1, -1), (1 << 20, 300)):
            fields = fetch_fields([(topic, 0, 2, partition_most, -1)], 0, 1, most)
            fetch(peer, f"at most {most} and {partition_most}", version, fields)
    for wait, least in ((100, 1 << 24), (0, 0), (-1, 1), (100, -1)):
        fields = fetch_fields([(topic, 0, 226, 1 << 20, -1)], wait, least, 1 << 20)
        fetch(peer, f"at the end, {wait} ms for {least}", version, fields)
    fields = fetch_fields([], 10, 1, 1 << 20)
    fetch(peer, "nothing", version, fields)
    fields = fetch_fields([(topic, 0, 2, 1 << 20, -1)] * 2, 10, 1, 1 << 20)
    fetch(peer, "the same twice", version, fields)
    if version >= 4:
        fields = fetch_fields([(topic, 0, 2, 1 << 20, -1)], 10, 1, 1 << 20)
        fetch(peer, "read committed", version, {**fields, "isolation_level": 1})
        fetch(peer, "isolation level 9", version, {**fields, "isolation_level": 9})
    if version >= 7:
        for session, epoch in ((0, 0), (99, 1), (99, 0), (0, 5), (99, -1)):
            fetch(
                peer, f"session {session} epoch {epoch}", version,
                {**fields, "session_id": session, "session_epoch": epoch},
            )  # fmt: skip


def listed(peer: Peer, label: str, version: int, topic: str, at: int, **more: Any) -> None:
    part = {"partition_index": 0, "current_leader_epoch": -1, "max_num_offsets": 5} | more
    asked = _Listed(name=topic, partitions=[_Listed.ListOffsetsPartition(timestamp=at, **part)])
    peer.ask(label, ListOffsetsRequest, version, replica_id=-1, isolation_level=0, topics=[asked])


def list_offsets(peer: Peer) -> None:
    topic, empty = make_topic(peer, "listed"), make_topic(peer, "listed-one")
    for codec in ("none", "gzip"):
        send(peer, codec, topic, 7, set_of(2, codec, MIXED))
    for version in peer.versions(ListOffsetsRequest):
        for name in (topic, empty):
            for at in (-1, -2, -3, -4, -5, -6, -7, -100, 0, 2**62):
                listed(peer, f"time {at} of {name[:10]}", version, name, at)
        listed(peer, "partition 7", version, topic, -1, partition_index=7)
        listed(peer, "partition -1", version, topic, -1, partition_index=-1)
        listed(peer, "epoch 5", version, topic, -1, current_leader_epoch=5)
        listed(peer, "epoch -2", version, topic, -1, current_leader_epoch=-2)
        listed(peer, "a missing topic", version, peer.topic("nothing"), -1)
        listed(peer, "an illegal topic", version, "a/b", -1)
        if not version:
            for most in (0, 1, -1, 2**31 - 1):
                listed(peer, f"at most {most}", version, topic, -1, max_num_offsets=most)
        twice = _Listed.ListOffsetsPartition(
            timestamp=-1, partition_index=0, current_leader_epoch=-1, max_num_offsets=5
        )
        asked = _Listed(name=topic, partitions=[twice, twice])
        peer.ask(
            "the same twice", ListOffsetsRequest, version,
            replica_id=-1, isolation_level=1, topics=[asked],
        )  # fmt: skip


def epochs(peer: Peer) -> None:
    topic = make_topic(peer, "epochs")
    part = _Epochs.OffsetForLeaderPartition
    for version in peer.versions(OffsetForLeaderEpochRequest)[:4]:
        for current, asked in (
            (-1, 0),
            (-1, 1),
            (-1, -1),
            (0, 0),
            (5, 0),
            (-1, 2**31 - 1),
            (-2, 0),
        ):
            for name, index in ((topic, 0), (topic, 3), (peer.topic("nothing"), 0)):
                fields = part(partition=index, current_leader_epoch=current, leader_epoch=asked)
                peer.ask(
                    f"epoch {asked} with {current} of {name[:6]} {index}",
                    OffsetForLeaderEpochRequest, version,
                    replica_id=-1, topics=[_Epochs(topic=name, partitions=[fields])],
                )  # fmt: skip


def deletions(peer: Peer) -> None:
    topic = make_topic(peer, "cut")
    for codec in ("none", "gzip", "none"):
        send(peer, codec, topic, 7, set_of(2, codec, MIXED))
    for version in peer.versions(DeleteRecordsRequest)[:2]:
        for name, partition, offset in (
            (topic, 0, 0), (topic, 0, 1), (topic, 0, 1), (topic, 0, 6), (topic, 0, 3), (topic, 0, 99),
            (topic, 0, -2), (topic, 1, 0), (topic, -1, 0), (peer.topic("nothing"), 0, 0), ("a/b", 0, 0),
        ):  # fmt: skip
            _cut(peer, version, name, partition, offset)
        listed(peer, "the start", 1, topic, -2)
        fields = fetch_fields([(topic, 0, 0, 1 << 20, -1)], 0, 1, 1 << 20)
        fetch(peer, "below the start", 10, fields)
    _cut(peer, 1, topic, 0, 9)
    listed(peer, "the start inside a batch", 1, topic, -2)
    for offset in (8, 9, 10):
        fields = fetch_fields([(topic, 0, offset, 1 << 20, -1)], 0, 1, 1 << 20)
        fetch(peer, f"from {offset} after a cut at 9", 10, fields)
    _cut(peer, 1, topic, 0, -1)
    listed(peer, "the start when all is deleted", 1, topic, -2)


def _cut(peer: Peer, version: int, topic: str, partition: int, offset: int) -> None:
    part = _Deleted.DeleteRecordsPartition(partition_index=partition, offset=offset)
    peer.ask(
        f"delete before {offset} of {topic[:7]!r} {partition}", DeleteRecordsRequest, version,
        topics=[_Deleted(name=topic, partitions=[part])], timeout_ms=5_000,
    )  # fmt: skip


OFFSET_SCENARIOS = {
    "fetches": fetches,
    "list-offsets": list_offsets,
    "epochs": epochs,
    "deletions": deletions,
}
