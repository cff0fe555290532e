"""A Kafka client that sends just what a test asks for, one request after the other.

    with RawKafka.from_url(broker.kafka_url) as client:
        answer = client.call(MetadataRequest, 4, topics=None)

Requests are those of kafka-python's `kafka.protocol`. `produce` and `fetch` take and give the bytes
of record sets, so a test can send sets that no official client makes, such as records with the
tombstone flag of KIP-87.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

from ..broker.kafka import importing_kafka

with importing_kafka():
    from kafka.protocol.api_header import ResponseClassRegistry
    from kafka.protocol.consumer import FetchRequest
    from kafka.protocol.producer import ProduceRequest

_SIZE = struct.Struct(">i")


class RawKafka:
    """A connection to a broker's Kafka port."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 30.0) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float = 30.0) -> Self:
        """Connect to `host:port`."""
        host, _, port = url.rpartition(":")
        return cls(host, int(port), timeout_s=timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def detach(self) -> socket.socket:
        """The socket, which the caller closes."""
        return self._socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- bytes ----------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next answer, without its size. Raises ConnectionError if the broker has closed."""
        (size,) = _SIZE.unpack(self._receive(4))
        return self._receive(size)

    def _receive(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            part = self._socket.recv(size_bytes - len(received))
            if not part:
                raise ConnectionError("the broker closed the connection")
            received += part
        return bytes(received)

    # -- requests -------------------------------------------------------------------------------

    def send(self, request: Any, version: int, **fields: Any) -> int:
        """Send a request; returns its correlation id."""
        self._correlation_id += 1
        made = request(version=version, **fields)
        made.with_header(self._correlation_id, "raw")
        self.send_bytes(made.encode(header=True, framed=True))
        return self._correlation_id

    def receive(self, request: Any, version: int) -> tuple[int, Any]:
        """The next answer, which is one to a request of this kind: correlation id and body."""
        frame = self.receive_frame()
        response = ResponseClassRegistry._response_class_registry[request.API_KEY]
        answer = response.decode(frame, version=version, header=True)
        (correlation_id,) = _SIZE.unpack_from(frame)
        return correlation_id, answer

    def call(self, request: Any, version: int, **fields: Any) -> Any:
        """Send a request and return its answer. Raises ConnectionError if the broker closes."""
        sent = self.send(request, version, **fields)
        correlation_id, answer = self.receive(request, version)
        if correlation_id != sent:
            raise ConnectionError(f"answer {correlation_id} for request {sent}")
        return answer

    # -- record sets ----------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        partition: int = 0,
        version: int = 7,
        acks: int = -1,
    ) -> Any:
        """Send one record set; the answer for its partition."""
        answer = self.call(
            ProduceRequest, version, **produce_fields([(topic, partition, records)], acks)
        )
        return answer.responses[0].partition_responses[0]

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 11,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
    ) -> Any:
        """What one partition has from an offset on; `records` are the bytes."""
        asked = (topic, partition, offset, max_bytes, leader_epoch)
        answer = self.call(
            FetchRequest, version, **fetch_fields([asked], max_wait_ms, min_bytes, max_bytes)
        )
        return answer.responses[0].partitions[0]


def produce_fields(sets: Sequence[tuple[str, int, bytes | None]], acks: int) -> dict[str, Any]:
    """The fields of a Produce request with these sets: topic, partition, records."""
    topics = [
        ProduceRequest.TopicProduceData(
            name=topic,
            partition_data=[
                ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=records)
            ],
        )
        for topic, index, records in sets
    ]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 30_000,
        "topic_data": topics,
    }


def fetch_fields(
    asked: Sequence[tuple[str, int, int, int, int]],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
) -> dict[str, Any]:
    """The fields of a Fetch request: topic, partition, offset, most bytes, leader epoch."""
    topics = [
        FetchRequest.FetchTopic(
            topic=topic,
            partitions=[
                FetchRequest.FetchTopic.FetchPartition(
                    partition=index,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    log_start_offset=-1,
                    partition_max_bytes=most,
                )
            ],
        )
        for topic, index, offset, most, epoch in asked
    ]
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }
