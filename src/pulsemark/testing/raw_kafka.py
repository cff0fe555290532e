"""A Kafka client that sends just what a test asks for, one request after the other.

    with RawKafka.from_url(broker.kafka_url) as client:
        answer = client.call(MetadataRequest, 4, topics=None)

Requests are those of kafka-python's `kafka.protocol`. `produce` and `fetch` take and give the bytes
of record sets, so a test can send sets that no official client makes, such as records with the
tombstone flag of KIP-87.
"""

from __future__ import annotations

from typing import Any, Self

from ..kafka import importing_kafka

with importing_kafka():
    from kafka.protocol.consumer import FetchRequest
    from kafka.protocol.producer import ProduceRequest

    from ..kafka.client import KafkaConnection, fetch_fields, produce_fields

__all__ = ["RawKafka", "fetch_fields", "produce_fields"]


class RawKafka(KafkaConnection):
    """A connection to a broker's Kafka port."""

    @classmethod
    def from_url(cls, url: str, *, timeout_s: float = 30.0) -> Self:
        """Connect to `host:port`."""
        host, _, port = url.rpartition(":")
        return cls(host, int(port), timeout_s=timeout_s)

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
        """One partition's records from an offset on; `records` are the bytes."""
        asked = (topic, partition, offset, max_bytes, leader_epoch)
        answer = self.call(
            FetchRequest, version, **fetch_fields([asked], max_wait_ms, min_bytes, max_bytes)
        )
        return answer.responses[0].partitions[0]
