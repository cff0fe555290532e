"""Measures how long large requests of Kafka's clients block a broker's event loop.

    python campaigns/loop_stalls_kafka.py [--only NAME ...] [--scale 1.0]

As campaigns/loop_stalls.py: a broker process with a monitored loop for each scenario, and a row for
each with the longest time that the loop was blocked. Exit code 1 if that was 50 ms or longer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder
from monitored_broker import MonitoredBroker

from pulsemark.kafka.protocol import APIS
from pulsemark.kafka.records.batch import BatchFields, build
from pulsemark.kafka.records.convert import to_legacy
from pulsemark.kafka.records.layout import Record, Work
from pulsemark.testing.raw_kafka import RawKafka, fetch_fields, produce_fields

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.kafka_worst_cases import WorstCase, worst_cases

BOUND_MS = 50
LISTED_MS = 20
WAIT_S = 120
MIB = 1024 * 1024

_Produced = ProduceRequest.TopicProduceData
_Fetched = FetchRequest.FetchTopic
_Listed = ListOffsetsRequest.ListOffsetsTopic
_Committed = OffsetCommitRequest.OffsetCommitRequestTopic
_Asked = OffsetFetchRequest.OffsetFetchRequestTopic
_Created = CreateTopicsRequest.CreatableTopic


def record_set(size_bytes: int) -> bytes:
    """A set of one record."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 24)
    builder.append(timestamp=1, key=None, value=b"v" * size_bytes)
    builder.close()
    return bytes(builder.buffer())


class Scene:
    """A monitored broker and one connection to its Kafka port."""

    def __init__(self, broker: MonitoredBroker, scale: float) -> None:
        self.broker = broker
        self.scale = scale
        self.client = self.connect()
        self.began_s = 0.0
        self.stalls: list[dict[str, Any]] = []

    def connect(self) -> RawKafka:
        """Another connection."""
        return RawKafka.from_url(self.broker.kafka_url, timeout_s=WAIT_S)

    def scaled(self, count: int) -> int:
        """A number, multiplied by the scale."""
        return max(1, int(count * self.scale))

    def create(self, topic: str, partitions: int) -> None:
        """A topic."""
        wanted = _Created(
            name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        fields = {"topics": [wanted], "timeout_ms": 60_000, "validate_only": False}
        answer = self.client.call(CreateTopicsRequest, 4, **fields)
        assert not answer.topics[0].error_code, answer

    def begin(self) -> None:
        """Begin to measure."""
        time.sleep(0.3)
        self.broker.stalls()
        self.began_s = time.monotonic()

    def end(self) -> str:
        """End to measure; how long it took."""
        took_s = time.monotonic() - self.began_s
        time.sleep(0.3)
        self.stalls = self.broker.stalls()
        return f"{took_s:.1f} s"


def produce_to_many(scene: Scene) -> str:
    """One Produce with sets for 20,000 partitions of one topic that are open already."""
    partitions, per_request = scene.scaled(2_000), 10
    scene.create("many", partitions)
    one = record_set(20)
    for start in range(0, partitions, 500):
        part = range(start, min(start + 500, partitions))
        scene.client.call(ProduceRequest, 7, **produce_fields([("many", n, one) for n in part], -1))
    data = _Produced.PartitionProduceData
    every = [data(index=n % partitions, records=one) for n in range(partitions * per_request)]
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name="many", partition_data=every)]}
    scene.begin()
    answer = scene.client.call(ProduceRequest, 7, **fields)
    took = scene.end()
    assert all(not part.error_code for part in answer.responses[0].partition_responses)
    return f"{len(every)} sets in {took}"


def fetch_missing(scene: Scene) -> str:
    """One Fetch that names 60,000 partitions that do not exist."""
    parts = [
        _Fetched.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1)
        for n in range(scene.scaled(60_000))
    ]
    fields = fetch_fields([], 0, 1, MIB) | {"topics": [_Fetched(topic="none", partitions=parts)]}
    scene.begin()
    answer = scene.client.call(FetchRequest, 0, **fields)
    took = scene.end()
    return f"{len(answer.responses[0].partitions)} partitions in {took}"


def list_missing(scene: Scene) -> str:
    """One ListOffsets that names 60,000 partitions that do not exist."""
    parts = [
        _Listed.ListOffsetsPartition(partition_index=n, timestamp=-1)
        for n in range(scene.scaled(60_000))
    ]
    scene.begin()
    answer = scene.client.call(
        ListOffsetsRequest, 1, replica_id=-1, topics=[_Listed(name="none", partitions=parts)]
    )
    took = scene.end()
    return f"{len(answer.topics[0].partitions)} partitions in {took}"


