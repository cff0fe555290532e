"""A Kafka whose answers are broken, or stay away: it is a lost connection, and ends in time."""

from __future__ import annotations

import socketserver
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from pulsemark.client import ConnectionLostError, UnreachableError, WaitTimeoutError
from pulsemark.kafka.client import KafkaCluster, KafkaRefusedError
from pulsemark.mirror import LostError, Options, Resume, compare, open_source, open_target

from .conftest import CLUSTER, Mirror, entries_of
from .test_kafka import partition, record_set

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 1, 2, 3, 18
VERSIONS = {FETCH: 4, LIST_OFFSETS: 2, METADATA: 4, API_VERSIONS: 0}
HEADER = struct.Struct(">hhi")
SIZE = struct.Struct(">i")
OFFSET = struct.Struct(">q")
EARLIEST = -2


class AnsweringKafka(socketserver.ThreadingTCPServer):
    """A Kafka with the topic `orders` of one partition, which a test makes answer wrongly.

    Attributes: start, end (the log's), records (what each fetch gives), code (the topic's error),
    broker (the leader's address; None: this one), frames (bytes in place of the answers to a kind
    of request; b"": it answers nothing any more).
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.start, self.end, self.records, self.code = 0, 3, record_set(3), 0
        self.broker: tuple[str, int] | None = None
        self.frames: dict[int, bytes] = {}
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        """Its URL."""
        return f"kafka://127.0.0.1:{self.server_address[1]}"

    def answer(self, key: int, body: bytes) -> Any:
        """The answer to a request."""
        if key == API_VERSIONS:
            made = ApiVersionsResponse.ApiVersion
            kinds = [made(api_key=k, min_version=v, max_version=v) for k, v in VERSIONS.items()]
            return ApiVersionsResponse(error_code=0, api_keys=kinds)
        if key == METADATA:
            return self._metadata()
        if key == LIST_OFFSETS:
            offset = self.start if OFFSET.unpack(body[-8:])[0] == EARLIEST else self.end
            of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
            listed = of_topic.ListOffsetsPartitionResponse(
                partition_index=0, error_code=0, timestamp=-1, offset=offset
            )
            topics = [of_topic(name="orders", partitions=[listed])]
            return ListOffsetsResponse(throttle_time_ms=0, topics=topics)
        of_topic = FetchResponse.FetchableTopicResponse
        fetched = of_topic.PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.end,
            aborted_transactions=None,
            records=self.records,
        )
        topics = [of_topic(topic="orders", partitions=[fetched])]
        return FetchResponse(throttle_time_ms=0, responses=topics)

    def _metadata(self) -> Any:
        of_topic = MetadataResponse.MetadataResponseTopic
        led = of_topic.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0]
        )
        topic = of_topic(
            error_code=self.code,
            name="orders",
            is_internal=False,
            partitions=[] if self.code else [led],
        )
        host, port = self.server_address[:2]
        host, port = self.broker or (host, port)
        broker = MetadataResponse.MetadataResponseBroker(node_id=0, host=host, port=port, rack=None)
        return MetadataResponse(
            throttle_time_ms=0, brokers=[broker], cluster_id="c", controller_id=0, topics=[topic]
        )


class Connection(socketserver.StreamRequestHandler):
    """Answers requests in their order."""

    server: AnsweringKafka

    def handle(self) -> None:
        """Until the client goes."""
        while len(head := self.rfile.read(SIZE.size)) == SIZE.size:
            body = self.rfile.read(SIZE.unpack(head)[0])
            key, version, correlation_id = HEADER.unpack_from(body)
            if (frame := self.server.frames.get(key)) is None:
                response = self.server.answer(key, body)
                response.API_VERSION = version
                response.with_header(correlation_id)
                frame = response.encode(header=True, framed=True)
            if not frame:
                self.server.ended.wait()
            self.wfile.write(frame.replace(b"CORR", struct.pack(">i", correlation_id)))


@pytest.fixture
def answering() -> Iterator[AnsweringKafka]:
    """A Kafka that answers as a test says."""
    with AnsweringKafka() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


def wait_taken(topic: Any) -> list[Any]:
    """The next that a source's topic has."""
    while not (taken := topic.take(10, 1 << 20)):
        pass
    return list(taken)