def metadata_of_missing(scene: Scene) -> str:
    """One Metadata that names 60,000 topics that do not exist."""
    names = [
        MetadataRequest.MetadataRequestTopic(name=f"n{n}") for n in range(scene.scaled(60_000))
    ]
    fields = {"topics": names, "allow_auto_topic_creation": False}
    scene.begin()
    answer = scene.client.call(MetadataRequest, 4, **fields)
    took = scene.end()
    return f"{len(answer.topics)} topics in {took}"


def many_fetch_much(scene: Scene) -> str:
    """200 connections fetch 5 MB each at once."""
    scene.create("much", 1)
    for _ in range(8):
        scene.client.produce("much", record_set(1_000_000))
    count = scene.scaled(200)
    asked = [("much", 0, 0, 5_000_000, -1)]
    with ExitStack() as stack:
        clients = [stack.enter_context(scene.connect()) for _ in range(count)]
        scene.begin()
        for client in clients:
            client.send(FetchRequest, 11, **fetch_fields(asked, 0, 1, 5_000_000))
        sizes = [
            len(client.receive(FetchRequest, 11)[1].responses[0].partitions[0].records)
            for client in clients
        ]
        took = scene.end()
    return f"{count} clients, {sum(sizes):,} bytes in {took}"


def commit_many(scene: Scene) -> str:
    """Five connections commit 20,000 offsets each at once, and fetch them."""
    partitions = min(scene.scaled(20_000), 10_000)
    scene.create("committed", partitions)
    scene.create("more", partitions)
    part = _Committed.OffsetCommitRequestPartition
    topics = [
        _Committed(
            name=name,
            partitions=[
                part(partition_index=n, committed_offset=n, committed_metadata="")
                for n in range(partitions)
            ],
        )
        for name in ("committed", "more")
    ]
    ids = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1}
    answered = 0
    with ExitStack() as stack:
        clients = [stack.enter_context(scene.connect()) for _ in range(5)]
        scene.begin()
        for number, client in enumerate(clients):
            client.send(OffsetCommitRequest, 2, group_id=f"g{number}", topics=topics, **ids)
        for client in clients:
            client.receive_frame()
        for number, client in enumerate(clients):
            client.send(OffsetFetchRequest, 2, group_id=f"g{number}", topics=None)
        for client in clients:
            answer = client.receive(OffsetFetchRequest, 2)[1]
            answered += sum(len(each.partitions) for each in answer.topics)
        took = scene.end()
    assert answered == len(clients) * 2 * partitions
    return f"{len(clients)} clients, {answered} offsets in {took}"


def fetch_offsets_of_missing(scene: Scene) -> str:
    """Five connections ask for the offsets of 60,000 partitions each that do not exist."""
    asked = [_Asked(name="none", partition_indexes=list(range(scene.scaled(60_000))))]
    with ExitStack() as stack:
        clients = [stack.enter_context(scene.connect()) for _ in range(5)]
        scene.begin()
        for client in clients:
            client.send(OffsetFetchRequest, 2, group_id="g", topics=asked)
        sizes = [len(client.receive_frame()) for client in clients]
        took = scene.end()
    return f"{len(clients)} clients, {sum(sizes):,} bytes in {took}"


def metadata_of_many(scene: Scene) -> str:
    """Metadata of two topics with 10,000 partitions each."""
    for number in range(2):
        scene.create(f"t{number}", scene.scaled(10_000))
    scene.begin()
    answer = scene.client.call(MetadataRequest, 4, topics=None, allow_auto_topic_creation=False)
    took = scene.end()
    return f"{sum(len(each.partitions) for each in answer.topics)} partitions in {took}"


def create_refused(scene: Scene) -> str:
    """One CreateTopics with 20,000 topics of which none can be created."""
    topics = [
        _Created(name=f"t{n}", num_partitions=0, replication_factor=1, assignments=[], configs=[])
        for n in range(scene.scaled(20_000))
    ]
    fields = {"topics": topics, "timeout_ms": 1, "validate_only": False}
    scene.begin()
    answer = scene.client.call(CreateTopicsRequest, 4, **fields)
    return f"{len(answer.topics)} topics in {scene.end()}"


def delete_missing(scene: Scene) -> str:
    """One DeleteTopics with 100,000 topics that do not exist."""
    names = [f"t{n}" for n in range(scene.scaled(100_000))]
    scene.begin()
    answer = scene.client.call(DeleteTopicsRequest, 3, topic_names=names, timeout_ms=1)
    return f"{len(answer.responses)} topics in {scene.end()}"


def join_with_many_protocols(scene: Scene) -> str:
    """A member that offers 100,000 protocols, and one with a megabyte of metadata."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    fields = {
        "session_timeout_ms": 10_000, "rebalance_timeout_ms": 1_000, "member_id": "",
        "protocol_type": "consumer",
    }  # fmt: skip
    offered = [protocol(name=f"p{n}", metadata=b"") for n in range(scene.scaled(80_000))]
    large = [protocol(name="range", metadata=bytes(1_000_000))]
    scene.begin()
    codes = [
        scene.client.call(JoinGroupRequest, 3, group_id="g", protocols=each, **fields).error_code
        for each in (offered, large)
    ]
    return f"codes {codes} in {scene.end()}"


def equal_records(count: int, codec: int, magic: int = 2, *, numbered: bool = True) -> bytes:
    """A set of records that are alike. If they are not numbered, it is very small compressed."""
    records = [Record(number if numbered else 0, 1, None, b"") for number in range(count)]
    if magic < 2:
        return to_legacy(records, magic, codec, Work())
    return build(records, BatchFields(codec=codec, last_offset_delta=count - 1), Work())


def produce_sets(scene: Scene, sets: list[bytes], version: int) -> str:
    """One Produce with these sets for one partition."""
    scene.create("t", 1)
    data = [_Produced.PartitionProduceData(index=0, records=each) for each in sets]
    fields = produce_fields([], -1) | {"topic_data": [_Produced(name="t", partition_data=data)]}
    scene.begin()
    answer = scene.client.call(ProduceRequest, version, **fields)
    took = scene.end()
    assert not any(part.error_code for part in answer.responses[0].partition_responses)
    return f"{len(sets)} sets, {sum(map(len, sets)):,} bytes in {took}"


def million_records(scene: Scene) -> str:
    """One zstd set of less than a kilobyte with 1,000,000 records."""
    return produce_sets(scene, [equal_records(scene.scaled(1_000_000), 4, numbered=False)], 7)


def wrapped_sets(scene: Scene) -> str:
    """20 small gzip sets of magic 1 in one request."""
    return produce_sets(scene, [equal_records(20_000, 1, 1)] * scene.scaled(20), 2)


def plain_sets(scene: Scene) -> str:
    """128 sets below 128 KiB with 10,000 records each."""
    return produce_sets(scene, [equal_records(10_000, 0)] * scene.scaled(128), 7)


def worst_of(key: int, *, repeated: bool) -> Callable[[Scene], str]:
    """The worst request of a kind, as large as the broker takes it."""

    def run(scene: Scene) -> str:
        scene.create("t", 1)
        limit = min(APIS[key].limit_bytes or MIB, MIB)
        one = frame_bytes(worst_cases("t", 1_000, repeated=repeated)[key]) / 1_000
        count = scene.scaled(int(limit / one * 0.9))
        case = worst_cases("t", count, repeated=repeated)[key]
        scene.begin()
        scene.client.send(case.request, case.version, **case.fields)
        try:
            answer = f"{len(scene.client.receive_frame()):,} bytes of answer"
        except ConnectionError:  # the answer would have been too large
            answer = "no answer: closed"
        return f"{count:,} things, {answer} in {scene.end()}"

    return run


def frame_bytes(case: WorstCase) -> int:
    """The size of a request."""
    made = case.request(version=case.version, **case.fields)
    made.with_header(1, "worst")
    return len(made.encode(header=True, framed=True))


SCENARIOS: dict[str, Callable[[Scene], str]] = {
    run.__name__: run
    for run in (
        produce_to_many,
        fetch_missing,
        list_missing,
        metadata_of_missing,
        many_fetch_much,
        commit_many,
        fetch_offsets_of_missing,
        metadata_of_many,
        create_refused,
        delete_missing,
        join_with_many_protocols,
        million_records,
        wrapped_sets,
        plain_sets,
    )
}
for _key in worst_cases("t", 1):
    SCENARIOS[f"{APIS[_key].name}_of_one"] = worst_of(_key, repeated=True)
    SCENARIOS[f"{APIS[_key].name}_of_many"] = worst_of(_key, repeated=False)


def play(name: str, scale: float) -> bool:
    """Run one; return whether the loop was not blocked for too long."""
    settings = {"kafka_port": 0, "max_kafka_request_bytes": 64 * MIB}
    with tempfile.TemporaryDirectory(prefix="pulsemark-stalls-") as folder:
        broker = MonitoredBroker(
            Path(folder) / "data", Path(folder) / "log", stall_ms=LISTED_MS, **settings
        )
        try:
            scene = Scene(broker, scale)
            note = SCENARIOS[name](scene)
            scene.client.close()
        finally:
            broker.end()
        worst = max(scene.stalls, key=lambda line: line["cpu_ms"], default=None)
        longest_ms = worst["cpu_ms"] if worst else 0
        errors = len(broker.uncaught())
    where = worst["stall"] if worst else ""
    print(f"{name:30} {longest_ms:4} ms {where}; {note}; {errors} errors", flush=True)
    return longest_ms < BOUND_MS and not errors


def main() -> int:
    """Run the scenarios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    held = [name for name in given.only if not play(name, given.scale)]
    return 1 if held else 0


if __name__ == "__main__":
    sys.exit(main())