def opened(server: AnsweringKafka) -> Any:
    """The partition, from its first offset on."""
    source = open_source(server.address, Options(source_cluster=CLUSTER))
    return source.open(partition("orders"), Resume())


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -20),
        struct.pack(">i", 1 << 30),
        struct.pack(">i", 0),
        struct.pack(">i", 12) + b"CORR" + b"\xff" * 8,
        struct.pack(">i", 24) + b"CORR" + bytes(20),
        2 * (struct.pack(">i", 24) + b"CORR" + bytes(20)),
    ],
    ids=["negative", "huge", "empty", "not decoded", "no topic", "two answers"],
)
def test_an_answer_that_is_none(answering: AnsweringKafka, frame: bytes) -> None:
    """It is no error of this program, and takes no memory."""
    answering.frames[METADATA] = frame
    with pytest.raises(ConnectionLostError):
        KafkaCluster(answering.address).partitions("orders")


def test_a_leader_at_no_address(answering: AnsweringKafka) -> None:
    """It cannot be reached, as one that is down."""
    answering.broker = "a..b", 9092
    with pytest.raises(UnreachableError):
        opened(answering)


def test_a_topic_that_is_refused(answering: AnsweringKafka) -> None:
    """The reason is named: such a topic may be there."""
    answering.code = 29
    with pytest.raises(KafkaRefusedError, match="TopicAuthorizationFailed"):
        opened(answering)


def test_sets_before_a_broken_one_are_copied(
    answering: AnsweringKafka, mirror: Mirror, tmp_path: Path
) -> None:
    """Where a broken one ends is not known: it is asked for again, for a limited time."""
    broken = bytearray(record_set(3))
    broken[8:12] = SIZE.pack(3)
    answering.records, answering.end = record_set(3) + broken, 6
    with pytest.raises(LostError, match="3 bytes"):
        mirror(answering.address, tmp_path / "copy", "orders", reconnect_s=1)
    assert [each.index for each in entries_of(tmp_path / "copy", partition("orders"))] == [2]


@pytest.mark.parametrize(
    ("offset", "text"), [(1, "log's end is 3"), (1 << 60, "log's end is 3"), (-5, "no whole set")]
)
def test_offsets_that_the_log_does_not_have(
    answering: AnsweringKafka, offset: int, text: str
) -> None:
    """No checksum covers a set's offset. One beyond the end would be a hole without end."""
    answering.records = OFFSET.pack(offset) + record_set(3)[8:]
    with pytest.raises(ConnectionLostError, match=text):
        wait_taken(opened(answering))


def test_a_part_of_a_set_alone(answering: AnsweringKafka) -> None:
    """A Kafka gives at least one whole set; else nothing would ever come."""
    answering.records = record_set(3)[:40]
    with pytest.raises(ConnectionLostError, match="no whole set"):
        wait_taken(opened(answering))


def test_a_damaged_batch_does_not_say_where_to_go_on(answering: AnsweringKafka) -> None:
    """The producer of a target's last batch does, if its checksum is right."""
    target = open_target(answering.address, Options(source_cluster=CLUSTER, append=True))
    assert target.open(partition("orders")).resume.index == 2
    answering.records = answering.records[:-1] + b"?"
    with pytest.raises(ConnectionLostError, match="CRC-32C"):
        target.open(partition("orders"))


def test_a_long_hole_takes_no_memory(answering: AnsweringKafka) -> None:
    """Of a log that begins late, the batches in place of the hole are made one by one."""
    answering.start, answering.end = 1 << 38, (1 << 38) + 3
    answering.records = OFFSET.pack(answering.start) + record_set(3)[8:]
    topic = opened(answering)
    tracemalloc.start()
    try:
        taken = wait_taken(topic) + wait_taken(topic)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert [each.stamp.index for each in taken[1:3]] == [(1 << 20) - 1, (1 << 21) - 1]


def test_a_comparison_does_not_wait_for_ever(
    answering: AnsweringKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a mirror, which asks for a sign of life."""
    monkeypatch.setattr("pulsemark.mirror.kafka.ANSWER_S", 0.2)
    answering.frames[FETCH] = b""
    with pytest.raises(WaitTimeoutError):
        compare(answering.address, answering.address, partition("orders"), Options())
